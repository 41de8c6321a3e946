//! How processes end: for good, or until they are started again; and how their records go.

use std::collections::HashMap;
use std::sync::Arc;

use super::archiving::archive;
use super::slot::{Slot, Waiting, add_waiter, end, release_if_empty, service_key};
use super::{Now, State, tell};
use crate::process::lifecycle::Ended;
use crate::process::restart::Verdict;
use crate::process::{Cause, End, Kind, Life, Moment, Phase, Record, Restarts, TreeSignal};
use crate::store::Change;
use crate::supervisor::effects::{Action, Effects, Killed, Reply};
use crate::supervisor::registry::{Held, Seen};

/// The pause of a service that ends with the supervisor: it is over when the next one begins.
const WITH_THE_NEXT: Moment = 0;

impl State {
    /// A process has ended. A service may be started again.
    pub(super) fn ended(&mut self, id: &Arc<str>, ended: Ended, now: Now, then: &mut Effects) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        slot.reached.clone_from(&ended.reached);
        slot.set_unkillable(ended.unkillable.clone());
        let may = !self.shutting_down && may_go_on(slot, &ended);
        let mut end = end(slot, ended, now.wall);
        if self.shutting_down && comes_back(slot, &end) {
            let restarts = slot.record.restarts.clone();
            self.restart_later(id, end, WITH_THE_NEXT, restarts, now, then);
            return self.over(then);
        }
        match verdict(slot, &end, may, now) {
            (Verdict::Again(until), restarts) => {
                self.restart_later(id, end, until, restarts, now, then);
            }
            (Verdict::GivenUp(why), _) => {
                end.give_up(&why);
                self.finish(id, end, now, then);
            }
            (Verdict::Over, _) => self.finish(id, end, now, then),
        }
    }

    /// A service pauses before it is started again.
    fn restart_later(
        &mut self,
        id: &Arc<str>,
        mut last: End,
        until: Moment,
        restarts: Restarts,
        now: Now,
        then: &mut Effects,
    ) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if slot.record.spec.is_script() {
            then.actions.push(Action::RemoveScript(Arc::clone(&slot.record)));
        }
        slot.life.pause(until);
        last.drop_large_output();
        slot.change(|record| {
            record.restarts = restarts;
            record.phase = Phase::Backoff { last, until };
        });
        then.changes.push(Change::Update(Arc::clone(&slot.record)));
        then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
        tell(Kind::Restarting, slot, &mut self.next_event, now, then);
    }

    /// A process is over: whoever waited for that is answered, and who waits for its place may
    /// have it.
    fn finish(&mut self, id: &Arc<str>, end: End, now: Now, then: &mut Effects) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let time = end.time;
        slot.set_phase(Phase::Exited(end));
        release_if_empty(slot, &mut self.keys, then);
        slot.count(&mut self.usage);
        let place = slot.place.take();
        let by = &slot.record.by;
        let stray = |held: Held| {
            let (id, by) = (Arc::clone(id), by.clone());
            Action::KillStray { id, by, key: held.key }
        };
        then.actions.extend(slot.outdated.take().map(stray));
        then.changes.push(Change::Update(Arc::clone(&slot.record)));
        then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
        tell(Kind::Completed, slot, &mut self.next_event, now, then);
        then.actions.push(Action::Finish(Arc::clone(&slot.record)));
        if slot.record.spec.is_script() {
            then.actions.push(Action::RemoveScript(Arc::clone(&slot.record)));
        }
        // What SIGKILL has not ended is named, and not killed once more.
        let rest = slot.rest().filter(|_| slot.record.unkillable.is_empty());
        if !slot.record.unkillable.is_empty() {
            slot.refuse_deletes(then);
        }
        // Those who asked for the start were answered when it had started.
        let Waiting { starts: _, kills, deletes } = std::mem::take(&mut slot.waiting);
        let (seen, reached) = (slot.seen(), std::mem::take(&mut slot.reached));
        for reply in kills {
            match rest {
                Some(key) => kill_rest(&mut self.rest_kills, key, seen.clone(), reply, then),
                None => {
                    let killed = Killed { seen: seen.clone(), reached: reached.clone() };
                    then.actions.push(Action::AnswerKill(reply, Ok(killed)));
                }
            }
        }
        self.finished.insert(time, slot.record.birth, &slot.record.id, slot.footprint());
        let record = Arc::clone(&slot.record);
        self.free(&record, place.map(|place| place.ticket));
        self.remove_for(id, deletes, rest, now, then);
        self.retain(now, then);
        // Unless it was freed with that.
        if let Some(slot) = self.slots.get(id) {
            archive(slot, &mut self.archiving, then);
        }
        self.admit(now, then);
        self.over(then);
    }

    /// Descendants that outlived a finished process were killed, as far as SIGKILL ends them.
    pub(super) fn rest_killed(
        &mut self,
        key: u64,
        mut seen: Seen,
        outcome: TreeSignal,
        then: &mut Effects,
    ) {
        let TreeSignal { members: reached, unkillable, .. } = outcome;
        let Record { birth, launch, .. } = *seen.record;
        let same = |slot: &&mut Slot| (slot.record.birth, slot.record.launch) == (birth, launch);
        if let Some(slot) = self.slots.get_mut(&seen.record.id).filter(same) {
            if slot.set_unkillable(unkillable) {
                then.changes.push(Change::Update(Arc::clone(&slot.record)));
                then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
            }
            seen = slot.seen();
        }
        for reply in self.rest_kills.remove(&key).unwrap_or_default() {
            let killed = Killed { seen: seen.clone(), reached: reached.clone() };
            then.actions.push(Action::AnswerKill(reply, Ok(killed)));
        }
    }

    /// A process that an earlier keeper could not end has ended: how is not known.
    pub(super) fn leftover_ended(&mut self, id: &Arc<str>, now: Now, then: &mut Effects) {
        let slot = self.slots.get_mut(id).filter(|slot| slot.life.ending().is_some());
        if let Some(slot) = slot {
            slot.life = Life::Exited;
            self.ended(id, Ended::without_exit(Cause::Lost), now, then);
            self.set_timer(id);
        }
    }

    /// What a live process had is free: its place in the queue, its name as a service.
    pub(super) fn live_no_more(&mut self, slot: &mut Slot) {
        slot.count_no_more(&mut self.usage);
        let ticket = slot.place.as_ref().map(|place| place.ticket);
        self.free(&slot.record, ticket);
    }

    fn free(&mut self, record: &Record, ticket: Option<u64>) {
        let spec = &record.spec;
        match ticket {
            Some(ticket) => self.queues.leave(&spec.queue, ticket),
            None => self.queues.end(&spec.queue),
        }
        if let Some(service) = service_key(spec) {
            self.services.remove(&service);
        }
    }

    /// Frees the oldest finished processes, as many as are too many.
    pub(super) fn retain(&mut self, now: Now, then: &mut Effects) {
        while let Some(id) = self.finished.excess(&self.keep, now.wall) {
            self.remove(&id, now, then);
        }
    }

    /// Frees a process that was to end for that, and whoever outlived it.
    fn remove_for(
        &mut self,
        id: &Arc<str>,
        replies: Vec<Reply<()>>,
        rest: Option<u64>,
        now: Now,
        then: &mut Effects,
    ) {
        if replies.is_empty() {
            return;
        }
        if let (Some(key), Some(slot)) = (rest, self.slots.get_mut(id)) {
            slot.held = None;
            let (id, by) = (Arc::clone(id), slot.record.by.clone());
            self.keys.remove(&key);
            self.remove(&id, now, then);
            return then.actions.push(Action::FreeRest { id, by, key, replies });
        }
        self.remove(id, now, then);
        then.actions.extend(replies.into_iter().map(|reply| Action::AnswerDelete(reply, Ok(()))));
    }

    /// Frees a finished process.
    pub(super) fn remove(&mut self, id: &Arc<str>, now: Now, then: &mut Effects) {
        let Some(mut slot) = self.slots.remove(id) else { return };
        slot.count_no_more(&mut self.usage);
        let time = slot.record.end().map_or(0, |end| end.time);
        self.finished.remove(time, slot.record.birth);
        slot.leave(then);
        slot.leave_disk(then);
        if let Some(held) = &slot.held {
            self.keys.remove(&held.key);
            then.actions.push(Action::Release(held.key));
        }
        tell(Kind::Deleted, &slot, &mut self.next_event, now, then);
    }

    pub(super) fn over(&self, then: &mut Effects) {
        let over = |slot: &Slot| {
            slot.record.end().is_some() || slot.rests() || slot.life.has_unkillable_leader()
        };
        if self.shutting_down && self.archiving.is_empty() && self.slots.values().all(over) {
            then.actions.push(Action::AllOver);
        }
    }
}

/// Has the descendants killed that outlived a finished process. A call that comes while that is under way
/// waits for the same answer.
pub(super) fn kill_rest(
    under_way: &mut HashMap<u64, Vec<Reply<Killed>>>,
    key: u64,
    seen: Seen,
    reply: Reply<Killed>,
    then: &mut Effects,
) {
    let waiters = under_way.entry(key).or_default();
    if waiters.is_empty() {
        then.actions.push(Action::KillRest { key, seen });
    }
    add_waiter(waiters, reply, Reply::is_closed);
}

/// Whether one that has ended may be started again, if its policy says so. One that could not even
/// be started once is not tried again.
fn may_go_on(slot: &Slot, ended: &Ended) -> bool {
    let never_began = ended.cause == Cause::StartFailed && slot.record.printing == 0;
    !ended.for_good && !slot.waiting.for_its_end() && !never_began
}

/// Whether one that ends while the supervisor does is started again by the next: because it ends
/// with it, or would have been started again anyway.
fn comes_back(slot: &Slot, end: &End) -> bool {
    let service = slot.record.spec.service.as_ref();
    let again = service.is_some_and(|service| service.restart.policy.wants(end.outcome()));
    // One that was not even asked for has not failed to start.
    let began = slot.record.printing > 0 || slot.record.unasked;
    slot.comes_back() && began && (again || end.cause == Cause::Shutdown)
}

/// What becomes of a process that has ended, and how often it was started again then.
fn verdict(slot: &Slot, end: &End, may: bool, now: Now) -> (Verdict, Restarts) {
    let mut restarts = slot.record.restarts.clone();
    let verdict = match &slot.record.spec.service {
        Some(service) if may => {
            let started = slot.started.map(|started| started.moment);
            restarts.ended(&service.restart, end.outcome(), started, now.moment, now.chance())
        }
        _ => Verdict::Over,
    };
    (verdict, restarts)
}
