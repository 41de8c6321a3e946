//! Starting processes without a fork of anything large.
//!
//! Owns what a start needs beforehand: C strings, candidate paths, the stack that the child
//! borrows and the three descriptor slots. `clone` makes the child, `child` is what runs in it
//! until the exec. Decides nothing about the process: a [`Launch`] says it all.
//!
//! The child shares the keeper's memory and descriptor table until it execs, while the keeper is
//! suspended: neither pages nor descriptors are copied, however many there are, and a failed
//! step is an errno in shared memory, known when the call returns.

mod child;
mod clone;
mod fence;

use std::ffi::{CString, c_char};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

use rustix::io::{DupFlags, Errno};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open, setrlimit};

use super::memory::OomScores;
use crate::process::{Launch, Refused, User};
use child::{Plan, Step};
use fence::{Fence, Host};

pub(super) use child::Failure;

/// Name of the variable that has the id of a process, in it and in all its descendants.
pub(super) const COOKIE: &[u8] = b"PROCYARD_ID";

/// Name of the variable that has a file below the state directory, in them as well unless they were
/// given another environment.
pub(super) const OUTPUT: &[u8] = b"PROCYARD_OUTPUT";

/// How long a child may take until its exec, while the keeper waits: a process, the server, and a
/// process within [`SLOW_PERIOD`] of one that took longer. Most take a millisecond; the last is
/// for a client that keeps starting what cannot be executed in time.
const EXEC_TIMEOUT: Duration = Duration::from_secs(2);
const SERVER_EXEC_TIMEOUT: Duration = Duration::from_secs(30);
const SLOW_PERIOD_EXEC_TIMEOUT: Duration = Duration::from_millis(500);
const SLOW_PERIOD: Duration = Duration::from_secs(60);

/// Starts processes, one at a time.
pub(super) struct Spawner {
    stack: clone::Stack,
    /// Descriptors 3, 4 and 5. A child's streams are put there before it is made, so that it
    /// takes over a table of seven, not of thousands.
    slots: [OwnedFd; 3],
    /// Descriptor 6: the keeper itself, for a child to see whether it lives.
    keeper: OwnedFd,
    /// What the kernel gives of a sandbox.
    host: Host,
    /// What the soft limit of descriptors was before the keeper raised its own.
    descriptors: (u64, u64),
    oom_scores: OomScores,
    /// When a process took longer than [`EXEC_TIMEOUT`].
    last_timeout: Option<Instant>,
}

/// A process that was just started.
pub(super) struct Child {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
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
            stack: clone::Stack::new()?,
            slots,
            keeper,
            host: Host::default(),
            descriptors: (soft, hard),
            oom_scores,
            last_timeout: None,
        })
    }

    /// Most descriptors that the keeper itself may have open.
    pub(super) fn descriptor_limit(&self) -> u64 {
        self.descriptors.1
    }

    /// Starts a process with these streams, in this cgroup if there is one.
    pub(super) fn spawn(
        &mut self,
        program: &Program,
        ends: &Ends<'_>,
        cgroup: Option<BorrowedFd<'_>>,
    ) -> Result<Child, Failure> {
        let null = rustix::stdio::stdin();
        let mut sources = [null.as_raw_fd(); 3];
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
        let plan = Plan {
            sources: &sources,
            keep_below: 1 + self.keeper.as_raw_fd().cast_unsigned(),
            terminal: ends.terminal,
            die_with_keeper: true,
        };
        let child = self.start(program, &plan, cgroup);
        for slot in &mut self.slots {
            // Cannot fail: both are open. It lets go of the child's end, whose close is the EOF.
            let _ = rustix::io::dup3(null, slot, DupFlags::CLOEXEC);
        }
        child
    }

    /// Whether a child can be made in this cgroup, shown by one that gets as far as its exec.
    /// Container runtimes filter the call away, a threaded cgroup takes nobody, and where kills
    /// are counted a child may be killed at birth.
    pub(super) fn can_begin_in(&mut self, cgroup: &OwnedFd) -> bool {
        let null = rustix::stdio::stdin();
        let ends = Ends { stdin: None, stdout: null, stderr: None, terminal: false };
        let Ok(directory) = Program::new(&Launch::new("probe", ["/"])) else { return false };
        let tried = self.spawn(&directory, &ends, Some(cgroup.as_fd()));
        matches!(tried, Err(Failure { step: Step::Exec, .. }))
    }

    /// Starts the server: the keeper's own streams, then these descriptors from 3 on.
    pub(super) fn spawn_server(
        &mut self,
        program: &Program,
        passed: &[BorrowedFd<'_>],
    ) -> Result<Child, Failure> {
        // Above every target, so that no copy overwrites a source.
        let above = 3 + passed.len() as RawFd;
        let copies: Result<Vec<OwnedFd>, Errno> =
            passed.iter().map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, above)).collect();
        let copies = copies.map_err(Failure::of_descriptors)?;
        let sources: Vec<RawFd> = (0..3).chain(copies.iter().map(AsRawFd::as_raw_fd)).collect();
        let keep_below = 1 + sources.iter().max().copied().unwrap_or(2).cast_unsigned();
        // Without its keeper it saves what all have printed before it ends.
        let plan = Plan { sources: &sources, keep_below, terminal: false, die_with_keeper: false };
        self.start(program, &plan, None)
    }

    fn start(
        &mut self,
        program: &Program,
        plan: &Plan<'_>,
        cgroup: Option<BorrowedFd<'_>>,
    ) -> Result<Child, Failure> {
        let OomScores { process, server } = &self.oom_scores;
        let scores = if plan.die_with_keeper { process } else { server };
        let order = child::Order {
            program,
            plan,
            keeper: self.keeper.as_raw_fd(),
            host: &self.host,
            descriptors: self.descriptors,
            oom_score: scores.as_deref(),
            exec_timeout: self.exec_timeout(plan),
        };
        let started = clone::start(&mut self.stack, cgroup, &order);
        if started.as_ref().is_err_and(Failure::is_timeout) {
            tracing::warn!("killed a process that took too long to execute its program");
            if order.exec_timeout == EXEC_TIMEOUT {
                self.last_timeout = Some(Instant::now());
            }
        }
        started
    }

    fn exec_timeout(&self, plan: &Plan<'_>) -> Duration {
        match self.last_timeout {
            _ if !plan.die_with_keeper => SERVER_EXEC_TIMEOUT,
            Some(last) if last.elapsed() < SLOW_PERIOD => SLOW_PERIOD_EXEC_TIMEOUT,
            _ => EXEC_TIMEOUT,
        }
    }
}

/// What the child needs of a [`Launch`], in the form that the kernel takes.
pub(super) struct Program {
    candidates: Vec<CString>,
    /// They come of a search in `PATH`.
    searched: bool,
    /// The first is a way to a file that is held open, which tells people nothing.
    held: bool,
    args: CStrings,
    env: CStrings,
    cwd: Option<CString>,
    user: Option<User>,
    rlimits: Vec<(u32, u64)>,
    nice: Option<i32>,
    oom_score_adj: Option<CString>,
    /// Files by which it joins the cgroups that limit it.
    joins: Vec<CString>,
    fence: Fence,
}

/// Strings as exec takes them: pointers ended by null, with what they point to.
struct CStrings {
    pointers: Vec<*const c_char>,
    /// What they point to.
    strings: Vec<CString>,
}

impl CStrings {
    fn new(strings: Vec<CString>) -> CStrings {
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        CStrings { pointers, strings }
    }

    fn first(&self) -> Option<&CString> {
        self.strings.first()
    }
}

impl Program {
    /// Checks and converts everything, so that nothing is left to fail but the kernel.
    pub(super) fn new(launch: &Launch) -> Result<Program, Refused> {
        let invalid = |what: String| Refused::Invalid(what);
        let nul = |what: &str| invalid(format!("{what} has a NUL byte"));
        if launch.id.is_empty() {
            return Err(invalid("no id".into()));
        }
        let Some(first) = launch.args.first().filter(|first| !first.is_empty()) else {
            return Err(invalid("no program".into()));
        };
        // The cookie by which the keeper finds descendants again is the keeper's to set. It comes
        // first, then the file that names the state directory: of a large environment only the
        // beginning is searched.
        let cookie = (COOKIE.to_vec(), launch.id.as_bytes().to_vec());
        let is_output = |(name, _): &&(Vec<u8>, Vec<u8>)| name == OUTPUT;
        let output = launch.env.iter().filter(is_output);
        let given = launch.env.iter().filter(|pair| pair.0 != COOKIE && !is_output(pair));
        let mut env = Vec::with_capacity(launch.env.len() + 1);
        for (name, value) in [&cookie].into_iter().chain(output).chain(given) {
            let shown = String::from_utf8_lossy(name);
            if name.is_empty() || name.contains(&b'=') {
                return Err(invalid(format!("the variable name {shown:?} is empty or has an '='")));
            }
            let pair = [name, &b"="[..], value].concat();
            env.push(CString::new(pair).map_err(|_| nul(&format!("the variable {shown:?}")))?);
        }
        let mut args = Vec::with_capacity(launch.args.len());
        for (n, arg) in launch.args.iter().enumerate() {
            args.push(CString::new(&arg[..]).map_err(|_| nul(&format!("argument {n}")))?);
        }
        let cwd = match &launch.cwd[..] {
            [] => None,
            cwd => Some(CString::new(cwd).map_err(|_| nul("the working directory"))?),
        };
        let path = launch.env.iter().rev().find(|(name, _)| name == b"PATH");
        let path = path.map_or(&b"/bin:/usr/bin"[..], |(_, value)| value);
        let score = launch.oom_score_adj.map(|score| CString::new(score.to_string()));
        Ok(Program {
            candidates: candidates(first, path),
            searched: !first.contains(&b'/'),
            held: false,
            args: CStrings::new(args),
            env: CStrings::new(env),
            cwd,
            user: launch.user.clone(),
            rlimits: launch.rlimits.clone(),
            nice: launch.nice,
            oom_score_adj: score.transpose().map_err(|_| nul("the OOM score"))?,
            joins: Vec::new(),
            fence: Fence::new(launch)?,
        })
    }

    /// The same, joining cgroups by these files.
    pub(super) fn joining(mut self, files: Vec<CString>) -> Program {
        self.joins = files;
        self
    }

    /// The same, by this way to its file if there is one, and by the path if that fails.
    pub(super) fn through(mut self, way: Option<CString>) -> Program {
        self.held |= way.is_some();
        self.candidates.splice(0..0, way);
        self
    }

    /// The same with the mounts and the network of a living process, where it was to have some of
    /// its own. Whoever has the descriptor keeps it until it is started.
    pub(super) fn beside(mut self, pidfd: BorrowedFd<'_>) -> Program {
        self.fence.beside(pidfd.as_raw_fd());
        self
    }

    /// A failure in words, with the path that it speaks of.
    pub(super) fn explain(&self, failure: Failure) -> Refused {
        let path = match failure.step {
            Step::Exec if self.held => self.args.first(),
            // Found in no directory: no path is the one that is missing.
            Step::Exec if failure.errno == libc::ENOENT && self.searched => self.args.first(),
            Step::Exec => self.candidates.get(failure.candidate),
            Step::Directory | Step::Link | Step::Outside => {
                match failure.candidate.checked_sub(1) {
                    Some(n) => self.fence.writable.get(n),
                    None => self.cwd.as_ref(),
                }
            }
            _ => None,
        };
        let path = path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let Failure { step, errno, .. } = failure;
        // Of these, no more could be had: of pids and memory, or of namespaces.
        let scarce = [libc::EAGAIN, libc::ENOMEM].contains(&errno);
        let step = match step {
            Step::Clone if self.fence.namespaces != 0 && !scarce => Step::Confine,
            step => step,
        };
        Refused::SpawnFailed { step: step.words().into(), errno, path }
    }
}

/// The paths to try, in order: the program itself if it names a file, else every directory of
/// `PATH`, where an empty one is the working directory. NULs were refused before.
fn candidates(program: &[u8], path: &[u8]) -> Vec<CString> {
    let tries: Vec<Vec<u8>> = if program.contains(&b'/') {
        vec![program.to_vec()]
    } else {
        path.split(|byte| *byte == b':')
            .map(|dir| if dir.is_empty() { &b"."[..] } else { dir })
            .map(|dir| [dir, &b"/"[..], program].concat())
            .collect()
    };
    tries.into_iter().filter_map(|path| CString::new(path).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_in_path_and_a_path_is_not() {
        let paths = |program: &[u8]| candidates(program, b"/a::/b");
        assert_eq!(paths(b"x"), [c"/a/x".to_owned(), c"./x".to_owned(), c"/b/x".to_owned()]);
        assert_eq!(paths(b"./x"), [c"./x".to_owned()]);
    }

    #[test]
    fn variables_that_are_searched_for_come_first() {
        let mut launch = Launch::new("a", ["x"]);
        let names = ["A", "PROCYARD_ID", "PROCYARD_OUTPUT", "Z"];
        launch.env = names.map(|name| (name.into(), b"1".to_vec())).into();
        let program = Program::new(&launch).unwrap();
        let expected = [c"PROCYARD_ID=a", c"PROCYARD_OUTPUT=1", c"A=1", c"Z=1"];
        assert_eq!(program.env.strings, expected.map(ToOwned::to_owned));
    }

    #[test]
    fn what_the_kernel_cannot_take_is_refused_with_its_place() {
        let refusal = |launch: Launch| match Program::new(&launch) {
            Err(Refused::Invalid(what)) => what,
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("accepted"),
        };
        assert_eq!(refusal(Launch::new("a", [""])), "no program");
        assert_eq!(refusal(Launch::new("a", ["x", "y\0"])), "argument 1 has a NUL byte");
        let mut launch = Launch::new("a", ["x"]);
        launch.env = vec![(b"A=B".to_vec(), b"".to_vec())];
        assert_eq!(refusal(launch), "the variable name \"A=B\" is empty or has an '='");
    }
}
