//! SQLite's log: whether all that a killed server had committed is still in it.
//!
//! SQLite takes the log as far as its checksums are right and silently leaves the rest. That is
//! right after a loss of power, and hides damage otherwise. How far it went is told by the memory
//! that connections share, which outlives a kill as a file. Nothing is written here.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rusqlite::Connection;

use super::repair::beside;
use super::{StoreError, state_dir};

/// Frames that were committed, as the killed server left it. None: it cannot be told. To be asked
/// before the first connection: that writes it anew, and would lose its locks with this file.
pub(super) fn committed(database: &Path) -> Option<i64> {
    let file = state_dir::open_regular(&beside(database, "-shm")).ok()?;
    // After a loss of power, this and the log are as old as each happened to be written.
    if file.metadata().ok()?.mtime() < boot_time()? {
        return None;
    }
    // The header stands there twice, in this machine's order of bytes, and says if it is in use.
    let mut bytes = [0; 96];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let frames = u32::from_ne_bytes(bytes[16..20].try_into().ok()?);
    (bytes[..48] == bytes[48..] && bytes[12] == 1).then_some(i64::from(frames))
}

/// Frames that a connection finds.
pub(super) fn frames(connection: &Connection) -> Result<i64, StoreError> {
    Ok(connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1))?)
}

/// When this machine was started, seconds since 1970.
fn boot_time() -> Option<i64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}
