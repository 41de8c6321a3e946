//! What is to be run: a spec, as it was accepted. Pure data.
//!
//! Everything here has been validated and has its defaults filled in (`grpc::from_proto` does
//! both); what depends on this machine, such as the environment, is resolved at each start
//! (`supervisor::launch`). `size` is how much memory a spec takes,
//! `brief` what of it events carry.

mod brief;
mod size;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Files, Overflow, Sandbox, Size, User};

/// What is to be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The program.
    pub program: Program,
    /// Where its streams go.
    pub streams: Streams,
    /// Working directory; empty: the keeper's own.
    pub cwd: String,
    /// Its environment.
    pub env: Environment,
    /// A name for people.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The client's own reference.
    pub reference: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Whose it is.
    pub owner: String,
    /// What it belongs to.
    pub workspace: String,
    /// What kind of work it is.
    #[serde(default)]
    pub mode: Mode,
    /// The service that it is: present exactly in [`Mode::Service`].
    #[serde(default)]
    pub service: Option<Service>,
    /// When it counts as ready; none: as soon as it runs.
    #[serde(default)]
    pub readiness: Option<Readiness>,
    /// The queue that it waits in; empty: none.
    #[serde(default)]
    pub queue: String,
    /// How long it may run; none: for ever.
    pub timeout: Option<Duration>,
    /// How it is ended.
    pub stop: Stop,
    /// What it may use.
    #[serde(default)]
    pub limits: Limits,
    /// Another user to run as.
    pub user: Option<User>,
    /// Size of its ring.
    pub transcript_bytes: u64,
    /// What happens when the ring is full.
    pub overflow: Overflow,
    /// What it may reach.
    #[serde(default)]
    pub sandbox: Sandbox,
}

impl Spec {
    /// The spec of a process of which nothing is known, on pipes.
    pub fn unknown() -> Spec {
        Spec {
            program: Program::LeftOut,
            streams: Streams::Pipes { stdin: false, merge_stderr: false },
            cwd: String::new(),
            env: Environment::default(),
            name: String::new(),
            description: String::new(),
            reference: String::new(),
            labels: BTreeMap::default(),
            owner: String::new(),
            workspace: String::new(),
            mode: Mode::default(),
            service: None,
            readiness: None,
            queue: String::new(),
            timeout: None,
            stop: Stop::default(),
            limits: Limits::default(),
            user: None,
            transcript_bytes: super::DEFAULT_RING,
            overflow: Overflow::DropOldest,
            sandbox: Sandbox::default(),
        }
    }

    /// Whether a file has to be written for it.
    pub fn is_script(&self) -> bool {
        matches!(self.program, Program::Script(_))
    }

    /// Whether the file that it may set something in has to be made for it: who is another user or
    /// may not write there could not.
    pub fn has_output_made(&self) -> bool {
        self.user.is_some() || self.sandbox.files != Files::Unrestricted
    }
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// A line for `/bin/sh -c`.
    Shell(String),
    /// A program and its arguments.
    Argv(Vec<String>),
    /// The same, not all of it UTF-8.
    RawArgv(Vec<Vec<u8>>),
    /// Code to be run by an interpreter.
    Script(Script),
    /// It was too large to be kept with an event.
    LeftOut,
}

/// The interpreter of a script that names none.
pub const DEFAULT_INTERPRETER: [&str; 1] = ["/bin/sh"];

/// Code to be run by an interpreter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// The code.
    pub code: String,
    /// The interpreter and its arguments; the file's path is added as the last.
    pub interpreter: Vec<String>,
    /// Name of that file.
    pub filename: String,
}

/// Where the streams of a process go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Streams {
    /// Pipes.
    Pipes {
        /// A pipe for stdin; otherwise it is `/dev/null`.
        stdin: bool,
        /// stderr goes where stdout goes.
        merge_stderr: bool,
    },
    /// A terminal.
    Terminal {
        /// Its size at the start.
        size: Size,
        /// Its kind, for `TERM`.
        term: String,
    },
}

/// What is added to the clean environment.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Variables to set.
    pub set: BTreeMap<String, String>,
    /// Variables of the server to pass on, by name or as `PREFIX*`.
    pub inherit: Vec<String>,
    /// All variables of the server pass, but for secrets.
    pub inherit_all: bool,
}

impl fmt::Debug for Environment {
    /// Without values: they may be secrets, and this may be logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Environment { set, inherit, inherit_all } = self;
        let names: Vec<_> = set.keys().collect();
        f.debug_struct("Environment")
            .field("set", &names)
            .field("inherit", inherit)
            .field("inherit_all", inherit_all)
            .finish()
    }
}

/// What kind of work a process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Work that is started and looked after later.
    #[default]
    Background,
    /// Something that stays up.
    Service,
    /// Work that somebody waits for.
    Foreground,
}

/// Something that stays up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its name: one process of it is live at a time, per owner and workspace.
    pub name: String,
    /// Whether it is started again.
    pub restart: Restart,
}

/// Whether a service is started again when it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// When.
    pub policy: Policy,
    /// How often at most; none: without end.
    pub most: Option<u32>,
    /// First pause.
    pub backoff_min: Duration,
    /// Longest pause.
    pub backoff_max: Duration,
    /// How many starts in how short a time are too many; none: it is never given up for that.
    #[serde(default)]
    pub give_up: Option<GiveUp>,
}

/// When a service that fails again and again is not started any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveUp {
    /// So many starts are too many.
    pub starts: u32,
    /// If they lie within such a span.
    pub within: Duration,
}

/// When a service is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Policy {
    /// Never.
    Never,
    /// When it did not succeed.
    OnFailure,
    /// However it ended.
    Always,
}

impl Default for Restart {
    fn default() -> Restart {
        Restart {
            policy: Policy::Never,
            most: None,
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(60),
            give_up: None,
        }
    }
}

/// When a process counts as ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// How it is found out.
    pub probe: Probe,
    /// How long it may take, from the start.
    pub timeout: Duration,
    /// It is not ended if it takes longer.
    pub keep: bool,
}

impl Readiness {
    /// What is missing, for people; and how the last attempt failed, if that is known.
    pub fn unmet(&self, last: &str) -> String {
        let timeout = self.timeout;
        match &self.probe {
            Probe::Output(regex) => format!("no output matched {regex:?} within {timeout:?}"),
            Probe::Port(port) => format!("nobody of it listened on port {port} within {timeout:?}"),
            Probe::Exec(args) => {
                let command = args.first().map_or("", String::as_str);
                let last = if last.is_empty() { "has not ended" } else { last };
                format!("the command {command:?} did not succeed within {timeout:?}: it {last}")
            }
        }
    }
}

/// How it is found out whether a process is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Probe {
    /// It has printed something that matches this regular expression.
    Output(String),
    /// One of its tree listens on this TCP port.
    Port(u16),
    /// This command exits with code 0.
    Exec(Vec<String>),
}

/// What a process may use. None, or 0: no limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of the tree, bytes.
    pub memory_bytes: u64,
    /// Processes and threads of the tree.
    pub processes: u32,
    /// Open files of each process.
    pub open_files: u64,
    /// Size of a file, bytes.
    pub file_bytes: u64,
    /// CPU time of each process, whole seconds.
    pub cpu_seconds: u64,
    /// CPUs for the tree, in thousandths.
    pub milli_cpus: u64,
    /// Nice value.
    pub nice: Option<i32>,
}

/// How a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Signal to ask with.
    pub signal: i32,
    /// Time until SIGKILL.
    pub grace: Duration,
}

impl Default for Stop {
    fn default() -> Stop {
        Stop { signal: libc::SIGTERM, grace: Duration::from_secs(10) }
    }
}
