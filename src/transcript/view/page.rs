//! Selected lines in an answer that ends between two chunks.
//!
//! Owns the chunks of which something is not decided on, and all that follow them. A chunk is
//! taken, with what it shows and what it leaves out, when all before it are. So what an answer
//! shows depends on nothing but the transcript, and the next one goes on where it ended.

use std::collections::VecDeque;

use super::runs::Runs;
use super::sieve::Sieve;
use super::strand::{Line, Sink};
use crate::transcript::Chunk;
use crate::transcript::reader::COST;

/// What may wait for a line to be decided on. Then it is decided by what there is of it.
const LOOKS_AHEAD: usize = 1 << 20;

/// Bytes that are left for the next answer because a line under way may yet match.
const LEAVES: u64 = 64 << 10;

/// An answer.
pub(super) struct Page {
    room: usize,
    waiting: VecDeque<Waiting>,
    waiting_cost: usize,
    shown: Runs,
    /// Bytes of the chunks that were taken.
    bytes: u64,
    /// Lines that began in them and are left out.
    left: u64,
    /// The first chunk that is not taken.
    end: Option<u64>,
}

/// A chunk that is not taken yet.
struct Waiting {
    seq: u64,
    bytes: u64,
    left: u64,
    shown: Runs,
}

/// What a page has.
pub(super) struct Paged {
    pub(super) chunks: Vec<Chunk>,
    pub(super) bytes: u64,
    pub(super) left: u64,
    /// The first chunk that was not taken, if there is one.
    pub(super) end: Option<u64>,
}

impl Page {
    pub(super) fn new(room: usize) -> Page {
        let (waiting, shown) = Default::default();
        Page { room, waiting, waiting_cost: 0, shown, bytes: 0, left: 0, end: None }
    }

    /// There is room for nothing more.
    pub(super) fn is_full(&self) -> bool {
        self.end.is_some()
    }

    /// Something is shown.
    pub(super) fn shows(&self) -> bool {
        !self.shown.is_empty() || self.waiting.iter().any(|waiting| !waiting.shown.is_empty())
    }

    /// What it counts for in an answer, with what waits.
    pub(super) fn cost(&self) -> usize {
        self.shown.cost() + self.waiting_cost
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        let waiting = self.waiting.iter().map(|one| size_of::<Waiting>() + one.shown.memory());
        self.shown.memory() + waiting.sum::<usize>()
    }

    /// Takes note of a chunk before it is fed to the sieve.
    pub(super) fn expect(&mut self, chunk: &Chunk) {
        let (seq, bytes) = (chunk.seq, chunk.data.len() as u64);
        self.waiting.push_back(Waiting { seq, bytes, left: 0, shown: Runs::default() });
        self.waiting_cost += COST as usize;
    }

    /// Takes what is decided on, and sees to it that not too much waits.
    pub(super) fn advance(&mut self, sieve: &mut Sieve) {
        self.take_before(sieve.frontier());
        while self.waiting_cost > LOOKS_AHEAD && self.end.is_none() {
            sieve.force(self);
            self.take_before(sieve.frontier());
        }
    }

    fn take_before(&mut self, frontier: u64) {
        let before = self.end.map_or(frontier, |end| end.min(frontier));
        while let Some(next) = self.waiting.front().filter(|next| next.seq < before) {
            let full = self.shown.cost() + next.shown.cost() > self.room;
            if full && !self.shown.is_empty() && !next.shown.is_empty() {
                self.end = Some(next.seq);
                return;
            }
            let Some(next) = self.waiting.pop_front() else {
                return;
            };
            self.waiting_cost -= COST as usize + next.shown.bytes();
            self.bytes += next.bytes;
            self.left += next.left;
            self.shown.append(next.shown);
        }
    }

    /// The answer. `live`: more may follow. Then a line under way that does not match is left
    /// for the next answer, if nothing that is shown stands behind its beginning.
    pub(super) fn finish(mut self, sieve: &mut Sieve, live: bool) -> Paged {
        if self.end.is_none() {
            sieve.select_open(&mut self);
            self.end = sieve.undecided_from().filter(|_| live).and_then(|from| self.leaves(from));
        }
        sieve.close(&mut self);
        self.take_before(u64::MAX);
        let end = self.waiting.front().map(|next| next.seq);
        let Page { shown, bytes, left, .. } = self;
        Paged { chunks: shown.into_ordered(), bytes, left, end }
    }

    /// The chunk from which on everything can be left for the next answer, where that is little.
    fn leaves(&self, from: u64) -> Option<u64> {
        let shown = self.waiting.iter().rev().find(|waiting| !waiting.shown.is_empty());
        let end = shown.map_or(from, |shown| from.max(shown.seq + 1));
        let rest = self.waiting.iter().rev().take_while(|waiting| waiting.seq >= end);
        (rest.map(|waiting| waiting.bytes).sum::<u64>() <= LEAVES).then_some(end)
    }

    fn waiting(&mut self, seq: u64) -> Option<&mut Waiting> {
        let at = self.waiting.partition_point(|waiting| waiting.seq < seq);
        self.waiting.get_mut(at).filter(|waiting| waiting.seq == seq)
    }
}

impl Sink for Page {
    fn show(&mut self, line: Line, piece: Chunk) {
        let bytes = piece.data.len();
        if let Some(waiting) = self.waiting(piece.seq) {
            waiting.shown.push_apart(line, piece);
            self.waiting_cost += bytes;
        }
    }

    fn leave(&mut self, line: Line) {
        if let Some(waiting) = self.waiting(line.begin) {
            waiting.left += 1;
        }
    }
}
