//! Who may run, and who waits for whom. Pure.
//!
//! Owns the named queues, the bound on all that run, and the bounds on what waits, of all callers and
//! of each. Those of one queue begin in the order of their coming; between queues the process that came
//! first begins first, where there is room. What is in no queue never waits: there is room for it or not.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::Error;
use super::quota::{Bound, Quotas, Reached};
use crate::process::Record;

/// Processes that may wait at a time, in all queues together, and bytes of their specs.
const MAX_WAITING: usize = 10_000;
const MAX_WAITING_BYTES: usize = 256 << 20;

/// The part of both that one caller may have: the bound divided by this.
pub(super) const CALLER_DIVISOR: usize = 4;

/// How many may run at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// In all; none: as many as the keeper can hold.
    pub all: Option<usize>,
    /// Of each queue; 1 of one that is not named here.
    pub queues: BTreeMap<String, usize>,
    /// Of each caller and of all, running or not.
    pub quotas: Quotas,
}

/// The queues.
#[derive(Default)]
pub(super) struct Queues {
    capacity: Capacity,
    running: usize,
    /// What waits in all queues together.
    waiting: Waiting,
    /// What waits of each caller.
    callers: HashMap<String, Waiting>,
    /// Those of which somebody runs or waits.
    lines: HashMap<String, Line>,
}

/// How much waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    processes: usize,
    bytes: usize,
}

impl Waiting {
    pub(super) fn add(&mut self, bytes: usize) {
        self.processes += 1;
        self.bytes += bytes;
    }

    pub(super) fn remove(&mut self, bytes: usize) {
        self.processes -= 1;
        self.bytes -= bytes;
    }

    /// Whether one more of this size may wait besides these; `divisor` is the part of the bounds.
    pub(super) fn check(&self, bytes: usize, divisor: usize) -> Result<(), Error> {
        let reached = |what, most: usize, used: usize| {
            Reached::for_now(what, most as u64, used as u64, divisor == 1)
        };
        let (most, most_bytes) = (MAX_WAITING / divisor, MAX_WAITING_BYTES / divisor);
        if self.processes >= most {
            return Err(Error::Quota(reached(Bound::QueuedProcesses, most, self.processes)));
        }
        let full = reached(Bound::QueuedBytes, most_bytes, self.bytes);
        if bytes > most_bytes {
            return Err(Error::Quota(Reached { retry: None, ..full }));
        }
        if self.bytes + bytes > most_bytes {
            return Err(Error::Quota(full));
        }
        Ok(())
    }
}

/// One queue.
#[derive(Default)]
struct Line {
    running: usize,
    /// By ticket.
    waiting: BTreeMap<u64, Waiter>,
    places: Places,
}

/// A process that waits.
pub(super) struct Waiter {
    id: Arc<str>,
    /// The caller that it counts for.
    caller: String,
    /// Memory that its spec takes.
    bytes: usize,
}

impl Waiter {
    pub(super) fn new(record: &Record) -> Waiter {
        let (id, caller) = (Arc::clone(&record.id), record.by.clone());
        Waiter { id, caller, bytes: record.spec.bytes() }
    }
}

/// The tickets of those who wait in a queue, in order.
#[derive(Clone, Default)]
struct Places(Arc<Mutex<VecDeque<u64>>>);

/// A place in a queue, for whoever wants to know how far it is.
#[derive(Clone)]
pub struct Place {
    /// Smaller ones came before.
    pub(super) ticket: u64,
    places: Places,
}

impl Place {
    /// Counted from 1.
    pub fn position(&self) -> u32 {
        let before = self.places.lock().partition_point(|waiting| *waiting < self.ticket);
        u32::try_from(before + 1).unwrap_or(u32::MAX)
    }
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    pub(super) fn new(capacity: Capacity) -> Queues {
        Queues { capacity, ..Queues::default() }
    }

    /// Why a caller's next process of this size may neither run nor wait in this queue; the empty
    /// one is none.
    pub(super) fn check(&self, caller: &str, queue: &str, bytes: usize) -> Result<(), Error> {
        if self.may_begin(queue) {
            return Ok(());
        }
        if queue.is_empty() {
            return Err(Error::TooManyProcesses);
        }
        let own = self.callers.get(caller).copied().unwrap_or_default();
        own.check(bytes, CALLER_DIVISOR)?;
        self.waiting.check(bytes, 1)
    }

    /// Whether one that comes now need not wait.
    pub(super) fn may_begin(&self, queue: &str) -> bool {
        let line = self.lines.get(queue);
        let idle = line.is_none_or(|line| line.waiting.is_empty() && self.is_open(queue, line));
        self.has_room() && (queue.is_empty() || idle)
    }

    /// One more runs.
    pub(super) fn begin(&mut self, queue: &str) {
        self.running += 1;
        if !queue.is_empty() {
            self.line(queue).running += 1;
        }
    }

    /// One that ran is over.
    pub(super) fn end(&mut self, queue: &str) {
        self.running = self.running.saturating_sub(1);
        if let Some(line) = self.lines.get_mut(queue) {
            line.running = line.running.saturating_sub(1);
        }
        self.tidy(queue);
    }

    /// One more waits.
    pub(super) fn wait(&mut self, queue: &str, ticket: u64, waiter: Waiter) -> Place {
        self.waiting.add(waiter.bytes);
        self.callers.entry(waiter.caller.clone()).or_default().add(waiter.bytes);
        let line = self.line(queue);
        line.waiting.insert(ticket, waiter);
        let mut places = line.places.lock();
        let at = places.partition_point(|waiting| *waiting < ticket);
        places.insert(at, ticket);
        drop(places);
        Place { ticket, places: line.places.clone() }
    }

    /// One waits no more.
    pub(super) fn leave(&mut self, queue: &str, ticket: u64) {
        let Some(line) = self.lines.get_mut(queue) else { return };
        if let Some(Waiter { id: _, caller, bytes }) = line.waiting.remove(&ticket) {
            self.waiting.remove(bytes);
            if let Entry::Occupied(mut own) = self.callers.entry(caller) {
                own.get_mut().remove(bytes);
                if own.get().processes == 0 {
                    own.remove();
                }
            }
            let mut places = line.places.lock();
            if let Ok(at) = places.binary_search(&ticket) {
                places.remove(at);
            }
        }
        self.tidy(queue);
    }

    /// Whose turn it is, if there is room: of all who could begin, the one who came first.
    pub(super) fn next(&self) -> Option<Arc<str>> {
        if !self.has_room() || self.waiting.processes == 0 {
            return None;
        }
        let open = self.lines.iter().filter(|(queue, line)| self.is_open(queue, line));
        let first = open.filter_map(|(_, line)| line.waiting.first_key_value());
        first.min_by_key(|(ticket, _)| **ticket).map(|(_, waiter)| Arc::clone(&waiter.id))
    }

    fn has_room(&self) -> bool {
        self.capacity.all.is_none_or(|all| self.running < all)
    }

    fn is_open(&self, queue: &str, line: &Line) -> bool {
        line.running < self.capacity.queues.get(queue).copied().unwrap_or(1)
    }

    fn line(&mut self, queue: &str) -> &mut Line {
        self.lines.entry(queue.to_owned()).or_default()
    }

    /// A queue that nobody is in is none.
    fn tidy(&mut self, queue: &str) {
        let empty = |line: &Line| line.running == 0 && line.waiting.is_empty();
        if self.lines.get(queue).is_some_and(empty) {
            self.lines.remove(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waiter(caller: &str, id: &str, bytes: usize) -> Waiter {
        Waiter { id: id.into(), caller: caller.into(), bytes }
    }

    fn refused(checked: Result<(), Error>) -> (Bound, bool, bool) {
        match checked.unwrap_err() {
            Error::Quota(reached) => (reached.what, reached.of_all, reached.retry.is_some()),
            other => panic!("{other}"),
        }
    }

    fn capacity(all: Option<usize>, queues: &[(&str, usize)]) -> Capacity {
        let queues = queues.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
        Capacity { all, queues, ..Capacity::default() }
    }

    #[test]
    fn a_queue_has_room_for_one_unless_it_is_told_otherwise() {
        let mut queues = Queues::new(capacity(None, &[("two", 2)]));
        for (queue, room) in [("one", 1), ("two", 2)] {
            for _ in 0..room {
                assert!(queues.may_begin(queue));
                queues.begin(queue);
            }
            assert!(!queues.may_begin(queue) && queues.check("", queue, 1).is_ok());
        }
        assert!(queues.may_begin(""), "what is in no queue does not wait for one");
    }

    #[test]
    fn the_bound_on_all_holds_for_queues_too_and_refuses_what_is_in_none() {
        let mut queues = Queues::new(capacity(Some(1), &[]));
        queues.begin("");
        assert_eq!(queues.check("", "", 1), Err(Error::TooManyProcesses));
        assert!(queues.check("", "q", 1).is_ok() && !queues.may_begin("q"));
        let _ = queues.wait("q", 1, waiter("", "a", 1));
        assert_eq!(queues.next(), None);
        queues.end("");
        assert_eq!(queues.next(), Some("a".into()));
    }

    #[test]
    fn waiting_processes_are_bounded_for_each_caller_and_for_all() {
        let mut queues = Queues::default();
        queues.begin("q");
        let mut ticket = 0;
        for caller in ["a", "b", "c", "d"] {
            for _ in 0..MAX_WAITING / CALLER_DIVISOR {
                assert_eq!(queues.check(caller, "q", 1), Ok(()));
                ticket += 1;
                let _ = queues.wait("q", ticket, waiter(caller, "p", 1));
            }
            let reached = (Bound::QueuedProcesses, false, true);
            assert_eq!(refused(queues.check(caller, "q", 1)), reached);
            assert_eq!(queues.check(caller, "other", 1), Ok(()), "nothing runs in that queue");
        }
        assert_eq!(refused(queues.check("e", "q", 1)), (Bound::QueuedProcesses, true, true));
        queues.leave("q", 1);
        assert_eq!(queues.check("a", "q", 1), Ok(()));
        (2..=ticket).for_each(|ticket| queues.leave("q", ticket));
        assert!(queues.callers.is_empty() && queues.waiting == Waiting::default());
    }

    #[test]
    fn waiting_specs_are_bounded_for_each_caller_and_for_all() {
        let share = MAX_WAITING_BYTES / CALLER_DIVISOR;
        let mut queues = Queues::default();
        queues.begin("q");
        let alone = refused(queues.check("a", "q", share + 1));
        assert_eq!(alone, (Bound::QueuedBytes, false, false));
        for (ticket, caller) in (1..).zip(["a", "b", "c", "d"]) {
            assert_eq!(queues.check(caller, "q", share), Ok(()));
            let _ = queues.wait("q", ticket, waiter(caller, "p", share));
            let reached = (Bound::QueuedBytes, false, true);
            assert_eq!(refused(queues.check(caller, "q", 1)), reached);
        }
        assert_eq!(refused(queues.check("e", "q", 1)), (Bound::QueuedBytes, true, true));
        assert_eq!(
            queues.check("e", "other", share),
            Ok(()),
            "a process that begins does not wait"
        );
    }

    #[test]
    fn places_move_up() {
        let mut queues = Queues::default();
        queues.begin("q");
        let places: Vec<_> =
            (1..=3).map(|t| queues.wait("q", t, waiter("", &t.to_string(), 1))).collect();
        queues.leave("q", 2);
        assert_eq!((places[0].position(), places[2].position()), (1, 2));
        assert!(!queues.may_begin("q"));
    }

    #[derive(Clone, Debug)]
    enum Move {
        Come(usize),
        Finish(usize),
        GiveUp(usize),
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            (0..3usize).prop_map(Move::Come),
            (0..9usize).prop_map(Move::Finish),
            (0..9usize).prop_map(Move::GiveUp),
        ];
        proptest::collection::vec(one, 0..80)
    }

    proptest! {
        #[test]
        fn everyone_begins_in_order_and_as_soon_as_there_is_room(moves in moves(), all in 1..4usize) {
            const NAMES: [&str; 3] = ["a", "b", "c"];
            let sizes = [1, 2, 1];
            let mut queues = Queues::new(capacity(Some(all), &[("b", 2)]));
            let (mut running, mut waiting) = (Vec::<usize>::new(), Vec::<(u64, usize)>::new());
            let mut ticket = 0;
            for next in moves {
                match next {
                    Move::Come(queue) => {
                        ticket += 1;
                        if queues.may_begin(NAMES[queue]) {
                            prop_assert!(waiting.iter().all(|(_, other)| *other != queue));
                            queues.begin(NAMES[queue]);
                            running.push(queue);
                        } else {
                            let waiter = waiter("x", &ticket.to_string(), 1);
                            let _ = queues.wait(NAMES[queue], ticket, waiter);
                            waiting.push((ticket, queue));
                        }
                    }
                    Move::Finish(at) if at < running.len() => queues.end(NAMES[running.remove(at)]),
                    Move::GiveUp(at) if at < waiting.len() => {
                        let (ticket, queue) = waiting.remove(at);
                        queues.leave(NAMES[queue], ticket);
                    }
                    Move::Finish(_) | Move::GiveUp(_) => {}
                }
                while let Some(id) = queues.next() {
                    let ticket: u64 = id.parse().unwrap();
                    let at = waiting.iter().position(|(known, _)| *known == ticket).unwrap();
                    let (_, queue) = waiting.remove(at);
                    prop_assert!(waiting.iter().all(|(later, other)| *other != queue || *later > ticket));
                    queues.leave(NAMES[queue], ticket);
                    queues.begin(NAMES[queue]);
                    running.push(queue);
                }
                let of = |queue| running.iter().filter(|other| **other == queue).count();
                prop_assert!(running.len() <= all && (0..3).all(|queue| of(queue) <= sizes[queue]));
                let could = |queue: usize| running.len() < all && of(queue) < sizes[queue];
                prop_assert!(waiting.iter().all(|(_, queue)| !could(*queue)), "someone waits for nothing");
                let counted = Waiting { processes: waiting.len(), bytes: waiting.len() };
                prop_assert_eq!(queues.waiting, counted);
                let own = queues.callers.get("x").copied().unwrap_or_default();
                prop_assert_eq!(own, counted);
            }
        }
    }
}
