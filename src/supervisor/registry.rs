//! What everyone may see: the processes as they were last committed.
//!
//! Owns the tables that calls look things up in. The actor alone writes them, after its commits;
//! whoever reads takes what is there and never waits for the actor.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use crate::keeper_client::{Output, Progress};
use crate::process::{Record, Selector};

/// Places in a transcript that are remembered for readers who come back, per process.
const MOST_MARKS: usize = 256;

/// A process as calls see it.
pub struct Entry {
    seen: watch::Sender<Seen>,
    marks: Mutex<BTreeMap<u64, u64>>,
    typed: Mutex<BTreeMap<u64, u64>>,
}

/// A process as it was last committed.
#[derive(Clone)]
pub struct Seen {
    /// Its record.
    pub record: Arc<Record>,
    /// The way to it, from its start on, and as long as the keeper has something of it.
    pub held: Option<Held>,
    /// The record was freed.
    pub removed: bool,
}

/// The way to a process that the keeper holds.
#[derive(Clone)]
pub struct Held {
    /// The keeper's number for it.
    pub key: u64,
    /// The way to its output.
    pub output: Output,
}

impl Seen {
    /// What the keeper last reported of it.
    pub fn progress(&self) -> Option<Progress> {
        self.held.as_ref().map(|held| held.output.progress())
    }
}

impl Entry {
    pub(super) fn new(record: Arc<Record>, held: Option<Held>) -> Arc<Entry> {
        let seen = watch::Sender::new(Seen { record, held, removed: false });
        Arc::new(Entry { seen, marks: Mutex::default(), typed: Mutex::default() })
    }

    /// The process as it is now.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// The process as it is now, and whatever it becomes.
    pub fn watch(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    pub(super) fn publish(&self, seen: Seen) {
        self.seen.send_replace(seen);
    }

    /// Remembers how many bytes lie before a chunk that a reader will ask for next, so that it
    /// can be told how many it missed if that chunk is gone by then.
    pub fn mark(&self, seq: u64, total: u64) {
        remember(&self.marks, seq, total);
    }

    /// Remembers the chunk that came next when input was typed at an offset, so that who repeats
    /// that write finds the answer to it.
    pub fn mark_typed(&self, offset: u64, seq: u64) {
        remember(&self.typed, offset, seq);
    }

    /// The chunk that came next when input was typed at an offset, if that is remembered.
    pub fn answer_to(&self, offset: u64) -> Option<u64> {
        self.typed.lock().unwrap_or_else(PoisonError::into_inner).get(&offset).copied()
    }

    /// How many bytes lie before a chunk, if that is remembered.
    pub fn total_before(&self, seq: u64) -> Option<u64> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).get(&seq).copied()
    }
}

/// Keeps one more, and the newest of them only.
fn remember(places: &Mutex<BTreeMap<u64, u64>>, at: u64, place: u64) {
    let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
    places.insert(at, place);
    if places.len() > MOST_MARKS {
        places.pop_first();
    }
}

/// All processes.
#[derive(Default)]
pub struct Registry {
    tables: RwLock<Tables>,
}

#[derive(Default)]
struct Tables {
    by_id: HashMap<Arc<str>, Arc<Entry>>,
    by_birth: BTreeMap<u64, Arc<Entry>>,
    live: BTreeMap<u64, Arc<Entry>>,
}

/// A page of processes, newest first.
pub struct Page {
    /// Them.
    pub entries: Vec<Seen>,
    /// There may be more after the last one.
    pub more: bool,
}

/// How many processes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Not finished.
    pub live: usize,
    /// Finished.
    pub finished: usize,
}

impl Registry {
    /// A process by its id.
    pub fn get(&self, id: &str) -> Option<Arc<Entry>> {
        self.read().by_id.get(id).cloned()
    }

    /// How many there are.
    pub fn counts(&self) -> Counts {
        let tables = self.read();
        let live = tables.live.len();
        Counts { live, finished: tables.by_birth.len() - live }
    }

    /// Up to `size` processes that were made before the one with the birth `before`.
    pub fn list(
        &self,
        selector: &Selector,
        live_only: bool,
        before: Option<u64>,
        size: usize,
    ) -> Page {
        let tables = self.read();
        let table = if live_only { &tables.live } else { &tables.by_birth };
        let older = table.range(..before.unwrap_or(u64::MAX)).rev();
        let mut matching = older
            .filter(|(_, entry)| selector.matches(&entry.seen.borrow().record))
            .map(|(_, entry)| entry.seen());
        let entries = matching.by_ref().take(size).collect();
        Page { entries, more: matching.next().is_some() }
    }

    pub(super) fn enter(&self, entry: &Arc<Entry>) {
        let Seen { record, .. } = entry.seen();
        let mut tables = self.write();
        if record.end().is_none() {
            tables.live.insert(record.birth, Arc::clone(entry));
        }
        tables.by_birth.insert(record.birth, Arc::clone(entry));
        tables.by_id.insert(Arc::clone(&record.id), Arc::clone(entry));
    }

    pub(super) fn finished(&self, birth: u64) {
        self.write().live.remove(&birth);
    }

    pub(super) fn leave(&self, record: &Record) {
        let mut tables = self.write();
        tables.live.remove(&record.birth);
        tables.by_birth.remove(&record.birth);
        tables.by_id.remove(&record.id);
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}
