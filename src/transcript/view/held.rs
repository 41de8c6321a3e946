//! A line that is kept until it is known whether it is shown.

use std::collections::VecDeque;

use bytes::Bytes;

use super::strand::{Line, Sink};
use crate::transcript::Chunk;
use crate::transcript::reader::COST;

/// Bytes of a piece that may keep the buffer it was read into.
const LARGE: usize = 32 << 10;

/// Bytes of memory that a line takes besides what it counts for: short lines take mostly that.
pub(super) const LINE_OVERHEAD: usize = size_of::<Held>() + 32;

/// A line that is kept.
pub(super) struct Held {
    pub(super) line: Line,
    /// Most lines have one piece, and need no memory for more.
    first: Option<Chunk>,
    more: VecDeque<Chunk>,
    /// How many of its pieces have memory of their own.
    owned: usize,
    /// What it counts for in an answer by itself.
    cost: usize,
    /// It becomes one with the line before it.
    pub(super) joined: bool,
    /// Something of it is missing.
    pub(super) cut: bool,
}

impl Held {
    pub(super) fn new(line: Line, pieces: impl IntoIterator<Item = Chunk>) -> Held {
        let more = VecDeque::new();
        let (joined, cut) = (false, false);
        let mut held = Held { line, first: None, more, owned: 0, cost: 0, joined, cut };
        pieces.into_iter().for_each(|piece| held.push(piece));
        held
    }

    pub(super) fn push(&mut self, piece: Chunk) {
        self.cost += piece.data.len() + COST as usize;
        match self.first {
            None => self.first = Some(piece),
            Some(_) => self.more.push_back(piece),
        }
    }

    /// What it counts for in an answer.
    pub(super) fn cost(&self) -> usize {
        self.cost.saturating_sub(if self.joined { COST as usize } else { 0 })
    }

    pub(super) fn pieces(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    /// Lets go of its first piece.
    pub(super) fn drop_first(&mut self) {
        let next = self.more.pop_front();
        if let Some(piece) = std::mem::replace(&mut self.first, next) {
            self.cost = self.cost.saturating_sub(piece.data.len() + COST as usize);
            self.owned = self.owned.saturating_sub(1);
            (self.joined, self.cut) = (false, true);
        }
    }

    /// Whether it follows a line in the same chunk, so that the two become one.
    pub(super) fn joins(&self, before: &Held) -> bool {
        let last = before.more.back().or(before.first.as_ref()).map(|piece| piece.seq);
        let first = self.first.as_ref().map(|piece| piece.seq);
        last.is_some() && last == first && before.line.number + 1 == self.line.number
    }

    /// Keeps as much of its beginning as there is room for, but at least a byte.
    pub(super) fn keep_front(&mut self, room: usize) {
        let pieces: Vec<Chunk> = self.take().collect();
        self.fill(pieces.into_iter(), room, |piece, len| piece.data.truncate(len));
    }

    /// Keeps as much of its end as there is room for, but at least a byte.
    pub(super) fn keep_back(&mut self, room: usize) {
        let pieces: Vec<Chunk> = self.take().collect();
        self.fill(pieces.into_iter().rev(), room, |piece, len| {
            let gone = piece.data.len() - len;
            piece.data = piece.data.slice(gone..);
            piece.offset += gone as u64;
        });
        let pieces: Vec<Chunk> = self.take().collect();
        pieces.into_iter().rev().for_each(|piece| self.push(piece));
    }

    fn fill(
        &mut self,
        pieces: impl Iterator<Item = Chunk>,
        room: usize,
        cut: impl Fn(&mut Chunk, usize),
    ) {
        let mut left = room.max(COST as usize + 1);
        for mut piece in pieces {
            let len = piece.data.len().min(left.saturating_sub(COST as usize));
            if len < piece.data.len() {
                self.cut = true;
                cut(&mut piece, len);
            }
            left = left.saturating_sub(piece.data.len() + COST as usize);
            if len > 0 {
                self.push(piece);
            }
        }
    }

    /// Its pieces, in order.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Chunk> + use<> {
        self.cost = 0;
        self.owned = 0;
        self.first.take().into_iter().chain(std::mem::take(&mut self.more))
    }

    /// Shows it.
    pub(super) fn show(mut self, sink: &mut dyn Sink) {
        let line = self.line;
        self.take().for_each(|piece| sink.show(line, piece));
    }

    /// Gives its pieces memory of their own: what is kept for long must not keep all that it was
    /// read with. True: they had it already.
    pub(super) fn own(&mut self) -> bool {
        let all = self.pieces();
        let owned = std::mem::replace(&mut self.owned, all);
        let pieces = self.first.iter_mut().chain(&mut self.more);
        for piece in pieces.skip(owned).filter(|piece| piece.data.len() < LARGE) {
            piece.data = Bytes::copy_from_slice(&piece.data);
        }
        owned == all
    }
}
