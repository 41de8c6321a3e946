//! Typing: bytes on their way into a process.
//!
//! Owns the input descriptor of one process, what pends in front of it, and the offsets that
//! make a repeated write harmless. Never blocks: what the child does not read pends, up to a
//! bound, beyond which nothing is taken.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::process::{InputState, MAX_PENDING_INPUT, Refused};

/// Most bytes that may pend.
const MAX_PENDING: usize = MAX_PENDING_INPUT as usize;

/// The input of a process.
pub(super) struct Input {
    /// None: there is none, or it was closed by either side.
    fd: Option<OwnedFd>,
    accepted: u64,
    pending: VecDeque<u8>,
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
    pub(super) fn new(fd: Option<OwnedFd>) -> Input {
        Input { fd, accepted: 0, pending: VecDeque::new(), closing: false, eof_at: None }
    }

    /// How far it is.
    pub(super) fn state(&self) -> InputState {
        InputState {
            open: self.fd.is_some() && !self.closing,
            accepted: self.accepted,
            pending: self.pending.len() as u64,
        }
    }

    /// The descriptor, which may be watched even when nothing pends any more.
    pub(super) fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    /// The descriptor to be watched for room, while something pends.
    pub(super) fn waiting(&self) -> Option<&OwnedFd> {
        self.fd.as_ref().filter(|_| !self.pending.is_empty())
    }

    /// Takes bytes, all or none; those that were taken before are skipped.
    pub(super) fn write(&mut self, write: &Write<'_>) -> Result<InputState, Refused> {
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
        self.flush();
        Ok(self.state())
    }

    /// Whether this write's EOF was taken with an earlier copy of it.
    fn eof_was_taken(&self, write: &Write<'_>, end: u64) -> bool {
        let closed = write.eof_character.is_none() && self.closing;
        let repeated = end < self.accepted || self.eof_at == Some(end);
        closed || (write.offset.is_some() && repeated)
    }

    /// Writes what the child takes now.
    pub(super) fn flush(&mut self) {
        while let (Some(fd), false) = (&self.fd, self.pending.is_empty()) {
            match rustix::io::write(fd, self.pending.as_slices().0) {
                Ok(written) => drop(self.pending.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The child closed its end: nobody will read the rest.
                Err(_) => self.close(),
            }
        }
        self.pending = VecDeque::new();
        if self.closing {
            self.close();
        }
    }

    /// Gives up: the process has exited or closed its end.
    pub(super) fn close(&mut self) {
        self.fd = None;
        self.pending = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn pipe() -> (OwnedFd, Input) {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        (reader, Input::new(Some(writer)))
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
            input.flush();
        }
        assert_eq!(all, piece.repeat(taken / piece.len()));
        assert!(input.waiting().is_none());
    }

    #[test]
    fn a_pipe_closes_after_what_pends_and_says_so() {
        let (reader, mut input) = pipe();
        let end = Write { eof: true, ..plain(Some(0), b"bye") };
        assert!(!input.write(&end).unwrap().open);
        assert_eq!(read(&reader), b"bye");
        assert_eq!(rustix::io::read(&reader, &mut [0; 8]), Ok(0));
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
