//! The first and the last of the selected lines.
//!
//! Owns, of each stream, the lines that may be among the first (`front`) and those that may be
//! among the last (`back`). Only lines that match are counted; the others are kept as long as
//! they stand near one that is. Streams are decided on independently of each other, so a line may
//! turn out to match after others that began later: the first ones are the first to begin.
//!
//! Both sides are bounded by what an answer can show.

mod fit;

use std::collections::VecDeque;

use super::held::{Held, LINE_OVERHEAD};
use super::strand::{Line, Sink};
use crate::transcript::Chunk;

/// Lines that are kept on one side, however short they are.
const MOST: usize = 200_000;

/// The ends of a transcript.
pub(super) struct Ends {
    head: usize,
    tail: usize,
    context: u64,
    room: usize,
    pools: [Pool; 4],
    /// Matches among the first.
    heads: usize,
    /// Matches among the last.
    tails: usize,
    /// The last that no longer is: none before it can be.
    retired: Option<u64>,
    front: Kept,
    back: Kept,
}

/// The lines of one stream. All of `front` stand before all of `back`.
#[derive(Default)]
struct Pool {
    front: VecDeque<Held>,
    back: VecDeque<Held>,
    heads: VecDeque<Place>,
    tails: VecDeque<Place>,
    /// Number of the newest line.
    newest: u64,
}

/// Where a match is.
#[derive(Clone, Copy)]
struct Place {
    index: u64,
    number: u64,
}

/// How much is kept on one side.
#[derive(Default)]
struct Kept {
    cost: usize,
    lines: usize,
}

impl Kept {
    fn add(&mut self, held: &Held) {
        self.cost += held.cost();
        self.lines += 1;
    }

    fn remove(&mut self, held: &Held) {
        self.cost = self.cost.saturating_sub(held.cost());
        self.lines -= 1;
    }

    fn is_too_much(&self, room: usize) -> bool {
        self.cost > room || self.lines > MOST
    }
}

impl Ends {
    pub(super) fn new(head: usize, tail: usize, context: usize, room: usize) -> Ends {
        let (pools, front, back) = Default::default();
        let context = context as u64;
        let (heads, tails, retired) = (0, 0, None);
        Ends { head, tail, context, room, pools, heads, tails, retired, front, back }
    }

    /// Something is shown.
    pub(super) fn shows(&self) -> bool {
        self.heads + self.tails > 0
    }

    /// What it counts for in an answer.
    pub(super) fn cost(&self) -> usize {
        self.front.cost + self.back.cost
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        self.cost() + (self.front.lines + self.back.lines) * LINE_OVERHEAD
    }

    /// Gives what is kept memory of its own.
    pub(super) fn own(&mut self) {
        for pool in &mut self.pools {
            for lines in [&mut pool.front, &mut pool.back] {
                // What was kept before has it.
                for held in lines.iter_mut().rev() {
                    if held.own() {
                        break;
                    }
                }
            }
        }
    }

    /// Takes note of a match.
    fn enlist(&mut self, line: Line) {
        let place = Place { index: line.index, number: line.number };
        let stream = line.stream as usize;
        let room = self.heads < self.head && !self.front.is_too_much(self.room);
        if room || self.last_head() > Some(line.index) {
            self.pools[stream].heads.push_back(place);
            self.heads += 1;
            self.move_to_front(stream, line.number);
            if self.heads > self.head {
                self.demote();
            }
        } else if Some(line.index) > self.retired {
            self.pools[stream].tails.push_back(place);
            self.tails += 1;
        }
        while self.tails > self.tail {
            self.retire();
        }
    }

    /// The last of the first matches.
    fn last_head(&self) -> Option<u64> {
        self.pools.iter().filter_map(|pool| pool.heads.back()).map(|place| place.index).max()
    }

    /// The last of the first matches is no longer among them.
    fn demote(&mut self) {
        let newest = |pool: &&mut Pool| pool.heads.back().map(|place| place.index);
        let Some(pool) = self.pools.iter_mut().max_by_key(newest) else {
            return;
        };
        if let Some(place) = pool.heads.pop_back() {
            self.heads -= 1;
            if Some(place.index) > self.retired {
                pool.tails.push_front(place);
                self.tails += 1;
            }
        }
        let reach = pool.reach(self.context);
        while pool.front.back().is_some_and(|held| Some(held.line.number) > reach) {
            let Some(held) = pool.front.pop_back() else {
                break;
            };
            self.front.remove(&held);
            self.back.add(&held);
            pool.back.push_front(held);
        }
    }

    /// The first of the last matches is no longer among them.
    fn retire(&mut self) {
        let oldest = |(_, pool): &(usize, &Pool)| pool.tails.front().map(|place| place.index);
        let pools = self.pools.iter().enumerate().filter(|(_, pool)| !pool.tails.is_empty());
        if let Some((stream, _)) = pools.min_by_key(oldest) {
            let place = self.pools[stream].tails.pop_front();
            self.retired = self.retired.max(place.map(|place| place.index));
            self.tails -= 1;
            self.prune(stream);
        }
    }

    /// Lets go of lines that no match is near any more. One that is still to come may be near the
    /// newest.
    fn prune(&mut self, stream: usize) {
        let pool = &mut self.pools[stream];
        let near = pool.tails.front().map_or(pool.newest, |place| place.number);
        let from = near.saturating_sub(self.context);
        while let Some(held) = pop_if(&mut pool.back, |held| held.line.number < from) {
            self.back.remove(&held);
        }
    }

    /// Moves what was kept before one of the first matches, for what might come, to the front.
    fn move_to_front(&mut self, stream: usize, number: u64) {
        let pool = &mut self.pools[stream];
        while let Some(held) = pop_if(&mut pool.back, |held| held.line.number < number) {
            self.back.remove(&held);
            if held.line.number + self.context >= number {
                self.front.add(&held);
                pool.front.push_back(held);
            }
        }
    }

    /// Keeps a line that begins.
    fn place(&mut self, line: Line, piece: Chunk) {
        // One that was decided on late takes the room of others. Of each stream that is one.
        let room = !self.front.is_too_much(self.room) || self.last_head() > Some(line.index);
        let pool = &mut self.pools[line.stream as usize];
        let first = Some(line.number) <= pool.reach(self.context);
        let (lines, kept) = if first && room {
            (&mut pool.front, &mut self.front)
        } else {
            (&mut pool.back, &mut self.back)
        };
        let mut held = Held::new(line, [piece]);
        held.joined = lines.back().is_some_and(|before| held.joins(before));
        kept.add(&held);
        lines.push_back(held);
    }

    /// Goes on with the line that was kept last, if it is this one.
    fn go_on(&mut self, line: Line, piece: Chunk) {
        let pool = &mut self.pools[line.stream as usize];
        let is_it = |held: &&mut Held| held.line.number == line.number;
        if let Some(held) = pool.back.back_mut().filter(is_it) {
            self.back.cost -= held.cost();
            held.push(piece);
            self.back.cost += held.cost();
        } else if let Some(held) = pool.front.back_mut().filter(is_it) {
            if self.front.is_too_much(self.room) {
                held.cut = true;
                return;
            }
            self.front.cost -= held.cost();
            held.push(piece);
            self.front.cost += held.cost();
        }
    }

    /// Lets go of what there will be no room for.
    fn shrink(&mut self) {
        while self.back.is_too_much(self.room) {
            if self.tails > 1 {
                self.retire();
            } else if !self.drop_piece() {
                return;
            }
        }
    }

    /// Lets go of the oldest piece that may be among the last, if it is not the only one.
    fn drop_piece(&mut self) -> bool {
        // What is kept only for what might come goes first.
        let oldest = |pool: &&mut Pool| {
            (!pool.tails.is_empty(), pool.back.front().map(|held| held.line.index))
        };
        let pools = self.pools.iter_mut().filter(|pool| !pool.back.is_empty());
        let Some(pool) = pools.min_by_key(oldest) else {
            return false;
        };
        let Some(held) = pool.back.front_mut() else {
            return false;
        };
        if held.pieces() > 1 {
            self.back.cost -= held.cost();
            held.drop_first();
            self.back.cost += held.cost();
            return true;
        }
        if self.back.lines == 1 {
            return false;
        }
        if let Some(held) = pool.back.pop_front() {
            self.back.remove(&held);
        }
        true
    }
}

impl Pool {
    /// The last line that stands near one of the first matches.
    fn reach(&self, context: u64) -> Option<u64> {
        self.heads.back().map(|place| place.number + context)
    }
}

/// Takes the first line if it is such a one.
fn pop_if(lines: &mut VecDeque<Held>, is_such: impl Fn(&Held) -> bool) -> Option<Held> {
    if lines.front().is_some_and(is_such) { lines.pop_front() } else { None }
}

impl Sink for Ends {
    fn show(&mut self, line: Line, piece: Chunk) {
        let newest = &mut self.pools[line.stream as usize].newest;
        if line.number > *newest {
            *newest = line.number;
            if line.matched {
                self.enlist(line);
            }
            self.place(line, piece);
        } else {
            self.go_on(line, piece);
        }
        self.shrink();
    }

    fn leave(&mut self, _: Line) {}
}
