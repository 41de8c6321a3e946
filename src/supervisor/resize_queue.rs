//! Sets the size of a terminal: one request to the keeper at a time, for the last wanted size.
//!
//! Owns what was wanted meanwhile. A call that is cancelled leaves no size behind that the entry does not
//! know, and however many calls come, one task and one wanted size are kept per process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::registry::{Entry, Held};
use crate::keeper_client::{Keeper, KeeperError};
use crate::process::Size;

/// The sizes that are to be set.
pub(super) struct ResizeQueue {
    wanted: Mutex<Wanted>,
    /// The number of the last size that was set, and what came of it.
    done: watch::Sender<(u64, Result<(), KeeperError>)>,
}

#[derive(Default)]
struct Wanted {
    /// Counts the sizes that were wanted.
    number: u64,
    size: Option<(Held, Size)>,
    /// A task sets sizes.
    is_running: bool,
}

impl Default for ResizeQueue {
    fn default() -> ResizeQueue {
        ResizeQueue { wanted: Mutex::default(), done: watch::Sender::new((0, Ok(()))) }
    }
}

impl ResizeQueue {
    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size to be set next, with its number; none: the task ends.
    fn next(&self) -> Option<(u64, Held, Size)> {
        let mut wanted = self.lock();
        let next = wanted.size.take();
        wanted.is_running = next.is_some();
        next.map(|(held, size)| (wanted.number, held, size))
    }
}

/// Sets the size of a terminal, or a later one that was wanted before the keeper was asked for this one.
pub(super) async fn resize(
    entry: &Arc<Entry>,
    keeper: &Keeper,
    held: Held,
    size: Size,
) -> Result<(), KeeperError> {
    let mut done = entry.resizing.done.subscribe();
    let (number, is_running) = {
        let mut wanted = entry.resizing.lock();
        wanted.number += 1;
        wanted.size = Some((held, size));
        (wanted.number, std::mem::replace(&mut wanted.is_running, true))
    };
    if !is_running {
        tokio::spawn(set_sizes(Arc::clone(entry), keeper.clone()));
    }
    let done = done.wait_for(|(done, _)| *done >= number).await;
    done.map_err(|_| KeeperError::Disconnected)?.1.clone()
}

async fn set_sizes(entry: Arc<Entry>, keeper: Keeper) {
    while let Some((number, held, size)) = entry.resizing.next() {
        let seq = held.output.progress().ring.map_or(0, |ring| ring.figures().next_seq);
        let result = keeper.resize(held.key, size).await;
        if result.is_ok() {
            entry.resized(seq, size);
        }
        let _ = entry.resizing.done.send_replace((number, result));
    }
}
