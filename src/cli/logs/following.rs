//! A stream of output that goes on where it was when the server is replaced.

use tonic::{Response, Status, Streaming};

use super::super::client::{Client, Resumable, Resumed};
use crate::grpc::pb;
pub(super) use crate::grpc::pb::follow_response::Message;

/// A transcript that is followed. Its view shows all of a chunk at once, or nothing of it: no lines
/// are chosen, so that the next chunk is where to go on.
pub(super) type Following = Resumed<pb::FollowRequest>;

impl Resumable for pb::FollowRequest {
    type Answer = pb::FollowResponse;
    type Message = Message;

    async fn open(
        &self,
        client: &mut Client,
    ) -> Result<Response<Streaming<pb::FollowResponse>>, Status> {
        client.follow(self.clone()).await
    }

    fn message(answer: pb::FollowResponse) -> Option<Message> {
        answer.message
    }

    fn go_past(&mut self, message: &Message) -> bool {
        let next = match message {
            Message::Chunk(chunk) => Some(chunk.seq + 1),
            Message::Gap(gap) => Some(gap.to_seq + 1),
            Message::Heartbeat(heartbeat) => Some(heartbeat.seq),
            Message::End(_) => None,
        };
        self.since_seq = next.max(self.since_seq);
        true
    }

    /// The end is a message.
    fn may_end(&self) -> bool {
        false
    }
}
