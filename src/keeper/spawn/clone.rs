//! Making the child, in a helper: `clone` with memory and descriptors shared and the helper suspended.
//!
//! The child is the keeper's, not the helper's. That the helper is suspended until the exec is what
//! keeps the kernel from choosing the child, and with it the keeper whose memory it shares, when memory
//! runs out. There are two ways into the kernel: `clone`, and `clone3` where the child is to begin in a
//! cgroup, which only that call can do.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use super::child::{self, Failure, Order, Step};
use crate::keeper::helper::{Job, Stack};
use crate::keeper::raw;

const FLAGS: c_int = libc::CLONE_VM
    | libc::CLONE_VFORK
    | libc::CLONE_FILES
    | libc::CLONE_PARENT
    | libc::CLONE_PARENT_SETTID;
/// libc's constant is of a type too narrow for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// A start: what the child works on, and where it leaves word of a failure.
pub(super) struct Spawn {
    pub(super) order: Order,
    /// The cgroup that the child begins in.
    cgroup: Option<OwnedFd>,
    stack: Stack,
    /// The child, from before it runs; 0: there is none.
    pid: AtomicI32,
    /// Written by the child or the helper, read by the keeper when the helper is done.
    failure: UnsafeCell<Failure>,
}

impl Spawn {
    pub(super) fn new(order: Order, cgroup: Option<OwnedFd>, stack: Stack) -> Spawn {
        let (pid, failure) = (AtomicI32::new(0), UnsafeCell::new(Failure::NONE));
        Spawn { order, cgroup, stack, pid, failure }
    }

    /// The child, if it was made.
    pub(super) fn pid(&self) -> Option<i32> {
        Some(self.pid.load(Ordering::Acquire)).filter(|pid| *pid > 0)
    }

    /// What came of it, once the helper is done: the child's pid. Gives the stack back.
    pub(super) fn finish(self) -> (Result<i32, (Failure, Option<i32>)>, Stack) {
        let pid = self.pid();
        let result = match (self.failure.into_inner(), pid) {
            (Failure { errno: 0, .. }, Some(pid)) => Ok(pid),
            (failure, pid) => Err((failure, pid)),
        };
        (result, self.stack)
    }

    fn clone(&self) -> Result<c_int, i32> {
        let fence = &self.order.program.fence;
        let flags = FLAGS | self.order.host.with_users(fence.namespaces);
        let argument = ptr::from_ref(self).cast_mut().cast();
        let pid = self.pid.as_ptr();
        let Some(cgroup) = &self.cgroup else {
            let args = [flags as usize, self.stack.top(), pid as usize];
            // SAFETY: the stack is large enough for `child::run` and this child's own.
            return unsafe { raw::clone(libc::SYS_clone, args, enter, argument) };
        };
        let (stack, stack_size) = self.stack.range();
        let args = libc::clone_args {
            flags: flags as u64 | CLONE_INTO_CGROUP,
            pidfd: 0,
            child_tid: 0,
            parent_tid: pid as u64,
            // That of the helper, by CLONE_PARENT.
            exit_signal: 0,
            stack: stack as u64,
            stack_size: stack_size as u64,
            tls: 0,
            set_tid: 0,
            set_tid_size: 0,
            cgroup: cgroup.as_raw_fd() as u64,
        };
        let args = [(&raw const args) as usize, size_of_val(&args), 0];
        // SAFETY: as above.
        unsafe { raw::clone(libc::SYS_clone3, args, enter, argument) }
    }
}

// SAFETY: `clone` and what runs in the child make raw system calls only and write to nothing but the
// pid, which is atomic, and the failure, which the keeper reads when the helper is done.
unsafe impl Job for Spawn {
    /// Makes the child and returns when it has executed its program or has exited.
    fn run(&self) {
        if let Err(errno) = self.clone() {
            // SAFETY: there is no child, and the keeper reads it when the helper is done.
            unsafe { *self.failure.get() = Failure { step: Step::Clone, errno, candidate: 0 } };
        }
    }
}

/// What the child runs.
extern "C" fn enter(spawn: *mut c_void) -> ! {
    // SAFETY: the keeper holds it until the helper, which waits for this child, is done.
    let spawn = unsafe { &*spawn.cast::<Spawn>() };
    let failure = child::run(&spawn.order);
    // SAFETY: the helper is suspended, and the keeper reads it when the helper is done.
    unsafe { *spawn.failure.get() = failure };
    raw::exit(127)
}
