//! The connection that reads, apart from the one that writes: neither waits for the other.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use rusqlite::Connection;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::{StoreError, database};

#[derive(Clone)]
pub(super) struct Reader {
    /// What waits for it waits as a task, in the order of asking: at most one thread reads. Callers take turns
    /// as each asks one question at a time (`supervisor::caller_budget`).
    open: Arc<Mutex<Open>>,
}

/// How the database is read.
pub(super) enum Open {
    /// As usual.
    Usual(Connection),
    /// Anew for each question, as nothing could be written when the store was opened: what only
    /// looks must be gone before anything else is opened, or that will only look as well.
    Glimpse {
        /// The database.
        path: PathBuf,
        /// Set when it can be written, and locked while it is looked at.
        writable: Arc<std::sync::Mutex<bool>>,
    },
}

impl Open {
    fn ask<T>(
        &mut self,
        question: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Open::Glimpse { path, writable } = self {
            let writable = writable.lock().unwrap_or_else(PoisonError::into_inner);
            if !*writable {
                return question(&database::glimpse(path)?);
            }
            let usual = database::reader(path)?;
            drop(writable);
            *self = Open::Usual(usual);
        }
        match self {
            Open::Usual(connection) => question(connection),
            Open::Glimpse { .. } => Err(StoreError::Ended),
        }
    }
}

impl Reader {
    pub(super) fn new(open: Open) -> Reader {
        Reader { open: Arc::new(Mutex::new(open)) }
    }

    /// Asks one question, apart from the runtime's threads.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let mut open = Arc::clone(&self.open).lock_owned().await;
        let answer = spawn_blocking(move || open.ask(question));
        answer.await.map_err(|_| StoreError::Ended)?
    }
}
