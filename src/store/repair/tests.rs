//! One byte of a store is changed, at every place in turn.

use std::collections::BTreeSet;
use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::events::tests::event;
use crate::process::record::tests::{finished, record};
use crate::process::{Program, Record, Spec};
use crate::store::{Change, Limits, Loaded, StateDir, Store};

const MANY: Limits = Limits { max_events: 100_000, max_event_bytes: 256 << 20 };
const RECORDS: u64 = 40;
const EVENTS: u64 = 60;

/// A directory that procyard has claimed.
fn place() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    StateDir::prepare(place.path(), &[]).unwrap();
    place
}

fn open_store(path: &Path) -> Result<(Store, Loaded), StoreError> {
    Store::open(&StateDir::lock(path).unwrap(), MANY)
}

/// A record with a spec that says which it is; some do not fit on a page.
fn shell(birth: u64) -> Record {
    let plain = Record { birth, id: format!("p{birth}").into(), ..finished() };
    let line = "echo ".to_owned() + &"x".repeat(if birth.is_multiple_of(10) { 9000 } else { 200 });
    let spec = Spec { program: Program::Shell(line), ..Spec::clone(&plain.spec) };
    Record { spec: Arc::new(spec), ..plain }
}

/// Fills a store as a server would: many commits, some records deleted again.
async fn fill(path: &Path) -> Store {
    let (store, _) = open_store(path).unwrap();
    for birth in 1..=RECORDS {
        let mut batch = vec![Change::Insert(Arc::new(shell(birth)))];
        batch.extend((1..=EVENTS / RECORDS + 1).filter_map(|step| {
            let seq = (birth - 1) * 3 / 2 + step;
            (seq > (birth - 1) * 3 / 2 && seq <= birth * 3 / 2).then(|| Change::Event(event(seq)))
        }));
        store.commit(batch).await.unwrap();
    }
    for birth in [3, 17, 18] {
        store.commit(vec![Change::Remove(format!("p{birth}").into())]).await.unwrap();
    }
    store
}

const LEFT: u64 = RECORDS - 3;

/// The files of a store that was closed, or of one that was killed.
async fn files(killed: bool) -> Vec<(&'static str, Vec<u8>)> {
    let place = place();
    let store = fill(place.path()).await;
    let read = || {
        let names = [DATABASE, "procyard.db-wal", "procyard.db-shm"];
        let read = |name: &'static str| Some((name, fs::read(place.path().join(name)).ok()?));
        names.into_iter().filter_map(read).collect::<Vec<_>>()
    };
    if killed {
        return read();
    }
    drop(store);
    read()
}

/// Opens a store with one byte changed: records and events that are there, and those lost.
async fn with_a_change(files: &[(&str, Vec<u8>)], of: usize, at: usize) -> Option<[u64; 4]> {
    let place = place();
    for (index, (name, bytes)) in files.iter().enumerate() {
        let mut bytes = bytes.clone();
        if index == of {
            bytes[at] ^= 0x55;
        }
        fs::write(place.path().join(name), bytes).unwrap();
    }
    // As a server does.
    let understood = Store::understands(place.path());
    let (store, loaded) = match understood.and_then(|()| open_store(place.path())) {
        Ok(opened) => opened,
        Err(StoreError::Open { reason, .. }) if matches!(*reason, StoreError::Newer { .. }) => {
            return None;
        }
        Err(error) => panic!("{} byte {at}: {error}", files[of].0),
    };
    let events = store.all_events(0).await;
    let seqs: BTreeSet<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs.len(), events.len());
    assert!(loaded.next_event > seqs.last().copied().unwrap_or(0));
    let births = loaded.records.iter().map(|record| record.birth);
    assert!(loaded.next_birth > births.max().unwrap_or(0));
    let lost = loaded.repaired.map_or((0, 0), |r| (r.lost_records, r.lost_events));
    // What comes next can be recorded.
    let next = Record { birth: loaded.next_birth, ..record("next", 0) };
    let mut batch = vec![Change::Insert(Arc::new(next))];
    batch.push(Change::Event(event(loaded.next_event)));
    store.commit(batch).await.unwrap();
    Some([loaded.records.len() as u64, events.len() as u64, lost.0, lost.1])
}

async fn change_bytes(killed: bool) {
    let files = files(killed).await;
    let all = std::env::var("PROCYARD_VOLUME").is_ok_and(|volume| volume == "full");
    let (mut changed, mut harmed, mut least) = (0, 0, u64::MAX);
    for of in 0..files.len() {
        // Some thirty of a file, at other bytes of a page each time.
        let step = if all { 512 } else { (files[of].1.len() / 30) | 1 };
        for at in (0..files[of].1.len()).step_by(step) {
            let Some([records, events, lost_records, lost_events]) =
                with_a_change(&files, of, at).await
            else {
                continue;
            };
            let place = format!("{} byte {at}", files[of].0);
            let told = format!("{records} and {lost_records}, {events} and {lost_events} lost");
            let missing = (LEFT.saturating_sub(records), EVENTS.saturating_sub(events));
            // What was in the log may have been anything; which events were first and last is
            // known from nothing else.
            let exact = files[of].0 == DATABASE;
            let counted = missing.0 == 0 || lost_records >= if exact { missing.0 } else { 1 };
            assert!(counted, "{place}: {told}");
            assert!(missing.1 == 0 || lost_events > 0, "{place}: {told}");
            assert!(!exact || records <= LEFT, "{place}: {told}");
            (changed, harmed) = (changed + 1, harmed + u64::from(missing != (0, 0)));
            least = if exact { least.min(records + events) } else { least };
        }
    }
    println!("{changed} changes, {harmed} of them cost something, at worst {least} rows were left");
    // At worst, that which leads to the rows of a table.
    assert!(changed > 20 && least >= LEFT.min(EVENTS), "{least} of {} are left", LEFT + EVENTS);
}

#[tokio::test]
async fn a_changed_byte_in_a_closed_store_costs_little_and_is_told() {
    change_bytes(false).await;
}

#[tokio::test]
async fn a_changed_byte_in_the_store_of_a_killed_server_costs_little_and_is_told() {
    change_bytes(true).await;
}

#[tokio::test]
async fn a_store_that_is_whole_is_not_repaired() {
    for killed in [false, true] {
        let place = place();
        for (name, bytes) in files(killed).await {
            fs::write(place.path().join(name), bytes).unwrap();
        }
        let (_store, loaded) = open_store(place.path()).unwrap();
        assert_eq!((loaded.records.len() as u64, loaded.repaired), (LEFT, None));
        assert_eq!(loaded.next_event, EVENTS + 1);
    }
}

#[test]
fn what_is_no_database_is_put_aside_and_the_next_ones_too_but_not_for_ever() {
    let place = place();
    for time in [1, 2, 3, 4] {
        fs::write(place.path().join(format!("{DATABASE}.damaged-{time}")), "old").unwrap();
    }
    let nonsense = "no database at all ".repeat(500);
    fs::write(place.path().join(DATABASE), &nonsense).unwrap();
    let (_store, loaded) = open_store(place.path()).unwrap();
    let repaired = loaded.repaired.unwrap();
    assert_eq!((repaired.records, repaired.events), (0, 0));
    assert_eq!(fs::read_to_string(place.path().join(&repaired.file)).unwrap(), nonsense);
    let found = fs::read_dir(place.path()).unwrap().flatten();
    let aside = found.filter(|entry| entry.file_name().to_string_lossy().contains("damaged"));
    assert_eq!(aside.count(), 3);
    assert!(place.path().join(format!("{DATABASE}.damaged-1")).exists());
    assert!(repaired.lost_records > 0 && repaired.lost_events > 0);
    assert!(loaded.next_event > LEFT_OUT && loaded.next_birth > LEFT_OUT);
}

#[tokio::test]
async fn a_mark_has_the_store_repaired_and_goes() {
    let place = place();
    let (store, first) = open_store(place.path()).unwrap();
    store.commit(vec![Change::Insert(Arc::new(shell(1)))]).await.unwrap();
    drop(store);
    fs::write(damage::mark(place.path()), "damaged").unwrap();
    Store::check(&StateDir::claim(place.path(), &[]).unwrap()).unwrap();
    assert!(!damage::mark(place.path()).exists());
    let (_store, loaded) = open_store(place.path()).unwrap();
    assert_eq!(loaded.records, [shell(1)]);
    let repaired = loaded.repaired.unwrap();
    assert_eq!((repaired.records, repaired.lost_records, repaired.lost_events), (1, 0, 0));
    assert_eq!(loaded.instance_id, first.instance_id);
}

/// Overwrites a page in the middle of a table.
fn spoil_a_leaf(path: &Path, table: &str) {
    let connection = Connection::open(path).unwrap();
    let leaves = "SELECT pageno FROM dbstat WHERE name = ?1 AND pagetype = 'leaf' ORDER BY path";
    let mut statement = connection.prepare(leaves).unwrap();
    let leaves = statement.query_map([table], |row| row.get::<_, u32>(0)).unwrap();
    let leaves: Vec<u32> = leaves.map(Result::unwrap).collect();
    assert!(leaves.len() > 4, "{leaves:?}");
    drop(statement);
    drop(connection);
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let at = u64::from(leaves[leaves.len() / 2] - 1) * 4096;
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xa5; 4096], at).unwrap();
}

#[tokio::test]
async fn a_bad_page_costs_its_own_rows_which_are_counted_once() {
    let place = place();
    let path = place.path().join(DATABASE);
    let (store, _) = open_store(place.path()).unwrap();
    let records = (1..=300).map(|birth| Change::Insert(Arc::new(shell(birth))));
    let events = (1..=300).map(|seq| Change::Event(event(seq)));
    store.commit(records.chain(events).collect()).await.unwrap();
    drop(store);
    let (mut lost, mut next) = ((0, 0), 301);
    for _ in 0..3 {
        spoil_a_leaf(&path, "event");
        spoil_a_leaf(&path, "process");
        let (store, loaded) = open_store(place.path()).unwrap();
        let repaired = loaded.repaired.unwrap();
        let before = std::mem::replace(&mut lost, (repaired.lost_records, repaired.lost_events));
        assert!(lost.0 > before.0 && lost.0 < before.0 + 60, "{repaired:?}");
        assert!(lost.1 > before.1 && lost.1 < before.1 + 60, "{repaired:?}");
        assert_eq!(repaired.records, 300 - lost.0);
        let events = store.all_events(0).await.len() as u64;
        assert_eq!((repaired.events, events), (next - 1 - lost.1, repaired.events));
        // The next ones are numbered after a gap, which is no loss.
        let more = (0..5).map(|n| Change::Event(event(loaded.next_event + n)));
        store.commit(more.collect()).await.unwrap();
        next += 5;
    }
    // Each was put aside under a name of its own.
    let found = fs::read_dir(place.path()).unwrap().flatten();
    let names = found.map(|entry| entry.file_name().into_string().unwrap());
    let aside = names.filter(|name| name.contains("damaged-") && !name.ends_with("-wal"));
    assert_eq!(aside.count(), 3);
}

#[tokio::test]
async fn what_the_log_has_lost_is_told_unless_the_machine_was_started_since() {
    for (since_boot, told) in [(true, true), (false, false)] {
        let place = place();
        for (name, mut bytes) in files(true).await {
            if name.ends_with("-wal") {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
            }
            let file = fs::File::create(place.path().join(name)).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
            if !since_boot {
                file.set_modified(UNIX_EPOCH).unwrap();
            }
        }
        let (_store, loaded) = open_store(place.path()).unwrap();
        assert!((loaded.records.len() as u64) < LEFT);
        let Some(repaired) = loaded.repaired else {
            assert!(!told);
            continue;
        };
        assert!(told && repaired.lost_records == 1 && repaired.lost_events == 1, "{repaired:?}");
        assert_eq!((repaired.records, &*repaired.file), (loaded.records.len() as u64, ""));
        // What was lost may have had these numbers.
        assert!(loaded.next_event > EVENTS && loaded.next_birth > RECORDS);
    }
}

#[test]
fn a_mark_without_a_database_goes() {
    let place = place();
    fs::write(damage::mark(place.path()), "damaged").unwrap();
    let (_store, loaded) = open_store(place.path()).unwrap();
    assert_eq!(loaded.repaired, None);
    assert!(!damage::mark(place.path()).exists());
}

#[tokio::test]
async fn a_repair_that_was_killed_at_the_swap_is_finished() {
    let (place, other) = (place(), place());
    drop(fill(other.path()).await);
    let (store, _) = open_store(place.path()).unwrap();
    store.commit(vec![Change::Insert(Arc::new(shell(1)))]).await.unwrap();
    // The log of the damaged one is still there.
    let log = fs::read(place.path().join("procyard.db-wal")).unwrap();
    drop(store);
    fs::write(place.path().join("procyard.db-wal"), log).unwrap();
    let fresh = place.path().join("procyard.db.repairing");
    fs::copy(other.path().join(DATABASE), fresh).unwrap();
    fs::write(damage::mark(place.path()), SWAP).unwrap();
    let (_store, loaded) = open_store(place.path()).unwrap();
    assert_eq!(loaded.records.len() as u64, LEFT);
    assert!(!damage::mark(place.path()).exists());
}

#[test]
fn a_newer_database_is_not_touched_though_it_is_marked() {
    let place = place();
    drop(open_store(place.path()).unwrap());
    let path = place.path().join(DATABASE);
    let connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let before = fs::read(&path).unwrap();
    for marked in [false, true] {
        if marked {
            fs::write(damage::mark(place.path()), "damaged").unwrap();
        }
        let refused = open_store(place.path()).map(drop).unwrap_err().to_string();
        assert!(refused.contains("version 99"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}

const LOST_RUN: FileKey = FileKey { birth: 7, number: 2 };

/// A closed store whose record 7 is in its run 1, with transcripts of the runs 1 and 2.
async fn store_behind_its_transcripts() -> TempDir {
    let place = place();
    let (store, _) = open_store(place.path()).unwrap();
    let record = Record { run: 1, ..shell(7) };
    store.commit(vec![Change::Insert(Arc::new(record))]).await.unwrap();
    for number in [1, 2] {
        transcripts(place.path()).make(FileKey { number, ..LOST_RUN }).unwrap();
    }
    place
}

fn expect_lost_run(path: &Path) {
    let (_store, loaded) = open_store(path).unwrap();
    assert_eq!(loaded.repaired.unwrap().lost_records, 1);
    let files = transcripts(path);
    assert!(files.contains(FileKey { number: 1, ..LOST_RUN }) && !files.contains(LOST_RUN));
    assert!(beside(&files.path(LOST_RUN), ".lost").exists());
}

#[tokio::test]
async fn transcript_of_a_run_lost_with_a_page_is_set_aside() {
    let place = store_behind_its_transcripts().await;
    fs::write(damage::mark(place.path()), "damaged").unwrap();
    expect_lost_run(place.path());
}

#[tokio::test]
async fn transcript_of_a_run_lost_with_the_log_is_set_aside() {
    let place = store_behind_its_transcripts().await;
    let (store, _) = open_store(place.path()).unwrap();
    store.commit(vec![Change::Event(event(1))]).await.unwrap();
    // As a kill leaves the database; its log is not put back.
    let database = fs::read(place.path().join(DATABASE)).unwrap();
    drop(store);
    fs::write(place.path().join(DATABASE), database).unwrap();
    expect_lost_run(place.path());
}

/// Opens a store, adds an event and closes it.
async fn use_once(path: &Path, seq: u64) {
    let (store, _) = open_store(path).unwrap();
    store.commit(vec![Change::Event(event(seq))]).await.unwrap();
}

#[tokio::test]
async fn earlier_copy_of_the_database_is_found() {
    let place = store_behind_its_transcripts().await;
    let path = place.path().join(DATABASE);
    use_once(place.path(), 1).await;
    let copy = fs::read(&path).unwrap();
    // It is the newest one until a server changes the database.
    drop(open_store(place.path()).unwrap());
    fs::write(&path, &copy).unwrap();
    let (_, loaded) = open_store(place.path()).unwrap();
    assert_eq!((loaded.repaired, loaded.next_event), (None, 2));
    use_once(place.path(), 2).await;
    fs::write(&path, &copy).unwrap();
    let (store, loaded) = open_store(place.path()).unwrap();
    let repaired = loaded.repaired.unwrap();
    assert_eq!((repaired.records, repaired.events, repaired.lost_records), (1, 1, 1));
    assert!(loaded.next_event > 1000 && loaded.next_birth > 1000);
    assert!(beside(&transcripts(place.path()).path(LOST_RUN), ".lost").exists());
    drop(store);
    // The loss is recorded once.
    use_once(place.path(), 3000).await;
    let (_, loaded) = open_store(place.path()).unwrap();
    assert_eq!(loaded.repaired.unwrap(), repaired);
}

#[tokio::test]
async fn generation_that_was_not_marked_is_no_loss() {
    let place = place();
    use_once(place.path(), 1).await;
    let marker = fs::read(place.path().join("procyard-state")).unwrap();
    use_once(place.path(), 2).await;
    // As if a server was killed before it wrote the marker.
    fs::write(place.path().join("procyard-state"), marker).unwrap();
    assert_eq!(open_store(place.path()).unwrap().1.repaired, None);
}

#[tokio::test]
async fn database_of_another_program_is_put_aside() {
    for foreign in ["VACUUM", "CREATE TABLE recipes (a)"] {
        let place = store_behind_its_transcripts().await;
        let path = place.path().join(DATABASE);
        fs::remove_file(&path).unwrap();
        Connection::open(&path).unwrap().execute_batch(foreign).unwrap();
        let (_store, loaded) = open_store(place.path()).unwrap();
        let repaired = loaded.repaired.unwrap();
        assert!(repaired.file.starts_with("procyard.db.damaged-"), "{repaired:?}");
        assert_eq!((repaired.records, repaired.lost_records), (0, 1));
        assert!(loaded.next_birth > LOST_RUN.birth);
        assert!(beside(&transcripts(place.path()).path(LOST_RUN), ".lost").exists());
    }
}
