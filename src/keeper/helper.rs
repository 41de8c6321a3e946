//! Helpers: tasks that make the system calls that the keeper must not wait for.
//!
//! How long an exec or a look at another process's memory takes can be up to others: to a file
//! system in user space, a lease on a file, a SIGSTOP. A helper waits for such a call, and the keeper
//! continues. It is a child of the keeper that shares its memory and its descriptors, and that the
//! kernel kills with the keeper. It is no thread: one that never returned from the kernel would keep
//! the keeper from ending.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::{raw, reap, tree};

/// What a task may need of a stack, and the inaccessible part below it.
const STACK_BYTES: usize = 64 << 10;
const GUARD_BYTES: usize = 64 << 10;

/// How long a helper that was killed may take to end; a longer one is stuck in the kernel.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the keeper waits for a helper that has no CPU: others have the CPUs.
const CPU_TIMEOUT: Duration = Duration::from_secs(1);

/// The helper has nothing to do.
const IDLE: u32 = 0;
/// It has a job, and writes to the event when it has done it.
const POSTED: u32 = 1;
/// It has a job, and writes to no event.
const QUIETLY_POSTED: u32 = 2;
/// It has done its job.
const DONE: u32 = 3;

/// What a helper does.
///
/// # Safety
/// `run` is called in a task that shares the keeper's memory while the keeper runs. It makes raw
/// system calls only (`raw`): it never allocates, locks or panics, and touches nothing but the job.
/// What both sides touch meanwhile is atomic. If another task than the helper uses the job, the job is
/// held elsewhere until that task has ended.
pub(super) unsafe trait Job {
    /// Does it, for as long as that takes.
    fn run(&self);
}

/// Memory that a task runs on. An overflow faults.
pub(super) struct Stack {
    base: *mut c_void,
}

impl Stack {
    pub(super) fn new() -> io::Result<Stack> {
        let (size, access) = (GUARD_BYTES + STACK_BYTES, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            let none = ptr::null_mut();
            let base = rustix::mm::mmap_anonymous(none, size, access, MapFlags::PRIVATE)?;
            rustix::mm::mprotect(base, GUARD_BYTES, MprotectFlags::empty())?;
            base
        };
        Ok(Stack { base })
    }

    /// Where it begins, and how many bytes it has.
    pub(super) fn range(&self) -> (usize, usize) {
        (self.base as usize + GUARD_BYTES, STACK_BYTES)
    }

    /// Where a task begins to use it.
    pub(super) fn top(&self) -> usize {
        self.base as usize + GUARD_BYTES + STACK_BYTES
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no task runs on it any more.
        let _ = unsafe { rustix::mm::munmap(self.base, GUARD_BYTES + STACK_BYTES) };
    }
}

/// The descriptor that helpers write to when they have done their job.
pub(super) fn done_event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A helper for one kind of jobs, one at a time.
pub(super) struct Helper<J: Job> {
    pid: c_int,
    memory: ManuallyDrop<Box<Memory<J>>>,
}

/// What keeper and helper share.
struct Memory<J> {
    /// Both wait for it as a futex.
    state: AtomicU32,
    /// Valid while there is a job.
    posted: AtomicPtr<J>,
    /// The keeper's own.
    job: RefCell<Option<Rc<J>>>,
    done_event: RawFd,
    keeper: c_int,
    stack: Stack,
}

impl<J: Job> Helper<J> {
    /// Makes a helper that writes to an event when it has done a job. The event stays open longer
    /// than the helper lives.
    pub(super) fn new(done_event: BorrowedFd<'_>) -> io::Result<Helper<J>> {
        let memory = Box::new(Memory {
            state: AtomicU32::new(IDLE),
            posted: AtomicPtr::new(ptr::null_mut()),
            job: RefCell::new(None),
            done_event: done_event.as_raw_fd(),
            keeper: std::process::id().cast_signed(),
            stack: Stack::new()?,
        });
        let flags = (libc::CLONE_VM | libc::CLONE_FILES | libc::SIGCHLD) as usize;
        let argument = ptr::from_ref::<Memory<J>>(&memory).cast_mut().cast();
        // A handler of this process must not run in the helper.
        let made = with_signals_blocked(|| {
            // SAFETY: the memory, and the stack in it, is freed when the helper has ended.
            unsafe {
                raw::clone(libc::SYS_clone, [flags, memory.stack.top(), 0], serve::<J>, argument)
            }
        });
        let pid = made.map_err(io::Error::from_raw_os_error)?;
        Ok(Helper { pid, memory: ManuallyDrop::new(memory) })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// The job that it does, or has done.
    pub(super) fn job(&self) -> Option<Rc<J>> {
        self.memory.job.borrow().clone()
    }

    /// Lets go of the job of a helper that has ended.
    pub(super) fn forget_job(&self) {
        self.memory.job.borrow_mut().take();
    }

    /// Gives a job to an idle helper. The event tells when it is done.
    pub(super) fn post(&self, job: Rc<J>) {
        self.give(job, POSTED);
    }

    /// Gives a job to an idle helper. No event tells when it is done, unless one is asked for.
    pub(super) fn post_quietly(&self, job: Rc<J>) {
        self.give(job, QUIETLY_POSTED);
    }

    /// Asks for the event that a job is done. False: it is done already.
    pub(super) fn ask_for_event(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.memory.state.compare_exchange(QUIETLY_POSTED, POSTED, success, failure).is_ok()
    }

    /// Gives a job to an idle helper and waits until it is done. False: not in time though the helper
    /// had a CPU; the event tells when it is done.
    pub(super) fn run(&self, job: Rc<J>, timeout: Duration) -> bool {
        self.post_quietly(job);
        self.wait_with_cpu(timeout) || !self.ask_for_event()
    }

    /// Waits until it has done its job. False: not in time though it had a CPU.
    pub(super) fn wait_with_cpu(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + CPU_TIMEOUT;
        let mut cpu_time = None;
        while !self.wait(timeout) {
            let now = tree::cpu_time(self.pid);
            // One that spins on a lock has had a CPU all the time.
            let has_cpu = now.saturating_sub(*cpu_time.get_or_insert(now)) >= timeout / 2;
            if !tree::is_runnable(self.pid) || has_cpu || Instant::now() >= deadline {
                return false;
            }
        }
        true
    }

    fn give(&self, job: Rc<J>, state: u32) {
        self.memory.posted.store(Rc::as_ptr(&job).cast_mut(), Ordering::Relaxed);
        *self.memory.job.borrow_mut() = Some(job);
        self.memory.state.store(state, Ordering::Release);
        wake(&self.memory.state);
    }

    /// Whether it has done its job.
    pub(super) fn is_done(&self) -> bool {
        self.memory.state.load(Ordering::Acquire) == DONE
    }

    /// Takes the job of a helper that has done it: it is idle then.
    pub(super) fn take_done(&self) -> Option<Rc<J>> {
        let Memory { state, job, .. } = &**self.memory;
        let done = state.compare_exchange(DONE, IDLE, Ordering::AcqRel, Ordering::Acquire);
        done.ok().and_then(|_| job.borrow_mut().take())
    }

    /// Kills it and does not wait for its end, after which the memory that it uses is not freed.
    pub(super) fn kill_without_waiting(self) {
        self.kill();
        std::mem::forget(self);
    }

    /// Kills it. It must not be given a job any more.
    pub(super) fn kill(&self) {
        // SAFETY: sends a signal to a child of this process that was not reaped.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }

    /// Waits until it has done its job. False: not in time.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let state = self.memory.state.load(Ordering::Acquire);
            if ![POSTED, QUIETLY_POSTED].contains(&state) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            wait_while(&self.memory.state, state, Some(left));
        }
    }
}

impl<J: Job> Drop for Helper<J> {
    fn drop(&mut self) {
        self.kill();
        if reap::reap_within(self.pid, EXIT_TIMEOUT) {
            // SAFETY: the helper is gone, and this is not used again.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
        // Else the helper may still use the memory.
    }
}

/// Blocks all signals of this thread meanwhile.
fn with_signals_blocked<T>(action: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are initialised by the calls that take them first.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = action();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        result
    }
}

/// What a helper runs.
extern "C" fn serve<J: Job>(memory: *mut c_void) -> ! {
    // SAFETY: `Helper::new` passes it, and it is freed only when this task has ended.
    let memory = unsafe { &*memory.cast::<Memory<J>>() };
    let call = |number, args| {
        // SAFETY: the calls below get numbers, and pointers that are valid during the call.
        unsafe { raw::syscall(number, args) }
    };
    let (die, kill) = (libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize);
    let _ = call(libc::SYS_prctl, [die, kill, 0, 0, 0]);
    if call(libc::SYS_getppid, [0; 5]) != Ok(memory.keeper as usize) {
        raw::exit(0);
    }
    let (set_name, name) = (libc::PR_SET_NAME as usize, c"procyard-helper".as_ptr() as usize);
    let _ = call(libc::SYS_prctl, [set_name, name, 0, 0, 0]);
    loop {
        let state = memory.state.load(Ordering::Acquire);
        if ![POSTED, QUIETLY_POSTED].contains(&state) {
            wait_while(&memory.state, state, None);
            continue;
        }
        // SAFETY: the keeper holds the job until it is done.
        unsafe { &*memory.posted.load(Ordering::Relaxed) }.run();
        let before = memory.state.swap(DONE, Ordering::AcqRel);
        wake(&memory.state);
        if before == POSTED {
            let one = 1_u64;
            let (event, one) = (memory.done_event as usize, (&raw const one) as usize);
            let _ = call(libc::SYS_write, [event, one, 8, 0, 0]);
        }
    }
}

/// Sleeps while a futex has this value, or for a time. May return early.
fn wait_while(futex: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let time = timeout.as_ref().map_or(ptr::null(), ptr::from_ref) as usize;
    let wait = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let args = [futex.as_ptr() as usize, wait, value as usize, time, 0];
    // SAFETY: both pointers are valid during the call.
    let _ = unsafe { raw::syscall(libc::SYS_futex, args) };
}

fn wake(futex: &AtomicU32) {
    let wake = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: wakes who waits for this address; touches no memory.
    let _ = unsafe { raw::syscall(libc::SYS_futex, [futex.as_ptr() as usize, wake, 1, 0, 0]) };
}
