//! The thread that writes: takes batches in order, and makes one transaction of each.
//!
//! It sleeps until there is something to do, and lives on when a commit fails. Words are turned
//! into JSON here, not by whoever hands them over.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::checkpoint::Checkpoints;
use super::damage::Damage;
use super::event_sizes::EventSizes;
use super::{Change, DATABASE, Limits, StateDir, StoreError, database, repair, rows};
use crate::failpoint::{self, Point};

/// Events beyond the limit before the oldest are forgotten, so that few commits pay for it.
const TRIM_STEP: u64 = 64;

/// Events whose sizes are read after a commit, until all are known.
const COUNT_STEP: usize = 512;

/// How a batch fared. May be dropped: the batch is committed anyway.
pub struct Commit(oneshot::Receiver<Result<(), StoreError>>);

impl Future for Commit {
    type Output = Result<(), StoreError>;

    fn poll(mut self: Pin<&mut Commit>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|done| done.unwrap_or(Err(StoreError::Ended)))
    }
}

struct Batch {
    changes: Vec<Change>,
    done: oneshot::Sender<Result<(), StoreError>>,
}

/// The way to the thread.
pub(super) struct Writer {
    /// Unbounded: the supervisor has one batch under way at a time.
    batches: Option<Sender<Batch>>,
    thread: Option<JoinHandle<()>>,
    writable: Arc<Mutex<bool>>,
}

impl Writer {
    /// The lock on the directory is held until the last batch is written. Without a connection,
    /// as nothing can be written at present, each batch tries to make one.
    pub(super) fn start(
        connection: Option<Connection>,
        oldest_event: u64,
        limits: Limits,
        directory: StateDir,
        damage: Arc<Damage>,
    ) -> Result<Writer, StoreError> {
        let path = directory.path().join(DATABASE);
        let open = connection.map(|connection| Open::new(connection, &path)).transpose()?;
        let max_events = limits.max_events.max(1);
        let writable = Arc::new(Mutex::new(open.is_some()));
        let is_in_use = false;
        let max_event_bytes = limits.max_event_bytes;
        let sizes = EventSizes::default();
        let pen = Pen {
            open,
            path,
            max_events,
            max_event_bytes,
            oldest_event,
            sizes,
            writable,
            damage,
            is_in_use,
        };
        let writable = Arc::clone(&pen.writable);
        let (batches, received) = channel();
        let thread = thread::Builder::new()
            .name("store".into())
            .spawn(move || {
                pen.write(&received);
                drop(directory);
            })
            .map_err(StoreError::Thread)?;
        Ok(Writer { batches: Some(batches), thread: Some(thread), writable })
    }

    /// Whether there is a connection by now. It is locked while one is made.
    pub(super) fn writable(&self) -> &Arc<Mutex<bool>> {
        &self.writable
    }

    pub(super) fn commit(&self, changes: Vec<Change>) -> Commit {
        let (done, commit) = oneshot::channel();
        if let Some(batches) = &self.batches {
            // If the thread is gone, so is the other end of the answer: that tells it.
            let _ = batches.send(Batch { changes, done });
        }
        Commit(commit)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread holds.
struct Pen {
    open: Option<Open>,
    path: PathBuf,
    max_events: u64,
    max_event_bytes: u64,
    /// No event before this one is kept.
    oldest_event: u64,
    sizes: EventSizes,
    writable: Arc<Mutex<bool>>,
    damage: Arc<Damage>,
    /// The database says that a server writes to it, as it does from the first commit on.
    is_in_use: bool,
}

/// The database, as it is written.
struct Open {
    // First, so that its connection goes before the writer's.
    checkpoints: Checkpoints,
    connection: Connection,
}

impl Open {
    fn new(mut connection: Connection, path: &Path) -> Result<Open, StoreError> {
        let checkpoints = Checkpoints::start(&mut connection, path)?;
        Ok(Open { checkpoints, connection })
    }
}

impl Pen {
    fn write(mut self, batches: &Receiver<Batch>) {
        for Batch { changes, done } in batches {
            let committed = self.commit(&changes);
            let committed = self.damage.heed(committed);
            let failed = committed.is_err();
            // Before the checkpoint, for whoever waits; nobody may.
            let _ = done.send(committed);
            match &mut self.open {
                Some(open) if failed => open.checkpoints.after_failure(),
                Some(open) => open.checkpoints.after_commit(&open.connection),
                None => {}
            }
            self.count_older_events();
        }
        if let Some(Open { connection, .. }) = &self.open {
            let _ = repair::end_use(connection);
        }
    }

    /// Learns the sizes of some more events that earlier servers wrote.
    fn count_older_events(&mut self) {
        let Some(Open { connection, .. }) = &self.open else { return };
        let Some(before) = self.sizes.uncounted_before(self.oldest_event) else { return };
        // A failure is not of a commit: after the next one it is tried again.
        if let Ok(older) = rows::event_sizes_before(connection, before, COUNT_STEP) {
            self.sizes.count_older(older);
        }
    }

    fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if self.open.is_none() {
            let mut writable = self.writable.lock().unwrap_or_else(PoisonError::into_inner);
            self.open = Some(Open::new(database::writer(&self.path)?, &self.path)?);
            *writable = true;
        }
        let Some(Open { connection, .. }) = &self.open else { return Err(StoreError::Ended) };
        if !self.is_in_use {
            repair::begin_use(connection, &self.path)?;
            self.is_in_use = true;
        }
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let applied = self.apply(connection, changes).and_then(|applied| {
            failpoint::reach(Point::CommitWritten);
            connection.prepare_cached("COMMIT")?.execute([])?;
            Ok(applied)
        });
        // Some failures have rolled back already.
        if applied.is_err() && !connection.is_autocommit() {
            connection.execute_batch("ROLLBACK")?;
        }
        let Applied { oldest, sizes } = applied?;
        sizes.into_iter().for_each(|(seq, bytes)| self.sizes.push(seq, bytes));
        self.sizes.forget_before(oldest);
        self.oldest_event = oldest;
        failpoint::reach(Point::CommitDone);
        Ok(())
    }

    /// Writes all, and forgets what has become too old or is too large with what is newer.
    fn apply(&self, connection: &Connection, changes: &[Change]) -> Result<Applied, StoreError> {
        let (mut newest, mut sizes) = (0, Vec::new());
        for change in changes {
            match change {
                Change::Insert(record) => rows::insert(connection, record)?,
                Change::Update(record) => rows::update(connection, record)?,
                Change::Remove(id) => rows::remove(connection, id)?,
                Change::Event(event) => {
                    sizes.push((event.seq, rows::insert_event(connection, event)?));
                    newest = event.seq;
                }
            }
        }
        let by_number = (newest + 1).saturating_sub(self.max_events);
        // What this batch adds counts from the next one on.
        let by_bytes = self.sizes.first_within(self.max_event_bytes);
        let wanted = by_number.max(by_bytes);
        let oldest = oldest_to_keep(self.oldest_event, wanted, sizes.len() as u64);
        if oldest > self.oldest_event {
            rows::forget_events(connection, oldest)?;
        }
        Ok(Applied { oldest, sizes })
    }
}

/// What a batch has changed of the events.
struct Applied {
    /// No event before this one is left.
    oldest: u64,
    /// Numbers of new events, and bytes of their rows.
    sizes: Vec<(u64, u64)>,
}

/// Where the events begin that stay, if they are to begin at `wanted`. Pure. A few go at a time,
/// though more than come: that catches up with a limit that was lowered, and no commit pays for
/// all of it.
fn oldest_to_keep(oldest: u64, wanted: u64, came: u64) -> u64 {
    if wanted < oldest + TRIM_STEP {
        return oldest;
    }
    wanted.min(oldest + 4 * came.max(TRIM_STEP))
}

#[cfg(test)]
mod tests {
    use super::super::schema;
    use super::*;
    use crate::process::Program;
    use crate::process::record::tests::record;

    #[test]
    fn events_go_in_steps_and_only_beyond_the_limit() {
        assert_eq!(oldest_to_keep(1, 1, 1), 1);
        assert_eq!(oldest_to_keep(1, 64, 1), 1);
        assert_eq!(oldest_to_keep(1, 65, 1), 65);
        assert_eq!(oldest_to_keep(65, 66, 1), 65);
    }

    #[test]
    fn a_lowered_limit_is_reached_by_and_by() {
        let (mut oldest, mut newest) = (1, 10_000);
        while newest - oldest >= 100 + TRIM_STEP {
            newest += 1;
            let next = oldest_to_keep(oldest, newest + 1 - 100, 1);
            assert!(next > oldest && next - oldest <= 4 * TRIM_STEP);
            oldest = next;
        }
        assert!(newest < 10_100);
    }

    #[test]
    fn a_full_disk_fails_the_batch_and_not_the_thread() {
        let place = tempfile::tempdir().unwrap();
        let directory = StateDir::lock(place.path()).unwrap();
        let mut connection = database::writer(&directory.path().join(DATABASE)).unwrap();
        schema::migrate(&mut connection, schema::MIGRATIONS).unwrap();
        connection.pragma_update_and_check(None, "max_page_count", 20, |_| Ok(())).unwrap();
        let writer = start(connection, directory);

        let small = |id: &str, birth| Change::Insert(Arc::new(record(id, birth)));
        let mut large = record("large", 2);
        Arc::make_mut(&mut large.spec).program = Program::Shell("x".repeat(1 << 20));
        let batch = vec![small("a", 1), Change::Insert(Arc::new(large))];
        let refused = wait(writer.commit(batch)).unwrap_err();
        assert_eq!(refused.to_string(), "database or disk is full");
        wait(writer.commit(vec![small("a", 1)])).unwrap();
    }

    #[test]
    fn a_store_that_cannot_be_written_says_so() {
        let place = tempfile::tempdir().unwrap();
        let directory = StateDir::lock(place.path()).unwrap();
        let mut connection = database::writer(&directory.path().join(DATABASE)).unwrap();
        schema::migrate(&mut connection, schema::MIGRATIONS).unwrap();
        connection.pragma_update(None, "query_only", true).unwrap();
        let writer = start(connection, directory);
        for _ in 0..2 {
            let refused = wait(writer.commit(vec![Change::Insert(Arc::new(record("a", 1)))]));
            assert_eq!(refused.unwrap_err().to_string(), "attempt to write a readonly database");
        }
    }

    fn start(connection: Connection, directory: StateDir) -> Writer {
        let damage = Damage::new(directory.path());
        let limits = Limits { max_events: 1, max_event_bytes: u64::MAX };
        Writer::start(Some(connection), 1, limits, directory, damage).unwrap()
    }

    fn wait(commit: Commit) -> Result<(), StoreError> {
        commit.0.blocking_recv().unwrap()
    }
}
