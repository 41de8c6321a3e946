//! posix_spawn, waiting, pipes and terminals, as plain as they come.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::process::{Pid, WaitOptions};
use rustix::pty::OpenptFlags;

use crate::common::Result;

/// A program with its arguments, ready to be started again and again.
pub(super) struct Program {
    #[expect(dead_code, reason = "kept because `argv` points into it")]
    args: Vec<CString>,
    argv: Vec<*mut c_char>,
}

impl Program {
    pub(super) fn new(args: &[&str]) -> Result<Program> {
        let args = args
            .iter()
            .map(|arg| CString::new(*arg))
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let pointers = args.iter().map(|arg| arg.as_ptr().cast_mut());
        let argv = pointers.chain([std::ptr::null_mut()]).collect();
        Ok(Program { args, argv })
    }

    /// Starts it with these as stdin, stdout and stderr; none: this process's own.
    pub(super) fn start(&self, streams: [Option<BorrowedFd<'_>>; 3]) -> Result<Pid> {
        let path = c"PATH=/usr/local/bin:/usr/bin:/bin".as_ptr().cast_mut();
        let env = [path, std::ptr::null_mut()];
        let mut actions = MaybeUninit::uninit();
        let mut pid = 0;
        // SAFETY: `actions` is initialized first and destroyed last; all strings are ended by
        // NUL and the arrays by null, and they live until the call returns.
        let error = unsafe {
            libc::posix_spawn_file_actions_init(actions.as_mut_ptr());
            for (target, stream) in (0..).zip(streams) {
                if let Some(fd) = stream {
                    let fd = fd.as_raw_fd();
                    libc::posix_spawn_file_actions_adddup2(actions.as_mut_ptr(), fd, target);
                }
            }
            let (argv, env) = (self.argv.as_ptr(), env.as_ptr());
            let (actions, none) = (actions.as_mut_ptr(), std::ptr::null());
            let error = libc::posix_spawn(&raw mut pid, *argv, actions, none, argv, env);
            libc::posix_spawn_file_actions_destroy(actions);
            error
        };
        if error != 0 {
            return Err(std::io::Error::from_raw_os_error(error).into());
        }
        Ok(Pid::from_raw(pid).ok_or("posix_spawn gave no pid")?)
    }
}

/// Waits for a process and reaps it.
pub(super) fn wait(pid: Pid) -> Result<()> {
    rustix::process::waitpid(Some(pid), WaitOptions::empty())?;
    Ok(())
}

/// Reads until the other side is closed. A terminal tells that by an error.
pub(super) fn read_to_end(fd: impl AsFd, buffer: &mut [u8]) -> Result<()> {
    loop {
        match rustix::io::read(&fd, &mut *buffer) {
            Ok(0) | Err(rustix::io::Errno::IO) => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Both sides of a terminal: the master first.
pub(super) fn terminal() -> Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    Ok((master, slave))
}
