//! What a store held when it was opened.

use std::sync::Arc;

use rusqlite::Connection;

use super::{Repaired, StoreError, rows};
use crate::events::{self, Event};
use crate::process::Record;

/// What a store held when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The id of this instance, a UUIDv7: as old as its state directory.
    pub instance_id: String,
    /// All records with their specs, in the order of their birth.
    pub records: Vec<Record>,
    /// Number of the next event.
    pub next_event: u64,
    /// Birth of the next record.
    pub next_birth: u64,
    /// What became of the store when it was last repaired, if it ever was.
    pub repaired: Option<Repaired>,
    /// The database was made when the store was opened: what the keeper holds is older than it.
    pub is_new: bool,
    /// The newest events, oldest first: as many as an `EventLog` keeps.
    pub tail: Vec<Arc<Event>>,
}

impl Loaded {
    pub(super) fn read(connection: &Connection) -> Result<Loaded, StoreError> {
        let last_event = rows::newest_event(connection)?.unwrap_or(0);
        let next_event = (last_event + 1).max(rows::told_event(connection)?);
        Ok(Loaded {
            instance_id: rows::instance_id(connection)?,
            records: rows::records(connection)?,
            next_event,
            next_birth: rows::next_birth(connection)?,
            repaired: rows::repaired(connection)?,
            is_new: false,
            tail: rows::newest_events(connection, events::KEPT, events::MAX_MEMORY_BYTES)?,
        })
    }
}
