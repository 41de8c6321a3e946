//! Rows: how records and events are written and read. The only file that knows SQL for them.

use std::collections::VecDeque;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::{Repaired, StoreError};
use crate::events::{Batch, Event};
use crate::process::Record;

pub(super) fn insert(connection: &Connection, record: &Record) -> Result<(), StoreError> {
    let birth = record.birth.cast_signed();
    connection
        .prepare_cached("INSERT INTO process (birth, id, record) VALUES (?1, ?2, ?3)")?
        .execute(params![birth, &*record.id, json(record)?])?;
    connection
        .prepare_cached("INSERT INTO spec (birth, spec) VALUES (?1, ?2)")?
        .execute(params![birth, json(&record.spec)?])?;
    Ok(())
}

pub(super) fn update(connection: &Connection, record: &Record) -> Result<(), StoreError> {
    let changed = connection
        .prepare_cached("UPDATE process SET record = ?3 WHERE birth = ?1 AND id = ?2")?
        .execute(params![record.birth.cast_signed(), &*record.id, json(record)?])?;
    if changed == 1 { Ok(()) } else { Err(StoreError::NoRecord(record.id.as_ref().into())) }
}

pub(super) fn remove(connection: &Connection, id: &str) -> Result<(), StoreError> {
    let birth: Option<i64> = connection
        .prepare_cached("DELETE FROM process WHERE id = ?1 RETURNING birth")?
        .query_row([id], |row| row.get(0))
        .optional()?;
    let birth = birth.ok_or_else(|| StoreError::NoRecord(id.into()))?;
    connection.prepare_cached("DELETE FROM spec WHERE birth = ?1")?.execute([birth])?;
    // A birth is given once. The newest row tells the next one, and when it goes, this does.
    connection
        .prepare_cached(
            "UPDATE meta SET value = ?1 + 1 WHERE key = 'next_birth' AND value <= ?1
             AND NOT EXISTS (SELECT 1 FROM process WHERE birth > ?1)",
        )?
        .execute([birth])?;
    Ok(())
}

/// Writes an event. Returns the bytes of its row.
pub(super) fn insert_event(connection: &Connection, event: &Event) -> Result<u64, StoreError> {
    let Event { seq, time, kind, record } = event;
    let (spec, record_text) = (json(&record.spec)?, json(record)?);
    connection
        .prepare_cached(
            "INSERT INTO event (seq, time, kind, process_id, spec, record)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            seq.cast_signed(),
            time.cast_signed(),
            json(kind)?,
            &*record.id,
            spec,
            record_text,
        ])?;
    Ok((spec.len() + record_text.len()) as u64)
}

/// Numbers of events before one, newest first, and the bytes of their rows.
pub(super) fn event_sizes_before(
    connection: &Connection,
    seq: u64,
    limit: usize,
) -> Result<Vec<(u64, u64)>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT seq, octet_length(spec) + octet_length(record) FROM event WHERE seq < ?1
         ORDER BY seq DESC LIMIT ?2",
    )?;
    let mut rows = statement.query([bound(seq), bound(limit as u64)])?;
    let mut sizes = Vec::new();
    while let Some(row) = rows.next()? {
        sizes.push((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()));
    }
    Ok(sizes)
}

/// Forgets all events before `seq`.
pub(super) fn forget_events(connection: &Connection, seq: u64) -> Result<(), StoreError> {
    connection.prepare_cached("DELETE FROM event WHERE seq < ?1")?.execute([seq.cast_signed()])?;
    Ok(())
}

/// All records, in the order of their birth.
pub(super) fn records(connection: &Connection) -> Result<Vec<Record>, StoreError> {
    let mut statement = connection.prepare(
        "SELECT id, record, spec, birth FROM process LEFT JOIN spec USING (birth) ORDER BY birth",
    )?;
    let mut rows = statement.query([])?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let id: String = row.get(0)?;
        let what = || format!("the record of {id:?}");
        let record = Record { spec: Arc::new(read(row, 2, &what)?), ..read(row, 1, &what)? };
        let birth = row.get::<_, i64>(3)?.cast_unsigned();
        if (&*record.id, record.birth) != (id.as_str(), birth) {
            return Err(StoreError::Torn(format!("{} is another's", what())));
        }
        records.push(record);
    }
    Ok(records)
}

/// Events after the one numbered `after`, oldest first, as many as belong to one batch.
pub(super) fn events(
    connection: &Connection,
    after: u64,
    limit: usize,
) -> Result<Vec<Event>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT seq, time, kind, spec, record FROM event WHERE seq > ?1 ORDER BY seq LIMIT ?2",
    )?;
    let mut rows = statement.query([bound(after), bound(limit as u64)])?;
    let (mut events, mut batch) = (Vec::new(), Batch::default());
    while let Some(row) = rows.next()? {
        let event = event(row)?;
        if !batch.takes(&event) {
            break;
        }
        events.push(event);
    }
    Ok(events)
}

/// The newest events, oldest first: at most so many, which take at most so much memory.
pub(super) fn newest_events(
    connection: &Connection,
    limit: usize,
    max_bytes: usize,
) -> Result<Vec<Arc<Event>>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT seq, time, kind, spec, record FROM event ORDER BY seq DESC LIMIT ?1",
    )?;
    let mut rows = statement.query([bound(limit as u64)])?;
    let (mut events, mut bytes) = (VecDeque::new(), 0);
    while let Some(row) = rows.next()? {
        let event = event(row)?;
        bytes += event.bytes();
        if bytes > max_bytes {
            break;
        }
        events.push_front(Arc::new(event));
    }
    Ok(events.into())
}

/// A number for a query: more than a row can have is after any that is there.
fn bound(number: u64) -> i64 {
    number.min(i64::MAX.cast_unsigned()).cast_signed()
}

fn event(row: &Row<'_>) -> Result<Event, StoreError> {
    let seq = row.get::<_, i64>(0)?.cast_unsigned();
    let what = || format!("the event {seq}");
    let record = Record { spec: Arc::new(read(row, 3, &what)?), ..read(row, 4, &what)? };
    Ok(Event {
        seq,
        time: row.get::<_, i64>(1)?.cast_unsigned(),
        kind: read(row, 2, &what)?,
        record: Arc::new(record),
    })
}

pub(super) fn oldest_event(connection: &Connection) -> Result<Option<u64>, StoreError> {
    number(connection, "SELECT min(seq) FROM event")
}

pub(super) fn newest_event(connection: &Connection) -> Result<Option<u64>, StoreError> {
    number(connection, "SELECT max(seq) FROM event")
}

/// The birth that the next record gets.
pub(super) fn next_birth(connection: &Connection) -> Result<u64, StoreError> {
    let newest = number(connection, "SELECT max(birth) FROM process")?;
    let told = number(connection, "SELECT value FROM meta WHERE key = 'next_birth'")?;
    Ok(told.unwrap_or(1).max(newest.map_or(1, |birth| birth + 1)))
}

/// The number that the next event has at least.
pub(super) fn told_event(connection: &Connection) -> Result<u64, StoreError> {
    let told = "SELECT max(value) FROM meta WHERE key = 'next_event'";
    Ok(number(connection, told)?.unwrap_or(1))
}

/// What became of the store when it was last repaired.
pub(super) fn repaired(connection: &Connection) -> Result<Option<Repaired>, StoreError> {
    let mut statement = connection.prepare("SELECT value FROM meta WHERE key = 'repaired'")?;
    let mut rows = statement.query([])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    read(row, 0, &|| "what was repaired".into()).map(Some)
}

/// Whether a server has begun to use the store and not closed it.
pub(super) fn is_in_use(connection: &Connection) -> Result<bool, StoreError> {
    let in_use = "SELECT max(value) FROM meta WHERE key = 'in_use'";
    Ok(number(connection, in_use)? == Some(1))
}

/// Records whether a server uses the store.
pub(super) fn set_in_use(connection: &Connection, in_use: bool) -> Result<(), StoreError> {
    if is_in_use(connection)? == in_use {
        return Ok(());
    }
    set_meta(connection, "in_use", i64::from(in_use))
}

/// The generations of the database, newest first: the marker names one of the two. Empty: it was
/// made by a version before generations.
pub(super) fn generations(connection: &Connection) -> Result<Vec<Uuid>, StoreError> {
    let known = "SELECT value FROM meta WHERE key = 'generations'";
    let known: Option<String> = connection.query_row(known, [], |row| row.get(0)).optional()?;
    Ok(known.iter().flat_map(|known| known.split(' ')).flat_map(str::parse).collect())
}

/// Gives the database another generation. It keeps the one that the marker names, too, until the
/// marker names the new one.
pub(super) fn begin_generation(
    connection: &Connection,
    marked: Option<Uuid>,
) -> Result<(), StoreError> {
    let generations = [Some(Uuid::now_v7()), marked].into_iter().flatten();
    let generations: Vec<_> = generations.map(|generation| generation.to_string()).collect();
    set_meta(connection, "generations", generations.join(" "))
}

/// Keeps something that is known of the whole store.
pub(super) fn set_meta(
    connection: &Connection,
    key: &str,
    value: impl ToSql,
) -> Result<(), StoreError> {
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?1, ?2)", params![key, value])?;
    Ok(())
}

/// The id of this instance, made when it is first asked for.
pub(super) fn instance_id(connection: &Connection) -> Result<String, StoreError> {
    let fresh = Uuid::now_v7().to_string();
    let known = "SELECT value FROM meta WHERE key = 'instance_id'";
    let known = connection.query_row(known, [], |row| row.get(0)).optional()?;
    if let Some(known) = known {
        return Ok(known);
    }
    connection.execute("INSERT INTO meta VALUES ('instance_id', ?1)", [&fresh])?;
    Ok(fresh)
}

fn number(connection: &Connection, query: &str) -> Result<Option<u64>, StoreError> {
    let found: Option<i64> = connection.query_row(query, [], |row| row.get(0))?;
    Ok(found.map(i64::cast_unsigned))
}

fn json(words: &impl Serialize) -> Result<String, StoreError> {
    Ok(serde_json::to_string(words)?)
}

fn read<T: DeserializeOwned>(
    row: &Row<'_>,
    column: usize,
    what: &dyn Fn() -> String,
) -> Result<T, StoreError> {
    let text = row.get_ref(column)?.as_str().map_err(rusqlite::Error::from)?;
    serde_json::from_str(text).map_err(|source| StoreError::Unreadable { what: what(), source })
}
