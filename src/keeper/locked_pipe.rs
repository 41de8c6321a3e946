//! A pipe that a call keeps locked, for tests: every other call on it waits.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::pipe::{SpliceFlags, splice};

/// Locked by a thread that waits in a splice, until a byte comes for it.
pub(super) struct LockedPipe {
    socket: UnixStream,
    thread: JoinHandle<()>,
}

impl LockedPipe {
    /// Locks the pipe of this writing end. No other call on it may be under way, as the splice waits
    /// for that first.
    pub(super) fn lock(writer: OwnedFd) -> LockedPipe {
        let (socket, idle) = UnixStream::pair().unwrap();
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            sender.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
            assert_eq!(splice(&idle, None, &writer, None, 1, SpliceFlags::empty()), Ok(1));
        });
        let call = Path::new("/proc").join(receiver.recv().unwrap()).join("syscall");
        let splice = format!("{} ", libc::SYS_splice);
        while !std::fs::read_to_string(&call).unwrap().starts_with(&splice) {
            std::thread::yield_now();
        }
        LockedPipe { socket, thread }
    }

    /// Has the splice write this byte and end.
    pub(super) fn unlock(mut self, byte: u8) {
        self.socket.write_all(&[byte]).unwrap();
        self.thread.join().unwrap();
    }
}
