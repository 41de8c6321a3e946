//! The store: what outlives the server. Records, events and the id of this instance, in SQLite.
//!
//! Owns the state directory and its lock (`state_dir`), whether a directory may be one (`marker`),
//! its subdirectories and the names of files in them (`data_dir`), the database file and its
//! settings (`database`), the schema and its versions (`schema`), rows (`rows`), the thread that writes
//! (`writer`) and what it knows of the sizes of events (`event_sizes`), the one that keeps the log short (`checkpoint`), the connection that reads
//! (`reader`), the first bytes of the database and of its log (`version`, `log`), and what is done
//! about damage (`damage`, `repair`). It never decides what is recorded, nor in what order: that
//! is the supervisor's.
//!
//! What is committed survives the end of the server by any signal. It may not survive the loss
//! of power: no commit waits for the disk, and the newest ones may be gone then, all of a batch
//! or nothing, never the database. Processes do not survive the loss of power either.

mod checkpoint;
mod damage;
mod data_dir;
mod database;
mod error;
mod event_sizes;
mod loaded;
mod log;
mod marker;
mod reader;
mod repair;
mod rows;
mod schema;
mod state_dir;
mod version;
mod writer;

use std::sync::Arc;

use rusqlite::Connection;

use crate::events::Event;
use crate::process::Record;
use damage::Damage;
use reader::{Open, Reader};
use writer::Writer;

pub use data_dir::{DataDir, DataKind, FileKey, Inner, not_regular};
pub use error::StoreError;
pub use loaded::Loaded;
pub use repair::Repaired;
pub use state_dir::StateDir;
pub use writer::Commit;

/// Name of the database in the state directory.
const DATABASE: &str = "procyard.db";

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Events; a few more may be there before the oldest go. At least one is kept, as the newest
    /// one tells the number of the next.
    pub max_events: u64,
    /// Bytes of their rows; a few more may be there, as of events.
    pub max_event_bytes: u64,
}

/// One thing to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new record, with its spec.
    Insert(Arc<Record>),
    /// A record that has changed. Its spec never does.
    Update(Arc<Record>),
    /// The record of this id goes.
    Remove(Arc<str>),
    /// Something that happened.
    Event(Arc<Event>),
}

/// A handle to the store. Cheap to clone. When the last one goes, it waits until all that was
/// handed over is committed.
#[derive(Clone)]
pub struct Store {
    // First, so that the writer's is the last connection: it leaves a database without a log.
    reader: Reader,
    writer: Arc<Writer>,
    damage: Arc<Damage>,
}

impl Store {
    /// Opens the database, which is made if it is missing, and reads what is in it. A damaged one
    /// is repaired. One that cannot be written at present is read, and written when it can be.
    pub fn open(directory: &StateDir, limits: Limits) -> Result<(Store, Loaded), StoreError> {
        let path = directory.path().join(DATABASE);
        let is_missing = repair::is_empty(&path);
        let open = || {
            repair::expect_regular(&path)?;
            let read = |connection: &Connection| {
                repair::look(connection)?;
                Loaded::read(connection)
            };
            let (connection, mut loaded) = match repair::usable(directory.path(), read) {
                Ok(usable) => usable,
                Err(error) => return Store::glimpse(directory, limits, error),
            };
            loaded.is_new = is_missing && loaded.repaired.is_none();
            let reader = Reader::new(Open::Usual(database::reader(&path)?));
            let oldest = rows::oldest_event(&connection)?.unwrap_or(1);
            let damage = Damage::new(directory.path());
            let (writer, directory) = (Some(connection), directory.clone());
            let writer = Writer::start(writer, oldest, limits, directory, Arc::clone(&damage))?;
            Ok((Store { reader, writer: Arc::new(writer), damage }, loaded))
        };
        open().map_err(|reason| StoreError::Open { path: path.clone(), reason: Box::new(reason) })
    }

    /// What is there, though nothing can be written, because of an error.
    fn glimpse(
        directory: &StateDir,
        limits: Limits,
        error: StoreError,
    ) -> Result<(Store, Loaded), StoreError> {
        if error.is_damage() || matches!(error, StoreError::Newer { .. }) {
            return Err(error);
        }
        let path = directory.path().join(DATABASE);
        let glimpsed = database::glimpse(&path).and_then(|connection| {
            schema::expect_newest(&connection)?;
            let loaded = Loaded::read(&connection)?;
            let oldest = rows::oldest_event(&connection)?.unwrap_or(1);
            Ok((loaded, oldest))
        });
        let Ok((loaded, oldest)) = glimpsed else { return Err(error) };
        tracing::warn!(%error, "the store cannot be written yet; what is in it is served");
        let damage = Damage::new(directory.path());
        let writer = Writer::start(None, oldest, limits, directory.clone(), Arc::clone(&damage))?;
        let writable = Arc::clone(writer.writable());
        let reader = Reader::new(Open::Glimpse { path, writable });
        Ok((Store { reader, writer: Arc::new(writer), damage }, loaded))
    }

    /// Whether the database can be used, which is made if it is missing and repaired if it is
    /// damaged. Looks at all pages, and not at what is recorded.
    pub fn check(directory: &StateDir) -> Result<(), StoreError> {
        let path = directory.path().join(DATABASE);
        // A server whose keeper has died may not have ended yet.
        let _lock = StateDir::lock(directory.path())?;
        let usable = repair::expect_regular(&path)
            .and_then(|()| repair::usable(directory.path(), repair::look_at_all))
            .and_then(|(connection, ())| repair::end_use(&connection));
        usable.map_err(|reason| StoreError::Open { path, reason: Box::new(reason) })
    }

    /// Waits until the database is found to be damaged. It is marked then, and repaired when it is
    /// opened the next time.
    pub async fn damaged(&self) {
        self.damage.found().await;
    }

    /// Records all of a batch or nothing, after every batch that came before. Never blocks; what
    /// comes back tells when it is done, and need not be waited for.
    pub fn commit(&self, batch: Vec<Change>) -> Commit {
        self.writer.commit(batch)
    }

    /// All kept events after the one numbered `after`, oldest first.
    #[cfg(test)]
    async fn all_events(&self, mut after: u64) -> Vec<Event> {
        let mut all = Vec::new();
        while let batch @ [.., last] = &*self.events(after, usize::MAX).await.unwrap() {
            after = last.seq;
            all.extend_from_slice(batch);
        }
        all
    }

    /// The kept events after the one numbered `after`, oldest first: at most `limit`, or fewer if
    /// they are large. Commits do not wait for it.
    pub async fn events(&self, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        let events = self.reader.ask(move |connection| rows::events(connection, after, limit));
        self.damage.heed(events.await)
    }
}

#[cfg(test)]
mod tests;
