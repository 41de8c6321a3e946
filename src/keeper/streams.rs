//! Opening the streams of a process: pipes or a terminal, both ends.
//!
//! Owns the ends from their opening until the child has taken its own and the keeper's have
//! become part of the held process.

use std::os::fd::AsFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::input::Input;
use super::output::Output;
use super::spawn::Ends;
use super::stream_helpers::{Closes, End};
use super::terminal::Terminal;
use crate::process::{Io, Size};
use crate::transcript::Stream;

/// The streams of a process that is about to be started.
pub(super) struct Streams {
    pub(super) terminal: Option<Terminal>,
    pub(super) outputs: [Option<Output>; 2],
    pub(super) input: Input,
    /// The child's ends of pipes, which close when it has them.
    pub(super) child: Option<ChildPipes>,
}

pub(super) struct ChildPipes {
    stdin: Option<End>,
    stdout: End,
    stderr: Option<End>,
}

impl Streams {
    pub(super) fn open(io: Io, closes: &Closes) -> Result<Streams, Errno> {
        match io {
            Io::Pipes { stdin, merge_stderr } => Streams::pipes(stdin, merge_stderr, closes),
            Io::Terminal(size) => Streams::terminal(size, closes),
        }
    }

    fn pipes(with_stdin: bool, merge_stderr: bool, closes: &Closes) -> Result<Streams, Errno> {
        let open = || -> Result<[End; 2], Errno> {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
            Ok([reader, writer].map(|fd| End::of_pipe(fd, closes)))
        };
        let [reader, stdout] = open()?;
        let output = Output::new(unblocked(reader)?, Stream::Stdout);
        let (mut errors, mut stderr) = (None, None);
        if !merge_stderr {
            let [reader, writer] = open()?;
            errors = Some(Output::new(unblocked(reader)?, Stream::Stderr));
            stderr = Some(writer);
        }
        let (mut input, mut stdin) = (None, None);
        if with_stdin {
            let [reader, writer] = open()?;
            input = Some(unblocked(writer)?);
            stdin = Some(reader);
        }
        Ok(Streams {
            terminal: None,
            outputs: [Some(output), errors],
            input: Input::new(input),
            child: Some(ChildPipes { stdin, stdout, stderr }),
        })
    }

    fn terminal(size: Size, closes: &Closes) -> Result<Streams, Errno> {
        let terminal = Terminal::open(size, closes)?;
        let copy = || {
            let master = rustix::io::fcntl_dupfd_cloexec(terminal.end(), 0)?;
            Ok(End::of_terminal(master, closes))
        };
        let output = Output::new(unblocked(copy()?)?, Stream::Terminal);
        let input = Input::new(Some(copy()?));
        Ok(Streams { terminal: Some(terminal), outputs: [Some(output), None], input, child: None })
    }

    /// The child's ends.
    pub(super) fn for_child(&self) -> Option<Ends<'_>> {
        if let Some(pipes) = &self.child {
            return Some(Ends {
                stdin: pipes.stdin.as_ref().map(AsFd::as_fd),
                stdout: pipes.stdout.as_fd(),
                stderr: pipes.stderr.as_ref().map(AsFd::as_fd),
                terminal: false,
            });
        }
        let slave = self.terminal.as_ref()?.slave()?;
        Some(Ends { stdin: Some(slave), stdout: slave, stderr: None, terminal: true })
    }
}

/// An end that does not block. The flag belongs to one end of a pipe: the child's still does.
fn unblocked(end: End) -> Result<End, Errno> {
    rustix::fs::fcntl_setfl(&end, OFlags::NONBLOCK)?;
    Ok(end)
}
