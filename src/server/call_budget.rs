//! Charges each call to its caller's budget, from its headers to the last byte of its answer.
//!
//! Owns what counts as a call: all of the process service but its streams, which have their own
//! bound ([`open_streams`]), and reflection. Health is never refused here: its answers are a few bytes. A
//! request is charged while it arrives ([`request_body`]), those of streams too, and has a limit that
//! depends on its method. The answer holds the call's ticket, and so does each piece of its data: HTTP may
//! keep data that it cannot send yet after the answer itself has ended. A piece of a stream's data tells the
//! ticket when it was sent, so that the stream makes no more than its caller's streams may hold.
//! [`ChargedAnswers`], which is outermost of all that is served, puts the charge on data: a layer further in may make
//! other data of it, as gRPC-Web does in base64, and data that was charged before would be given back while HTTP
//! still holds what was made of it.

mod field_count;
mod open_streams;
mod read_ahead;
mod request_body;

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::TryFutureExt;
use futures_util::future::{BoxFuture, Either, MapOk};
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::credentials::HEALTH;
use crate::access::{Call, Caller, MAX_FIELDS, MAX_REQUEST, Shape};
use crate::grpc::pb::process_service_server::SERVICE_NAME;
use crate::supervisor::{CallTicket, CallerBudgets, Error, Quotas};
use field_count::RequestType;
use open_streams::{OpenStreams, StreamSlot};
use read_ahead::read_ahead;
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
    is_reflection: bool,
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
        let limits = match call {
            Some(Call { name, max_request, max_fields, shape, .. }) => RequestLimits {
                max_message: max_request,
                max_fields,
                request_type: RequestType::of_method(name),
                shape,
            },
            // Reflection takes a stream of requests.
            None => RequestLimits {
                max_message: MAX_REQUEST,
                max_fields: MAX_FIELDS,
                request_type: None,
                shape: Shape::BidiStream,
            },
        };
        let (ticket, is_reflection) = (Arc::new(ticket), call.is_none());
        Ok(Some(Admission { ticket, slot, limits, is_reflection }))
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
            Ok(Some(Admission { ticket, slot, limits, is_reflection })) => {
                request.extensions_mut().insert(Arc::clone(&ticket));
                let request = request.map(|body| request_body::charge(body, &ticket, limits));
                let request = if is_reflection { request.map(read_ahead) } else { request };
                let answer = self.inner.call(request);
                let charge = AnswerCharge { ticket, _slot: slot };
                let charged = async { Ok(attach(charge, answer.await?)) };
                Either::Right(Either::Right(Box::pin(charged)))
            }
            Err(refused) => Either::Left(ready(Ok(Status::from(refused).into_http()))),
        }
    }
}

/// A service whose answers hold the charges that [`CallBudget`], further in, attached to them.
#[derive(Clone, Debug)]
pub(super) struct ChargedAnswers<S>(pub(super) S);

impl<S, Sent> Service<Request<Sent>> for ChargedAnswers<S>
where
    S: Service<Request<Sent>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = MapOk<S::Future, fn(Response<Body>) -> Response<Body>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Sent>) -> Self::Future {
        self.0.call(request).map_ok(charge)
    }
}

/// What an answer holds until it was sent.
struct AnswerCharge {
    ticket: Arc<CallTicket>,
    /// Held here and not by the ticket, which what still arrives after the answer may hold longer.
    _slot: Option<StreamSlot>,
}

/// The same answer with its charge, for [`charge`].
fn attach(charge: AnswerCharge, mut answer: Response<Body>) -> Response<Body> {
    answer.extensions_mut().insert(Arc::new(charge));
    answer
}

/// Moves the charge of an answer into its body; an answer that is all headers gives it back.
fn charge(mut answer: Response<Body>) -> Response<Body> {
    match answer.extensions_mut().remove::<Arc<AnswerCharge>>() {
        Some(charge) if !answer.body().is_end_stream() => {
            answer.map(|body| Body::new(Charged { body, charge }))
        }
        _ => answer,
    }
}

/// An answer that holds its charge.
struct Charged {
    body: Body,
    charge: Arc<AnswerCharge>,
}

/// Data of an answer, which holds the call's ticket until it was sent.
struct ChargedData {
    data: Bytes,
    ticket: Arc<CallTicket>,
    /// Bytes of the ticket that are held for this data alone.
    bytes: usize,
}

impl Drop for ChargedData {
    fn drop(&mut self) {
        if !self.ticket.is_call() {
            self.ticket.output_sent(self.data.len());
        }
        self.ticket.release(self.bytes);
    }
}

impl AsRef<[u8]> for ChargedData {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Charged {
    fn charge_data(&self, data: Bytes) -> Bytes {
        let ticket = &self.charge.ticket;
        let bytes = ticket.take_message_bytes();
        Bytes::from_owner(ChargedData { data, ticket: Arc::clone(ticket), bytes })
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
    use http_body_util::{BodyExt, Full, StreamBody};

    use super::*;
    use crate::supervisor::Quota;

    fn charged(body: Body, ticket: Arc<CallTicket>) -> Body {
        let unsent = AnswerCharge { ticket, _slot: None };
        charge(attach(unsent, Response::new(body))).into_body()
    }

    #[tokio::test]
    async fn call_counts_until_the_data_of_its_answer_is_dropped() {
        let quota = Quota { calls: Some(1), ..Quota::default() };
        let budgets = CallerBudgets::new(quota);
        let ticket = Arc::new(budgets.enter_call("a").unwrap());
        let answer = Full::new(Bytes::from_static(b"data")).map_err(|never| match never {});
        let mut body = charged(Body::new(answer), ticket);
        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        assert!(budgets.enter_call("a").is_err());
        drop(data);
        assert!(budgets.enter_call("a").is_ok());
    }

    #[tokio::test]
    async fn stream_holds_the_bytes_of_a_message_until_its_data_is_dropped() {
        let budgets = CallerBudgets::new(Quota::default());
        let ticket = Arc::new(budgets.enter_stream("a").unwrap());
        let messages =
            ["first", "second"].map(|text| Ok::<_, Status>(Frame::data(Bytes::from(text))));
        let messages = StreamBody::new(futures_util::stream::iter(messages));
        let mut body = charged(Body::new(messages), Arc::clone(&ticket));
        ticket.hold(1000).await.unwrap();
        ticket.release_when_sent(600);
        let [first, second] = [body.frame().await, body.frame().await];
        drop(second);
        assert_eq!(ticket.held_bytes(), 1000);
        drop(first);
        assert_eq!(ticket.held_bytes(), 400);
    }

    #[tokio::test]
    async fn call_without_data_ends_with_its_headers() {
        let budgets = CallerBudgets::new(Quota { calls: Some(1), ..Quota::default() });
        let ticket = Arc::new(budgets.enter_call("a").unwrap());
        let body = charged(Body::empty(), ticket);
        assert!(budgets.enter_call("a").is_ok());
        drop(body);
    }
}
