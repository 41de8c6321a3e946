//! Follow: a transcript, live, until its end.
//!
//! A follower is a place in a ring and nothing else: it reads when the connection has room for
//! more, so that one who stops reading holds one batch and keeps nobody waiting.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream;
use tokio::time::{Instant, sleep_until};
use tokio_stream::Stream;
use tonic::Status;

use super::from_proto::FollowOrder;
use super::pb::follow_response::Message;
use super::{pb, to_proto};
use crate::process::AnyOf;
use crate::supervisor::{Error, Observer, Supervisor};
use crate::transcript::{self, Batch, Chunk, Gap};

/// Bytes that are read from the ring in one go: what a stopped follower holds.
const BATCH: usize = 64 << 10;

/// Where a follower is.
struct Following {
    observer: Observer,
    streams: AnyOf<transcript::Stream>,
    heartbeat: Duration,
    /// When a heartbeat is due, unless there is news before.
    heartbeat_at: Instant,
    /// Read, and on their way out: a gap, then chunks.
    gap: Option<Gap>,
    chunks: VecDeque<Chunk>,
    over: bool,
}

pub(super) async fn follow(
    supervisor: &Supervisor,
    order: FollowOrder,
) -> Result<impl Stream<Item = Result<pb::FollowResponse, Status>> + Send + use<>, Error> {
    let FollowOrder { id, since_seq, streams, ack_seq, heartbeat } = order;
    let entry = supervisor.find(&id)?;
    let observer = supervisor.observe(entry.clone(), since_seq)?;
    if let Some(seq) = ack_seq {
        supervisor.acknowledge(&entry, seq).await?;
    }
    let following = Following {
        observer,
        streams,
        heartbeat,
        heartbeat_at: Instant::now() + heartbeat,
        gap: None,
        chunks: VecDeque::new(),
        over: false,
    };
    Ok(stream::unfold(following, |mut following| async {
        let next = following.next().await?;
        let answer = next.map(|message| pb::FollowResponse { message: Some(message) });
        Some((answer.map_err(Status::from), following))
    }))
}

impl Following {
    /// The next message; none: the end was told.
    async fn next(&mut self) -> Option<Result<Message, Error>> {
        if self.over {
            return None;
        }
        let next = self.news().await;
        self.over =
            !matches!(next, Ok(Message::Chunk(_) | Message::Gap(_) | Message::Heartbeat(_)));
        self.heartbeat_at = Instant::now() + self.heartbeat;
        Some(next)
    }

    async fn news(&mut self) -> Result<Message, Error> {
        loop {
            if let Some(gap) = self.gap.take() {
                return Ok(Message::Gap(to_proto::gap(gap)));
            }
            if let Some(chunk) = self.chunks.pop_front() {
                return Ok(Message::Chunk(to_proto::chunk(chunk)));
            }
            if self.read() {
                let shown = self.gap.is_some() || !self.chunks.is_empty();
                if !shown && self.heartbeat_at <= Instant::now() {
                    return Ok(self.sign_of_life());
                }
                if !shown {
                    // All of it was of other streams, maybe a flood: others have their turn.
                    tokio::task::yield_now().await;
                }
                continue;
            }
            if self.observer.is_complete() {
                let process = Some(to_proto::seen(&self.observer.seen()));
                return Ok(Message::End(pb::End { process }));
            }
            tokio::select! {
                biased;
                changed = self.observer.changed() => changed?,
                () = sleep_until(self.heartbeat_at) => return Ok(self.sign_of_life()),
            }
        }
    }

    fn sign_of_life(&self) -> Message {
        Message::Heartbeat(to_proto::heartbeat(self.observer.next_seq()))
    }

    /// Takes what is there. False: nothing was.
    fn read(&mut self) -> bool {
        let Batch { gap, chunks } = self.observer.read(BATCH);
        let something = gap.is_some() || !chunks.is_empty();
        self.gap = gap;
        // A new buffer each time: one who waits for news holds none.
        let wanted = chunks.into_iter().filter(|chunk| self.streams.contains(chunk.stream));
        self.chunks = wanted.collect();
        something
    }
}
