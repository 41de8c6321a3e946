//! Turns in which structured outputs are recorded.
//!
//! Owns how many bytes of them wait for their commit, which the calls of all others share. A record is written
//! with its output whenever it changes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::caller_turns::CallerTurns;
use crate::process::structured::MAX_BYTES;

/// Bytes of a permit.
const UNIT: usize = 1 << 10;

/// Permits that the largest output needs.
const MAX_UNITS: usize = MAX_BYTES / UNIT + 1;

/// The largest outputs that are read and recorded at a time, of one caller and of all: to parse one may take
/// some tens of megabytes. While one is read, others that are small can be recorded.
const MAX_OUTPUTS_OF_CALLER: usize = 2;
const MAX_OUTPUTS: usize = 4;

/// Bytes of an output that is recorded again without a turn.
const SMALL_OUTPUT: usize = 4 << 10;

/// The turns of all callers.
pub(super) struct OutputTurns {
    callers: CallerTurns,
    all: Arc<Semaphore>,
}

/// The turns of one caller.
pub(super) struct CallerOutputTurns {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// A turn, until what was recorded in it is committed and this is dropped.
pub(super) struct OutputTurn {
    permits: Vec<OwnedSemaphorePermit>,
}

impl OutputTurns {
    pub(super) fn new() -> OutputTurns {
        let all = Arc::new(Semaphore::new(MAX_OUTPUTS * MAX_UNITS));
        OutputTurns { callers: CallerTurns::new(MAX_OUTPUTS_OF_CALLER * MAX_UNITS), all }
    }

    pub(super) fn for_caller(&self, caller: &str) -> CallerOutputTurns {
        CallerOutputTurns { own: self.callers.for_caller(caller), all: Arc::clone(&self.all) }
    }
}

impl CallerOutputTurns {
    /// A turn for an output of any size.
    pub(super) async fn next(self) -> OutputTurn {
        let mut permits = Vec::new();
        // The caller's own first: those of one caller must not take the turns of all.
        for turns in [self.own, self.all] {
            permits.extend(turns.acquire_many_owned(MAX_UNITS as u32).await.ok());
        }
        OutputTurn { permits }
    }

    /// A turn for an output of so many bytes, if it needs one.
    pub(super) async fn next_for(self, bytes: usize) -> Option<OutputTurn> {
        if !needs_turn(bytes) {
            return None;
        }
        let mut turn = self.next().await;
        turn.shrink(bytes);
        Some(turn)
    }
}

impl OutputTurn {
    /// Gives back what an output of so many bytes does not need.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let needed = bytes.div_ceil(UNIT).max(1);
        for permit in &mut self.permits {
            drop(permit.split(permit.num_permits().saturating_sub(needed)));
        }
    }
}

/// Whether a record with so many bytes of output is written again in a turn only.
pub(super) fn needs_turn(bytes: usize) -> bool {
    bytes > SMALL_OUTPUT
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn large_outputs_of_one_caller_take_turns_and_small_ones_do_not() {
        let turns = OutputTurns::new();
        let next = |caller: &str| turns.for_caller(caller).next().now_or_never();
        let large = [next("a").unwrap(), next("a").unwrap()];
        assert!(next("a").is_none());
        assert!(next("b").is_some());
        drop(large);
        let small: Vec<_> = (0..100)
            .map(|_| {
                let mut turn = next("a").unwrap();
                turn.shrink(SMALL_OUTPUT);
                turn
            })
            .collect();
        drop(small);
        let again = |bytes| turns.for_caller("a").next_for(bytes).now_or_never().unwrap();
        assert!(again(SMALL_OUTPUT).is_none());
        assert!(again(SMALL_OUTPUT + 1).is_some());
    }
}
