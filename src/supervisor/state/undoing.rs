//! What could not be recorded has not begun: the state is as it was before.

use std::sync::Arc;

use super::archiving::archive;
use super::slot::Waiting;
use super::{Slot, State};
use crate::process::{Life, Phase};
use crate::supervisor::effects::{Action, Before, Beginning, Effects};
use crate::supervisor::error::Error;

impl State {
    /// A commit has failed. What it would have begun does not begin, nor what would have followed;
    /// the rest is tried again. Refusals come back.
    pub(in crate::supervisor) fn not_committed(
        &mut self,
        failed: &mut Effects,
        why: &str,
    ) -> Effects {
        self.failing = Some(why.into());
        let error = Error::Store(why.into());
        let first = self.next_event - failed.events();
        let begun = std::mem::take(&mut failed.begun);
        let mut refused = failed.forget(&begun, &error);
        // The last one first: each finds the state that it left.
        for beginning in begun.into_iter().rev() {
            self.undo(beginning, &error, failed, &mut refused);
        }
        self.spawn_waiting(failed);
        self.next_event = failed.renumber(first);
        self.over(failed);
        refused
    }

    fn undo(
        &mut self,
        begun: Beginning,
        error: &Error,
        failed: &mut Effects,
        refused: &mut Effects,
    ) {
        let Beginning { id, birth, run, before } = begun;
        // Deleted meanwhile, which stands.
        let Some(mut slot) = self.slots.remove(&id) else { return };
        if (slot.record.birth, slot.record.run) != (birth, run) {
            self.slots.insert(id, slot);
            return;
        }
        if let Some(at) = slot.timer.take() {
            self.timers.remove(&(at, Arc::clone(&id)));
        }
        match slot.record.end() {
            Some(end) => {
                self.finished.remove(end.time, birth);
                slot.count_no_more(&mut self.usage);
            }
            None => {
                // The keeper was not asked for one that is about to be started.
                match slot.spawn_ticket.take() {
                    Some(ticket) => self.spawns.withdraw(&slot.record.by, ticket),
                    None if slot.record.phase == Phase::Starting => {
                        self.starting -= 1;
                        self.spawns.end(&slot.record.by, slot.record.spec.bytes());
                    }
                    None => {}
                }
                self.live_no_more(&mut slot);
            }
        }
        let waiting = std::mem::take(&mut slot.waiting);
        match before {
            None => waiting.fail(&id, error, refused),
            Some(before) => {
                refuse(waiting, error, refused);
                self.restore(slot, before, failed);
            }
        }
    }

    /// It is what it was before it was run again.
    fn restore(&mut self, mut slot: Slot, before: Before, failed: &mut Effects) {
        let Before { record, held } = before;
        let id = Arc::clone(&record.id);
        (slot.life, slot.started, slot.place) = (Life::Exited, record.started(), None);
        (slot.record, slot.held, slot.outdated) = (record, held, None);
        slot.count(&mut self.usage);
        let key = slot.held.as_ref().map(|held| held.key);
        let drained = slot.held.as_ref().is_some_and(|held| held.output.progress().drained);
        failed.actions.retain(
            |action| !matches!(action, Action::KillStray { key: stray, .. } if Some(*stray) == key),
        );
        let time = slot.record.end().map_or(0, |end| end.time);
        self.finished.insert(time, slot.record.birth, &id, slot.footprint());
        self.keys.extend(key.map(|key| (key, Arc::clone(&id))));
        // Nobody listened to it meanwhile, nor to what became of its file.
        archive(&slot, &mut self.archiving, failed);
        self.slots.insert(id, slot);
        if let Some(key) = key.filter(|_| drained) {
            self.drained(key, failed);
        }
    }
}

/// Tells everyone who waited for a run that it is not to be.
fn refuse(waiting: Waiting, error: &Error, refused: &mut Effects) {
    let Waiting { starts, kills, deletes } = waiting;
    let why = || error.clone();
    let actions = &mut refused.actions;
    actions.extend(starts.into_iter().map(|start| Action::AnswerStart(start.reply, Err(why()))));
    actions.extend(kills.into_iter().map(|reply| Action::AnswerKill(reply, Err(why()))));
    actions.extend(deletes.into_iter().map(|reply| Action::AnswerDelete(reply, Err(why()))));
}

#[cfg(test)]
pub(super) mod tests {

    use tokio::sync::oneshot::{Receiver, channel};

    use super::super::{Call, Input, Left, Now, Starter, StopOrder};
    use super::*;
    use crate::access::Caller;
    use crate::events::Kind;
    use crate::process::Spec;
    use crate::process::record::tests::{finished, record};
    use crate::store::Change;
    use crate::supervisor::effects::{Begun, Killed};
    use crate::supervisor::queue::Capacity;
    use crate::supervisor::retention::Keep;

    const NOW: Now = Now { moment: 1_000, wall: 10_000 };
    const KEEP: Keep = Keep::HUNDRED;

    /// With a process that has finished, and one that has the place in the queue.
    fn state() -> State {
        let capacity = Capacity { all: Some(10), ..Capacity::default() };
        let mut state = State::new(KEEP, capacity, 3, 5);
        let ahead = Arc::new(Spec { queue: "q".into(), ..Spec::clone(&record("", 0).spec) });
        let mut done = finished();
        Arc::make_mut(&mut done.spec).queue = "q".into();
        let records = vec![done, crate::process::Record { spec: ahead, ..record("ahead", 2) }];
        drop(state.recover(records, Vec::new(), Left::default(), NOW));
        assert_eq!((state.usage.live(), state.starting), (1, 1));
        state
    }

    /// Somebody who may do everything.
    pub(in super::super) fn admin() -> Arc<Caller> {
        Arc::new(Caller::admin("test"))
    }

    fn start(state: &mut State, id: &str, queue: &str, then: &mut Effects) -> Answer<Begun> {
        let (reply, answer) = channel();
        let spec = Spec { queue: queue.into(), ..Spec::clone(&record("", 0).spec) };
        let starter = Starter { reply, patient: false, existed: false };
        let call = Call::Start { id: Some(id.into()), spec: Box::new(spec), starter };
        then.append(state.apply(Input::Call(admin(), call), NOW));
        answer
    }

    fn kill(state: &mut State, id: &str, then: &mut Effects) -> Answer<Killed> {
        let (reply, answer) = channel();
        let call = Call::Kill { id: id.into(), stop: StopOrder::FORCE, reply };
        then.append(state.apply(Input::Call(admin(), call), NOW));
        answer
    }

    fn run(state: &mut State, id: &str, then: &mut Effects) -> Answer<Begun> {
        let (reply, answer) = channel();
        let call = Call::Run { id: id.into(), force: true, reply };
        then.append(state.apply(Input::Call(admin(), call), NOW));
        answer
    }

    fn delete(state: &mut State, id: &str, then: &mut Effects) -> Answer<()> {
        let (reply, answer) = channel();
        let call = Call::Delete { id: id.into(), force: false, reply };
        then.append(state.apply(Input::Call(admin(), call), NOW));
        answer
    }

    type Answer<T> = Receiver<Result<T, Error>>;

    fn refused<T>(mut answer: Answer<T>) -> Error {
        answer.try_recv().expect("it waits on").map(drop).expect_err("it was not refused")
    }

    /// The commit fails, and refusals are told.
    fn fail(state: &mut State, failed: &mut Effects) {
        for action in state.not_committed(failed, "no room").actions {
            match action {
                Action::AnswerStart(reply, answer) => drop(reply.send(answer)),
                Action::AnswerKill(reply, answer) => drop(reply.send(answer)),
                Action::AnswerDelete(reply, answer) => drop(reply.send(answer)),
                _ => panic!("more than a refusal"),
            }
        }
    }

    fn told(effects: &Effects) -> Vec<(u64, Kind)> {
        let events = effects.changes.iter().filter_map(|change| match change {
            Change::Event(event) => Some((event.seq, event.kind)),
            _ => None,
        });
        let tells = effects.actions.iter().filter_map(|action| match action {
            Action::Tell(event) => Some((event.seq, event.kind)),
            _ => None,
        });
        let events: Vec<_> = events.collect();
        assert_eq!(events, tells.collect::<Vec<_>>());
        events
    }

    fn store_error() -> Error {
        Error::Store("no room".into())
    }

    #[test]
    fn a_start_is_refused_whether_it_would_have_begun_or_waited() {
        let (mut state, mut failed) = (state(), Effects::default());
        let begins = start(&mut state, "begins", "", &mut failed);
        let waits = start(&mut state, "waits", "q", &mut failed);
        fail(&mut state, &mut failed);
        assert_eq!((refused(begins), refused(waits)), (store_error(), store_error()));
        assert!(failed.is_empty() && failed.begun.is_empty());
        assert_eq!((state.usage.live(), state.starting, state.slots.len()), (1, 1, 2));
        assert_eq!(state.next_event, 5, "no number is wasted");
        assert!(state.queues.next().is_none());
    }

    #[test]
    fn what_follows_a_start_that_is_refused_goes_with_it_and_the_rest_is_numbered_anew() {
        let (mut state, mut failed) = (state(), Effects::default());
        let waits = start(&mut state, "waits", "q", &mut failed);
        let killing = kill(&mut state, "waits", &mut failed);
        let deleting = delete(&mut state, "a", &mut failed);
        fail(&mut state, &mut failed);
        assert_eq!((refused(waits), refused(killing)), (store_error(), store_error()));
        assert_eq!(told(&failed), [(5, Kind::Deleted)]);
        assert_eq!(failed.changes.len(), 2);
        assert!(matches!(&failed.changes[0], Change::Remove(id) if **id == *"a"));
        assert_eq!(state.next_event, 6);
        assert_eq!(state.slots.len(), 1);
        drop(deleting);
    }

    #[test]
    fn an_id_that_was_another_s_is_freed_though_its_next_start_is_refused() {
        let (mut state, mut failed) = (state(), Effects::default());
        drop(delete(&mut state, "a", &mut failed));
        let again = start(&mut state, "a", "q", &mut failed);
        fail(&mut state, &mut failed);
        assert_eq!(refused(again), store_error());
        assert_eq!(told(&failed), [(5, Kind::Deleted)]);
        assert!(!state.slots.contains_key("a"));
        assert!(failed.actions.iter().any(|action| matches!(action, Action::Leave(_))));
    }

    #[test]
    fn a_run_that_is_refused_leaves_the_record_as_it_was() {
        let (mut state, mut failed) = (state(), Effects::default());
        let before = Arc::clone(&state.slots["a"].record);
        let again = run(&mut state, "a", &mut failed);
        let killing = kill(&mut state, "a", &mut failed);
        let once_more = run(&mut state, "a", &mut failed);
        assert_eq!(state.slots["a"].record.run, 3);
        fail(&mut state, &mut failed);
        for refusal in [refused(again), refused(killing), refused(once_more)] {
            assert_eq!(refusal, store_error());
        }
        assert!(failed.is_empty());
        assert_eq!(
            (&state.slots["a"].record, state.usage.live(), state.next_event),
            (&before, 1, 5)
        );
        assert_eq!(state.finished.oldest_first().count(), 1);
        // It can be run when there is room.
        drop(state.try_again(NOW));
        let mut then = Effects::default();
        drop(run(&mut state, "a", &mut then));
        assert_eq!(told(&then), [(5, Kind::RunAgain), (6, Kind::Queued)]);
    }

    #[test]
    fn one_that_was_deleted_after_its_run_is_deleted() {
        let (mut state, mut failed) = (state(), Effects::default());
        drop(run(&mut state, "a", &mut failed));
        drop(kill(&mut state, "a", &mut failed));
        drop(delete(&mut state, "a", &mut failed));
        fail(&mut state, &mut failed);
        assert_eq!(told(&failed), [(5, Kind::Deleted)]);
        assert!(!state.slots.contains_key("a"));
    }
}
