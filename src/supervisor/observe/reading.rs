//! Where an observer reads: in a file first, as far as that goes, and then in a ring.
//!
//! Most processes have one of them: a ring while they live, and a file when they are over. One that
//! was started again after the keeper was lost has both.

use std::sync::Arc;

use super::{Observer, observable};
use crate::keeper_client::Follower;
use crate::process::{Archived, Record};
use crate::supervisor::registry::Seen;
use crate::transcript::archive::Place;
use crate::transcript::ring::MAX_PAYLOAD;
use crate::transcript::{Archive, Batch, Chunk, Gap};

/// How often one looks before a place, each time further if it was little.
const MOST_LOOKS: usize = 16;

/// Bytes that one such look may take besides those that it is for.
const LOOKED_AT: usize = 64 << 10;

/// A ring that is read.
pub(super) struct Followed {
    pub(super) follower: Follower,
    /// The keeper's number for it, and the run.
    key: u64,
    run: u32,
    before: Before,
}

/// What the run had printed before its ring began.
#[derive(Clone, Copy)]
struct Before {
    total: u64,
    offsets: [u64; 3],
}

impl Before {
    fn ring_of(record: &Record) -> Before {
        let filed = record.archive;
        Before {
            total: filed.map_or(0, |filed| filed.figures.total_bytes),
            offsets: filed.map(|filed| filed.offsets).unwrap_or_default(),
        }
    }
}

impl Followed {
    fn read(&mut self, max_bytes: usize) -> Batch {
        let mut batch = self.follower.read(max_bytes);
        for chunk in &mut batch.chunks {
            chunk.offset += self.before.offsets[chunk.stream as usize - 1];
        }
        batch
    }

    /// There is a ring, and what is read next is or was in it.
    fn is_at_hand(&self) -> bool {
        let first_ever = self.follower.first_ever();
        first_ever.is_some_and(|first| first <= self.follower.next_seq())
    }

    fn total(&self) -> Option<u64> {
        Some(self.follower.total()? + self.before.total)
    }
}

impl Observer {
    /// The chunk that will be read next.
    pub fn next_seq(&self) -> u64 {
        self.followed.as_ref().map_or(self.next, |followed| followed.follower.next_seq())
    }

    /// Reads what comes next from the file that has it, if there is one. What reads afterwards
    /// waits for no disk, as far as that goes.
    async fn load(&mut self) {
        if let Some((archived, record, known)) = self.wanted() {
            let (archives, from_seq) = (Arc::clone(&self.archives), self.next_seq());
            let ahead = self.read_ahead_bytes();
            let load = move || archives.load(&record, from_seq, known, ahead);
            let file = self.workers.run(load).await.unwrap_or_else(|_| Archive::empty());
            self.filed = Some((archived, Arc::new(file)));
        }
    }

    /// Bytes that are read of a file in advance: they are kept while a client does not read or a call waits.
    fn read_ahead_bytes(&self) -> usize {
        Archive::ahead_within(self.ticket.stream_room())
    }

    /// Frees what was read from a file in advance, unless the caller's calls and streams have room for it.
    fn keep_window(&mut self) {
        let memory = self.filed.as_ref().map_or(0, |(_, file)| file.memory());
        if !self.ticket.keep_read_ahead(memory)
            && let Some((archived, file)) = self.filed.take()
        {
            self.left_window = Some((archived, file.place()));
        }
    }

    /// What is to be read of a file, whose it is, and where in it one was already.
    fn wanted(&self) -> Option<(Archived, Arc<Record>, Option<Place>)> {
        let archived = self.unread()?;
        let record = Arc::clone(&self.seen.borrow().record);
        let left = self.left_window.filter(|(known, _)| *known == archived);
        let place = self.window(archived).map(Archive::place).or(left.map(|(_, place)| place));
        Some((archived, record, place))
    }

    /// The file that has what comes next, if that was not read yet.
    pub(in crate::supervisor) fn unread(&self) -> Option<Archived> {
        let archived = self.in_file()?;
        let known = self.window(archived).is_some_and(|file| file.covers(self.next_seq()));
        (!known).then_some(archived)
    }

    /// What was read of a file.
    fn window(&self, archived: Archived) -> Option<&Archive> {
        let (known, file) = self.filed.as_ref()?;
        (*known == archived).then_some(file)
    }

    /// The file that has what comes next.
    fn in_file(&self) -> Option<Archived> {
        let seen = self.seen.borrow();
        let archived = seen.record.archive?;
        // A ring that was taken hold of is at hand, whoever has released it.
        let ring = |followed: &Followed| followed.run == seen.record.run && followed.is_at_hand();
        let in_ring = self.followed.as_ref().is_some_and(ring);
        (!in_ring && self.next_seq() < archived.figures.next_seq).then_some(archived)
    }

    /// Takes what is there. What comes later wakes [`Observer::changed`]. The calls and streams of one caller take
    /// turns to read.
    pub async fn take(&mut self, max_bytes: usize) -> Batch {
        let mut batch = self.read_in_turn(max_bytes).await;
        while self.wants_more(&batch, max_bytes) {
            self.load().await;
            if !self.read_more(&mut batch, max_bytes) {
                break;
            }
        }
        self.keep_window();
        batch
    }

    async fn read_in_turn(&mut self, max_bytes: usize) -> Batch {
        let ticket = Arc::clone(&self.ticket);
        let _turn = ticket.thread_turn().await;
        self.read(max_bytes)
    }

    /// The same on a thread that may wait for the disk.
    pub(in crate::supervisor) fn read_blocking(&mut self, max_bytes: usize) -> Batch {
        let mut batch = self.read(max_bytes);
        while self.wants_more(&batch, max_bytes)
            && let Some((archived, record, known)) = self.wanted()
        {
            let file = self.archives.load(&record, self.next_seq(), known, self.read_ahead_bytes());
            self.filed = Some((archived, Arc::new(file)));
            if !self.read_more(&mut batch, max_bytes) {
                break;
            }
        }
        batch
    }

    /// There is more in a file that was not read yet, and the largest chunk would fit.
    fn wants_more(&self, batch: &Batch, max_bytes: usize) -> bool {
        let nothing = batch.gap.is_none() && batch.chunks.is_empty();
        let fits = left(batch, max_bytes) > MAX_PAYLOAD as usize;
        (nothing || fits) && self.unread().is_some()
    }

    /// Adds what comes next, if nothing is missing in between. False: nothing was added.
    fn read_more(&mut self, batch: &mut Batch, max_bytes: usize) -> bool {
        let next = self.next_seq();
        let mut more = self.read(left(batch, max_bytes));
        let nothing = batch.gap.is_none() && batch.chunks.is_empty();
        if nothing {
            *batch = more;
        } else if more.gap.is_some() {
            // Told by the next read, before what comes after it.
            (self.followed, self.next) = (None, next);
            return false;
        } else {
            batch.chunks.append(&mut more.chunks);
        }
        self.next_seq() > next
    }

    /// The same without waiting for the disk. What has to be read from a file first wakes
    /// [`Observer::changed`], too.
    pub(in crate::supervisor) fn read(&mut self, max_bytes: usize) -> Batch {
        // Most who read have what they read at hand, and nothing else is to be looked at.
        let key = self.seen.borrow_and_update().held.as_ref().map(|held| held.key);
        let same = |followed: &&mut Followed| key == Some(followed.key) && followed.is_at_hand();
        if let Some(followed) = self.followed.as_mut().filter(same) {
            return followed.read(max_bytes);
        }
        let seen = self.seen.borrow().clone();
        if let Some(archived) = self.in_file() {
            let mut batch = self.read_file(archived, max_bytes);
            self.read_on(&seen, &mut batch, max_bytes);
            return batch;
        }
        self.hold(&seen);
        let next = self.next_seq();
        let kept = observable(&seen).first_seq;
        // A ring that was taken hold of tells more than the record, whoever has released it.
        let at_hand = self.followed.as_ref().is_some_and(Followed::is_at_hand);
        let gone = seen.progress().is_none_or(|progress| progress.ring.is_none());
        if gone && !at_hand && next < kept {
            // Of a transcript that is gone altogether only the numbers are known.
            (self.followed, self.next) = (None, kept);
            let gap = Gap { from_seq: next, to_seq: kept - 1, dropped_bytes: None };
            return Batch { gap: Some(gap), chunks: Vec::new() };
        }
        if let Some(gap) = self.missing_end(&seen) {
            (self.followed, self.next) = (None, gap.to_seq + 1);
            return Batch { gap: Some(gap), chunks: Vec::new() };
        }
        self.followed.as_mut().map(|followed| followed.read(max_bytes)).unwrap_or_default()
    }

    /// What one that is over has printed, and neither ring nor file has.
    fn missing_end(&self, seen: &Seen) -> Option<Gap> {
        let end = seen.record.end()?;
        let in_hand = |followed: &Followed| followed.follower.first_ever().is_some();
        let gone = seen.held.is_none() && !self.followed.as_ref().is_some_and(in_hand);
        let (from_seq, next_seq) = (self.next_seq(), end.printed.next_seq);
        let filed = seen.record.archive.map(|archived| archived.figures);
        let filed = filed.filter(|filed| filed.next_seq == from_seq && end.exit.is_some());
        let dropped_bytes = filed.and_then(|f| end.printed.bytes.checked_sub(f.total_bytes));
        let gap = Gap { from_seq, to_seq: next_seq.saturating_sub(1), dropped_bytes };
        (gone && from_seq < next_seq).then_some(gap)
    }

    /// Takes hold of the ring that the keeper has.
    pub(super) fn hold(&mut self, seen: &Seen) {
        let next = self.next_seq();
        if let Some(held) = &seen.held
            && self.followed.as_ref().is_none_or(|followed| followed.key != held.key)
        {
            // Another launch goes on where the one before was; another run has a new transcript.
            let (run, before) = (seen.record.run, Before::ring_of(&seen.record));
            let same_run = self.followed.as_ref().filter(|followed| followed.run == run);
            let total = same_run.and_then(Followed::total);
            let total = total.or_else(|| self.entry.total_before(next));
            let total = total.and_then(|total| total.checked_sub(before.total));
            // Between what was saved and what came later nobody knows what was printed.
            let saved = seen.record.archive.map(|archived| archived.figures.next_seq);
            let unknown = saved.is_some_and(|saved| (saved..seen.record.first_seq).contains(&next));
            let total = total.filter(|_| !unknown);
            let follower = held.output.follow(next).knowing(total);
            self.followed = Some(Followed { follower, key: held.key, run, before });
        }
        if let Some(followed) = &mut self.followed {
            followed.follower.hold();
        }
    }

    /// Takes what a file has. What should be there and is not is told as missing.
    fn read_file(&mut self, archived: Archived, max_bytes: usize) -> Batch {
        let next = self.next_seq();
        let Some(file) = self.window(archived).filter(|file| file.covers(next)) else {
            return Batch::default();
        };
        let mut batch = file.read_at(next, self.entry.total_before(next), max_bytes);
        let end = batch.chunks.last().map(|chunk| chunk.seq + 1);
        let end = end.or(batch.gap.map(|gap| gap.to_seq + 1));
        if end.is_none() {
            let whole = archived.figures;
            let before = file.total_before(next).or_else(|| self.entry.total_before(next));
            let dropped_bytes = before.and_then(|before| whole.total_bytes.checked_sub(before));
            batch.gap = Some(Gap { from_seq: next, to_seq: whole.next_seq - 1, dropped_bytes });
        }
        (self.followed, self.next) = (None, end.unwrap_or(archived.figures.next_seq));
        batch
    }

    /// Adds what a ring has to what a file had, if nothing is missing in between and it fits.
    fn read_on(&mut self, seen: &Seen, batch: &mut Batch, max_bytes: usize) {
        let left = left(batch, max_bytes);
        if self.in_file().is_some() || left <= MAX_PAYLOAD as usize {
            return;
        }
        self.hold(seen);
        let next = self.next_seq();
        let goes_on = |followed: &&mut Followed| followed.follower.first_ever() == Some(next);
        let Some(followed) = self.followed.as_mut().filter(goes_on) else { return };
        let mut more = followed.read(left);
        if more.gap.is_some() {
            // Told by the next read, before what comes after it.
            (self.followed, self.next) = (None, next);
        } else {
            batch.chunks.append(&mut more.chunks);
        }
    }

    /// Remembers this place for the client that will go on from it. A follower, who keeps its
    /// place itself, would only crowd out the others.
    pub fn remember(&self) {
        self.remember_at(self.next_seq());
    }

    /// The same for a place that was passed already.
    pub(in crate::supervisor) fn remember_at(&self, seq: u64) {
        if let Some(total) = self.total_before(seq) {
            self.entry.mark(seq, total);
        }
    }

    /// Bytes of all streams before a chunk, if known.
    fn total_before(&self, seq: u64) -> Option<u64> {
        if let Some(followed) = self.followed.as_ref().filter(|f| f.follower.next_seq() == seq) {
            return followed.total();
        }
        let filed = self.filed.as_ref().and_then(|(_, file)| file.total_before(seq));
        let in_ring = || {
            let mut before = self.ring_at(seq.saturating_sub(1))?;
            before.read(1);
            before.total().filter(|_| before.follower.next_seq() == seq)
        };
        filed.or_else(in_ring)
    }

    /// The ring that is read, or that could be, at another place.
    fn ring_at(&self, seq: u64) -> Option<Followed> {
        if let Some(Followed { follower, key, run, before }) = &self.followed {
            return Some(Followed {
                follower: follower.again(seq),
                key: *key,
                run: *run,
                before: *before,
            });
        }
        let seen = self.seen.borrow();
        let held = seen.held.as_ref()?;
        let (run, before) = (seen.record.run, Before::ring_of(&seen.record));
        Some(Followed { follower: held.output.follow(seq), key: held.key, run, before })
    }

    /// What there is from a chunk on, without going there. A gap ends it.
    fn peek(&self, seq: u64, max_bytes: usize) -> Vec<Chunk> {
        let filed = self.filed.as_ref().map(|(_, file)| file.read_at(seq, None, max_bytes));
        let filed = filed.filter(|batch| batch.gap.is_none() && !batch.chunks.is_empty());
        let mut chunks = filed.map(|batch| batch.chunks).unwrap_or_default();
        let taken: usize = chunks.iter().map(|chunk| chunk.data.len()).sum();
        let seq = chunks.last().map_or(seq, |chunk| chunk.seq + 1);
        if let Some(mut ring) = self.ring_at(seq).filter(|_| taken < max_bytes) {
            let batch = ring.read(max_bytes - taken);
            chunks.extend(batch.chunks.into_iter().filter(|_| batch.gap.is_none()));
        }
        chunks
    }

    /// What was printed right before this place: so many bytes at least, if they are kept and
    /// not in too many pieces.
    pub(in crate::supervisor) async fn look_back(&mut self, bytes: usize) -> Vec<Chunk> {
        if bytes == 0 {
            return Vec::new();
        }
        self.load().await;
        let chunks = self.look_back_in_window(bytes);
        self.keep_window();
        chunks
    }

    fn look_back_in_window(&self, bytes: usize) -> Vec<Chunk> {
        let (first, mut from) = (self.figures().first_seq, self.next_seq());
        let (mut parts, mut found, mut count) = (Vec::new(), 0, 1);
        for _ in 0..MOST_LOOKS {
            if found >= bytes || from <= first {
                break;
            }
            let start = first.max(from.saturating_sub(count));
            let mut chunks = self.peek(start, bytes + LOOKED_AT);
            chunks.retain(|chunk| chunk.seq < from);
            if chunks.last().is_none_or(|chunk| chunk.seq + 1 < from) {
                // More than was to be looked at; one chunk always comes.
                if count == 1 {
                    break;
                }
                count = 1.max(count / 4);
                continue;
            }
            found += chunks.iter().map(|chunk| chunk.data.len()).sum::<usize>();
            parts.push(chunks);
            from = start;
            count *= 2;
        }
        parts.into_iter().rev().flatten().collect()
    }
}

/// Bytes that a batch has room for.
fn left(batch: &Batch, max_bytes: usize) -> usize {
    let taken: usize = batch.chunks.iter().map(|chunk| chunk.data.len()).sum();
    max_bytes.saturating_sub(taken)
}
