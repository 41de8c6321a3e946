//! What can still be read of a damaged database goes into a fresh one, and the rest is counted.
//!
//! A table is read from both ends, and what lies between two bad pages is searched by halves: a
//! bad page costs its own rows. A row is taken if its words can be read. That something is missing
//! shows elsewhere: a record has its spec in another table and its id in an index, and events are
//! numbered without holes.

use std::collections::BTreeSet;

use rusqlite::types::FromSql;
use rusqlite::{Connection, Row, params};
use serde::de::DeserializeOwned;

use super::{RECOVERED_SPEC, Repaired};
use crate::events::Kind;
use crate::process::{Record, Spec};
use crate::store::StoreError;

/// A hole in numbers that is wider than this is no loss: a number was misread.
const WIDEST_HOLE: u64 = 1_000_000;

/// Numbers go on from here at most, whatever was misread: none is ever reached by counting.
const MOST: u64 = 1 << 60;

/// Tries to find something to read, for each table. A bad page takes two for each of its rows, of
/// which it has some hundred at most.
const TRIES: u32 = 4_000;

/// What was found.
pub(super) struct Haul {
    pub(super) records: Found,
    pub(super) events: Found,
    /// The id of the instance, if it could be read.
    pub(super) instance_id: Option<String>,
    /// What an earlier repair had found.
    pub(super) earlier: Option<Repaired>,
    /// The birth of the next record, as far as it was told.
    told_birth: u64,
}

/// Rows of a table, by their numbers.
#[derive(Default)]
pub(super) struct Found {
    /// Those in the fresh database.
    pub(super) saved: BTreeSet<u64>,
    /// Those and all others that are mentioned anywhere.
    known: BTreeSet<u64>,
    /// Some of the table could not be read.
    pub(super) holes: bool,
}

impl Haul {
    /// Copies all that can be read.
    pub(super) fn take(damaged: &Connection, fresh: &Connection) -> Result<Haul, StoreError> {
        let earlier: Option<String> = meta(damaged, "repaired");
        let told_birth: Option<i64> = meta(damaged, "next_birth");
        let mut events = events(damaged, fresh)?;
        for misread in events.drop_misread() {
            fresh.execute("DELETE FROM event WHERE seq = ?1", [misread.cast_signed()])?;
        }
        let mut records = records(damaged, fresh)?;
        records.drop_misread();
        Ok(Haul {
            records,
            events,
            instance_id: meta(damaged, "instance_id"),
            earlier: earlier.and_then(|text| serde_json::from_str(&text).ok()),
            told_birth: told_birth.unwrap_or(1).cast_unsigned(),
        })
    }

    /// How many records and events were there and are not any more: at least, if there are holes.
    pub(super) fn lost(&self) -> (u64, u64) {
        let records = self.records.known.difference(&self.records.saved).count() as u64;
        let mut missing = 0;
        if let (Some(first), Some(last)) = (self.events.known.first(), self.events.known.last()) {
            let gaps = self.earlier.iter().flat_map(|earlier| &earlier.gaps);
            let explained =
                gaps.map(|(from, to)| (to.min(last) + 1).saturating_sub(*from.max(first)));
            let there = self.events.saved.len() as u64 + explained.sum::<u64>();
            missing = (last - first + 1).saturating_sub(there);
        }
        let at_least = |holes: bool, lost: u64| lost.max(u64::from(holes));
        (at_least(self.records.holes, records), at_least(self.events.holes, missing))
    }

    /// The first birth and the first event that surely nobody had.
    pub(super) fn next(&self) -> (u64, u64) {
        let after = |found: &Found| found.known.last().map_or(1, |last| last + 1).min(MOST);
        let (birth, event) = (after(&self.records), after(&self.events));
        let told = self.told_birth.min(birth + WIDEST_HOLE);
        let earlier = self.earlier.as_ref().map_or((0, 0), |e| (e.first_birth, e.first_event));
        (birth.max(told).max(earlier.0), event.max(earlier.1))
    }

    /// Numbers that no event has, up to the one that comes next.
    pub(super) fn gaps(&self, next_event: u64) -> Vec<(u64, u64)> {
        let ends = self.events.saved.iter().copied().chain([next_event]);
        let begins = [0].into_iter().chain(self.events.saved.iter().copied());
        let holes = begins.zip(ends).map(|(before, after)| (before + 1, after.saturating_sub(1)));
        holes.filter(|(from, to)| from <= to).collect()
    }
}

impl Found {
    /// Forgets numbers far from all others, and tells which of them were saved.
    fn drop_misread(&mut self) -> Vec<u64> {
        let mut misread = Vec::new();
        while let [Some(last), Some(before)] = { [0, 1].map(|n| self.saved.iter().rev().nth(n)) }
            && last - before > WIDEST_HOLE
        {
            misread.push(*last);
            self.saved.pop_last();
        }
        if let (Some(first), Some(last)) = (self.saved.first(), self.saved.last()) {
            let near = first.saturating_sub(WIDEST_HOLE)..=last.saturating_add(WIDEST_HOLE);
            self.known.retain(|number| near.contains(number));
        }
        misread
    }
}

fn events(damaged: &Connection, fresh: &Connection) -> Result<Found, StoreError> {
    let mut found = Found::default();
    let mut copy = fresh.prepare("INSERT OR IGNORE INTO event VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
    let columns = "seq, time, kind, process_id, spec, record FROM event WHERE seq";
    found.holes = walk(damaged, columns, &mut |seq, row| {
        found.known.insert(seq.cast_unsigned());
        let [kind, id, spec, record] = [2, 3, 4, 5].map(|column| text(row, column));
        let own = words::<Record>(record).is_some_and(|record| Some(&*record.id) == id);
        let whole = own && words::<Kind>(kind).is_some() && words::<Spec>(spec).is_some();
        if let (true, Ok(time)) = (whole, row.get::<_, i64>(1)) {
            copy.execute(params![seq, time, kind, id, spec, record])?;
            found.saved.insert(seq.cast_unsigned());
        }
        Ok(())
    })?;
    // The number of one that goes on at a bad page can be read.
    found.holes |= walk(damaged, "seq FROM event WHERE seq", &mut |seq, _| {
        found.known.insert(seq.cast_unsigned());
        Ok(())
    })?;
    Ok(found)
}

fn records(damaged: &Connection, fresh: &Connection) -> Result<Found, StoreError> {
    let mut found = Found::default();
    let mut copy = fresh.prepare("INSERT OR IGNORE INTO spec VALUES (?1, ?2)")?;
    let no_specs = walk(damaged, "birth, spec FROM spec WHERE birth", &mut |birth, row| {
        found.known.insert(birth.cast_unsigned());
        if words::<Spec>(text(row, 1)).is_some() {
            copy.execute(params![birth, text(row, 1)])?;
        }
        Ok(())
    })?;
    let unsure = !index(damaged, &mut found.known) && no_specs;
    let mentioned = found.known.clone();
    let mut copy = fresh.prepare("INSERT OR IGNORE INTO process VALUES (?1, ?2, ?3)")?;
    let columns = "birth, id, record FROM process WHERE birth";
    found.holes = walk(damaged, columns, &mut |birth, row| {
        let (id, record, number) = (text(row, 1), text(row, 2), birth.cast_unsigned());
        // One that nothing else mentions was deleted: a bad page may lead to one that is free.
        if !unsure && !mentioned.contains(&number) {
            return Ok(());
        }
        found.known.insert(number);
        let own = |record: Record| (Some(&*record.id), record.birth) == (id, number);
        if words::<Record>(record).is_some_and(own) {
            copy.execute(params![birth, id, record])?;
            found.saved.insert(number);
        }
        Ok(())
    })?;
    give_specs(fresh)?;
    Ok(found)
}

/// Births that the index of ids mentions. False: not all of it could be read.
fn index(damaged: &Connection, births: &mut BTreeSet<u64>) -> bool {
    ["ASC", "DESC"].into_iter().any(|order| {
        let by_id = "SELECT birth FROM process INDEXED BY sqlite_autoindex_process_1 ORDER BY id";
        let Ok(mut statement) = damaged.prepare(&format!("{by_id} {order}")) else { return false };
        let Ok(rows) = statement.query_map([], |row| row.get::<_, i64>(0)) else { return false };
        rows.map(|birth| birth.map(|birth| births.insert(birth.cast_unsigned())))
            .try_for_each(|birth| birth.map(drop))
            .is_ok()
    })
}

/// A record whose spec is gone is kept without it; a spec without a record is nothing.
fn give_specs(fresh: &Connection) -> Result<(), StoreError> {
    let unknown = Spec { description: RECOVERED_SPEC.into(), ..Spec::unknown() };
    let unknown = serde_json::to_string(&unknown)?;
    fresh.execute("DELETE FROM spec WHERE birth NOT IN (SELECT birth FROM process)", [])?;
    let missing = "INSERT INTO spec SELECT birth, ?1 FROM process
                   WHERE birth NOT IN (SELECT birth FROM spec)";
    fresh.execute(missing, [unknown])?;
    Ok(())
}

/// What to do with a row, by its number.
type Take<'a> = &'a mut dyn FnMut(i64, &Row<'_>) -> Result<(), StoreError>;

/// Reads all rows that can be read, by their numbers, which come first and last in `columns`.
/// True: there were holes.
fn walk(damaged: &Connection, columns: &str, take: Take<'_>) -> Result<bool, StoreError> {
    let mut walk = Walk { damaged, columns, take, tries: TRIES, holes: false };
    walk.range(1, i64::MAX)?;
    Ok(walk.holes)
}

struct Walk<'a> {
    damaged: &'a Connection,
    columns: &'a str,
    take: Take<'a>,
    tries: u32,
    holes: bool,
}

impl Walk<'_> {
    fn range(&mut self, mut low: i64, mut high: i64) -> Result<(), StoreError> {
        for order in ["ASC", "DESC"] {
            match self.scan(order, &mut low, &mut high) {
                Err(error) if error.is_damage() => {}
                end => return end,
            }
        }
        self.holes = true;
        self.tries = self.tries.saturating_sub(1);
        if low < high && self.tries > 0 {
            // The lower half first: numbers are dense there, and may have no end above.
            let middle = low + (high - low) / 2;
            self.range(low, middle)?;
            self.range(middle + 1, high)?;
        }
        Ok(())
    }

    /// Reads from one end, as far as it goes, and narrows the range by that.
    fn scan(&mut self, order: &str, low: &mut i64, high: &mut i64) -> Result<(), StoreError> {
        let query = format!("SELECT {} BETWEEN ?1 AND ?2 ORDER BY 1 {order}", self.columns);
        let mut statement = self.damaged.prepare_cached(&query)?;
        let mut rows = statement.query([*low, *high])?;
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            if !(*low..=*high).contains(&number) {
                return Err(StoreError::Torn("rows are not in their order".into()));
            }
            match order {
                "ASC" => *low = number.saturating_add(1),
                _ => *high = number - 1,
            }
            (self.take)(number, row)?;
        }
        Ok(())
    }
}

/// What is known of the whole store.
fn meta<T: FromSql>(damaged: &Connection, key: &str) -> Option<T> {
    let query = "SELECT value FROM meta WHERE key = ?1";
    damaged.query_row(query, [key], |row| row.get(0)).ok()
}

fn text<'a>(row: &'a Row<'_>, column: usize) -> Option<&'a str> {
    row.get_ref(column).ok()?.as_str().ok()
}

fn words<T: DeserializeOwned>(text: Option<&str>) -> Option<T> {
    serde_json::from_str(text?).ok()
}
