//! Turns of callers: how much of one kind each has under way at a time.
//!
//! Owns a semaphore for each caller that has something under way or waiting. The turns of one caller
//! come in the order of asking, and no caller waits for another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

/// Signals to trees that the keeper is asked for by one caller at a time: SIGKILL waits for seconds where
/// it does not end a tree. A small part of the kills that the keeper takes.
pub(super) const MAX_TREE_SIGNALS_OF_CALLER: usize = 256;

/// The turns of all callers.
pub(super) struct CallerTurns {
    limit: usize,
    callers: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl CallerTurns {
    /// Each caller has so many turns at a time.
    pub(super) fn new(limit: usize) -> CallerTurns {
        CallerTurns { limit, callers: Mutex::default() }
    }

    /// The turns of one caller, which count as long as this or a permit of it exists.
    pub(super) fn for_caller(&self, caller: &str) -> Arc<Semaphore> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = callers.get(caller).and_then(Weak::upgrade) {
            return turns;
        }
        callers.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(self.limit));
        callers.insert(caller.to_owned(), Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_have_turns_of_their_own_until_none_is_used() {
        let turns = CallerTurns::new(2);
        let take = |caller: &str| turns.for_caller(caller).try_acquire_owned();
        let (first, second) = (take("a").unwrap(), take("a").unwrap());
        assert!(take("a").is_err() && take("b").is_ok());
        drop(first);
        let third = take("a").unwrap();
        assert!(take("a").is_err());
        drop((second, third));
        let _other = take("c").unwrap();
        assert_eq!(turns.callers.lock().unwrap().len(), 1);
    }
}
