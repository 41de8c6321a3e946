//! Every call has a name in the log and is counted, whatever becomes of it.
//!
//! Stands around all that may refuse a call, so that refusals are named and counted as well; inside
//! of gRPC-Web, so that every answer ends as one of gRPC does. What is no call of gRPC has a name and
//! counts for nothing.

mod counting;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service;

use crate::telemetry::request::RequestId;
pub(super) use counting::Calls;
use counting::Handling;

/// The metadata that brings an id, and takes it back.
const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// A service whose calls are named and counted.
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    inner: S,
    calls: Calls,
}

impl<S> Counted<S> {
    pub(super) fn new(inner: S, calls: Calls) -> Counted<S> {
        Counted { inner, calls }
    }
}

impl<S, Sent> Service<Request<Sent>> for Counted<S>
where
    S: Service<Request<Sent>, Response = Response<Body>, Future: Send + 'static>,
{
    type Response = Response<Answer>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Answer>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Sent>) -> Self::Future {
        let id = RequestId::of(request.headers().get(HEADER).map(HeaderValue::as_bytes));
        let mut handling = is_call(&request).then(|| self.calls.begin(request.uri().path()));
        // What is refused at once is refused here.
        let answer = id.does(|| self.inner.call(request));
        let answer = id.handles(answer);
        Box::pin(async move {
            let mut answer = answer.await?;
            if let (Some(handling), Some(code)) = (&mut handling, code(answer.headers())) {
                handling.end(code);
            }
            if let Ok(name) = HeaderValue::try_from(id.as_str()) {
                answer.headers_mut().insert(HEADER, name);
            }
            Ok(answer.map(|body| Answer { body, id, handling }))
        })
    }
}

fn is_call<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    kind.starts_with(b"application/grpc")
}

/// The code that an answer ends with, where these are the last of its headers.
fn code(headers: &HeaderMap) -> Option<Code> {
    headers.get(Status::GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()))
}

/// An answer under way. Dropped before its end: whoever called has left.
#[derive(Debug)]
pub(super) struct Answer {
    body: Body,
    id: RequestId,
    handling: Option<Handling>,
}

impl Answer {
    fn end(&mut self, code: Code) {
        if let Some(handling) = &mut self.handling {
            handling.end(code);
        }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Answer { body, id, .. } = &mut *self;
        let frame = id.does(|| Pin::new(body).poll_frame(cx));
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.end(code(trailers).unwrap_or(Code::Unknown));
                }
            }
            Poll::Ready(Some(Err(status))) => self.end(status.code()),
            Poll::Ready(None) => self.end(Code::Unknown),
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // What a stream says at its end is said for its call.
        let body = std::mem::take(&mut self.body);
        self.id.does(|| drop(body));
    }
}
