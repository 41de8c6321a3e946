//! A terminal: opening, sizing, and the character that ends input.
//!
//! portable-pty opens and sizes it; its own way of spawning is not used, since it reports a bad
//! interpreter as success and walks all descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use portable_pty::{MasterPty, PtySize, native_pty_system};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::SpecialCodeIndex;

use crate::process::Size;

/// The master side of a terminal, and a slave held open.
pub(super) struct Terminal {
    master: Box<dyn MasterPty + Send>,
    /// The master's descriptor, open as long as `master`.
    fd: RawFd,
    /// Without a slave open anywhere, the master reads as an error until one is opened again. A
    /// program may close its terminal and open `/dev/tty` later: so one is held until the exit.
    slave: Option<OwnedFd>,
}

impl Terminal {
    /// Opens a terminal of this size.
    pub(super) fn open(size: Size) -> Result<Terminal, Errno> {
        let master = native_pty_system().openpty(pty_size(size)).map(|pair| pair.master);
        let master = master.map_err(|_| {
            // The error has the errno in its text only; the thread still has it as a number.
            Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSPC)
        })?;
        let fd = master.as_raw_fd().ok_or(Errno::BADF)?;
        let mut terminal = Terminal { master, fd, slave: None };
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        terminal.slave = Some(rustix::pty::ioctl_tiocgptpeer(terminal.master(), flags)?);
        Ok(terminal)
    }

    /// The master.
    pub(super) fn master(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self.master`, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// The slave that is held open.
    pub(super) fn slave(&self) -> Option<BorrowedFd<'_>> {
        self.slave.as_ref().map(AsFd::as_fd)
    }

    /// Lets go of the slave: from now on the master reads as ended when no one has it open.
    pub(super) fn release(&mut self) {
        self.slave = None;
    }

    /// Sets the size, which tells the foreground group with SIGWINCH.
    pub(super) fn resize(&self, size: Size) -> Result<(), Errno> {
        self.master.resize(pty_size(size)).map_err(|_| Errno::IO)
    }

    /// The size that it has now, whoever set it.
    pub(super) fn size(&self) -> Option<Size> {
        let size = rustix::termios::tcgetwinsize(self.master()).ok()?;
        Some(Size { rows: size.ws_row, cols: size.ws_col })
    }

    /// The character that ends input here: ^D unless the program chose another.
    pub(super) fn eof(&self) -> u8 {
        let termios = rustix::termios::tcgetattr(self.master());
        termios.map_or(0x04, |termios| termios.special_codes[SpecialCodeIndex::VEOF])
    }
}

fn pty_size(Size { rows, cols }: Size) -> PtySize {
    PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }
}
