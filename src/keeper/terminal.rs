//! A terminal: opening, sizing, and the character that ends input.
//!
//! portable-pty opens it; its own way of spawning is not used, since it reports a bad interpreter as
//! success and walks all descriptors. Helpers read and set its state: a process can keep that from being done.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use portable_pty::{PtySize, native_pty_system};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;

use super::poller::Token;
use super::stream_helpers::{Closes, End, Outcome, StreamHelpers};
use crate::process::Size;

/// The character that ends input unless a program chooses another: ^D.
const USUAL_EOF: u8 = 0x04;

/// The master side of a terminal, and a slave held open.
pub(super) struct Terminal {
    master: Rc<End>,
    /// Without a slave open anywhere, the master reads as an error until one is opened again. A
    /// program may close its terminal and open `/dev/tty` later: so one is held until the exit.
    slave: Option<End>,
    /// The size that was asked for or found last.
    size: Size,
    /// A call for its state is late, and this is the size after it.
    late_size: Option<Size>,
    /// A call for its state was late.
    was_late: bool,
}

impl Terminal {
    /// Opens a terminal of this size.
    pub(super) fn open(size: Size, closes: &Closes) -> Result<Terminal, Errno> {
        let master = native_pty_system().openpty(pty_size(size)).map(|pair| pair.master);
        let master = master.map_err(|_| {
            // The error has the errno in its text only; the thread still has it as a number.
            Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOSPC)
        })?;
        let fd = master.as_raw_fd().ok_or(Errno::BADF)?;
        // SAFETY: the descriptor is open as long as `master`.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        // The last close of the slave, and of the master, waits for processes that use the terminal.
        let slave = Some(End::of_terminal(rustix::pty::ioctl_tiocgptpeer(fd, flags)?, closes));
        let master = Rc::new(End::of_terminal(rustix::io::fcntl_dupfd_cloexec(fd, 0)?, closes));
        Ok(Terminal { master, slave, size, late_size: None, was_late: false })
    }

    /// The master.
    pub(super) fn end(&self) -> &Rc<End> {
        &self.master
    }

    /// The slave that is held open.
    pub(super) fn slave(&self) -> Option<BorrowedFd<'_>> {
        self.slave.as_ref().map(AsFd::as_fd)
    }

    /// Lets go of the slave: from now on the master reads as ended when no one has it open.
    pub(super) fn release(&mut self) {
        self.slave = None;
    }

    /// Sets the size, which tells the foreground group with SIGWINCH. One that is late is set later.
    pub(super) fn resize(
        &mut self,
        key: u64,
        size: Size,
        helpers: &mut StreamHelpers,
    ) -> Result<(), Errno> {
        self.size = size;
        if self.late_size.is_some() {
            return Ok(());
        }
        match helpers.resize(Token::Terminal(key), &self.master, size, self.was_late) {
            Outcome::Done(call) => call.result().map(drop),
            Outcome::Late => {
                (self.late_size, self.was_late) = (Some(size), true);
                Ok(())
            }
            Outcome::NoHelper => Err(Errno::AGAIN),
        }
    }

    /// Finds out the size, which a process can have set. One that was late is not asked for again.
    pub(super) fn find_size(&mut self, key: u64, helpers: &mut StreamHelpers) {
        if self.was_late {
            return;
        }
        match helpers.read_size(Token::Terminal(key), &self.master) {
            Outcome::Done(mut call) => self.size = call.size().unwrap_or(self.size),
            Outcome::Late => (self.late_size, self.was_late) = (Some(self.size), true),
            Outcome::NoHelper => {}
        }
    }

    /// A late call for the size was made: sets the size that was asked for meanwhile.
    pub(super) fn finish_resize(&mut self, key: u64, helpers: &mut StreamHelpers) {
        if self.late_size.take() != Some(self.size) {
            // It fails only if no process has the terminal open any more.
            let _ = self.resize(key, self.size, helpers);
        }
    }

    /// The size that was asked for or found last.
    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// The character that ends input here: ^D unless the program chose another and can be asked for it.
    pub(super) fn eof(&mut self, key: u64, helpers: &mut StreamHelpers) -> u8 {
        if self.was_late {
            return USUAL_EOF;
        }
        match helpers.read_eof(Token::Terminal(key), &self.master) {
            Outcome::Done(mut call) => call.eof().unwrap_or(USUAL_EOF),
            Outcome::Late => {
                (self.late_size, self.was_late) = (Some(self.size), true);
                USUAL_EOF
            }
            Outcome::NoHelper => USUAL_EOF,
        }
    }
}

fn pty_size(Size { rows, cols }: Size) -> PtySize {
    PtySize { rows, cols, pixel_width: 0, pixel_height: 0 }
}
