//! What commands print to stdout: tables for people, JSON for programs; and what they tell by the
//! way, on stderr.
//!
//! JSON is that of the API itself, an object per line, however many there are.

mod json;
mod table;

use std::fmt::Display;
use std::io::{self, IoSlice, IsTerminal};
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::telemetry::colours_are_welcome;
pub(super) use json::json;
pub(super) use table::{Table, harmless};

/// How answers are printed.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct Printing {
    /// `table` for people; `json` for programs: an object per line, in the words of the API.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// A way to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Words and columns.
    Table,
    /// An object per line.
    Json,
}

impl Printing {
    /// Whether programs read it.
    pub(super) fn is_json(self) -> bool {
        self.output == Format::Json
    }
}

/// Writes a line to stdout.
pub(super) fn line(text: impl AsRef<str>) -> io::Result<()> {
    let text = IoSlice::new(text.as_ref().as_bytes());
    write_all(rustix::stdio::stdout(), &mut [text, IoSlice::new(b"\n")])
}

/// Writes bytes to stdout as they are.
pub(super) fn to_stdout(bytes: &[u8]) -> io::Result<()> {
    write_all(rustix::stdio::stdout(), &mut [IoSlice::new(bytes)])
}

/// The same to stderr.
pub(super) fn to_stderr(bytes: &[u8]) -> io::Result<()> {
    write_all(rustix::stdio::stderr(), &mut [IoSlice::new(bytes)])
}

/// Tells people something, in a line on stderr that is the command's own. It waits until it is
/// taken; if nobody can take it any more there is nobody to tell.
pub(super) fn tell(line: impl Display) {
    let _ = to_stderr(format!("procyard: {line}\n").as_bytes());
}

/// Writes all of it, even if others have set the descriptor not to block: they may share it.
pub(super) fn write_all(fd: BorrowedFd<'_>, mut left: &mut [IoSlice<'_>]) -> io::Result<()> {
    // Those that are empty are written already.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match rustix::io::writev(fd, left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => IoSlice::advance_slices(&mut left, taken),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// The columns of the terminal that stdout is; none: it is none.
fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// A colour of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    /// As it is.
    Plain,
    /// What is well.
    Green,
    /// What is not.
    Red,
    /// What is under way.
    Yellow,
    /// What matters less.
    Dim,
}

impl Colour {
    /// Text in this colour, if stdout shows colours.
    pub(super) fn paint(self, text: &str) -> String {
        let number = match self {
            Colour::Plain => return text.to_owned(),
            Colour::Green => 32,
            Colour::Red => 31,
            Colour::Yellow => 33,
            Colour::Dim => 2,
        };
        match colours_are_welcome() && io::stdout().is_terminal() {
            true => format!("\x1b[{number}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}
