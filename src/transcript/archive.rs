//! Transcripts in files: what a process printed, in blocks with checksums. Pure.
//!
//! Owns the format, and what a file means that was cut short or altered: everything before the
//! first block that is not whole. Opens no file: bytes come and go.
//!
//! ```text
//! | head | block | block | ... | end |      block: header, frames
//! ```
//!
//! A file grows by whole blocks as long as its process lives; the end is a block without frames.
//! A header tells what lies before its block, so that a file can be gone through by headers alone,
//! and a window of it read ([`Archive`]). A block's checksum goes on from the one before: no block
//! can be missing or stand elsewhere. Numbers of chunks only grow; some may be missing where a
//! supervisor was lost with its rings.

mod window;

use bytes::{Buf, BufMut, Bytes};
use crc32c::crc32c_append;

use super::ring::MAX_PAYLOAD;
use super::{Chunk, Stream};

pub use window::{Archive, From, Place, Source};

/// The first bytes of a file; the last of them is the version.
const MAGIC: &[u8; 8] = b"pytrans\x01";
/// Bytes of the head: magic, figures of the beginning, checksum.
const HEAD: usize = 8 + 3 * 8 + 4;
/// Bytes before the frames of a block: length, checksum, what lies before it.
const HEADER: usize = 4 + 4 + 5 * 8;
/// Bytes before the data of a chunk.
const FRAME: usize = 1 + 4 + 3 * 8;
/// Frames up to this many bytes share a block: what a torn file may lose at its end.
const FULL: usize = 64 << 10;
/// Frames of a block take no more: it is full before its last chunk, and no chunk is larger than
/// a ring's. What says otherwise was altered, and is not read into memory.
const LARGEST: usize = FULL + FRAME + MAX_PAYLOAD as usize;

/// Where a transcript in a file begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The first chunk that there ever was.
    pub first_ever: u64,
    /// The first chunk in the file.
    pub first_seq: u64,
    /// Bytes of output before it.
    pub dropped_bytes: u64,
}

/// A place between two blocks: what lies before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The number of the next chunk.
    pub seq: u64,
    /// Bytes of output.
    pub total_bytes: u64,
    /// Bytes of each stream, in the order of their numbers.
    pub offsets: [u64; 3],
    /// The checksum of all that was written.
    checksum: u32,
}

impl Mark {
    /// Goes on behind a chunk.
    fn pass(&mut self, chunk: &Chunk) {
        let bytes = chunk.data.len() as u64;
        self.seq = chunk.seq.saturating_add(1);
        self.total_bytes = self.total_bytes.saturating_add(bytes);
        self.offsets[chunk.stream as usize - 1] = chunk.offset.saturating_add(bytes);
    }
}

/// Makes the bytes of a file.
pub struct Encoder {
    out: Vec<u8>,
    /// What lies before the block that is being filled, and before the next chunk.
    begun: Mark,
    next: Mark,
    block: Vec<u8>,
}

impl Encoder {
    /// Of a new file, before which streams had so many bytes.
    pub fn begin(beginning: Beginning, offsets: [u64; 3]) -> Encoder {
        let Beginning { first_ever, first_seq, dropped_bytes } = beginning;
        let mut out = Vec::with_capacity(FULL + HEAD);
        out.put_slice(MAGIC);
        out.put_u64_le(first_ever);
        out.put_u64_le(first_seq);
        out.put_u64_le(dropped_bytes);
        let checksum = crc32c_append(0, &out);
        out.put_u32_le(checksum);
        let mark = Mark { seq: first_seq, total_bytes: dropped_bytes, offsets, checksum };
        Encoder { out, ..Encoder::go_on(mark) }
    }

    /// Of a file that has been written up to here.
    pub fn go_on(mark: Mark) -> Encoder {
        Encoder { out: Vec::new(), begun: mark, next: mark, block: Vec::new() }
    }

    /// Adds a chunk.
    pub fn push(&mut self, chunk: &Chunk) {
        let Chunk { seq, stream, offset, time, data } = chunk;
        if self.block.is_empty() {
            self.begun = Mark { seq: *seq, ..self.next };
        }
        self.block.put_u8(*stream as u8);
        self.block.put_u32_le(data.len() as u32);
        self.block.put_u64_le(*seq);
        self.block.put_u64_le(*offset);
        self.block.put_u64_le(*time);
        self.block.put_slice(data);
        self.next.pass(chunk);
        if self.block.len() >= FULL {
            self.close_block();
        }
    }

    /// Leaves out what was printed and is not kept: so much was, in all and of each stream.
    pub fn skip(&mut self, total_bytes: u64, offsets: [u64; 3]) {
        self.close_begun();
        self.next.total_bytes = self.next.total_bytes.max(total_bytes);
        self.next.offsets = offsets;
    }

    /// The bytes so far, and where they end.
    pub fn take(&mut self) -> (Vec<u8>, Mark) {
        self.close_begun();
        (self.whole(), self.next)
    }

    /// The last bytes: nothing will follow.
    pub fn end(mut self) -> Vec<u8> {
        self.close_begun();
        self.begun = self.next;
        self.close_block();
        self.out
    }

    /// Blocks that are whole already. They may be written at any time.
    pub fn whole(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    fn close_begun(&mut self) {
        if !self.block.is_empty() {
            self.close_block();
        }
    }

    fn close_block(&mut self) {
        let Mark { seq, total_bytes, offsets, .. } = self.begun;
        let length = (self.block.len() as u32).to_le_bytes();
        let mut before = Vec::with_capacity(HEADER);
        for figure in [seq, total_bytes].into_iter().chain(offsets) {
            before.put_u64_le(figure);
        }
        self.next.checksum = chained(self.next.checksum, &length, &before, &self.block);
        self.out.put_slice(&length);
        self.out.put_u32_le(self.next.checksum);
        self.out.append(&mut before);
        self.out.append(&mut self.block);
    }
}

/// The checksum of a block that goes on from another.
fn chained(before: u32, length: &[u8], figures: &[u8], frames: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c_append(before, length), figures), frames)
}

/// What a block begins with.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// Bytes of its frames; none: the end.
    length: usize,
    /// What lies before it, with the checksum that it has itself.
    mark: Mark,
}

impl Header {
    /// None: these bytes are no header.
    fn read(mut bytes: &[u8]) -> Option<Header> {
        if bytes.len() < HEADER {
            return None;
        }
        let (length, checksum) = (bytes.get_u32_le() as usize, bytes.get_u32_le());
        let (seq, total_bytes) = (bytes.get_u64_le(), bytes.get_u64_le());
        let offsets = [bytes.get_u64_le(), bytes.get_u64_le(), bytes.get_u64_le()];
        let mark = Mark { seq, total_bytes, offsets, checksum };
        (length <= LARGEST).then_some(Header { length, mark })
    }

    /// Bytes of the block.
    fn size(&self) -> u64 {
        (HEADER + self.length) as u64
    }
}

/// The next block, if it is whole: its header and frames.
fn next_block(rest: &mut Bytes, before: u32) -> Option<(Header, Bytes)> {
    let header = Header::read(rest)?;
    let end = HEADER + header.length;
    let frames = rest.get(HEADER..end)?;
    let checksum = chained(before, &rest[..4], &rest[8..HEADER], frames);
    (checksum == header.mark.checksum).then(|| (header, rest.split_to(end).split_off(HEADER)))
}

/// What a file begins with, and the checksum of that.
fn head(head: &[u8]) -> Option<(Beginning, u32)> {
    let (head, mut sum) = head.get(..HEAD)?.split_at(HEAD - 4);
    let checksum = crc32c_append(0, head);
    let mut figures = head.strip_prefix(MAGIC)?;
    let beginning = Beginning {
        first_ever: figures.get_u64_le(),
        first_seq: figures.get_u64_le(),
        dropped_bytes: figures.get_u64_le(),
    };
    (sum.get_u32_le() == checksum).then_some((beginning, checksum))
}

fn next_frame(block: &mut Bytes) -> Option<Chunk> {
    if block.len() < FRAME {
        return None;
    }
    let stream = match block.get_u8() {
        1 => Stream::Stdout,
        2 => Stream::Stderr,
        3 => Stream::Terminal,
        _ => return None,
    };
    let len = block.get_u32_le() as usize;
    let (seq, offset, time) = (block.get_u64_le(), block.get_u64_le(), block.get_u64_le());
    let data = (len <= block.len()).then(|| block.split_to(len))?;
    Some(Chunk { seq, stream, offset, time, data })
}

/// Gives a file the checksums that its bytes should have, as far as it is one, so that whoever
/// reads it looks at the rest.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn set_checksums(file: &mut [u8]) {
    let Some((head, mut rest)) = file.split_at_mut_checked(HEAD) else { return };
    head[..MAGIC.len()].copy_from_slice(MAGIC);
    let mut checksum = crc32c_append(0, &head[..HEAD - 4]);
    head[HEAD - 4..].copy_from_slice(&checksum.to_le_bytes());
    while let Some(header) = Header::read(rest) {
        let Some((block, behind)) = rest.split_at_mut_checked(HEADER + header.length) else {
            return;
        };
        checksum = chained(checksum, &block[..4], &block[8..HEADER], &block[HEADER..]);
        block[4..8].copy_from_slice(&checksum.to_le_bytes());
        rest = behind;
    }
}

#[cfg(test)]
mod tests;
