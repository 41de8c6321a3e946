//! What the keeper waits for: epoll, and whose descriptor each is.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

pub(super) use epoll::EventFlags;

/// Whose descriptor it is that something happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Signals,
    Link,
    Control,
    /// The link of a server that is to take over.
    Candidate,
    /// A start is over.
    Started,
    /// A late call on a pipe was made.
    StreamCallDone,
    /// An output of a process.
    Output(u64, usize),
    /// The input of a process, which has room.
    Input(u64),
    /// The size of a terminal, for which nothing is polled.
    Terminal(u64),
}

impl Token {
    fn pack(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Token::Signals => 0,
            Token::Link => 1,
            Token::Control => 2,
            Token::Candidate => 3,
            Token::Started => 4,
            Token::StreamCallDone => 5,
            Token::Output(key, output) => key << 3 | output as u64,
            Token::Input(key) => key << 3 | 2,
            Token::Terminal(key) => key << 3 | 3,
        })
    }

    /// Keys begin with 1, so that the numbers below 8 are free.
    fn unpack(data: epoll::EventData) -> Token {
        let number = data.u64();
        match (number >> 3, number & 7) {
            (0, 0) => Token::Signals,
            (0, 1) => Token::Link,
            (0, 2) => Token::Control,
            (0, 3) => Token::Candidate,
            (0, 4) => Token::Started,
            (0, _) => Token::StreamCallDone,
            (key, 2) => Token::Input(key),
            (key, 3) => Token::Terminal(key),
            (key, output) => Token::Output(key, output as usize & 1),
        }
    }
}

pub(super) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    /// Most events taken at once.
    const TURN: usize = 256;

    pub(super) fn new() -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Poller { epoll, events: Vec::with_capacity(Poller::TURN) })
    }

    pub(super) fn add(&self, fd: impl AsFd, token: Token, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, token.pack(), flags)
    }

    pub(super) fn modify(&self, fd: impl AsFd, token: Token, flags: EventFlags) {
        let _ = epoll::modify(&self.epoll, fd, token.pack(), flags);
    }

    pub(super) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits, for ever without a timeout, and returns what happened.
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
    ) -> io::Result<Vec<(Token, EventFlags)>> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        self.events.clear();
        let buffer = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, buffer, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(self.events.iter().map(|event| (Token::unpack(event.data), event.flags)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was() {
        let max = u64::MAX >> 3;
        let tokens = [Token::Signals, Token::Link, Token::Control, Token::Candidate];
        let tokens = tokens.into_iter().chain([Token::Started, Token::StreamCallDone]);
        let tokens = tokens.chain([Token::Input(1), Token::Input(max), Token::Terminal(1)]);
        let outputs = [1, 77, max].map(|key| [Token::Output(key, 0), Token::Output(key, 1)]);
        for token in tokens.chain(outputs.into_iter().flatten()) {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }
}
