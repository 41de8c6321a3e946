//! What everyone may see: the processes as they were last committed.
//!
//! Owns the tables that calls look things up in. The actor alone writes them, after its commits;
//! whoever reads takes what is there and never waits for the actor.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use super::queue::Place;
use super::resize_queue::ResizeQueue;
use crate::keeper_client::{Output, Progress};
use crate::process::{InputState, Record, Size, State, Streams};
use crate::transcript::Ring;

/// Places in a transcript that are remembered for readers who come back, per process. As many
/// sizes of its terminal: what it showed before is drawn anew by then.
const MOST_MARKS: usize = 256;

/// Processes of which a scan takes hold before the actor can write again.
const SCAN_SLICE: usize = 64;

/// A process as calls see it.
pub struct Entry {
    seen: watch::Sender<Seen>,
    marks: Mutex<BTreeMap<u64, u64>>,
    typed: Mutex<BTreeMap<u64, u64>>,
    /// From which chunk on its terminal had which size; empty: it has none.
    sizes: Mutex<BTreeMap<u64, Size>>,
    /// The sizes that its terminal is to have: they are remembered in the order they were given.
    pub(super) resizing: ResizeQueue,
}

/// A process as it was last committed.
#[derive(Clone)]
pub struct Seen {
    /// Its record.
    pub record: Arc<Record>,
    /// The way to it, from its start on, and as long as the keeper has something of it.
    pub held: Option<Held>,
    /// Its place in its queue, while it waits there.
    pub place: Option<Place>,
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

impl Held {
    /// The number of the next chunk, as far as it has printed.
    pub(super) fn next_seq(&self) -> u64 {
        let progress = self.output.progress();
        progress.ring.map_or(progress.next_seq, |ring| ring.figures().next_seq)
    }
}

impl Seen {
    /// Its place in its queue, from 1; 0: it waits in none.
    pub fn queue_position(&self) -> u32 {
        self.place.as_ref().map_or(0, Place::position)
    }

    /// The same as events show it.
    pub fn brief(&self) -> Seen {
        Seen { record: self.record.brief(&self.record.spec.brief()), ..self.clone() }
    }

    /// Whether this is the keeper's number for it.
    pub(super) fn is_held_as(&self, key: u64) -> bool {
        self.held.as_ref().is_some_and(|held| held.key == key)
    }

    /// How far its input is, or was at its end; none: that is not known.
    pub fn input(&self) -> Option<InputState> {
        let ended = || {
            let end = self.record.last_end()?;
            Some(InputState { accepted: end.typed, ..InputState::default() })
        };
        self.progress().map(|progress| progress.input).or_else(ended)
    }

    /// What the keeper last reported of it.
    pub fn progress(&self) -> Option<Progress> {
        self.held.as_ref().map(|held| held.output.progress())
    }
}

impl Entry {
    pub(super) fn new(record: Arc<Record>, held: Option<Held>) -> Arc<Entry> {
        let first = match record.spec.streams {
            Streams::Terminal { size, .. } => Some((0, size)),
            Streams::Pipes { .. } => None,
        };
        Arc::new(Entry {
            seen: watch::Sender::new(Seen { record, held, place: None, removed: false }),
            marks: Mutex::default(),
            typed: Mutex::default(),
            sizes: Mutex::new(first.into_iter().collect()),
            resizing: ResizeQueue::default(),
        })
    }

    /// The process as it is now.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Its record as it is now.
    pub(super) fn record(&self) -> Arc<Record> {
        Arc::clone(&self.seen.borrow().record)
    }

    /// The process as it is now, and whatever it becomes.
    pub fn watch(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    pub(super) fn publish(&self, seen: Seen) {
        let record = Arc::clone(&seen.record);
        let before = self.seen.send_replace(seen).record;
        // Another run has another transcript, and another launch other input and a new terminal.
        if before.run != record.run {
            forget(&self.marks);
        }
        if before.launch != record.launch {
            forget(&self.typed);
            forget(&self.sizes);
            if let Streams::Terminal { size, .. } = record.spec.streams {
                self.resized(0, size);
            }
        }
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

    /// Remembers the size of the terminal from a chunk on. Where only the size that it has now is
    /// known, as after an adoption, that counts from 0 on: what it shows was drawn at it.
    pub fn resized(&self, seq: u64, size: Size) {
        remember(&self.sizes, seq, size);
    }

    /// From which chunk on the terminal had which size, oldest first; empty on pipes.
    pub fn sizes(&self) -> Vec<(u64, Size)> {
        let sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        sizes.iter().map(|(seq, size)| (*seq, *size)).collect()
    }

    /// How many bytes lie before a chunk, if that is remembered.
    pub fn total_before(&self, seq: u64) -> Option<u64> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).get(&seq).copied()
    }
}

fn forget<T>(places: &Mutex<BTreeMap<u64, T>>) {
    places.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Keeps one more, and the newest of them only.
fn remember<T>(places: &Mutex<BTreeMap<u64, T>>, at: u64, place: T) {
    let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
    places.insert(at, place);
    if places.len() > MOST_MARKS {
        places.pop_first();
    }
}

/// All processes.
#[derive(Default)]
pub(super) struct Registry {
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Not finished.
    pub live: usize,
    /// Of these, those that wait in queues.
    pub queued: usize,
    /// Finished.
    pub finished: usize,
}

impl Registry {
    /// A process by its id.
    pub(super) fn get(&self, id: &str) -> Option<Arc<Entry>> {
        self.read().by_id.get(id).cloned()
    }

    /// Those of which the keeper has a transcript, with their rings.
    pub(super) fn printing(&self) -> Vec<(Arc<Record>, Arc<Ring>)> {
        let tables = self.read();
        let printing = tables.by_birth.values().filter_map(|entry| {
            let seen = entry.seen.borrow();
            Some((Arc::clone(&seen.record), seen.progress()?.ring?))
        });
        printing.collect()
    }

    /// The same of one, if it still is in the same run.
    pub(super) fn printing_in(&self, birth: u64, run: u32) -> Option<(Arc<Record>, Arc<Ring>)> {
        let entry = self.read().by_birth.get(&birth).cloned()?;
        let seen = entry.seen();
        let ring = seen.progress()?.ring.filter(|_| seen.record.run == run)?;
        Some((seen.record, ring))
    }

    /// How many of these there are.
    pub(super) fn counts(&self, meant: impl Fn(&Record) -> bool) -> Counts {
        let mut counts = Counts::default();
        for entry in self.scan(false, None) {
            let record = entry.record();
            match record.state() {
                _ if !meant(&record) => {}
                State::Exited => counts.finished += 1,
                state => {
                    counts.live += 1;
                    counts.queued += usize::from(state == State::Queued);
                }
            }
        }
        counts
    }

    /// How many are in each state, by its number.
    pub(super) fn states(&self) -> [u64; 6] {
        let tables = self.read();
        let mut states = [0; 6];
        for entry in tables.live.values() {
            states[entry.seen.borrow().record.state() as usize] += 1;
        }
        states[State::Exited as usize] += (tables.by_birth.len() - tables.live.len()) as u64;
        states
    }

    /// Up to `size` processes that were made before the one with the birth `before`.
    pub(super) fn list(
        &self,
        meant: impl Fn(&Record) -> bool,
        live_only: bool,
        before: Option<u64>,
        size: usize,
    ) -> Page {
        // What was taken hold of may have ended or gone meanwhile.
        let is_listed = |seen: &Seen| {
            let is_gone = seen.removed || live_only && seen.record.end().is_some();
            !is_gone && meant(&seen.record)
        };
        let scan = self.scan(live_only, before);
        let mut matching = scan.map(|entry| entry.seen()).filter(is_listed);
        let entries = matching.by_ref().take(size).collect();
        Page { entries, more: matching.next().is_some() }
    }

    /// The processes that were made before the one with the birth `before`, newest first.
    pub(super) fn scan(&self, live_only: bool, before: Option<u64>) -> Scan<'_> {
        let before = before.unwrap_or(u64::MAX);
        Scan { registry: self, live_only, before, slice: Vec::new().into_iter() }
    }

    /// How many records there are.
    pub(super) fn len(&self) -> usize {
        self.read().by_id.len()
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

/// Goes through processes in slices. It holds no lock while a caller of it looks at them: the actor waits for
/// no scan.
pub(super) struct Scan<'a> {
    registry: &'a Registry,
    live_only: bool,
    /// The birth of the oldest process that was taken hold of.
    before: u64,
    slice: std::vec::IntoIter<Arc<Entry>>,
}

impl Iterator for Scan<'_> {
    type Item = Arc<Entry>;

    fn next(&mut self) -> Option<Arc<Entry>> {
        if self.slice.len() == 0 {
            let tables = self.registry.read();
            let table = if self.live_only { &tables.live } else { &tables.by_birth };
            let older = table.range(..self.before).rev().take(SCAN_SLICE);
            let slice: Vec<_> = older.map(|(birth, entry)| (*birth, Arc::clone(entry))).collect();
            drop(tables);
            self.before = slice.last().map_or(0, |(birth, _)| *birth);
            let entries: Vec<_> = slice.into_iter().map(|(_, entry)| entry).collect();
            self.slice = entries.into_iter();
        }
        self.slice.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::record::tests::{finished, record};

    /// A registry of so many processes that are being started, with births from 0 on.
    fn registry(processes: u64) -> Registry {
        let registry = Registry::default();
        for birth in 0..processes {
            registry.enter(&Entry::new(Arc::new(record(&birth.to_string(), birth)), None));
        }
        registry
    }

    fn births(page: &Page) -> Vec<u64> {
        page.entries.iter().map(|seen| seen.record.birth).collect()
    }

    #[test]
    fn actor_can_write_while_a_list_or_count_looks_at_records() {
        let registry = registry(200);
        let can_write = |_: &Record| {
            assert!(registry.tables.try_write().is_ok(), "the actor waits for a scan");
            false
        };
        assert!(registry.list(can_write, false, None, 10).entries.is_empty());
        assert_eq!(registry.counts(can_write), Counts::default());
    }

    #[test]
    fn pages_follow_each_other_across_slices() {
        let registry = registry(200);
        let every_third = |record: &Record| record.birth.is_multiple_of(3);
        let (mut before, mut found) = (None, Vec::new());
        loop {
            let page = registry.list(every_third, true, before, 50);
            found.extend(births(&page));
            before = found.last().copied();
            if !page.more {
                break;
            }
        }
        assert_eq!(
            found,
            (0..200u64).rev().filter(|birth| birth.is_multiple_of(3)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn process_that_ends_or_goes_during_a_list_is_not_listed_as_live() {
        let registry = registry(10);
        let [ends, goes] = ["3", "2"].map(|id| registry.get(id).unwrap());
        // All of them are in the first slice.
        let meant = |record: &Record| {
            if record.birth == 9 {
                let phase = finished().phase;
                let over = Record { phase, ..(*ends.record()).clone() };
                ends.publish(Seen { record: Arc::new(over), ..ends.seen() });
                registry.finished(3);
                goes.publish(Seen { removed: true, ..goes.seen() });
                registry.leave(&goes.record());
            }
            true
        };
        let page = registry.list(meant, true, None, 10);
        assert_eq!(births(&page), [9, 8, 7, 6, 5, 4, 1, 0]);
    }
}
