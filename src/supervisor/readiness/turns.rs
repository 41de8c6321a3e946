//! The turns in which readiness commands of a caller are attempted.
//!
//! Owns how many attempts of one caller are made and launched at a time, and how often those with large
//! launches. When the keeper may be asked for one is decided by the state, which counts the launches under
//! way (`spawn_limit`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, mpsc, oneshot};
use tokio::time::sleep;

use crate::supervisor::state::Input;

/// Attempts of one caller that are made and launched at a time.
pub(in crate::supervisor) const MAX_ATTEMPTS_OF_CALLER: usize = 8;

/// Bytes of launches for which each of these has its turn for a second. Small ones are made as often as
/// they are due, while many processes with large environments share what a caller may have made.
const BYTES_PER_SECOND: f64 = (128 << 10) as f64;

/// The way to the turns of one caller. The default has no limit.
#[derive(Clone, Default)]
pub struct AttemptTurns {
    limited: Option<Limited>,
}

#[derive(Clone)]
struct Limited {
    caller: Arc<str>,
    attempts: Arc<Semaphore>,
    tree_signals: Arc<Semaphore>,
    inputs: mpsc::UnboundedSender<Input>,
}

/// An attempt may be made.
pub(super) struct Turn {
    turns: AttemptTurns,
    permit: Option<OwnedSemaphorePermit>,
}

/// The keeper may be asked for one launch as long as this exists.
struct SpawnTurn {
    limited: Option<Limited>,
    bytes: usize,
}

impl AttemptTurns {
    pub(in crate::supervisor) fn new(
        caller: &str,
        attempts: Arc<Semaphore>,
        tree_signals: Arc<Semaphore>,
        inputs: mpsc::UnboundedSender<Input>,
    ) -> AttemptTurns {
        AttemptTurns {
            limited: Some(Limited { caller: caller.into(), attempts, tree_signals, inputs }),
        }
    }

    /// Waits for a turn. May be dropped at any moment.
    pub(super) async fn next(&self) -> Turn {
        let permit = match &self.limited {
            Some(limited) => Arc::clone(&limited.attempts).acquire_owned().await.ok(),
            None => None,
        };
        Turn { turns: self.clone(), permit }
    }

    /// Tells that the keeper has forgotten an attempt.
    pub(super) fn forget(&self, key: u64) {
        if let Some(limited) = &self.limited {
            let _ = limited.inputs.send(Input::AttemptForgotten { key });
        }
    }

    /// Waits until the keeper may be asked to kill a tree.
    pub(super) async fn next_kill(&self) -> Option<SemaphorePermit<'_>> {
        self.limited.as_ref()?.tree_signals.acquire().await.ok()
    }
}

impl Turn {
    /// Asks the keeper for a launch of so many bytes as soon as that may be. None: the keeper was not asked,
    /// because the probe was dropped or the server ends. The turn is lost if this is dropped.
    pub(super) async fn spawn<T>(
        &self,
        bytes: usize,
        is_wanted: impl FnOnce() -> bool,
        spawn: impl Future<Output = T>,
    ) -> Option<T> {
        let _turn = SpawnTurn::next(self.turns.limited.clone(), bytes).await?;
        if is_wanted() { Some(spawn.await) } else { None }
    }

    /// Ends the turn when it has been kept for as long as a launch of so many bytes takes.
    pub(super) async fn end(self, bytes: usize) {
        if self.permit.is_some() {
            sleep(Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND)).await;
        }
    }
}

impl SpawnTurn {
    /// Waits for a turn; none: the server ends. A turn is lost if this is dropped while it waits.
    async fn next(limited: Option<Limited>, bytes: usize) -> Option<SpawnTurn> {
        if let Some(Limited { caller, inputs, .. }) = &limited {
            let (begin, begun) = oneshot::channel();
            let caller = Arc::clone(caller);
            inputs.send(Input::Attempt { caller, bytes, begin }).ok()?;
            begun.await.ok()?;
        }
        Some(SpawnTurn { limited, bytes })
    }
}

impl Drop for SpawnTurn {
    fn drop(&mut self) {
        if let Some(Limited { caller, inputs, .. }) = &self.limited {
            let (caller, bytes) = (Arc::clone(caller), self.bytes);
            let _ = inputs.send(Input::AttemptAnswered { caller, bytes });
        }
    }
}
