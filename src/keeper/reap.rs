//! Waiting: the one place that asks the kernel who has ended.
//!
//! A zombie is looked at first and reaped later, when all that belongs to its end is done, so
//! that until then its pid and group cannot become another's.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process::{Status, Usage};

/// A child that has ended and was not reaped yet.
#[derive(Debug)]
pub(super) struct Zombie {
    pub(super) pid: i32,
    pub(super) status: Status,
    pub(super) core_dumped: bool,
    pub(super) usage: Usage,
}

/// The next child that has ended, ours or adopted, left as it is.
pub(super) fn peek() -> Option<Zombie> {
    let (info, usage) =
        waitid(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT).ok()?;
    // SAFETY: waitid filled in a SIGCHLD siginfo, or left the pid 0.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return None;
    }
    Some(Zombie {
        pid,
        status: match info.si_code {
            libc::CLD_EXITED => Status::Code(status),
            _ => Status::Signal(status),
        },
        core_dumped: info.si_code == libc::CLD_DUMPED,
        usage: convert(&usage),
    })
}

/// Lets a zombie go. Its pid may be another's from here on.
pub(super) fn reap(pid: i32) {
    let _ = waitid(libc::P_PID, pid.cast_unsigned(), libc::WEXITED | libc::WNOHANG);
}

/// Whether a child has ended and can be reaped: not while another process traces it.
pub(super) fn is_reapable(pid: i32) -> bool {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    let found = waitid(libc::P_PID, pid.cast_unsigned(), options);
    // SAFETY: waitid filled in a SIGCHLD siginfo, or left the pid 0.
    found.is_ok_and(|(info, _)| unsafe { info.si_pid() } == pid)
}

/// Waits for a child to end and reaps it. False: not in time.
pub(super) fn reap_within(pid: i32, timeout: Duration) -> bool {
    let is_reaped = || {
        let reaped = waitid(libc::P_PID, pid.cast_unsigned(), libc::WEXITED | libc::WNOHANG);
        // SAFETY: waitid filled in a SIGCHLD siginfo, or left the pid 0.
        reaped.is_ok_and(|(info, _)| unsafe { info.si_pid() } == pid)
    };
    let Some(pidfd) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        // There is no descriptor to wait for it by, or it was reaped.
        return is_reaped();
    };
    let timeout = Timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let polled = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout));
    polled.is_ok_and(|ended| ended > 0) && is_reaped()
}

/// The system call itself: libc's function has no place for the usage.
fn waitid(
    kind: libc::idtype_t,
    id: u32,
    options: i32,
) -> io::Result<(libc::siginfo_t, libc::rusage)> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are to memory of the right size, valid when zeroed.
        let result = unsafe {
            libc::syscall(
                libc::SYS_waitid,
                kind,
                id,
                info.as_mut_ptr(),
                options,
                usage.as_mut_ptr(),
            )
        };
        if result == 0 {
            // SAFETY: zeroed before, and plain data.
            return Ok(unsafe { (info.assume_init(), usage.assume_init()) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn convert(usage: &libc::rusage) -> Usage {
    let micros = |time: libc::timeval| {
        time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_usec.cast_unsigned()
    };
    Usage {
        user_micros: micros(usage.ru_utime),
        system_micros: micros(usage.ru_stime),
        max_rss_bytes: usage.ru_maxrss.cast_unsigned() * 1024,
        minor_faults: usage.ru_minflt.cast_unsigned(),
        major_faults: usage.ru_majflt.cast_unsigned(),
        voluntary_switches: usage.ru_nvcsw.cast_unsigned(),
        involuntary_switches: usage.ru_nivcsw.cast_unsigned(),
    }
}
