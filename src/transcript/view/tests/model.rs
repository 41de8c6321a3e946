//! What a view shows, found out the long way: all lines first, then which of them.

use crate::transcript::view::ansi::Stripper;
use crate::transcript::view::{Omitted, View};
use crate::transcript::{Chunk, Stream};

/// A line with all its bytes: the chunk of each, and whether it can be seen.
struct Line {
    stream: Stream,
    /// Where it begins, in all output.
    begin: (u64, usize),
    bytes: Vec<(u64, u8, bool)>,
    matched: bool,
}

/// What a view shows.
pub(super) struct Model {
    pub(super) text: Vec<u8>,
    pub(super) omitted: Omitted,
    streams: Vec<(Stream, Vec<u8>)>,
}

impl Line {
    /// Its bytes that can be seen from a chunk on.
    fn shown(&self, since: u64) -> Vec<u8> {
        let shown = self.bytes.iter().filter(|(seq, _, seen)| *seen && *seq >= since);
        shown.map(|(_, byte, _)| *byte).collect()
    }
}

impl Model {
    pub(super) fn new(view: &View, chunks: &[Chunk], since: u64) -> Model {
        let streams =
            [Stream::Stdout, Stream::Stderr].map(|stream| (stream, lines(view, chunks, stream)));
        let context = view.grep.as_ref().map_or(0, |grep| grep.context);
        // Which matches count, in the order in which they begin.
        let mut matches: Vec<(u64, usize)> = Vec::new();
        for (_, lines) in &streams {
            let counts =
                |line: &&Line| line.matched && (!view.has_ends() || !line.shown(since).is_empty());
            matches.extend(lines.iter().filter(counts).map(|line| line.begin));
        }
        matches.sort_unstable();
        if view.has_ends() {
            let (head, tail) = (view.head, matches.len().saturating_sub(view.tail));
            let mut at = 0..;
            matches.retain(|_| at.next().is_some_and(|at| at < head || at >= tail));
        }
        let mut selected: Vec<&Line> = Vec::new();
        let mut left = 0;
        for (_, lines) in &streams {
            for (at, line) in lines.iter().enumerate() {
                let near = &lines[at.saturating_sub(context)..lines.len().min(at + context + 1)];
                let shown = near.iter().any(|other| matches.contains(&other.begin));
                let shown = shown && !(view.has_ends() && line.shown(since).is_empty());
                if shown {
                    selected.push(line);
                } else if line.begin.0 >= since {
                    left += 1;
                }
            }
        }
        let by_stream = [Stream::Stdout, Stream::Stderr].map(|stream| {
            let of = selected.iter().filter(|line| line.stream == stream);
            (stream, of.flat_map(|line| line.shown(since)).collect())
        });
        if view.has_ends() || view.grep.is_some() {
            selected.sort_by_key(|line| line.begin);
        }
        let mut text: Vec<u8> = selected.iter().flat_map(|line| line.shown(since)).collect();
        if !view.has_ends() && view.grep.is_none() {
            text = in_order(view, chunks, since);
        }
        let all: usize = chunks.iter().filter(|c| c.seq >= since).map(|c| c.data.len()).sum();
        let omitted = Omitted { bytes: (all - text.len()) as u64, lines: left };
        Model { text, omitted, streams: by_stream.into() }
    }

    pub(super) fn of_stream(&self, stream: Stream) -> Vec<u8> {
        let (_, bytes) = self.streams.iter().find(|(other, _)| *other == stream).unwrap();
        bytes.clone()
    }
}

/// The lines of a stream.
fn lines(view: &View, chunks: &[Chunk], stream: Stream) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let seen = visible(view, chunks, stream);
    let chunks = chunks.iter().filter(|chunk| chunk.stream == stream);
    let bytes = chunks.flat_map(|chunk| {
        let seq = chunk.seq;
        chunk.data.iter().enumerate().map(move |(at, byte)| (seq, at, *byte))
    });
    for ((seq, at, byte), seen) in bytes.zip(seen) {
        if lines.last().is_none_or(|line| line.bytes.last().unwrap().1 == b'\n') {
            lines.push(Line { stream, begin: (seq, at), bytes: Vec::new(), matched: false });
        }
        lines.last_mut().unwrap().bytes.push((seq, byte, seen));
    }
    for line in &mut lines {
        let mut text = line.shown(0);
        let seen = !text.is_empty();
        if text.pop_if(|byte| *byte == b'\n').is_some() {
            text.pop_if(|byte| *byte == b'\r');
        }
        line.matched = view.grep.as_ref().is_none_or(|grep| seen && grep.regex.is_match(&text));
    }
    lines
}

/// For each byte of a stream whether it can be seen.
fn visible(view: &View, chunks: &[Chunk], stream: Stream) -> Vec<bool> {
    let mut stripper = Stripper::default();
    let mut visible = Vec::new();
    let mut stay = Vec::new();
    for chunk in chunks.iter().filter(|chunk| chunk.stream == stream) {
        for at in 0..chunk.data.len() {
            let offset = chunk.offset + at as u64;
            let byte = Chunk { offset, data: chunk.data.slice(at..=at), ..chunk.clone() };
            visible.push(!view.strip_ansi);
            stay.extend(stripper.strip(byte));
        }
    }
    stay.push(stripper.flush());
    if view.strip_ansi {
        stay.into_iter().flatten().for_each(|byte| visible[byte.offset as usize] = true);
    }
    visible
}

/// All that can be seen, chunk by chunk; a byte that had to wait comes with the next one of its
/// stream.
fn in_order(view: &View, chunks: &[Chunk], since: u64) -> Vec<u8> {
    let mut strippers = [Stripper::default(), Stripper::default(), Stripper::default()];
    let mut shown: Vec<Chunk> = Vec::new();
    for chunk in chunks {
        match view.strip_ansi {
            true => shown.extend(
                strippers[chunk.stream as usize].strip(chunk.clone()).into_iter().flatten(),
            ),
            false => shown.push(chunk.clone()),
        }
    }
    shown.extend(strippers.iter_mut().filter_map(Stripper::flush));
    shown.retain(|chunk| chunk.seq >= since);
    shown.iter().flat_map(|chunk| chunk.data.to_vec()).collect()
}
