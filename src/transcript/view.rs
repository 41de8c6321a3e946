//! How an answer shows a transcript. Pure: chunks in, chunks out, and a count of what is missing.
//!
//! Owns the way from what was printed to what is shown. Each stream goes by itself through a
//! `strand`, which takes escape sequences out (`ansi`), finds lines and decides which are
//! selected; `sieve` holds the strands. What is selected goes to one of three: to `runs` as it
//! comes, to a `page` that stops at a chunk when it is full, or to the `ends`, which keep the
//! first and the last. A [`Viewer`] is all of it together.
//!
//! Nothing here grows with the transcript, or with a line: what is decided is let go, what is
//! not has a bound. Never reads, never waits.

mod ansi;
mod ends;
mod held;
mod page;
mod runs;
mod sieve;
mod strand;
mod viewer;

#[cfg(test)]
mod tests;

use super::output_regex::OutputRegex;

pub use viewer::{Answer, Viewer};

/// How an answer shows a transcript.
#[derive(Clone, Debug)]
pub struct View {
    /// Most bytes of output in one answer.
    pub max_bytes: usize,
    /// Without escape sequences and most control characters.
    pub strip_ansi: bool,
    /// Only so many of the first lines; 0: all, unless there is a tail.
    pub head: usize,
    /// Only so many of the last lines; 0: all, unless there is a head.
    pub tail: usize,
    /// Only lines that match.
    pub grep: Option<Grep>,
}

/// Lines to look for.
#[derive(Clone, Debug)]
pub struct Grep {
    /// What a line must match.
    pub regex: OutputRegex,
    /// Lines of the same stream to show before and after each.
    pub context: usize,
}

/// What a view left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Omitted {
    /// Bytes of lines that were left out, and of what was taken out of the others.
    pub bytes: u64,
    /// Lines of which nothing is shown. A line counts where it begins.
    pub lines: u64,
}

impl View {
    /// Most that can be asked for in one answer.
    pub const MAX_BYTES: usize = 3 << 20;

    /// Chunks come as they are.
    pub fn is_plain(&self) -> bool {
        !self.strip_ansi && !self.has_ends() && self.grep.is_none()
    }

    /// Bytes that its regex takes.
    pub fn compiled_bytes(&self) -> usize {
        self.grep.as_ref().map_or(0, |grep| grep.regex.compiled_bytes())
    }

    /// Only the first or the last lines are shown.
    pub fn has_ends(&self) -> bool {
        self.head > 0 || self.tail > 0
    }

    /// How many bytes before a place are to be looked at, so that it is known what goes on there:
    /// an escape sequence, a line, what follows a match.
    pub fn looks_back(&self) -> usize {
        /// Longer sequences, images and the like, are rarely read from their middle on; and the
        /// last byte of each stream, which tells whether a line is under way, is rarely before.
        const NEAR: usize = 4 << 10;
        match &self.grep {
            Some(_) => strand::LONGEST,
            None if self.is_plain() => 0,
            None => NEAR,
        }
    }
}

impl Default for View {
    fn default() -> View {
        View { max_bytes: 1 << 20, strip_ansi: false, head: 0, tail: 0, grep: None }
    }
}
