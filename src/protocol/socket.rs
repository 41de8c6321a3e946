//! Bytes and descriptors over a Unix stream socket, without blocking.
//!
//! A descriptor arrives with or before the byte it was sent beside, so a receiver keeps
//! descriptors in a queue and lets the messages that announce one take the next.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::BytesMut;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Most descriptors beside one message; the kernel takes up to 253.
pub const MAX_DESCRIPTORS: usize = 64;
const READ: usize = 16 << 10;

/// Sends bytes, with the descriptors beside the first of them. Fewer bytes may go; the
/// descriptors go with any.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors beside one message"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?)
}

/// Receives what is there. 0: the other end is gone.
pub fn receive(
    socket: impl AsFd,
    bytes: &mut BytesMut,
    fds: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let old = bytes.len();
    bytes.resize(old + READ, 0);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes[old..])],
        &mut control,
        flags,
    );
    bytes.truncate(old + received.as_ref().map_or(0, |message| message.bytes));
    let received = received?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // A descriptor is lost, so every later one would be taken for another's.
        return Err(io::Error::other("out of descriptors: one that was sent could not be taken"));
    }
    Ok(received.bytes)
}
