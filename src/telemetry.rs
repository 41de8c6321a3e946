//! Logs: to stderr, and never waiting for whoever reads it.

use std::borrow::Cow;
use std::io::{self, Write};

use rustix::event::{PollFd, PollFlags, Timespec};
use tracing_subscriber::EnvFilter;

/// A pipe that is ready takes this much at once.
const AT_ONCE: usize = 4096;

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Lines for people.
    Text,
    /// A JSON object per line.
    Json,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Format::Text => "text",
            Format::Json => "json",
        })
    }
}

/// Begins logging. `RUST_LOG` chooses what; `info` unless it is set.
pub fn init(format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let terminal = io::IsTerminal::is_terminal(&io::stderr());
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Unblocked);
    let _ = match format {
        Format::Json => logs.json().flatten_event(true).try_init(),
        Format::Text => {
            let colours = terminal && std::env::var_os("NO_COLOR").is_none();
            logs.with_ansi(colours).try_init()
        }
    };
}

/// Says one line, without waiting either.
pub fn say(line: &str) {
    let _ = Unblocked.write(line.as_bytes());
}

/// Stderr, if it takes a line right now. A reader that does not keep up loses lines; the
/// supervisor does not wait for it. The descriptor is shared with others, so it cannot simply
/// be set not to block.
struct Unblocked;

impl Write for Unblocked {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let stderr = rustix::stdio::stderr();
        let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = rustix::event::poll(&mut fds, Some(&now)).unwrap_or(0) > 0;
        if ready {
            let _ = rustix::io::write(stderr, &cut(line));
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// As much of a line as is written, which ends as a line does: the next begins on its own.
fn cut(line: &[u8]) -> Cow<'_, [u8]> {
    match line.len() > AT_ONCE {
        true => [&line[..AT_ONCE - 1], b"\n"].concat().into(),
        false => line.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_cut_is_a_line() {
        let line = |len: usize| [vec![b'a'; len - 1], vec![b'\n']].concat();
        assert_eq!(*cut(&line(AT_ONCE)), line(AT_ONCE));
        assert_eq!(*cut(&line(AT_ONCE + 1)), line(AT_ONCE));
    }
}
