//! Finding a pattern in output that comes in pieces. Pure.
//!
//! Owns the tail of each stream that a match may begin in. Streams are searched apart: what a
//! process says on stderr does not come between two halves of a line on stdout.

use super::output_regex::OutputRegex;
use super::{Chunk, Stream};

/// Bytes before a chunk in which a match may begin.
const REACH: usize = 8 << 10;

/// Output that matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The chunk in which it ends.
    pub seq: u64,
    /// The text, with replacement characters for what is not UTF-8.
    pub text: String,
}

/// A search under way.
pub struct Matcher {
    regex: OutputRegex,
    tails: [Tail; 4],
}

/// The end of a stream, as far as it was searched.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
    /// Something lies before it: its first byte is only context.
    cut: bool,
}

impl Matcher {
    /// A search that begins.
    pub fn new(regex: OutputRegex) -> Matcher {
        Matcher { regex, tails: Default::default() }
    }

    /// Goes on with the next chunks. Of each stream they are searched together: however small
    /// the pieces are, no byte is searched more often than there are calls of this within reach.
    pub fn feed(&mut self, chunks: &[Chunk]) -> Option<Match> {
        let streams = [Stream::Stdout, Stream::Stderr, Stream::Terminal];
        let found = streams.into_iter().filter_map(|stream| self.search(stream, chunks));
        let found = found.min_by_key(|found| found.seq);
        self.regex.drop_cache();
        found
    }

    fn search(&mut self, stream: Stream, chunks: &[Chunk]) -> Option<Match> {
        let tail = &mut self.tails[stream as usize];
        let new = chunks.iter().filter(|chunk| chunk.stream == stream);
        let ends = new.scan(tail.bytes.len(), |end, chunk| {
            tail.bytes.extend_from_slice(&chunk.data);
            *end += chunk.data.len();
            Some((*end, chunk.seq))
        });
        let ends: Vec<(usize, u64)> = ends.collect();
        let (_, last) = ends.last()?;
        // Behind a cut, the first byte stands for all that went before: no line begins there.
        let from = usize::from(tail.cut).min(tail.bytes.len());
        if let Some(found) = self.regex.find_at(&tail.bytes, from) {
            let text = String::from_utf8_lossy(&tail.bytes[found.clone()]).into_owned();
            let seq = ends.iter().find(|(end, _)| found.end <= *end).map_or(*last, |(_, seq)| *seq);
            return Some(Match { seq, text });
        }
        if tail.bytes.len() > REACH {
            let excess = tail.bytes.len() - REACH;
            tail.bytes.drain(..excess);
            tail.cut = true;
        }
        None
    }

    /// What a search through so many new bytes costs, as [`OutputRegex::search_cost`].
    pub fn cost(&self, new_bytes: usize) -> usize {
        let pending: usize = self.tails.iter().map(|tail| tail.bytes.len()).sum();
        self.regex.search_cost(pending + new_bytes)
    }

    /// Bytes of output to search in one step.
    pub fn step_bytes(&self) -> usize {
        self.regex.step_bytes()
    }

    /// Forgets what went before: some chunks are missing.
    pub fn skip(&mut self) {
        self.tails = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(seq: u64, stream: Stream, data: &[u8]) -> Chunk {
        Chunk { seq, stream, offset: 0, time: 0, data: data.to_vec().into() }
    }

    fn matcher(pattern: &str) -> Matcher {
        Matcher::new(OutputRegex::new(pattern, false).unwrap())
    }

    #[test]
    fn a_match_may_lie_across_chunks_and_between_those_of_another_stream() {
        let mut matcher = matcher("ready on [0-9]+\n");
        assert_eq!(matcher.feed(&[chunk(1, Stream::Stdout, b"rea")]), None);
        assert_eq!(matcher.feed(&[chunk(2, Stream::Stderr, b"warning")]), None);
        assert_eq!(matcher.feed(&[chunk(3, Stream::Stdout, b"dy on 80")]), None);
        let found = matcher.feed(&[chunk(4, Stream::Stdout, b"80\n")]).unwrap();
        assert_eq!((found.seq, &found.text[..]), (4, "ready on 8080\n"));
    }

    #[test]
    fn the_end_of_a_pattern_is_the_end_of_the_output_so_far() {
        let mut matcher = matcher(">>> $");
        assert_eq!(matcher.feed(&[chunk(1, Stream::Terminal, b">>> 1\n1")]), None);
        assert!(matcher.feed(&[chunk(2, Stream::Terminal, b"\n>>> ")]).is_some());
    }

    #[test]
    fn the_beginning_of_a_pattern_is_the_beginning_of_the_output_and_nothing_later() {
        let mut matcher = matcher("^x");
        assert_eq!(matcher.feed(&[chunk(1, Stream::Stdout, &[b'y'; 3 * REACH])]), None);
        assert_eq!(matcher.feed(&[chunk(2, Stream::Stdout, &[b'x'; 3 * REACH])]), None);
        assert_eq!(matcher.feed(&[chunk(3, Stream::Stdout, b"x")]), None);
    }

    #[test]
    fn a_match_ends_in_the_chunk_that_completes_it() {
        let chunks: Vec<_> = (1..=3).map(|seq| chunk(seq, Stream::Stdout, b"ab")).collect();
        assert_eq!(matcher("bab").feed(&chunks).unwrap().seq, 2);
        assert_eq!(matcher("^(ab)+$").feed(&chunks).unwrap().seq, 3);
    }

    #[test]
    fn what_is_kept_of_a_stream_is_bounded() {
        let mut matcher = matcher("never");
        for seq in 1..100 {
            assert_eq!(matcher.feed(&[chunk(seq, Stream::Stdout, &[b'y'; 1000])]), None);
        }
        assert!(matcher.tails[1].bytes.len() <= REACH);
    }
}
