//! Follow: a transcript, live, until its end.
//!
//! A follower is a place in a transcript: it reads when its connection has room for more and the streams of
//! its caller hold little enough (`paced_stream`). One that stops reading holds a batch, which is one chunk when its
//! caller's streams hold much. What its view keeps besides, such as the last lines, and the record at its end are
//! charged to its caller's budget.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tokio::time::{Instant, sleep_until};
use tokio_stream::Stream;
use tonic::Status;

use super::from_proto::FollowOrder;
use super::pb::follow_response::Message;
use super::{output, pb, to_proto};
use crate::access::Does;
use crate::supervisor::{CallTicket, Error, Follower, LiveView, Observer, Sight, Supervisor};

/// Bytes that are read in one go at most: what a stopped follower holds, besides what HTTP does.
const MAX_BATCH: usize = 64 << 10;

/// Where a follower is, or someone who is attached.
pub(super) struct Following {
    supervisor: Supervisor,
    observer: Observer,
    /// Where it is, for the metrics.
    follower: Follower,
    view: LiveView,
    heartbeat: Duration,
    ticket: Arc<CallTicket>,
    /// When a heartbeat is due, unless there is news before.
    heartbeat_at: Instant,
    /// Read, and on their way out.
    sights: VecDeque<Sight>,
    /// Bytes of the caller's budget that `view` and `sights` hold.
    held: usize,
    /// All was read.
    complete: bool,
    over: bool,
}

pub(super) async fn follow(
    supervisor: &Supervisor,
    order: FollowOrder,
) -> Result<impl Stream<Item = Result<pb::FollowResponse, Status>> + Send + use<>, Error> {
    let FollowOrder { id, since_seq, streams, ack_seq, view, heartbeat } = order;
    if ack_seq.is_some() {
        supervisor.may(Does::Change, "Follow")?;
    }
    let entry = supervisor.find(&id)?;
    supervisor.ticket().hold(view.compiled_bytes()).await?;
    let mut observer = supervisor.observe(entry.clone(), since_seq)?;
    if let Some(seq) = ack_seq {
        output::acknowledge(supervisor, &entry, seq).await?;
    }
    let view = LiveView::begin(&mut observer, view, streams).await?;
    let following = Following::new(supervisor, observer, view, heartbeat);
    Ok(stream::unfold(following, |mut following| async {
        let next = following.next().await?;
        let answer = next.map(|message| pb::FollowResponse { message: Some(message) });
        Some((answer.map_err(Status::from), following))
    }))
}

impl Following {
    pub(super) fn new(
        supervisor: &Supervisor,
        observer: Observer,
        view: LiveView,
        heartbeat: Duration,
    ) -> Following {
        Following {
            supervisor: supervisor.clone(),
            follower: supervisor.follower_of(&observer),
            observer,
            view,
            heartbeat,
            ticket: Arc::clone(supervisor.ticket()),
            heartbeat_at: Instant::now() + heartbeat,
            sights: VecDeque::new(),
            held: 0,
            complete: false,
            over: false,
        }
    }

    /// The next message; none: the end was told. Whoever stops waiting for it misses none, if all
    /// is shown: a view that chooses may be looking at what was read.
    pub(super) async fn next(&mut self) -> Option<Result<Message, Error>> {
        if self.over {
            return None;
        }
        let next = self.news().await;
        self.over =
            !matches!(next, Ok(Message::Chunk(_) | Message::Gap(_) | Message::Heartbeat(_)));
        self.heartbeat_at = Instant::now() + self.heartbeat;
        self.follower.reached(match self.sights.front() {
            Some(Sight::Chunk(chunk)) => chunk.seq,
            Some(Sight::Gap(gap)) => gap.from_seq,
            None => self.observer.next_seq(),
        });
        Some(next)
    }

    async fn news(&mut self) -> Result<Message, Error> {
        loop {
            match self.sights.pop_front() {
                Some(Sight::Gap(gap)) => return Ok(Message::Gap(to_proto::gap(gap))),
                Some(Sight::Chunk(chunk)) => return Ok(Message::Chunk(to_proto::chunk(chunk))),
                None => {}
            }
            if self.complete {
                let seen = self.observer.seen();
                let process = Some(output::process_in_message(&self.supervisor, &seen).await?);
                let omitted = self.view.omitted().map(to_proto::omitted);
                return Ok(Message::End(pb::End { process, omitted }));
            }
            if self.read().await? {
                if self.sights.is_empty() && self.heartbeat_at <= Instant::now() {
                    return Ok(self.sign_of_life());
                }
                if self.sights.is_empty() {
                    // All of it was filtered out, maybe a flood: others have their turn.
                    tokio::task::yield_now().await;
                }
                continue;
            }
            if self.observer.is_complete() {
                self.complete = true;
                self.sights = self.view.end().await?.into();
                self.charge().await?;
                continue;
            }
            tokio::select! {
                biased;
                changed = self.observer.changed() => changed?,
                () = sleep_until(self.heartbeat_at) => return Ok(self.sign_of_life()),
            }
        }
    }

    fn sign_of_life(&self) -> Message {
        let seq = self.view.resumes_at(self.observer.next_seq());
        Message::Heartbeat(to_proto::heartbeat(seq))
    }

    /// Takes what is there. False: nothing was.
    async fn read(&mut self) -> Result<bool, Error> {
        let batch = self.observer.take_next(self.ticket.stream_room().min(MAX_BATCH)).await;
        let something = batch.gap.is_some() || !batch.chunks.is_empty();
        // A new buffer each time: one who waits for news holds none.
        self.sights = self.view.see(batch, self.observer.next_seq()).await?.into();
        self.charge().await?;
        if self.sights.is_empty() {
            // None of it is wanted: that is not to lag behind.
            self.follower.reached(self.observer.next_seq());
        }
        Ok(something || !self.sights.is_empty())
    }

    /// Charges to the caller what the view keeps and what is on its way out, but for a batch.
    async fn charge(&mut self) -> Result<(), Error> {
        let sights: usize = self.sights.iter().map(Sight::memory).sum();
        let needed = (self.view.memory() + sights).saturating_sub(MAX_BATCH);
        match needed.checked_sub(self.held) {
            Some(missing) => self.ticket.hold(missing).await?,
            None => self.ticket.release(self.held - needed),
        }
        self.held = needed;
        Ok(())
    }
}
