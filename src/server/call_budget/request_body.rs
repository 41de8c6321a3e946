//! Charges a request's messages to their caller while they arrive.
//!
//! A client may send the beginning of a large message and then nothing: what has arrived stays in
//! memory until the rest comes or the call ends. A message is charged until it is complete; from then
//! on it is the handler's. While its caller has no room, nothing more is read, so that HTTP's flow control
//! stops the client. Large messages of one caller become complete one after the other: the server's only
//! thread decodes them, which takes long for one of many small fields, and other calls have their turns
//! between them. A message that is longer than its method takes is refused by its prefix, before the
//! rest of it is read, one of too many fields as soon as they have come ([`field_count`](super::field_count)), and a request of which nothing more comes is ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::future::BoxFuture;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use super::field_count::{FieldCounter, RequestType, TooManyFields};
use crate::access::{MAX_FIELDS, MAX_LARGE_REQUEST, MAX_REQUEST, Shape};
use crate::grpc::framework::{message_too_large, request_timeout, too_many_fields};
use crate::supervisor::{CallTicket, Error};

/// Length of the prefix of a gRPC message: a flag, and the length of the rest.
const PREFIX_BYTES: usize = 5;

/// Bytes of a message that are not charged, as most messages have fewer.
const FREE_BYTES: usize = 16 << 10;

/// Bytes of a message that is large: only few methods take more.
const LARGE_MESSAGE: usize = MAX_REQUEST;

/// How long no byte of an incomplete request may come before its call is ended.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// What the request of a call has to observe.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLimits {
    /// Bytes of a message.
    max_message: usize,
    /// What its messages are; none: their fields are not counted.
    request_type: Option<RequestType>,
    /// How long no byte may come before the end; none: the request is a stream, which may be idle.
    timeout: Option<Duration>,
}

impl RequestLimits {
    pub(super) fn new(
        max_message: usize,
        request_type: Option<RequestType>,
        shape: Shape,
    ) -> RequestLimits {
        // What tonic takes at most it refuses by itself, after the messages that came before.
        let max_message = if max_message < MAX_LARGE_REQUEST { max_message } else { usize::MAX };
        let timeout = (shape != Shape::BidiStream).then_some(REQUEST_TIMEOUT);
        RequestLimits { max_message, request_type, timeout }
    }
}

/// The same body, charged to the ticket and within its limits.
pub(super) fn charge(body: Body, ticket: &Arc<CallTicket>, limits: RequestLimits) -> Body {
    if body.is_end_stream() {
        return body;
    }
    Body::new(ChargedRequest::new(body, Arc::clone(ticket), limits))
}

struct ChargedRequest {
    body: Body,
    limits: RequestLimits,
    message: Message,
    /// Runs while more of the request is waited for.
    idle: Option<Pin<Box<Sleep>>>,
    ticket: Arc<CallTicket>,
    /// Bytes of the message that are charged.
    charged: usize,
    /// Data that has arrived, until its caller has room or a turn for it.
    waiting: Option<(Admission, Bytes)>,
    /// The turn of a large message that is complete, until it was decoded.
    turn: Option<Turn>,
}

/// The turn of a message among the large ones of its caller.
type Turn = OwnedSemaphorePermit;

/// Waits for room, and for the turn of a large message.
type Admission = BoxFuture<'static, Result<Option<Turn>, Error>>;

impl ChargedRequest {
    fn new(body: Body, ticket: Arc<CallTicket>, limits: RequestLimits) -> ChargedRequest {
        let (message, idle, waiting, turn) = (Message::default(), None, None, None);
        ChargedRequest { body, limits, message, idle, ticket, charged: 0, waiting, turn }
    }

    /// Ready when no byte came for too long.
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        let Some(timeout) = self.limits.timeout else { return Poll::Pending };
        let idle = self.idle.get_or_insert_with(|| Box::pin(sleep(timeout)));
        idle.as_mut().poll(cx).map(|()| request_timeout(timeout))
    }

    /// Changes the charge to what has arrived of the message, where data completes a message of so many
    /// bytes. Returns whether that has to be waited for.
    fn recharge(&mut self, data: &Bytes, completed: usize) -> bool {
        let arrived = self.message.arrived();
        let wanted = if arrived > FREE_BYTES { arrived } else { 0 };
        let (more, less) =
            (wanted.saturating_sub(self.charged), self.charged.saturating_sub(wanted));
        self.charged = wanted;
        // The handler of a stream may take as long as it likes for a message.
        let is_large = completed > LARGE_MESSAGE && self.limits.timeout.is_some();
        if more == 0 && !is_large {
            self.ticket.release(less);
            return false;
        }
        let ticket = Arc::clone(&self.ticket);
        let wait = async move {
            ticket.hold(more).await?;
            let turn = match is_large {
                true => Some(ticket.large_request_turn().await?),
                false => None,
            };
            ticket.release(less);
            Ok(turn)
        };
        self.waiting = Some((Box::pin(wait), data.clone()));
        true
    }
}

impl HttpBody for ChargedRequest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // What was handed over before is decoded.
        self.turn = None;
        loop {
            if let Some((wait, data)) = &mut self.waiting {
                let waited = ready!(wait.as_mut().poll(cx));
                let data = std::mem::take(data);
                self.waiting = None;
                return Poll::Ready(Some(match waited {
                    Ok(turn) => {
                        self.turn = turn;
                        Ok(Frame::data(data))
                    }
                    Err(refused) => Err(refused.into()),
                }));
            }
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(ended) => return Poll::Ready(ended),
                Poll::Pending => return self.poll_timeout(cx).map(|status| Some(Err(status))),
            };
            let Some(data) = frame.data_ref().cloned() else {
                return Poll::Ready(Some(Ok(frame)));
            };
            if !data.is_empty() {
                self.idle = None;
            }
            let limits = self.limits;
            let completed = match self.message.receive(&data, limits) {
                Ok(completed) => completed,
                Err(refused) => {
                    return Poll::Ready(Some(Err(refused.into_status(limits.max_message))));
                }
            };
            if !self.recharge(&data, completed) {
                return Poll::Ready(Some(Ok(frame)));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// How far the message has arrived that is under way.
#[derive(Debug, Default)]
struct Message {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix that have arrived.
    prefix_bytes: usize,
    /// Bytes that have arrived and that are missing, behind the prefix.
    arrived: usize,
    missing: usize,
    /// Counts its fields; none: it is too short to have too many.
    fields: Option<FieldCounter>,
}

/// Why a message is refused.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    /// It has so many bytes, which is more than it may have.
    TooLarge(usize),
    TooManyFields,
}

impl Refused {
    fn into_status(self, limit: usize) -> Status {
        match self {
            Refused::TooLarge(found) => message_too_large(found, limit),
            Refused::TooManyFields => too_many_fields(MAX_FIELDS),
        }
    }
}

impl Message {
    /// Bytes of the message under way that have arrived; 0 when it is complete.
    fn arrived(&self) -> usize {
        self.arrived
    }

    /// Returns the bytes of the largest message that is complete with this data.
    fn receive(&mut self, mut data: &[u8], limits: RequestLimits) -> Result<usize, Refused> {
        let mut completed = 0;
        while !data.is_empty() {
            if self.prefix_bytes < PREFIX_BYTES {
                self.prefix[self.prefix_bytes] = data.get_u8();
                self.prefix_bytes += 1;
                if self.prefix_bytes == PREFIX_BYTES {
                    let [_, length @ ..] = self.prefix;
                    self.missing = u32::from_be_bytes(length) as usize;
                    if self.missing > limits.max_message {
                        return Err(Refused::TooLarge(self.missing));
                    }
                    // A field has a byte at least.
                    let request_type = limits.request_type.filter(|_| self.missing > MAX_FIELDS);
                    self.fields = request_type.map(|known| FieldCounter::new(known, MAX_FIELDS));
                }
            }
            let taken = self.missing.min(data.len());
            if let Some(fields) = &mut self.fields {
                let counted = fields.receive(&data[..taken]);
                counted.map_err(|TooManyFields| Refused::TooManyFields)?;
            }
            data.advance(taken);
            self.arrived += taken;
            self.missing -= taken;
            if self.prefix_bytes == PREFIX_BYTES && self.missing == 0 {
                completed = completed.max(self.arrived);
                *self = Message::default();
            }
        }
        Ok(completed)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};
    use http_body_util::{BodyExt, StreamBody};
    use tonic::Code;
    use tonic_types::StatusExt;

    use super::*;
    use crate::supervisor::{CallerBudgets, Quota};

    /// A message of so many bytes, with its prefix.
    fn message(bytes: u32) -> Vec<u8> {
        [&[0][..], &bytes.to_be_bytes(), &vec![7; bytes as usize]].concat()
    }

    fn limits(max_message: usize) -> RequestLimits {
        RequestLimits::new(max_message, None, Shape::Unary)
    }

    #[test]
    fn message_of_too_many_fields_is_refused_before_its_end() {
        let start = RequestType::of_method("Start");
        let limits = RequestLimits::new(MAX_LARGE_REQUEST, start, Shape::Unary);
        // A field that no message has, with nothing in it: two bytes.
        let fields = |count: usize| {
            let length = u32::try_from(2 * count).unwrap();
            [&[0][..], &length.to_be_bytes(), &b"\x7a\x00".repeat(count)].concat()
        };
        let mut message = Message::default();
        let all = fields(MAX_FIELDS);
        assert_eq!(message.receive(&all, limits), Ok(all.len() - PREFIX_BYTES));
        // Each message is counted by itself.
        let more = fields(MAX_FIELDS + 9);
        let (first, rest) = more.split_at(more.len() - 20);
        assert_eq!(message.receive(first, limits), Ok(0));
        assert_eq!(message.receive(&rest[..4], limits), Err(Refused::TooManyFields));
    }

    #[test]
    fn message_is_under_way_until_its_last_byte() {
        let all = [message(3), message(0), message(9)].concat();
        for pieces in 1..all.len() {
            let mut found = Message::default();
            for piece in all.chunks(pieces) {
                found.receive(piece, limits(9)).unwrap();
            }
            assert_eq!(found.arrived(), 0);
        }
        let mut found = Message::default();
        found.receive(&all[..all.len() - 1], limits(9)).unwrap();
        assert_eq!(found.arrived(), 8);
    }

    #[tokio::test]
    async fn message_is_charged_until_it_is_complete() {
        let (length, budget) = (1 << 20, 2 << 20);
        let quota = Quota { held_bytes: Some(budget), ..Quota::default() };
        let budgets = CallerBudgets::new(quota);
        let other = budgets.enter_call("a").unwrap();
        let ticket = Arc::new(budgets.enter_call("a").unwrap());
        let sent = Bytes::from(message(length));
        let half = sent.len() / 2;
        let halves =
            [sent.slice(..half), sent.slice(half..)].map(|data| Ok::<_, Status>(Frame::data(data)));
        let stream = futures_util::stream::iter(halves);
        let limits = RequestLimits::new(length as usize, None, Shape::Unary);
        let mut body = charge(Body::new(StreamBody::new(stream)), &ticket, limits);
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), half);
        assert_eq!(ticket.held_bytes(), half - PREFIX_BYTES);
        let second = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!([first, second].concat(), sent);
        assert_eq!(ticket.held_bytes(), 0);
        other.hold(2 << 20).await.unwrap();
    }

    #[tokio::test]
    async fn large_messages_of_a_caller_are_decoded_one_after_the_other() {
        let budgets = CallerBudgets::new(Quota::default());
        let body = |caller: &str| {
            let ticket = Arc::new(budgets.enter_call(caller).unwrap());
            let sent = Ok::<_, Status>(Frame::data(message(LARGE_MESSAGE as u32 + 1).into()));
            let stream = futures_util::stream::iter([sent]);
            let limits = RequestLimits::new(MAX_LARGE_REQUEST, None, Shape::Unary);
            charge(Body::new(StreamBody::new(stream)), &ticket, limits)
        };
        let (mut first, mut second, mut other) = (body("a"), body("a"), body("b"));
        first.frame().await.unwrap().unwrap();
        assert!(second.frame().now_or_never().is_none());
        other.frame().await.unwrap().unwrap();
        assert!(first.frame().await.is_none());
        second.frame().await.unwrap().unwrap();
    }

    #[test]
    fn message_is_refused_by_its_prefix() {
        let sent = [message(9), message(10)].concat();
        let mut found = Message::default();
        assert_eq!(found.receive(&sent[..14 + PREFIX_BYTES - 1], limits(9)), Ok(9));
        assert_eq!(
            found.receive(&sent[14 + PREFIX_BYTES - 1..][..1], limits(9)),
            Err(Refused::TooLarge(10))
        );
    }

    /// A request of which these frames come, and then nothing, and its timeout.
    fn stalled(frames: Vec<Bytes>, timeout: Option<Duration>) -> ChargedRequest {
        let frames = frames.into_iter().map(|data| Ok::<_, Status>(Frame::data(data)));
        let stream = futures_util::stream::iter(frames).chain(futures_util::stream::pending());
        let ticket = CallerBudgets::new(Quota::default()).enter_call("a").unwrap();
        let limits = RequestLimits { timeout, ..limits(9) };
        ChargedRequest::new(Body::new(StreamBody::new(stream)), Arc::new(ticket), limits)
    }

    #[tokio::test]
    async fn request_of_which_nothing_comes_is_ended() {
        for sent in [vec![], vec![Bytes::from(message(9)).slice(..8)], vec![message(9).into()]] {
            let frames = sent.len();
            let mut body = stalled(sent, Some(Duration::from_millis(1)));
            for _ in 0..frames {
                body.frame().await.unwrap().unwrap();
            }
            let status = body.frame().await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert_eq!(status.get_details_error_info().unwrap().reason, "REQUEST_TIMEOUT");
        }
    }

    #[tokio::test]
    async fn each_byte_restarts_the_timeout_and_streams_have_none() {
        let sent = Bytes::from(message(9));
        let frames = vec![sent.slice(..8), Bytes::new(), sent.slice(8..)];
        let mut body = stalled(frames, Some(REQUEST_TIMEOUT));
        let old = || Some(Box::pin(sleep(Duration::ZERO)));
        for restarted in [true, false, true] {
            body.idle = old();
            body.frame().await.unwrap().unwrap();
            assert_eq!(body.idle.is_none(), restarted);
        }
        assert!(body.frame().now_or_never().is_none() && body.idle.is_some());
        let mut idle = stalled(vec![], RequestLimits::new(9, None, Shape::BidiStream).timeout);
        assert!(idle.frame().now_or_never().is_none() && idle.idle.is_none());
    }
}
