//! What of the two ends an answer has room for.

use super::{Ends, Held};
use crate::transcript::Chunk;
use crate::transcript::reader::COST;
use crate::transcript::view::runs::Runs;

/// What the ends show.
pub(in crate::transcript::view) struct Fitting {
    pub(in crate::transcript::view) chunks: Vec<Chunk>,
    pub(in crate::transcript::view) bytes: u64,
    /// Lines of which something is shown, without those that began before the first chunk.
    pub(in crate::transcript::view) lines: u64,
}

impl Ends {
    /// The answer, of which the first chunk is `since`: from the front what fits, and from the
    /// back. Where both ends do not fit, each has half, and what the other does not need.
    pub(in crate::transcript::view) fn finish(mut self, since: u64) -> Fitting {
        for stream in 0..self.pools.len() {
            self.prune(stream);
            let pool = &mut self.pools[stream];
            let reach = pool.tails.back().map(|place| place.number + self.context);
            pool.back.retain(|held| Some(held.line.number) <= reach);
        }
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for pool in &mut self.pools {
            first.extend(pool.front.drain(..));
            last.extend(pool.back.drain(..));
        }
        put_in_order(&mut first);
        put_in_order(&mut last);
        let meet = first.last().zip(last.first());
        if meet.is_some_and(|(first, last)| first.line.index > last.line.index) {
            // What stands around matches of two streams: lines of the other end may come between.
            first.iter_mut().chain(&mut last).for_each(|held| held.joined = false);
        }
        let (front, back) = (cost(&first), cost(&last));
        let half = self.room / 2;
        let room = if back <= half { self.room - back } else { front.min(half) };
        let used = fit_front(&mut first, room);
        fit_back(&mut last, self.room.saturating_sub(used));
        first.append(&mut last);
        show(first, since)
    }
}

/// Puts lines in the order in which they began.
fn put_in_order(lines: &mut [Held]) {
    lines.sort_by_key(|held| held.line.index);
    for at in 0..lines.len() {
        lines[at].joined = at > 0 && lines[at].joins(&lines[at - 1]);
    }
}

/// What lines count for together.
fn cost(lines: &[Held]) -> usize {
    lines.iter().map(Held::cost).sum()
}

/// Keeps the first lines that fit; of the very first as much as does. Tells what they count for.
fn fit_front(lines: &mut Vec<Held>, room: usize) -> usize {
    let mut used = 0;
    let fits = |held: &&Held| {
        used += held.cost();
        used <= room && !held.cut
    };
    let count = lines.iter().take_while(fits).count();
    if count == 0 && !lines.is_empty() {
        lines.truncate(1);
        lines[0].keep_front(room);
    } else {
        lines.truncate(count);
    }
    cost(lines)
}

/// Keeps the last lines that fit; of the very last as much as does.
fn fit_back(lines: &mut Vec<Held>, room: usize) {
    let mut used = 0;
    let mut from = lines.len();
    for (at, held) in lines.iter().enumerate().rev() {
        used += held.cost();
        // The first that is shown has no line before it to be one with.
        let alone = if held.joined { COST as usize } else { 0 };
        if used + alone > room || held.cut {
            break;
        }
        from = at;
    }
    if from == lines.len() && !lines.is_empty() {
        from -= 1;
        lines[from].keep_back(room);
    }
    lines.drain(..from);
}

fn show(mut lines: Vec<Held>, since: u64) -> Fitting {
    lines.sort_by_key(|held| held.line.index);
    let mut runs = Runs::default();
    for held in &mut lines {
        let line = held.line;
        held.take().for_each(|piece| runs.push(line, piece));
    }
    let lines = lines.iter().filter(|held| held.line.begin >= since).count() as u64;
    Fitting { bytes: runs.bytes() as u64, chunks: runs.into_chunks(), lines }
}
