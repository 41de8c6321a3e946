//! One process in the supervisor's state: its record, its life, and who waits for it.

use std::collections::HashMap;
use std::sync::Arc;

use super::Starter;
use crate::process::lifecycle::Ended;
use crate::process::{Descendant, End, Life, Moment, Phase, Printed, Record, Spec, Started};
use crate::store::Change;
use crate::supervisor::effects::{Action, Effects, Killed, Reply};
use crate::supervisor::error::Error;
use crate::supervisor::registry::{Entry, Held, Seen};

/// A process.
pub(super) struct Slot {
    pub(super) entry: Arc<Entry>,
    pub(super) record: Arc<Record>,
    /// The spec as events show it.
    pub(super) brief: Arc<Spec>,
    pub(super) life: Life,
    pub(super) held: Option<Held>,
    pub(super) started: Option<Started>,
    /// When its life is to be told that time has passed.
    pub(super) timer: Option<Moment>,
    /// Whom the signals of its end reached.
    pub(super) reached: Vec<Descendant>,
    pub(super) waiting: Waiting,
}

/// Who waits for a process. Each of them is a call under way.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) starts: Vec<Starter>,
    pub(super) kills: Vec<Reply<Killed>>,
    pub(super) deletes: Vec<Reply<()>>,
}

impl Slot {
    pub(super) fn new(record: Arc<Record>, life: Life, held: Option<Held>) -> Slot {
        Slot {
            entry: Entry::new(Arc::clone(&record), held.clone()),
            brief: record.spec.brief(),
            started: record.started(),
            record,
            life,
            held,
            timer: None,
            reached: Vec::new(),
            waiting: Waiting::default(),
        }
    }

    pub(super) fn seen(&self) -> Seen {
        Seen { record: Arc::clone(&self.record), held: self.held.clone(), removed: false }
    }

    pub(super) fn set_phase(&mut self, phase: Phase) {
        self.record = Arc::new(Record { phase, ..Record::clone(&self.record) });
    }

    /// The record as events show it.
    pub(super) fn brief_record(&self) -> Arc<Record> {
        if Arc::ptr_eq(&self.brief, &self.record.spec) {
            return Arc::clone(&self.record);
        }
        Arc::new(Record { spec: Arc::clone(&self.brief), ..Record::clone(&self.record) })
    }

    /// Its record goes. It is shown once more, not as it was published last: its end may be news
    /// yet, and its readers have the output still.
    pub(super) fn leave(&self, then: &mut Effects) {
        then.changes.push(Change::Remove(Arc::clone(&self.record.id)));
        then.actions.push(Action::Leave(Arc::clone(&self.record)));
        let seen = Seen { removed: true, ..self.seen() };
        then.actions.push(Action::Publish(Arc::clone(&self.entry), seen));
    }

    /// Bytes that it takes once it is finished.
    pub(super) fn bytes(&self) -> u64 {
        let ring = self.held.as_ref().and_then(|held| held.output.progress().ring);
        let kept = ring.map_or(0, |ring| ring.memory());
        kept + self.record.spec.bytes() as u64
    }
}

impl Waiting {
    /// Tells everyone that there is no such process, and those who asked for it why.
    pub(super) fn fail(self, id: &str, error: &Error, then: &mut Effects) {
        let Waiting { starts, kills, deletes } = self;
        let starts = starts.into_iter();
        let why = || Err(error.clone());
        then.actions.extend(starts.map(|starter| Action::AnswerStart(starter.reply, why())));
        let kills = kills.into_iter();
        let missing = || Err(Error::NotFound(id.into()));
        then.actions.extend(kills.map(|reply| Action::AnswerKill(reply, missing())));
        let deletes = deletes.into_iter();
        then.actions.extend(deletes.map(|reply| Action::AnswerDelete(reply, Ok(()))));
    }
}

/// The end of a process that was started.
pub(super) fn end(slot: &mut Slot, started: Started, ended: Ended) -> End {
    let Ended { cause, exit, reached } = ended;
    slot.reached = reached;
    End {
        cause,
        time: exit.time,
        started: Some(started),
        printed: printed(&slot.held),
        output_complete: slot.held.as_ref().is_some_and(|held| held.output.progress().drained),
        exit: Some(exit),
        detail: String::new(),
    }
}

/// What a process has printed so far.
pub(super) fn printed(held: &Option<Held>) -> Printed {
    let progress = held.as_ref().map(|held| held.output.progress()).unwrap_or_default();
    match progress.ring {
        Some(ring) => {
            let figures = ring.figures();
            Printed {
                next_seq: figures.next_seq,
                bytes: figures.total_bytes,
                last_time: figures.last_time,
            }
        }
        None => Printed { next_seq: progress.next_seq.max(1), ..Printed::default() },
    }
}

/// A process that has printed nothing and left nobody behind is nothing that the keeper must hold.
pub(super) fn release_if_empty(
    slot: &mut Slot,
    keys: &mut HashMap<u64, Arc<str>>,
    then: &mut Effects,
) {
    let Some(end) = slot.record.end() else { return };
    let alone = end.exit.as_ref().is_none_or(|exit| exit.lingering.is_empty());
    // How much was typed is asked for by who repeats a write.
    let typed = |held: &Held| held.output.progress().input.accepted > 0;
    if let Some(held) = slot
        .held
        .take_if(|held| alone && !typed(held) && end.output_complete && end.printed.bytes == 0)
    {
        keys.remove(&held.key);
        then.actions.push(Action::Release(held.key));
    }
}
