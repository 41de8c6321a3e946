//! How finished transcripts leave the keeper's memory: into files.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::slot::Slot;
use super::{Now, State};
use crate::process::lifecycle::after;
use crate::process::{Archived, Record};
use crate::store::Change;
use crate::supervisor::effects::{Action, Effects};

/// Pause before a transcript that could not be written is tried again: it waits in memory.
const AGAIN: Duration = Duration::from_secs(5);

impl State {
    /// A transcript was written to a file: from here on it is read there, and the keeper may
    /// forget it. If it could not be written it stays where it is.
    pub(super) fn archived(
        &mut self,
        record: &Record,
        key: u64,
        result: io::Result<Archived>,
        now: Now,
        then: &mut Effects,
    ) {
        self.archiving.remove(&key);
        self.over(then);
        let Record { id, birth, run, .. } = record;
        let slot = self.slots.get_mut(id).filter(|slot| slot.is_kept_as(key));
        let Some(slot) = slot else {
            // Freed or run again meanwhile: the file was removed, perhaps before it was written.
            let (birth, run) = (*birth, *run);
            return then.actions.push(Action::RemoveTranscript { birth, run });
        };
        let archived = match result {
            Ok(archived) => archived,
            Err(error) => {
                let words = "a transcript cannot be written and stays in memory";
                tracing::warn!(%error, process = %id, "{words}");
                self.archive_at = Some(after(now.moment, AGAIN));
                return;
            }
        };
        slot.held = None;
        slot.count(&mut self.usage);
        self.keys.remove(&key);
        slot.change(|record| record.archive = Some(archived));
        let record = &slot.record;
        let time = record.end().map_or(0, |end| end.time);
        self.finished.insert(time, record.birth, id, slot.footprint());
        then.changes.push(Change::Update(Arc::clone(record)));
        then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
        then.actions.push(Action::Release(key));
        then.patient = true;
    }

    /// Tries again what could not be written.
    pub(super) fn archive_again(&mut self, now: Now, then: &mut Effects) {
        if self.archive_at.take_if(|at| *at <= now.moment).is_some() {
            for slot in self.slots.values() {
                archive(slot, &mut self.archiving, then);
            }
        }
    }
}

impl Slot {
    /// It is over, and the keeper has its transcript under this number.
    fn is_kept_as(&self, key: u64) -> bool {
        self.record.end().is_some() && self.held.as_ref().is_some_and(|held| held.key == key)
    }
}

/// Has the transcript of a process written to a file, if that can be and is not under way.
pub(super) fn archive(slot: &Slot, archiving: &mut HashSet<u64>, then: &mut Effects) {
    let Some(held) = slot.held.as_ref().filter(|_| slot.record.may_be_filed()) else { return };
    let Some(ring) = held.output.progress().ring else { return };
    if archiving.insert(held.key) {
        let record = Arc::clone(&slot.record);
        then.actions.push(Action::Archive { record, key: held.key, ring });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::Ordering;

    use tokio::sync::oneshot::channel;
    use tokio::sync::watch;

    use super::super::undoing::tests::admin;
    use super::super::{Call, Input, Left};
    use super::*;
    use crate::keeper_client::{Adopted, Output, Progress, Report};
    use crate::process::record::tests::{finished, record};
    use crate::supervisor::queue::Capacity;
    use crate::supervisor::retention::Keep;
    use crate::transcript::{Figures, Ring};

    pub(in super::super) const NOW: Now = Now { moment: 1_000, wall: 10_000 };
    const LATER: Now = Now { moment: 1_000 + AGAIN.as_nanos() as u64, wall: 20_000 };
    const KEEP: Keep = Keep::HUNDRED;

    /// A ring with some chunks, and the way to it.
    pub(in super::super) fn adopted(key: u64, id: &str, drained: bool) -> (Adopted, Arc<Ring>) {
        let (ring, _) = Ring::create(1 << 16, 1).expect("a ring");
        ring.header().next_seq.store(4, Ordering::Relaxed);
        ring.header().total_bytes.store(10, Ordering::Relaxed);
        let ring = Arc::new(ring);
        let progress = Progress { ring: Some(Arc::clone(&ring)), drained, ..Progress::default() };
        let output = Output::new(watch::channel(progress).1);
        let id = id.to_string();
        let held =
            Adopted { key, id, run: 1, pid: 7, start_time: 1, size: None, exit: None, output };
        (held, ring)
    }

    fn over(id: &str, birth: u64) -> Record {
        Record { phase: finished().phase, ..record(id, birth) }
    }

    /// With two processes that are over, and of which the keeper has the transcripts 1 and 2.
    pub(in super::super) fn state(keep: Keep) -> (State, Effects, Arc<Ring>) {
        let mut state = State::new(keep, Capacity::default(), 3, 5);
        let ((a, ring), (b, _)) = (adopted(1, "a", true), adopted(2, "b", true));
        let records = vec![over("a", 1), over("b", 2)];
        let effects = state.recover(records, vec![a, b], Left::default(), NOW);
        (state, effects, ring)
    }

    fn written(effects: &Effects) -> Vec<u64> {
        let keys = effects.actions.iter().filter_map(|action| match action {
            Action::Archive { key, .. } => Some(*key),
            _ => None,
        });
        let mut keys: Vec<u64> = keys.collect();
        keys.sort_unstable();
        keys
    }

    fn released(effects: &Effects) -> Vec<u64> {
        let keys = effects.actions.iter().filter_map(|action| match action {
            Action::Release(key) => Some(*key),
            _ => None,
        });
        keys.collect()
    }

    fn removed(effects: &Effects) -> Vec<(u64, u32)> {
        let files = effects.actions.iter().filter_map(|action| match action {
            Action::RemoveTranscript { birth, run } => Some((*birth, *run)),
            _ => None,
        });
        files.collect()
    }

    fn all_over(effects: &Effects) -> bool {
        effects.actions.iter().any(|action| matches!(action, Action::AllOver))
    }

    /// The file of "a" or "b" was written, or not.
    fn archived(state: &mut State, key: u64, well: bool) -> Effects {
        let figures = Figures { first_seq: 1, next_seq: 4, total_bytes: 10, ..Figures::default() };
        let archived = Archived { figures, offsets: [10, 0, 0], file_bytes: 100 };
        let result = if well { Ok(archived) } else { Err(io::ErrorKind::StorageFull.into()) };
        let record = Arc::new(over(if key == 1 { "a" } else { "b" }, key));
        state.apply(Input::Archived { record, key, result, turn: None }, NOW)
    }

    fn delete(state: &mut State, id: &str) -> Effects {
        let call = Call::Delete { id: id.into(), force: false, reply: channel().0 };
        state.apply(Input::Call(admin(), call), NOW)
    }

    pub(in super::super) fn run(state: &mut State, id: &str) -> Effects {
        let call = Call::Run { id: id.into(), force: true, reply: channel().0 };
        state.apply(Input::Call(admin(), call), NOW)
    }

    #[test]
    fn a_transcript_that_is_being_written_is_not_written_again_with_those_that_could_not_be() {
        let (mut state, effects, _) = state(KEEP);
        assert_eq!(written(&effects), [1, 2]);
        drop(archived(&mut state, 1, false));
        let again = state.apply(Input::Tick, LATER);
        assert_eq!(written(&again), [1]);
        for key in [2, 1] {
            let done = archived(&mut state, key, true);
            assert_eq!(
                (released(&done), removed(&done), done.changes.len()),
                (vec![key], vec![], 1)
            );
        }
        assert!(state.archiving.is_empty() && state.keys.is_empty());
        assert!(state.slots.values().all(|slot| slot.record.is_filed() && slot.held.is_none()));
    }

    #[test]
    fn the_file_of_one_that_was_freed_or_run_again_meanwhile_goes() {
        for well in [true, false] {
            let (mut state, _, _) = state(KEEP);
            assert_eq!(removed(&delete(&mut state, "a")), [(1, 1)]);
            assert_eq!(removed(&run(&mut state, "b")), [(2, 1)]);
            for (key, file) in [(1, (1, 1)), (2, (2, 1))] {
                let late = archived(&mut state, key, well);
                assert_eq!((removed(&late), released(&late)), (vec![file], vec![]));
                assert!(late.changes.is_empty());
            }
            assert!(state.archiving.is_empty() && state.archive_at.is_none());
            assert_eq!(state.slots["b"].record.archive, None);
        }
    }

    #[test]
    fn what_retention_frees_is_not_written() {
        let (mut state, effects, _) = state(Keep { count: 1, ..KEEP });
        assert_eq!((removed(&effects), released(&effects)), (vec![(1, 1)], vec![1]));
        assert_eq!(removed(&archived(&mut state, 1, true)), [(1, 1)]);
        assert_eq!(released(&archived(&mut state, 2, true)), [2]);
    }

    #[test]
    fn a_file_that_was_given_up_for_a_run_that_is_not_to_be_is_written_again() {
        let (mut state, _, _) = state(KEEP);
        let mut failed = run(&mut state, "a");
        failed.append(archived(&mut state, 1, true));
        assert_eq!(removed(&failed), [(1, 1), (1, 1)]);
        drop(state.not_committed(&mut failed, "no room"));
        assert_eq!((removed(&failed), written(&failed)), (vec![], vec![1]));
        assert_eq!(released(&archived(&mut state, 1, true)), [1]);
    }

    #[test]
    fn a_run_that_is_not_to_be_does_not_have_a_file_written_twice() {
        let (mut state, _, _) = state(KEEP);
        let mut failed = run(&mut state, "a");
        drop(state.not_committed(&mut failed, "no room"));
        assert_eq!((removed(&failed), written(&failed)), (vec![], vec![]));
        assert_eq!(released(&archived(&mut state, 1, true)), [1]);
    }

    #[test]
    fn all_is_over_when_what_is_being_written_was_tried() {
        let (mut state, _, _) = state(KEEP);
        assert!(!all_over(&state.apply(Input::Report(Report::Shutdown), NOW)));
        drop(delete(&mut state, "b"));
        assert!(!all_over(&archived(&mut state, 2, true)));
        assert!(all_over(&archived(&mut state, 1, false)));
    }
}
