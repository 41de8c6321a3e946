//! The database file: its permissions, and the connections to it with their settings.
//!
//! Left at their defaults on purpose: `auto_vacuum` (none: what goes makes room for what comes,
//! and moving pages about would cost every commit), `mmap_size` (none: a file that is cut short
//! would end the server by SIGBUS), `page_size` (that of the file system).

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::{StoreError, checkpoint, state_dir};

/// How long a connection waits for another one's lock. Nobody holds one for long: it is only the
/// recovery of a log, after a kill, that takes any time.
const BUSY: Duration = Duration::from_secs(5);

/// Pages that a connection keeps in memory; negative: in KiB.
const CACHE: i32 = -256;

/// The connection that writes.
pub(super) fn writer(path: &Path) -> Result<Connection, StoreError> {
    // Made by us, as SQLite lets everyone read what it makes. It gives its other files the same
    // permissions.
    drop(state_dir::private_file(path)?);
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(StoreError::NoLog(mode));
    }
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    // The log keeps its blocks for the next round: writing over them costs the file system far
    // less than taking new ones.
    let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let most = i64::from(checkpoint::MOST_PAGES) * page;
    connection.pragma_update_and_check(None, "journal_size_limit", most, |_| Ok(()))?;
    Ok(connection)
}

/// The connection that copies the log into the database.
pub(super) fn checkpointer(path: &Path) -> Result<Connection, StoreError> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    Ok(connection)
}

/// The connection that reads.
pub(super) fn reader(path: &Path) -> Result<Connection, StoreError> {
    open(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

/// A connection that only ever looks, and writes nothing to the disk, not even the memory that
/// connections share: for a disk that is full or read-only.
pub(super) fn glimpse(path: &Path) -> Result<Connection, StoreError> {
    let mut name = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                name.push(char::from(*byte));
            }
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    // Without that memory the log cannot be looked at; if it is empty, it need not be.
    let beside = |end: &str| fs::metadata(format!("{}{end}", path.display()));
    let log = beside("-wal").is_ok_and(|log| log.len() > 0);
    let alone = !log && beside("-shm").is_err();
    name.push_str(if alone { "?immutable=1" } else { "?readonly_shm=1" });
    open(Path::new(&name), OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI)
}

fn open(path: &Path, access: OpenFlags) -> Result<Connection, StoreError> {
    // Each connection is used by one thread at a time: it needs no lock of its own.
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    // What was written is hardly ever read again.
    connection.pragma_update(None, "cache_size", CACHE)?;
    Ok(connection)
}
