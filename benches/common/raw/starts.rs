//! posix_spawn, read both pipes to their end, wait.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use super::os::{self, Program};
use crate::common::Result;

struct Running {
    pid: Pid,
    outputs: [OwnedFd; 2],
}

/// Starts per second with so many under way at once. They are waited for in the order of their
/// starts, which is about that of their ends: no poll is needed.
pub(crate) fn rate(program: &str, millis: u64, at_once: usize) -> Result<f64> {
    let program = Program::new(&[program])?;
    let time = Duration::from_millis(millis);
    let begin = Instant::now();
    let mut running = VecDeque::with_capacity(at_once);
    let mut ended = 0;
    loop {
        while running.len() < at_once && begin.elapsed() < time {
            running.push_back(start(&program)?);
        }
        let Some(oldest) = running.pop_front() else { break };
        finish(oldest)?;
        ended += 1;
    }
    Ok(f64::from(ended) / begin.elapsed().as_secs_f64())
}

fn start(program: &Program) -> Result<Running> {
    let (output, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (errors, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let pid = program.start([None, Some(stdout.as_fd()), Some(stderr.as_fd())])?;
    Ok(Running { pid, outputs: [output, errors] })
}

fn finish(Running { pid, outputs }: Running) -> Result<()> {
    for output in outputs {
        os::read_to_end(output, &mut [0; 512])?;
    }
    os::wait(pid)
}
