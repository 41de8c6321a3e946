//! All streams of a transcript as lines.
//!
//! Owns the strands, and the count of what went in. What lies before the place from which an
//! answer is read goes through the same strands, and is neither shown nor counted.

use super::strand::{Line, Sink, Strand};
use super::{Grep, View};
use crate::transcript::Chunk;

/// All streams.
pub(super) struct Sieve {
    strands: [Strand; 4],
    pub(super) grep: Option<Grep>,
    /// The first chunk that counts.
    since: u64,
    /// Lines of all streams that were begun.
    index: u64,
    /// Of the chunks that count.
    pub(super) bytes: u64,
    /// Lines that began in the chunks that count.
    pub(super) begun: u64,
}

/// Passes on what counts.
struct Counted<'a> {
    since: u64,
    sink: &'a mut dyn Sink,
}

impl Sink for Counted<'_> {
    fn show(&mut self, line: Line, piece: Chunk) {
        if piece.seq >= self.since {
            self.sink.show(line, piece);
        }
    }

    fn leave(&mut self, line: Line) {
        if line.begin >= self.since {
            self.sink.leave(line);
        }
    }
}

impl Sieve {
    pub(super) fn new(view: &View, since: u64) -> Sieve {
        let strands = std::array::from_fn(|_| Strand::new(view.strip_ansi));
        Sieve { strands, grep: view.grep.clone(), since, index: 0, bytes: 0, begun: 0 }
    }

    /// Takes a chunk.
    pub(super) fn feed(&mut self, chunk: &Chunk, sink: &mut dyn Sink) {
        let since = self.since;
        let sink = &mut Counted { since, sink };
        let strand = &mut self.strands[chunk.stream as usize];
        let grep = self.grep.as_ref();
        let counts = chunk.seq >= since;
        self.bytes += if counts { chunk.data.len() as u64 } else { 0 };
        let mut at = 0;
        while at < chunk.data.len() {
            let rest = &chunk.data[at..];
            let feed = rest.iter().position(|byte| *byte == b'\n');
            let end = at + feed.map_or(rest.len(), |feed| feed + 1);
            if strand.is_between_lines() {
                strand.begin(chunk, self.index, grep);
                self.index += 1;
                self.begun += u64::from(counts);
            }
            let data = chunk.data.slice(at..end);
            let piece = Chunk { offset: chunk.offset + at as u64, data, ..chunk.clone() };
            strand.add(piece, feed.is_some(), grep, sink);
            at = end;
        }
    }

    /// The first chunk of which something is not decided on.
    pub(super) fn frontier(&self) -> u64 {
        self.strands.iter().filter_map(Strand::frontier).min().unwrap_or(u64::MAX)
    }

    /// The first chunk in which a line under way begins that is not decided on.
    pub(super) fn undecided_from(&self) -> Option<u64> {
        self.strands.iter().filter_map(Strand::undecided_from).min()
    }

    /// How many lines that count are not decided on.
    pub(super) fn undecided_lines(&self) -> u64 {
        let lines = self.strands.iter().map(|strand| strand.undecided_lines(self.since));
        lines.sum::<usize>() as u64
    }

    /// Whether a line under way would be selected if it ended here.
    pub(super) fn would_match(&self) -> bool {
        let grep = self.grep.as_ref();
        grep.is_some_and(|grep| self.strands.iter().any(|strand| strand.would_match(grep)))
    }

    /// Decides on what is oldest by what there is.
    pub(super) fn force(&mut self, sink: &mut dyn Sink) {
        let oldest = self.strands.iter_mut().filter(|strand| strand.frontier().is_some());
        if let Some(strand) = oldest.min_by_key(|strand| strand.frontier()) {
            strand.force(self.grep.as_ref(), &mut Counted { since: self.since, sink });
        }
    }

    /// Decides on the lines under way that match as they are.
    pub(super) fn select_open(&mut self, sink: &mut dyn Sink) {
        let Some(grep) = &self.grep else {
            return;
        };
        for strand in self.strands.iter_mut().filter(|strand| strand.would_match(grep)) {
            strand.close(Some(grep), &mut Counted { since: self.since, sink });
        }
    }

    /// Decides on everything.
    pub(super) fn close(&mut self, sink: &mut dyn Sink) {
        let sink = &mut Counted { since: self.since, sink };
        self.strands.iter_mut().for_each(|strand| strand.close(self.grep.as_ref(), sink));
    }

    /// Decides on everything, and begins anew: something is missing here.
    pub(super) fn skip(&mut self, sink: &mut dyn Sink) {
        self.close(sink);
        self.strands.iter_mut().for_each(Strand::reset);
    }

    /// Gives what is kept memory of its own, and frees what only the search needed.
    pub(super) fn own(&mut self) {
        self.strands.iter_mut().for_each(Strand::own);
        if let Some(grep) = &mut self.grep {
            grep.regex.drop_cache();
        }
    }

    /// Bytes that would be searched if everything were decided on.
    pub(super) fn gathered(&self) -> usize {
        self.strands.iter().map(Strand::gathered).sum()
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        self.strands.iter().map(Strand::memory).sum()
    }
}
