//! Sleep: time that passes, told in ticks, and cut short by a completion or a shutdown.
//!
//! A sleeper is a deadline and a place among the events. It holds no process and no thread, and
//! one who stops reading misses ticks, never the end.

use std::sync::Arc;

use futures_util::stream;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until};
use tokio_stream::Stream;
use tonic::Status;

use super::from_proto::SleepOrder;
use super::pb::sleep_response::{Done, Message, Tick};
use super::watch::BATCH;
use super::{pb, to_proto};
use crate::events::{Event, Kind};
use crate::supervisor::{Error, Stage, Supervisor};

/// A sleep under way.
struct Sleeping {
    supervisor: Supervisor,
    order: SleepOrder,
    latest: Receiver<u64>,
    stage: Receiver<Stage>,
    began: Instant,
    /// The last event that was looked at.
    after: u64,
    /// When the next tick is due; none: there are none.
    tick_at: Option<Instant>,
    over: bool,
}

pub(super) fn sleep(
    supervisor: &Supervisor,
    order: SleepOrder,
) -> impl Stream<Item = Result<pb::SleepResponse, Status>> + Send + use<> {
    let SleepOrder { duration, description, .. } = &order;
    tracing::debug!(?duration, description, "a sleep begins");
    let latest = supervisor.latest_event();
    // What happened before the call wakes nobody.
    let after = *latest.borrow();
    let began = Instant::now();
    let sleeping = Sleeping {
        after,
        latest,
        stage: supervisor.stage(),
        began,
        tick_at: order.tick_interval.map(|_| began),
        over: false,
        supervisor: supervisor.clone(),
        order,
    };
    stream::unfold(sleeping, |mut sleeping| async {
        if sleeping.over {
            return None;
        }
        let next = sleeping.next().await;
        sleeping.over = !matches!(next, Ok(Message::Tick(_)));
        let answer = next.map(|message| pb::SleepResponse { message: Some(message) });
        Some((answer.map_err(Status::from), sleeping))
    })
}

impl Sleeping {
    async fn next(&mut self) -> Result<Message, Error> {
        let end = self.began + self.order.duration;
        loop {
            let stage = *self.stage.borrow_and_update();
            if let Some(event) = self.woken().await? {
                return Ok(self.done(true, Some(&event)));
            }
            let now = Instant::now();
            if now < end && stage.is_retirement() {
                // The server that takes over can be asked to sleep on.
                return Err(Error::ShuttingDown);
            }
            if now >= end || stage >= Stage::Stopping {
                return Ok(self.done(now < end, None));
            }
            if let Some(tick) = self.tick(now) {
                return Ok(tick);
            }
            let at = self.tick_at.map_or(end, |tick| tick.min(end));
            tokio::select! {
                biased;
                _ = self.latest.changed(), if self.order.wake_on.is_some() => {}
                _ = self.stage.changed() => {}
                () = sleep_until(at) => {}
            }
        }
    }

    /// A completion that ends it. All that has happened since the last look is looked at.
    async fn woken(&mut self) -> Result<Option<Arc<Event>>, Error> {
        let Some(selector) = &self.order.wake_on else { return Ok(None) };
        self.latest.borrow_and_update();
        loop {
            let events = self.supervisor.next_events(self.after, BATCH).await?;
            let Some(last) = events.last() else { return Ok(None) };
            self.after = last.seq;
            let caller = self.supervisor.caller();
            let wakes = |event: &Event| {
                event.kind == Kind::Completed && caller.means(selector, &event.record)
            };
            if let Some(event) = events.into_iter().find(|event| wakes(event)) {
                return Ok(Some(event));
            }
        }
    }

    /// A tick, if one is due. Those that nobody had room for are passed over.
    fn tick(&mut self, now: Instant) -> Option<Message> {
        let interval = self.order.tick_interval?;
        self.tick_at.take_if(|at| *at <= now)?;
        let elapsed = now - self.began;
        let passed = u32::try_from(elapsed.as_nanos() / interval.as_nanos()).unwrap_or(u32::MAX);
        self.tick_at = Some(self.began + interval * passed.saturating_add(1));
        Some(Message::Tick(Tick {
            elapsed: Some(to_proto::duration(elapsed)),
            remaining: Some(to_proto::duration(self.order.duration.saturating_sub(elapsed))),
        }))
    }

    fn done(&self, interrupted: bool, event: Option<&Event>) -> Message {
        let slept = self.began.elapsed();
        tracing::debug!(?slept, interrupted, description = self.order.description, "a sleep ends");
        let (slept, event) = (Some(to_proto::duration(slept)), event.map(to_proto::event));
        Message::Done(Done { slept, interrupted, event })
    }
}
