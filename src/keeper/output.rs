//! Capturing: from a pipe or terminal into the ring.
//!
//! Owns one output of a process and how much is read from it at a time. Never waits: it is called when
//! there is something to read, and helpers read pipes (`stream_helpers`).

use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::poller::Token;
use super::ring::{Unappended, Writer};
use super::stream_helpers::{BULK_BYTES, BUSY_PIPE, CALL_BYTES, Call, End, Outcome, StreamHelpers};
use crate::process::{Launch, Overflow};
use crate::transcript::Stream;

/// Most bytes that can have been written and not yet read.
pub(super) const MAX_UNREAD: usize = BUSY_PIPE;
/// What a terminal hands over at most in one read.
const TERMINAL_READ: usize = 4096;
/// A pipe is not read while its ring has less room.
const MIN_ROOM: usize = 512;

/// An output of a process.
pub(super) struct Output {
    pub(super) end: Rc<End>,
    stream: Stream,
    grown: bool,
    /// Why it is not watched, if it is not.
    pub(super) paused: Option<Pause>,
    /// A read is late.
    is_late: bool,
    /// The last read was late.
    was_late: bool,
    /// What was read and found no room in the ring.
    unappended: Vec<u8>,
}

/// Why an output is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// The ring takes no more until chunks are acknowledged.
    RingFull,
    /// The machine has no memory or no descriptor for it now.
    ResourceExhausted,
    /// A read is late.
    Late,
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
    /// No process can write to it any more.
    Ended,
    /// The ring takes no more until chunks are acknowledged.
    NoRoom,
    /// An event will tell when it was read.
    Late,
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
    pub(super) fn new(end: End, stream: Stream) -> Output {
        Output {
            end: Rc::new(end),
            stream,
            grown: false,
            paused: None,
            is_late: false,
            was_late: false,
            unappended: Vec::new(),
        }
    }

    /// Whether something was read that the ring did not take.
    pub(super) fn has_unappended(&self) -> bool {
        !self.unappended.is_empty()
    }

    /// Whether it is not watched and can be read again.
    pub(super) fn can_resume(&self) -> bool {
        self.paused.is_some() && !self.is_late
    }

    /// Reads once. `waits`: also waits for a read that may be late.
    pub(super) fn pump(
        &mut self,
        sink: &mut Sink,
        time: u64,
        (token, waits): (Token, bool),
        helpers: &mut StreamHelpers,
    ) -> Pumped {
        if self.has_unappended() {
            let data = std::mem::take(&mut self.unappended);
            return self.append(sink, &data, time);
        }
        if self.is_late {
            let made = if waits { helpers.wait_for(token) } else { None };
            return match made {
                Some(call) => self.finish_read(sink, time, call, helpers),
                None => Pumped::Late,
            };
        }
        let there = self.poll();
        if !there.contains(PollFlags::IN) {
            // No ring is made for an output that only ends.
            let ended = there.intersects(PollFlags::HUP | PollFlags::ERR);
            return if ended { Pumped::Ended } else { Pumped::Empty };
        }
        if self.end.is_pipe() {
            self.read_pipe(sink, time, (token, waits), helpers)
        } else {
            self.read_terminal(sink, time)
        }
    }

    fn read_terminal(&mut self, sink: &mut Sink, time: u64) -> Pumped {
        let ring = match sink.ring() {
            Ok(ring) => ring,
            Err(error) => return out_of_memory(&error),
        };
        let end = &self.end;
        let read = ring.append(self.stream, TERMINAL_READ, time, |room| {
            loop {
                match rustix::io::read(end, &mut *room) {
                    Ok((filled, _)) => return Ok(filled.len()),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
        });
        match read {
            Ok(0) | Err(Unappended::Fill(Errno::IO)) => Pumped::Ended,
            Ok(len) if len >= TERMINAL_READ / 2 => Pumped::Bulk(len),
            Ok(len) => Pumped::Bytes(len),
            Err(Unappended::Full) => Pumped::NoRoom,
            Err(Unappended::Fill(Errno::AGAIN)) => Pumped::Empty,
            Err(Unappended::Fill(errno)) => Pumped::Trouble(errno),
        }
    }

    fn read_pipe(
        &mut self,
        sink: &mut Sink,
        time: u64,
        (token, waits): (Token, bool),
        helpers: &mut StreamHelpers,
    ) -> Pumped {
        let most = if self.grown { BULK_BYTES } else { CALL_BYTES };
        let room = match sink.ring() {
            Ok(ring) => ring.room(most, MIN_ROOM),
            Err(error) => return out_of_memory(&error),
        };
        let Some(room) = room else { return Pumped::NoRoom };
        let is_slow = !waits && (self.was_late || helpers.is_time_used_up());
        match helpers.read(token, &self.end, room, is_slow) {
            Outcome::Done(call) => self.finish_read(sink, time, call, helpers),
            Outcome::Late => {
                (self.is_late, self.was_late) = (true, true);
                Pumped::Late
            }
            Outcome::NoHelper => Pumped::Trouble(Errno::AGAIN),
        }
    }

    /// Appends what a read of a pipe has brought.
    pub(super) fn finish_read(
        &mut self,
        sink: &mut Sink,
        time: u64,
        mut call: Call,
        helpers: &mut StreamHelpers,
    ) -> Pumped {
        self.is_late = false;
        self.was_late &= !call.was_prompt();
        let pumped = match call.data() {
            Ok([]) => Pumped::Ended,
            Ok(data) => {
                self.grown |= data.len() >= CALL_BYTES;
                self.append(sink, data, time)
            }
            Err(Errno::AGAIN) => Pumped::Empty,
            Err(errno) => Pumped::Trouble(errno),
        };
        helpers.recycle(call);
        pumped
    }

    fn append(&mut self, sink: &mut Sink, data: &[u8], time: u64) -> Pumped {
        let mut rest = data;
        while !rest.is_empty() {
            let appended = sink.ring().map(|ring| {
                ring.append(self.stream, rest.len(), time, |room| {
                    let len = room.len().min(rest.len());
                    // SAFETY: both have so many bytes, and the ring is no part of a call's buffer.
                    unsafe { rest.as_ptr().copy_to_nonoverlapping(room.as_mut_ptr().cast(), len) };
                    Ok(len)
                })
            });
            match appended {
                Ok(Ok(len)) => rest = &rest[len..],
                Ok(Err(_)) => {
                    self.unappended = rest.to_vec();
                    return Pumped::NoRoom;
                }
                Err(error) => {
                    self.unappended = rest.to_vec();
                    return out_of_memory(&error);
                }
            }
        }
        if data.len() >= CALL_BYTES / 2 {
            Pumped::Bulk(data.len())
        } else {
            Pumped::Bytes(data.len())
        }
    }

    fn poll(&self) -> PollFlags {
        let mut fds = [PollFd::new(&self.end, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).map_or(PollFlags::empty(), |_| fds[0].revents())
    }
}

fn out_of_memory(error: &std::io::Error) -> Pumped {
    Pumped::Trouble(Errno::from_io_error(error).unwrap_or(Errno::NOMEM))
}
