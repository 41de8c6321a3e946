//! Reading a ring by cursor.
//!
//! Owns a reader's place in one ring. Never blocks, never holds the writer up, never waits:
//! whoever wants to wait watches the keeper's reports. A reader that was lapped learns which
//! chunks it missed and goes on from the oldest kept.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{BufMut, BytesMut};

use super::ring::{Frame, Ring};
use super::{Chunk, Gap, Stream};

/// What a chunk counts for besides its bytes: there may be many of one byte.
pub const COST: u64 = 64;

/// How often one read may be lapped before it has anything. Each time the writer has gone round.
const MOST_ROUNDS: u32 = 10_000;

/// A place in a ring.
pub struct Reader {
    ring: Arc<Ring>,
    /// The chunk to be read next.
    seq: u64,
    /// Where it is or will be, once found.
    position: Option<u64>,
    /// Bytes of all streams before it, once known.
    total: Option<u64>,
}

/// What one read brought: first the gap, then chunks without holes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// What was missed before the first chunk.
    pub gap: Option<Gap>,
    /// What was read.
    pub chunks: Vec<Chunk>,
}

/// A place was overwritten before or while it was read.
struct Lapped;

impl Reader {
    /// A reader whose next chunk is `seq`. One that begins with the first chunk there ever was
    /// counts every gap to the byte.
    pub fn new(ring: Arc<Ring>, seq: u64) -> Reader {
        let start = (seq == ring.first_seq()).then_some(0);
        Reader { ring, seq, position: start, total: start }
    }

    /// A reader of the same ring whose next chunk is `seq`.
    pub fn again(&self, seq: u64) -> Reader {
        Reader::new(Arc::clone(&self.ring), seq)
    }

    /// The first chunk that the ring ever had.
    pub fn first_ever(&self) -> u64 {
        self.ring.first_seq()
    }

    /// The same reader, told how many bytes lie before its next chunk: it will count a gap that
    /// it begins in.
    pub fn knowing(mut self, total: Option<u64>) -> Reader {
        self.total = self.total.or(total);
        self
    }

    /// The chunk that will be read next.
    pub fn next_seq(&self) -> u64 {
        self.seq
    }

    /// Bytes of all streams before that chunk, if known.
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// Takes what is there, `max_bytes` at most, each chunk counted with what it costs besides
    /// its bytes, but always at least one chunk; nothing when the reader is at the end.
    pub fn read(&mut self, max_bytes: usize) -> Batch {
        let mut batch = Batch::default();
        let mut buffer = BytesMut::new();
        let mut left = max_bytes as u64;
        let mut rounds = 0;
        let mut oldest = None;
        loop {
            match self.take(left, &mut buffer, batch.chunks.is_empty()) {
                Ok(Some(chunk)) => {
                    left = left.saturating_sub(chunk.data.len() as u64 + COST);
                    batch.chunks.push(chunk);
                }
                Ok(None) => return batch,
                // A gap stands before the chunks of a batch: the next read will tell of this one.
                Err(Lapped) if !batch.chunks.is_empty() => return batch,
                Err(Lapped) if rounds > MOST_ROUNDS => return batch,
                Err(Lapped) => {
                    let tail = Some(self.ring.header().tail.load(Ordering::Acquire));
                    // Who went to the oldest that is kept was lapped only if that is another now:
                    // else numbers are missing, and the ring is damaged.
                    if oldest == tail {
                        return batch;
                    }
                    oldest = tail;
                    batch.gap = merge(batch.gap, self.resync());
                }
            }
            rounds += 1;
        }
    }

    fn take(
        &mut self,
        left: u64,
        buffer: &mut BytesMut,
        first: bool,
    ) -> Result<Option<Chunk>, Lapped> {
        let head = self.ring.header().head.load(Ordering::Acquire);
        let Some((position, frame, stream)) = self.next_frame(head)? else {
            return Ok(None);
        };
        if frame.len + COST > left && !first {
            return Ok(None);
        }
        let len = frame.len as usize;
        if buffer.capacity() < len {
            buffer.reserve(len.max(left.min(head - position) as usize));
        }
        // SAFETY: next_frame checked that the payload lies before the wrap and the buffer has
        // room; the memory may be overwritten meanwhile, which `intact` finds out below.
        unsafe {
            let spare = buffer.chunk_mut().as_mut_ptr();
            std::ptr::copy_nonoverlapping(self.ring.payload(position), spare, len);
        }
        if !self.ring.intact(position) {
            return Err(Lapped);
        }
        // SAFETY: `len` bytes were just written.
        unsafe { buffer.advance_mut(len) };
        self.seq = frame.seq + 1;
        self.position = Some(position + frame.size());
        self.total = Some(frame.total + frame.len);
        let Frame { seq, offset, time, .. } = frame;
        Ok(Some(Chunk { seq, stream, offset, time, data: buffer.split().freeze() }))
    }

    /// The frame of the next chunk, if it is there.
    fn next_frame(&mut self, head: u64) -> Result<Option<(u64, Frame, Stream)>, Lapped> {
        let mut position = match self.position {
            Some(position) => position,
            None => self.find(head)?,
        };
        while let Some(frame) = self.checked(position, head)? {
            match frame.stream {
                Some(stream) if frame.seq == self.seq => {
                    return Ok(Some((position, frame, stream)));
                }
                Some(_) if frame.seq > self.seq => return Err(Lapped),
                // A filler; or the reader began ahead of the end, and waits for its own chunk.
                _ => position += frame.size(),
            }
        }
        Ok(None)
    }

    /// The frame at a position, of which all words were intact when they were read; none at the
    /// head. A frame that cannot be one reads as the head too: a damaged ring ends there.
    fn checked(&self, position: u64, head: u64) -> Result<Option<Frame>, Lapped> {
        if position >= head {
            return Ok(None);
        }
        let room = self.ring.contiguous(position).min(head - position);
        let frame = (self.ring.may_be(position, head))
            .then(|| self.ring.frame(position))
            .filter(|frame| frame.size() <= room && frame.counts());
        if !self.ring.intact(position) {
            return Err(Lapped);
        }
        Ok(frame)
    }

    /// Where the next chunk begins, or the head if it is yet to come. The index has the first
    /// frame of each 64 KiB, so that a cursor into millions of small chunks is found in few steps.
    fn find(&mut self, head: u64) -> Result<u64, Lapped> {
        let tail = self.ring.header().tail.load(Ordering::Acquire);
        if tail > head {
            // The head was loaded earlier, and all that lay between is overwritten.
            return Err(Lapped);
        }
        if !self.ring.may_be(tail, head) {
            return Ok(head);
        }
        let mut position = tail;
        let (mut low, mut high) = (self.ring.segment(tail), self.ring.segment(head));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let Some(at) = self.indexed(middle, low, tail, head) else {
                low = middle;
                continue;
            };
            if self.checked(at, head)?.is_some_and(|frame| frame.seq <= self.seq) {
                position = at;
                low = middle;
            } else {
                high = self.ring.segment(at) - 1;
            }
        }
        while let Some(frame) = self.checked(position, head)? {
            match frame.stream {
                Some(_) if frame.seq > self.seq => return Err(Lapped),
                Some(_) if frame.seq == self.seq => break,
                _ => position += frame.size(),
            }
        }
        self.position = Some(position);
        Ok(position)
    }

    /// The first frame of a segment, or of the nearest one before it, above `low`, that has one:
    /// a segment inside a large frame has none.
    fn indexed(&self, segment: u64, low: u64, tail: u64, head: u64) -> Option<u64> {
        (low + 1..=segment).rev().find_map(|segment| {
            let at = self.ring.first_in(segment).load(Ordering::Relaxed);
            (at >= tail && at < head && self.ring.segment(at) == segment).then_some(at)
        })
    }

    /// Goes to the oldest frame that is kept, and tells what lies between. None: nothing does.
    fn resync(&mut self) -> Option<Gap> {
        let (position, frame) = loop {
            // The writer runs on and laps again only as fast as it is fed.
            if let Ok(oldest) = self.oldest() {
                break oldest?;
            }
        };
        self.position = Some(position);
        if frame.seq <= self.seq {
            return None;
        }
        let (from_seq, before) = (self.seq, self.total.replace(frame.total));
        self.seq = frame.seq;
        Some(Gap {
            from_seq,
            to_seq: frame.seq - 1,
            dropped_bytes: before.and_then(|before| frame.total.checked_sub(before)),
        })
    }

    /// The oldest frame that is no filler; none in a damaged ring, which reads as ended.
    fn oldest(&self) -> Result<Option<(u64, Frame)>, Lapped> {
        // In this order: a head that was loaded first could lie before the tail.
        let mut position = self.ring.header().tail.load(Ordering::Acquire);
        let head = self.ring.header().head.load(Ordering::Acquire);
        while let Some(frame) = self.checked(position, head)? {
            if frame.stream.is_some() {
                return Ok(Some((position, frame)));
            }
            position += frame.size();
        }
        Ok(None)
    }
}

/// One gap for two that touch.
fn merge(first: Option<Gap>, second: Option<Gap>) -> Option<Gap> {
    match (first, second) {
        (Some(first), Some(second)) => Some(Gap {
            from_seq: first.from_seq,
            to_seq: second.to_seq,
            dropped_bytes: first
                .dropped_bytes
                .zip(second.dropped_bytes)
                .map(|(first, second)| first.saturating_add(second)),
        }),
        (first, second) => first.or(second),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The writer may run a whole lap between a reader's look at the head and one at the tail.
    #[test]
    fn a_tail_beyond_the_head_that_was_seen_is_a_lap_and_no_place_to_read_on() {
        let (ring, _fd) = Ring::create(64 << 10, 1).unwrap();
        let (seen, tail) = (4096, ring.capacity());
        let stream = Some(Stream::Stdout);
        let frame = Frame { len: 8, stream, seq: 10, offset: 90, total: 90, time: 0 };
        ring.set_frame(tail, &frame);
        ring.header().tail.store(tail, Ordering::Release);
        ring.header().head.store(tail + frame.size(), Ordering::Release);
        let mut reader = Reader::new(Arc::new(ring), 3);
        assert!(reader.find(seen).is_err());
        let gap = Gap { from_seq: 3, to_seq: 9, dropped_bytes: None };
        let batch = reader.read(100);
        assert_eq!((batch.gap, batch.chunks[0].seq), (Some(gap), 10));
    }

    /// Chunks that are read of a ring with three, which was then damaged.
    fn read_of_damaged(damage: impl FnOnce(&Ring)) -> usize {
        let (ring, _fd) = Ring::create(64 << 10, 1).unwrap();
        let mut head = 0;
        for seq in 1..=3 {
            let total = 8 * (seq - 1);
            let stream = Some(Stream::Stdout);
            let frame = Frame { len: 8, stream, seq, offset: total, total, time: 0 };
            ring.set_frame(head, &frame);
            head += frame.size();
        }
        ring.header().head.store(head, Ordering::Release);
        damage(&ring);
        let mut reader = Reader::new(Arc::new(ring), 1);
        std::iter::from_fn(|| Some(reader.read(1000).chunks.len()).filter(|read| *read > 0)).sum()
    }

    #[test]
    fn a_damaged_ring_ends_where_it_is_damaged() {
        let second = |ring: &Ring, change: fn(&mut Frame)| {
            let at = ring.frame(0).size();
            let mut frame = ring.frame(at);
            change(&mut frame);
            ring.set_frame(at, &frame);
        };
        assert_eq!(read_of_damaged(|_| {}), 3);
        assert_eq!(read_of_damaged(|ring| ring.header().tail.store(4, Ordering::Release)), 0);
        assert_eq!(read_of_damaged(|ring| ring.header().head.store(!0, Ordering::Release)), 0);
        assert_eq!(read_of_damaged(|ring| ring.header().head.store(12, Ordering::Release)), 0);
        assert_eq!(read_of_damaged(|ring| second(ring, |frame| frame.seq = 9)), 1);
        assert_eq!(read_of_damaged(|ring| second(ring, |frame| frame.seq = u64::MAX)), 1);
        assert_eq!(read_of_damaged(|ring| second(ring, |frame| frame.total = u64::MAX)), 1);
        assert_eq!(read_of_damaged(|ring| second(ring, |frame| frame.offset = u64::MAX)), 1);
        assert_eq!(read_of_damaged(|ring| second(ring, |frame| frame.len = 1 << 20)), 1);
        // A filler of half a word.
        let filler = |frame: &mut Frame| (frame.stream, frame.len) = (None, 4);
        assert_eq!(read_of_damaged(|ring| second(ring, filler)), 1);
    }
}
