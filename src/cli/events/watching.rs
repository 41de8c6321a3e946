//! A stream of events that goes on after the last one that came when the server is replaced.

use tonic::{Response, Status, Streaming};

use super::super::client::{Client, Resumable, Resumed};
use crate::grpc::pb::{self, watch_response::Message};

/// Events that are watched.
pub(super) type Watching = Resumed<pb::WatchRequest>;

impl Resumable for pb::WatchRequest {
    type Answer = pb::WatchResponse;
    type Message = Message;

    async fn open(
        &self,
        client: &mut Client,
    ) -> Result<Response<Streaming<pb::WatchResponse>>, Status> {
        client.watch(self.clone()).await
    }

    fn message(answer: pb::WatchResponse) -> Option<Message> {
        answer.message
    }

    fn go_past(&mut self, message: &Message) -> bool {
        let seen = match message {
            Message::Event(event) => event.seq,
            Message::Gap(gap) => gap.to_seq,
            Message::Heartbeat(heartbeat) => heartbeat.seq,
        };
        self.since_event = self.since_event.max(Some(seen));
        !matches!(message, Message::Heartbeat(_))
    }

    /// Only a replay ends well.
    fn may_end(&self) -> bool {
        self.replay_only
    }
}
