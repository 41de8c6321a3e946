//! What follows from an input: what is committed, and what is done once it is.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::error::Error;
use super::registry::{Entry, Held, Seen};
use crate::events::Event;
use crate::process::lifecycle::Ask;
use crate::process::{Descendant, Record};
use crate::store::Change;

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
    /// The process, finished.
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
    /// Processes that exist only if the changes are committed.
    pub(super) begun: Vec<Arc<str>>,
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
    /// Asks the keeper to start a process.
    Spawn { record: Arc<Record>, earlier: Option<Earlier> },
    /// Finds out when a process is ready.
    Probe { record: Arc<Record>, entry: Arc<Entry>, held: Held },
    /// Asks the keeper something about a tree, for the life of the process.
    Ask { id: Arc<str>, key: u64, ask: Ask },
    /// Kills who outlived a finished process.
    KillRest { key: u64, seen: Seen, reply: Reply<Killed> },
    /// Lets the keeper forget a process.
    Release(u64),
    /// Kills and forgets what no record knows.
    KillStray(u64),
    /// Kills and forgets who outlived a process that is freed.
    FreeRest { key: u64, replies: Vec<Reply<()>> },
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
    /// What was there is taken over.
    Recovered,
    /// Everything has ended, as it was told to.
    AllOver,
}

/// What the keeper holds of an earlier launch of the same process. It is over; who outlived it is
/// ended before the next one begins.
pub(super) struct Earlier {
    pub(super) held: Held,
    /// Its transcript goes on; otherwise it is freed.
    pub(super) goes_on: bool,
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

    /// What need not wait for a commit that may be long in coming: everything, if nothing changes;
    /// else what is asked of the keeper about processes that are to end, or to become ready in time.
    pub(super) fn take_urgent(&mut self) -> Effects {
        if self.changes.is_empty() {
            return std::mem::take(self);
        }
        let urgent =
            |action: &mut Action| matches!(action, Action::Ask { .. } | Action::Probe { .. });
        Effects { actions: self.actions.extract_if(.., urgent).collect(), ..Effects::default() }
    }

    /// Forgets processes that will not exist, with all that was to be done for them.
    pub(super) fn forget_begun(&mut self) {
        let begun = std::mem::take(&mut self.begun);
        self.changes.retain(|change| match change {
            Change::Insert(record) => !begun.contains(&record.id),
            _ => true,
        });
        self.actions.retain(|action| match action {
            Action::Enter(entry) => !begun.contains(&entry.seen().record.id),
            Action::Spawn { record, .. } => !begun.contains(&record.id),
            _ => true,
        });
    }
}
