//! How many launches the keeper is asked for at a time, of each caller and of all. Pure.
//!
//! Owns the launches that wait in the server until then. An exec can take as long as the owner of a
//! program wants, up to the keeper's deadline, so that launches of one caller must not take all helpers
//! of the keeper. Launches of one caller are sent in the order of their coming, and callers take turns.
//! An attempt of a readiness command is a launch as well.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::error::Error;
use super::queue::{CALLER_DIVISOR, Waiting};
use crate::process::Record;

/// Launches of one caller that wait for the keeper's answer, at most.
pub(super) const MAX_OF_CALLER: usize = 32;

/// Bytes of these launches, at most, but for a single one that is larger: what takes the keeper a few
/// milliseconds.
const MAX_BYTES_OF_CALLER: usize = 1 << 20;

/// Launches of all callers that wait for the keeper's answer, at most: fewer than the keeper queues
/// before it reads no more requests.
pub(super) const MAX_OF_ALL: usize = 512;

/// The launches under way and those that wait.
#[derive(Default)]
pub(super) struct SpawnLimit {
    /// The callers that have launches here.
    callers: HashMap<String, CallerSpawns>,
    /// The callers that have waiting launches; the first one has the next turn.
    turns: VecDeque<String>,
    under_way: usize,
    waiting: Waiting,
    next_ticket: u64,
}

/// What waits for its launch.
pub(super) enum Pending {
    /// A process, by its id.
    Process(Arc<str>),
    /// An attempt of a readiness command, which learns by this that it may begin.
    Attempt(oneshot::Sender<()>),
}

/// A launch that has waited and begins.
pub(super) struct NextSpawn {
    pub(super) pending: Pending,
    pub(super) caller: String,
    pub(super) bytes: usize,
}

/// The launches of one caller.
#[derive(Default)]
struct CallerSpawns {
    under_way: usize,
    bytes_under_way: usize,
    waiting: Waiting,
    /// By ticket, with the memory that the spec takes.
    queue: BTreeMap<u64, (Pending, usize)>,
}

impl CallerSpawns {
    fn may_begin(&self, bytes: usize) -> bool {
        let fits = self.bytes_under_way.saturating_add(bytes) <= MAX_BYTES_OF_CALLER;
        self.under_way == 0 || self.under_way < MAX_OF_CALLER && fits
    }

    fn may_begin_next(&self) -> bool {
        self.queue.first_key_value().is_some_and(|(_, (_, bytes))| self.may_begin(*bytes))
    }
}

impl SpawnLimit {
    /// Why one more launch of a caller may neither begin nor wait.
    pub(super) fn check(&self, caller: &str, bytes: usize) -> Result<(), Error> {
        if self.may_begin(caller, bytes) {
            return Ok(());
        }
        let own = self.callers.get(caller).map(|own| own.waiting).unwrap_or_default();
        own.check(bytes, CALLER_DIVISOR)?;
        self.waiting.check(bytes, 1)
    }

    fn may_begin(&self, caller: &str, bytes: usize) -> bool {
        let own = self.callers.get(caller);
        let first = own.is_none_or(|own| own.queue.is_empty() && own.may_begin(bytes));
        self.under_way < MAX_OF_ALL && first
    }

    /// Begins the launch of a process; or lets it wait, and returns its ticket.
    pub(super) fn begin_or_wait(&mut self, record: &Record) -> Option<u64> {
        let bytes = record.spec.bytes();
        if self.begin(&record.by, bytes) {
            return None;
        }
        let pending = Pending::Process(Arc::clone(&record.id));
        Some(self.wait(&record.by, pending, bytes))
    }

    /// Begins an attempt of a readiness command, and returns it; or lets it wait.
    pub(super) fn begin_attempt_or_wait(
        &mut self,
        caller: &str,
        bytes: usize,
        attempt: oneshot::Sender<()>,
    ) -> Option<oneshot::Sender<()>> {
        if self.begin(caller, bytes) {
            return Some(attempt);
        }
        self.wait(caller, Pending::Attempt(attempt), bytes);
        None
    }

    /// False: it is not the turn of this caller.
    fn begin(&mut self, caller: &str, bytes: usize) -> bool {
        let begins = self.may_begin(caller, bytes);
        if begins {
            let own = self.callers.entry(caller.to_owned()).or_default();
            own.under_way += 1;
            own.bytes_under_way += bytes;
            self.under_way += 1;
        }
        begins
    }

    fn wait(&mut self, caller: &str, pending: Pending, bytes: usize) -> u64 {
        let own = self.callers.entry(caller.to_owned()).or_default();
        if own.queue.is_empty() {
            self.turns.push_back(caller.to_owned());
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        own.waiting.add(bytes);
        self.waiting.add(bytes);
        own.queue.insert(ticket, (pending, bytes));
        ticket
    }

    /// A launch that waits is not to begin.
    pub(super) fn withdraw(&mut self, caller: &str, ticket: u64) {
        let Some(own) = self.callers.get_mut(caller) else { return };
        if let Some((_, bytes)) = own.queue.remove(&ticket) {
            own.waiting.remove(bytes);
            self.waiting.remove(bytes);
        }
        if own.queue.is_empty() {
            self.turns.retain(|turn| turn != caller);
        }
        self.tidy(caller);
    }

    /// A launch under way was answered, or was not sent.
    pub(super) fn end(&mut self, caller: &str, bytes: usize) {
        if let Some(own) = self.callers.get_mut(caller) {
            own.under_way = own.under_way.saturating_sub(1);
            own.bytes_under_way = own.bytes_under_way.saturating_sub(bytes);
            self.under_way = self.under_way.saturating_sub(1);
        }
        self.tidy(caller);
    }

    /// Begins the next waiting launch, if one may begin.
    pub(super) fn next(&mut self) -> Option<NextSpawn> {
        if self.under_way >= MAX_OF_ALL {
            return None;
        }
        let can =
            |caller: &String| self.callers.get(caller).is_some_and(CallerSpawns::may_begin_next);
        let caller = self.turns.iter().position(can).and_then(|at| self.turns.remove(at))?;
        let own = self.callers.get_mut(&caller)?;
        let (_, (pending, bytes)) = own.queue.pop_first()?;
        own.waiting.remove(bytes);
        self.waiting.remove(bytes);
        own.under_way += 1;
        own.bytes_under_way += bytes;
        self.under_way += 1;
        if !own.queue.is_empty() {
            self.turns.push_back(caller.clone());
        }
        Some(NextSpawn { pending, caller, bytes })
    }

    fn tidy(&mut self, caller: &str) {
        if let Entry::Occupied(own) = self.callers.entry(caller.to_owned())
            && own.get().under_way == 0
            && own.get().queue.is_empty()
        {
            own.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::record::tests::record;

    fn begin(limit: &mut SpawnLimit, caller: &str, id: &str) -> Option<u64> {
        limit.begin_or_wait(&Record { by: caller.into(), ..record(id, 1) })
    }

    fn next(limit: &mut SpawnLimit) -> Option<Arc<str>> {
        limit.next().map(|next| match next.pending {
            Pending::Process(id) => id,
            Pending::Attempt(_) => "attempt".into(),
        })
    }

    fn end(limit: &mut SpawnLimit, caller: &str) {
        limit.end(caller, record("x", 1).spec.bytes());
    }

    /// Begins launches for as many callers as fill the bound of all.
    fn fill(limit: &mut SpawnLimit) {
        for n in 0..MAX_OF_ALL {
            assert_eq!(begin(limit, &format!("filler-{}", n / MAX_OF_CALLER), "x"), None);
        }
    }

    #[test]
    fn launches_beyond_the_bound_of_a_caller_wait_in_order() {
        let mut limit = SpawnLimit::default();
        let tickets = (0..MAX_OF_CALLER + 3).map(|n| begin(&mut limit, "a", &n.to_string()));
        assert_eq!(tickets.flatten().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(begin(&mut limit, "b", "other"), None);
        assert_eq!(next(&mut limit), None);
        limit.withdraw("a", 1);
        for expected in [MAX_OF_CALLER, MAX_OF_CALLER + 2] {
            end(&mut limit, "a");
            assert_eq!(next(&mut limit).as_deref(), Some(expected.to_string().as_str()));
            assert_eq!(next(&mut limit), None);
        }
        (0..MAX_OF_CALLER).for_each(|_| end(&mut limit, "a"));
        end(&mut limit, "b");
        assert!(limit.callers.is_empty() && limit.turns.is_empty());
        assert_eq!((limit.under_way, limit.waiting), (0, Waiting::default()));
    }

    #[test]
    fn callers_take_turns_where_the_bound_of_all_is_reached() {
        let mut limit = SpawnLimit::default();
        fill(&mut limit);
        for (caller, id) in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")] {
            assert!(begin(&mut limit, caller, id).is_some());
        }
        let mut sent = Vec::new();
        for _ in 0..5 {
            assert_eq!(next(&mut limit), None);
            end(&mut limit, "filler-0");
            sent.extend(next(&mut limit));
        }
        let sent: Vec<&str> = sent.iter().map(|id| &**id).collect();
        assert_eq!(sent, ["a1", "b1", "c1", "a2", "a3"]);
    }

    #[test]
    fn attempts_of_readiness_commands_are_launches_of_their_caller() {
        let mut limit = SpawnLimit::default();
        let attempt = |limit: &mut SpawnLimit| {
            limit.begin_attempt_or_wait("a", 1, oneshot::channel().0).is_some()
        };
        assert!((0..MAX_OF_CALLER).all(|_| attempt(&mut limit)));
        assert!(!attempt(&mut limit) && begin(&mut limit, "a", "later").is_some());
        assert_eq!(begin(&mut limit, "b", "other"), None);
        for expected in ["attempt", "later"] {
            limit.end("a", 1);
            assert_eq!(next(&mut limit).as_deref(), Some(expected));
        }
    }

    #[test]
    fn large_launches_of_a_caller_begin_one_at_a_time() {
        let mut limit = SpawnLimit::default();
        let attempt = |limit: &mut SpawnLimit, bytes| {
            limit.begin_attempt_or_wait("a", bytes, oneshot::channel().0).is_some()
        };
        assert!(attempt(&mut limit, 2 * MAX_BYTES_OF_CALLER) && !attempt(&mut limit, 1));
        assert!(!attempt(&mut limit, MAX_BYTES_OF_CALLER));
        assert_eq!(begin(&mut limit, "b", "other"), None);
        limit.end("a", 2 * MAX_BYTES_OF_CALLER);
        assert!(limit.next().is_some_and(|next| next.bytes == 1));
        assert!(limit.next().is_none());
        limit.end("a", 1);
        assert!(limit.next().is_some_and(|next| next.bytes == MAX_BYTES_OF_CALLER));
        limit.end("a", MAX_BYTES_OF_CALLER);
        assert!(!limit.callers.contains_key("a"));
    }

    #[test]
    fn only_so_many_launches_of_a_caller_wait() {
        let mut limit = SpawnLimit::default();
        fill(&mut limit);
        while limit.check("a", 1).is_ok() {
            assert!(begin(&mut limit, "a", "x").is_some());
        }
        assert_eq!(limit.callers["a"].queue.len(), 10_000 / CALLER_DIVISOR);
        assert!(limit.check("b", 1).is_ok());
    }
}
