//! Bounds the one service that is for everyone: health.
//!
//! Owns how many calls strangers have under way, and how long they may take to say what they ask.
//! Checks and watches are counted apart: who watches for ever keeps no probe from checking. Who is
//! known is not counted here.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use super::acquaintance::{Acquaintance, Watching};
use crate::access::Caller;
use crate::grpc::framework::with_reason;
use crate::supervisor::{Bound, Error, Reached};

/// Most checks, and most watches, of strangers at a time: some for each of all load balancers and
/// probes that there could be.
pub(super) const MOST: usize = 1024;

/// How long a stranger may take to send its request, which is a name.
const PATIENCE: Duration = Duration::from_secs(10);

/// A service for everyone, of which strangers do not take too much.
#[derive(Clone, Debug)]
pub(super) struct Probes<S> {
    inner: S,
    checks: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

impl<S> Probes<S> {
    pub(super) fn new(inner: S) -> Probes<S> {
        let room = || Arc::new(Semaphore::new(MOST));
        Probes { inner, checks: room(), watches: room() }
    }

    /// A place for a call; none: its caller is known.
    fn enter<B>(&self, request: &Request<B>) -> Result<Option<Place>, Error> {
        if request.extensions().get::<Arc<Caller>>().is_some() {
            return Ok(None);
        }
        let watches = request.uri().path().ends_with("/Watch");
        let room = if watches { &self.watches } else { &self.checks };
        let most = MOST as u64;
        let full = |_| Error::TooManyStreams(Reached::for_now(Bound::Streams, most, most, true));
        let permit = Arc::clone(room).try_acquire_owned().map_err(full)?;
        let connection = request.extensions().get().filter(|_| watches);
        Ok(Some(Place { _permit: permit, _watching: connection.map(Acquaintance::watch) }))
    }
}

/// Held until the answer is over.
struct Place {
    _permit: OwnedSemaphorePermit,
    _watching: Option<Watching>,
}

impl<S: NamedService> NamedService for Probes<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Probes<S>
where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        >,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let place = match self.enter(&request) {
            Ok(Some(place)) => place,
            Ok(None) => return Box::pin(self.inner.call(request)),
            Err(refused) => {
                return Box::pin(std::future::ready(Ok(Status::from(refused).into_http())));
            }
        };
        let answer = timeout(PATIENCE, self.inner.call(request));
        Box::pin(async move {
            let Ok(answer) = answer.await else {
                let late = "the request did not come in time";
                return Ok(
                    with_reason(Code::DeadlineExceeded, "DEADLINE_EXCEEDED", late).into_http()
                );
            };
            answer.map(|answer| answer.map(|body| Body::new(Held { body, _place: place })))
        })
    }
}

/// An answer that holds its place.
struct Held {
    body: Body,
    _place: Place,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
