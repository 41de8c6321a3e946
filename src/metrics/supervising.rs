//! What the supervisor tells: events, ends, starts and commits.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{Labels, seconds};
use crate::events::Event;
use crate::process::{Cause, Kind, Outcome};

/// Each kind of event, in the order of their numbers.
const KINDS: [(Kind, &str); 8] = [
    (Kind::Queued, "queued"),
    (Kind::Started, "started"),
    (Kind::Ready, "ready"),
    (Kind::Stopping, "stopping"),
    (Kind::Completed, "completed"),
    (Kind::Restarting, "restarting"),
    (Kind::RunAgain, "run_again"),
    (Kind::Deleted, "deleted"),
];

/// Each way to end, with what it means.
const ENDS: [(Outcome, &str, Cause, &str); 12] = [
    (Outcome::Succeeded, "succeeded", Cause::Exited, "exited"),
    (Outcome::Failed, "failed", Cause::Exited, "exited"),
    (Outcome::Failed, "failed", Cause::Signaled, "signaled"),
    (Outcome::Canceled, "canceled", Cause::Killed, "killed"),
    (Outcome::TimedOut, "timed_out", Cause::TimedOut, "timed_out"),
    (Outcome::Failed, "failed", Cause::OutOfMemory, "out_of_memory"),
    (Outcome::Failed, "failed", Cause::ReadinessFailed, "readiness_failed"),
    (Outcome::Failed, "failed", Cause::StartFailed, "start_failed"),
    (Outcome::Canceled, "canceled", Cause::CanceledInQueue, "canceled_in_queue"),
    (Outcome::Canceled, "canceled", Cause::Shutdown, "shutdown"),
    (Outcome::Failed, "failed", Cause::Lost, "lost"),
    (Outcome::Failed, "failed", Cause::GaveUp, "gave_up"),
];

/// The supervisor's counters. Cheap to clone: every clone counts the same.
#[derive(Clone, Debug)]
pub struct Supervising {
    events: Family<Labels<1>, Counter>,
    by_kind: [Counter; KINDS.len()],
    started: Counter,
    ends: Family<Labels<2>, Counter>,
    by_end: [Counter; ENDS.len()],
    spawn: Histogram,
    commit: Histogram,
    commit_failures: Counter,
}

impl Default for Supervising {
    fn default() -> Supervising {
        let events = Family::<Labels<1>, Counter>::default();
        let by_kind = KINDS.map(|(_, kind)| events.get_or_create_owned(&[("kind", kind)]));
        let ends = Family::<Labels<2>, Counter>::default();
        let by_end = ENDS.map(|(_, outcome, _, cause)| {
            ends.get_or_create_owned(&[("outcome", outcome), ("cause", cause)])
        });
        Supervising {
            events,
            by_kind,
            started: Counter::default(),
            ends,
            by_end,
            spawn: seconds(),
            commit: seconds(),
            commit_failures: Counter::default(),
        }
    }
}

impl Supervising {
    /// An event is told.
    pub fn told(&self, event: &Event) {
        if let Some(count) = self.by_kind.get(event.kind as usize) {
            count.inc();
        }
        if event.kind == Kind::Started {
            self.started.inc();
        }
        let end = event.record.end().filter(|_| event.kind == Kind::Completed);
        let Some((outcome, cause)) = end.map(|end| (end.outcome(), end.cause)) else { return };
        let same = |(o, _, c, _): &(Outcome, &str, Cause, &str)| (*o, *c) == (outcome, cause);
        if let Some(count) = ENDS.iter().position(same).and_then(|at| self.by_end.get(at)) {
            count.inc();
        }
    }

    /// The keeper has started a process, and took so long.
    pub fn spawned(&self, took: Duration) {
        self.spawn.observe(took.as_secs_f64());
    }

    /// What was to be recorded was, and took so long.
    pub fn committed(&self, took: Duration) {
        self.commit.observe(took.as_secs_f64());
    }

    /// What was to be recorded could not be.
    pub fn not_committed(&self) {
        self.commit_failures.inc();
    }

    /// Gives them their names.
    pub(super) fn register(&self, registry: &mut Registry) {
        let Supervising { events, started, ends, spawn, commit, commit_failures, .. } = self;
        registry.register("procyard_events", "Events that were told, by kind", events.clone());
        let help = "Processes that were started, each restart of a service among them";
        registry.register("procyard_processes_started", help, started.clone());
        let help = "Runs that are over, by what that means and why";
        registry.register("procyard_exits", help, ends.clone());
        let help = "From asking the keeper for a process until it runs";
        registry.register_with_unit("procyard_spawn", help, Unit::Seconds, spawn.clone());
        let help = "From handing records to the store until they are recorded";
        registry.register_with_unit("procyard_commit", help, Unit::Seconds, commit.clone());
        let help = "Commits that failed; each is tried again";
        registry.register("procyard_commit_failures", help, commit_failures.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::process::record::tests::{finished, record};
    use crate::process::{End, Phase, Status};

    fn event(kind: Kind, record: crate::process::Record) -> Event {
        Event { seq: 1, time: 1, kind, record: Arc::new(record) }
    }

    #[test]
    fn the_words_of_kinds_stand_in_the_order_of_their_numbers() {
        assert!(KINDS.iter().enumerate().all(|(number, (kind, _))| *kind as usize == number));
    }

    #[test]
    fn every_end_has_its_counter_and_an_end_is_counted_once() {
        let causes = ENDS.map(|(_, _, cause, _)| cause);
        for (at, cause) in causes.into_iter().enumerate().skip(1) {
            let told = Supervising::default();
            let mut record = finished();
            let Phase::Exited(end) = record.phase else { unreachable!() };
            let exit = end
                .exit
                .clone()
                .map(|exit| crate::process::Exit { status: Status::Code(3), ..exit });
            record.phase = Phase::Exited(End { cause, exit, ..end });
            told.told(&event(Kind::Completed, record.clone()));
            // What is told of it later is no other end.
            told.told(&event(Kind::Deleted, record));
            let counts = told.by_end.each_ref().map(Counter::get);
            assert_eq!((counts[at], counts.iter().sum::<u64>()), (1, 1), "{cause:?}");
        }
        let told = Supervising::default();
        told.told(&event(Kind::Completed, finished()));
        told.told(&event(Kind::Started, record("a", 1)));
        assert_eq!((told.by_end[0].get(), told.started.get()), (1, 1));
    }
}
