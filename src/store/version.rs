//! The first bytes of the database: its version, and whether they are as SQLite writes them.
//!
//! Read without SQLite, for a server that has not yet taken the place of another which uses the
//! store meanwhile, and before SQLite is asked to open it: that recovers the log, which hides what
//! was lost in it, and refuses some changed bytes in words that do not tell it from a full disk.

use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{DATABASE, Store, StoreError, schema, state_dir};

/// What SQLite's first page begins with.
pub(super) const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Bytes before the first page's own.
pub(super) const HEADER: usize = 100;

impl Store {
    /// Refuses a store that a newer procyard has written. Whatever else may be wrong with it is
    /// found out when it is opened.
    pub fn understands(state_dir: &Path) -> Result<(), StoreError> {
        let path = state_dir.join(DATABASE);
        let known = schema::known();
        match standing(&path) {
            Some(found) if found > known => {
                let reason = Box::new(StoreError::Newer { found, known });
                Err(StoreError::Open { path, reason })
            }
            _ => Ok(()),
        }
    }
}

/// The version that stands in the file. None: it has none yet, or is no database.
pub(super) fn standing(path: &Path) -> Option<u32> {
    let header = header(path)?;
    let version = u32::from_be_bytes(header[60..64].try_into().ok()?);
    header.starts_with(MAGIC).then_some(version)
}

/// Finds what SQLite would not call damage: a format that it can only read, or not at all.
pub(super) fn examine(path: &Path) -> Result<(), StoreError> {
    let Some(header) = header(path) else { return Ok(()) };
    let read_and_write = header[18..20].iter().all(|format| (1..=2).contains(format));
    let known_schema = header[44..47] == [0; 3] && header[47] <= 4;
    let utf_8 = header[56..59] == [0; 3] && header[59] <= 1;
    if read_and_write && header[20] == 0 && known_schema && utf_8 {
        return Ok(());
    }
    Err(StoreError::Torn("its first bytes are not as they were written".into()))
}

fn header(path: &Path) -> Option<[u8; HEADER]> {
    let mut header = [0; HEADER];
    state_dir::open_regular(path).ok()?.read_exact_at(&mut header, 0).ok()?;
    Some(header)
}

#[cfg(test)]
mod tests {
    use crate::store::{Limits, StateDir, database};

    use super::*;

    #[test]
    fn a_store_of_a_newer_version_is_refused_while_another_uses_it_and_others_are_not() {
        let place = tempfile::tempdir().unwrap();
        Store::understands(place.path()).unwrap();
        let directory = StateDir::lock(place.path()).unwrap();
        let _used =
            Store::open(&directory, Limits { max_events: 10, max_event_bytes: 1 << 20 }).unwrap();
        Store::understands(place.path()).unwrap();
        let writer = database::writer(&place.path().join(DATABASE)).unwrap();
        writer.pragma_update(None, "user_version", 77).unwrap();
        writer.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
        let refused = Store::understands(place.path()).unwrap_err().to_string();
        assert!(refused.contains("version 77"), "{refused}");
    }

    #[test]
    fn the_version_stands_in_the_file_as_soon_as_a_store_is_open() {
        let place = tempfile::tempdir().unwrap();
        let directory = StateDir::lock(place.path()).unwrap();
        let _used =
            Store::open(&directory, Limits { max_events: 10, max_event_bytes: 1 << 20 }).unwrap();
        assert_eq!(standing(&place.path().join(DATABASE)), Some(schema::known()));
    }
}
