//! A damaged database, copied so that it can be read by SQL: the original is left as it is.
//!
//! Its first page, without which nothing can be read, is made whole from that of a fresh one.

use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rusqlite::Connection;

use super::{beside, cannot};
use crate::store::version::{HEADER, MAGIC};
use crate::store::{StoreError, log, schema, state_dir};

/// Copies a database with its log and opens the copy. Tells how many frames its log has. The other
/// one given is fresh.
pub(super) fn open(
    path: &Path,
    copy: &Path,
    fresh: &Path,
) -> Result<(Connection, i64), StoreError> {
    remove(copy)?;
    for end in ["", "-wal"] {
        let (from, to) = (beside(path, end), beside(copy, end));
        if from.exists() {
            drop(state_dir::private_file(&to)?);
            fs::copy(&from, &to).map_err(cannot("copy", &from))?;
        }
    }
    graft(copy, fresh, HEADER)?;
    let connection = Connection::open(copy)?;
    let frames = heed(merge(&connection))?.unwrap_or(0);
    drop(connection);
    graft(copy, fresh, HEADER)?;
    let connection = Connection::open(copy)?;
    if heed(schema::expect_tables(&connection))?.is_some() {
        return Ok((connection, frames));
    }
    drop(connection);
    let page: i64 = Connection::open(fresh)?.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    graft(copy, fresh, usize::try_from(page).unwrap_or(HEADER))?;
    Ok((Connection::open(copy)?, frames))
}

/// Removes the copy.
pub(super) fn remove(copy: &Path) -> Result<(), StoreError> {
    ["", "-wal", "-shm"].into_iter().try_for_each(|end| super::remove(&beside(copy, end)))
}

/// Brings the log into the database, whose version is looked at again: it may be in the log.
fn merge(connection: &Connection) -> Result<i64, StoreError> {
    let found: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = schema::known();
    if found > known {
        return Err(StoreError::Newer { found, known });
    }
    let frames = log::frames(connection)?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(frames)
}

/// Writes the first bytes of a fresh database over those of the copy, but for its version.
fn graft(copy: &Path, fresh: &Path, length: usize) -> Result<(), StoreError> {
    let mut bytes = vec![0; length];
    let from = File::open(fresh).map_err(cannot("open", fresh))?;
    from.read_exact_at(&mut bytes, 0).map_err(cannot("read", fresh))?;
    let file = state_dir::private_file(copy)?;
    let mut own = [0; 64];
    if file.read_exact_at(&mut own, 0).is_ok() && own.starts_with(MAGIC) {
        bytes[60..64].copy_from_slice(&own[60..64]);
    }
    // It may have a log; it has as many pages as there are, and none to be used again.
    bytes[18..20].fill(2);
    bytes[28..40].fill(0);
    file.write_all_at(&bytes, 0).map_err(cannot("write", copy))
}

/// Damage is what is looked for here; anything else is an error.
fn heed<T>(found: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match found {
        Err(error) if error.is_damage() => Ok(None),
        found => found.map(Some),
    }
}
