//! A damaged or lost database: detected, put aside, and replaced by what can be read of it.
//!
//! Owns the order in which that is done, so that it can be killed at any step. A database of a
//! newer version is never touched. What is lost is counted, logged, and kept in the database;
//! transcripts of lost records are set aside before the replacement takes its place.

mod salvage;
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use serde::{Deserialize, Serialize};

use super::data_dir::{DataDir, DataKind, FileKey, not_regular};
use super::marker::{self, Marker};
use super::{DATABASE, StoreError, damage, database, log, rows, schema, state_dir, version};
use salvage::Haul;

/// Pages up to which a database is looked at as a whole whenever a server opens it, which takes
/// about a millisecond for each thousand. Larger ones are when all of procyard begins.
const LOOKED_AT: u64 = 4096;

/// Numbers of records and events that are left out after a repair: that many may have been lost
/// without a trace, and no number means two things.
const LEFT_OUT: u64 = 1000;

/// The description of a process whose spec was lost.
const RECOVERED_SPEC: &str = "recovered: its spec was damaged";

/// What the mark says when the fresh database is about to take the place of the damaged one.
const SWAP: &str = "swap";

/// What became of a store when it was repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repaired {
    /// When, seconds since 1970.
    pub time: u64,
    /// Name of the damaged database in the state directory; empty: none was left, or only its log
    /// was damaged.
    pub file: String,
    /// Records that were saved.
    pub records: u64,
    /// Events that were saved.
    pub events: u64,
    /// Records that were lost, as far as can be told, in all repairs.
    pub lost_records: u64,
    /// Events that were lost, as far as can be told, in all repairs.
    pub lost_events: u64,
    /// The first record since has at least this birth.
    pub first_birth: u64,
    /// The first event since has at least this number.
    pub first_event: u64,
    /// Numbers that no event has, the first and the last of each range.
    #[serde(default)]
    pub gaps: Vec<(u64, u64)>,
}

/// Opens the database and reads from it. One that is missing is made, and a damaged one, as is
/// found by then, is repaired.
pub(super) fn usable<T>(
    directory: &Path,
    read: impl Fn(&Connection) -> Result<T, StoreError>,
) -> Result<(Connection, T), StoreError> {
    let (path, mark) = (directory.join(DATABASE), damage::mark(directory));
    if fs::read_to_string(&mark).is_ok_and(|mark| mark == SWAP) {
        swap(&path, &mark)?;
    }
    if !path.exists() {
        remove(&mark)?;
    }
    let committed = log::committed(&path);
    let found = if mark.exists() {
        Err(StoreError::Torn("as was found when it was used".into()))
    } else if is_lost(directory, &path) {
        Err(StoreError::Torn("its file is missing or empty".into()))
    } else {
        open(directory, committed, &read)
    };
    let usable = match found {
        Err(error) if error.is_damage() => {
            repair(directory, &error, committed)?;
            open(directory, None, &read)?
        }
        found => found?,
    };
    marker::record_database(directory, rows::generations(&usable.0)?.first().copied());
    Ok(usable)
}

/// Refuses what SQLite would wait for, follow or fail on without a clear word.
pub(super) fn expect_regular(path: &Path) -> Result<(), StoreError> {
    let mark = path.parent().map(damage::mark);
    let files = ["", "-wal", "-shm", "-journal", ".repairing"].map(|end| beside(path, end));
    for path in files.into_iter().chain(mark) {
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Err(cannot("use", &path)(not_regular()));
        }
    }
    Ok(())
}

/// Whether a file is missing or has no bytes.
pub(super) fn is_empty(path: &Path) -> bool {
    fs::metadata(path).map_or(true, |found| found.len() == 0)
}

/// Whether there was a database in the place of none: its log is left, or the marker tells.
fn is_lost(directory: &Path, path: &Path) -> bool {
    is_empty(path) && (!is_empty(&beside(path, "-wal")) || Marker::of(directory).has_database())
}

/// Records that a server writes to the store: the copies that were made of the closed database are
/// out of date from now on. The database itself must say so when its log is gone.
pub(super) fn begin_use(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    if rows::is_in_use(connection)? {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(path);
    rows::begin_generation(connection, Marker::of(directory).generation())?;
    rows::set_in_use(connection, true)?;
    // Only what is on the disk is marked.
    if connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).is_ok() {
        marker::record_database(directory, rows::generations(connection)?.first().copied());
    }
    Ok(())
}

/// Records that no server writes to the store: the log goes with the last connection, and that is
/// no loss. If the disk cannot be written, the log stays.
pub(super) fn end_use(connection: &Connection) -> Result<(), StoreError> {
    match rows::set_in_use(connection, false) {
        Err(error) if !error.is_damage() => {
            tracing::warn!(%error, "cannot record that the store is closed: its log is kept");
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
            Ok(())
        }
        ended => ended,
    }
}

fn open<T>(
    directory: &Path,
    committed: Option<i64>,
    read: impl Fn(&Connection) -> Result<T, StoreError>,
) -> Result<(Connection, T), StoreError> {
    let path = directory.join(DATABASE);
    version::examine(&path)?;
    let standing = version::standing(&path);
    let has_log = !is_empty(&beside(&path, "-wal"));
    let mut connection = database::writer(&path)?;
    // Damage is left as it was found.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let cut = committed > Some(log::frames(&connection)?);
    let marker = Marker::of(directory);
    if marker.has_database() && schema::version(&connection)? == 0 {
        return Err(StoreError::Torn("it is not procyard's".into()));
    }
    schema::migrate(&mut connection, schema::MIGRATIONS)?;
    schema::expect_tables(&connection)?;
    let generations = rows::generations(&connection)?;
    let is_current = marker.generation().is_none_or(|marked| generations.contains(&marked));
    if cut || !is_current || !has_log && rows::is_in_use(&connection)? {
        look_at_all(&connection)?;
        record_lost_changes(directory, &connection)?;
    }
    if standing != Some(schema::known()) {
        // For `Store::understands`. If it fails, the next one does it.
        let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    }
    let found = read(&connection)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    Ok((connection, found))
}

/// Looks at all of a database that is small.
pub(super) fn look(connection: &Connection) -> Result<(), StoreError> {
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
    if pages.cast_unsigned() <= LOOKED_AT { look_at_all(connection) } else { Ok(()) }
}

/// Whether all pages are where they should be, and each record has its id and its spec.
pub(super) fn look_at_all(connection: &Connection) -> Result<(), StoreError> {
    for check in ["PRAGMA quick_check(1)", "PRAGMA integrity_check(process)"] {
        let found: String = connection.query_row(check, [], |row| row.get(0))?;
        if found != "ok" {
            return Err(StoreError::Torn(found));
        }
    }
    let alone = "SELECT (SELECT count(*) FROM spec) - (SELECT count(*) FROM process)";
    let alone: i64 = connection.query_row(alone, [], |row| row.get(0))?;
    if alone == 0 { Ok(()) } else { Err(StoreError::Torn("specs without records".into())) }
}

/// Records that the newest commits are gone, with the log or because the database is an earlier one,
/// though all before are good.
fn record_lost_changes(directory: &Path, connection: &Connection) -> Result<(), StoreError> {
    let events: i64 = connection.query_row("SELECT count(*) FROM event", [], |row| row.get(0))?;
    let keys = transcript_keys(connection)?;
    let files = Files::find(directory, &keys);
    let next_event = rows::newest_event(connection)?.map_or(1, |last| last + 1);
    let next_event = next_event.max(rows::told_event(connection)?);
    let mut repaired = rows::repaired(connection)?.unwrap_or_default();
    repaired.time = now();
    repaired.file = String::new();
    (repaired.records, repaired.events) = (keys.len() as u64, events.cast_unsigned());
    repaired.lost_records += files.lost.max(1);
    repaired.lost_events += 1;
    repaired.first_birth = rows::next_birth(connection)?.max(files.next_birth) + LEFT_OUT;
    repaired.first_event = next_event + LEFT_OUT;
    repaired.gaps.push((next_event, repaired.first_event - 1));
    transcripts(directory).set_aside(&keys);
    connection.execute_batch("BEGIN IMMEDIATE")?;
    keep(connection, directory, &repaired)?;
    connection.execute_batch("COMMIT")?;
    let Repaired { records, events, lost_records, lost_events, .. } = repaired;
    tracing::warn!(
        records,
        events,
        lost_records,
        lost_events,
        "the store's log was lost or damaged, or its database replaced by an earlier one: the newest \
         changes are lost; at least so many, by all repairs"
    );
    Ok(())
}

/// What files tell of records that are lost.
struct Files {
    /// The first birth that no file has.
    next_birth: u64,
    /// Records whose transcript belongs to no run that is known.
    lost: u64,
}

impl Files {
    fn find(directory: &Path, known: &BTreeSet<FileKey>) -> Files {
        let births = |kind| DataDir::new(directory, kind).births();
        let last = DataKind::ALL.into_iter().flat_map(births).max();
        let keys = transcripts(directory).keys().into_iter();
        let lost = keys.filter(|key| !known.contains(key)).map(|key| key.birth);
        let lost = lost.collect::<BTreeSet<u64>>().len() as u64;
        Files { next_birth: last.map_or(1, |last| last.saturating_add(1)), lost }
    }
}

fn transcripts(directory: &Path) -> DataDir {
    DataDir::new(directory, DataKind::Transcripts)
}

/// Keys of the transcripts of all records: the newest run of each.
fn transcript_keys(connection: &Connection) -> Result<BTreeSet<FileKey>, StoreError> {
    let records = rows::records(connection)?.into_iter();
    Ok(records.map(|record| FileKey { birth: record.birth, number: record.run }).collect())
}

fn keep(connection: &Connection, directory: &Path, repaired: &Repaired) -> Result<(), StoreError> {
    rows::begin_generation(connection, Marker::of(directory).generation())?;
    rows::set_meta(connection, "next_birth", repaired.first_birth.cast_signed())?;
    rows::set_meta(connection, "next_event", repaired.first_event.cast_signed())?;
    rows::set_meta(connection, "repaired", serde_json::to_string(repaired)?)
}

/// Puts the database aside and makes a fresh one of what can be read of it.
fn repair(directory: &Path, why: &StoreError, committed: Option<i64>) -> Result<(), StoreError> {
    let (path, mark) = (directory.join(DATABASE), damage::mark(directory));
    let aside = free_name(directory, now());
    let (fresh, source) = (beside(&path, ".repairing"), beside(&path, ".reading"));
    remove(&fresh)?;
    let made = make_fresh(directory, &fresh, &source, &aside, committed);
    source::remove(&source)?;
    let (repaired, keys) = made.inspect_err(|_| drop(remove(&fresh)))?;
    transcripts(directory).set_aside(&keys);
    put_aside(&path, &directory.join(&aside))?;
    fs::write(&mark, SWAP).map_err(cannot("write", &mark))?;
    swap(&path, &mark)?;
    let Repaired { file, records, events, lost_records, lost_events, .. } = repaired;
    tracing::warn!(
        %why, kept_as = file, records, events, lost_records, lost_events,
        "the store was damaged and is repaired; at least so many are lost, by all repairs"
    );
    prune(directory);
    Ok(())
}

/// Writes a database with what can be read, so that it needs no log. Returns the keys of its
/// transcripts as well.
fn make_fresh(
    directory: &Path,
    fresh: &Path,
    source: &Path,
    aside: &str,
    committed: Option<i64>,
) -> Result<(Repaired, BTreeSet<FileKey>), StoreError> {
    let path = &directory.join(DATABASE);
    let is_lost = u64::from(is_empty(path));
    let file = state_dir::private_file(fresh)?;
    let mut connection = Connection::open(fresh)?;
    connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")?;
    schema::migrate(&mut connection, schema::MIGRATIONS)?;
    let (damaged, frames) = source::open(path, source, fresh)?;
    let cut = u64::from(committed > Some(frames));
    connection.execute_batch("BEGIN")?;
    let haul = Haul::take(&damaged, &connection)?;
    let ((lost_records, lost_events), (next_birth, next_event)) = (haul.lost(), haul.next());
    let keys = transcript_keys(&connection)?;
    let files = Files::find(directory, &keys);
    let lost = haul.earlier.as_ref().map_or((0, 0), |e| (e.lost_records, e.lost_events));
    let repaired = Repaired {
        time: now(),
        file: aside_name(path, aside),
        records: haul.records.saved.len() as u64,
        events: haul.events.saved.len() as u64,
        lost_records: lost_records.max(cut).max(is_lost).max(files.lost) + lost.0,
        lost_events: lost_events.max(cut).max(is_lost) + lost.1,
        first_birth: next_birth.max(files.next_birth) + LEFT_OUT,
        first_event: next_event + LEFT_OUT,
        gaps: haul.gaps(next_event + LEFT_OUT),
    };
    keep(&connection, directory, &repaired)?;
    if let Some(id) = &haul.instance_id {
        rows::set_meta(&connection, "instance_id", id)?;
    }
    connection.execute_batch("COMMIT")?;
    drop(connection);
    file.sync_all().map_err(cannot("write", fresh))?;
    Ok((repaired, keys))
}

/// The name of what is put aside: the database, its log if only that is left, or nothing.
fn aside_name(path: &Path, aside: &str) -> String {
    let end = ["", "-wal"].into_iter().find(|end| beside(path, end).exists());
    end.map_or(String::new(), |end| format!("{aside}{end}"))
}

/// A name for a damaged database that none has yet.
fn free_name(directory: &Path, time: u64) -> String {
    let mut names = (time..).map(|time| format!("{DATABASE}.damaged-{time}"));
    let is_taken = |name: &str| {
        let path = directory.join(name);
        path.exists() || beside(&path, "-wal").exists()
    };
    let free = names.find(|name| !is_taken(name));
    free.unwrap_or_else(|| format!("{DATABASE}.damaged"))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Gives the damaged files another name as well. They stay where they are until the swap.
fn put_aside(path: &Path, aside: &Path) -> Result<(), StoreError> {
    for end in ["", "-wal"] {
        let (from, to) = (beside(path, end), beside(aside, end));
        remove(&to)?;
        match fs::hard_link(&from, &to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Not every file system has links.
            Err(_) => drop(fs::copy(&from, &to).map_err(cannot("copy", &from))?),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Puts the fresh database in its place, or finishes that. What is aside is complete.
fn swap(path: &Path, mark: &Path) -> Result<(), StoreError> {
    let fresh = beside(path, ".repairing");
    // Before: a log that is not its own would be taken for its own.
    for end in ["-wal", "-shm"] {
        remove(&beside(path, end))?;
    }
    match fs::rename(&fresh, path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(cannot("replace", path)(error));
        }
        _ => {}
    }
    remove(mark)
}

/// Of the damaged databases, keeps the first, which has the most in it that later ones lost, and
/// the newest two: each may be large.
fn prune(directory: &Path) {
    let Ok(found) = fs::read_dir(directory) else { return };
    let prefix = format!("{DATABASE}.damaged-");
    let time = |entry: fs::DirEntry| -> Option<u64> {
        let name = entry.file_name();
        let time = name.to_str()?.strip_prefix(&prefix)?;
        time.strip_suffix("-wal").unwrap_or(time).parse().ok()
    };
    let times: BTreeSet<u64> = found.flatten().filter_map(time).collect();
    for time in times.iter().skip(1).rev().skip(2) {
        let old = directory.join(format!("{prefix}{time}"));
        let removed = remove(&old).and_then(|()| remove(&beside(&old, "-wal")));
        tracing::info!(path = %old.display(), ok = removed.is_ok(), "damaged database removed");
    }
}

/// The path with more at its end.
pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(end);
    path.into()
}

pub(super) fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot("remove", path)(error)),
        _ => Ok(()),
    }
}

fn cannot(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError::Directory { doing, path: path.into(), source }
}

#[cfg(test)]
mod tests;
