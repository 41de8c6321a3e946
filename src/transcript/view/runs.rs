//! Pieces of lines, put together to the chunks of an answer.
//!
//! Owns what is shown, in its own memory: a few bytes of a chunk do not keep the buffer that it
//! was read into. Pieces of one chunk become one as long as no line was left out between them.

use super::strand::Line;
use crate::transcript::Chunk;
use crate::transcript::reader::COST;

/// Pieces of one chunk that follow each other.
pub(super) struct Run {
    /// The line of the first piece.
    first: Line,
    /// Number of the line of the last piece.
    last: u64,
    /// The chunk, but for its bytes.
    of: Chunk,
    data: Vec<u8>,
}

/// What is shown.
#[derive(Default)]
pub(super) struct Runs {
    runs: Vec<Run>,
    bytes: usize,
}

impl Runs {
    /// Adds a piece.
    pub(super) fn push(&mut self, line: Line, piece: Chunk) {
        self.bytes += piece.data.len();
        match self.runs.last_mut() {
            Some(run) if joins(run, line.number, piece.seq) => {
                run.last = line.number;
                run.data.extend_from_slice(&piece.data);
            }
            _ => self.runs.push(Run::new(line, piece)),
        }
    }

    /// The same for pieces that will be ordered: the rest of a line that began in another chunk
    /// stays apart from the next line.
    pub(super) fn push_apart(&mut self, line: Line, piece: Chunk) {
        let continued = |run: &Run| run.first.begin < run.of.seq && run.last != line.number;
        if self.runs.last().is_some_and(continued) {
            self.bytes += piece.data.len();
            self.runs.push(Run::new(line, piece));
        } else {
            self.push(line, piece);
        }
    }

    pub(super) fn append(&mut self, mut other: Runs) {
        self.bytes += other.bytes;
        self.runs.append(&mut other.runs);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Bytes that are shown.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What it counts for in an answer.
    pub(super) fn cost(&self) -> usize {
        self.bytes + self.runs.len() * COST as usize
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        self.bytes + self.runs.len() * (size_of::<Run>() + COST as usize)
    }

    /// As chunks, in the order in which they came.
    pub(super) fn into_chunks(self) -> Vec<Chunk> {
        let chunk = |run: Run| Chunk { data: run.data.into(), ..run.of };
        self.runs.into_iter().map(chunk).collect()
    }

    /// As chunks, in the order in which their lines began.
    pub(super) fn into_ordered(mut self) -> Vec<Chunk> {
        self.runs.sort_by_key(|run| run.first.index);
        let mut joined: Vec<Run> = Vec::with_capacity(self.runs.len());
        for run in self.runs {
            match joined.last_mut() {
                Some(before) if joins(before, run.first.number, run.of.seq) => {
                    before.last = run.last;
                    before.data.extend_from_slice(&run.data);
                }
                _ => joined.push(run),
            }
        }
        Runs { runs: joined, bytes: self.bytes }.into_chunks()
    }
}

impl Run {
    fn new(line: Line, piece: Chunk) -> Run {
        let data = piece.data.to_vec();
        let of = Chunk { data: bytes::Bytes::new(), ..piece };
        Run { first: line, last: line.number, of, data }
    }
}

/// Whether a piece goes on with a run: there is nothing between but what was taken out of lines.
fn joins(run: &Run, number: u64, seq: u64) -> bool {
    run.of.seq == seq && (run.last == number || run.last + 1 == number)
}
