//! Typing: bytes on their way into a process.
//!
//! Owns the input descriptor of one process, what pends in front of it, and the offsets that
//! make a repeated write harmless. Never blocks: what the child does not read pends, up to a
//! bound, beyond which nothing is taken. Helpers write to pipes (`stream_helpers`).

use std::collections::VecDeque;
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::poller::Token;
use super::stream_helpers::{Call, End, Outcome, StreamHelpers};

use crate::process::{InputState, MAX_PENDING_INPUT, Refused};

/// Most bytes that may pend.
const MAX_PENDING: usize = MAX_PENDING_INPUT as usize;

/// The input of a process.
pub(super) struct Input {
    /// None: there is none, or it was closed by either side.
    end: Option<Rc<End>>,
    accepted: u64,
    pending: VecDeque<u8>,
    /// A write is late: its bytes still pend.
    is_late: bool,
    /// The last write was late.
    was_late: bool,
    /// There was no helper for a write.
    is_stalled: bool,
    /// A pipe is to be closed once nothing pends.
    closing: bool,
    /// Where the terminal's EOF was typed last, so that a repeated write does not type it twice.
    eof_at: Option<u64>,
}

/// Bytes to be typed.
pub(super) struct Write<'a> {
    pub(super) offset: Option<u64>,
    pub(super) data: &'a [u8],
    /// Ends the input.
    pub(super) eof: bool,
    /// The character to end it with: on a terminal.
    pub(super) eof_character: Option<u8>,
}

impl Input {
    pub(super) fn new(end: Option<End>) -> Input {
        Input {
            end: end.map(Rc::new),
            accepted: 0,
            pending: VecDeque::new(),
            is_late: false,
            was_late: false,
            is_stalled: false,
            closing: false,
            eof_at: None,
        }
    }

    /// How far it is.
    pub(super) fn state(&self) -> InputState {
        InputState {
            open: self.end.is_some() && !self.closing,
            accepted: self.accepted,
            pending: self.pending.len() as u64,
        }
    }

    /// The descriptor, which may be watched even when nothing pends any more.
    pub(super) fn end(&self) -> Option<&Rc<End>> {
        self.end.as_ref()
    }

    /// The descriptor to be watched for room, while something pends that no helper writes.
    pub(super) fn waiting(&self) -> Option<&Rc<End>> {
        let is_watched = !self.pending.is_empty() && !self.is_late && !self.is_stalled;
        self.end.as_ref().filter(|_| is_watched)
    }

    /// Whether a write has to be tried again after a while.
    pub(super) fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Takes bytes for the process with this key, all or none; those that were taken before are skipped.
    pub(super) fn write(
        &mut self,
        write: &Write<'_>,
        key: u64,
        helpers: &mut StreamHelpers,
    ) -> Result<InputState, Refused> {
        let offset = write.offset.unwrap_or(self.accepted);
        if offset > self.accepted {
            return Err(Refused::InputOffset(self.state()));
        }
        let end = offset + write.data.len() as u64;
        let known = (self.accepted - offset).min(write.data.len() as u64) as usize;
        let new = &write.data[known..];
        let eof = write.eof && !self.eof_was_taken(write, end);
        if new.is_empty() && !eof {
            return Ok(self.state());
        }
        if !self.state().open {
            return Err(Refused::StdinNotOpen);
        }
        if self.pending.len() + new.len() > MAX_PENDING {
            return Err(Refused::StdinFull(self.state()));
        }
        self.accepted += new.len() as u64;
        self.pending.extend(new);
        if eof {
            self.eof_at = Some(end);
            match write.eof_character {
                Some(character) => self.pending.push_back(character),
                None => self.closing = true,
            }
        }
        self.flush(key, helpers);
        Ok(self.state())
    }

    /// Whether this write's EOF was taken with an earlier copy of it.
    fn eof_was_taken(&self, write: &Write<'_>, end: u64) -> bool {
        let closed = write.eof_character.is_none() && self.closing;
        let repeated = end < self.accepted || self.eof_at == Some(end);
        closed || (write.offset.is_some() && repeated)
    }

    /// Writes what the child takes now.
    pub(super) fn flush(&mut self, key: u64, helpers: &mut StreamHelpers) {
        self.is_stalled = false;
        while let (Some(end), false) = (&self.end, self.pending.is_empty()) {
            if self.is_late {
                return;
            }
            let data = self.pending.as_slices().0;
            let written = if !end.is_pipe() {
                rustix::io::write(end, data)
            } else if !has_room(end) {
                return;
            } else {
                let is_slow = self.was_late || helpers.is_time_used_up();
                match helpers.write(Token::Input(key), end, data, is_slow) {
                    Outcome::Done(call) => {
                        let written = call.result();
                        helpers.recycle(call);
                        written
                    }
                    Outcome::Late => {
                        (self.is_late, self.was_late) = (true, true);
                        return;
                    }
                    Outcome::NoHelper => {
                        self.is_stalled = true;
                        return;
                    }
                }
            };
            if !self.take_written(written) {
                return;
            }
        }
        self.pending = VecDeque::new();
        if self.closing {
            self.close();
        }
    }

    /// A late write was made: continues behind it.
    pub(super) fn finish_write(&mut self, key: u64, call: Call, helpers: &mut StreamHelpers) {
        self.is_late = false;
        self.was_late &= !call.was_prompt();
        let written = call.result();
        helpers.recycle(call);
        if self.take_written(written) {
            self.flush(key, helpers);
        }
    }

    /// What was written pends no more. False: there was no room for it.
    fn take_written(&mut self, written: Result<usize, Errno>) -> bool {
        match written {
            Ok(written) => drop(self.pending.drain(..written.min(self.pending.len()))),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return false,
            // The child closed its end: no process will read the rest.
            Err(_) => self.close(),
        }
        true
    }

    /// Gives up: the process has exited or closed its end.
    pub(super) fn close(&mut self) {
        self.is_stalled = false;
        self.end = None;
        self.pending = VecDeque::new();
    }
}

/// Whether a write to a pipe would take or refuse something now.
fn has_room(end: &End) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let polled = rustix::event::poll(&mut [PollFd::new(end, PollFlags::OUT)], Some(&now));
    polled.is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    struct Piped {
        input: Input,
        helpers: StreamHelpers,
    }

    impl Piped {
        fn write(&mut self, write: &Write<'_>) -> Result<InputState, Refused> {
            self.input.write(write, 1, &mut self.helpers)
        }
    }

    fn pipe() -> (OwnedFd, Piped) {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let helpers = StreamHelpers::new().unwrap();
        let input = Input::new(Some(End::of_terminal(writer, helpers.closes())));
        (reader, Piped { input, helpers })
    }

    fn plain(offset: Option<u64>, data: &[u8]) -> Write<'_> {
        Write { offset, data, eof: false, eof_character: None }
    }

    fn read(fd: &OwnedFd) -> Vec<u8> {
        let mut buffer = vec![0; 1 << 17];
        let len = rustix::io::read(fd, &mut buffer[..]).unwrap_or(0);
        buffer.truncate(len);
        buffer
    }

    #[test]
    fn a_repeated_write_is_no_second_write() {
        let (reader, mut input) = pipe();
        input.write(&plain(Some(0), b"abc")).unwrap();
        input.write(&plain(Some(0), b"abc")).unwrap();
        let state = input.write(&plain(Some(1), b"bcde")).unwrap();
        assert_eq!((state.accepted, state.pending), (5, 0));
        assert_eq!(read(&reader), b"abcde");
    }

    #[test]
    fn a_hole_is_refused_and_takes_nothing() {
        let (reader, mut input) = pipe();
        let refused = input.write(&plain(Some(4), b"x"));
        assert!(matches!(refused, Err(Refused::InputOffset(InputState { accepted: 0, .. }))));
        assert_eq!(read(&reader), b"");
    }

    #[test]
    fn what_does_not_fit_is_refused_whole_and_what_pends_arrives_in_order() {
        let (reader, mut input) = pipe();
        let piece: Vec<u8> = (0..=255).cycle().take(300_000).collect();
        let mut taken = 0;
        let state = loop {
            match input.write(&plain(None, &piece)) {
                Ok(_) => taken += piece.len(),
                Err(Refused::StdinFull(state)) => break state,
                Err(other) => panic!("{other:?}"),
            }
        };
        assert_eq!(state.accepted, taken as u64);
        assert!(state.pending > 0 && state.pending <= MAX_PENDING as u64);
        let mut all = Vec::new();
        while all.len() < taken {
            all.extend(read(&reader));
            input.input.flush(1, &mut input.helpers);
        }
        assert_eq!(all, piece.repeat(taken / piece.len()));
        assert!(input.input.waiting().is_none());
    }

    #[test]
    fn a_pipe_closes_after_what_pends_and_says_so() {
        let (reader, mut input) = pipe();
        let end = Write { eof: true, ..plain(Some(0), b"bye") };
        assert!(!input.write(&end).unwrap().open);
        assert_eq!(read(&reader), b"bye");
        let begin = std::time::Instant::now();
        while rustix::io::read(&reader, &mut [0; 8]) != Ok(0) {
            assert!(begin.elapsed().as_secs() < 60, "the pipe is not closed");
            input.helpers.close_ends();
        }
        assert_eq!(input.write(&end).unwrap().accepted, 3, "a repeated end is fine");
        assert_eq!(input.write(&plain(None, b"more")), Err(Refused::StdinNotOpen));
    }

    #[test]
    fn a_terminals_eof_is_typed_once_per_offset() {
        let (reader, mut input) = pipe();
        let end = Write { eof: true, eof_character: Some(4), ..plain(Some(0), b"a") };
        assert!(input.write(&end).unwrap().open);
        input.write(&end).unwrap();
        assert_eq!(read(&reader), b"a\x04");
        input.write(&Write { eof: true, eof_character: Some(4), ..plain(None, b"") }).unwrap();
        assert_eq!(read(&reader), b"\x04");
        input.write(&plain(Some(1), b"b")).unwrap();
        input.write(&end).unwrap();
        assert_eq!(read(&reader), b"b", "a late copy of an earlier end is typed no more");
    }
}
