//! The store as its users see it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::events::tests::{event, large_event};
use crate::events::{MAX_BATCH_BYTES, MAX_MEMORY_BYTES};
use crate::process::record::tests::record;
use crate::process::{Phase, Program, Spec, Started};

const MANY: Limits = Limits { max_events: 100_000, max_event_bytes: 256 << 20 };

fn open(path: &Path) -> (Store, Loaded) {
    Store::open(&StateDir::lock(path).unwrap(), MANY).unwrap()
}

fn place() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A record with a spec of its own.
fn shell(id: &str, birth: u64, line: &str) -> Record {
    let plain = record(id, birth);
    let spec = Spec { program: Program::Shell(line.into()), ..Spec::clone(&plain.spec) };
    Record { spec: Arc::new(spec), ..plain }
}

fn running(record: &Record) -> Arc<Record> {
    let phase = Phase::Running(Started { pid: 7, time: u64::MAX >> 1, moment: 5, ready: None });
    Arc::new(Record { phase, ..record.clone() })
}

fn events(numbers: impl IntoIterator<Item = u64>) -> Vec<Change> {
    numbers.into_iter().map(|seq| Change::Event(event(seq))).collect()
}

async fn numbers(store: &Store, after: u64, limit: usize) -> Vec<u64> {
    store.events(after, limit).await.unwrap().iter().map(|event| event.seq).collect()
}

#[test]
fn a_fresh_store_counts_from_one() {
    let place = place();
    let (_store, loaded) = open(place.path());
    assert_eq!((loaded.next_event, loaded.next_birth), (1, 1));
    assert!(loaded.records.is_empty() && loaded.tail.is_empty());
    let id: uuid::Uuid = loaded.instance_id.parse().unwrap();
    assert_eq!(id.get_version_num(), 7);
}

#[tokio::test]
async fn what_was_committed_is_there_again() {
    let place = place();
    let (store, first) = open(place.path());
    let (a, b) = (shell("a", 1, "true"), shell("b", 2, "sleep 1"));
    let batch = [a.clone(), b.clone()].map(|record| Change::Insert(Arc::new(record)));
    store.commit(batch.into()).await.unwrap();
    let mut batch = vec![Change::Update(running(&b))];
    batch.extend(events(1..=3));
    store.commit(batch).await.unwrap();
    drop(store);

    let (_store, loaded) = open(place.path());
    assert_eq!(loaded.records, [a, Record::clone(&running(&b))]);
    assert_eq!((loaded.next_event, loaded.next_birth), (4, 3));
    assert_eq!(loaded.tail, (1..=3).map(event).collect::<Vec<_>>());
    assert_eq!(loaded.instance_id, first.instance_id);
}

#[tokio::test]
async fn what_was_committed_survives_a_kill() {
    let (place, copy) = (place(), place());
    let (store, _) = open(place.path());
    store.commit(vec![Change::Insert(Arc::new(record("a", 1)))]).await.unwrap();
    store.commit(events(1..=2)).await.unwrap();
    // What a kill at this moment would leave: the store is still open.
    for file in ["procyard.db", "procyard.db-wal"] {
        fs::copy(place.path().join(file), copy.path().join(file)).unwrap();
    }
    let (_store, loaded) = open(copy.path());
    assert_eq!(loaded.records, [record("a", 1)]);
    assert_eq!(loaded.next_event, 3);
}

#[tokio::test]
async fn what_was_handed_over_is_committed_before_the_store_goes() {
    let place = place();
    let (store, _) = open(place.path());
    (1..=50).for_each(|seq| drop(store.commit(events([seq]))));
    drop(store);
    assert_eq!(open(place.path()).1.next_event, 51);
}

#[tokio::test]
async fn a_batch_that_fails_leaves_nothing_and_the_next_one_succeeds() {
    let place = place();
    let (store, _) = open(place.path());
    let mut batch = vec![Change::Insert(Arc::new(record("a", 1)))];
    batch.extend(events([1]));
    batch.push(Change::Update(running(&record("nobody", 2))));
    let refused = store.commit(batch).await.unwrap_err();
    assert_eq!(refused.to_string(), "there is no record of \"nobody\"");
    store.commit(vec![Change::Insert(Arc::new(record("b", 1)))]).await.unwrap();
    drop(store);
    let (_store, loaded) = open(place.path());
    assert_eq!(loaded.records, [record("b", 1)]);
    assert_eq!(loaded.next_event, 1);
}

#[tokio::test]
async fn an_id_is_taken_once() {
    let place = place();
    let (store, _) = open(place.path());
    store.commit(vec![Change::Insert(Arc::new(record("a", 1)))]).await.unwrap();
    let again = store.commit(vec![Change::Insert(Arc::new(record("a", 2)))]).await;
    assert!(matches!(again, Err(StoreError::Database(_))), "{again:?}");
}

#[tokio::test]
async fn a_birth_is_given_once_though_its_record_goes() {
    let place = place();
    let (store, _) = open(place.path());
    let batch = (1..=3).map(|birth| Change::Insert(Arc::new(record(&format!("p{birth}"), birth))));
    store.commit(batch.collect()).await.unwrap();
    let batch = ["p3", "p1", "p2"].map(|id| Change::Remove(id.into()));
    store.commit(batch.into()).await.unwrap();
    drop(store);
    let (_store, loaded) = open(place.path());
    assert!(loaded.records.is_empty());
    assert_eq!(loaded.next_birth, 4);
}

#[tokio::test]
async fn events_are_read_by_cursor() {
    let place = place();
    let (store, _) = open(place.path());
    store.commit(events(1..=10)).await.unwrap();
    assert_eq!(numbers(&store, 0, 3).await, [1, 2, 3]);
    assert_eq!(numbers(&store, 8, usize::MAX).await, [9, 10]);
    assert!(numbers(&store, u64::MAX, 1).await.is_empty());
    assert_eq!(store.events(4, 1).await.unwrap(), [Event::clone(&event(5))]);
}

#[tokio::test]
async fn the_oldest_events_go_and_leave_no_hole() {
    let place = place();
    let limits = Limits { max_events: 100, ..MANY };
    let (store, _) = Store::open(&StateDir::lock(place.path()).unwrap(), limits).unwrap();
    for seq in 1..=1000 {
        store.commit(events([seq])).await.unwrap();
    }
    let oldest = numbers(&store, 0, 1).await[0];
    assert!((1000 - 163..=901).contains(&oldest), "{oldest}");
    let kept: Vec<u64> = store.all_events(0).await.iter().map(|event| event.seq).collect();
    assert_eq!(kept, (oldest..=1000).collect::<Vec<_>>());
}

#[tokio::test]
async fn stored_events_are_bounded_by_bytes() {
    let place = place();
    let (store, _) = open(place.path());
    store.commit(events(1..=300)).await.unwrap();
    drop(store);
    // The next server has a bound that those of the first exceed together with its own.
    let limits = Limits { max_event_bytes: 300_000, ..MANY };
    let (store, _) = Store::open(&StateDir::lock(place.path()).unwrap(), limits).unwrap();
    for seq in 301..=700 {
        store.commit(vec![Change::Event(large_event(seq, 2000))]).await.unwrap();
    }
    let oldest = numbers(&store, 0, 1).await[0];
    // Each row has 2.5 to 4 KB; up to two steps of 64 more stay.
    assert!((472..=660).contains(&oldest), "{oldest}");
    drop(store);
    let (_store, loaded) = open(place.path());
    assert_eq!(loaded.tail.first().unwrap().seq, oldest);
}

#[tokio::test]
async fn large_events_are_read_and_loaded_within_bounds() {
    let place = place();
    let (store, _) = open(place.path());
    let large = (1..=20).map(|seq| Change::Event(large_event(seq, MAX_BATCH_BYTES)));
    store.commit(large.collect()).await.unwrap();
    assert_eq!(numbers(&store, 0, 9).await, [1]);
    drop(store);
    let (_store, loaded) = open(place.path());
    let bytes: usize = loaded.tail.iter().map(|event| event.bytes()).sum();
    assert!(bytes <= MAX_MEMORY_BYTES, "{bytes}");
    assert_eq!((loaded.tail.last().unwrap().seq, loaded.next_event), (20, 21));
}

#[tokio::test]
async fn the_log_stays_short_and_goes_with_the_store() {
    let place = place();
    let (store, _) = open(place.path());
    let large = "x".repeat(1 << 20);
    for birth in 1..=60 {
        let large = shell(&format!("p{birth}"), birth, &large);
        store.commit(vec![Change::Insert(Arc::new(large))]).await.unwrap();
    }
    let log = place.path().join("procyard.db-wal");
    let length = fs::metadata(&log).unwrap().len();
    assert!(length < 44 << 20, "{length}");
    drop(store);
    assert!(!log.exists());
}

#[tokio::test]
async fn a_reader_in_the_middle_holds_up_no_commit() {
    let place = place();
    let (store, _) = open(place.path());
    store.commit(events(1..=2)).await.unwrap();
    let reader = database::reader(&place.path().canonicalize().unwrap().join(DATABASE)).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM event").unwrap();
    store.commit(events(3..=4)).await.unwrap();
    assert_eq!(rows::newest_event(&reader).unwrap(), Some(2));
    assert_eq!(numbers(&store, 2, 9).await, [3, 4]);
}

#[test]
fn only_the_owner_can_read_its_files() {
    let place = place();
    let (_store, _) = open(place.path());
    for file in fs::read_dir(place.path()).unwrap() {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", file.file_name());
    }
}

#[test]
fn the_directory_stays_locked_as_long_as_the_store_is_there() {
    let place = place();
    let (store, _) = open(place.path());
    let second = StateDir::lock_within(place.path(), "lock", Duration::ZERO).unwrap_err();
    assert!(matches!(second, StoreError::InUse { .. }), "{second}");
    drop(store);
    StateDir::lock(place.path()).unwrap();
}

#[test]
fn a_newer_database_is_refused_and_named() {
    let place = place();
    drop(open(place.path()));
    let path = place.path().join(DATABASE);
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let refused = refusal(place.path());
    assert!(refused.contains("procyard.db: it has version 99, this"), "{refused}");
}

#[test]
fn a_row_that_cannot_be_read_costs_that_row() {
    let place = place();
    drop(open(place.path()));
    let connection = rusqlite::Connection::open(place.path().join(DATABASE)).unwrap();
    connection.execute("INSERT INTO process VALUES (1, 'a', '{}')", []).unwrap();
    connection.execute("INSERT INTO spec VALUES (1, '{}')", []).unwrap();
    drop(connection);
    let (_store, loaded) = open(place.path());
    assert!(loaded.records.is_empty());
    assert_eq!(loaded.repaired.unwrap().lost_records, 1);
}

fn refusal(path: &Path) -> String {
    let directory = StateDir::lock(path).unwrap();
    Store::open(&directory, MANY).map(drop).unwrap_err().to_string()
}
