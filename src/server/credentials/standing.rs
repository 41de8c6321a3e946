//! Whether a caller is still known, while its answer goes on.
//!
//! Owns how soon a stream ends whose token was revoked. What it did for its caller ends with it, as
//! it does when a client leaves.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use super::Credentials;
use crate::access::Caller;
use crate::supervisor::Error;

/// How often is looked again while messages flow, and while none do. A look is a system call.
const FLOWING: Duration = Duration::from_secs(1);
const STILL: Duration = Duration::from_secs(5);

/// A caller that is known by a token.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) credentials: Arc<Credentials>,
    /// Which token it is.
    pub(super) id: String,
    pub(super) caller: Arc<Caller>,
}

impl Standing {
    /// An answer that ends when its caller is not known any more, or may do something else.
    pub(super) fn over(self, body: Body) -> Body {
        if body.is_end_stream() {
            return body;
        }
        let (looked, look) = (Instant::now(), Box::pin(sleep(STILL)));
        Body::new(Watched { standing: self, body: Some(body), looked, look })
    }

    fn lasts(&self) -> bool {
        let tokens = self.credentials.tokens.as_ref();
        tokens.is_some_and(|tokens| tokens.get().knows(&self.id, &self.caller))
    }
}

struct Watched {
    standing: Standing,
    /// None: it was cut off.
    body: Option<Body>,
    looked: Instant,
    look: Pin<Box<Sleep>>,
}

impl Watched {
    /// Looks whether the caller is still known.
    fn look(&mut self) -> bool {
        self.looked = Instant::now();
        self.look.as_mut().reset(self.looked + STILL);
        self.standing.lasts()
    }

    /// The end of what is not the caller's any more. All that is behind it is dropped.
    fn cut(&mut self) -> Frame<Bytes> {
        self.body = None;
        let mut trailers = HeaderMap::new();
        // It is made of what headers can hold.
        let _ = Status::from(Error::BadCredentials).add_header(&mut trailers);
        Frame::trailers(trailers)
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        let due = match &frame {
            Poll::Ready(Some(Ok(frame))) => frame.is_data() && self.looked.elapsed() >= FLOWING,
            Poll::Ready(_) => false,
            Poll::Pending => self.look.as_mut().poll(cx).is_ready(),
        };
        if due && !self.look() {
            return Poll::Ready(Some(Ok(self.cut())));
        }
        if frame.is_pending() && due {
            // The clock was set anew, and wakes who has asked.
            let _ = self.look.as_mut().poll(cx);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
