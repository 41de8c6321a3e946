//! The layout of a ring: one memfd, written by the keeper, mapped read-only by readers.
//!
//! Owns the format and the mapping, and nothing that moves: advancing the positions is
//! `keeper::ring`'s, following them `transcript::reader`'s.
//!
//! ```text
//! | header | index: one position per segment | data: frames, wrapping around ... |
//!                                              ^ tail (oldest)     ^ head (next)
//! ```
//!
//! Positions count bytes since the beginning and only grow; a place in the data area is
//! `position % capacity`. A frame is five words and its payload, padded to whole words, and
//! never straddles the wrap: a filler frame covers what is left at the end.
//!
//! The tail moves past a frame *before* its bytes are overwritten. A reader therefore copies
//! first and looks at the tail afterwards: a position still at or after the tail was intact
//! while it was copied. The fences on both sides make that hold on weakly ordered machines too.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{Figures, Stream};

/// Smallest ring that can be asked for.
pub const MIN_CAPACITY: u64 = 64 << 10;
/// Largest ring that can be asked for.
pub const MAX_CAPACITY: u64 = 1 << 30;
/// Bytes of a frame before its payload.
pub const FRAME_HEADER: u64 = 40;
/// Most payload of one frame, however large the ring.
pub const MAX_PAYLOAD: u64 = 64 << 10;

const MAGIC: u64 = u64::from_le_bytes(*b"pyring\0\x02");
const SEGMENT: u64 = 64 << 10;
const FILLER: u8 = 0xff;

/// The first bytes of a ring.
#[repr(C)]
pub struct Header {
    magic: AtomicU64,
    capacity: AtomicU64,
    first_seq: AtomicU64,
    /// Position of the oldest frame that is kept.
    pub tail: AtomicU64,
    /// Position after the newest frame.
    pub head: AtomicU64,
    /// Sequence number that the next frame will have.
    pub next_seq: AtomicU64,
    /// Bytes of output that were ever appended.
    pub total_bytes: AtomicU64,
    /// Sequence number of the oldest chunk that is kept.
    pub first_kept: AtomicU64,
    /// Bytes of output before that chunk.
    pub dropped_bytes: AtomicU64,
    /// When the newest chunk was appended, nanoseconds since 1970; 0: there is none.
    pub last_time: AtomicU64,
}

/// What the five words before a payload say.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Length of the payload in bytes.
    pub len: u64,
    /// Where the bytes came from; none: a filler up to the wrap.
    pub stream: Option<Stream>,
    /// Number of the chunk.
    pub seq: u64,
    /// Bytes of its stream before it.
    pub offset: u64,
    /// Bytes of all streams before it.
    pub total: u64,
    /// Nanoseconds since 1970.
    pub time: u64,
}

impl Frame {
    /// Bytes that the frame takes in the ring.
    pub fn size(&self) -> u64 {
        match self.stream {
            Some(_) => FRAME_HEADER + self.len.next_multiple_of(8),
            None => 8 + self.len,
        }
    }

    /// Its figures leave room for what follows it, as those of a whole ring always do.
    pub fn counts(&self) -> bool {
        let fits = |figure: u64| figure.checked_add(self.len).is_some();
        self.seq < u64::MAX && fits(self.offset) && fits(self.total)
    }
}

/// A mapped ring.
pub struct Ring {
    base: NonNull<u8>,
    mapped: usize,
    capacity: u64,
    segments: u64,
    data: usize,
}

// SAFETY: the mapping belongs to the Ring alone and lives as long; what is shared in it is
// reached through atomics or copied and checked afterwards, as the module says.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Makes a ring in a new memfd, mapped for writing. The descriptor that comes with it
    /// is sealed: whoever gets it can neither write nor resize it.
    pub fn create(capacity: u64, first_seq: u64) -> io::Result<(Ring, OwnedFd)> {
        let capacity = capacity.next_multiple_of(8);
        let (_, _, size) = layout(capacity);
        let fd = rustix::fs::memfd_create(
            c"procyard-ring",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&fd, size)?;
        let ring = Ring::map_with(&fd, capacity, ProtFlags::READ | ProtFlags::WRITE)?;
        rustix::fs::fcntl_add_seals(
            &fd,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL,
        )?;
        let header = ring.header();
        header.capacity.store(capacity, Ordering::Relaxed);
        header.first_seq.store(first_seq, Ordering::Relaxed);
        header.next_seq.store(first_seq, Ordering::Relaxed);
        header.first_kept.store(first_seq, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok((ring, fd))
    }

    /// Maps a ring that the keeper made, for reading only.
    pub fn open(fd: impl AsFd) -> io::Result<Ring> {
        let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(bad("the descriptor is no ring: it could shrink under its readers"));
        }
        let size = rustix::fs::fstat(&fd)?.st_size.cast_unsigned();
        let mut start = [0; size_of::<Header>()];
        if rustix::io::pread(&fd, &mut start, 0)? != start.len()
            || start[..8] != MAGIC.to_ne_bytes()
        {
            return Err(bad("the descriptor is no ring of this version"));
        }
        let mut capacity = [0; 8];
        capacity.copy_from_slice(&start[8..16]);
        let capacity = u64::from_ne_bytes(capacity);
        if capacity == 0
            || capacity % 8 != 0
            || capacity > 4 * MAX_CAPACITY
            || layout(capacity).2 != size
        {
            return Err(bad("the ring's size does not fit its capacity"));
        }
        Ring::map_with(&fd, capacity, ProtFlags::READ)
    }

    /// Makes bytes begin as a ring of their size does, and adds what is missing of the smallest.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn set_beginning(bytes: &mut Vec<u8>) {
        let smallest = layout(8).2 as usize;
        bytes.resize(bytes.len().max(smallest).next_multiple_of(8), 0);
        let size = bytes.len() as u64;
        // Of a few sizes there is no ring: the next segment would take the room that it gives.
        let mut capacity = size - size_of::<Header>() as u64 - 8;
        while layout(capacity).2 > size {
            capacity -= 8;
        }
        bytes.truncate(layout(capacity).2 as usize);
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[8..16].copy_from_slice(&capacity.to_ne_bytes());
    }

    fn map_with(fd: impl AsFd, capacity: u64, protection: ProtFlags) -> io::Result<Ring> {
        let (segments, data, size) = layout(capacity);
        let mapped = usize::try_from(size).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), mapped, protection, MapFlags::SHARED, fd, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring { base, mapped, capacity, segments, data })
    }

    /// The positions and counters.
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned, longer than a Header, and a Header is all atomics.
        unsafe { self.base.cast().as_ref() }
    }

    /// Sequence number of the first chunk that there ever was.
    pub fn first_seq(&self) -> u64 {
        self.header().first_seq.load(Ordering::Relaxed)
    }

    /// How much there is and was. Each figure is right for itself; while the writer runs, two
    /// of them may be an append apart.
    pub fn figures(&self) -> Figures {
        let header = self.header();
        let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let next_seq = header.next_seq.load(Ordering::Acquire);
        Figures {
            first_seq: get(&header.first_kept).min(next_seq),
            next_seq,
            total_bytes: get(&header.total_bytes),
            dropped_bytes: get(&header.dropped_bytes),
            last_time: get(&header.last_time),
        }
    }

    /// Memory that has been taken for it.
    pub fn memory(&self) -> u64 {
        self.header().head.load(Ordering::Relaxed).min(self.capacity) + self.data as u64
    }

    /// Takes its pages out of the page table of this process. They stay in memory, where the next
    /// access finds them.
    pub fn unmap_pages(&self) {
        // SAFETY: the mapping is this Ring's own and shared, so that no byte of it is lost.
        let _ = unsafe {
            rustix::mm::madvise(self.base.as_ptr().cast(), self.mapped, Advice::LinuxDontNeed)
        };
    }

    /// Bytes of the data area.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes from a position to the wrap.
    pub fn contiguous(&self, position: u64) -> u64 {
        self.capacity - position % self.capacity
    }

    /// A frame may be at a position that lies before the head: at a whole word, and not so far
    /// back that it would be overwritten.
    pub fn may_be(&self, position: u64, head: u64) -> bool {
        position.is_multiple_of(8) && head - position <= self.capacity
    }

    /// Where the payload of the frame at `position` lies.
    pub fn payload(&self, position: u64) -> *mut u8 {
        self.place(position).wrapping_add(FRAME_HEADER as usize)
    }

    fn place(&self, position: u64) -> *mut u8 {
        let at = self.data + (position % self.capacity) as usize;
        self.base.as_ptr().wrapping_add(at)
    }

    fn word(&self, position: u64, word: usize) -> &AtomicU64 {
        debug_assert!(
            position.is_multiple_of(8) && self.contiguous(position) >= 8 * (word as u64 + 1)
        );
        // SAFETY: positions are whole words, a frame's words lie before the wrap, and the data
        // area lies inside the mapping.
        unsafe { &*self.place(position).cast::<AtomicU64>().wrapping_add(word) }
    }

    /// What the words at a position say. They mean something only while the position is kept:
    /// see [`Ring::intact`].
    pub fn frame(&self, position: u64) -> Frame {
        let word = |n| self.word(position, n).load(Ordering::Relaxed);
        let first = word(0);
        let len = first & u64::from(u32::MAX);
        let stream = match (first >> 32) as u8 {
            1 => Stream::Stdout,
            2 => Stream::Stderr,
            3 => Stream::Terminal,
            _ => return Frame { len, stream: None, seq: 0, offset: 0, total: 0, time: 0 },
        };
        if self.contiguous(position) < FRAME_HEADER {
            // Not a frame but overwritten bytes; the caller finds the position lapped.
            return Frame { len: 0, stream: None, seq: 0, offset: 0, total: 0, time: 0 };
        }
        let (seq, offset, total, time) = (word(1), word(2), word(3), word(4));
        Frame { len, stream: Some(stream), seq, offset, total, time }
    }

    /// Writes the words of a frame, or of a filler.
    pub fn set_frame(&self, position: u64, frame: &Frame) {
        let stream = frame.stream.map_or(FILLER, |stream| stream as u8);
        let put = |n, value| self.word(position, n).store(value, Ordering::Relaxed);
        put(0, frame.len | u64::from(stream) << 32);
        if frame.stream.is_some() {
            put(1, frame.seq);
            put(2, frame.offset);
            put(3, frame.total);
            put(4, frame.time);
        }
    }

    /// Whether everything from `position` on was still kept when it was read before this call.
    pub fn intact(&self, position: u64) -> bool {
        fence(Ordering::Acquire);
        self.header().tail.load(Ordering::Relaxed) <= position
    }

    /// Numbers the segments of the data area, lap after lap.
    pub fn segment(&self, position: u64) -> u64 {
        position / self.capacity * self.segments + position % self.capacity / SEGMENT
    }

    /// The index entry of a segment: position of the first frame that begins in it.
    pub fn first_in(&self, segment: u64) -> &AtomicU64 {
        let entry = (segment % self.segments) as usize;
        let at = size_of::<Header>() + 8 * entry;
        // SAFETY: the index lies between header and data, inside the mapping, in whole words.
        unsafe { &*self.base.as_ptr().wrapping_add(at).cast() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is this Ring's own, and nothing borrowed from it outlives it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

/// Segments, offset of the data area and size of the file for a capacity. The data begin right
/// behind the index, so that a process with one line of output takes one page.
fn layout(capacity: u64) -> (u64, usize, u64) {
    let segments = capacity.div_ceil(SEGMENT).max(1);
    let data = size_of::<Header>() as u64 + 8 * segments;
    (segments, data as usize, data + capacity)
}
