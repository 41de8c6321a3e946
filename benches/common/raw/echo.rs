//! One byte written to a terminal and read back, blocking.

use std::os::fd::AsFd;
use std::time::Instant;

use super::os::{self, Program};
use crate::common::Result;
use crate::common::figures::percentile;
use crate::common::programs::{READY, RETURN};

/// The median of `count` echoes, in microseconds.
pub(crate) fn median(count: usize) -> Result<f64> {
    let (master, slave) = os::terminal()?;
    let pid = Program::new(&["/bin/sh", "-c", RETURN])?.start([Some(slave.as_fd()); 3])?;
    drop(slave);
    let mut buffer = [0; 64];
    let mut ready = 0;
    while ready < READY.len() {
        ready += rustix::io::read(&master, &mut buffer)?;
    }
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        rustix::io::write(&master, b"x")?;
        rustix::io::read(&master, &mut buffer)?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    // Without a master, its reads end.
    drop(master);
    os::wait(pid)?;
    Ok(percentile(&times, 50))
}
