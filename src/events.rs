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

/// How many events are in memory at most.
pub const KEPT: usize = 1024;

/// Memory that they take at most.
pub const MAX_MEMORY_BYTES: usize = 16 << 20;

/// Memory that the events of one answer to a cursor take at most, unless it is one event.
pub const MAX_BATCH_BYTES: usize = 64 << 10;

impl Event {
    /// About how much memory it takes. Its record may be shared, and counts for each event.
    pub fn bytes(&self) -> usize {
        size_of::<Event>() + self.record.bytes()
    }
}

/// The newest events. Published by one, after their commit; read by many.
pub struct EventLog {
    newest: Mutex<Newest>,
    last: watch::Sender<u64>,
}

/// The events in memory, without holes, oldest first.
#[derive(Default)]
struct Newest {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
}

impl Newest {
    fn push(&mut self, event: Arc<Event>) {
        self.bytes += event.bytes();
        self.events.push_back(event);
        while self.events.len() > KEPT || self.bytes > MAX_MEMORY_BYTES {
            let Some(oldest) = self.events.pop_front() else { return };
            self.bytes -= oldest.bytes();
        }
    }
}

/// Events after a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The next ones, oldest first; none: there are no more yet.
    Events(Vec<Arc<Event>>),
    /// The next one is no longer in memory: ask the store.
    TooOld,
}

/// Events that are taken together: one, and as many more as [`MAX_BATCH_BYTES`] allow.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: usize,
}

impl Batch {
    /// Whether the next event belongs to it.
    pub(crate) fn takes(&mut self, event: &Event) -> bool {
        let is_first = self.bytes == 0;
        self.bytes += event.bytes();
        is_first || self.bytes <= MAX_BATCH_BYTES
    }
}

impl EventLog {
    /// A log that goes on after the event `last_seq`; `tail` has the newest ones up to it.
    pub fn new(last_seq: u64, tail: Vec<Arc<Event>>) -> EventLog {
        let mut newest = Newest::default();
        tail.into_iter().for_each(|event| newest.push(event));
        EventLog { newest: Mutex::new(newest), last: watch::Sender::new(last_seq) }
    }

    /// Tells all watchers of the next event.
    pub fn publish(&self, event: Arc<Event>) {
        let seq = event.seq;
        self.newest().push(event);
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

    /// At most `limit` events after the one numbered `after`, or fewer if they are large.
    pub fn since(&self, after: u64, limit: usize) -> Tail {
        let last = self.last_seq();
        if after >= last {
            return Tail::Events(Vec::new());
        }
        let newest = &self.newest().events;
        if newest.front().is_none_or(|oldest| oldest.seq > after + 1) {
            return Tail::TooOld;
        }
        let seen = newest.partition_point(|event| event.seq <= after);
        let next = newest.range(seen..).take(limit);
        let mut batch = Batch::default();
        Tail::Events(next.take_while(|event| batch.takes(event)).cloned().collect())
    }

    fn newest(&self) -> MutexGuard<'_, Newest> {
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
        assert_eq!(log.newest().events.len(), KEPT);
    }

    #[test]
    fn a_log_goes_on_after_what_was_loaded() {
        let log = EventLog::new(7, vec![event(6), event(7)]);
        assert_eq!(log.since(4, 9), Tail::TooOld);
        log.publish(event(8));
        assert_eq!(numbers(log.since(5, 9)), [6, 7, 8]);
    }

    /// An event that takes about so much memory.
    pub(crate) fn large_event(seq: u64, bytes: usize) -> Arc<Event> {
        let mut event = Event::clone(&event(seq));
        let record = Arc::make_mut(&mut event.record);
        Arc::make_mut(&mut record.spec).program = crate::process::Program::Shell("x".repeat(bytes));
        Arc::new(event)
    }

    #[test]
    fn memory_of_events_is_bounded_by_bytes() {
        const MEBIBYTE: usize = 1 << 20;
        let log = EventLog::new(20, (1..=20).map(|seq| large_event(seq, MEBIBYTE)).collect());
        let kept = |log: &EventLog| log.newest().events.iter().map(|event| event.bytes()).sum();
        let bytes: usize = kept(&log);
        assert!(bytes <= MAX_MEMORY_BYTES && bytes == log.newest().bytes, "{bytes}");
        assert_eq!(log.since(4, 1), Tail::TooOld);
        assert_eq!(numbers(log.since(19, 1)), [20]);
        log.publish(large_event(21, 10 * MEBIBYTE));
        let bytes: usize = kept(&log);
        assert!(bytes <= MAX_MEMORY_BYTES && bytes == log.newest().bytes, "{bytes}");
        log.publish(large_event(22, MAX_MEMORY_BYTES));
        assert_eq!((log.since(21, 1), log.newest().bytes), (Tail::TooOld, 0));
        log.publish(event(23));
        assert_eq!(numbers(log.since(22, 1)), [23]);
    }

    #[test]
    fn large_events_come_one_at_a_time() {
        let tail = vec![large_event(1, MAX_BATCH_BYTES), large_event(2, 9), large_event(3, 9)];
        let log = EventLog::new(3, tail);
        assert_eq!(numbers(log.since(0, 9)), [1]);
        assert_eq!(numbers(log.since(1, 9)), [2, 3]);
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
        assert_eq!(numbers(log.since(3, 1)), [4]);
        assert_eq!(log.newest().events.len(), KEPT);
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
