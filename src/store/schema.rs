//! The schema and its versions.
//!
//! Owns `user_version`: how many of the migrations below a database has been through. A released
//! migration is never changed; a new one is added at the end.
//!
//! Words that an older version would not understand, in a record or an event, need a new version
//! as well, though no table changes: the older one refuses it then, and would otherwise take them
//! for damage. A migration leaves a database that the version before can still read: an upgrade
//! may be undone while it is under way.

use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::StoreError;

/// What makes each version out of the one before, from nothing on.
pub(super) const MIGRATIONS: &[&str] = &[VERSION_1];

/// `birth` is the row's own key, so that rows lie in the order of listing and a change finds its
/// row without an index. Specs lie apart: a row is written anew as a whole when it changes, and
/// a spec, which never does, may be large. What has no other type is JSON.
const VERSION_1: &str = "
    CREATE TABLE process (
        birth INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        record TEXT NOT NULL
    ) STRICT;
    CREATE TABLE spec (
        birth INTEGER PRIMARY KEY,
        spec TEXT NOT NULL
    ) STRICT;
    CREATE TABLE event (
        seq INTEGER PRIMARY KEY,
        time INTEGER NOT NULL,
        kind TEXT NOT NULL,
        process_id TEXT NOT NULL,
        spec TEXT NOT NULL,
        record TEXT NOT NULL
    ) STRICT;
    CREATE TABLE meta (
        key TEXT PRIMARY KEY,
        value ANY NOT NULL
    ) STRICT, WITHOUT ROWID;
    INSERT INTO meta VALUES ('next_birth', 1);
";

/// How many migrations a database has been through.
pub(super) fn version(connection: &Connection) -> Result<u32, StoreError> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

/// Brings a database to the newest version, a transaction for each step.
pub(super) fn migrate(connection: &mut Connection, migrations: &[&str]) -> Result<(), StoreError> {
    let found = version(connection)?;
    let known = u32::try_from(migrations.len()).unwrap_or(u32::MAX);
    if found > known {
        return Err(StoreError::Newer { found, known });
    }
    for (version, migration) in (1u32..).zip(migrations).skip(found as usize) {
        let done = step(connection, version, migration);
        done.map_err(|reason| match found {
            0 => reason,
            // Its version could use it: it is not put aside because of this one.
            _ => StoreError::Migration { version, reason: Box::new(reason) },
        })?;
    }
    Ok(())
}

fn step(connection: &mut Connection, version: u32, migration: &str) -> Result<(), StoreError> {
    let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    step.execute_batch(migration)?;
    step.pragma_update(None, "user_version", version)?;
    Ok(step.commit()?)
}

/// Whether a database of the newest version has its tables. If not, their names were changed.
pub(super) fn expect_tables(connection: &Connection) -> Result<(), StoreError> {
    for columns in [
        "birth, id, record FROM process INDEXED BY sqlite_autoindex_process_1",
        "birth, spec FROM spec",
        "seq, time, kind, process_id, spec, record FROM event",
        "key, value FROM meta",
    ] {
        match connection.prepare(&format!("SELECT {columns}")) {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => {
                return Err(StoreError::Torn(error.to_string()));
            }
            prepared => drop(prepared?),
        }
    }
    Ok(())
}

/// Whether a database has the newest version, as one that cannot be written must.
pub(super) fn expect_newest(connection: &Connection) -> Result<(), StoreError> {
    let found: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = known();
    if found == known { Ok(()) } else { Err(StoreError::Newer { found, known }) }
}

/// The newest version.
pub(super) fn known() -> u32 {
    u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDS_A_COLUMN: &str = "ALTER TABLE process ADD COLUMN color TEXT DEFAULT 'blue'";
    const BREAKS_HALFWAY: &str = "CREATE TABLE half (a); INSERT INTO nowhere VALUES (1)";

    fn version(connection: &Connection) -> u32 {
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    }

    fn at_version_1() -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &[VERSION_1]).unwrap();
        connection.execute("INSERT INTO process VALUES (1, 'a', '{}')", []).unwrap();
        connection
    }

    #[test]
    fn a_fresh_database_gets_the_newest_version_and_keeps_it() {
        let mut connection = Connection::open_in_memory().unwrap();
        for _ in 0..2 {
            migrate(&mut connection, MIGRATIONS).unwrap();
            assert_eq!(version(&connection), MIGRATIONS.len() as u32);
        }
    }

    #[test]
    fn an_older_database_is_brought_forward_with_what_is_in_it() {
        let mut connection = at_version_1();
        migrate(&mut connection, &[VERSION_1, ADDS_A_COLUMN]).unwrap();
        assert_eq!(version(&connection), 2);
        let row = "SELECT id || color FROM process";
        assert_eq!(connection.query_row(row, [], |row| row.get::<_, String>(0)).unwrap(), "ablue");
    }

    #[test]
    fn a_migration_that_fails_changes_nothing() {
        let mut connection = at_version_1();
        let refused = migrate(&mut connection, &[VERSION_1, BREAKS_HALFWAY]).unwrap_err();
        assert!(!refused.is_damage(), "{refused}");
        assert_eq!(version(&connection), 1);
        assert!(!connection.table_exists(None, "half").unwrap());
        migrate(&mut connection, &[VERSION_1, ADDS_A_COLUMN]).unwrap();
    }

    #[test]
    fn a_newer_database_is_refused_and_both_versions_are_named() {
        let mut connection = at_version_1();
        connection.pragma_update(None, "user_version", 7).unwrap();
        let refused = migrate(&mut connection, MIGRATIONS).unwrap_err().to_string();
        assert!(refused.contains("version 7") && refused.contains("up to 1"), "{refused}");
    }
}
