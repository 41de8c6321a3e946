//! Watch: numbered events, from any that is kept, live.
//!
//! A watcher is a place among the events and nothing else: the newest are in memory, older ones
//! in the store, and one who stops reading holds one batch: 64 events or 64 KiB, or one that is larger.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::stream;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until};
use tokio_stream::Stream;
use tonic::Status;

use super::from_proto::WatchOrder;
use super::pb::watch_response::Message;
use super::{pb, to_proto};
use crate::events::Event;
use crate::supervisor::{Error, Stage, Supervisor};
use crate::transcript::Gap;

/// Events that are taken in one go at most: what a stopped watcher holds.
pub(super) const BATCH: usize = 64;

/// Where a watcher is.
struct Watching {
    supervisor: Supervisor,
    order: WatchOrder,
    latest: Receiver<u64>,
    stage: Receiver<Stage>,
    /// The last event that was looked at.
    after: u64,
    /// Where a replay ends.
    until: Option<u64>,
    ready: VecDeque<Ready>,
    over: bool,
}

/// What is to be sent next. An event is converted when it is sent, as many watchers may share it.
enum Ready {
    Event(Arc<Event>),
    Gap(Gap),
    Heartbeat(u64),
}

pub(super) fn watch(
    supervisor: &Supervisor,
    order: WatchOrder,
) -> Result<impl Stream<Item = Result<pb::WatchResponse, Status>> + Send + use<>, Error> {
    let latest = supervisor.latest_event();
    let newest = *latest.borrow();
    let after = order.since_event.unwrap_or(newest);
    if after > newest {
        return Err(Error::CursorAhead { cursor: after, next: newest + 1 });
    }
    let watching = Watching {
        latest,
        stage: supervisor.stage(),
        after,
        until: order.replay_only.then_some(newest),
        // Tells that nothing that happens from here on will be missed.
        ready: VecDeque::from([Ready::Heartbeat(after)]),
        over: false,
        supervisor: supervisor.clone(),
        order,
    };
    Ok(stream::unfold(watching, |mut watching| async {
        let next = watching.next().await?;
        let answer = next.map(|message| pb::WatchResponse { message: Some(message) });
        Some((answer.map_err(Status::from), watching))
    }))
}

impl From<Ready> for Message {
    fn from(ready: Ready) -> Message {
        match ready {
            Ready::Event(event) => Message::Event(to_proto::event(&event)),
            Ready::Gap(gap) => Message::Gap(to_proto::gap(gap)),
            Ready::Heartbeat(seq) => Message::Heartbeat(to_proto::heartbeat(seq)),
        }
    }
}

impl Watching {
    /// The next message; none: a replay is over.
    async fn next(&mut self) -> Option<Result<Message, Error>> {
        let mut heartbeat_at = None;
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(Ok(ready.into()));
            }
            if self.over || self.until.is_some_and(|until| self.after >= until) {
                return None;
            }
            // Looked at before reading: the last events are told before the stage is.
            let stage = *self.stage.borrow_and_update();
            match self.read().await {
                Ok(true) => continue,
                Ok(false) if stage >= Stage::AllOver => return self.fail(Error::ShuttingDown),
                Ok(false) => {}
                Err(error) => return self.fail(error),
            }
            let at = *heartbeat_at.get_or_insert_with(|| Instant::now() + self.order.heartbeat);
            tokio::select! {
                biased;
                _ = self.latest.changed() => {}
                _ = self.stage.changed() => {}
                () = sleep_until(at) => {
                    return Some(Ok(Ready::Heartbeat(self.after).into()));
                }
            }
        }
    }

    fn fail(&mut self, error: Error) -> Option<Result<Message, Error>> {
        self.over = true;
        Some(Err(error))
    }

    /// Tells that there are no events up to this one any more.
    fn miss(&mut self, to_seq: u64) {
        if to_seq > self.after {
            let gap = Gap { from_seq: self.after + 1, to_seq, dropped_bytes: None };
            self.ready.push_back(Ready::Gap(gap));
            self.after = to_seq;
        }
    }

    /// Takes the next events. True: there may be more at once.
    async fn read(&mut self) -> Result<bool, Error> {
        self.latest.borrow_and_update();
        let events = self.supervisor.next_events(self.after, BATCH).await?;
        let Some(first) = events.first() else {
            // The last ones may have been lost. Nobody waits for them in a replay.
            let Some(until) = self.until else { return Ok(false) };
            self.miss(until);
            return Ok(true);
        };
        self.miss((first.seq - 1).min(self.until.unwrap_or(u64::MAX)));
        for event in events {
            if self.until.is_some_and(|until| event.seq > until) {
                break;
            }
            self.after = event.seq;
            let WatchOrder { selector, kinds, .. } = &self.order;
            if kinds.contains(event.kind) && self.supervisor.caller().means(selector, &event.record)
            {
                self.ready.push_back(Ready::Event(event));
            }
        }
        Ok(true)
    }
}
