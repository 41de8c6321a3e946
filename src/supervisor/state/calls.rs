//! What calls ask for: starting, ending and freeing processes.

use std::sync::Arc;

use super::ending::kill_rest;
use super::slot::{add_waiter, printed, service_key};
use super::{Call, Now, Slot, Starter, State, StopOrder, tell};
use crate::access::Caller;
use crate::process::lifecycle::{Happening, Order};
use crate::process::{self, Cause, End, Kind, Life, Phase, Record, Restarts, Selector, Spec};
use crate::store::Change;
use crate::supervisor::effects::{
    Action, Before, Beginning, Begun, Effects, Killed, Receiver, Reply,
};
use crate::supervisor::error::Error;
use crate::supervisor::queue::Waiter;
use crate::supervisor::seeing::{is_killed_by, reaches};

impl State {
    /// Does what a caller asks for, with what is there for it. Decided here, where it is done: an
    /// id may be freed, and taken by another owner, at any time before.
    pub(super) fn call(&mut self, caller: &Caller, call: Call, now: Now, then: &mut Effects) {
        match call {
            Call::Start { id, spec, starter } => self.start(caller, id, *spec, starter, now, then),
            Call::Kill { id, stop, reply } => match self.reach(caller, &id) {
                Ok(id) => self.kill(&id, stop, reply, now, then),
                Err(absent) => then.actions.push(Action::AnswerKill(reply, Err(absent))),
            },
            Call::KillAll { selector, found, stop, reply } => {
                let mut meant: Vec<_> = found
                    .iter()
                    .filter_map(|record| self.still_meant(caller, &selector, record))
                    .collect();
                meant.sort_unstable();
                self.kill_all(meant, stop, reply, now, then);
            }
            Call::Run { id, force, reply } => self.run(caller, &id, force, reply, now, then),
            Call::Delete { id, force, reply } => match self.reach(caller, &id) {
                Ok(id) => self.delete(&id, force, reply, now, then),
                Err(absent) => then.actions.push(Action::AnswerDelete(reply, Err(absent))),
            },
        }
    }

    /// The id of a process that is there for a caller.
    fn reach(&self, caller: &Caller, id: &str) -> Result<Arc<str>, Error> {
        let slot = self.slots.get(id).filter(|slot| reaches(caller, &slot.record));
        slot.map(|slot| Arc::clone(&slot.record.id)).ok_or_else(|| Error::NotFound(id.into()))
    }

    fn start(
        &mut self,
        caller: &Caller,
        id: Option<String>,
        spec: Spec,
        starter: Starter,
        now: Now,
        then: &mut Effects,
    ) {
        if let Some(slot) = id.as_deref().and_then(|id| self.slots.get_mut(id)) {
            // One that the caller does not see has another owner or workspace, and so another spec.
            if !reaches(caller, &slot.record) || *slot.record.spec != spec {
                let id = slot.record.id.to_string();
                then.actions.push(Action::AnswerStart(starter.reply, Err(Error::IdConflict(id))));
            } else if slot.record.state() == process::State::Starting
                && slot.record.spec.queue.is_empty()
            {
                let starter = Starter { existed: true, ..starter };
                add_waiter(&mut slot.waiting.starts, starter, |starter| starter.reply.is_closed());
            } else {
                let begun = Begun { entry: Arc::clone(&slot.entry), existed: true };
                then.actions.push(Action::AnswerStart(starter.reply, Ok(begun)));
            }
            return;
        }
        if let Err(refused) = self.admit_start(caller, &spec, now) {
            then.actions.push(Action::AnswerStart(starter.reply, Err(refused)));
            return;
        }
        let record = Arc::new(Record {
            id: id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string()).into(),
            birth: self.next_birth,
            spec: Arc::new(spec),
            by: caller.name.clone(),
            run: 1,
            launch: 1,
            printing: 0,
            first_seq: 1,
            archive: None,
            restarts: Restarts::default(),
            create_time: now.wall,
            unkillable: Vec::new(),
            keeper: None,
            unasked: false,
            phase: Phase::Starting,
        });
        self.next_birth += 1;
        let id = Arc::clone(&record.id);
        let slot = Slot::new(record, Life::new(), None);
        let entry = Arc::clone(&slot.entry);
        self.slots.insert(Arc::clone(&id), slot);
        then.actions.push(Action::Enter(entry));
        self.enlist(&id, None, starter, now, then);
    }

    /// Whether a caller may begin one like this; if so, its start is counted.
    fn admit_start(&mut self, caller: &Caller, spec: &Spec, now: Now) -> Result<(), Error> {
        self.may_begin(caller, spec)?;
        self.usage.admit(&caller.name, spec, now.moment)
    }

    /// Why one like this cannot begin now, or wait for its turn.
    fn may_begin(&self, caller: &Caller, spec: &Spec) -> Result<(), Error> {
        if self.shutting_down {
            return Err(Error::ShuttingDown);
        }
        if let Some(failing) = &self.failing {
            return Err(Error::Store(failing.clone()));
        }
        if let Some(key) = service_key(spec)
            && let Some(id) = self.services.get(&key)
        {
            return Err(Error::ServiceRunning { service: key.0, id: id.to_string() });
        }
        self.queues.check(&caller.name, &spec.queue, spec.bytes())?;
        if self.queues.may_begin(&spec.queue) {
            self.spawns.check(&caller.name, spec.bytes())?;
        }
        Ok(())
    }

    /// Counts a new or a renewed process among the living, and has it started, or lets it wait.
    fn enlist(
        &mut self,
        id: &Arc<str>,
        before: Option<Before>,
        starter: Starter,
        now: Now,
        then: &mut Effects,
    ) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Record { birth, run, .. } = *slot.record;
        then.begun.push(Beginning { id: Arc::clone(id), birth, run, before });
        slot.count(&mut self.usage);
        self.services.extend(slot.service_key().map(|key| (key, Arc::clone(id))));
        let new = slot.record.launch == 1;
        let queue = slot.record.spec.queue.clone();
        let change = if new { Change::Insert } else { Change::Update };
        if self.queues.may_begin(&queue) {
            self.queues.begin(&queue);
            slot.begins(&mut self.spawns, self.keeper.id(), now.moment);
            slot.waiting.starts.push(starter);
            then.changes.push(change(Arc::clone(&slot.record)));
            return self.spawn(id, then);
        }
        let ticket = self.next_event;
        slot.life = Life::Queued;
        slot.set_phase(Phase::Queued { ticket });
        slot.place = Some(self.queues.wait(&queue, ticket, Waiter::new(&slot.record)));
        then.changes.push(change(Arc::clone(&slot.record)));
        then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
        tell(Kind::Queued, slot, &mut self.next_event, now, then);
        let begun = Begun { entry: Arc::clone(&slot.entry), existed: false };
        then.actions.push(Action::AnswerStart(starter.reply, Ok(begun)));
    }

    /// Runs a finished process again: its record begins anew, and what it left is freed.
    fn run(
        &mut self,
        caller: &Caller,
        id: &str,
        force: bool,
        reply: Reply<Begun>,
        now: Now,
        then: &mut Effects,
    ) {
        let end = match self.may_run(caller, id, force, now) {
            Ok(end) => end,
            Err(error) => return then.actions.push(Action::AnswerStart(reply, Err(error))),
        };
        let Some(slot) = self.slots.get_mut(id) else { return };
        let id = Arc::clone(&slot.record.id);
        self.finished.remove(end.time, slot.record.birth);
        let first_seq = slot.next_seq();
        slot.leave_disk(then);
        let before = Before { record: Arc::clone(&slot.record), held: slot.held.clone() };
        if let Some(held) = slot.held.take() {
            self.keys.remove(&held.key);
            slot.outdated = Some(held);
        }
        (slot.life, slot.started, slot.not_ready) = (Life::new(), None, String::new());
        slot.change(|record| {
            record.by.clone_from(&caller.name);
            record.run += 1;
            record.launch += 1;
            record.printing = 0;
            record.first_seq = first_seq;
            record.archive = None;
            record.unasked = false;
            record.restarts = Restarts::default();
            record.unkillable = Vec::new();
            record.phase = Phase::Starting;
        });
        then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
        then.actions.push(Action::Enter(Arc::clone(&slot.entry)));
        tell(Kind::RunAgain, slot, &mut self.next_event, now, then);
        let starter = Starter { reply, patient: false, existed: false };
        self.enlist(&id, Some(before), starter, now, then);
    }

    /// How a process ended that may be run again.
    fn may_run(&mut self, caller: &Caller, id: &str, force: bool, now: Now) -> Result<End, Error> {
        let slot = self.slots.get_mut(id).filter(|slot| reaches(caller, &slot.record));
        let slot = slot.ok_or_else(|| Error::NotFound(id.into()))?;
        // Who may not choose how it runs does not make it run so.
        caller.grant.may.allow(&slot.record.spec)?;
        let end = slot.record.end().ok_or_else(|| Error::StillRunning(id.into()))?;
        // Descendants may have printed since.
        if !force && (printed(slot).bytes > 0 || end.printed.bytes > 0 || end.output.is_some()) {
            return Err(Error::HasOutput(id.into()));
        }
        let (end, spec) = (end.clone(), Arc::clone(&slot.record.spec));
        // It takes the place of whoever prints on.
        slot.count_no_more(&mut self.usage);
        let admitted = self.admit_start(caller, &spec, now);
        if let (Err(_), Some(slot)) = (&admitted, self.slots.get_mut(id)) {
            slot.count(&mut self.usage);
        }
        admitted.map(|()| end)
    }

    /// A live process that was found to be meant by a selector, if it still is. One whose record is the same needs
    /// no other look at it.
    fn still_meant(
        &self,
        caller: &Caller,
        selector: &Selector,
        found: &Arc<Record>,
    ) -> Option<(u64, Arc<str>)> {
        let record = &self.slots.get(&found.id)?.record;
        let is_meant = Arc::ptr_eq(record, found) || is_killed_by(selector, caller, record);
        is_meant.then(|| (record.birth, Arc::clone(&record.id)))
    }

    /// Ends processes in the order in which they were made.
    fn kill_all(
        &mut self,
        meant: Vec<(u64, Arc<str>)>,
        order: StopOrder,
        reply: Reply<Vec<Receiver<Killed>>>,
        now: Now,
        then: &mut Effects,
    ) {
        // What waits for one of them does not begin only to be ended.
        self.closed = true;
        let mut answers = Vec::new();
        for (_, id) in meant {
            let (reply, answer) = tokio::sync::oneshot::channel();
            self.kill(&id, order, reply, now, then);
            answers.push(answer);
        }
        self.closed = false;
        then.actions.push(Action::AnswerKillAll(reply, answers));
        self.admit(now, then);
    }

    fn kill(
        &mut self,
        id: &Arc<str>,
        order: StopOrder,
        reply: Reply<Killed>,
        now: Now,
        then: &mut Effects,
    ) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if slot.record.end().is_none() {
            add_waiter(&mut slot.waiting.kills, reply, Reply::is_closed);
            let stop = order.over(slot.record.spec.stop);
            self.happen(id, Happening::Stop(Order { why: Cause::Killed, stop }), now, then);
            return;
        }
        let seen = slot.seen();
        match slot.rest() {
            Some(key) => kill_rest(&mut self.rest_kills, key, seen, reply, then),
            None => {
                let killed = Killed { seen, reached: Vec::new() };
                then.actions.push(Action::AnswerKill(reply, Ok(killed)));
            }
        }
    }

    fn delete(
        &mut self,
        id: &Arc<str>,
        force: bool,
        reply: Reply<()>,
        now: Now,
        then: &mut Effects,
    ) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if slot.record.end().is_some() {
            self.remove(id, now, then);
            then.actions.push(Action::AnswerDelete(reply, Ok(())));
        } else if force {
            let stop = StopOrder::FORCE.over(slot.record.spec.stop);
            add_waiter(&mut slot.waiting.deletes, reply, Reply::is_closed);
            self.happen(id, Happening::Stop(Order { why: Cause::Killed, stop }), now, then);
        } else {
            let error = Error::StillRunning(id.to_string());
            then.actions.push(Action::AnswerDelete(reply, Err(error)));
        }
    }
}
