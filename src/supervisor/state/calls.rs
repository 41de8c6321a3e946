//! What calls ask for: starting, ending and freeing processes.

use std::sync::Arc;

use super::{Now, Slot, Starter, State, StopOrder};
use crate::process::lifecycle::{Happening, Order};
use crate::process::{Cause, Life, Phase, Record, Spec};
use crate::store::Change;
use crate::supervisor::effects::{Action, Begun, Effects, Killed, Reply};
use crate::supervisor::error::Error;

impl State {
    pub(super) fn start(
        &mut self,
        id: Option<String>,
        spec: Spec,
        starter: Starter,
        now: Now,
        then: &mut Effects,
    ) {
        if let Some(slot) = id.as_deref().and_then(|id| self.slots.get_mut(id)) {
            if *slot.record.spec != spec {
                let id = slot.record.id.to_string();
                then.actions.push(Action::AnswerStart(starter.reply, Err(Error::IdConflict(id))));
            } else if slot.started.is_none() && slot.record.end().is_none() {
                slot.waiting.starts.push(Starter { existed: true, ..starter });
            } else {
                let begun = Begun { entry: Arc::clone(&slot.entry), existed: true };
                then.actions.push(Action::AnswerStart(starter.reply, Ok(begun)));
            }
            return;
        }
        if let Some(refused) = self.refusal() {
            then.actions.push(Action::AnswerStart(starter.reply, Err(refused)));
            return;
        }
        let record = Arc::new(Record {
            id: id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string()).into(),
            birth: self.next_birth,
            spec: Arc::new(spec),
            run: 1,
            create_time: now.wall,
            phase: Phase::Starting,
        });
        self.next_birth += 1;
        let mut slot = Slot::new(Arc::clone(&record), Life::new(), None);
        slot.waiting.starts.push(starter);
        then.changes.push(Change::Insert(Arc::clone(&record)));
        then.begun.push(Arc::clone(&record.id));
        then.actions.push(Action::Enter(Arc::clone(&slot.entry)));
        then.actions.push(Action::Spawn(Arc::clone(&record)));
        self.slots.insert(Arc::clone(&record.id), slot);
        self.live += 1;
        self.starting += 1;
    }

    /// Why nothing new can begin.
    fn refusal(&self) -> Option<Error> {
        if self.shutting_down {
            return Some(Error::ShuttingDown);
        }
        self.failing.clone().map(Error::Store)
    }

    pub(super) fn kill(
        &mut self,
        id: &str,
        order: StopOrder,
        reply: Reply<Killed>,
        now: Now,
        then: &mut Effects,
    ) {
        let Some(slot) = self.slots.get_mut(id) else {
            then.actions.push(Action::AnswerKill(reply, Err(Error::NotFound(id.into()))));
            return;
        };
        let Some(end) = slot.record.end() else {
            slot.waiting.kills.push(reply);
            let id = Arc::clone(&slot.record.id);
            let stop = order.over(slot.record.spec.stop);
            self.happen(&id, Happening::Stop(Order { why: Cause::Killed, stop }), now, then);
            return;
        };
        let lingers = end.exit.as_ref().is_some_and(|exit| !exit.lingering.is_empty());
        let seen = slot.seen();
        then.actions.push(match &slot.held {
            Some(held) if lingers => Action::KillRest { key: held.key, seen, reply },
            _ => Action::AnswerKill(reply, Ok(Killed { seen, reached: Vec::new() })),
        });
    }

    pub(super) fn delete(
        &mut self,
        id: &str,
        force: bool,
        reply: Reply<()>,
        now: Now,
        then: &mut Effects,
    ) {
        let Some(slot) = self.slots.get_mut(id) else {
            then.actions.push(Action::AnswerDelete(reply, Err(Error::NotFound(id.into()))));
            return;
        };
        let key = Arc::clone(&slot.record.id);
        if slot.record.end().is_some() {
            self.remove(&key, now, then);
            then.actions.push(Action::AnswerDelete(reply, Ok(())));
        } else if force {
            let stop = StopOrder::FORCE.over(slot.record.spec.stop);
            slot.waiting.deletes.push(reply);
            self.happen(&key, Happening::Stop(Order { why: Cause::Killed, stop }), now, then);
        } else {
            let error = Error::StillRunning(id.into());
            then.actions.push(Action::AnswerDelete(reply, Err(error)));
        }
    }
}
