//! How processes begin: their turn, their launch, and what the keeper says to it.

use std::sync::Arc;

use super::slot::running;
use super::{MADE_WAY, Now, Starter, State};
use crate::keeper_client::Spawned;
use crate::process::lifecycle::Happening;
use crate::process::{Phase, Record, Started};
use crate::store::Change;
use crate::supervisor::effects::{Action, Begun, Effects};
use crate::supervisor::error::Error;
use crate::supervisor::registry::Held;

impl State {
    /// Lets those begin for whom there is room.
    pub(super) fn admit(&mut self, now: Now, then: &mut Effects) {
        while !self.shutting_down
            && !self.closed
            && let Some(id) = self.queues.next()
        {
            let Some(slot) = self.slots.get_mut(&id) else { return };
            let queue = &slot.record.spec.queue;
            if let Some(place) = slot.place.take() {
                self.queues.leave(queue, place.ticket);
            }
            self.queues.begin(queue);
            self.happen(&id, Happening::Admitted, now, then);
        }
    }

    /// Has a process started whose turn or whose time has come.
    pub(super) fn launch(&mut self, id: &Arc<str>, now: Now, then: &mut Effects) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let again = matches!(slot.record.phase, Phase::Backoff { .. });
        let first_seq = slot.next_seq();
        (slot.started, slot.not_ready) = (None, String::new());
        slot.change(|record| {
            record.launch += u32::from(again);
            record.first_seq = first_seq;
            record.unkillable = Vec::new();
            record.phase = Phase::Starting;
        });
        slot.begins(self.keeper.id(), now.moment);
        then.changes.push(Change::Update(Arc::clone(&slot.record)));
        then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
        self.spawn(id, then);
    }

    /// Asks the keeper. What it holds of an earlier launch goes on.
    pub(super) fn spawn(&mut self, id: &Arc<str>, then: &mut Effects) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let (record, earlier) = (Arc::clone(&slot.record), slot.earlier());
        then.actions.push(Action::Spawn { record, earlier });
        self.starting += 1;
    }

    pub(super) fn spawned(
        &mut self,
        id: &Arc<str>,
        result: Result<Spawned, Error>,
        now: Now,
        then: &mut Effects,
    ) {
        self.starting -= 1;
        if self.starting == 0 {
            self.early.clear();
        }
        let spawned = match result {
            Ok(spawned) => spawned,
            Err(Error::OutOfDescriptors | Error::TooManyProcesses) if self.make_way(now, then) => {
                return self.spawn(id, then);
            }
            Err(error) => return self.not_started(id, &error, now, then),
        };
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Spawned { key, pid, start_time, output, existed: _, continued: _ } = spawned;
        if let Some(earlier) = slot.held.replace(Held { key, output }) {
            self.keys.remove(&earlier.key);
        }
        self.keys.insert(key, Arc::clone(id));
        slot.begun(Started { pid, time: start_time, moment: now.moment, ready: None });
        then.actions.extend(slot.outdated.take().map(|held| Action::Release(held.key)));
        let starts = std::mem::take(&mut slot.waiting.starts);
        let entry = Arc::clone(&slot.entry);
        self.goes_on(id, now, then);
        let runs = self.slots.get(id).is_some_and(|slot| slot.life.is_running());
        then.patient = runs && starts.iter().all(|starter| starter.patient);
        for Starter { reply, existed, .. } in starts {
            let begun = Begun { entry: Arc::clone(&entry), existed };
            then.actions.push(Action::AnswerStart(reply, Ok(begun)));
        }
    }

    /// It has been started: its time runs, and it is found out when it is ready.
    pub(super) fn goes_on(&mut self, id: &Arc<str>, now: Now, then: &mut Effects) {
        let Some(slot) = self.slots.get(id) else { return };
        let Some(started) = slot.started else { return };
        let running = running(&slot.record.spec, started);
        self.happen(id, Happening::Started(running), now, then);
        self.probe(id, then);
    }

    /// Finds out when a process is ready, if it is not yet.
    pub(super) fn probe(&self, id: &Arc<str>, then: &mut Effects) {
        let Some(slot) = self.slots.get(id) else { return };
        if let (true, false, Some(held)) =
            (slot.life.is_running(), slot.record.is_ready(), &slot.held)
        {
            let (record, entry) = (Arc::clone(&slot.record), Arc::clone(&slot.entry));
            then.actions.push(Action::Probe { record, entry, held: held.clone() });
        }
    }

    /// The probe of a launch was met; it may be over by now.
    pub(super) fn ready(&mut self, id: &Arc<str>, launch: u32, now: Now, then: &mut Effects) {
        let Some(slot) = self.slots.get(id) else { return };
        if slot.record.launch == launch && !slot.record.is_ready() {
            self.happen(id, Happening::Ready, now, then);
        }
    }

    /// Keeps why the probe of a launch is not met, for the record should that remain so.
    pub(super) fn not_ready(&mut self, id: &Arc<str>, launch: u32, why: String) {
        let slot = self.slots.get_mut(id).filter(|slot| slot.record.launch == launch);
        if let Some(slot) = slot {
            slot.not_ready = why;
        }
    }

    /// Frees some of the finished processes of which the keeper holds something, oldest first: the
    /// living go before the dead. False: there are none.
    fn make_way(&mut self, now: Now, then: &mut Effects) -> bool {
        let held = |id: &&Arc<str>| self.slots.get(*id).is_some_and(|slot| slot.held.is_some());
        let oldest = self.finished.oldest_first().filter(held).take(MADE_WAY);
        let oldest: Vec<Arc<str>> = oldest.cloned().collect();
        for id in &oldest {
            tracing::warn!(process = %id, "freed before its time: the keeper can hold no more");
            self.remove(id, now, then);
        }
        !oldest.is_empty()
    }

    /// A process that never was leaves no record, as long as whoever asked for it can be told. One
    /// from a queue, and one that has run before, has a record that tells it.
    fn not_started(&mut self, id: &Arc<str>, error: &Error, now: Now, then: &mut Effects) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Record { launch, spec, .. } = &*slot.record;
        let queued = !spec.queue.is_empty();
        if *launch > 1 || queued || slot.waiting.starts.is_empty() {
            let starts = std::mem::take(&mut slot.waiting.starts);
            let entry = Arc::clone(&slot.entry);
            let detail = error.to_string();
            self.happen(id, Happening::StartFailed { detail }, now, then);
            then.actions.extend(starts.into_iter().map(|Starter { reply, existed, .. }| {
                let begun = Begun { entry: Arc::clone(&entry), existed };
                let answer = if queued || existed { Ok(begun) } else { Err(error.clone()) };
                Action::AnswerStart(reply, answer)
            }));
            return;
        }
        if spec.is_script() {
            then.actions.push(Action::RemoveScript(Arc::clone(&slot.record)));
        }
        let Some(mut slot) = self.slots.remove(id) else { return };
        slot.leave(then);
        self.live_no_more(&mut slot);
        slot.waiting.fail(id, error, then);
        self.admit(now, then);
        self.over(then);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::super::Input;
    use super::super::archiving::tests::{NOW, run, state};
    use super::*;
    use crate::supervisor::retention::Keep;

    const KEEP: Keep = Keep { count: 100, age: Duration::from_secs(3600), bytes: u64::MAX };

    #[test]
    fn what_descendants_of_the_run_before_printed_is_counted_though_the_next_cannot_be_started() {
        let (mut state, _, ring) = state(KEEP);
        drop(run(&mut state, "a"));
        ring.header().next_seq.store(9, Ordering::Relaxed);
        let id = Arc::clone(&state.slots["a"].record.id);
        let result = Err(Error::Store("no script".into()));
        let effects = state.apply(Input::Spawned { id, result }, NOW);
        let end = state.slots["a"].record.end().expect("it could not be started");
        assert_eq!((end.printed.next_seq, end.printed.bytes), (9, 0));
        let freed = |action: &Action| matches!(action, Action::KillStray { key: 1, .. });
        assert_eq!(effects.actions.iter().filter(|action| freed(action)).count(), 1);
    }
}
