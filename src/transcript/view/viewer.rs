//! A view at work: chunks go in, what is shown comes out.

use super::ends::Ends;
use super::page::{Page, Paged};
use super::runs::Runs;
use super::sieve::Sieve;
use super::strand::{Line, Sink};
use super::{Omitted, View};
use crate::transcript::Chunk;

/// A view at work, from one place of a transcript on.
pub struct Viewer {
    sieve: Sieve,
    selected: Selected,
    since: u64,
    /// Shown and taken already.
    taken: u64,
}

/// Where selected lines go.
enum Selected {
    /// Out, as they come.
    Flow(Flow),
    /// Into an answer that ends between two chunks.
    Page(Page),
    /// The first and the last into an answer.
    Ends(Box<Ends>),
}

#[derive(Default)]
struct Flow {
    runs: Runs,
    left: u64,
    /// The last chunk of which something was shown.
    last: u64,
}

/// What an answer shows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The chunks.
    pub chunks: Vec<Chunk>,
    /// What is missing of those that were taken.
    pub omitted: Omitted,
    /// The first chunk that was not taken, if not all were.
    pub end: Option<u64>,
}

impl Viewer {
    /// A view of an answer that is read from the chunk `since` on.
    pub fn new(view: &View, since: u64) -> Viewer {
        let context = view.grep.as_ref().map_or(0, |grep| grep.context);
        let selected = if view.has_ends() {
            let ends = Ends::new(view.head, view.tail, context, view.max_bytes);
            Selected::Ends(Box::new(ends))
        } else if view.grep.is_some() {
            Selected::Page(Page::new(view.max_bytes))
        } else {
            Selected::Flow(Flow::default())
        };
        Viewer { sieve: Sieve::new(view, since), selected, since, taken: 0 }
    }

    /// The same for one who follows: what is selected comes as soon as it is, but for the last
    /// lines that are there, which come with [`Viewer::go_on`].
    pub fn following(view: &View, since: u64) -> Viewer {
        let mut viewer = Viewer::new(view, since);
        if !view.has_ends() {
            viewer.selected = Selected::Flow(Flow::default());
        }
        viewer
    }

    /// Takes the next chunks, of the streams that are asked for. Those before the place that it
    /// reads from are neither shown nor counted.
    pub fn feed(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            if let (Selected::Page(page), true) = (&mut self.selected, chunk.seq >= self.since) {
                page.expect(chunk);
            }
            self.sieve.feed(chunk, self.selected.sink());
        }
        self.sieve.own();
        match &mut self.selected {
            Selected::Flow(_) => {}
            Selected::Page(page) => page.advance(&mut self.sieve),
            Selected::Ends(ends) => ends.own(),
        }
    }

    /// Some chunks are missing here: what went before has ended.
    pub fn skip(&mut self) {
        self.sieve.skip(self.selected.sink());
    }

    /// Nothing more would be shown in this answer.
    pub fn is_full(&self) -> bool {
        match &self.selected {
            Selected::Flow(flow) => !flow.runs.is_empty(),
            Selected::Page(page) => page.is_full(),
            Selected::Ends(_) => false,
        }
    }

    /// The answer would show something if it ended here.
    pub fn would_show(&self) -> bool {
        let shows = match &self.selected {
            Selected::Flow(flow) => !flow.runs.is_empty(),
            Selected::Page(page) => page.shows(),
            Selected::Ends(ends) => ends.shows(),
        };
        shows || self.sieve.would_match()
    }

    /// What it costs to look at so many new bytes, as [`OutputRegex::search_cost`].
    ///
    /// [`OutputRegex::search_cost`]: crate::transcript::OutputRegex::search_cost
    pub fn cost(&self, new_bytes: usize) -> usize {
        let bytes = self.pending() + new_bytes;
        self.sieve.grep.as_ref().map_or(bytes, |grep| grep.regex.search_cost(bytes))
    }

    /// Bytes of output to look at in one step; none: any number.
    pub fn step_bytes(&self) -> Option<usize> {
        self.sieve.grep.as_ref().map(|grep| grep.regex.step_bytes())
    }

    /// Bytes that are looked at besides what is new.
    pub fn pending(&self) -> usize {
        let kept = match &self.selected {
            Selected::Flow(flow) => flow.runs.bytes(),
            Selected::Page(page) => page.cost(),
            Selected::Ends(ends) => ends.cost(),
        };
        self.sieve.gathered() + kept
    }

    /// Bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        let kept = match &self.selected {
            Selected::Flow(flow) => flow.runs.memory(),
            Selected::Page(page) => page.memory(),
            Selected::Ends(ends) => ends.memory(),
        };
        self.sieve.memory() + kept
    }

    /// The answer. `live`: more may follow what was fed.
    pub fn finish(mut self, live: bool) -> Answer {
        match self.selected {
            Selected::Flow(_) => {
                self.close();
                let chunks = self.take();
                Answer { chunks, omitted: self.omitted(), end: None }
            }
            Selected::Page(page) => {
                let Paged { chunks, bytes, left, end } = page.finish(&mut self.sieve, live);
                let omitted = Omitted { bytes: bytes - length(&chunks), lines: left };
                Answer { chunks, omitted, end }
            }
            Selected::Ends(mut ends) => {
                self.sieve.close(&mut *ends);
                let (chunks, omitted) = shown(*ends, &self.sieve, self.since);
                Answer { chunks, omitted, end: None }
            }
        }
    }

    /// What is selected by now, for one who follows.
    pub fn take(&mut self) -> Vec<Chunk> {
        let Selected::Flow(flow) = &mut self.selected else {
            return Vec::new();
        };
        let runs = std::mem::take(&mut flow.runs);
        self.taken += runs.bytes() as u64;
        runs.into_chunks()
    }

    /// The last lines that are there; from now on lines come as they are selected.
    pub fn go_on(&mut self) -> Vec<Chunk> {
        let Selected::Ends(ends) = &mut self.selected else {
            return Vec::new();
        };
        let ends = std::mem::replace(&mut **ends, Ends::new(0, 0, 0, 0));
        let (chunks, omitted) = shown(ends, &self.sieve, self.since);
        self.taken = length(&chunks);
        self.selected = Selected::Flow(Flow {
            runs: Runs::default(),
            // Those that are not decided on will be counted when they are.
            left: omitted.lines.saturating_sub(self.sieve.undecided_lines()),
            last: chunks.iter().map(|chunk| chunk.seq).max().unwrap_or(0),
        });
        chunks
    }

    /// Decides on everything: nothing follows.
    pub fn close(&mut self) {
        self.sieve.close(self.selected.sink());
    }

    /// What was left out so far, for one who follows.
    pub fn omitted(&self) -> Omitted {
        let Selected::Flow(flow) = &self.selected else {
            return Omitted::default();
        };
        let shown = self.taken + flow.runs.bytes() as u64;
        Omitted { bytes: self.sieve.bytes - shown, lines: flow.left }
    }

    /// Where one who leaves goes on without missing a line that is under way, if nothing that
    /// stands behind it was shown.
    pub fn resumes_at(&self, next: u64) -> u64 {
        match &self.selected {
            Selected::Flow(flow) => {
                let frontier = self.sieve.frontier().max(flow.last + 1).min(next);
                // What was only looked back at was there before.
                frontier.max(self.since)
            }
            Selected::Page(_) | Selected::Ends(_) => self.since,
        }
    }
}

impl Selected {
    fn sink(&mut self) -> &mut dyn Sink {
        match self {
            Selected::Flow(flow) => flow,
            Selected::Page(page) => page,
            Selected::Ends(ends) => &mut **ends,
        }
    }
}

impl Sink for Flow {
    fn show(&mut self, line: Line, piece: Chunk) {
        self.last = self.last.max(piece.seq);
        self.runs.push(line, piece);
    }

    fn leave(&mut self, _: Line) {
        self.left += 1;
    }
}

/// What the ends show of all that was fed.
fn shown(ends: Ends, sieve: &Sieve, since: u64) -> (Vec<Chunk>, Omitted) {
    let fitting = ends.finish(since);
    let bytes = sieve.bytes - fitting.bytes;
    (fitting.chunks, Omitted { bytes, lines: sieve.begun - fitting.lines })
}

fn length(chunks: &[Chunk]) -> u64 {
    chunks.iter().map(|chunk| chunk.data.len() as u64).sum()
}
