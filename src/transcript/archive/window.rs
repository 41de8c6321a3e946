//! A window of a transcript in a file: some of its chunks, and whether more follow.
//!
//! Owns finding the blocks of a window by the headers alone, and reading it as a ring is read.
//! Holds no more than a window in memory, however long the file is.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;

use super::{Beginning, FRAME, HEAD, Header, LARGEST, Mark, head, next_block, next_frame};
use crate::transcript::reader::{Batch, COST};
use crate::transcript::{Chunk, Gap};

/// Bytes of blocks that a window has from the place on that it is for: few enough that many can
/// be held, and so many that what is read in one go rarely takes more than two.
const AHEAD: usize = 1 << 20;

/// Bytes of blocks that it has before that place. Whoever begins there may look back, to see in
/// what line it is: a view does for 64 KiB at most, which begin in a chunk of as much.
const BEHIND: u64 = 128 << 10;

/// Bytes that are read at a time on the way from header to header: as much as the disk is read by
/// anyway. What was saved bit by bit has many headers in them.
const STRIDE: usize = 4 << 10;

/// Something to read from, at any place: a file.
pub trait Source {
    /// Fills as much of `bytes` as there is from this place on, and says how much that was.
    fn read_at(&self, place: u64, bytes: &mut [u8]) -> io::Result<usize>;
}

/// What a window is for.
#[derive(Clone, Copy, Debug)]
pub enum From {
    /// The chunk with this number, or the first after it.
    Seq(u64),
    /// The chunks after so many bytes of output.
    Total(u64),
}

impl From {
    /// It is in a block that begins so, or in a later one.
    fn is_behind(self, mark: &Mark) -> bool {
        match self {
            From::Seq(seq) => mark.seq <= seq,
            From::Total(total) => mark.total_bytes <= total,
        }
    }
}

/// Where a block begins in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    at: u64,
    /// What lies before it.
    before: Mark,
}

/// Some of a transcript that lies in a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Archive {
    beginning: Beginning,
    /// Where its first block begins; in an empty file, where that would.
    place: Place,
    chunks: Vec<Chunk>,
    /// Bytes of output before each chunk, and behind the last.
    totals: Vec<u64>,
    /// What lies before the first chunk that is not in it.
    end: Mark,
    rest: Rest,
}

impl Archive {
    /// Reads what is whole around a place. Of the same file a place in it may be known already
    /// that is nearer than its beginning. None: not even the beginning is whole.
    pub fn read(source: &impl Source, from: From, known: Option<Place>) -> Option<Archive> {
        Archive::read_ahead(source, from, known, AHEAD)
    }

    /// The same with so many bytes of blocks from the place on that it is for, and a block more.
    pub fn read_ahead(
        source: &impl Source,
        from: From,
        known: Option<Place>,
        ahead: usize,
    ) -> Option<Archive> {
        let (beginning, checksum) = head(&bytes_at(source, 0, HEAD))?;
        let Beginning { first_seq: seq, dropped_bytes: total_bytes, .. } = beginning;
        let before = Mark { seq, total_bytes, offsets: [0; 3], checksum };
        let first = Place { at: HEAD as u64, before };
        let known = known.filter(|known| from.is_behind(&known.before));
        let archive = Archive::window(source, beginning, (from, ahead), known.unwrap_or(first));
        // Another file may have taken its place, in which that was not known.
        let stale = known.is_some() && archive.rest == Rest::Torn;
        Some(match stale {
            true => Archive::window(source, beginning, (from, ahead), first),
            false => archive,
        })
    }

    /// The end of what is whole.
    pub fn read_last(source: &impl Source) -> Option<Archive> {
        let mut from = u64::MAX;
        loop {
            let archive = Archive::read(source, From::Seq(from), None)?;
            let begins = archive.place.at == HEAD as u64;
            // Its first block already was altered: what is whole ends before it.
            let earlier = archive.place.before.seq.saturating_sub(1);
            if begins || !archive.chunks.is_empty() || earlier >= from {
                return Some(archive);
            }
            from = earlier;
        }
    }

    fn window(
        source: &impl Source,
        beginning: Beginning,
        (from, ahead): (From, usize),
        start: Place,
    ) -> Archive {
        let Extent { place, until, more } = Extent::find(source, from, ahead, start);
        let blocks = bytes_at(source, place.at, (until - place.at) as usize);
        let (chunks, totals) = (Vec::new(), vec![place.before.total_bytes]);
        let (end, rest) = (place.before, Rest::Torn);
        let mut archive = Archive { beginning, place, chunks, totals, end, rest };
        let ended = archive.take_blocks(blocks.into());
        archive.rest = match ended {
            Some(false) if more => Rest::More,
            Some(true) => Rest::End,
            _ => Rest::Torn,
        };
        archive
    }

    /// One of which nothing is left.
    pub fn empty() -> Archive {
        let beginning = Beginning { first_ever: 1, first_seq: 1, dropped_bytes: 0 };
        let before = Mark { seq: 1, total_bytes: 0, offsets: [0; 3], checksum: 0 };
        let place = Place { at: HEAD as u64, before };
        let (chunks, totals) = (Vec::new(), vec![0]);
        Archive { beginning, place, chunks, totals, end: before, rest: Rest::Torn }
    }

    /// Takes blocks; true: the last is the end. None: not all of them are whole.
    fn take_blocks(&mut self, mut blocks: Bytes) -> Option<bool> {
        let mut ended = false;
        while !blocks.is_empty() {
            let (Header { mark, .. }, frames) = next_block(&mut blocks, self.end.checksum)?;
            if mark.seq < self.end.seq || mark.total_bytes < self.end.total_bytes {
                return None;
            }
            ended = frames.is_empty();
            self.end = mark;
            *self.totals.last_mut()? = mark.total_bytes;
            self.take_block(frames)?;
        }
        Some(ended)
    }

    /// Takes the frames of a block. None: they are not what a block has.
    fn take_block(&mut self, mut frames: Bytes) -> Option<()> {
        while !frames.is_empty() {
            let mut chunk = next_frame(&mut frames).filter(|chunk| self.may_follow(chunk))?;
            // A chunk that is kept longer than the window keeps nothing else of it.
            chunk.data = Bytes::copy_from_slice(&chunk.data);
            self.end.pass(&chunk);
            self.totals.push(self.end.total_bytes);
            self.chunks.push(chunk);
        }
        Some(())
    }

    /// Its number is one that may come next, and leaves room for more.
    fn may_follow(&self, chunk: &Chunk) -> bool {
        let fits = chunk.offset.checked_add(chunk.data.len() as u64).is_some();
        (self.end.seq..u64::MAX).contains(&chunk.seq) && fits
    }

    /// How far a window is to read ahead so that it takes no more memory than this, or little more.
    pub fn ahead_within(bytes: usize) -> usize {
        let last_block = LARGEST;
        bytes.saturating_sub(BEHIND as usize + last_block).min(AHEAD)
    }

    /// Bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        let output = self.end.total_bytes.saturating_sub(self.place.before.total_bytes);
        output as usize + self.chunks.len() * (size_of::<Chunk>() + size_of::<u64>() + FRAME)
    }

    /// Where the file begins.
    pub fn beginning(&self) -> Beginning {
        self.beginning
    }

    /// Where the window does.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The chunks.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// What lies before the first chunk behind it.
    pub fn end(&self) -> Mark {
        self.end
    }

    /// What lies before the first of its chunks that has so many bytes of output before it.
    pub fn after(&self, total: u64) -> Mark {
        let index = self.totals.partition_point(|before| *before < total).min(self.chunks.len());
        let mut mark = self.place.before;
        self.chunks[..index].iter().for_each(|chunk| mark.pass(chunk));
        mark.seq = self.chunks.get(index).map_or(self.end.seq, |chunk| chunk.seq);
        Mark { total_bytes: self.totals[index], ..mark }
    }

    /// More follows in the file.
    pub fn has_more(&self) -> bool {
        self.rest == Rest::More
    }

    /// What the file has from this chunk on begins in this window, if it has anything.
    pub fn covers(&self, seq: u64) -> bool {
        self.begins_by(seq) && (seq < self.end.seq || !self.has_more())
    }

    fn begins_by(&self, seq: u64) -> bool {
        self.place.at == HEAD as u64 || self.place.before.seq <= seq
    }

    /// The place of the first chunk that is not before this one.
    fn index(&self, seq: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.seq < seq)
    }

    /// Bytes of output before a chunk, if it or the one before it is here.
    pub fn total_before(&self, seq: u64) -> Option<u64> {
        if seq == self.beginning.first_ever {
            return Some(0);
        }
        let here = (self.place.before.seq..=self.end.seq).contains(&seq);
        here.then(|| self.totals[self.index(seq)])
    }

    /// What there is from a chunk on, as a ring's reader would give it; nothing, if the window
    /// does not cover it.
    pub fn read_at(&self, seq: u64, total: Option<u64>, max_bytes: usize) -> Batch {
        if !self.covers(seq) {
            return Batch::default();
        }
        let total = total.or_else(|| self.total_before(seq));
        let rest = &self.chunks[self.index(seq)..];
        let first = rest.first().map_or(self.end.seq, |chunk| chunk.seq);
        // Where numbers are missing in the middle, nobody knows what was there.
        let begins = first == self.beginning.first_seq;
        let dropped = total
            .filter(|_| begins)
            .and_then(|total| self.beginning.dropped_bytes.checked_sub(total));
        let gap =
            (seq < first).then(|| Gap { from_seq: seq, to_seq: first - 1, dropped_bytes: dropped });
        let mut left = max_bytes as u64;
        let mut chunks: Vec<Chunk> = Vec::new();
        for chunk in rest {
            let cost = chunk.data.len() as u64 + COST;
            let hole = chunks.last().is_some_and(|before| before.seq + 1 != chunk.seq);
            if hole || cost > left && !chunks.is_empty() {
                break;
            }
            left = left.saturating_sub(cost);
            chunks.push(chunk.clone());
        }
        Batch { gap, chunks }
    }
}

/// What lies behind a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    More,
    End,
    Torn,
}

/// Which blocks of a file are in a window.
struct Extent {
    place: Place,
    until: u64,
    more: bool,
}

impl Extent {
    /// Goes from header to header. Always has the block that has what is sought and the one after
    /// it, if there are such: a window covers what it is for.
    fn find(source: &impl Source, from: From, ahead: usize, start: Place) -> Extent {
        let mut walk = Walk { source, next: start, stride: (0, Vec::new()) };
        // The blocks up to the one that is sought, as far as they belong to the window.
        let mut behind = VecDeque::new();
        let mut sought = start.at;
        let mut more = false;
        while let Some((place, header)) = walk.next() {
            if behind.is_empty() || from.is_behind(&place.before) {
                sought = place.at;
                behind.push_back(place);
                while behind.front().is_some_and(|first| sought - first.at > BEHIND) {
                    behind.pop_front();
                }
            } else if place.at - sought >= ahead as u64 {
                (more, walk.next.at) = (true, place.at);
                break;
            }
            if header.length == 0 {
                break;
            }
        }
        Extent { place: behind.front().copied().unwrap_or(start), until: walk.next.at, more }
    }
}

/// The way through a file.
struct Walk<'a, S> {
    source: &'a S,
    next: Place,
    /// What was read last, and where that was.
    stride: (u64, Vec<u8>),
}

impl<S: Source> Walk<'_, S> {
    /// The next block, if there is one that can follow those before.
    fn next(&mut self) -> Option<(Place, Header)> {
        let Place { at, before } = self.next;
        let header = self.header(at)?;
        let (seq, total) = (header.mark.seq, header.mark.total_bytes);
        if seq < before.seq || total < before.total_bytes {
            return None;
        }
        let place = Place { at, before: Mark { checksum: before.checksum, ..header.mark } };
        self.next = Place { at: at + header.size(), before: header.mark };
        Some((place, header))
    }

    fn header(&mut self, at: u64) -> Option<Header> {
        let (begin, bytes) = &self.stride;
        let skipped = at.checked_sub(*begin).map_or(usize::MAX, |skipped| skipped as usize);
        if let Some(header) = bytes.get(skipped..).and_then(Header::read) {
            return Some(header);
        }
        self.stride = (at, bytes_at(self.source, at, STRIDE));
        Header::read(&self.stride.1)
    }
}

/// So many bytes from a place on, or as many as can be read there.
fn bytes_at(source: &impl Source, at: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let mut filled = 0;
    while filled < count {
        match source.read_at(at + filled as u64, &mut bytes[filled..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
            Ok(read) => filled += read,
        }
    }
    bytes.truncate(filled);
    bytes
}
