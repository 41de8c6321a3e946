//! Bounds health calls without credentials.
//!
//! A client that sends the headers of a request and never the rest must not keep others from asking:
//! what kills a pod is a probe that gets no answer. So a request is read whole before anything serves it,
//! and no call is refused because of another connection's calls: where there are too many, the oldest is
//! ended for the newest, one of the origin that has the most. Unix sockets and loopback have bounds of
//! their own. Calls with credentials are not counted here.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use super::connection_auth::{ConnectionAuth, OpenHealthCall, OpenWatch};
use super::origin::{Origin, OriginQueue};
use super::services::MAX_HEALTH_REQUEST;
use crate::access::Caller;
use crate::grpc::framework::with_reason;
use crate::supervisor::{Bound, Error, Reached};

/// Calls of one connection at a time, answers that its client does not read included. A client that
/// has more is refused: that harms no other.
const MAX_CALLS_PER_CONNECTION: usize = 8;

/// Requests at a time that are not complete, and watches, of one origin and of all.
const MAX_CALLS_PER_ORIGIN: usize = 64;
const MAX_CALLS: usize = 1024;

/// How long a request may take to be complete. It is a name; clients send it with the headers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes before a message that gRPC adds.
const MESSAGE_PREFIX: usize = 5;

/// The health service, within bounds for clients without credentials.
#[derive(Clone, Debug)]
pub(super) struct HealthLimit<S> {
    inner: S,
    local: Calls,
    network: Calls,
}

/// The calls of clients that compete with each other.
#[derive(Clone, Debug, Default)]
struct Calls {
    /// Requests that are not complete yet.
    incomplete: Slots,
    watches: Slots,
}

impl<S> HealthLimit<S> {
    pub(super) fn new(inner: S) -> HealthLimit<S> {
        HealthLimit { inner, local: Calls::default(), network: Calls::default() }
    }
}

impl<S: NamedService> NamedService for HealthLimit<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for HealthLimit<S>
where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.extensions().get::<Arc<Caller>>().is_some() {
            return Box::pin(self.inner.call(request));
        }
        let origin = request.extensions().get().map_or(Origin::User(None), Origin::of);
        let calls = if origin.is_local() { &self.local } else { &self.network };
        let answer = limited(self.inner.clone(), calls.clone(), origin, request);
        Box::pin(async { Ok(answer.await.unwrap_or_else(|refused| refused.into_http())) })
    }
}

/// Answers a call without credentials.
async fn limited<S>(
    mut inner: S,
    calls: Calls,
    origin: Origin,
    request: Request<Body>,
) -> Result<Response<Body>, Status>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let connection = request.extensions().get::<ConnectionAuth>().cloned().unwrap_or_default();
    let open_call = connection.open_health_call(MAX_CALLS_PER_CONNECTION);
    let open_call = open_call.ok_or_else(|| too_many(MAX_CALLS_PER_CONNECTION))?;
    let watches = request.uri().path().ends_with("/Watch");
    let request = complete(calls.incomplete.enter(origin), request).await?;
    let (slot, open_watch) = match watches {
        true => (Some(calls.watches.enter(origin)), Some(connection.open_watch())),
        false => (None, None),
    };
    let Ok(answer) = inner.call(request).await;
    let held = |body| LimitedAnswer { body, slot, _open_call: open_call, _open_watch: open_watch };
    Ok(answer.map(|body| Body::new(held(body))))
}

/// Reads the rest of a request, unless it takes too long or others need its slot.
async fn complete(mut slot: Slot, request: Request<Body>) -> Result<Request<Body>, Status> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_HEALTH_REQUEST + MESSAGE_PREFIX).collect();
    let read = tokio::select! {
        read = timeout(REQUEST_TIMEOUT, body) => read,
        () = slot.evicted() => return Err(too_many(MAX_CALLS_PER_ORIGIN)),
    };
    let late = "the request was not complete in time";
    let read = read.map_err(|_| with_reason(Code::DeadlineExceeded, "DEADLINE_EXCEEDED", late))?;
    let body = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => with_reason(Code::InvalidArgument, "INVALID_FIELD", "the request is too large"),
        None => with_reason(Code::Cancelled, "CANCELLED", "the request was not sent to its end"),
    })?;
    Ok(Request::from_parts(head, Body::new(Full::new(body.to_bytes()))))
}

fn too_many(most: usize) -> Status {
    let most = most as u64;
    Error::TooManyStreams(Reached::for_now(Bound::Streams, most, most, true)).into()
}

/// A bounded number of calls, of which the oldest is ended for the newest.
#[derive(Clone, Debug, Default)]
struct Slots(Arc<Mutex<SlotQueue>>);

#[derive(Debug, Default)]
struct SlotQueue {
    last_id: u64,
    /// A call is ended by dropping what is here.
    calls: OriginQueue<oneshot::Sender<Infallible>>,
}

/// The place of a call.
#[derive(Debug)]
struct Slot {
    slots: Slots,
    id: u64,
    evicted: oneshot::Receiver<Infallible>,
}

impl Slots {
    fn enter(&self, origin: Origin) -> Slot {
        let mut queue = self.lock();
        let oldest = match queue.calls.count_of(&origin) >= MAX_CALLS_PER_ORIGIN {
            true => queue.calls.oldest_of(&origin),
            false if queue.calls.len() >= MAX_CALLS => queue.calls.oldest_of_heaviest(),
            false => None,
        };
        if let Some((id, _)) = oldest {
            queue.calls.remove(id);
        }
        queue.last_id += 1;
        let (id, (sender, evicted)) = (queue.last_id, oneshot::channel());
        queue.calls.insert(id, origin, sender);
        Slot { slots: self.clone(), id, evicted }
    }

    fn lock(&self) -> MutexGuard<'_, SlotQueue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Returns when a newer call has the slot.
    async fn evicted(&mut self) {
        let _ = (&mut self.evicted).await;
    }

    fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.evicted).poll(cx).map(drop)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().calls.remove(self.id);
    }
}

/// An answer that counts until its client has read it.
struct LimitedAnswer {
    body: Body,
    /// Of a watch.
    slot: Option<Slot>,
    _open_call: OpenHealthCall,
    _open_watch: Option<OpenWatch>,
}

impl HttpBody for LimitedAnswer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.slot.as_mut().is_some_and(|slot| slot.poll_evicted(cx).is_ready()) {
            self.slot = None;
            self.body = Body::default();
            return Poll::Ready(Some(Err(too_many(MAX_CALLS_PER_ORIGIN))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn origin(n: u8) -> Origin {
        Origin::of_address([192, 0, 2, n].into())
    }

    fn is_evicted(slot: &mut Slot) -> bool {
        slot.evicted().now_or_never().is_some()
    }

    #[test]
    fn oldest_call_of_an_origin_is_ended_for_its_newest() {
        let slots = Slots::default();
        let mut other = slots.enter(origin(2));
        let mut calls: Vec<_> =
            (0..=MAX_CALLS_PER_ORIGIN).map(|_| slots.enter(origin(1))).collect();
        assert!(is_evicted(&mut calls[0]) && !is_evicted(&mut calls[1]));
        assert!(!is_evicted(&mut other));
        drop(calls);
        assert_eq!(slots.lock().calls.len(), 1);
    }

    #[test]
    fn oldest_call_is_ended_when_all_slots_are_taken() {
        let slots = Slots::default();
        let enter = |n: usize| slots.enter(origin((n / MAX_CALLS_PER_ORIGIN) as u8));
        let mut calls: Vec<_> = (0..MAX_CALLS).map(enter).collect();
        let mut newest = slots.enter(origin(255));
        assert!(is_evicted(&mut calls[0]) && !is_evicted(&mut calls[1]));
        assert!(!is_evicted(&mut newest));
        assert_eq!(slots.lock().calls.len(), MAX_CALLS);
    }
}
