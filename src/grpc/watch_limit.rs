//! Bounds the streams of one caller that look at each event.
//!
//! Each event costs the server as much as there are such streams: every Watch, and every Sleep that an
//! event may end. They count for the bound of all streams as well (`server::call_budget`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::supervisor::{Bound, Error, Reached};

/// Streams of one caller that look at each event.
const MAX_WATCHES_PER_CALLER: u64 = 256;

type Counts = HashMap<String, u64>;

/// How many such streams each caller has.
#[derive(Debug, Default)]
pub(super) struct WatchLimit(Arc<Mutex<Counts>>);

/// A stream that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct WatchSlot {
    counts: Arc<Mutex<Counts>>,
    caller: String,
}

impl WatchLimit {
    /// A slot for one more stream of a caller.
    pub(super) fn enter(&self, caller: &str) -> Result<WatchSlot, Error> {
        let mut counts = lock(&self.0);
        let count = counts.entry(caller.to_owned()).or_default();
        if *count >= MAX_WATCHES_PER_CALLER {
            let most = MAX_WATCHES_PER_CALLER;
            let reached = Reached::for_now(Bound::Watches, most, *count, false);
            return Err(Error::TooManyStreams(reached));
        }
        *count += 1;
        Ok(WatchSlot { counts: Arc::clone(&self.0), caller: caller.to_owned() })
    }
}

impl Drop for WatchSlot {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.caller);
            }
        }
    }
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}
