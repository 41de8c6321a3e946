//! What comes from stdin: a terminal, a pipe or a file.
//!
//! Read by a thread of its own, since a file cannot be waited for, and only when there is something
//! to read: what nobody needed stays for whoever reads next.

use std::io::IsTerminal;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat, major, minor};
use rustix::io::Errno;
use tokio::sync::mpsc;

/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;
/// Pieces that may be read ahead: one to be sent while the next is read.
const AHEAD: usize = 2;
/// How often is looked whether a job has come to the foreground.
const LOOK: Duration = Duration::from_millis(200);
/// How long the signal of a terminal that is gone may take.
const SIGNAL_FIRST: Duration = Duration::from_secs(5);
/// The number of /dev/null.
const NULL: (u32, u32) = (1, 3);

/// Whether there is a stdin that can bring anything: one that is closed and /dev/null do not.
pub(in crate::cli) fn is_open() -> bool {
    let Ok(stat) = fstat(rustix::stdio::stdin()) else { return false };
    let device = (major(stat.st_rdev), minor(stat.st_rdev));
    FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice || device != NULL
}

/// Begins to read. The channel is closed at the end of the input.
pub(in crate::cli) fn read() -> mpsc::Receiver<Bytes> {
    let (put, pieces) = mpsc::channel(AHEAD);
    // Asked before the thread runs: a terminal that is gone by then is none any more.
    let terminal = std::io::stdin().is_terminal();
    std::thread::spawn(move || {
        let stdin = rustix::stdio::stdin();
        let mut buffer = vec![0; PIECE];
        while let Some(piece) = next(stdin, terminal, &mut buffer) {
            if put.blocking_send(piece).is_err() {
                return close();
            }
        }
    });
    pieces
}

/// The next piece; none: there will be no more.
fn next(stdin: BorrowedFd<'_>, terminal: bool, buffer: &mut [u8]) -> Option<Bytes> {
    loop {
        let _ = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], None);
        // In the background a terminal is somebody else's: reading would stop us.
        if terminal && !is_foreground(stdin) {
            std::thread::sleep(LOOK);
            continue;
        }
        match rustix::io::read(stdin, &mut *buffer) {
            Ok(n) if n > 0 => return Some(Bytes::copy_from_slice(&buffer[..n])),
            Err(Errno::INTR | Errno::AGAIN) => {}
            _ => {
                if terminal && is_hung_up(stdin) {
                    // Nobody has ended the input: a signal tells what this means, as a rule.
                    std::thread::sleep(SIGNAL_FIRST);
                }
                return None;
            }
        }
    }
}

/// Whether the terminal is gone.
fn is_hung_up(terminal: BorrowedFd<'_>) -> bool {
    let (mut fds, now) = ([PollFd::new(&terminal, PollFlags::IN)], Timespec::default());
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

fn is_foreground(terminal: BorrowedFd<'_>) -> bool {
    // One that is not our terminal, or is gone, cannot stop us.
    let foreground = rustix::termios::tcgetpgrp(terminal);
    foreground.map_or(true, |group| group == rustix::process::getpgrp())
}

/// Nobody wants it: whoever writes to it is told, as by any command that has closed it.
fn close() {
    if let Ok(null) = std::fs::File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(null);
    }
}
