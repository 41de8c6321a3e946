//! How processes begin: their turn, their launch, and what the keeper says to it.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::slot::running;
use super::{MADE_WAY, Now, Starter, State};
use crate::keeper_client::Spawned;
use crate::process::lifecycle::Happening;
use crate::process::{Phase, Record, Started};
use crate::store::Change;
use crate::supervisor::effects::{Action, Begun, Effects};
use crate::supervisor::error::Error;
use crate::supervisor::registry::Held;
use crate::supervisor::spawn_limit::{NextSpawn, Pending};

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
        slot.begins(&mut self.spawns, self.keeper.id(), now.moment);
        then.changes.push(Change::Update(Arc::clone(&slot.record)));
        then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
        self.spawn(id, then);
    }

    /// Asks the keeper for a launch, unless that waits. What the keeper holds of an earlier launch continues.
    pub(super) fn spawn(&mut self, id: &Arc<str>, then: &mut Effects) {
        let Some(slot) = self.slots.get(id).filter(|slot| slot.spawn_ticket.is_none()) else {
            return;
        };
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
        let full = matches!(result, Err(Error::OutOfDescriptors | Error::TooManyProcesses));
        if full && self.make_way(now, then) {
            return self.spawn(id, then);
        }
        if let Some(slot) = self.slots.get(id) {
            self.spawns.end(&slot.record.by, slot.record.spec.bytes());
        }
        match result {
            Ok(spawned) => self.started(id, spawned, now, then),
            Err(error) => self.not_started(id, &error, now, then),
        }
        self.spawn_waiting(then);
    }

    /// An attempt of a readiness command begins, or waits as the launches of its caller do.
    pub(super) fn attempt(
        &mut self,
        caller: &str,
        bytes: usize,
        begin: oneshot::Sender<()>,
        then: &mut Effects,
    ) {
        let attempt = self.spawns.begin_attempt_or_wait(caller, bytes, begin);
        then.actions.extend(attempt.map(Action::BeginAttempt));
    }

    /// The keeper has answered an attempt, or was not asked.
    pub(super) fn attempt_answered(&mut self, caller: &str, bytes: usize, then: &mut Effects) {
        self.spawns.end(caller, bytes);
        self.spawn_waiting(then);
    }

    /// Asks the keeper for the launches that have waited for that, as many as may be.
    pub(super) fn spawn_waiting(&mut self, then: &mut Effects) {
        while let Some(NextSpawn { pending, caller, bytes }) = self.spawns.next() {
            let id = match pending {
                Pending::Process(id) => id,
                Pending::Attempt(attempt) => {
                    then.actions.push(Action::BeginAttempt(attempt));
                    continue;
                }
            };
            let Some(slot) = self.slots.get_mut(&id) else {
                self.spawns.end(&caller, bytes);
                continue;
            };
            slot.spawn_ticket = None;
            // Committed before the keeper is asked: from then on the launch may have been executed.
            slot.change(|record| record.unasked = false);
            then.changes.push(Change::Update(Arc::clone(&slot.record)));
            then.patient = false;
            self.spawn(&id, then);
        }
    }

    /// Ends a process by an order that comes before the keeper was asked for the launch.
    pub(super) fn withdraw(
        &mut self,
        id: &Arc<str>,
        order: Happening,
        now: Now,
        then: &mut Effects,
    ) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Some(ticket) = slot.spawn_ticket.take() else { return };
        self.spawns.withdraw(&slot.record.by, ticket);
        let (starts, entry) = (std::mem::take(&mut slot.waiting.starts), Arc::clone(&slot.entry));
        self.happen(id, order, now, then);
        let detail = "before it was started".into();
        self.happen(id, Happening::StartFailed { detail }, now, then);
        for Starter { reply, existed, .. } in starts {
            let begun = Begun { entry: Arc::clone(&entry), existed };
            then.actions.push(Action::AnswerStart(reply, Ok(begun)));
        }
    }

    fn started(&mut self, id: &Arc<str>, spawned: Spawned, now: Now, then: &mut Effects) {
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

    use tokio::sync::oneshot::channel;

    use super::super::archiving::tests::{NOW, run, state};
    use super::super::{Call, Input, Left, StopOrder};
    use super::*;
    use crate::access::Caller;
    use crate::keeper_client::Report;
    use crate::process::record::tests::record;
    use crate::process::{Cause, KeeperId, Spec};
    use crate::supervisor::effects::{Killed, Receiver};
    use crate::supervisor::queue::Capacity;
    use crate::supervisor::recovery::CurrentKeeper;
    use crate::supervisor::retention::Keep;
    use crate::supervisor::spawn_limit::MAX_OF_CALLER;

    const KEEP: Keep = Keep::HUNDRED;

    fn start(state: &mut State, caller: &str, id: &str) -> (Effects, Receiver<Begun>) {
        let (reply, answer) = channel();
        let spec = Box::new(Spec::clone(&record("", 0).spec));
        let starter = Starter { reply, patient: false, existed: false };
        let call = Call::Start { id: Some(id.into()), spec, starter };
        (state.apply(Input::Call(Arc::new(Caller::admin(caller)), call), NOW), answer)
    }

    /// With as many launches of "x" under way as may be, and one that waits.
    fn with_waiting() -> (State, Effects, Receiver<Begun>) {
        let mut state = State::new(KEEP, Capacity::default(), 1, 1);
        for n in 0..MAX_OF_CALLER {
            assert_eq!(sent(&start(&mut state, "x", &n.to_string()).0), [n.to_string()]);
        }
        let (waits, answer) = start(&mut state, "x", "waits");
        assert!(sent(&waits).is_empty() && state.slots["waits"].record.unasked);
        (state, waits, answer)
    }

    /// The launches that the keeper is asked for, once their records say so.
    fn sent(effects: &Effects) -> Vec<String> {
        let spawns = effects.actions.iter().filter_map(|action| match action {
            Action::Spawn { record, .. } => Some(record),
            _ => None,
        });
        let is_recorded = |record: &Arc<Record>| {
            effects.changes.iter().any(|change| {
                matches!(change, Change::Insert(new) | Change::Update(new) if new == record)
            })
        };
        let spawns: Vec<_> = spawns.collect();
        assert!(spawns.iter().all(|record| !record.unasked && is_recorded(record)));
        spawns.iter().map(|record| record.id.to_string()).collect()
    }

    fn fails(state: &mut State, id: &str) -> Effects {
        let result = Err(Error::Store("no script".into()));
        state.apply(Input::Spawned { id: id.into(), result }, NOW)
    }

    fn kill(state: &mut State, id: &str) -> (Effects, Receiver<Killed>) {
        let (reply, answer) = channel();
        let call = Call::Kill { id: id.into(), stop: StopOrder::default(), reply };
        (state.apply(Input::Call(Arc::new(Caller::admin("x")), call), NOW), answer)
    }

    #[test]
    fn launch_beyond_the_bound_is_recorded_as_asked_before_it_is() {
        let (mut state, _, _answer) = with_waiting();
        assert_eq!(sent(&start(&mut state, "y", "other").0), ["other"]);
        assert_eq!(sent(&fails(&mut state, "0")), ["waits"]);
        assert!(sent(&fails(&mut state, "1")).is_empty());
    }

    #[test]
    fn launch_that_waits_is_not_asked_for_once_its_process_is_killed() {
        let (mut state, _, mut started) = with_waiting();
        let (effects, mut killed) = kill(&mut state, "waits");
        let end = state.slots["waits"].record.end().unwrap();
        assert_eq!((end.cause, end.started), (Cause::Killed, None));
        for action in effects.actions {
            match action {
                Action::AnswerStart(reply, answer) => drop(reply.send(answer)),
                Action::AnswerKill(reply, answer) => drop(reply.send(answer)),
                _ => {}
            }
        }
        assert!(started.try_recv().unwrap().is_ok() && killed.try_recv().unwrap().is_ok());
        assert!(sent(&fails(&mut state, "0")).is_empty());
    }

    #[test]
    fn launch_that_cannot_be_recorded_does_not_wait() {
        let (mut state, mut failed, _answer) = with_waiting();
        drop(state.not_committed(&mut failed, "no room"));
        assert!(!state.slots.contains_key("waits"));
        assert!(sent(&fails(&mut state, "0")).is_empty());
        // Nor does one keep its place that would have been sent.
        drop(state.try_again(NOW));
        let (mut failed, _answer) = start(&mut state, "x", "late");
        let (_, _answer) = start(&mut state, "x", "later");
        drop(state.not_committed(&mut failed, "no room"));
        assert_eq!((sent(&failed), state.starting), (vec!["later".to_owned()], MAX_OF_CALLER));
    }

    #[test]
    fn launches_that_wait_are_withdrawn_by_a_shutdown() {
        let (mut state, _, _answer) = with_waiting();
        drop(state.apply(Input::Report(Report::Shutdown), NOW));
        assert_eq!(state.slots["waits"].record.end().unwrap().cause, Cause::Shutdown);
    }

    #[test]
    fn recovered_launches_beyond_the_bound_wait_for_the_current_keeper() {
        let [earlier, current] = [1, 2].map(|pid| Some(KeeperId::new("boot", pid, 7)));
        let unasked = |n: usize| {
            let keeper = earlier.clone();
            Record { keeper, unasked: true, ..record(&n.to_string(), n as u64) }
        };
        let records: Vec<Record> = (0..=MAX_OF_CALLER).map(unasked).collect();
        let mut state = State::new(KEEP, Capacity::default(), 99, 1);
        state.keeper = CurrentKeeper::new(current.clone(), true);
        let effects = state.recover(records, Vec::new(), Left::default(), NOW);
        assert_eq!((sent(&effects).len(), state.starting), (MAX_OF_CALLER, MAX_OF_CALLER));
        assert!(state.slots.values().all(|slot| slot.record.keeper == current));
        assert_eq!(state.slots.values().filter(|slot| slot.record.unasked).count(), 1);
    }

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
