//! How many launches the keeper is asked for at a time, of each caller and of all. Pure.
//!
//! Owns the launches that wait in the server until then. An exec can take as long as the owner of a
//! program wants, up to the keeper's deadline, so that launches of one caller must not take all helpers
//! of the keeper. Launches of one caller are sent in the order of their coming, and callers take turns.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::error::Error;
use super::queue::{CALLER_DIVISOR, Waiting};
use crate::process::Record;

/// Launches of one caller that wait for the keeper's answer, at most.
pub(super) const MAX_OF_CALLER: usize = 32;

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

/// A launch that has waited and begins.
pub(super) struct NextSpawn {
    pub(super) id: Arc<str>,
    pub(super) caller: String,
}

/// The launches of one caller.
#[derive(Default)]
struct CallerSpawns {
    under_way: usize,
    waiting: Waiting,
    /// By ticket, with the memory that the spec takes.
    queue: BTreeMap<u64, (Arc<str>, usize)>,
}

impl CallerSpawns {
    fn may_begin(&self) -> bool {
        self.under_way < MAX_OF_CALLER
    }
}

impl SpawnLimit {
    /// Why one more launch of a caller may neither begin nor wait.
    pub(super) fn check(&self, caller: &str, bytes: usize) -> Result<(), Error> {
        if self.may_begin(caller) {
            return Ok(());
        }
        let own = self.callers.get(caller).map(|own| own.waiting).unwrap_or_default();
        own.check(bytes, CALLER_DIVISOR)?;
        self.waiting.check(bytes, 1)
    }

    fn may_begin(&self, caller: &str) -> bool {
        let own = self.callers.get(caller);
        let first = own.is_none_or(|own| own.queue.is_empty() && own.may_begin());
        self.under_way < MAX_OF_ALL && first
    }

    /// Begins a launch; or lets it wait, and returns its ticket.
    pub(super) fn begin_or_wait(&mut self, record: &Record) -> Option<u64> {
        let begins = self.may_begin(&record.by);
        let own = self.callers.entry(record.by.clone()).or_default();
        if begins {
            own.under_way += 1;
            self.under_way += 1;
            return None;
        }
        if own.queue.is_empty() {
            self.turns.push_back(record.by.clone());
        }
        let (ticket, bytes) = (self.next_ticket, record.spec.bytes());
        self.next_ticket += 1;
        own.waiting.add(bytes);
        self.waiting.add(bytes);
        own.queue.insert(ticket, (Arc::clone(&record.id), bytes));
        Some(ticket)
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
    pub(super) fn end(&mut self, caller: &str) {
        if let Some(own) = self.callers.get_mut(caller) {
            own.under_way = own.under_way.saturating_sub(1);
            self.under_way = self.under_way.saturating_sub(1);
        }
        self.tidy(caller);
    }

    /// Begins the next waiting launch, if one may begin.
    pub(super) fn next(&mut self) -> Option<NextSpawn> {
        if self.under_way >= MAX_OF_ALL {
            return None;
        }
        let can = |caller: &String| self.callers.get(caller).is_some_and(CallerSpawns::may_begin);
        let caller = self.turns.iter().position(can).and_then(|at| self.turns.remove(at))?;
        let own = self.callers.get_mut(&caller)?;
        let (_, (id, bytes)) = own.queue.pop_first()?;
        own.waiting.remove(bytes);
        self.waiting.remove(bytes);
        own.under_way += 1;
        self.under_way += 1;
        if !own.queue.is_empty() {
            self.turns.push_back(caller.clone());
        }
        Some(NextSpawn { id, caller })
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
        limit.next().map(|next| next.id)
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
            limit.end("a");
            assert_eq!(next(&mut limit).as_deref(), Some(expected.to_string().as_str()));
            assert_eq!(next(&mut limit), None);
        }
        (0..MAX_OF_CALLER).for_each(|_| limit.end("a"));
        limit.end("b");
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
            limit.end("filler-0");
            sent.extend(next(&mut limit));
        }
        let sent: Vec<&str> = sent.iter().map(|id| &**id).collect();
        assert_eq!(sent, ["a1", "b1", "c1", "a2", "a3"]);
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
