//! Why a call was refused, in the project's own words. `grpc::status` turns them into statuses.

use super::quota::Reached;
use crate::access::{Choice, Outside, Role};
use crate::keeper_client::KeeperError;
use crate::process::{Refused, Spec, step};

/// Why a call was refused. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fields cannot be used; all of them are named.
    #[error("{}", join(.0))]
    Invalid(Vec<BadField>),
    /// Nothing tells who calls.
    #[error("nothing tells who you are: show a token (authorization: Bearer …) or a certificate")]
    NoCredentials,
    /// The kernel tells which user calls, and nothing was said of it.
    #[error(
        "the user {0} is not known here; the server knows it by --grant uid:{0}=viewer, or \
         operator, or show a token (authorization: Bearer …)"
    )]
    UnknownUser(u32),
    /// A process that procyard runs calls, and those may not.
    #[error("processes that procyard runs may not call it: that is --grant-children")]
    ChildProcess,
    /// What was shown is not known here.
    #[error("the token or certificate is not known here, or not any more")]
    BadCredentials,
    /// What was shown is no token at all.
    #[error("the authorization header is no token: use authorization: Bearer TOKEN")]
    NotBearer,
    /// The caller's role does not allow it.
    #[error("{call} needs the role {needs}; yours is {role}")]
    Role {
        /// What was called.
        call: &'static str,
        /// What the caller has.
        role: Role,
        /// What it takes.
        needs: Role,
    },
    /// A new process would lie outside of the caller's scope.
    #[error(transparent)]
    Scope(#[from] Outside),
    /// The caller may not choose this of how a process runs.
    #[error("{} is not yours to choose: that needs may={}", .0.field(), .0.freedom())]
    NotFree(#[from] Choice),
    /// There is no such process.
    #[error("there is no process {0:?}")]
    NotFound(String),
    /// The id is taken by a process with another spec, or by one that the caller does not see. The
    /// words are the same, so that nobody learns which.
    #[error("the id {0:?} is taken by another process")]
    IdConflict(String),
    /// A process of the same service is live.
    #[error("the service {service:?} of this owner and workspace is live already, as {id:?}")]
    ServiceRunning {
        /// Its name.
        service: String,
        /// The process.
        id: String,
    },
    /// It has printed or set something, which would be lost.
    #[error("the process {0:?} has output; use force to clear it")]
    HasOutput(String),
    /// The program cannot be executed.
    #[error("{step}{}: {}{}", quoted(path), std::io::Error::from_raw_os_error(*.errno), advice(step))]
    SpawnFailed {
        /// What could not be done.
        step: String,
        /// The kernel's word.
        errno: i32,
        /// The path that it speaks of; may be empty.
        path: String,
    },
    /// The user cannot be had.
    #[error("{step}: {}; running as another user needs root", std::io::Error::from_raw_os_error(*.errno))]
    UserNotAllowed {
        /// What could not be done.
        step: String,
        /// The kernel's word.
        errno: i32,
    },
    /// Limits that cannot be enforced here; all of them are named.
    #[error("cannot enforce {} here; of all limits {} can be", .unsupported.join(", "), .enforceable.join(", "))]
    LimitUnsupported {
        /// Those of them that were asked for.
        unsupported: Vec<&'static str>,
        /// What can be enforced.
        enforceable: Vec<&'static str>,
    },
    /// A directory is not below the roots that this server was told, or cannot be found to be.
    #[error("{}{path:?} is not below a directory that is allowed here (--root)", of_writable(*.writable))]
    CwdNotAllowed {
        /// It is one of `spec.sandbox.writable`, not the working directory.
        writable: bool,
        /// The directory, as it was asked for.
        path: String,
    },
    /// Parts of a sandbox that cannot be had here; all of them are named.
    #[error("cannot have {} here: the kernel, or the keeper that runs, does not give it", .0.join(", "))]
    SandboxUnsupported(Vec<&'static str>),
    /// It does not run.
    #[error("the process {0:?} does not run: it has exited, or waits for its turn or its restart")]
    NotRunning(String),
    /// It has not exited.
    #[error("the process {0:?} has not exited; kill it first")]
    StillRunning(String),
    /// It runs on pipes.
    #[error("the process {0:?} runs on pipes, not on a terminal")]
    NotATerminal(String),
    /// It has no input, or its input was closed.
    #[error("the process {0:?} has no open input; start it with pipes.stdin or on a terminal")]
    StdinNotOpen(String),
    /// A cursor is after the end.
    #[error("{cursor} is ahead of the end: the next one will be {next}")]
    CursorAhead {
        /// What was asked for.
        cursor: u64,
        /// What will come next.
        next: u64,
    },
    /// Bytes before the offset are missing.
    #[error("the offset {offset} is beyond the {accepted} bytes accepted so far")]
    InputOffset {
        /// What was asked for.
        offset: u64,
        /// What was accepted.
        accepted: u64,
    },
    /// As much input as may pend is pending.
    #[error("{pending} bytes of input pend already, of at most 1048576; nothing was taken")]
    StdinFull {
        /// How much pends.
        pending: u64,
    },
    /// A screen takes too long to be worked out.
    #[error("the screen takes more than 30 s to be worked out from what was printed")]
    ScreenTooCostly,
    /// As many processes as may be are held.
    #[error(
        "as many processes run as --max-running allows, or wait as can be kept; try again later"
    )]
    TooManyProcesses,
    /// There is as much as there may be.
    #[error("{}", words(.0))]
    Quota(Reached),
    /// As many streams are open as may be.
    #[error("{}", words(.0))]
    TooManyStreams(Reached),
    /// The caller has as many calls under way, or as much held for their answers, as it may.
    #[error("{}", words(.0))]
    TooManyCalls(Reached),
    /// The kernel has no more pids.
    #[error("the kernel has no pid left for it")]
    OutOfPids,
    /// There are no more descriptors.
    #[error("there is no descriptor left for it")]
    OutOfDescriptors,
    /// There are no more terminals.
    #[error("there is no terminal left for it")]
    OutOfTerminals,
    /// The server is told to stop.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// It could not be recorded.
    #[error("it could not be recorded: {0}")]
    Store(String),
    /// The keeper did not answer as it should.
    #[error("the keeper: {0}")]
    Keeper(String),
}

/// A field that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadField {
    /// Its path, as `spec.labels["a b"]`.
    pub field: String,
    /// What is wrong, and what would be right.
    pub problem: String,
}

fn words(Reached { what, most, used, of_all, retry }: &Reached) -> String {
    let (whose, what) = (if *of_all { "all callers" } else { "one caller" }, what.words());
    match retry {
        Some(_) => format!("{whose} may have {most} {what}, and {used} are used; try again later"),
        None => format!("{whose} may have {most} {what}, and this alone asks for more"),
    }
}

/// The field before what is wrong with it, where that is not clear.
fn of_writable(writable: bool) -> &'static str {
    if writable { "spec.sandbox.writable: " } else { "" }
}

/// A path after a word, if there is one.
fn quoted(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!(" {path:?}") }
}

/// What to do about a step that failed, where the kernel's word does not say it.
fn advice(step: &str) -> &'static str {
    // A field may be named before the step.
    if step.ends_with(step::LINK) { "; name the directory by its real path" } else { "" }
}

fn join(fields: &[BadField]) -> String {
    let all: Vec<_> =
        fields.iter().map(|BadField { field, problem }| format!("{field}: {problem}")).collect();
    all.join("; ")
}

impl Error {
    /// The same, with the field that a directory came from, if it is not the working directory.
    pub(crate) fn about(self, spec: &Spec) -> Error {
        let is_writable = |path: &String| *path != spec.cwd && spec.sandbox.writable.contains(path);
        match self {
            Error::CwdNotAllowed { path, .. } => {
                Error::CwdNotAllowed { writable: is_writable(&path), path }
            }
            Error::SpawnFailed { step, errno, path } if is_writable(&path) => {
                let step = format!("{}{step}", of_writable(true));
                Error::SpawnFailed { step, errno, path }
            }
            error => error,
        }
    }

    /// What the keeper's refusal means for a process.
    pub(crate) fn from_keeper(id: &str, error: KeeperError) -> Error {
        let refused = match error {
            KeeperError::Refused(refused) => refused,
            KeeperError::Disconnected => return Error::ShuttingDown,
        };
        match refused {
            Refused::UnknownProcess => Error::NotFound(id.into()),
            Refused::SpawnFailed { step, errno, path } => spawn_failed(step, errno, path),
            Refused::TooMany => Error::TooManyProcesses,
            Refused::NotRunning => Error::NotRunning(id.into()),
            Refused::StillRunning => Error::StillRunning(id.into()),
            Refused::NotATerminal => Error::NotATerminal(id.into()),
            Refused::StdinNotOpen => Error::StdinNotOpen(id.into()),
            Refused::StdinFull(state) => Error::StdinFull { pending: state.pending },
            Refused::Invalid(_)
            | Refused::InputOffset(_)
            | Refused::SignalFailed(_)
            | Refused::Version(_) => Error::Keeper(refused.to_string()),
        }
    }
}

/// Some of the kernel's words have words of their own in the API.
fn spawn_failed(step: String, errno: i32, path: String) -> Error {
    match (step.as_str(), errno) {
        (step::OUTSIDE, _) => Error::CwdNotAllowed { writable: false, path },
        // Not for want of descriptors here: the child's own may be few.
        (step::CONFINE, _) => Error::SpawnFailed { step, errno, path },
        (step::USER, libc::EPERM) => Error::UserNotAllowed { step, errno },
        (step::MAKE, libc::EAGAIN) => Error::OutOfPids,
        (step::TERMINAL, libc::ENOSPC) => Error::OutOfTerminals,
        (_, libc::EMFILE | libc::ENFILE) => Error::OutOfDescriptors,
        _ => Error::SpawnFailed { step, errno, path },
    }
}
