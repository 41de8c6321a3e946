//! Writing a ring: the only writer there is.
//!
//! Owns the positions of one ring and what becomes of its oldest frames. Knows no descriptor
//! but the ring's own and no reader at all: it reads output straight into the ring with
//! whatever `fill` it is given.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use rustix::io::Errno;

use crate::process::{EXIT_ROOM, Overflow};
use crate::transcript::Stream;
use crate::transcript::ring::{FRAME_HEADER, Frame, MAX_PAYLOAD, Ring};

// What still lies in two full pipes when their process exits fits into the room beyond the limit of
// a blocking ring, so that an exit never waits for a reader.
const _: () = assert!(EXIT_ROOM > 2 * super::stream_helpers::BUSY_PIPE as u64);
/// The part of a ring that stays mapped where what was written is unmapped: 1 / this.
const MAPPED_SHARE: u64 = 8;
/// Rather than a shorter frame than this, a filler goes before the wrap.
const WORTHWHILE: u64 = 4096;

/// The writing end of a ring.
pub(super) struct Writer {
    ring: Ring,
    /// Shared with messages that carry it, so that no number is taken twice.
    fd: Rc<OwnedFd>,
    overflow: Overflow,
    /// Most bytes kept at once: now, and while the process lives.
    limit: u64,
    usual_limit: u64,
    /// Most payload of one frame: a quarter of a small ring, so that room for one frame never
    /// takes all the others.
    max_payload: u64,
    tail: u64,
    head: u64,
    next_seq: u64,
    acknowledged: u64,
    total: u64,
    offsets: [u64; 4],
    indexed: Option<u64>,
    /// Most bytes that stay mapped; none: all do.
    max_mapped: Option<u64>,
    /// Where the head was when pages were last unmapped.
    unmapped_at: u64,
}

/// Why nothing was appended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unappended {
    /// The ring blocks: its oldest frame was not acknowledged yet.
    Full,
    /// `fill` brought nothing.
    Fill(Errno),
}

impl Writer {
    /// A new ring of about `bytes`, whose first chunk will be `first_seq`.
    pub(super) fn create(bytes: u64, overflow: Overflow, first_seq: u64) -> io::Result<Writer> {
        let (ring, fd) = Ring::create(overflow.ring_bytes(bytes), first_seq)?;
        Ok(Writer {
            ring,
            fd: Rc::new(fd),
            overflow,
            limit: bytes & !7,
            usual_limit: bytes & !7,
            max_payload: (bytes / 4 - FRAME_HEADER).min(MAX_PAYLOAD) & !7,
            tail: 0,
            head: 0,
            next_seq: first_seq,
            acknowledged: 0,
            total: 0,
            offsets: [0; 4],
            indexed: None,
            max_mapped: None,
            unmapped_at: 0,
        })
    }

    /// From here on, unmaps again what was written. The bytes stay in memory, but count for this
    /// process no more when the kernel looks for the largest one. Costs a page fault for each page.
    pub(super) fn unmap_written(&mut self) {
        self.max_mapped = Some(self.ring.capacity() / MAPPED_SHARE);
    }

    /// The descriptor for readers: it cannot be written through.
    pub(super) fn fd(&self) -> Rc<OwnedFd> {
        Rc::clone(&self.fd)
    }

    /// Sequence number that the next chunk will have.
    pub(super) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// All chunks up to `seq` may go.
    pub(super) fn acknowledge(&mut self, seq: u64) {
        self.acknowledged = self.acknowledged.max(seq.min(self.next_seq - 1));
    }

    /// The process has exited: a blocking ring takes what is left in its pipes.
    pub(super) fn open_exit_room(&mut self) {
        self.limit = self.ring.capacity();
    }

    /// The ring goes on with the next run: a blocking one blocks again, at once if the last run
    /// has left more in it than it keeps.
    pub(super) fn close_exit_room(&mut self) {
        self.limit = self.usual_limit;
    }

    /// The oldest chunk may go though nobody acknowledged it. For an exit that finds the exit room
    /// taken by the exits of earlier runs: it must not wait, and what was printed last tells more
    /// than what was printed first. Readers are told by a gap.
    pub(super) fn give_way(&mut self) {
        let oldest = self.ring.header().first_kept.load(Ordering::Relaxed);
        self.acknowledge(oldest);
    }

    /// How many bytes may be read before they are appended: in a ring that blocks as many as it has room
    /// for, or half as many, or a quarter, and so on down to `least`.
    pub(super) fn room(&mut self, most: usize, least: usize) -> Option<usize> {
        if self.overflow != Overflow::Block {
            return Some(most);
        }
        let most = most.min(self.limit as usize / 4);
        let halves = std::iter::successors(Some(most), |size| Some(size / 2));
        let mut sizes = halves.take_while(|size| *size >= least).map(|size| size as u64);
        sizes.find(|size| self.make_room(self.needed(*size)).is_ok()).map(|size| size as usize)
    }

    /// How much of the ring so many bytes take, with headers and what is left free before the wrap.
    fn needed(&self, size: u64) -> u64 {
        let (mut needed, mut rest) = (0, size);
        while rest > 0 {
            let (filler, len) = self.next_frame(self.head + needed, rest);
            needed += filler + FRAME_HEADER + len.next_multiple_of(8);
            rest -= len;
        }
        needed
    }

    /// For a frame at this place: how much is left free before it, and how many of so many bytes it takes.
    fn next_frame(&self, head: u64, want: u64) -> (u64, u64) {
        let want = want.min(self.max_payload);
        let contiguous = self.ring.contiguous(head);
        if contiguous < FRAME_HEADER + want.next_multiple_of(8).min(WORTHWHILE) {
            (contiguous, want)
        } else {
            (0, want.min(contiguous - FRAME_HEADER))
        }
    }

    /// Appends one chunk of at most `want` bytes, which `fill` puts in place. 0 from `fill` is
    /// no chunk but the end of the stream.
    pub(super) fn append(
        &mut self,
        stream: Stream,
        want: usize,
        time: u64,
        fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> Result<usize, Errno>,
    ) -> Result<usize, Unappended> {
        let (filler, want) = self.next_frame(self.head, want as u64);
        self.make_room(filler + FRAME_HEADER + want.next_multiple_of(8))?;

        let at = self.head + filler;
        // SAFETY: the frame lies before the wrap and after the tail; readers check the tail after
        // they copied, and nobody else writes.
        let room =
            unsafe { std::slice::from_raw_parts_mut(self.ring.payload(at).cast(), want as usize) };
        let len = fill(room).map_err(Unappended::Fill)?;
        if len > 0 {
            self.publish(stream, filler, len as u64, time);
        }
        Ok(len)
    }

    fn publish(&mut self, stream: Stream, filler: u64, len: u64, time: u64) {
        if filler > 0 {
            let skip =
                Frame { len: filler - 8, stream: None, seq: 0, offset: 0, total: 0, time: 0 };
            self.ring.set_frame(self.head, &skip);
            self.head += filler;
        }
        let offset = &mut self.offsets[stream as usize];
        let frame = Frame {
            len,
            stream: Some(stream),
            seq: self.next_seq,
            offset: *offset,
            total: self.total,
            time,
        };
        self.ring.set_frame(self.head, &frame);
        let segment = self.ring.segment(self.head);
        if self.indexed.replace(segment) != Some(segment) {
            self.ring.first_in(segment).store(self.head, Ordering::Relaxed);
        }
        *offset += len;
        self.total += len;
        self.next_seq += 1;
        self.head += frame.size();

        let header = self.ring.header();
        header.next_seq.store(self.next_seq, Ordering::Relaxed);
        header.total_bytes.store(self.total, Ordering::Relaxed);
        header.last_time.store(time, Ordering::Relaxed);
        header.head.store(self.head, Ordering::Release);
        if self.max_mapped.is_some_and(|most| self.head - self.unmapped_at >= most) {
            self.unmapped_at = self.head;
            self.ring.unmap_pages();
        }
    }

    /// Moves the tail until `size` bytes fit behind the head.
    fn make_room(&mut self, size: u64) -> Result<(), Unappended> {
        let mut tail = self.tail;
        let mut dropped = None;
        let mut room = true;
        while self.head + size - tail > self.limit {
            let frame = self.ring.frame(tail);
            let kept = frame.stream.is_some() && frame.seq > self.acknowledged;
            if kept && self.overflow == Overflow::Block {
                room = false;
                break;
            }
            tail += frame.size();
            dropped = frame.stream.is_some().then_some(frame).or(dropped);
        }
        if let Some(frame) = dropped {
            let header = self.ring.header();
            header.first_kept.store(frame.seq + 1, Ordering::Relaxed);
            header.dropped_bytes.store(frame.total + frame.len, Ordering::Relaxed);
        }
        if tail != self.tail {
            self.tail = tail;
            // Whoever sees this tail sees the head that it was moved behind, too.
            self.ring.header().tail.store(tail, Ordering::Release);
            // And readers must see the tail move before they can see a byte that overwrites.
            fence(Ordering::Release);
        }
        if room { Ok(()) } else { Err(Unappended::Full) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use super::*;
    use crate::transcript::{Chunk, Gap, Reader};

    fn append(writer: &mut Writer, stream: Stream, data: &[u8]) -> Result<usize, Unappended> {
        writer.append(stream, data.len(), 7, |room| {
            let len = data.len().min(room.len());
            for (slot, byte) in room.iter_mut().zip(data) {
                slot.write(*byte);
            }
            Ok(len)
        })
    }

    fn reader(writer: &Writer, seq: u64) -> Reader {
        Reader::new(Arc::new(Ring::open(writer.fd()).unwrap()), seq)
    }

    /// A small generator of its own: the same numbers on every machine.
    struct Random(u64);
    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }
    }

    #[test]
    fn chunks_come_back_as_they_were_appended() {
        let mut writer = Writer::create(64 << 10, Overflow::DropOldest, 1).unwrap();
        append(&mut writer, Stream::Stdout, b"one").unwrap();
        append(&mut writer, Stream::Stderr, b"two").unwrap();
        append(&mut writer, Stream::Stdout, b"three").unwrap();
        let chunks = reader(&writer, 2).read(1 << 20).chunks;
        let [two, three] = &chunks[..] else { panic!("{chunks:?}") };
        assert_eq!(
            (two.seq, two.stream, two.offset, &two.data[..]),
            (2, Stream::Stderr, 0, &b"two"[..])
        );
        assert_eq!(
            (three.seq, three.offset, three.time, &three.data[..]),
            (3, 3, 7, &b"three"[..])
        );
    }

    #[test]
    fn bytes_that_have_room_can_all_be_appended() {
        let mut writer = Writer::create(64 << 10, Overflow::Block, 1).unwrap();
        let mut random = Random(7);
        let (data, mut refused) = ([b'x'; 40_000], 0);
        for _ in 0..20_000 {
            let most = 1 + random.below(data.len() as u64) as usize;
            let Some(room) = writer.room(most, 1) else {
                refused += 1;
                writer.acknowledge(writer.next_seq() - 1 - random.below(2));
                continue;
            };
            let mut rest = &data[..room];
            while !rest.is_empty() {
                let len = append(&mut writer, Stream::Stdout, rest).unwrap();
                rest = &rest[len..];
            }
        }
        assert!(refused > 100, "{refused}");
    }

    #[test]
    fn the_figures_tell_what_is_kept_and_what_was_dropped() {
        let mut writer = Writer::create(64 << 10, Overflow::DropOldest, 3).unwrap();
        let figures = Ring::open(writer.fd()).unwrap().figures();
        assert_eq!((figures.first_seq, figures.next_seq, figures.last_time), (3, 3, 0));
        for _ in 0..100 {
            append(&mut writer, Stream::Stdout, &[b'x'; 1000]).unwrap();
        }
        let figures = Ring::open(writer.fd()).unwrap().figures();
        let kept = reader(&writer, 3).read(1 << 20);
        assert_eq!(figures.first_seq, kept.chunks[0].seq);
        assert_eq!(Some(figures.dropped_bytes), kept.gap.unwrap().dropped_bytes);
        assert_eq!((figures.next_seq, figures.total_bytes, figures.last_time), (103, 100_000, 7));
    }

    /// Bytes of shared memory that the page tables of this process refer to, in one mapping.
    fn mapped(writer: &Writer) -> u64 {
        let begin = format!("{:x}-", std::ptr::from_ref(writer.ring.header()).addr());
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let ours = maps.lines().skip_while(|line| !line.starts_with(&begin));
        let rss = ours.filter_map(|line| line.strip_prefix("Rss:")).next().unwrap();
        rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    #[test]
    fn what_was_written_is_unmapped_and_still_read() {
        let mut writer = Writer::create(1 << 20, Overflow::DropOldest, 1).unwrap();
        let piece = [b'x'; 4000];
        let fill = |writer: &mut Writer| {
            for _ in 0..500 {
                append(writer, Stream::Stdout, &piece).unwrap();
            }
        };
        fill(&mut writer);
        assert!(mapped(&writer) >= 1 << 20);
        writer.unmap_written();
        fill(&mut writer);
        assert!(mapped(&writer) < 1 << 18, "{}", mapped(&writer));
        let batch = reader(&writer, 1).read(usize::MAX);
        assert!(batch.chunks.len() > 200 && batch.chunks.iter().all(|chunk| *chunk.data == piece));
    }

    #[test]
    fn a_reader_at_the_end_gets_nothing_until_more_comes() {
        let mut writer = Writer::create(64 << 10, Overflow::DropOldest, 5).unwrap();
        let mut late = reader(&writer, 5);
        assert_eq!(late.read(100).chunks, []);
        append(&mut writer, Stream::Terminal, b"x").unwrap();
        assert_eq!(late.read(100).chunks[0].seq, 5);
        assert_eq!(late.read(100).chunks, []);
        let mut ahead = reader(&writer, 8);
        for _ in 6..=8 {
            assert_eq!(ahead.read(100).chunks, []);
            append(&mut writer, Stream::Terminal, b"y").unwrap();
        }
        assert_eq!(ahead.read(100).chunks[0].seq, 8);
    }

    #[test]
    fn a_read_is_bounded_but_never_empty_handed() {
        let mut writer = Writer::create(64 << 10, Overflow::DropOldest, 1).unwrap();
        for _ in 0..4 {
            append(&mut writer, Stream::Stdout, &[b'a'; 100]).unwrap();
        }
        let mut reader = reader(&writer, 1);
        // Each counts for more than its bytes.
        assert_eq!(reader.read(300).chunks.len(), 1);
        assert_eq!(reader.read(400).chunks.len(), 2);
        assert_eq!(reader.read(1).chunks.len(), 1);
    }

    #[test]
    fn the_descriptor_for_readers_cannot_be_written_through() {
        let writer = Writer::create(64 << 10, Overflow::DropOldest, 1).unwrap();
        assert!(rustix::io::pwrite(writer.fd(), b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(writer.fd(), 1).is_err());
    }

    #[test]
    fn a_blocking_ring_is_full_until_acknowledged_and_has_room_for_an_exit() {
        let mut writer = Writer::create(64 << 10, Overflow::Block, 1).unwrap();
        let piece = [b'z'; 4000];
        while append(&mut writer, Stream::Stdout, &piece).is_ok() {}
        let full_at = writer.next_seq();
        assert_eq!(append(&mut writer, Stream::Stdout, &piece), Err(Unappended::Full));
        writer.acknowledge(1);
        append(&mut writer, Stream::Stdout, &piece).unwrap();
        assert_eq!(append(&mut writer, Stream::Stdout, &piece), Err(Unappended::Full));
        writer.open_exit_room();
        for _ in 0..2 * super::super::stream_helpers::BUSY_PIPE / 4000 {
            append(&mut writer, Stream::Stdout, &piece).unwrap();
        }
        let all = reader(&writer, 2).read(usize::MAX);
        assert_eq!((all.gap, all.chunks[0].seq), (None, 2));
        assert!(all.chunks.len() as u64 > full_at);
    }

    /// A ring against the obvious model: a queue of chunks. Random sizes, small rings, readers
    /// with cursors everywhere.
    #[test]
    fn any_cursor_finds_its_chunk_or_the_exact_gap() {
        let mut random = Random(0x5eed);
        for capacity in [64 << 10, (64 << 10) + 8, 200_000, 1 << 20] {
            let mut writer = Writer::create(capacity, Overflow::DropOldest, 1).unwrap();
            let mut follower = reader(&writer, 1);
            let mut model: VecDeque<Chunk> = VecDeque::new();
            let (mut followed, mut missed) = (0, 0);
            for round in 0..3000 {
                let len = match random.below(4) {
                    0 => random.below(60_000),
                    _ => random.below(100),
                } + 1;
                let stream = [Stream::Stdout, Stream::Stderr][random.below(2) as usize];
                let data: Vec<u8> = (0..len).map(|n| (n + round) as u8).collect();
                let seq = writer.next_seq();
                let len = append(&mut writer, stream, &data).unwrap();
                let offset = model.iter().rev().find(|c| c.stream == stream);
                let offset = offset.map(|c| c.offset + c.data.len() as u64);
                let data = bytes::Bytes::copy_from_slice(&data[..len]);
                model.push_back(Chunk { seq, stream, offset: offset.unwrap_or(0), time: 7, data });

                let asked = random.below(seq) + 1;
                let batch = reader(&writer, asked).read(1);
                let got = &batch.chunks[0];
                assert_eq!(*got, model[got.seq as usize - 1]);
                match batch.gap {
                    None => assert_eq!(got.seq, asked),
                    Some(gap) => assert_eq!((gap.from_seq, gap.to_seq), (asked, got.seq - 1)),
                }
                if random.below(400) == 0 {
                    let batch = follower.read(usize::MAX);
                    missed += batch.gap.and_then(|gap| gap.dropped_bytes).unwrap_or(0);
                    followed += batch.chunks.iter().map(|c| c.data.len() as u64).sum::<u64>();
                    assert_eq!(follower.next_seq(), writer.next_seq());
                    assert_eq!(followed + missed, writer.total);
                }
            }
            assert!(missed > 0, "the ring was never lapped");
        }
    }

    /// Readers that begin close to the tail while it is moving: none may be sent back before the
    /// chunk that it asked for, or beyond it without a gap.
    #[test]
    fn a_reader_that_begins_in_a_flood_gets_its_chunk_or_the_exact_gap() {
        let mut writer = Writer::create(64 << 10, Overflow::DropOldest, 1).unwrap();
        let ring = Arc::new(Ring::open(writer.fd()).unwrap());
        let chunks = 200_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let next_seq = || ring.header().next_seq.load(Ordering::Relaxed);
                let mut random = Random(0xbead);
                while next_seq() <= chunks {
                    let asked = next_seq().saturating_sub(random.below(700)).max(1);
                    let batch = Reader::new(Arc::clone(&ring), asked).read(1);
                    let Some(chunk) = batch.chunks.first() else { continue };
                    let expected = batch.gap.map_or(asked, |gap| gap.to_seq + 1);
                    assert_eq!(chunk.seq, expected);
                    assert!(batch.gap.is_none_or(|gap| gap.from_seq == asked));
                }
            });
            let mut random = Random(0xfeed);
            for n in 1..=chunks {
                let data = vec![n as u8; random.below(200) as usize + 1];
                append(&mut writer, Stream::Stdout, &data).unwrap();
            }
        });
    }

    /// The writer laps a reader at full speed in another thread: what is read must be whole, in
    /// order, and together with the gaps account for every chunk.
    #[test]
    fn a_reader_lapped_while_copying_gets_whole_chunks_and_exact_gaps() {
        let mut writer = Writer::create(64 << 10, Overflow::DropOldest, 1).unwrap();
        let mut reader = reader(&writer, 1);
        let chunks: u64 = 200_000;
        std::thread::scope(|scope| {
            let reading = scope.spawn(move || {
                let (mut expected, mut bytes, mut gaps) = (1, 0, 0);
                while expected <= chunks {
                    let batch = reader.read(5000);
                    if let Some(Gap { from_seq, to_seq, dropped_bytes }) = batch.gap {
                        assert_eq!(from_seq, expected);
                        (expected, gaps) = (to_seq + 1, gaps + 1);
                        bytes += dropped_bytes.unwrap();
                    }
                    for chunk in batch.chunks {
                        assert_eq!((chunk.seq, chunk.offset), (expected, bytes));
                        assert!(chunk.data.iter().all(|byte| *byte == chunk.seq as u8), "torn");
                        expected += 1;
                        bytes += chunk.data.len() as u64;
                    }
                }
                gaps
            });
            let mut random = Random(0xfeed);
            for n in 1..=chunks {
                let data = vec![n as u8; random.below(2000) as usize + 1];
                append(&mut writer, Stream::Stdout, &data).unwrap();
            }
            assert!(reading.join().unwrap() > 0, "the reader was never lapped");
        });
    }
}
