//! Checkpoints: SQLite's log is copied into the database now and then, lest it grow for ever.
//!
//! A checkpoint waits for the disk several times, some ten milliseconds in all, so another
//! thread does it while commits go on. Only when the log starts from its beginning again does a
//! commit wait for the disk, once. Under load that never stops, the copy never quite catches up
//! with the log; at [`MOST_PAGES`] the writer itself copies the little that is left. With 3000
//! commits a second on a slow disk, commits took half as long in the mean as with SQLite's own
//! way, which is a checkpoint within a commit.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use super::{StoreError, database};

/// Pages of the log between two checkpoints.
const STEP_PAGES: u32 = 1000;

/// Pages of the log at which the writer stops to copy: 32 MiB.
pub(super) const MOST_PAGES: u32 = 8 * STEP_PAGES;

/// The writer's view of the log.
pub(super) struct Checkpoints {
    /// Pages in the log after the last commit.
    pages: Arc<AtomicU32>,
    /// How many there were the time before.
    before: u32,
    /// The next checkpoint is due at this many.
    due: u32,
    /// One that waits is enough: it will copy all that is there when it starts.
    poke: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    /// Watches the log of the writer's connection to the database at `path`.
    pub(super) fn start(writer: &mut Connection, path: &Path) -> Result<Checkpoints, StoreError> {
        let pages = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&pages);
        writer.wal_hook(Some(move |_: &mut Wal, pages: i32| {
            count.store(pages.unsigned_abs(), Ordering::Relaxed);
            Ok(())
        }))?;
        let connection = database::checkpointer(path)?;
        let (poke, poked) = sync_channel(1);
        let thread = thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || copy_when_poked(&connection, &poked))
            .map_err(StoreError::Thread)?;
        let (poke, thread) = (Some(poke), Some(thread));
        Ok(Checkpoints { pages, before: 0, due: STEP_PAGES, poke, thread })
    }

    /// To be called between commits.
    pub(super) fn after_commit(&mut self, writer: &Connection) {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < self.before {
            self.due = STEP_PAGES;
        }
        self.before = pages;
        if pages < self.due {
            return;
        }
        self.due = pages + STEP_PAGES;
        if pages >= MOST_PAGES {
            // The commit was good; the log only grows until the next time.
            let _ = copy(writer);
        } else {
            self.poke();
        }
    }

    /// To be called when a commit has failed: if the disk is full, the log can be written anew
    /// where it is, once it is copied.
    pub(super) fn after_failure(&self) {
        self.poke();
    }

    fn poke(&self) {
        if let Some(poke) = &self.poke {
            let _ = poke.try_send(());
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.poke = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn copy_when_poked(connection: &Connection, poked: &Receiver<()>) {
    let mut failing = false;
    while poked.recv().is_ok() {
        let copied = copy(connection);
        // Said once: on a full disk it is tried every half second.
        if let (Err(error), false) = (&copied, failing) {
            tracing::warn!(%error, "the store's log could not be copied into its database");
        }
        failing = copied.is_err();
    }
}

/// Copies what can be copied without waiting for anyone. What cannot be is left for the next time.
fn copy(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}
