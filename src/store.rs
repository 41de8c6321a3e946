//! The store: what outlives the server. Records, events and the id of this instance, in SQLite.
//!
//! Owns the state directory and its lock (`state_dir`), the database file and its settings
//! (`database`), the schema and its versions (`schema`), rows (`rows`), the thread that writes
//! (`writer`), the one that keeps the log short (`checkpoint`), and the connection that reads
//! (`reader`). It never decides what is recorded, nor in what order: that is the supervisor's.
//!
//! What is committed survives the end of the server by any signal. It may not survive the loss
//! of power: no commit waits for the disk, and the newest ones may be gone then, all of a batch
//! or nothing, never the database. Processes do not survive the loss of power either.

mod checkpoint;
mod database;
mod error;
mod loaded;
mod reader;
mod rows;
mod schema;
mod state_dir;
mod writer;

use std::sync::Arc;

use crate::events::Event;
use crate::process::Record;
use reader::Reader;
use writer::Writer;

pub use error::StoreError;
pub use loaded::Loaded;
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
}

impl Store {
    /// Opens the database, which is made if it is missing, and reads what is in it.
    pub fn open(directory: &StateDir, limits: Limits) -> Result<(Store, Loaded), StoreError> {
        let path = directory.path().join(DATABASE);
        let open = || {
            let mut connection = database::writer(&path)?;
            schema::migrate(&mut connection, schema::MIGRATIONS)?;
            let loaded = Loaded::read(&connection)?;
            let reader = Reader::new(database::reader(&path)?);
            let writer = Writer::start(connection, limits, directory.clone())?;
            Ok((Store { reader, writer: Arc::new(writer) }, loaded))
        };
        open().map_err(|reason| StoreError::Open { path: path.clone(), reason: Box::new(reason) })
    }

    /// Whether the database can be used, which is made if it is missing.
    pub fn check(directory: &StateDir) -> Result<(), StoreError> {
        let path = directory.path().join(DATABASE);
        let usable = || schema::migrate(&mut database::writer(&path)?, schema::MIGRATIONS);
        usable().map_err(|reason| StoreError::Open { path: path.clone(), reason: Box::new(reason) })
    }

    /// Records all of a batch or nothing, after every batch that came before. Never blocks; what
    /// comes back tells when it is done, and need not be waited for.
    pub fn commit(&self, batch: Vec<Change>) -> Commit {
        self.writer.commit(batch)
    }

    /// The kept events after the one numbered `after`, oldest first. Commits do not wait for it.
    pub async fn events(&self, after: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
        self.reader.ask(move |connection| rows::events(connection, after, limit)).await
    }
}

#[cfg(test)]
mod tests;
