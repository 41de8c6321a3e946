//! What follows from an input: what is committed, and what is done once it is.

mod forgetting;

use std::sync::Arc;

use tokio::sync::oneshot;

use super::error::Error;
use super::output_turns::OutputTurn;
use super::registry::{Entry, Held, Seen};
use crate::events::Event;
use crate::process::lifecycle::Ask;
use crate::process::{Descendant, Record, Unkillable};
use crate::store::Change;
use crate::transcript::Ring;

/// Where an answer goes. Whoever asked may have stopped waiting.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// Where the answer to one of several kills will come from.
pub(super) type Receiver<T> = oneshot::Receiver<Result<T, Error>>;

/// The answer to a start.
pub struct Begun {
    /// The process.
    pub entry: Arc<Entry>,
    /// The id named it already.
    pub existed: bool,
}

/// The answer to a kill.
pub struct Killed {
    /// The process, finished, or with what SIGKILL has not ended.
    pub seen: Seen,
    /// Whom the signals reached.
    pub reached: Vec<Descendant>,
}

/// What follows from one input or from several.
#[derive(Default)]
#[must_use]
pub(super) struct Effects {
    /// Committed first, all or nothing.
    pub(super) changes: Vec<Change>,
    /// Done when the changes are committed, in this order.
    pub(super) actions: Vec<Action>,
    /// Nobody waits for this: it may share a commit with what comes next.
    pub(super) patient: bool,
    /// What exists only if the changes are committed.
    pub(super) begun: Vec<Beginning>,
}

/// A process that is new, or a new run of one.
pub(super) struct Beginning {
    pub(super) id: Arc<str>,
    pub(super) birth: u64,
    pub(super) run: u32,
    /// What there was before; none: it is new.
    pub(super) before: Option<Before>,
}

/// A finished process, as it was before it was run again.
pub(super) struct Before {
    pub(super) record: Arc<Record>,
    pub(super) held: Option<Held>,
}

/// Something to be done.
pub(super) enum Action {
    /// Lets calls find a process.
    Enter(Arc<Entry>),
    /// Shows a process as it is now.
    Publish(Arc<Entry>, Seen),
    /// A process is live no more.
    Finish(Arc<Record>),
    /// Lets calls find a process no more.
    Leave(Arc<Record>),
    /// Tells watchers.
    Tell(Arc<Event>),
    /// Asks the keeper to start a process, once who outlived its earlier launch was ended.
    Spawn { record: Arc<Record>, earlier: Option<Held> },
    /// Finds out when a process is ready.
    Probe { record: Arc<Record>, entry: Arc<Entry>, held: Held },
    /// Lets an attempt of a readiness command begin.
    BeginAttempt(oneshot::Sender<()>),
    /// Asks the keeper something about a tree, for the life of the process.
    Ask { id: Arc<str>, by: String, key: u64, ask: Ask },
    /// Asks the kernel the same about processes that an earlier keeper could not end.
    AskLeftovers { id: Arc<str>, leftovers: Vec<Unkillable>, ask: Ask },
    /// Kills who outlived a finished process.
    KillRest { key: u64, seen: Seen },
    /// Lets the keeper forget a process.
    Release(u64),
    /// Kills and forgets what no record knows.
    KillStray { id: Arc<str>, by: String, key: u64 },
    /// Kills and forgets who outlived a process that is freed.
    FreeRest { id: Arc<str>, by: String, key: u64, replies: Vec<Reply<()>> },
    /// Writes the transcript of a finished process to a file.
    Archive { record: Arc<Record>, key: u64, ring: Arc<Ring> },
    /// Removes the transcript of a run from the disk.
    RemoveTranscript { birth: u64, run: u32 },
    /// Removes the file of a script.
    RemoveScript(Arc<Record>),
    /// Answers a start.
    AnswerStart(Reply<Begun>, Result<Begun, Error>),
    /// Answers a kill of many.
    AnswerKillAll(Reply<Vec<Receiver<Killed>>>, Vec<Receiver<Killed>>),
    /// Answers a kill.
    AnswerKill(Reply<Killed>, Result<Killed, Error>),
    /// Answers a delete.
    AnswerDelete(Reply<()>, Result<(), Error>),
    /// A structured output is recorded.
    EndOutputTurn(OutputTurn),
    /// What was there is taken over.
    Recovered,
    /// Everything has ended, as it was told to.
    AllOver,
}

impl Effects {
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.actions.is_empty()
    }

    /// Adds what follows from a later input.
    pub(super) fn append(&mut self, mut later: Effects) {
        self.patient = later.patient && (self.patient || self.is_empty());
        self.changes.append(&mut later.changes);
        self.actions.append(&mut later.actions);
        self.begun.append(&mut later.begun);
    }

    /// What need not wait for a commit that may be long in coming: everything, if nothing changes,
    /// but that all is over, which holds when all is recorded; else what is asked of the keeper
    /// about processes that are to end, or to become ready in time.
    pub(super) fn take_urgent(&mut self) -> Effects {
        let unchanged = self.changes.is_empty();
        let urgent = |action: &mut Action| match action {
            Action::Ask { .. }
            | Action::AskLeftovers { .. }
            | Action::Probe { .. }
            | Action::BeginAttempt(_) => true,
            Action::AllOver => false,
            _ => unchanged,
        };
        Effects { actions: self.actions.extract_if(.., urgent).collect(), ..Effects::default() }
    }

    /// What was taken over can be shown as it was recorded, though what became of it since cannot
    /// be recorded yet: only of that is anything left here.
    pub(super) fn take_recovered(&mut self) -> Effects {
        let recovered =
            |action: &mut Action| matches!(action, Action::Enter(_) | Action::Recovered);
        Effects { actions: self.actions.extract_if(.., recovered).collect(), ..Effects::default() }
    }
}
