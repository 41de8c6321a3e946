//! What runs in a new child before its exec: raw system calls and nothing else.
//!
//! The child shares the keeper's memory while the keeper runs, so nothing here allocates, locks,
//! panics, calls libc or touches what the keeper owns. Signals are blocked until right before the exec, as they are in the
//! keeper, and all dispositions are default there or are made default by the exec, so there is nothing to reset but
//! the mask.

mod capabilities;
mod confine;
mod seccomp;

use std::ffi::{CStr, c_int, c_long};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Program;
use super::fence::Host;
use crate::keeper::raw;
use crate::process::{Files, step};

/// Everything that the child is told.
pub(super) struct Order {
    pub(super) program: Rc<Program>,
    pub(super) plan: Plan,
    /// A pidfd of the keeper, to see whether it still lives; among the descriptors of the plan.
    pub(super) keeper: RawFd,
    /// What the kernel gives of a sandbox.
    pub(super) host: Rc<Host>,
    /// Soft and hard limit of descriptors that the child gets.
    pub(super) descriptors: (u64, u64),
    /// The OOM score that the child gets where no other was asked for, if not the keeper's own.
    pub(super) oom_score: Option<Rc<CStr>>,
    /// The child has a descriptor table of its own.
    pub(super) has_descriptors: AtomicBool,
    /// The keeper has given the start up: nothing is to be executed.
    pub(super) is_cancelled: AtomicBool,
}

/// What becomes of descriptors.
pub(super) struct Plan {
    /// The keeper's descriptors that become 0, 1, 2, …; each is its own target or above all.
    pub(super) sources: Vec<RawFd>,
    /// All sources are below; whatever is not stays with the keeper.
    pub(super) keep_below: u32,
    /// 0 becomes the controlling terminal.
    pub(super) terminal: bool,
    /// The kernel kills the child if the keeper dies.
    pub(super) die_with_keeper: bool,
}

/// A step that can fail.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Clone,
    Descriptors,
    Session,
    Cgroup,
    Limit,
    Nice,
    OomScore,
    User,
    UserInside,
    Directory,
    Link,
    Outside,
    Confine,
    Exec,
}

impl Step {
    pub(super) fn words(self) -> &'static str {
        match self {
            Step::Clone => step::MAKE,
            Step::Descriptors => "cannot set up descriptors",
            Step::Session => "cannot begin a session",
            Step::Cgroup => step::LIMIT_TREE,
            Step::Limit => "cannot set a resource limit",
            Step::Nice => "cannot set the nice value",
            Step::OomScore => "cannot set the OOM score",
            Step::User => step::USER,
            Step::UserInside => step::USER_INSIDE,
            Step::Directory => step::DIRECTORY,
            Step::Link => step::LINK,
            Step::Outside => step::OUTSIDE,
            Step::Confine => step::CONFINE,
            Step::Exec => "cannot execute",
        }
    }
}

/// What could not be done. For an exec, which candidate it speaks of; for a directory, 0 for the
/// working one, else which of the writable ones, from 1.
#[derive(Clone, Copy)]
pub(in crate::keeper) struct Failure {
    pub(super) step: Step,
    pub(super) errno: i32,
    pub(super) candidate: usize,
}

impl Failure {
    pub(super) const NONE: Failure = Failure { step: Step::Exec, errno: 0, candidate: 0 };

    /// The child was killed because it did not execute its program in time.
    pub(in crate::keeper) const TIMED_OUT: Failure =
        Failure { step: Step::Exec, errno: libc::ETIME, candidate: 0 };

    /// A signal ended the child before it executed its program.
    pub(super) const SIGNALLED: Failure =
        Failure { step: Step::Exec, errno: libc::EINTR, candidate: 0 };

    /// No helper could make the child.
    pub(in crate::keeper) const NO_HELPER: Failure =
        Failure { step: Step::Clone, errno: libc::EAGAIN, candidate: 0 };

    /// What the clone needs could not be made.
    pub(super) fn of_clone(error: std::io::Error) -> Failure {
        let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
        Failure { step: Step::Clone, errno, candidate: 0 }
    }

    pub(super) fn of_descriptors(errno: rustix::io::Errno) -> Failure {
        Failure { step: Step::Descriptors, errno: errno.raw_os_error(), candidate: 0 }
    }

    pub(super) fn is_signal(&self) -> bool {
        matches!(self.step, Step::Exec) && self.errno == libc::EINTR
    }

    /// The child was killed because it was late.
    pub(in crate::keeper) fn is_timeout(&self) -> bool {
        matches!(self.step, Step::Exec) && self.errno == libc::ETIME
    }

    /// The program's file is being written.
    pub(in crate::keeper) fn is_busy_program(&self) -> bool {
        matches!(self.step, Step::Exec) && self.errno == libc::ETXTBSY
    }

    /// The clone failed for none of the reasons that it could have failed for without a cgroup.
    pub(in crate::keeper) fn is_about_the_cgroup(&self) -> bool {
        let common = [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE];
        matches!(self.step, Step::Clone) && !common.contains(&self.errno)
    }
}

/// Does all that the order says, and execs. Returns only if something failed.
pub(super) fn run(order: &Order) -> Failure {
    let errno = |step| move |errno| Failure { step, errno, candidate: 0 };
    let program = &*order.program;
    let prepared = confine::join(order)
        .map_err(errno(Step::Confine))
        .and_then(|()| take_descriptors(order).map_err(errno(Step::Descriptors)))
        .and_then(|()| take_session(&order.plan).map_err(errno(Step::Session)))
        // Before the limits, which may forbid to open one more file.
        .and_then(|()| join(program).map_err(errno(Step::Cgroup)))
        .and_then(|()| adjust_oom(order).map_err(errno(Step::OomScore)))
        .and_then(|()| confine::settle(order).map_err(errno(Step::Confine)))
        .and_then(|()| limit(order).map_err(errno(Step::Limit)))
        .and_then(|()| renice(program).map_err(errno(Step::Nice)))
        // What it needs privileges for is done, but to become another user.
        .and_then(|()| capabilities::drop_from(&program.fence).map_err(errno(Step::Confine)))
        .and_then(|()| become_user(program).map_err(errno(of_user(order))))
        .and_then(|()| follow_keeper(order).map_err(errno(Step::Clone)))
        .and_then(|()| confine::enter(order))
        .and_then(|()| seccomp::install(&program.fence).map_err(errno(Step::Confine)))
        .and_then(|()| limit_files(order).map_err(errno(Step::Limit)))
        .and_then(|()| unblock_signals().map_err(errno(Step::Exec)));
    match prepared {
        Ok(()) if order.is_cancelled.load(Ordering::Acquire) => Failure::TIMED_OUT,
        Ok(()) => exec(program),
        Err(failure) => failure,
    }
}

fn call(number: c_long, args: [usize; 4]) -> Result<usize, i32> {
    let [a, b, c, d] = args;
    call5(number, [a, b, c, d, 0])
}

fn call5(number: c_long, args: [usize; 5]) -> Result<usize, i32> {
    // SAFETY: the callers below pass what the named system call takes; pointers are into the order,
    // which the keeper keeps, or into this task's stack.
    unsafe { raw::syscall(number, args) }
}

/// A table of its own with nothing but the sources, then each at its place. The kernel copies
/// only what is below `keep_below`; a kernel or filter without that call copies all, and the
/// exec closes the rest.
fn take_descriptors(order: &Order) -> Result<(), i32> {
    let plan = &order.plan;
    let last = u32::MAX as usize;
    let unshare = libc::CLOSE_RANGE_UNSHARE as usize;
    if call(libc::SYS_close_range, [plan.keep_below as usize, last, unshare, 0]).is_err() {
        call(libc::SYS_unshare, [libc::CLONE_FILES as usize, 0, 0, 0])?;
    }
    order.has_descriptors.store(true, Ordering::Release);
    for (target, source) in plan.sources.iter().enumerate() {
        if *source as usize != target {
            call(libc::SYS_dup3, [*source as usize, target, 0, 0])?;
        }
    }
    Ok(())
}

/// A session and group of its own, and the terminal as the session's.
fn take_session(plan: &Plan) -> Result<(), i32> {
    call(libc::SYS_setsid, [0; 4])?;
    if !plan.terminal {
        return Ok(());
    }
    call(libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0]).map(drop)
}

/// Descriptors that may be open at least while a fence is put up.
const ROOM: u64 = 64;

fn set_limit(resource: u32, soft: u64, hard: u64) -> Result<(), i32> {
    let limit = [soft, hard];
    call(libc::SYS_prlimit64, [0, resource as usize, limit.as_ptr() as usize, 0]).map(drop)
}

fn limit(order: &Order) -> Result<(), i32> {
    let (soft, hard) = order.descriptors;
    if soft != hard {
        set_limit(libc::RLIMIT_NOFILE, soft, hard)?;
    }
    let room = if order.program.fence.files == Files::Unrestricted { 0 } else { ROOM.min(hard) };
    order.program.rlimits.iter().try_for_each(|(resource, value)| {
        let least = if *resource == libc::RLIMIT_NOFILE { room } else { 0 };
        set_limit(*resource, (*value).max(least), (*value).max(least))
    })
}

/// Takes the room back that the fence needed: a limit can be lowered by everyone.
fn limit_files(order: &Order) -> Result<(), i32> {
    let few = |(resource, value): &&(u32, u64)| *resource == libc::RLIMIT_NOFILE && *value < ROOM;
    match order.program.rlimits.iter().find(few) {
        Some((resource, value)) => set_limit(*resource, *value, *value),
        None => Ok(()),
    }
}

fn renice(program: &Program) -> Result<(), i32> {
    let Some(nice) = program.nice else { return Ok(()) };
    call(libc::SYS_setpriority, [libc::PRIO_PROCESS as usize, 0, nice as usize, 0]).map(drop)
}

/// Away from the keeper's where the kernel lets us: without privilege a score can only go up.
fn adjust_oom(order: &Order) -> Result<(), i32> {
    let asked = order.program.oom_score_adj.as_deref();
    let (score, required) = match asked {
        Some(score) => (score, true),
        None => match order.oom_score.as_deref() {
            Some(score) => (score, false),
            None => return Ok(()),
        },
    };
    let written = write(c"/proc/self/oom_score_adj", score);
    if required { written } else { Ok(()) }
}

/// Joins the cgroups that limit it, while it is still the keeper's user. The memory that it shares
/// with the keeper until its exec stays the keeper's, and the kernel kills nobody for want of memory
/// who shares it so.
fn join(program: &Program) -> Result<(), i32> {
    program.joins.iter().try_for_each(|file| write(file, c"0"))
}

/// Writes a few bytes into a file. Should that fail, it stays open until the child is gone.
fn write(path: &CStr, text: &CStr) -> Result<(), i32> {
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
    let path = path.as_ptr() as usize;
    let file = call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0])?;
    let bytes = text.to_bytes();
    call(libc::SYS_write, [file, bytes.as_ptr() as usize, bytes.len(), 0])?;
    call(libc::SYS_close, [file, 0, 0, 0]).map(drop)
}

/// Which step it is to become a user: in a user namespace there is but one, whatever the keeper may.
fn of_user(order: &Order) -> Step {
    let inside = order.host.with_users(order.program.fence.kinds()) & libc::CLONE_NEWUSER != 0;
    if inside { Step::UserInside } else { Step::User }
}

/// The signals that dump core by default.
const CORE_DUMPS: [c_int; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];

/// The restorer of a handler is set; without one the kernel of x86-64 runs no handler.
const SA_RESTORER: usize = 0x0400_0000;

/// Has the signals that dump core end the child without a dump. Before Linux 5.16 a dump kills every
/// process with the same memory, so the keeper, too, and the user that the child becomes may send it
/// such a signal. The exec makes what is handled default again.
fn catch_core_dumps() -> Result<(), i32> {
    extern "C" fn end(_: c_int) {
        raw::exit(127)
    }
    let end = end as extern "C" fn(c_int) as usize;
    // The kernel's structure: handler, flags, restorer and mask. The handler does not return.
    let action = [end, SA_RESTORER, end, 0];
    CORE_DUMPS.iter().try_for_each(|signal| {
        let args = [*signal as usize, action.as_ptr() as usize, 0, 8];
        call(libc::SYS_rt_sigaction, args).map(drop)
    })
}

fn become_user(program: &Program) -> Result<(), i32> {
    let Some(user) = &program.user else { return Ok(()) };
    catch_core_dumps()?;
    let (uid, gid) = (user.uid as usize, user.gid as usize);
    let groups = user.groups.as_ptr() as usize;
    call(libc::SYS_setgroups, [user.groups.len(), groups, 0, 0])?;
    call(libc::SYS_setresgid, [gid, gid, gid, 0])?;
    call(libc::SYS_setresuid, [uid, uid, uid, 0]).map(drop)
}

/// After the change of user, which would clear it.
fn follow_keeper(order: &Order) -> Result<(), i32> {
    if !order.plan.die_with_keeper {
        return Ok(());
    }
    let (option, signal) = (libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize);
    call(libc::SYS_prctl, [option, signal, 0, 0])?;
    // Not by the parent's pid, which is 0 in a PID namespace of its own.
    let mut keeper = libc::pollfd { fd: order.keeper, events: libc::POLLIN, revents: 0 };
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let (polled, timeout) = ((&raw mut keeper) as usize, (&raw const at_once) as usize);
    let ended = call(libc::SYS_ppoll, [polled, 1, timeout, 0])?;
    if ended == 0 { Ok(()) } else { Err(libc::ECHILD) }
}

fn unblock_signals() -> Result<(), i32> {
    let none: u64 = 0;
    let set = libc::SIG_SETMASK as usize;
    call(libc::SYS_rt_sigprocmask, [set, (&raw const none) as usize, 0, 8]).map(drop)
}

/// Tries the candidates as execvp does: of several, a missing one is passed over, a forbidden one
/// is passed over but remembered; anything else is the answer.
fn exec(program: &Program) -> Failure {
    let [argv, envp] = [&program.args, &program.env].map(|strings| strings.pointers.as_ptr());
    let several = program.candidates.len() > 1;
    let mut failure = Failure { step: Step::Exec, errno: libc::ENOENT, candidate: 0 };
    for (candidate, path) in program.candidates.iter().enumerate() {
        let args = [path.as_ptr() as usize, argv as usize, envp as usize, 0];
        let Err(errno) = call(libc::SYS_execve, args) else { continue };
        match errno as c_int {
            libc::ENOENT | libc::ENOTDIR if several => {}
            libc::EACCES if several => failure = Failure { errno, candidate, ..failure },
            _ => return Failure { errno, candidate, ..failure },
        }
    }
    failure
}
