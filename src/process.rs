//! The words for a process: what was asked for (`spec`), how it is launched, its record and its
//! life (`record`, `lifecycle`), how it ended.
//!
//! Plain data and pure functions. What stands in this file is shared by the keeper and the
//! server; the files below are the server's. Knows neither the protocol between them nor any
//! system call.

pub mod keeper_id;
pub mod keys;
pub mod lifecycle;
pub mod record;
pub mod restart;
pub mod sandbox;
pub mod selector;
pub mod signal;
pub mod spec;
pub mod structured;
pub mod wait;

use serde::{Deserialize, Serialize};

pub use keeper_id::KeeperId;
pub use keys::{Key, Keyboard};
pub use lifecycle::{Kind, Life, Moment};
pub use record::{
    Archived, Cause, End, Outcome, Phase, Printed, Record, Started, State, StructuredOutput,
};
pub use restart::Restarts;
pub use sandbox::{Files, Parts, Sandbox};
pub use selector::{AnyOf, Selector};
pub use spec::{
    DEFAULT_INTERPRETER, Environment, GiveUp, Limits, Mode, Policy, Probe, Program, Readiness,
    Restart, Script, Service, Spec, Stop, Streams,
};
pub use wait::{Until, WaitFor};

/// How a process is to be started: everything resolved, nothing left to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Public id. The keeper finds the process again by it, and its descendants by the cookie
    /// `PROCYARD_ID` that it adds to the environment.
    pub id: String,
    /// Which run of that id this is, from 1.
    pub run: u32,
    /// Program and arguments. The first is looked up in the `PATH` of `env` unless it has a slash.
    pub args: Vec<Vec<u8>>,
    /// The environment, exactly but for the cookie: names and values.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory; empty: the keeper's own.
    pub cwd: Vec<u8>,
    /// Where its streams go.
    pub io: Io,
    /// Another user to run as.
    pub user: Option<User>,
    /// Resource limits: `RLIMIT_*` number and value, soft and hard alike.
    pub rlimits: Vec<(u32, u64)>,
    /// Nice value, if it is to change.
    pub nice: Option<i32>,
    /// OOM score adjustment; none: 0 where that is permitted.
    pub oom_score_adj: Option<i32>,
    /// What it and its descendants may use together.
    pub limits: TreeLimits,
    /// Size of its ring.
    pub ring_bytes: u64,
    /// What happens when the ring is full.
    pub overflow: Overflow,
    /// Sequence number of its first chunk.
    pub first_seq: u64,
    /// It goes on with the ring of the newest earlier run of its id, which must have ended, if that
    /// is still held; the earlier run is then released.
    pub continues: bool,
    /// Real paths: its directory, and what is writable in its sandbox, lie in or below one of them;
    /// none: anywhere.
    pub roots: Vec<Vec<u8>>,
    /// What it may reach.
    pub sandbox: Sandbox,
    /// The keeper's number of a process whose network and mounts it has, where its sandbox asks for
    /// some of its own.
    pub beside: Option<u64>,
}

impl Launch {
    /// A launch on pipes with everything else at its default and an empty environment.
    pub fn new<A: AsRef<[u8]>>(id: impl Into<String>, args: impl IntoIterator<Item = A>) -> Launch {
        Launch {
            id: id.into(),
            run: 1,
            args: args.into_iter().map(|arg| arg.as_ref().to_vec()).collect(),
            env: Vec::new(),
            cwd: Vec::new(),
            io: Io::Pipes { stdin: false, merge_stderr: false },
            user: None,
            rlimits: Vec::new(),
            nice: None,
            oom_score_adj: None,
            limits: TreeLimits::default(),
            ring_bytes: DEFAULT_RING,
            overflow: Overflow::DropOldest,
            first_seq: 1,
            continues: false,
            roots: Vec::new(),
            sandbox: Sandbox::default(),
            beside: None,
        }
    }

    /// Whether it asks for what keepers before version 4 would ignore.
    pub fn is_confined(&self) -> bool {
        !self.roots.is_empty() || self.sandbox != Sandbox::default()
    }
}

/// Size of a ring unless another is asked for.
pub const DEFAULT_RING: u64 = 8 << 20;

/// Most bytes of input that may pend for one process.
pub const MAX_PENDING_INPUT: u64 = 1 << 20;

/// Where the standard streams of a process go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// Pipes.
    Pipes {
        /// A pipe for stdin; otherwise it is `/dev/null`.
        stdin: bool,
        /// stderr goes where stdout goes.
        merge_stderr: bool,
    },
    /// A terminal of this size. Its kind, `TERM`, is the environment's to say.
    Terminal(Size),
}

/// Size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

impl Size {
    /// Most rows, and most columns.
    pub const MAX: u16 = 1000;

    /// A size, if both sides are between 1 and [`Size::MAX`].
    pub fn new(rows: u32, cols: u32) -> Option<Size> {
        let side = |n: u32| u16::try_from(n).ok().filter(|n| (1..=Size::MAX).contains(n));
        Some(Size { rows: side(rows)?, cols: side(cols)? })
    }
}

/// A user to run as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups, all of them.
    pub groups: Vec<u32>,
}

/// What a process and its descendants may use together. 0: no limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeLimits {
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub processes: u32,
    /// CPUs, in thousandths.
    pub milli_cpus: u64,
}

impl TreeLimits {
    /// Nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == TreeLimits::default()
    }
}

/// Which limits of whole trees can be enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enforceable {
    /// Memory.
    pub memory: bool,
    /// Processes and threads.
    pub processes: bool,
    /// CPUs.
    pub cpus: bool,
}

/// What happens when a ring is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overflow {
    /// The oldest chunks make room.
    DropOldest,
    /// The process waits until chunks are acknowledged.
    Block,
}

/// Room beyond the limit of a blocking ring, for what its process has printed when it exits.
pub const EXIT_ROOM: u64 = (2 << 20) + (128 << 10);

impl Overflow {
    /// Bytes that a ring takes at most, of which `bytes` are kept while its process lives.
    pub fn ring_bytes(self, bytes: u64) -> u64 {
        match self {
            Overflow::DropOldest => bytes,
            Overflow::Block => bytes + EXIT_ROOM,
        }
    }
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Code or signal.
    pub status: Status,
    /// A core was dumped.
    pub core_dumped: bool,
    /// When the keeper saw it, nanoseconds since 1970.
    pub time: u64,
    /// What it used, with the descendants that it waited for.
    pub usage: Usage,
    /// Everything that it printed lies before this sequence number.
    pub final_seq: u64,
    /// Descendants that lived on.
    pub lingering: Vec<Descendant>,
    /// How many of its tree the kernel had killed for want of memory by then; known where its
    /// memory is limited.
    #[serde(default)]
    pub oom_kills: u64,
    /// The keeper had sent it SIGKILL.
    #[serde(default)]
    pub killed: bool,
    /// CPU time that it used itself, microseconds, if that is known. Nobody needs it where none were
    /// killed for want of memory.
    #[serde(default)]
    pub own_cpu_micros: Option<u64>,
}

/// Code or signal, never both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// Resources that a process used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in user mode, microseconds.
    pub user_micros: u64,
    /// CPU time in the kernel, microseconds.
    pub system_micros: u64,
    /// Largest resident set, bytes.
    pub max_rss_bytes: u64,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
}

/// A process of someone's tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descendant {
    /// Its pid: information, never identity.
    pub pid: u32,
    /// Its command name.
    pub command: String,
}

/// A process of someone's tree that SIGKILL has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unkillable {
    /// The process.
    #[serde(flatten)]
    pub process: Descendant,
    /// When it was started, in clock ticks since boot: with the pid its identity.
    pub start_ticks: u64,
    /// Why SIGKILL has not ended it, as "operation not permitted".
    pub error: String,
}

/// What a signal to a whole tree came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeSignal {
    /// The processes that took the signal, the leader first.
    pub members: Vec<Descendant>,
    /// The processes that SIGKILL has not ended in time; empty after any other signal.
    pub unkillable: Vec<Unkillable>,
    /// The leader itself is among them.
    pub leader_remains: bool,
    /// A look found no member, but more may turn out to be of the tree.
    pub may_miss_some: bool,
}

/// How far the input of a process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputState {
    /// More can be written.
    pub open: bool,
    /// Bytes taken so far, read by the child or not.
    pub accepted: u64,
    /// Of these, bytes that are not in the child's pipe or terminal yet.
    pub pending: u64,
}

/// How the keeper finds and ends the tree of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillDomain {
    /// A cgroup v2 leaf per process, ended in one stroke; then a walk for what left it.
    Cgroup,
    /// A walk over descendants by parent, session, group and cookie.
    Walk,
}

/// Steps of a start that are known by name on both sides: what their failure means is more than
/// the kernel's word for it.
pub mod step {
    /// The kernel made no process.
    pub const MAKE: &str = "cannot make a process";
    /// The limits of its tree could not be set.
    pub const LIMIT_TREE: &str = "cannot limit its tree";
    /// The user could not be changed.
    pub const USER: &str = "cannot become the user";
    /// The user could not be changed, because the sandbox takes a user namespace.
    pub const USER_INSIDE: &str =
        "cannot become another user in the sandbox, which takes a user namespace here";
    /// The directory could not be entered.
    pub const DIRECTORY: &str = "cannot enter the directory";
    /// The path of the directory has a symbolic link, which the sandbox does not follow.
    pub const LINK: &str = "cannot enter the directory without following a symbolic link";
    /// The directory was entered, and is not below a root.
    pub const OUTSIDE: &str = "the directory is outside of the roots";
    /// What keeps it in could not be put up.
    pub const CONFINE: &str = "cannot put up the sandbox";
    /// No terminal could be had.
    pub const TERMINAL: &str = "cannot open a terminal";
}

/// Why the keeper did not do what it was asked. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A value cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// The keeper holds no such process.
    #[error("no such process")]
    UnknownProcess,
    /// The kernel refused to start it.
    #[error("{step} {path:?}: {errno}", errno = std::io::Error::from_raw_os_error(*errno))]
    SpawnFailed {
        /// What could not be done.
        step: String,
        /// The kernel's word.
        errno: i32,
        /// The path that it speaks of; may be empty.
        path: String,
    },
    /// The keeper holds as many processes as it may.
    #[error("the keeper holds as many processes as it may")]
    TooMany,
    /// It has exited.
    #[error("the process has exited")]
    NotRunning,
    /// It has not exited.
    #[error("the process has not exited")]
    StillRunning,
    /// It runs on pipes.
    #[error("the process runs on pipes, not on a terminal")]
    NotATerminal,
    /// It has no input, or its input was closed.
    #[error("the process has no open input")]
    StdinNotOpen,
    /// As much input as may pend is pending.
    #[error("{} bytes of input pend already", .0.pending)]
    StdinFull(InputState),
    /// Bytes before the offset are missing.
    #[error("the offset is beyond the {} bytes accepted so far", .0.accepted)]
    InputOffset(InputState),
    /// The signal could not be sent.
    #[error("the signal could not be sent: {}", std::io::Error::from_raw_os_error(*.0))]
    SignalFailed(i32),
    /// The ends of the connection speak different versions.
    #[error("{0}")]
    Version(String),
}
