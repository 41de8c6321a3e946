//! Counts open streams: of each caller, and of all.
//!
//! A stream counts from its headers on, before its request is complete, until its answer has ended or its
//! client has left.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::supervisor::{Bound, Error, Quotas, Reached};

/// The streams that are open. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenStreams {
    quotas: Quotas,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Debug, Default)]
struct Counts {
    all: u64,
    /// Those of callers who have some.
    callers: HashMap<String, u64>,
}

/// A stream that is open, until this is dropped.
#[derive(Debug)]
pub(super) struct StreamSlot {
    counts: Arc<Mutex<Counts>>,
    caller: String,
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenStreams {
    pub(super) fn new(quotas: Quotas) -> OpenStreams {
        OpenStreams { quotas, ..OpenStreams::default() }
    }

    /// A slot for one more stream of a caller.
    pub(super) fn enter(&self, caller: &str) -> Result<StreamSlot, Error> {
        let mut open = lock(&self.counts);
        let own = open.callers.get(caller).copied().unwrap_or(0);
        for (quota, count, of_all) in
            [(self.quotas.each, own, false), (self.quotas.all, open.all, true)]
        {
            if let Some(most) = quota.streams.filter(|most| count >= *most) {
                let reached = Reached::for_now(Bound::Streams, most, count, of_all);
                return Err(Error::TooManyStreams(reached));
            }
        }
        open.all += 1;
        *open.callers.entry(caller.to_owned()).or_default() += 1;
        Ok(StreamSlot { counts: Arc::clone(&self.counts), caller: caller.to_owned() })
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = lock(&self.counts);
        open.all -= 1;
        if let Some(count) = open.callers.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                open.callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::Quota;

    #[test]
    fn slot_is_free_again_when_its_stream_is_over() {
        let some = |most| Quota { streams: Some(most), ..Quota::default() };
        let streams = OpenStreams::new(Quotas { each: some(2), all: some(3) });
        let of_all = |result: Result<StreamSlot, Error>| match result {
            Err(Error::TooManyStreams(reached)) => reached.of_all,
            other => panic!("{other:?}"),
        };
        let first = streams.enter("a").unwrap();
        let _second = streams.enter("a").unwrap();
        assert!(!of_all(streams.enter("a")));
        let _third = streams.enter("b").unwrap();
        assert!(of_all(streams.enter("b")));
        drop(first);
        drop(streams.enter("b").unwrap());
        streams.enter("a").unwrap();
        assert_eq!(lock(&streams.counts).callers.len(), 2);
    }
}
