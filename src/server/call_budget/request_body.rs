//! Charges a request's messages to their caller while they arrive.
//!
//! A client may send the beginning of a large message and then nothing: what has arrived stays in
//! memory until the rest comes or the call ends. A message is charged until it is complete; from then
//! on it is the handler's. While its caller has no room, nothing more is read, so that HTTP's flow control
//! stops the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::future::BoxFuture;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::supervisor::{CallTicket, Error};

/// Length of the prefix of a gRPC message: a flag, and the length of the rest.
const PREFIX_BYTES: usize = 5;

/// Bytes of a message that are not charged, as most messages have fewer.
const FREE_BYTES: usize = 16 << 10;

/// The same body, charged to the ticket.
pub(super) fn charge(body: Body, ticket: &Arc<CallTicket>) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let (message, ticket) = (Message::default(), Arc::clone(ticket));
    Body::new(ChargedRequest { body, message, ticket, charged: 0, waiting: None })
}

struct ChargedRequest {
    body: Body,
    message: Message,
    ticket: Arc<CallTicket>,
    /// Bytes of the message that are charged.
    charged: usize,
    /// Data that has arrived, until its caller has room for it.
    waiting: Option<(BoxFuture<'static, Result<(), Error>>, Bytes)>,
}

impl ChargedRequest {
    /// Changes the charge to what has arrived of the message. Returns whether that has to be waited for.
    fn recharge(&mut self, data: &Bytes) -> bool {
        let arrived = self.message.arrived();
        let wanted = if arrived > FREE_BYTES { arrived } else { 0 };
        let (more, less) =
            (wanted.saturating_sub(self.charged), self.charged.saturating_sub(wanted));
        self.charged = wanted;
        if less > 0 {
            self.ticket.release(less);
        }
        if more > 0 {
            let ticket = Arc::clone(&self.ticket);
            let hold = Box::pin(async move { ticket.hold(more).await });
            self.waiting = Some((hold, data.clone()));
        }
        more > 0
    }
}

impl HttpBody for ChargedRequest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some((hold, data)) = &mut self.waiting {
                let held = ready!(hold.as_mut().poll(cx));
                let data = std::mem::take(data);
                self.waiting = None;
                return Poll::Ready(Some(held.map(|()| Frame::data(data)).map_err(Status::from)));
            }
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            let Some(data) = frame.data_ref().cloned() else {
                return Poll::Ready(Some(Ok(frame)));
            };
            self.message.receive(&data);
            if !self.recharge(&data) {
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
}

impl Message {
    /// Bytes of the message under way that have arrived; 0 when it is complete.
    fn arrived(&self) -> usize {
        self.arrived
    }

    fn receive(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.prefix_bytes < PREFIX_BYTES {
                self.prefix[self.prefix_bytes] = data.get_u8();
                self.prefix_bytes += 1;
                if self.prefix_bytes == PREFIX_BYTES {
                    let [_, length @ ..] = self.prefix;
                    self.missing = u32::from_be_bytes(length) as usize;
                }
            }
            let taken = self.missing.min(data.len());
            data.advance(taken);
            self.arrived += taken;
            self.missing -= taken;
            if self.prefix_bytes == PREFIX_BYTES && self.missing == 0 {
                *self = Message::default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::supervisor::{CallerBudgets, Quota};

    /// A message of so many bytes, with its prefix.
    fn message(bytes: u32) -> Vec<u8> {
        [&[0][..], &bytes.to_be_bytes(), &vec![7; bytes as usize]].concat()
    }

    #[test]
    fn message_is_under_way_until_its_last_byte() {
        let all = [message(3), message(0), message(9)].concat();
        for pieces in 1..all.len() {
            let mut found = Message::default();
            for piece in all.chunks(pieces) {
                found.receive(piece);
            }
            assert_eq!(found.arrived(), 0);
        }
        let mut found = Message::default();
        found.receive(&all[..all.len() - 1]);
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
        let mut body = charge(Body::new(StreamBody::new(stream)), &ticket);
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), half);
        assert_eq!(ticket.held_bytes(), half - PREFIX_BYTES);
        let second = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!([first, second].concat(), sent);
        assert_eq!(ticket.held_bytes(), 0);
        other.hold(2 << 20).await.unwrap();
    }
}
