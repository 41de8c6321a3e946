//! A commit has failed: what it would have begun is taken out of what is tried again. Pure.
//!
//! Owns which changes and actions belong to what does not begin. Never touches the state, which
//! undoes its own part (`state::undoing`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Action, Beginning, Effects};
use crate::events::{Event, Kind};
use crate::process::Record;
use crate::store::Change;
use crate::supervisor::error::Error;

/// What is not to be: of each process, by its birth, the first run of it.
struct Forgotten(HashMap<u64, u32>);

impl Forgotten {
    fn new(begun: &[Beginning]) -> Forgotten {
        let mut first = HashMap::new();
        for Beginning { birth, run, .. } in begun {
            let known = first.entry(*birth).or_insert(*run);
            *known = (*known).min(*run);
        }
        Forgotten(first)
    }

    /// The record is that of a run that is not to be.
    fn has(&self, record: &Record) -> bool {
        self.0.get(&record.birth).is_some_and(|first| record.run >= *first)
    }

    /// The process itself is not to be.
    fn never_was(&self, record: &Record) -> bool {
        self.0.get(&record.birth) == Some(&1)
    }

    /// That one is deleted stands, though its last run is not to be.
    fn has_event(&self, event: &Event) -> bool {
        self.has(&event.record) && (event.kind != Kind::Deleted || self.never_was(&event.record))
    }

    fn has_action(&self, action: &Action) -> bool {
        match action {
            Action::Enter(entry) => self.0.contains_key(&entry.seen().record.birth),
            Action::Publish(_, seen) => {
                self.has(&seen.record) && (!seen.removed || self.never_was(&seen.record))
            }
            Action::Leave(record) => self.never_was(record),
            Action::Tell(event) => self.has_event(event),
            // That of the run before, which stands.
            Action::RemoveTranscript { birth, run } => {
                self.0.get(birth).is_some_and(|first| run + 1 >= *first)
            }
            Action::Finish(record) | Action::Spawn { record, .. } => self.has(record),
            _ => false,
        }
    }

    /// Refuses what would have been answered with a run that is not to be.
    fn refuse(&self, action: Action, error: &Error) -> Result<Action, Action> {
        match action {
            Action::AnswerStart(reply, Ok(begun)) => {
                let record = begun.entry.seen().record;
                let known = self.0.contains_key(&record.birth);
                if known && (!begun.existed || self.never_was(&record)) {
                    return Err(Action::AnswerStart(reply, Err(error.clone())));
                }
                Ok(Action::AnswerStart(reply, Ok(begun)))
            }
            Action::AnswerKill(reply, Ok(killed)) if self.has(&killed.seen.record) => {
                Err(Action::AnswerKill(reply, Err(error.clone())))
            }
            action => Ok(action),
        }
    }
}

impl Effects {
    /// How many events are to be committed.
    pub(in crate::supervisor) fn events(&self) -> u64 {
        self.changes.iter().filter(|change| matches!(change, Change::Event(_))).count() as u64
    }

    /// Forgets what will not exist, with all that was to be done for it. Who asked for it is
    /// refused by what comes back.
    pub(in crate::supervisor) fn forget(&mut self, begun: &[Beginning], error: &Error) -> Effects {
        let forgotten = Forgotten::new(begun);
        // The id of one that is not to be may have been another's before: that one goes.
        let mut inserted = HashSet::new();
        self.changes.retain(|change| match change {
            Change::Insert(record) => {
                let keep = !forgotten.has(record);
                if !keep {
                    inserted.insert(Arc::clone(&record.id));
                }
                keep
            }
            Change::Update(record) => !forgotten.has(record),
            Change::Remove(id) => !inserted.remove(id),
            Change::Event(event) => !forgotten.has_event(event),
        });
        let mut refused = Effects::default();
        for action in std::mem::take(&mut self.actions) {
            if forgotten.has_action(&action) {
                continue;
            }
            match forgotten.refuse(action, error) {
                Ok(kept) => self.actions.push(kept),
                Err(refusal) => refused.actions.push(refusal),
            }
        }
        refused
    }

    /// Numbers the events anew from `next` on, as some of them are not to be: watchers take a
    /// hole for a loss. Nobody has seen any of them. Tells the number after the last.
    pub(in crate::supervisor) fn renumber(&mut self, mut next: u64) -> u64 {
        let mut renumbered = HashMap::new();
        for change in &mut self.changes {
            let Change::Event(event) = change else { continue };
            if event.seq != next {
                let anew = Arc::new(Event { seq: next, ..Event::clone(event) });
                renumbered.insert(event.seq, Arc::clone(&anew));
                *event = anew;
            }
            next += 1;
        }
        for action in &mut self.actions {
            if let Action::Tell(event) = action
                && let Some(anew) = renumbered.get(&event.seq)
            {
                *event = Arc::clone(anew);
            }
        }
        next
    }
}
