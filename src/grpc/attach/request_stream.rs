//! The request stream of one attached client.
//!
//! Owns it from the first message until the client closes it, which may be after the answer has
//! ended. A client that is still sending when its process ends would otherwise see its stream reset
//! directly behind the last message, and some client libraries drop what they have not yet read then.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use prost::Message;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::{Status, Streaming};

use crate::grpc::framework::explain;
use crate::grpc::from_proto::{AttachMessage, Typed};
use crate::grpc::pb;
use crate::supervisor::Stage;

/// Bytes of small inputs that become one write: a client that sends each letter in a message of its
/// own sends them faster than the keeper answers writes. Merged input is not charged to the caller, so it has no
/// more bytes than are free of charge.
const MERGED_INPUT: usize = 16 << 10;

/// How long a stream whose answer has ended is kept for the client to close it, and how many bytes
/// that still arrive are discarded meanwhile. HTTP/2's limit of concurrent calls also counts streams
/// that drain, so there are at most so many.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
const DRAIN_MAX_BYTES: usize = 64 << 10;

/// Length of the prefix of a gRPC message.
const MESSAGE_PREFIX: usize = 5;

/// The messages of one client. Dropped: what still arrives is discarded for a while.
pub(super) struct RequestStream {
    /// None only while this is dropped.
    messages: Option<Streaming<pb::AttachRequest>>,
    /// Received while inputs were merged; [`RequestStream::next`] returns it next.
    received: Option<Result<Option<AttachMessage>, Status>>,
    stage: watch::Receiver<Stage>,
}

impl RequestStream {
    pub(super) fn new(
        messages: Streaming<pb::AttachRequest>,
        stage: watch::Receiver<Stage>,
    ) -> RequestStream {
        RequestStream { messages: Some(messages), received: None, stage }
    }

    /// The next message as the client sent it; none: the client has closed the stream.
    pub(super) async fn receive(&mut self) -> Result<Option<pb::AttachRequest>, Status> {
        match &mut self.messages {
            Some(messages) => messages.message().await.map_err(explain),
            None => Ok(None),
        }
    }

    /// The next message; small inputs that have arrived together are merged into one.
    pub(super) async fn next(&mut self) -> Result<Option<AttachMessage>, Status> {
        let next = match self.received.take() {
            Some(received) => received?,
            None => self.parse_next().await?,
        };
        match next {
            Some(AttachMessage::Type(Typed::Bytes(input))) if input.len() < MERGED_INPUT => {
                let merged = Typed::Bytes(self.merge(&input));
                Ok(Some(AttachMessage::Type(merged)))
            }
            next => Ok(next),
        }
    }

    fn merge(&mut self, first: &[u8]) -> Bytes {
        let mut merged = BytesMut::from(first);
        while let Some(received) = self.parse_next().now_or_never() {
            match received {
                Ok(Some(AttachMessage::Type(Typed::Bytes(input))))
                    if merged.len() + input.len() <= MERGED_INPUT =>
                {
                    merged.extend_from_slice(&input);
                }
                received => {
                    self.received = Some(received);
                    break;
                }
            }
        }
        merged.freeze()
    }

    async fn parse_next(&mut self) -> Result<Option<AttachMessage>, Status> {
        Ok(self.receive().await?.map(AttachMessage::try_from).transpose()?)
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        // Without a runtime the server has ended, and its connections with it.
        if let (Some(messages), Ok(runtime)) = (self.messages.take(), Handle::try_current()) {
            runtime.spawn(drain(messages, self.stage.clone()));
        }
    }
}

/// Discards what arrives until the client closes the stream, the time is over or the server stops.
///
/// After [`DRAIN_MAX_BYTES`] nothing is read any more, so that flow control stops the client before the
/// stream is reset: h2 never gives back what it charges for small frames that arrive after a reset, and
/// ends the connection when that is too much.
async fn drain(mut messages: Streaming<pb::AttachRequest>, mut stage: watch::Receiver<Stage>) {
    let discard = async {
        let mut discarded = 0;
        while discarded < DRAIN_MAX_BYTES {
            let Ok(Some(message)) = messages.message().await else { return };
            discarded += MESSAGE_PREFIX + message.encoded_len();
        }
        std::future::pending().await
    };
    tokio::select! {
        () = discard => {}
        () = sleep(DRAIN_TIMEOUT) => {}
        _ = stage.wait_for(|stage| *stage >= Stage::AllOver) => {}
    }
}
