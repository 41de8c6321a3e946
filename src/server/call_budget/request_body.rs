//! Charges a request's messages to their caller while they arrive.
//!
//! A client may send the beginning of a large message and then nothing: what has arrived stays in
//! memory until the rest comes or the call ends. The length that a message declares is charged as a whole before
//! more of it is read, so that no two messages hold a part each and wait for the rest, and it is charged until
//! the message was decoded, or in a stream until its handler asks for the next one. While the caller has no room,
//! nothing more is read, so that HTTP's flow control stops the client; after a while the call is refused.
//!
//! A call that takes one message gets the last data of it when the request has ended: the framework would
//! decode it before and hold it, charged to no caller, until the end comes. Large messages of one caller are
//! decoded one after the other: the server's only thread decodes them, and other calls have their turns between
//! them. A message that is longer than its method takes is refused by its prefix, before the
//! rest of it is read, one of too many fields as soon as they have come ([`field_count`](super::field_count)), and
//! a request of which nothing more comes is ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body::{Body as HttpBody, Frame};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use super::field_count::{self, FieldCounter, RequestType};
use crate::access::Shape;
use crate::grpc::framework::{
    message_too_large, request_timeout, second_message, too_many_fields, undecodable,
};
use crate::supervisor::{CallTicket, Error};

/// Length of the prefix of a gRPC message: a flag, and the length of the rest.
const PREFIX_BYTES: usize = 5;

/// Bytes of a message that are not charged, as most messages have fewer.
const FREE_BYTES: usize = 16 << 10;

/// Bytes of a message that waits for its turn if it has more: thousands of fields fit into them.
const LARGE_MESSAGE: usize = 4 << 10;

/// How long no byte of an incomplete request may come before its call is ended.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// What the request of a call has to observe.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLimits {
    /// Bytes of a message.
    pub(super) max_message: usize,
    /// Fields of a message.
    pub(super) max_fields: usize,
    /// What its messages are; none: their fields are not counted.
    pub(super) request_type: Option<RequestType>,
    /// How many messages it has.
    pub(super) shape: Shape,
}

impl RequestLimits {
    /// The request has one message, and the call begins when it has ended.
    fn has_one_message(self) -> bool {
        self.shape != Shape::BidiStream
    }

    fn status(self, refused: Refused) -> Status {
        match refused {
            Refused::TooLarge(found) => message_too_large(found, self.max_message),
            Refused::Fields(field_count::Refused::TooManyFields) => {
                too_many_fields(self.max_fields)
            }
            Refused::Fields(field_count::Refused::WireType) => {
                undecodable("it has a group, or a message of another wire type")
            }
            Refused::Fields(field_count::Refused::Undecodable) => {
                undecodable("it has a field without a number or of an unknown wire type")
            }
        }
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
    has_ended: bool,
    limits: RequestLimits,
    /// How long no byte may come before the end; none: a stream may be idle.
    timeout: Option<Duration>,
    /// Runs while more of the request is waited for.
    idle: Option<Pin<Box<Sleep>>>,
    ticket: Arc<CallTicket>,
    /// Data that has arrived and that does not belong to `message` yet.
    unread: Bytes,
    /// The message under way. It stays here, complete, until it was decoded.
    message: Message,
    /// Bytes of the ticket that are held for `message`.
    charged: usize,
    /// Data of `message` that was not handed over: it waits, or completes the only message before the end.
    kept: Option<Bytes>,
    /// What `kept` waits for.
    wait: Option<BoxFuture<'static, Result<Granted, Error>>>,
    /// Held from the last data of a large message on until the message was decoded.
    turn: Option<OwnedSemaphorePermit>,
}

/// What data was waiting for.
enum Granted {
    /// Room for so many bytes.
    Room(usize),
    /// The turn of a message among the large ones of its caller.
    Turn(OwnedSemaphorePermit),
}

impl Drop for ChargedRequest {
    fn drop(&mut self) {
        self.ticket.release(self.charged);
    }
}

impl ChargedRequest {
    fn new(body: Body, ticket: Arc<CallTicket>, limits: RequestLimits) -> ChargedRequest {
        ChargedRequest {
            body,
            has_ended: false,
            limits,
            timeout: limits.has_one_message().then_some(REQUEST_TIMEOUT),
            idle: None,
            ticket,
            unread: Bytes::new(),
            message: Message::default(),
            charged: 0,
            kept: None,
            wait: None,
            turn: None,
        }
    }

    /// Ready when no byte came for too long.
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        let Some(timeout) = self.timeout else { return Poll::Pending };
        let idle = self.idle.get_or_insert_with(|| Box::pin(sleep(timeout)));
        idle.as_mut().poll(cx).map(|()| request_timeout(timeout))
    }

    /// Gives back what a message holds that was handed over: the framework asks for more when it was decoded.
    fn release_decoded(&mut self) {
        if self.message.is_complete() && self.kept.is_none() {
            self.turn = None;
            self.message = Message::default();
            self.ticket.release(std::mem::take(&mut self.charged));
        }
    }

    /// Takes unread data up to the end of its message.
    fn take_unread(&mut self) -> Result<(), Status> {
        if self.kept.is_some() {
            return Err(second_message());
        }
        let length = self.message.receive(&self.unread, self.limits);
        let length = length.map_err(|refused| self.limits.status(refused))?;
        let data = self.unread.split_to(length);
        // A slice would keep the whole buffer of the connection that it was received into.
        let is_last = self.limits.has_one_message() && self.message.is_complete();
        self.kept = Some(if is_last { Bytes::copy_from_slice(&data) } else { data });
        let bytes = self.message.length;
        if bytes > FREE_BYTES && self.charged == 0 {
            let ticket = Arc::clone(&self.ticket);
            let room =
                async move { ticket.hold_arriving(bytes).await.map(|()| Granted::Room(bytes)) };
            self.wait = Some(Box::pin(room));
        }
        Ok(())
    }

    /// No more data comes.
    fn end(&mut self) {
        self.has_ended = true;
        // The handler of a stream may take as long as it likes for a message, so streams have no turns.
        if self.kept.is_some() && self.message.length > LARGE_MESSAGE {
            let ticket = Arc::clone(&self.ticket);
            let turn = async move { ticket.large_request_turn().await.map(Granted::Turn) };
            self.wait = Some(Box::pin(turn));
        }
    }

    /// The data to hand over next.
    fn next_data(&mut self) -> Option<Bytes> {
        let is_early =
            self.limits.has_one_message() && self.message.is_complete() && !self.has_ended;
        if is_early { None } else { self.kept.take() }
    }
}

impl HttpBody for ChargedRequest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.release_decoded();
        loop {
            if let Some(wait) = &mut self.wait {
                let granted = ready!(wait.as_mut().poll(cx));
                self.wait = None;
                match granted {
                    Ok(Granted::Room(bytes)) => self.charged = bytes,
                    Ok(Granted::Turn(turn)) => self.turn = Some(turn),
                    Err(refused) => return Poll::Ready(Some(Err(refused.into()))),
                }
            }
            if let Some(data) = self.next_data() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if !self.unread.is_empty() {
                if let Err(refused) = self.take_unread() {
                    return Poll::Ready(Some(Err(refused)));
                }
                continue;
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // No call reads trailers of its request.
                    self.unread = frame.into_data().unwrap_or_default();
                    if !self.unread.is_empty() {
                        self.idle = None;
                    }
                }
                Poll::Ready(Some(Err(broken))) => return Poll::Ready(Some(Err(broken))),
                Poll::Ready(None) => self.end(),
                Poll::Pending => return self.poll_timeout(cx).map(|status| Some(Err(status))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.kept.is_none()
            && self.unread.is_empty()
            && (self.has_ended || self.body.is_end_stream())
    }
}

/// How far a message has arrived.
#[derive(Debug, Default)]
struct Message {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix that have arrived.
    prefix_bytes: usize,
    /// Bytes behind the prefix: that it declares, and that are missing.
    length: usize,
    missing: usize,
    /// Counts its fields; none: they are not counted.
    fields: Option<FieldCounter>,
}

/// Why a message is refused.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    /// It has so many bytes, which is more than it may have.
    TooLarge(usize),
    Fields(field_count::Refused),
}

impl Message {
    fn is_complete(&self) -> bool {
        self.prefix_bytes == PREFIX_BYTES && self.missing == 0
    }

    /// Takes data up to the end of the message. Returns how many bytes these are.
    fn receive(&mut self, data: &[u8], limits: RequestLimits) -> Result<usize, Refused> {
        let mut rest = data;
        while self.prefix_bytes < PREFIX_BYTES {
            let Some((byte, behind)) = rest.split_first() else { return Ok(data.len()) };
            rest = behind;
            self.prefix[self.prefix_bytes] = *byte;
            self.prefix_bytes += 1;
            if self.prefix_bytes == PREFIX_BYTES {
                self.begin(limits)?;
            }
        }
        let (taken, rest) = rest.split_at(self.missing.min(rest.len()));
        if let Some(fields) = &mut self.fields {
            fields.receive(taken).map_err(Refused::Fields)?;
        }
        self.missing -= taken.len();
        Ok(data.len() - rest.len())
    }

    /// The prefix is complete.
    fn begin(&mut self, limits: RequestLimits) -> Result<(), Refused> {
        let [_, length @ ..] = self.prefix;
        self.length = u32::from_be_bytes(length) as usize;
        if self.length > limits.max_message {
            return Err(Refused::TooLarge(self.length));
        }
        self.missing = self.length;
        self.fields = limits.request_type.map(|known| FieldCounter::new(known, limits.max_fields));
        Ok(())
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
    fn message(bytes: usize) -> Bytes {
        let length = u32::try_from(bytes).unwrap();
        [&[0][..], &length.to_be_bytes(), &vec![7; bytes]].concat().into()
    }

    fn limits(max_message: usize, shape: Shape) -> RequestLimits {
        RequestLimits { max_message, max_fields: 100, request_type: None, shape }
    }

    /// A call of the caller "a".
    fn ticket(budgets: &CallerBudgets) -> Arc<CallTicket> {
        Arc::new(budgets.enter_call("a").unwrap())
    }

    fn budgets(held_bytes: usize) -> CallerBudgets {
        let held_bytes = Some(held_bytes as u64);
        CallerBudgets::new(Quota { held_bytes, ..Quota::default() })
    }

    /// A body of these frames, and whether it ends then.
    fn body(frames: Vec<Bytes>, ends: bool) -> Body {
        let frames =
            futures_util::stream::iter(frames).map(|data| Ok::<_, Status>(Frame::data(data)));
        let end = futures_util::stream::pending().take(usize::from(!ends));
        Body::new(StreamBody::new(frames.chain(end)))
    }

    /// The next data of a body.
    async fn data(body: &mut (impl HttpBody<Data = Bytes, Error = Status> + Unpin)) -> Bytes {
        body.frame().await.unwrap().unwrap().into_data().unwrap()
    }

    #[test]
    fn message_of_too_many_fields_is_refused_before_its_end() {
        let request_type = RequestType::of_method("Start");
        let limits = RequestLimits { request_type, ..limits(4000, Shape::Unary) };
        // A field that no message has, with nothing in it: two bytes.
        let fields = |count: usize| {
            let length = u32::try_from(2 * count).unwrap();
            [&[0][..], &length.to_be_bytes(), &b"\x7a\x00".repeat(count)].concat()
        };
        let mut message = Message::default();
        let all = fields(limits.max_fields);
        assert_eq!(message.receive(&all, limits), Ok(all.len()));
        let mut message = Message::default();
        let more = fields(limits.max_fields + 9);
        let (first, rest) = more.split_at(more.len() - 20);
        assert_eq!(message.receive(first, limits), Ok(first.len()));
        let too_many = Refused::Fields(field_count::Refused::TooManyFields);
        assert_eq!(message.receive(&rest[..4], limits), Err(too_many));
    }

    #[test]
    fn message_is_complete_with_its_last_byte() {
        for bytes in [0, 1, 9] {
            let (sent, limits) = (message(bytes), limits(9, Shape::Unary));
            for piece in 1..=sent.len() {
                let mut found = Message::default();
                for piece in sent.chunks(piece) {
                    assert!(!found.is_complete());
                    assert_eq!(found.receive(piece, limits), Ok(piece.len()));
                }
                assert!(found.is_complete());
                // What follows belongs to the next message.
                assert_eq!(found.receive(b"more", limits), Ok(0));
            }
        }
    }

    #[test]
    fn message_is_refused_by_its_prefix() {
        let (sent, limits) = (message(10), limits(9, Shape::Unary));
        let mut found = Message::default();
        assert_eq!(found.receive(&sent[..PREFIX_BYTES - 1], limits), Ok(PREFIX_BYTES - 1));
        assert_eq!(
            found.receive(&sent[PREFIX_BYTES - 1..][..1], limits),
            Err(Refused::TooLarge(10))
        );
    }

    #[tokio::test]
    async fn only_message_is_charged_and_kept_until_the_request_has_ended() {
        let length = 1 << 20;
        let sent = message(length);
        let halves = || vec![sent.slice(..length / 2), sent.slice(length / 2..)];
        for ends in [false, true] {
            let budgets = budgets(2 << 20);
            let ticket = ticket(&budgets);
            let mut body =
                charge(body(halves(), ends), &ticket, limits(length, Shape::ServerStream));
            let first = data(&mut body).await;
            assert_eq!((first.len(), ticket.held_bytes()), (length / 2, length));
            let second = body.frame().now_or_never();
            assert_eq!((second.is_some(), ticket.held_bytes()), (ends, length));
            if let Some(second) = second {
                let second = second.unwrap().unwrap().into_data().unwrap();
                assert_eq!([first, second].concat(), sent);
                assert!(body.frame().await.is_none());
                assert_eq!(ticket.held_bytes(), 0);
            }
            drop(body);
            assert_eq!(ticket.held_bytes(), 0);
        }
    }

    #[tokio::test]
    async fn second_message_of_a_call_that_takes_one_is_refused() {
        let together = Bytes::from([message(3), message(3)].concat());
        for frames in [vec![message(3), message(3)], vec![together]] {
            let ticket = ticket(&budgets(1 << 20));
            let mut body = charge(body(frames, false), &ticket, limits(9, Shape::Unary));
            let status = body.frame().await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument);
        }
    }

    #[tokio::test]
    async fn message_of_a_stream_is_charged_until_the_next_is_asked_for() {
        let (large, small) = (message(1 << 20), message(9));
        let frames = vec![[&large[..], &small, &large].concat().into()];
        let ticket = ticket(&budgets(3 << 20));
        let mut body = charge(body(frames, false), &ticket, limits(1 << 20, Shape::BidiStream));
        for (expected, held) in [(&large, 1 << 20), (&small, 0), (&large, 1 << 20)] {
            assert_eq!(data(&mut body).await, expected);
            assert_eq!(ticket.held_bytes(), held);
        }
        assert!(body.frame().now_or_never().is_none());
        assert_eq!(ticket.held_bytes(), 0);
    }

    #[tokio::test]
    async fn message_is_charged_as_a_whole_before_it_is_read() {
        let budgets = budgets(3 << 20);
        let begun = |length: usize| {
            let ticket = ticket(&budgets);
            ticket.has_changed();
            let frames = vec![message(length).slice(..PREFIX_BYTES + 1)];
            let limits = limits(length, Shape::BidiStream);
            (charge(body(frames, false), &ticket, limits), ticket)
        };
        let (mut first, first_ticket) = begun(2 << 20);
        let (mut second, second_ticket) = begun(2 << 20);
        data(&mut first).await;
        assert!(second.frame().now_or_never().is_none());
        assert_eq!([first_ticket.held_bytes(), second_ticket.held_bytes()], [2 << 20, 0]);
        drop(first);
        data(&mut second).await;
    }

    #[tokio::test]
    async fn large_messages_of_a_caller_are_decoded_one_after_the_other() {
        let budgets = CallerBudgets::new(Quota::default());
        let request = |caller: &str| {
            let (sent, limits) = (message(5 << 10), limits(5 << 10, Shape::Unary));
            let ticket = Arc::new(budgets.enter_call(caller).unwrap());
            charge(body(vec![sent], true), &ticket, limits)
        };
        let (mut first, mut second, mut other) = (request("a"), request("a"), request("b"));
        data(&mut first).await;
        assert!(second.frame().now_or_never().is_none());
        data(&mut other).await;
        assert!(first.frame().await.is_none());
        data(&mut second).await;
    }

    /// A request of which these frames come, and then nothing.
    fn stalled(frames: Vec<Bytes>, shape: Shape) -> ChargedRequest {
        let ticket = ticket(&CallerBudgets::new(Quota::default()));
        ChargedRequest::new(body(frames, false), ticket, limits(9, shape))
    }

    #[tokio::test]
    async fn request_of_which_nothing_comes_is_ended() {
        for (sent, handed_over) in
            [(vec![], 0), (vec![message(9).slice(..8)], 1), (vec![message(9)], 0)]
        {
            let mut body = stalled(sent, Shape::Unary);
            body.timeout = Some(Duration::from_millis(1));
            for _ in 0..handed_over {
                data(&mut body).await;
            }
            let status = body.frame().await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert_eq!(status.get_details_error_info().unwrap().reason, "REQUEST_TIMEOUT");
        }
    }

    #[tokio::test]
    async fn each_byte_restarts_the_timeout_and_streams_have_none() {
        let sent = message(9);
        let old = || Some(Box::pin(sleep(Duration::ZERO)));
        let mut body = stalled(vec![sent.slice(..8), sent.slice(8..9)], Shape::Unary);
        for _ in 0..2 {
            body.idle = old();
            data(&mut body).await;
            assert!(body.idle.is_none());
        }
        let mut body = stalled(vec![Bytes::new()], Shape::Unary);
        body.idle = old();
        assert_eq!(body.frame().await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
        let mut idle = stalled(vec![], Shape::BidiStream);
        assert!(idle.frame().now_or_never().is_none() && idle.idle.is_none());
    }
}
