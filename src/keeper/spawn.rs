//! Starting processes without a fork of anything large, and without waiting for their execs.
//!
//! Owns what a start needs beforehand: C strings, candidate paths, the stack that the child
//! borrows, the three descriptor slots, and the helpers that wait. `clone` makes the child in a
//! helper, `child` is what runs in it until the exec. Decides nothing about the process: a [`Launch`]
//! says it all.
//!
//! The child shares the keeper's memory and descriptor table until it execs: neither pages nor
//! descriptors are copied, however many there are, and a failed step is an errno in shared memory,
//! known when the helper is done.

mod child;
mod clone;
mod fence;
mod program;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::{DupFlags, Errno};
use rustix::process::{Pid, PidfdFlags, Resource, getpid, getrlimit, pidfd_open, setrlimit};

use super::helper::{self, Helper, Stack};
use super::memory::OomScores;
use super::{reap, tree};
use crate::process::{Launch, Refused};
use child::{Order, Plan, Step};
use clone::Spawn;
use fence::Host;

pub(super) use child::Failure;
pub(super) use program::Program;

/// Name of the variable that has the id of a process, in it and in all its descendants.
pub(super) const COOKIE: &[u8] = b"PROCYARD_ID";

/// Name of the variable that has a file below the state directory, in them as well unless they were
/// given another environment.
pub(super) const OUTPUT: &[u8] = b"PROCYARD_OUTPUT";

/// How long a process may take until its exec. Most take a millisecond; a slow disk, or a limit of CPU
/// time, can make it seconds.
const EXEC_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take until it has its descriptors, since other starts wait for that.
const DESCRIPTORS_TIMEOUT: Duration = Duration::from_secs(2);
/// The same for the server, and for what the keeper tries before it begins. The keeper waits for these.
const SERVER_EXEC_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a start may still take when the server that asked for it is gone: the next one waits for it.
const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a child that failed may take to exit, where the keeper waits for that.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a helper may take before another one makes the next start.
const SLOW_EXEC: Duration = Duration::from_millis(5);

/// Most helpers that make starts at once. Each but one waits for an exec that takes long, or for ever.
const MAX_HELPERS: usize = 256;
/// Idle helpers that are kept.
const MAX_IDLE_HELPERS: usize = 2;

/// Starts processes.
pub(super) struct Spawner {
    helpers: Vec<SpawnHelper>,
    /// Helpers write to it when they are done.
    done_event: OwnedFd,
    /// Stacks that no child uses.
    stacks: Vec<Stack>,
    /// Descriptors 3, 4 and 5. A child's streams are put there before it is made, so that it
    /// takes over a table of seven, not of thousands.
    slots: [OwnedFd; 3],
    /// The start whose streams are in the slots.
    slots_of: Option<Rc<Spawn>>,
    /// Starts whose helper was killed, as long as their child may use their memory.
    lost: Vec<Rc<Spawn>>,
    /// Descriptor 6: the keeper itself, for a child to see whether it lives.
    keeper: OwnedFd,
    /// What the kernel gives of a sandbox.
    host: Rc<Host>,
    /// What the soft limit of descriptors was before the keeper raised its own.
    descriptors: (u64, u64),
    oom_scores: OomScores,
    last_number: u64,
}

/// A helper that makes starts.
struct SpawnHelper {
    helper: Helper<Spawn>,
    start: Option<Begun>,
    /// The keeper has killed it. It makes no more starts.
    is_killed: bool,
}

/// A start that is under way.
struct Begun {
    number: u64,
    since: Instant,
    /// When it is late at the latest, if its server is gone.
    deadline: Option<Instant>,
    /// It was too late: the child was killed, and nothing waits for what comes of it.
    abandoned: bool,
}

/// A process that was just started.
pub(super) struct Child {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
}

/// A start that is over.
pub(super) struct Finished {
    /// The number that its beginning returned.
    pub(super) number: u64,
    pub(super) result: Result<Child, Failed>,
}

/// A start that failed.
pub(super) struct Failed {
    pub(super) failure: Failure,
    /// The same in words.
    pub(super) refused: Refused,
    pub(super) child: FailedChild,
}

/// What became of the child of a start that failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FailedChild {
    /// There was none.
    NotMade,
    /// It exits without having executed the program. The sweep reaps it.
    Exits(i32),
    /// The keeper has killed it. It may have executed the program, and forked.
    Killed,
}

/// The child's ends of its streams. No stdin: `/dev/null`; no stderr: as stdout.
pub(super) struct Ends<'a> {
    pub(super) stdin: Option<BorrowedFd<'a>>,
    pub(super) stdout: BorrowedFd<'a>,
    pub(super) stderr: Option<BorrowedFd<'a>>,
    /// They are a terminal, which becomes the controlling one.
    pub(super) terminal: bool,
}

impl Spawner {
    /// Takes the slots and raises the limit of descriptors. Descriptors 0 to 2 are open, 0 is
    /// `/dev/null`, and nothing else is below those that are kept: so the slots are 3 to 5.
    pub(super) fn new(oom_scores: OomScores) -> io::Result<Spawner> {
        let null = || {
            rustix::fs::open(c"/dev/null", rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())
        };
        let slots = [null()?, null()?, null()?];
        let keeper = pidfd_open(getpid(), PidfdFlags::empty())?;
        let limit = getrlimit(Resource::Nofile);
        let (soft, hard) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })?;
        Ok(Spawner {
            helpers: Vec::new(),
            done_event: helper::done_event()?,
            stacks: Vec::new(),
            slots,
            slots_of: None,
            lost: Vec::new(),
            keeper,
            host: Rc::default(),
            descriptors: (soft, hard),
            oom_scores,
            last_number: 0,
        })
    }

    /// Most descriptors that the keeper itself may have open.
    pub(super) fn descriptor_limit(&self) -> u64 {
        self.descriptors.1
    }

    /// What can be read when a start is over.
    pub(super) fn done_event(&self) -> BorrowedFd<'_> {
        self.done_event.as_fd()
    }

    /// Readies the event for the next start that is over.
    pub(super) fn clear_done_event(&self) {
        let _ = rustix::io::read(&self.done_event, &mut [0; 8]);
    }

    /// Whether a process can be started now. If not, try again when a start is over or
    /// [`Spawner::due`].
    pub(super) fn is_ready(&self) -> bool {
        let is_slow = |start: &Begun| start.since.elapsed() >= SLOW_EXEC;
        let may_grow = self.helpers.len() < MAX_HELPERS && self.begun().all(is_slow);
        self.slots_are_free() && (may_grow || self.idle().is_some())
    }

    /// Whether the child whose streams are in the slots has taken them, if there is one.
    fn slots_are_free(&self) -> bool {
        let user = self.slots_of.as_ref();
        user.is_none_or(|spawn| spawn.order.has_descriptors.load(Ordering::Acquire))
    }

    /// Whether no process can be started because too many execs do not end.
    pub(super) fn is_exhausted(&self) -> bool {
        self.begun().filter(|start| start.abandoned).count() >= MAX_HELPERS
    }

    /// When a start becomes slow or late, if none is over before; `waiting`: another start waits.
    pub(super) fn due(&self, waiting: bool) -> Option<Instant> {
        let late = self.helpers.iter().filter_map(SpawnHelper::late_at);
        let slow = if self.idle().is_none() && self.helpers.len() >= MAX_HELPERS {
            // An event tells when a helper is done or has ended.
            None
        } else if self.slots_are_free() {
            self.begun().map(|start| start.since + SLOW_EXEC).max()
        } else {
            // No event tells when the child takes them.
            Some(Instant::now() + SLOW_EXEC)
        };
        late.min().into_iter().chain(slow.filter(|_| waiting)).min()
    }

    fn begun(&self) -> impl Iterator<Item = &Begun> {
        self.helpers.iter().filter_map(|helper| helper.start.as_ref())
    }

    fn idle(&self) -> Option<usize> {
        self.helpers.iter().position(SpawnHelper::is_idle)
    }

    /// The keeper's children that are no processes yet, and its helpers.
    pub(super) fn pids(&self) -> impl Iterator<Item = i32> {
        let helpers = self.helpers.iter().map(|helper| helper.helper.pid());
        helpers.chain(self.helpers.iter().filter_map(SpawnHelper::child))
    }

    /// Whether this child of the keeper is being started: a helper will say what came of it.
    pub(super) fn is_starting(&self, pid: i32) -> bool {
        self.helpers.iter().any(|helper| helper.child() == Some(pid))
    }

    /// Whether this child of the keeper is a helper.
    pub(super) fn is_helper(&self, pid: i32) -> bool {
        self.helpers.iter().any(|helper| helper.helper.pid() == pid)
    }

    /// Begins to start a process with these streams, in this cgroup if there is one. Returns the
    /// number of the start. To be called when it is ready.
    pub(super) fn begin(
        &mut self,
        program: Rc<Program>,
        ends: &Ends<'_>,
        cgroup: Option<OwnedFd>,
    ) -> Result<u64, Failure> {
        self.free_slots();
        let sources = self.fill_slots(ends).inspect_err(|_| self.free_slots())?;
        let plan = Plan {
            sources,
            keep_below: 1 + self.keeper.as_raw_fd().cast_unsigned(),
            terminal: ends.terminal,
            die_with_keeper: true,
        };
        let at = self.post(program, plan, cgroup).inspect_err(|_| self.free_slots())?;
        self.slots_of = self.helpers[at].helper.job();
        Ok(self.last_number)
    }

    /// Puts the streams into the slots: the descriptors that become 0, 1 and 2.
    fn fill_slots(&mut self, ends: &Ends<'_>) -> Result<Vec<RawFd>, Failure> {
        let null = rustix::stdio::stdin();
        let mut sources = vec![null.as_raw_fd(); 3];
        let wanted = [ends.stdin, Some(ends.stdout), ends.stderr];
        for (n, stream) in wanted.iter().enumerate() {
            sources[n] = match stream {
                Some(stream) => {
                    rustix::io::dup3(stream, &mut self.slots[n], DupFlags::CLOEXEC)
                        .map_err(Failure::of_descriptors)?;
                    self.slots[n].as_raw_fd()
                }
                None if n == 2 => sources[1],
                None => sources[n],
            };
        }
        Ok(sources)
    }

    /// Lets go of the child's ends in the slots, whose close is the EOF.
    fn free_slots(&mut self) {
        self.slots_of = None;
        for slot in &mut self.slots {
            // Cannot fail: both are open.
            let _ = rustix::io::dup3(rustix::stdio::stdin(), slot, DupFlags::CLOEXEC);
        }
    }

    /// Starts a process as [`Spawner::begin`] does, and waits for its exec.
    fn spawn_and_wait(
        &mut self,
        program: Program,
        ends: &Ends<'_>,
        cgroup: Option<OwnedFd>,
    ) -> Result<Child, Failed> {
        let program = Rc::new(program);
        let begun = self.begin(Rc::clone(&program), ends, cgroup);
        begun.map_err(|failure| program.fail(failure, FailedChild::NotMade))?;
        self.wait(&program)
    }

    /// Whether a child can be made in this cgroup, shown by one that gets as far as its exec.
    /// Container runtimes filter the call away, a threaded cgroup takes nobody, and where kills
    /// are counted a child may be killed at birth.
    pub(super) fn can_begin_in(&mut self, cgroup: OwnedFd) -> bool {
        let null = rustix::stdio::stdin();
        let ends = Ends { stdin: None, stdout: null, stderr: None, terminal: false };
        let Ok(directory) = Program::new(&Launch::new("probe", ["/"])) else { return false };
        let tried = self.spawn_and_wait(directory, &ends, Some(cgroup));
        // The keeper may move to another cgroup now, and helpers would not.
        self.helpers.clear();
        let Err(Failed { failure, child: FailedChild::Exits(child), .. }) = tried else {
            return false;
        };
        // The cgroup is empty then.
        reap::reap_within(child, EXIT_TIMEOUT);
        matches!(failure.step, Step::Exec) && !failure.is_signal()
    }

    /// Starts the server, and waits for its exec: the keeper's own streams, then these descriptors
    /// from 3 on.
    pub(super) fn spawn_server(
        &mut self,
        program: &Rc<Program>,
        passed: &[BorrowedFd<'_>],
    ) -> Result<Child, Failed> {
        // Above every target, so that no copy overwrites a source.
        let above = 3 + passed.len() as RawFd;
        let copies: Result<Vec<OwnedFd>, Errno> =
            passed.iter().map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, above)).collect();
        let not_made = |failure| program.fail(failure, FailedChild::NotMade);
        let copies = copies.map_err(|errno| not_made(Failure::of_descriptors(errno)))?;
        let sources: Vec<RawFd> = (0..3).chain(copies.iter().map(AsRawFd::as_raw_fd)).collect();
        let keep_below = 1 + sources.iter().max().copied().unwrap_or(2).cast_unsigned();
        // Without its keeper it saves what all have printed before it ends.
        let plan = Plan { sources, keep_below, terminal: false, die_with_keeper: false };
        self.post(Rc::clone(program), plan, None).map_err(not_made)?;
        self.wait(program)
    }

    /// Gives a start to an idle helper, or to a new one. Returns its place.
    fn post(
        &mut self,
        program: Rc<Program>,
        plan: Plan,
        cgroup: Option<OwnedFd>,
    ) -> Result<usize, Failure> {
        let OomScores { process, server } = &self.oom_scores;
        let scores = if plan.die_with_keeper { process } else { server };
        let order = Order {
            program,
            plan,
            keeper: self.keeper.as_raw_fd(),
            host: Rc::clone(&self.host),
            descriptors: self.descriptors,
            oom_score: scores.clone(),
            has_descriptors: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
        };
        let stack = self.stacks.pop().map_or_else(Stack::new, Ok).map_err(Failure::of_clone)?;
        let spawn = Rc::new(Spawn::new(order, cgroup, stack));
        let idle = match self.idle() {
            Some(idle) => idle,
            None => {
                let helper = Helper::new(self.done_event.as_fd()).map_err(Failure::of_clone)?;
                self.helpers.push(SpawnHelper { helper, start: None, is_killed: false });
                self.helpers.len() - 1
            }
        };
        self.last_number += 1;
        let (number, since) = (self.last_number, Instant::now());
        let start = Begun { number, since, deadline: None, abandoned: false };
        self.helpers[idle].start = Some(start);
        self.helpers[idle].helper.post(spawn);
        Ok(idle)
    }

    /// Waits for the start that was begun last.
    fn wait(&mut self, program: &Program) -> Result<Child, Failed> {
        let last = Some(self.last_number);
        let number = |helper: &SpawnHelper| helper.start.as_ref().map(|start| start.number);
        let at = self.helpers.iter().position(|helper| number(helper) == last).unwrap_or(0);
        let finished = if self.helpers[at].helper.wait(SERVER_EXEC_TIMEOUT) {
            self.finish(at).map(|finished| finished.result)
        } else {
            self.helpers[at].abandon().map(|(_, failed)| Err(failed))
        };
        finished.unwrap_or_else(|| Err(program.fail(Failure::NO_HELPER, FailedChild::NotMade)))
    }

    /// The server is gone that asked for the starts under way.
    pub(super) fn hurry(&mut self) {
        let deadline = Instant::now() + UNANSWERED_TIMEOUT;
        for start in self.helpers.iter_mut().filter_map(|helper| helper.start.as_mut()) {
            start.deadline.get_or_insert(deadline);
        }
    }

    /// Takes a start that is over, because its helper is done or because it is late.
    pub(super) fn take_finished(&mut self) -> Option<Finished> {
        if let Some(finished) = (0..self.helpers.len()).find_map(|at| self.finish(at)) {
            return Some(finished);
        }
        self.end_surplus();
        let now = Instant::now();
        let mut helpers = self.helpers.iter_mut();
        let late = helpers.find(|helper| helper.late_at().is_some_and(|at| at <= now))?;
        let (number, failed) = late.abandon()?;
        tracing::warn!("killed a process that took too long to execute its program");
        Some(Finished { number, result: Err(failed) })
    }

    /// What came of a start whose helper is done. None: it is not done, or the start was abandoned.
    fn finish(&mut self, at: usize) -> Option<Finished> {
        let spawn = self.helpers[at].helper.take_done()?;
        let Begun { number, abandoned, .. } = self.helpers[at].start.take()?;
        if self.slots_of.as_ref().is_some_and(|of| Rc::ptr_eq(of, &spawn)) {
            self.free_slots();
        }
        let program = Rc::clone(&spawn.order.program);
        let (result, stack) = Rc::into_inner(spawn)?.finish();
        self.stacks.push(stack);
        let result = match result {
            Ok(pid) if abandoned => {
                // It is reaped as any orphan.
                kill_group(pid);
                return None;
            }
            Ok(pid) if tree::ended_before_exec(pid) => {
                Err((Failure::SIGNALLED, FailedChild::Exits(pid)))
            }
            Ok(pid) => open_child(pid).map_err(|failure| (failure, FailedChild::Killed)),
            // It is not reaped here: it may have been taken for an orphan before its pid was known.
            Err((failure, Some(pid))) => Err((failure, FailedChild::Exits(pid))),
            Err((failure, None)) => Err((failure, FailedChild::NotMade)),
        };
        let result = result.map_err(|(failure, child)| program.fail(failure, child));
        (!abandoned).then_some(Finished { number, result })
    }

    /// Kills the idle helpers that are not kept. The sweep reaps them.
    fn end_surplus(&mut self) {
        let idle = self.helpers.iter_mut().filter(|helper| helper.is_idle());
        idle.skip(MAX_IDLE_HELPERS).for_each(SpawnHelper::kill);
        self.stacks.truncate(MAX_IDLE_HELPERS);
    }

    /// A helper has ended. Returns what became of its start. None: this is no helper, or it had none.
    pub(super) fn lose_helper(&mut self, pid: i32) -> Option<Finished> {
        let at = self.helpers.iter().position(|helper| helper.helper.pid() == pid)?;
        if !self.helpers[at].is_killed {
            tracing::error!(pid, "a helper of the keeper was killed");
        }
        let done = self.finish(at);
        let mut lost = self.helpers.swap_remove(at);
        let Some(spawn) = lost.helper.job() else { return done };
        if self.slots_of.as_ref().is_some_and(|of| Rc::ptr_eq(of, &spawn)) {
            self.free_slots();
        }
        let abandoned = lost.abandon();
        lost.helper.forget_job();
        // The kernel has stored the pid of a child before it let the helper end.
        if let Some(child) = spawn.pid() {
            kill_group(child);
            self.lost.push(Rc::clone(&spawn));
        }
        let (number, _) = abandoned?;
        let failed = spawn.order.program.fail(Failure::NO_HELPER, FailedChild::Killed);
        Some(Finished { number, result: Err(failed) })
    }

    /// A child of the keeper was reaped: if its helper was killed, its start's memory is free.
    pub(super) fn forget_child(&mut self, pid: i32) {
        self.lost.retain(|spawn| spawn.pid() != Some(pid));
    }

    /// Has the helper of a child that has exited run, should another process have stopped it.
    pub(super) fn continue_helper(&self, child: i32) {
        for helper in self.helpers.iter().filter(|helper| helper.child() == Some(child)) {
            // SAFETY: sends a signal to a child of the keeper that was not reaped.
            unsafe { libc::kill(helper.helper.pid(), libc::SIGCONT) };
        }
    }
}

impl Drop for SpawnHelper {
    fn drop(&mut self) {
        // The child may still use the memory of a start under way.
        std::mem::forget(self.helper.job());
    }
}

impl SpawnHelper {
    fn is_idle(&self) -> bool {
        self.start.is_none() && !self.is_killed
    }

    /// Kills it. It is lost when the sweep finds it.
    fn kill(&mut self) {
        self.is_killed = true;
        kill(self.helper.pid());
    }

    /// The child that it has made for the start under way.
    fn child(&self) -> Option<i32> {
        self.helper.job().and_then(|spawn| spawn.pid())
    }

    /// When the start under way is late. None: there is none, or it was given up.
    fn late_at(&self) -> Option<Instant> {
        let start = self.start.as_ref().filter(|start| !start.abandoned)?;
        let spawn = self.helper.job()?;
        let has_descriptors = spawn.order.has_descriptors.load(Ordering::Acquire);
        let timeout = if has_descriptors { EXEC_TIMEOUT } else { DESCRIPTORS_TIMEOUT };
        let late_at = start.since + timeout;
        Some(start.deadline.map_or(late_at, |deadline| late_at.min(deadline)))
    }

    /// Gives up a start: kills the child, whether or not that ends it soon. Its memory stays until
    /// the helper is done. A helper whose child has no descriptors yet may be stopped itself, and the
    /// slots are not free before it has ended, so it is killed, too.
    fn abandon(&mut self) -> Option<(u64, Failed)> {
        let start = self.start.as_mut().filter(|start| !start.abandoned)?;
        let spawn = self.helper.job()?;
        start.abandoned = true;
        spawn.order.is_cancelled.store(true, Ordering::Release);
        if let Some(pid) = spawn.pid() {
            kill_group(pid);
        }
        let number = start.number;
        if !spawn.order.has_descriptors.load(Ordering::Acquire) {
            self.kill();
        }
        let failed = spawn.order.program.fail(Failure::TIMED_OUT, FailedChild::Killed);
        Some((number, failed))
    }
}

/// Kills a child of the keeper that was not reaped.
fn kill(pid: i32) {
    // SAFETY: sends a signal; touches no memory.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Kills a new child that was not reaped, and the group that it leads if it has come that far.
fn kill_group(pid: i32) {
    kill(pid);
    let _ = tree::signal_group(pid, libc::SIGKILL);
}

/// A child that has executed its program, with its descriptor.
fn open_child(pid: i32) -> Result<Child, Failure> {
    let known = Pid::from_raw(pid).ok_or(Errno::SRCH);
    match known.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Ok(pidfd) => Ok(Child { pid, pidfd }),
        Err(errno) => {
            // It is reaped as any orphan.
            kill_group(pid);
            Err(Failure::of_descriptors(errno))
        }
    }
}

#[cfg(test)]
mod tests;
