//! Capturing: from a pipe or terminal straight into the ring.
//!
//! Owns one output descriptor of a process and how much is read from it at a time. Never waits:
//! it is called when there is something to read.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::ring::{Unappended, Writer};
use crate::process::{Launch, Overflow};
use crate::transcript::Stream;
use crate::transcript::ring::MAX_PAYLOAD;

/// Size that a pipe is given once it was seen full.
pub(super) const BUSY_PIPE: usize = 1 << 20;
/// What a terminal hands over at most in one read, and the room that a short read is given.
const TERMINAL_READ: usize = 4096;
const SHORT_READ: usize = 512;

/// An output of a process.
pub(super) struct Output {
    pub(super) fd: OwnedFd,
    stream: Stream,
    grown: bool,
    /// Why it is not watched, if it is not.
    pub(super) paused: Option<Pause>,
}

/// Why an output is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// The ring takes no more until chunks are acknowledged.
    RingFull,
    /// The machine has no memory or no descriptor for it now.
    ResourceExhausted,
}

/// What one read brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pumped {
    /// Bytes.
    Bytes(usize),
    /// So many bytes that more of them can be expected at once.
    Bulk(usize),
    /// There is nothing now.
    Empty,
    /// Nobody can write to it any more.
    Ended,
    /// The ring takes no more until chunks are acknowledged.
    NoRoom,
    /// The machine has no memory or no descriptor for it now.
    Trouble(Errno),
}

/// Where output goes: a ring that is made when the first byte comes, since most processes that
/// are held print nothing most of the time.
pub(super) struct Sink {
    pub(super) ring: Option<Writer>,
    bytes: u64,
    overflow: Overflow,
    first_seq: u64,
    unmap_written: bool,
    exited: bool,
}

impl Sink {
    pub(super) fn new(launch: &Launch, unmap_written: bool) -> Sink {
        let Launch { ring_bytes: bytes, overflow, first_seq, .. } = *launch;
        Sink { ring: None, bytes, overflow, first_seq, unmap_written, exited: false }
    }

    /// Sequence number that the next chunk will have.
    pub(super) fn next_seq(&self) -> u64 {
        self.ring.as_ref().map_or(self.first_seq, Writer::next_seq)
    }

    /// Nothing was printed yet: the first chunk has this number at least.
    pub(super) fn begin_at(&mut self, seq: u64) {
        self.first_seq = self.first_seq.max(seq);
    }

    /// The process has exited: what is left in its pipes is taken in any case.
    pub(super) fn open_exit_room(&mut self) {
        self.exited = true;
        if let Some(ring) = &mut self.ring {
            ring.open_exit_room();
        }
    }

    /// Lets the oldest chunk go: see [`Writer::give_way`].
    pub(super) fn give_way(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.give_way();
        }
    }

    /// Goes on with the ring of an earlier run, as it is, if it has one.
    pub(super) fn go_on_with(&mut self, earlier: Sink) {
        if let Some(mut ring) = earlier.ring {
            ring.close_exit_room();
            self.ring = Some(ring);
        }
    }

    fn ring(&mut self) -> std::io::Result<&mut Writer> {
        if self.ring.is_none() {
            let mut ring = Writer::create(self.bytes, self.overflow, self.first_seq)?;
            if self.unmap_written {
                ring.unmap_written();
            }
            if self.exited {
                ring.open_exit_room();
            }
            self.ring = Some(ring);
        }
        self.ring.as_mut().ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
    }
}

impl Output {
    pub(super) fn new(fd: OwnedFd, stream: Stream) -> Output {
        Output { fd, stream, grown: false, paused: None }
    }

    /// Reads once.
    pub(super) fn pump(&mut self, sink: &mut Sink, time: u64) -> Pumped {
        let want = match self.stream {
            Stream::Terminal => TERMINAL_READ,
            // The exact size keeps the ring from dropping more than it must.
            _ => rustix::io::ioctl_fionread(&self.fd).map_or(0, |there| there as usize),
        };
        if sink.ring.is_none() {
            // No ring is made for an output that only ends.
            let there = self.poll();
            if !there.contains(PollFlags::IN) {
                let ended = there.intersects(PollFlags::HUP | PollFlags::ERR);
                return if ended { Pumped::Ended } else { Pumped::Empty };
            }
        }
        let ring = match sink.ring() {
            Ok(ring) => ring,
            Err(error) => {
                return Pumped::Trouble(Errno::from_io_error(&error).unwrap_or(Errno::NOMEM));
            }
        };
        let fd = &self.fd;
        let read = ring.append(self.stream, want.max(SHORT_READ), time, |room| {
            loop {
                match rustix::io::read(fd, &mut *room) {
                    Ok((filled, _)) => return Ok(filled.len()),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
        });
        match read {
            Ok(0) | Err(Unappended::Fill(Errno::IO)) => Pumped::Ended,
            Ok(len) => {
                self.grow_if_busy(want);
                if len >= self.bulk() { Pumped::Bulk(len) } else { Pumped::Bytes(len) }
            }
            Err(Unappended::Full) => Pumped::NoRoom,
            Err(Unappended::Fill(Errno::AGAIN)) => Pumped::Empty,
            Err(Unappended::Fill(errno)) => Pumped::Trouble(errno),
        }
    }

    /// Most bytes that can have been written and not yet read.
    pub(super) fn most_unread(&self) -> usize {
        match self.stream {
            Stream::Terminal => BUSY_PIPE,
            _ => rustix::pipe::fcntl_getpipe_size(&self.fd).unwrap_or(BUSY_PIPE),
        }
    }

    /// A read of this size is one of many: half of what one read can bring at most.
    fn bulk(&self) -> usize {
        match self.stream {
            Stream::Terminal => TERMINAL_READ / 2,
            _ => MAX_PAYLOAD as usize / 2,
        }
    }

    fn poll(&self) -> PollFlags {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).map_or(PollFlags::empty(), |_| fds[0].revents())
    }

    /// A pipe that is full when it is read slows its writer down: a larger one is worth it then,
    /// and only then, since an unprivileged user gets few.
    fn grow_if_busy(&mut self, there: usize) {
        if !self.grown && self.stream != Stream::Terminal && there as u64 >= MAX_PAYLOAD {
            self.grown = true;
            let _ = rustix::pipe::fcntl_setpipe_size(self.fd.as_fd(), BUSY_PIPE);
        }
    }
}
