//! Events: what happened, numbered.
//!
//! Owns the words, and the newest of them in memory (`EventLog`), where watchers look first; all
//! that are kept are the store's. Never waits for a watcher, and knows of none: each comes with
//! the number of the last event that it has seen.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

pub use crate::process::Kind;
use crate::process::Record;

/// Something that happened to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Counts all events, from 1, without holes.
    pub seq: u64,
    /// When, nanoseconds since 1970.
    pub time: u64,
    /// What.
    pub kind: Kind,
    /// The process as it was then, its spec in brief.
    pub record: Arc<Record>,
}

/// How many events are in memory.
pub const KEPT: usize = 1024;

/// The newest events. Published by one, after their commit; read by many.
pub struct EventLog {
    /// Without holes, oldest first.
    newest: Mutex<VecDeque<Arc<Event>>>,
    last: watch::Sender<u64>,
}

/// Events after a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The next ones, oldest first; none: there are no more yet.
    Events(Vec<Arc<Event>>),
    /// The next one is no longer in memory: ask the store.
    TooOld,
}

impl EventLog {
    /// A log that goes on after the event `last_seq`; `tail` has the newest ones up to it.
    pub fn new(last_seq: u64, tail: Vec<Arc<Event>>) -> EventLog {
        let mut newest = VecDeque::from(tail);
        newest.drain(..newest.len().saturating_sub(KEPT));
        EventLog { newest: Mutex::new(newest), last: watch::Sender::new(last_seq) }
    }

    /// Tells all watchers of the next event.
    pub fn publish(&self, event: Arc<Event>) {
        let seq = event.seq;
        let mut newest = self.newest();
        if newest.len() == KEPT {
            newest.pop_front();
        }
        newest.push_back(event);
        drop(newest);
        // After it is there, so that whoever is woken finds it.
        self.last.send_replace(seq);
    }

    /// Number of the last event; 0: there was none.
    pub fn last_seq(&self) -> u64 {
        *self.last.borrow()
    }

    /// Wakes at each event with the number of the last one.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// At most `limit` events after the one numbered `after`.
    pub fn since(&self, after: u64, limit: usize) -> Tail {
        let last = self.last_seq();
        if after >= last {
            return Tail::Events(Vec::new());
        }
        let newest = self.newest();
        if newest.front().is_none_or(|oldest| oldest.seq > after + 1) {
            return Tail::TooOld;
        }
        let seen = newest.partition_point(|event| event.seq <= after);
        Tail::Events(newest.range(seen..).take(limit).cloned().collect())
    }

    fn newest(&self) -> MutexGuard<'_, VecDeque<Arc<Event>>> {
        // Nothing panics while it is held.
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::process::record::tests::record;

    /// An event of its own process.
    pub(crate) fn event(seq: u64) -> Arc<Event> {
        let record = Arc::new(record(&format!("p{seq}"), seq));
        Arc::new(Event { seq, time: 1000 + seq, kind: Kind::Completed, record })
    }

    fn log(last: u64) -> EventLog {
        let log = EventLog::new(0, Vec::new());
        (1..=last).for_each(|seq| log.publish(event(seq)));
        log
    }

    fn numbers(tail: Tail) -> Vec<u64> {
        match tail {
            Tail::Events(events) => events.iter().map(|event| event.seq).collect(),
            Tail::TooOld => panic!("too old"),
        }
    }

    #[test]
    fn a_watcher_pulls_what_it_has_not_seen() {
        let log = log(5);
        assert_eq!(numbers(log.since(0, 2)), [1, 2]);
        assert_eq!(numbers(log.since(2, 10)), [3, 4, 5]);
        assert!(numbers(log.since(5, 10)).is_empty());
        assert_eq!(log.last_seq(), 5);
    }

    #[test]
    fn a_cursor_that_is_ahead_finds_nothing() {
        assert!(numbers(log(5).since(u64::MAX, 10)).is_empty());
    }

    #[test]
    fn what_is_no_longer_in_memory_is_the_stores() {
        let kept = KEPT as u64;
        let log = log(kept + 10);
        assert_eq!(log.since(9, 1), Tail::TooOld);
        assert_eq!(numbers(log.since(10, 1)), [11]);
        assert_eq!(numbers(log.since(10, usize::MAX)).len(), KEPT);
    }

    #[test]
    fn a_log_goes_on_after_what_was_loaded() {
        let log = EventLog::new(7, vec![event(6), event(7)]);
        assert_eq!(log.since(4, 9), Tail::TooOld);
        log.publish(event(8));
        assert_eq!(numbers(log.since(5, 9)), [6, 7, 8]);
    }

    #[test]
    fn without_a_tail_all_that_was_is_too_old() {
        let log = EventLog::new(7, Vec::new());
        assert_eq!(log.since(6, 1), Tail::TooOld);
        assert!(numbers(log.since(7, 1)).is_empty());
    }

    #[test]
    fn a_longer_tail_than_fits_loses_its_oldest() {
        let last = KEPT as u64 + 3;
        let log = EventLog::new(last, (1..=last).map(event).collect());
        assert_eq!(log.since(2, 1), Tail::TooOld);
        assert_eq!(numbers(log.since(3, usize::MAX)).len(), KEPT);
    }

    #[tokio::test]
    async fn a_subscriber_wakes_and_finds_the_event() {
        let log = Arc::new(EventLog::new(0, Vec::new()));
        let mut last = log.subscribe();
        let publisher = tokio::spawn({
            let log = Arc::clone(&log);
            async move { log.publish(event(1)) }
        });
        last.changed().await.unwrap();
        assert_eq!(numbers(log.since(0, 9)), [*last.borrow()]);
        publisher.await.unwrap();
    }
}
