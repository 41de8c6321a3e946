//! One stream of a transcript as lines, and which of them are selected.
//!
//! Owns the line under way, the lines that may yet be shown because a match follows, and how
//! many are still shown because one went before. A line is decided on once: when it ends, or when
//! its first [`LONGEST`] bytes are there. From then on its pieces go through or go.

use std::collections::VecDeque;

use bytes::Bytes;

use super::Grep;
use super::ansi::Stripper;
use super::held::{Held, LINE_OVERHEAD};
use crate::transcript::{Chunk, Stream};

/// Bytes of a line that decide whether it matches.
pub(super) const LONGEST: usize = 64 << 10;

/// Bytes of lines that wait for a match to follow: as much as an answer has by default.
const BEFORE: usize = 1 << 20;

/// A line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Counts the lines of all streams, in the order in which they begin.
    pub(super) index: u64,
    /// Counts those of its stream, from 1.
    pub(super) number: u64,
    /// Where it was printed.
    pub(super) stream: Stream,
    /// The chunk in which it begins.
    pub(super) begin: u64,
    /// It is selected for what it says.
    pub(super) matched: bool,
}

/// Takes what a strand has decided.
pub(super) trait Sink {
    /// A piece of a line that is selected. Pieces of a stream come in order.
    fn show(&mut self, line: Line, piece: Chunk);
    /// A line is not selected.
    fn leave(&mut self, line: Line);
}

/// One stream.
pub(super) struct Strand {
    stripper: Option<Stripper>,
    /// Lines that were begun.
    begun: u64,
    open: Option<Open>,
    /// The last lines, none of which is selected so far.
    before: VecDeque<Held>,
    before_cost: usize,
    /// Lines still to be shown after a match.
    after: usize,
}

/// A line under way.
struct Open {
    line: Line,
    fate: Fate,
}

enum Fate {
    Shown,
    Left,
    Undecided(Gathered),
}

/// Pieces of a line, put together to be searched. Lines within a chunk never get here.
#[derive(Default)]
struct Gathered {
    text: Vec<u8>,
    /// The chunks of the pieces, without their bytes, and where each begins.
    pieces: Vec<(Chunk, usize)>,
}

impl Strand {
    pub(super) fn new(strip: bool) -> Strand {
        let stripper = strip.then(Stripper::default);
        let before = VecDeque::new();
        Strand { stripper, begun: 0, open: None, before, before_cost: 0, after: 0 }
    }

    /// No line is under way.
    pub(super) fn is_between_lines(&self) -> bool {
        self.open.is_none()
    }

    /// Begins a line.
    pub(super) fn begin(&mut self, chunk: &Chunk, index: u64, grep: Option<&Grep>) {
        self.begun += 1;
        let Chunk { seq: begin, stream, .. } = *chunk;
        let line = Line { index, number: self.begun, stream, begin, matched: grep.is_none() };
        let fate = if grep.is_none() { Fate::Shown } else { Fate::Undecided(Gathered::default()) };
        self.open = Some(Open { line, fate });
    }

    /// Takes the next piece of the line under way. `whole`: the line ends with it.
    pub(super) fn add(
        &mut self,
        piece: Chunk,
        whole: bool,
        grep: Option<&Grep>,
        sink: &mut dyn Sink,
    ) {
        let pieces = match &mut self.stripper {
            Some(stripper) => stripper.strip(piece),
            None => [None, Some(piece)],
        };
        let Some(Open { line, fate }) = &mut self.open else {
            return;
        };
        match (fate, grep) {
            (Fate::Shown, _) => pieces.into_iter().flatten().for_each(|p| sink.show(*line, p)),
            (Fate::Undecided(gathered), Some(grep)) => match pieces {
                [None, Some(piece)] if whole && gathered.pieces.is_empty() => {
                    let matched = grep.regex.is_match(content(&piece.data));
                    self.decide(matched, std::iter::once(piece), grep, sink);
                }
                pieces => {
                    pieces.into_iter().flatten().for_each(|piece| gathered.add(piece));
                    if whole || gathered.text.len() >= LONGEST + "\r\n".len() {
                        self.decide_now(grep, sink);
                    }
                }
            },
            (Fate::Left | Fate::Undecided(_), _) => {}
        }
        if whole {
            self.open = None;
        }
    }

    /// Decides on the line under way by what there is of it.
    fn decide_now(&mut self, grep: &Grep, sink: &mut dyn Sink) {
        let Some(Open { fate: Fate::Undecided(gathered), .. }) = &mut self.open else {
            return;
        };
        let gathered = std::mem::take(gathered);
        self.decide(gathered.matches(grep), gathered.into_pieces(), grep, sink);
    }

    fn decide(
        &mut self,
        matched: bool,
        pieces: impl IntoIterator<Item = Chunk>,
        grep: &Grep,
        sink: &mut dyn Sink,
    ) {
        let Some(Open { line, fate }) = &mut self.open else {
            return;
        };
        line.matched = matched;
        let line = *line;
        if matched {
            self.after = grep.context;
            self.before_cost = 0;
            self.before.drain(..).for_each(|held| held.show(sink));
        } else if self.after > 0 {
            self.after -= 1;
        } else {
            *fate = Fate::Left;
            return self.keep(line, pieces, grep, sink);
        }
        *fate = Fate::Shown;
        pieces.into_iter().for_each(|piece| sink.show(line, piece));
    }

    /// Keeps a line that does not match, in case that the next one does.
    fn keep(
        &mut self,
        line: Line,
        pieces: impl IntoIterator<Item = Chunk>,
        grep: &Grep,
        sink: &mut dyn Sink,
    ) {
        if grep.context == 0 {
            return sink.leave(line);
        }
        let held = Held::new(line, pieces);
        self.before_cost += held.cost();
        self.before.push_back(held);
        while self.before.len() > grep.context || self.before_cost > BEFORE {
            self.leave_first(sink);
        }
    }

    fn leave_first(&mut self, sink: &mut dyn Sink) {
        if let Some(held) = self.before.pop_front() {
            self.before_cost = self.before_cost.saturating_sub(held.cost());
            sink.leave(held.line);
        }
    }

    /// Whether the line under way would be selected if it ended here.
    pub(super) fn would_match(&self, grep: &Grep) -> bool {
        self.undecided().is_some_and(|(_, gathered)| gathered.matches(grep))
    }

    /// The chunk in which a line under way begins that is not decided on.
    pub(super) fn undecided_from(&self) -> Option<u64> {
        self.undecided().map(|(line, _)| line.begin)
    }

    fn undecided(&self) -> Option<(&Line, &Gathered)> {
        match self.open.as_ref()? {
            Open { line, fate: Fate::Undecided(gathered) } => Some((line, gathered)),
            _ => None,
        }
    }

    /// How many lines that began in the chunk `since` or later are not decided on.
    pub(super) fn undecided_lines(&self, since: u64) -> usize {
        let kept = self.before.iter().map(|held| held.line.begin);
        kept.chain(self.undecided_from()).filter(|begin| *begin >= since).count()
    }

    /// The first chunk of which something is not decided on.
    pub(super) fn frontier(&self) -> Option<u64> {
        let waits = self.stripper.as_ref().and_then(Stripper::waits_in);
        let kept = self.before.front().map(|held| held.line.begin);
        [waits, kept, self.undecided_from()].into_iter().flatten().min()
    }

    /// Decides on what is oldest by what there is.
    pub(super) fn force(&mut self, grep: Option<&Grep>, sink: &mut dyn Sink) {
        if !self.before.is_empty() {
            return self.leave_first(sink);
        }
        self.flush(sink);
        if let Some(grep) = grep {
            self.decide_now(grep, sink);
        }
    }

    /// Decides on everything: nothing follows, or nothing that is known.
    pub(super) fn close(&mut self, grep: Option<&Grep>, sink: &mut dyn Sink) {
        self.flush(sink);
        if let Some(grep) = grep {
            self.decide_now(grep, sink);
        }
        while !self.before.is_empty() {
            self.leave_first(sink);
        }
    }

    /// Forgets what went before, when all of it is decided on.
    pub(super) fn reset(&mut self) {
        *self = Strand { begun: self.begun, ..Strand::new(self.stripper.is_some()) };
    }

    /// Lets go of the byte that waits for the next one.
    fn flush(&mut self, sink: &mut dyn Sink) {
        let waited = self.stripper.as_mut().and_then(Stripper::flush);
        let (Some(piece), Some(Open { line, fate })) = (waited, &mut self.open) else {
            return;
        };
        match fate {
            Fate::Shown => sink.show(*line, piece),
            Fate::Left => {}
            Fate::Undecided(gathered) => gathered.add(piece),
        }
    }

    /// Gives what is kept memory of its own.
    pub(super) fn own(&mut self) {
        for held in self.before.iter_mut().rev() {
            if held.own() {
                break;
            }
        }
    }

    /// Bytes that would be searched if everything were decided on.
    pub(super) fn gathered(&self) -> usize {
        self.undecided().map_or(0, |(_, gathered)| gathered.text.len())
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        let pieces = self.undecided().map_or(0, |(_, gathered)| gathered.pieces.len());
        let before = self.before_cost + self.before.len() * LINE_OVERHEAD;
        self.gathered() + pieces * size_of::<(Chunk, usize)>() + before
    }
}

impl Gathered {
    fn add(&mut self, piece: Chunk) {
        let at = self.text.len();
        self.text.extend_from_slice(&piece.data);
        self.pieces.push((Chunk { data: Bytes::new(), ..piece }, at));
    }

    fn matches(&self, grep: &Grep) -> bool {
        // Nothing but escape sequences is no line to be seen.
        let content = content(&self.text);
        !self.text.is_empty() && grep.regex.is_match(&content[..content.len().min(LONGEST)])
    }

    fn into_pieces(self) -> impl Iterator<Item = Chunk> {
        let text = Bytes::from(self.text);
        let ends: Vec<usize> =
            self.pieces.iter().skip(1).map(|(_, at)| *at).chain([text.len()]).collect();
        let pieces = self.pieces.into_iter().zip(ends);
        pieces.map(move |((piece, at), end)| Chunk { data: text.slice(at..end), ..piece })
    }
}

/// A line without its end.
fn content(line: &[u8]) -> &[u8] {
    let Some(line) = line.strip_suffix(b"\n") else {
        return line;
    };
    line.strip_suffix(b"\r").unwrap_or(line)
}
