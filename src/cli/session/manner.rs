//! What a session is to be like, and how it may end.

use std::io;

use super::{DetachKeys, RawMode};
use crate::grpc::pb;

/// What a session is to be like.
pub(in crate::cli) struct Manner {
    /// The first chunk that is wanted; none: from now on.
    pub(in crate::cli) since_seq: Option<u64>,
    /// What comes from stdin is for the process.
    pub(in crate::cli) stdin: bool,
    /// At its end, the input of the process ends.
    pub(in crate::cli) ends_input: bool,
    /// Keys that leave it alone.
    pub(in crate::cli) detach: Option<DetachKeys>,
    /// Keys are passed on as they are typed.
    pub(in crate::cli) raw: Option<RawMode>,
    /// It has a terminal.
    pub(in crate::cli) terminal: bool,
    /// Which is as large as the window.
    pub(in crate::cli) follows_window: bool,
    /// What was printed is acknowledged: the size of the transcript.
    pub(in crate::cli) acknowledge: Option<u64>,
    /// The process is ours, and signals are for it; else they end the session.
    pub(in crate::cli) owner: bool,
    /// The process waits in a queue or for its restart, so that no launch reads its input.
    pub(in crate::cli) waits: bool,
}

/// Whether a process waits in a queue or for its restart.
pub(in crate::cli) fn waits(process: &pb::Process) -> bool {
    matches!(process.state(), pb::State::Queued | pb::State::Backoff)
}

/// How a session ended.
pub(in crate::cli) enum Left {
    /// The process has.
    Ended(Box<pb::Process>),
    /// The process was left alone, and lives on as far as is known; `reached`: the server could be
    /// asked; `waits`: the process waits in a queue or for its restart.
    Detached { reached: bool, waits: bool },
    /// We were asked to end.
    Asked(i32),
    /// The same, and the process has ended, too, which did not run.
    Canceled(i32),
    /// What it prints cannot be written.
    Unwritable(io::Error),
}
