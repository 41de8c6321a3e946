//! What commands print to stdout: tables for people, JSON for programs; and what they tell by the
//! way, on stderr.
//!
//! JSON is that of the API itself, an object per line, however many there are.

mod json;
mod table;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use rustix::event::{PollFd, PollFlags};

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
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref().as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Tells people something, in a line on stderr that is the command's own. It waits until it is
/// taken; if nobody can take it any more there is nobody to tell.
pub(super) fn tell(line: impl Display) {
    let _ = to_stderr(format!("procyard: {line}\n").as_bytes());
}

/// Writes all of it to stderr, even if others have set it not to block: they may share it.
pub(super) fn to_stderr(mut bytes: &[u8]) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    while !bytes.is_empty() {
        match stderr.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => bytes = &bytes[taken..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
                let _ = rustix::event::poll(&mut fds, None);
            }
            Err(error) => return Err(error),
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
