//! Who may run, and who waits for whom. Pure.
//!
//! Owns the named queues and the bound on all that run. Those of one queue begin in the order of
//! their coming; between queues whoever came first goes first, where there is room. What is in no
//! queue never waits: there is room for it or not.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::quota::Quotas;

/// Processes that may wait at a time, in all queues together, and bytes of their specs.
const MOST_WAITING: usize = 10_000;
const MOST_BYTES: usize = 256 << 20;

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
    waiting: usize,
    bytes: usize,
    /// Those of which somebody runs or waits.
    lines: HashMap<String, Line>,
}

/// One queue.
#[derive(Default)]
struct Line {
    running: usize,
    /// By ticket: who, and how large.
    waiting: BTreeMap<u64, (Arc<str>, usize)>,
    places: Places,
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

    /// Whether one more of this size may run, or wait, in this queue; the empty one is none.
    pub(super) fn takes(&self, queue: &str, bytes: usize) -> bool {
        let may_wait = self.waiting < MOST_WAITING && self.bytes + bytes <= MOST_BYTES;
        self.may_begin(queue) || !queue.is_empty() && may_wait
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
    pub(super) fn wait(&mut self, queue: &str, ticket: u64, id: &Arc<str>, bytes: usize) -> Place {
        self.waiting += 1;
        self.bytes += bytes;
        let line = self.line(queue);
        line.waiting.insert(ticket, (Arc::clone(id), bytes));
        let mut places = line.places.lock();
        let at = places.partition_point(|waiting| *waiting < ticket);
        places.insert(at, ticket);
        drop(places);
        Place { ticket, places: line.places.clone() }
    }

    /// One waits no more.
    pub(super) fn leave(&mut self, queue: &str, ticket: u64) {
        let Some(line) = self.lines.get_mut(queue) else { return };
        if let Some((_, bytes)) = line.waiting.remove(&ticket) {
            self.waiting -= 1;
            self.bytes -= bytes;
            let mut places = line.places.lock();
            if let Ok(at) = places.binary_search(&ticket) {
                places.remove(at);
            }
        }
        self.tidy(queue);
    }

    /// Whose turn it is, if there is room: of all who could begin, the one who came first.
    pub(super) fn next(&self) -> Option<Arc<str>> {
        if !self.has_room() || self.waiting == 0 {
            return None;
        }
        let open = self.lines.iter().filter(|(queue, line)| self.is_open(queue, line));
        let first = open.filter_map(|(_, line)| line.waiting.first_key_value());
        first.min_by_key(|(ticket, _)| **ticket).map(|(_, (id, _))| Arc::clone(id))
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
            assert!(!queues.may_begin(queue) && queues.takes(queue, 1));
        }
        assert!(queues.may_begin(""), "what is in no queue does not wait for one");
    }

    #[test]
    fn the_bound_on_all_holds_for_queues_too_and_refuses_what_is_in_none() {
        let mut queues = Queues::new(capacity(Some(1), &[]));
        queues.begin("");
        assert!(!queues.takes("", 1) && queues.takes("q", 1) && !queues.may_begin("q"));
        let _ = queues.wait("q", 1, &"a".into(), 1);
        assert_eq!(queues.next(), None);
        queues.end("");
        assert_eq!(queues.next(), Some("a".into()));
    }

    #[test]
    fn what_waits_is_bounded_by_number_and_by_size() {
        let mut queues = Queues::default();
        queues.begin("q");
        let _ = queues.wait("q", 1, &"a".into(), MOST_BYTES - 1);
        assert!(queues.takes("q", 1) && !queues.takes("q", 2));
        assert!(queues.takes("other", 2), "one that need not wait takes no room");
        queues.leave("q", 1);
        for ticket in 1..=MOST_WAITING as u64 {
            assert!(queues.takes("q", 1));
            let _ = queues.wait("q", ticket, &"a".into(), 1);
        }
        assert!(!queues.takes("q", 1));
    }

    #[test]
    fn places_move_up() {
        let mut queues = Queues::default();
        queues.begin("q");
        let places: Vec<_> =
            (1..=3).map(|t| queues.wait("q", t, &format!("{t}").into(), 1)).collect();
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
                            let _ = queues.wait(NAMES[queue], ticket, &ticket.to_string().into(), 1);
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
                prop_assert_eq!((queues.waiting, queues.bytes), (waiting.len(), waiting.len()));
            }
        }
    }
}
