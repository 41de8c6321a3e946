//! The connection to the server: requests in, replies and reports out.
//!
//! Owns the socket and what is under way on it. Bounded on both sides: while much waits to be
//! sent, or many starts wait to be made, nothing more is read, and reports are made only when
//! there is room, since they tell a state and not a history.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use bytes::BytesMut;

use super::poller::EventFlags;
use super::pulse::Pulse;
use crate::protocol::{ProtocolError, Version, decode, encode, pb, socket};

/// Bytes under way beyond which nothing more is asked for or told.
const CROWDED: usize = 1 << 20;
/// Bytes that go in one parcel.
const PARCEL: usize = 64 << 10;

/// A connection to a server.
pub(super) struct Link {
    socket: OwnedFd,
    received: BytesMut,
    outbox: VecDeque<Parcel>,
    queued: usize,
    /// The last send failed because too many descriptors of this user are in flight. The socket
    /// does not say when fewer are.
    is_throttled: bool,
    /// What the socket is watched for.
    pub(super) watched: EventFlags,
    /// The server has adopted: from then on it is told what changes.
    pub(super) adopted: bool,
    /// What is spoken, once the server has said so.
    pub(super) version: Option<Version>,
    /// Version of the server's program, if it said so.
    pub(super) release: String,
    pub(super) pulse: Pulse,
}

/// Bytes with descriptors beside them, which arrive with the first byte at the latest.
#[derive(Default)]
struct Parcel {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<Rc<OwnedFd>>,
}

impl Link {
    pub(super) fn new(socket: OwnedFd) -> Link {
        Link {
            socket,
            received: BytesMut::new(),
            outbox: VecDeque::new(),
            queued: 0,
            is_throttled: false,
            watched: EventFlags::IN,
            adopted: false,
            version: None,
            release: String::new(),
            pulse: Pulse::begin(Instant::now()),
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes what has come. False: nothing has.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        // The server sends no descriptors.
        let mut none = VecDeque::new();
        match socket::receive(&self.socket, &mut self.received, &mut none) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                self.pulse.heard(Instant::now());
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The next request that has come whole.
    pub(super) fn next(&mut self) -> Result<Option<pb::ToKeeper>, ProtocolError> {
        decode(&mut self.received)
    }

    /// Queues a message and the descriptors that it announces.
    pub(super) fn push(&mut self, body: pb::from_keeper::Body, fds: Vec<Rc<OwnedFd>>) {
        let fits = |last: &&mut Parcel| {
            let few = last.fds.len() + fds.len() <= socket::MAX_DESCRIPTORS;
            last.bytes.len() < PARCEL && few && (fds.is_empty() || last.sent == 0)
        };
        if self.outbox.back_mut().as_ref().filter(|last| fits(last)).is_none() {
            self.outbox.push_back(Parcel::default());
        }
        let Some(parcel) = self.outbox.back_mut() else { return };
        let before = parcel.bytes.len();
        encode(&pb::FromKeeper { body: Some(body) }, &mut parcel.bytes);
        parcel.fds.extend(fds);
        self.queued += parcel.bytes.len() - before;
    }

    pub(super) fn reply(&mut self, request: u64, result: pb::reply::Result) {
        let reply = pb::Reply { request, result: Some(result) };
        self.push(pb::from_keeper::Body::Reply(reply), Vec::new());
    }

    /// Sends what the socket takes, in order: a kill is answered after the exit was reported, so
    /// nothing overtakes a parcel whose descriptors cannot be sent.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.is_throttled = false;
        while let Some(parcel) = self.outbox.front_mut() {
            let fds: Vec<BorrowedFd<'_>> = parcel.fds.iter().map(|fd| fd.as_fd()).collect();
            match socket::send(&self.socket, &parcel.bytes[parcel.sent..], &fds) {
                Ok(sent) => {
                    parcel.fds.clear();
                    parcel.sent += sent;
                    self.queued -= sent;
                    if parcel.sent == parcel.bytes.len() {
                        self.outbox.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The kernel limits descriptors in flight for all processes of a user together.
                Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
                    self.is_throttled = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Something waits until the socket can be written.
    pub(super) fn awaits_socket(&self) -> bool {
        !self.outbox.is_empty() && !self.is_throttled
    }

    /// Something waits until fewer descriptors are in flight, which only another try can tell.
    pub(super) fn awaits_retry(&self) -> bool {
        self.is_throttled
    }

    /// The server wants to be told what changes, and there is room to tell it.
    pub(super) fn has_ear(&self) -> bool {
        self.adopted && !self.crowded()
    }

    /// So much waits to be sent that nothing should be added without need.
    pub(super) fn crowded(&self) -> bool {
        self.queued > CROWDED
    }
}
