//! A command on a real terminal, and who sits before it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{SOON, with_usual_signals};

/// A command on a terminal of its own, killed when dropped.
pub struct Tty {
    pub child: Child,
    master: File,
    /// All that it has shown, and how much of that was expected already.
    shown: Vec<u8>,
    expected: usize,
}

impl Tty {
    /// Runs a command on a terminal of 24 rows and 80 columns.
    pub fn start(command: Command) -> Tty {
        Tty::start_sized(command, 24, 80)
    }

    /// Runs a command on a terminal of that size.
    pub fn start_sized(mut command: Command, rows: u16, cols: u16) -> Tty {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = || -> Stdio {
            OwnedFd::from(File::options().read(true).write(true).open(&name).unwrap()).into()
        };
        // Before it starts, so that it never sees another.
        set_size(&master, rows, cols);
        command.stdin(slave()).stdout(slave()).stderr(slave());
        with_usual_signals(&mut command);
        // SAFETY: two system calls.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let tty = Tty {
            child: command.spawn().unwrap(),
            master: File::from(master),
            shown: Vec::new(),
            expected: 0,
        };
        // The command holds the terminal's other end open as well; who sits here must not.
        drop(command);
        tty
    }

    /// Gives the window another size.
    pub fn resize(&self, rows: u16, cols: u16) {
        set_size(&self.master, rows, cols);
    }

    /// Types.
    pub fn type_in(&mut self, text: impl AsRef<[u8]>) {
        self.master.write_all(text.as_ref()).unwrap();
    }

    /// Waits until this is shown after whatever was expected before; returns what came in between.
    pub fn expect(&mut self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            let new = &self.shown[self.expected..];
            if let Some(at) = new.windows(text.len()).position(|part| part == text.as_bytes()) {
                let before = String::from_utf8_lossy(&new[..at]).into_owned();
                self.expected += at + text.len();
                return before;
            }
            let in_time = begin.elapsed() < SOON && self.read();
            assert!(in_time, "in vain waited for {text:?}; shown was {:?}", self.all());
        }
    }

    /// Waits for the end; returns the exit code, 128 and the signal if it was ended by one.
    pub fn ended(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let begin = Instant::now();
        // What is shown must be read, or it would never end.
        while begin.elapsed() < SOON && self.read() {}
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            // It is killed when this is dropped.
            assert!(begin.elapsed() < SOON, "it does not end; shown was {:?}", self.all());
            std::thread::sleep(Duration::from_millis(5));
        };
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }

    /// Closes the window.
    pub fn hang_up(&mut self) {
        self.master = File::open("/dev/null").unwrap();
    }

    /// All that was shown so far.
    pub fn all(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    /// Reads what is shown next, if anything is for a while; false: nothing will be any more.
    fn read(&mut self) -> bool {
        let fd = self.master.as_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let while_ = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if rustix::event::poll(&mut fds, Some(&while_)).unwrap_or(0) == 0 {
            return true;
        }
        let mut buffer = [0; 64 << 10];
        match self.master.read(&mut buffer) {
            Ok(n) if n > 0 => self.shown.extend_from_slice(&buffer[..n]),
            // EIO: nobody has the other end any more.
            _ => return false,
        }
        true
    }
}

fn set_size(master: impl AsFd, rows: u16, cols: u16) {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master, size).unwrap();
}

impl Drop for Tty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
