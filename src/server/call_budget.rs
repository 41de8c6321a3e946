//! Charges each call to its caller's budget, from its headers to the last byte of its answer.
//!
//! Owns what counts as a call: all of the process service but its streams, which have their own
//! bound ([`open_streams`]), and reflection. Health is never refused here: its answers are a few bytes. A
//! request is charged while it arrives ([`request_body`]), those of streams too, and has a limit that
//! depends on its method. The answer holds the call's ticket, and so does each piece of its data: HTTP may
//! keep data that it cannot send yet after the answer itself has ended.

mod open_streams;
mod request_body;

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::{BoxFuture, Either};
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::credentials::HEALTH;
use crate::access::{Call, Caller, MAX_REQUEST, Shape};
use crate::grpc::pb::process_service_server::SERVICE_NAME;
use crate::supervisor::{CallTicket, CallerBudgets, Error, Quotas};
use open_streams::{OpenStreams, StreamSlot};
use request_body::RequestLimits;

/// A service whose calls are charged to their callers.
#[derive(Clone, Debug)]
pub(super) struct CallBudget<S> {
    inner: S,
    budgets: CallerBudgets,
    streams: OpenStreams,
}

/// What a call holds from its headers on, and what its request has to observe.
struct Admission {
    ticket: Arc<CallTicket>,
    /// None: it is no stream.
    slot: Option<StreamSlot>,
    limits: RequestLimits,
}

impl<S> CallBudget<S> {
    pub(super) fn new(inner: S, quotas: Quotas) -> CallBudget<S> {
        let budgets = CallerBudgets::new(quotas.each);
        CallBudget { inner, budgets, streams: OpenStreams::new(quotas) }
    }

    /// Admits a call; none: it is not charged.
    fn admit<B>(&self, request: &Request<B>) -> Result<Option<Admission>, Error> {
        let path = request.uri().path().trim_start_matches('/');
        let (service, method) = path.split_once('/').unwrap_or((path, ""));
        let caller = request.extensions().get::<Arc<Caller>>();
        let Some(caller) = caller.filter(|_| service != HEALTH) else { return Ok(None) };
        let call = Call::named(method).filter(|_| service == SERVICE_NAME);
        let (ticket, slot) = match call.is_some_and(Call::is_stream) {
            true => {
                let slot = self.streams.enter(&caller.name)?;
                (self.budgets.enter_stream(&caller.name)?, Some(slot))
            }
            false => (self.budgets.enter_call(&caller.name)?, None),
        };
        // Reflection takes a stream of requests.
        let (max_message, shape) =
            call.map_or((MAX_REQUEST, Shape::BidiStream), |call| (call.max_request, call.shape));
        let limits = RequestLimits::new(max_message, shape);
        Ok(Some(Admission { ticket: Arc::new(ticket), slot, limits }))
    }
}

impl<S> Service<Request<Body>> for CallBudget<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error: Send, Future: Send + 'static>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<
        Ready<Result<Response<Body>, S::Error>>,
        Either<S::Future, BoxFuture<'static, Result<Response<Body>, S::Error>>>,
    >;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.admit(&request) {
            Ok(None) => Either::Right(Either::Left(self.inner.call(request))),
            Ok(Some(Admission { ticket, slot, limits })) => {
                request.extensions_mut().insert(Arc::clone(&ticket));
                let request = request.map(|body| request_body::charge(body, &ticket, limits));
                let answer = self.inner.call(request);
                let charged = async { Ok(answer.await?.map(|body| charge(body, ticket, slot))) };
                Either::Right(Either::Right(Box::pin(charged)))
            }
            Err(refused) => Either::Left(ready(Ok(Status::from(refused).into_http()))),
        }
    }
}

fn charge(body: Body, ticket: Arc<CallTicket>, slot: Option<StreamSlot>) -> Body {
    if body.is_end_stream() { body } else { Body::new(Charged { body, ticket, _slot: slot }) }
}

/// An answer that holds its call's ticket.
struct Charged {
    body: Body,
    ticket: Arc<CallTicket>,
    /// Held here and not by the ticket, which what still arrives after the answer may hold longer.
    _slot: Option<StreamSlot>,
}

/// Data of an answer, which holds the call's ticket until it was sent.
struct ChargedData {
    data: Bytes,
    _ticket: Arc<CallTicket>,
}

impl AsRef<[u8]> for ChargedData {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Charged {
    fn charge_data(&self, data: Bytes) -> Bytes {
        if !self.ticket.is_call() {
            return data;
        }
        Bytes::from_owner(ChargedData { data, _ticket: Arc::clone(&self.ticket) })
    }
}

impl HttpBody for Charged {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        polled.map_ok(|frame| frame.map_data(|data| self.charge_data(data)))
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
    use http_body_util::{BodyExt, Full};

    use super::*;
    use crate::supervisor::Quota;

    #[tokio::test]
    async fn call_counts_until_the_data_of_its_answer_is_dropped() {
        let quota = Quota { calls: Some(1), ..Quota::default() };
        let budgets = CallerBudgets::new(quota);
        let ticket = Arc::new(budgets.enter_call("a").unwrap());
        let answer = Full::new(Bytes::from_static(b"data")).map_err(|never| match never {});
        let mut body = charge(Body::new(answer), ticket, None);
        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        assert!(budgets.enter_call("a").is_err());
        drop(data);
        assert!(budgets.enter_call("a").is_ok());
    }

    #[tokio::test]
    async fn call_without_data_ends_with_its_headers() {
        let budgets = CallerBudgets::new(Quota { calls: Some(1), ..Quota::default() });
        let ticket = Arc::new(budgets.enter_call("a").unwrap());
        let body = charge(Body::empty(), ticket, None);
        assert!(budgets.enter_call("a").is_ok());
        drop(body);
    }
}
