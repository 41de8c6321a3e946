//! Bounds health calls, of each origin without credentials and of each caller.
//!
//! A client that sends the headers of a request and never the rest must not keep others from asking:
//! what kills a pod is a probe that gets no answer. So a request is read whole before anything serves it,
//! and no call is refused because of another connection's calls: where there are too many, the oldest is
//! ended for the newest, one of the origin or caller that has the most. Unix sockets and loopback have
//! bounds of their own, and so have calls with credentials.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyStream, Full};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use super::connection_auth::{ConnectionAuth, OpenHealthCall, OpenWatch};
use super::origin::{AgeQueue, Client, Origin};
use super::services::MAX_HEALTH_REQUEST;
use crate::access::Caller;
use crate::grpc::framework::with_reason;
use crate::supervisor::{Bound, Error, Reached};

/// Calls of one connection at a time, answers that its client does not read included; of a caller's
/// connection more, as it may be the only one of many tasks. A client that has more is refused: that harms
/// no other.
const MAX_CALLS_PER_CONNECTION: usize = 8;
const MAX_CALLS_PER_CALLERS_CONNECTION: usize = 64;

/// Requests at a time that are not complete, and watches, of one origin, of one caller and of all.
const MAX_CALLS_PER_ORIGIN: usize = 64;
const MAX_CALLS_PER_CALLER: usize = 256;
const MAX_CALLS: usize = 1024;

/// How long a request may take to be complete. It is a name; clients send it with the headers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes before a message that gRPC adds.
const MESSAGE_PREFIX: usize = 5;

/// The health service, within bounds.
#[derive(Clone, Debug)]
pub(super) struct HealthLimit<S> {
    inner: S,
    local: Calls,
    network: Calls,
    callers: Calls,
}

impl Client {
    fn max_calls(&self) -> usize {
        match self {
            Client::Origin(_) => MAX_CALLS_PER_ORIGIN,
            Client::Caller(_) => MAX_CALLS_PER_CALLER,
        }
    }

    fn max_calls_per_connection(&self) -> usize {
        match self {
            Client::Origin(_) => MAX_CALLS_PER_CONNECTION,
            Client::Caller(_) => MAX_CALLS_PER_CALLERS_CONNECTION,
        }
    }
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
        let [local, network, callers] = Default::default();
        HealthLimit { inner, local, network, callers }
    }

    /// The client of a request, and the calls that compete with it.
    fn client_of(&self, request: &Request<Body>) -> (Client, &Calls) {
        if let Some(caller) = request.extensions().get::<Arc<Caller>>() {
            return (Client::Caller(caller.name.clone()), &self.callers);
        }
        let origin = request.extensions().get().map_or(Origin::User(None), Origin::of);
        let calls = if origin.is_local() { &self.local } else { &self.network };
        (Client::Origin(origin), calls)
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
        let (client, calls) = self.client_of(&request);
        let answer = limited(self.inner.clone(), calls.clone(), client, request);
        Box::pin(async { Ok(answer.await.unwrap_or_else(|refused| refused.into_http())) })
    }
}

/// Answers a call.
async fn limited<S>(
    mut inner: S,
    calls: Calls,
    client: Client,
    request: Request<Body>,
) -> Result<Response<Body>, Status>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let connection = request.extensions().get::<ConnectionAuth>().cloned().unwrap_or_default();
    let max_calls = client.max_calls_per_connection();
    let Some(open_call) = connection.open_health_call(max_calls) else {
        connection.count_refusal();
        return Err(too_many(max_calls));
    };
    let watches = request.uri().path().ends_with("/Watch");
    let request = complete(calls.incomplete.enter(client.clone()), request).await?;
    let (slot, open_watch) = match watches {
        true => (Some(calls.watches.enter(client)), Some(connection.open_watch())),
        false => (None, None),
    };
    let Ok(answer) = inner.call(request).await;
    let held = |body| LimitedAnswer { body, slot, _open_call: open_call, _open_watch: open_watch };
    Ok(answer.map(|body| Body::new(held(body))))
}

/// Reads the rest of a request, unless it takes too long or others need its slot.
async fn complete(mut slot: Slot, request: Request<Body>) -> Result<Request<Body>, Status> {
    let (head, body) = request.into_parts();
    let read = tokio::select! {
        read = timeout(REQUEST_TIMEOUT, read(body)) => read,
        () = slot.evicted() => return Err(too_many(slot.max_calls)),
    };
    let late = "the request was not complete in time";
    let read = read.map_err(|_| with_reason(Code::DeadlineExceeded, "DEADLINE_EXCEEDED", late))?;
    Ok(Request::from_parts(head, Body::new(Full::new(read?))))
}

/// Reads a body of few bytes, and copies them: a slice would keep the whole buffer of the connection that it
/// was received into.
async fn read(body: Body) -> Result<Bytes, Status> {
    let mut frames = BodyStream::new(body);
    let mut bytes = BytesMut::new();
    while let Some(frame) = frames.next().await {
        let cut = "the request was not sent to its end";
        let frame = frame.map_err(|_| with_reason(Code::Cancelled, "CANCELLED", cut))?;
        bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        if bytes.len() > MAX_HEALTH_REQUEST + MESSAGE_PREFIX {
            let large = "the request is too large";
            return Err(with_reason(Code::InvalidArgument, "INVALID_FIELD", large));
        }
    }
    Ok(bytes.freeze())
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
    calls: AgeQueue<Client, oneshot::Sender<Infallible>>,
}

/// The place of a call.
#[derive(Debug)]
struct Slot {
    slots: Slots,
    id: u64,
    /// Of its client.
    max_calls: usize,
    evicted: oneshot::Receiver<Infallible>,
}

impl Slots {
    fn enter(&self, client: Client) -> Slot {
        let mut queue = self.lock();
        let max_calls = client.max_calls();
        let oldest = match queue.calls.count_of(&client) >= max_calls {
            true => queue.calls.oldest_of(&client),
            false if queue.calls.len() >= MAX_CALLS => queue.calls.oldest_of_heaviest(),
            false => None,
        };
        if let Some((id, _)) = oldest {
            queue.calls.remove(id);
        }
        queue.last_id += 1;
        let (id, (sender, evicted)) = (queue.last_id, oneshot::channel());
        queue.calls.insert(id, client, sender);
        Slot { slots: self.clone(), id, max_calls, evicted }
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
        if let Some(slot) = self.slot.take_if(|slot| slot.poll_evicted(cx).is_ready()) {
            self.body = Body::default();
            return Poll::Ready(Some(Err(too_many(slot.max_calls))));
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

    fn origin(n: u8) -> Client {
        Client::Origin(Origin::of_address([192, 0, 2, n].into()))
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
    fn oldest_call_of_a_caller_is_ended_for_its_newest() {
        let slots = Slots::default();
        let caller = |name: &str| Client::Caller(name.into());
        let mut other = slots.enter(caller("b"));
        let mut calls: Vec<_> =
            (0..=MAX_CALLS_PER_CALLER).map(|_| slots.enter(caller("a"))).collect();
        assert!(is_evicted(&mut calls[0]) && !is_evicted(&mut calls[1]));
        assert!(!is_evicted(&mut other));
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
