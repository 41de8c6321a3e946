//! A stream of answers that makes no more than its client reads.
//!
//! HTTP takes what a stream has as long as the client's windows have room, and keeps it for a client that does
//! not read. A paced stream waits when it holds its part of what the streams of its caller may hold; each
//! message counts until HTTP has sent it (`server::call_budget`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use prost::Message;
use tokio_stream::Stream;
use tonic::Status;

use crate::supervisor::CallTicket;

/// Bytes of the prefix of a gRPC message.
const PREFIX_BYTES: usize = 5;

/// A stream of messages that are charged to its ticket.
pub(super) struct PacedStream<S> {
    messages: Pin<Box<S>>,
    ticket: Arc<CallTicket>,
}

impl<S> PacedStream<S> {
    pub(super) fn new(messages: S, ticket: Arc<CallTicket>) -> PacedStream<S> {
        PacedStream { messages: Box::pin(messages), ticket }
    }
}

impl<S, T> Stream for PacedStream<S>
where
    S: Stream<Item = Result<T, Status>>,
    T: Message,
{
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        ready!(self.ticket.poll_stream_room(cx));
        let next = ready!(self.messages.as_mut().poll_next(cx));
        if let Some(Ok(message)) = &next {
            self.ticket.message_made(PREFIX_BYTES + message.encoded_len());
        }
        Poll::Ready(next)
    }
}
