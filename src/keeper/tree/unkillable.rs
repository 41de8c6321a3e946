//! What SIGKILL does not end, and why.

use std::fs;
use std::io;

use super::{Member, Stat, try_signal};
use crate::keeper::reap;
use crate::process::Unkillable;

impl Member {
    /// Sends it SIGKILL once more, and says why that does not end it.
    pub(in crate::keeper) fn kill_failure(&self) -> Unkillable {
        let error = match try_signal(self, libc::SIGKILL) {
            Ok(()) => "SIGKILL is pending".to_owned(),
            Err(error) => failure(&error),
        };
        Unkillable { process: self.describe(), start_ticks: self.start, error }
    }
}

/// Signals processes that a keeper could not end, and returns those that still run. Signal 0 only
/// looks.
pub fn signal_leftovers(leftovers: Vec<Unkillable>, signal: i32) -> Vec<Unkillable> {
    let remaining = leftovers.into_iter().filter_map(|leftover| {
        let pid = leftover.process.pid.cast_signed();
        let same = |stat: &Stat| stat.alive && stat.start == leftover.start_ticks;
        let stat = Stat::read(pid).filter(same)?;
        match try_signal(&Member::new(pid, stat), signal) {
            Err(error) => Some(Unkillable { error: failure(&error), ..leftover }),
            Ok(()) => Some(leftover),
        }
    });
    remaining.collect()
}

/// Why a signal could not be sent, in words.
fn failure(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => "operation not permitted".to_owned(),
        _ => error.to_string(),
    }
}

/// A child of the keeper that has ended and cannot be reaped, because a tracer holds it.
pub(in crate::keeper) fn held_zombie(pid: i32) -> Option<Unkillable> {
    let stat = Stat::read(pid).filter(|stat| !stat.alive)?;
    if reap::is_reapable(pid) {
        return None;
    }
    // 0: it is not in this PID namespace.
    let error = match tracer(pid).unwrap_or(0) {
        0 => "zombie held by its tracer".to_owned(),
        tracer => format!("zombie held by its tracer, pid {tracer}"),
    };
    let start_ticks = stat.start;
    Some(Unkillable { process: Member::new(pid, stat).describe(), start_ticks, error })
}

/// The pid of the process that traces another.
fn tracer(pid: i32) -> Option<i32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
}
