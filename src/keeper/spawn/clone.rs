//! Making the child: `clone` with memory and descriptors shared and the parent suspended.
//!
//! Owns the borrowed stack and the two ways into the kernel: libc's `clone`, and `clone3` where
//! the child is to begin in a cgroup, which only that call can do.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::Child;
use super::child::{self, Failure, Order, Step};
use crate::keeper::reap;

const STACK: usize = 64 << 10;
const GUARD: usize = 64 << 10;
const FLAGS: c_int = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_PIDFD;
/// libc's constant is of a type too narrow for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// The stack that children run on until they exec, one after the other.
pub(super) struct Stack {
    base: *mut c_void,
}

impl Stack {
    pub(super) fn new() -> io::Result<Stack> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; its lowest part becomes
        // inaccessible, so that an overflow faults instead of overwriting a neighbour.
        let base = unsafe {
            let base = rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                GUARD + STACK,
                protection,
                MapFlags::PRIVATE,
            )?;
            rustix::mm::mprotect(base, GUARD, MprotectFlags::empty())?;
            base
        };
        Ok(Stack { base })
    }

    fn lowest(&self) -> *mut c_void {
        self.base.wrapping_byte_add(GUARD)
    }
}

/// What the child works on, and where it leaves word of a failure.
struct Shared<'a> {
    order: &'a Order<'a>,
    failure: Failure,
}

extern "C" fn enter(shared: *mut c_void) -> c_int {
    // SAFETY: `start` passes a Shared that lives until the child has exec'd or exited, since the
    // parent is suspended until then.
    let shared = unsafe { &mut *shared.cast::<Shared<'_>>() };
    shared.failure = child::run(shared.order);
    // SAFETY: ends the child alone; nothing of the parent's is unwound or flushed.
    unsafe { libc::_exit(127) }
}

/// Makes the child and returns when it has exec'd, or why it could not. Blocks for as long as the
/// order allows an exec to take, or until the kernel can end a child that is killed then.
pub(super) fn start(
    stack: &mut Stack,
    cgroup: Option<BorrowedFd<'_>>,
    order: &Order<'_>,
) -> Result<Child, Failure> {
    let mut shared = Shared { order, failure: Failure::NONE };
    let argument: *mut c_void = ptr::from_mut(&mut shared).cast();
    let mut pidfd: c_int = -1;
    let begin = Instant::now();
    let flags = FLAGS | order.host.with_users(order.program.fence.namespaces);
    let pid = match cgroup {
        // SAFETY: the stack is large enough for `child::run`, used by one child at a time, and
        // `enter` never returns into the parent's frames.
        None => unsafe {
            let top = stack.lowest().wrapping_byte_add(STACK);
            libc::clone(enter, top, flags | libc::SIGCHLD, argument, &raw mut pidfd)
        },
        // SAFETY: as above.
        Some(cgroup) => unsafe { into_cgroup(stack, cgroup, flags, argument, &mut pidfd) },
    };
    if pid < 0 {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN);
        return Err(Failure { step: Step::Clone, errno, candidate: 0 });
    }
    // SAFETY: the kernel just put this descriptor there for us.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    // SAFETY: the child wrote through another path than this variable's name; it is over.
    let failure = unsafe { ptr::read_volatile(&raw const shared.failure) };
    let is_late = failure.errno == 0 && begin.elapsed() >= order.exec_timeout;
    if is_late && (child::TIMED_OUT.swap(false, Ordering::Relaxed) || reap::is_killed(pid, &pidfd))
    {
        // It is reaped as any orphan.
        return Err(Failure::TIMED_OUT);
    }
    if failure.errno == 0 {
        return Ok(Child { pid, pidfd });
    }
    reap::discard(pid);
    Err(failure)
}

/// `clone3` as libc's `clone`: the child begins in `enter` on its own stack. Returns the pid, or
/// -1 with errno set.
unsafe fn into_cgroup(
    stack: &Stack,
    cgroup: BorrowedFd<'_>,
    flags: c_int,
    argument: *mut c_void,
    pidfd: &mut c_int,
) -> libc::pid_t {
    let args = libc::clone_args {
        flags: flags as u64 | CLONE_INTO_CGROUP,
        pidfd: ptr::from_mut(pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.lowest() as u64,
        stack_size: STACK as u64,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.as_raw_fd() as u64,
    };
    // SAFETY: the parent sees an ordinary system call. The child, on its own empty stack, calls
    // `enter`, which does not return.
    let result: isize = unsafe {
        let result;
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") &raw const args,
            in("rsi") size_of_val(&args),
            in("r12") enter as extern "C" fn(*mut c_void) -> c_int,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, {argument}",
            "blr {enter}",
            "brk #1",
            "2:",
            in("x8") libc::SYS_clone3,
            inlateout("x0") &raw const args => result,
            in("x1") size_of_val(&args),
            enter = in(reg) enter as extern "C" fn(*mut c_void) -> c_int,
            argument = in(reg) argument,
        );
        result
    };
    if result < 0 {
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = -result as c_int };
        return -1;
    }
    result as libc::pid_t
}
