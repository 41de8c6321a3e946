//! Reading what a child prints, and throwing it away.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::pipe::{PipeFlags, pipe_with};

use super::os::{self, Program};
use crate::common::Result;

const PIPE: usize = 1 << 20;
const PIECE: usize = 64 << 10;

/// A large pipe, read in pieces: megabytes per second.
pub(crate) fn pipe(child: &str, bytes: &str) -> Result<f64> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::pipe::fcntl_setpipe_size(&reader, PIPE)?;
    read(child, bytes, reader, writer)
}

/// A terminal, read as it comes.
pub(crate) fn terminal(child: &str, bytes: &str) -> Result<f64> {
    let (master, slave) = os::terminal()?;
    read(child, bytes, master, slave)
}

fn read(child: &str, bytes: &str, reader: OwnedFd, writer: OwnedFd) -> Result<f64> {
    let begin = Instant::now();
    let pid = Program::new(&[child, "flood", bytes])?.start([None, Some(writer.as_fd()), None])?;
    drop(writer);
    os::read_to_end(reader, &mut vec![0; PIECE])?;
    os::wait(pid)?;
    rate(bytes, begin)
}

/// A pipeline into other programs, as a shell makes it.
pub(crate) fn pipeline(child: &str, bytes: &str, rest: &str) -> Result<f64> {
    let line = format!(r#""$0" flood "$1" | {rest} >/dev/null"#);
    let begin = Instant::now();
    os::wait(Program::new(&["/bin/sh", "-c", &line, child, bytes])?.start([None; 3])?)?;
    rate(bytes, begin)
}

fn rate(bytes: &str, begin: Instant) -> Result<f64> {
    Ok(bytes.parse::<f64>()? / 1e6 / begin.elapsed().as_secs_f64())
}
