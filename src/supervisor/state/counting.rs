//! Who counts among those of whom there may be only so many.
//!
//! Each process knows whether it is counted, so that it is neither twice nor, once it is gone, still.

use std::sync::Arc;

use super::slot::Slot;
use crate::process::End;
use crate::supervisor::quota::Usage;
use crate::supervisor::registry::Held;
use crate::transcript::ring::Ring;

impl Slot {
    /// Counts it for whoever began it, as long as it lives, or somebody of it may print on.
    pub(super) fn count(&mut self, usage: &mut Usage) {
        let prints_on = |end: &End| !end.output_complete && self.held.is_some();
        if !self.record.end().is_none_or(prints_on) {
            self.count_no_more(usage);
        } else if !std::mem::replace(&mut self.counted, true) {
            usage.begin(&self.record, ring(self.held.as_ref()).as_ref());
        }
    }

    /// Counts it no more: it goes, or is about to be somebody else's. True: it was counted.
    pub(super) fn count_no_more(&mut self, usage: &mut Usage) -> bool {
        let counted = std::mem::take(&mut self.counted);
        if counted {
            usage.end(&self.record);
        }
        usage.linger(ring(self.held.as_ref()).as_ref());
        usage.linger(ring(self.outdated.as_ref()).as_ref());
        counted
    }
}

/// The ring of what the keeper holds, if something was printed.
pub(super) fn ring(held: Option<&Held>) -> Option<Arc<Ring>> {
    held?.output.progress().ring
}

#[cfg(test)]
mod tests {

    use tokio::sync::oneshot::channel;

    use super::super::archiving::tests::{NOW, adopted};
    use super::super::{Call, Input, Left, Starter, State, StopOrder};
    use super::*;
    use crate::access::Caller;
    use crate::keeper_client::Report;
    use crate::process::record::tests::{finished, record};
    use crate::process::{Phase, Record, Spec};
    use crate::supervisor::effects::Effects;
    use crate::supervisor::error::Error;
    use crate::supervisor::queue::Capacity;
    use crate::supervisor::quota::{Quota, Quotas};
    use crate::supervisor::retention::Keep;

    const KEEP: Keep = Keep::HUNDRED;

    /// In which each caller may have one, with "a", that "x" began: it has exited, and whoever
    /// outlived it prints on.
    fn state() -> State {
        let each = Quota { live: Some(1), ..Quota::default() };
        let quotas = Quotas { each, all: Quota::default() };
        let mut state = State::new(KEEP, Capacity { quotas, ..Capacity::default() }, 2, 5);
        let end = End { output_complete: false, ..finished().end().unwrap().clone() };
        let over = Record { by: "x".into(), phase: Phase::Exited(end), ..record("a", 1) };
        let held = vec![adopted(1, "a", false).0];
        drop(state.recover(vec![over], held, Left::default(), NOW));
        assert_eq!(counts(&state), [1, 0]);
        state
    }

    /// How many "x" and "y" have. All that is counted is theirs, and as much as they may print.
    fn counts(state: &State) -> [u64; 2] {
        let counts = ["x", "y"].map(|caller| state.usage.of(caller));
        let counted = state.slots.values().filter(|slot| slot.counted);
        let bytes = counted.map(|slot| slot.record.spec.transcript_bytes).sum::<u64>();
        assert_eq!(counts.iter().map(|(_, bytes)| bytes).sum::<u64>(), bytes);
        let counts = counts.map(|(live, _)| live);
        assert_eq!(counts.iter().sum::<u64>(), state.usage.live());
        counts
    }

    fn call(state: &mut State, caller: &str, call: Call) -> Effects {
        state.apply(Input::Call(Arc::new(Caller::admin(caller)), call), NOW)
    }

    fn start(state: &mut State, caller: &str, id: &str, queue: &str) -> Effects {
        let spec = Spec { queue: queue.into(), ..Spec::clone(&record("", 0).spec) };
        let starter = Starter { reply: channel().0, patient: false, existed: false };
        let id = Some(id.into());
        call(state, caller, Call::Start { id, spec: Box::new(spec), starter })
    }

    fn run(state: &mut State, caller: &str) -> Effects {
        call(state, caller, Call::Run { id: "a".into(), force: true, reply: channel().0 })
    }

    fn delete(state: &mut State, id: &str) {
        let delete = Call::Delete { id: id.into(), force: false, reply: channel().0 };
        drop(call(state, "y", delete));
    }

    fn kill(state: &mut State, id: &str) {
        let (stop, reply) = (StopOrder::FORCE, channel().0);
        drop(call(state, "y", Call::Kill { id: id.into(), stop, reply }));
    }

    fn spawn_fails(state: &mut State, id: &str) {
        let result = Err(Error::Store("no script".into()));
        drop(state.apply(Input::Spawned { id: id.into(), result }, NOW));
    }

    #[test]
    fn who_outlived_a_process_counts_until_nothing_can_print() {
        let mut state = state();
        drop(start(&mut state, "x", "b", ""));
        assert_eq!((counts(&state), state.slots.len()), ([1, 0], 1));
        drop(state.apply(Input::Report(Report::Drained { key: 1 }), NOW));
        assert_eq!(counts(&state), [0, 0]);
        drop(start(&mut state, "x", "b", ""));
        assert_eq!((counts(&state), state.slots.len()), ([1, 0], 2));
    }

    #[test]
    fn who_outlived_a_process_counts_until_it_is_deleted() {
        let mut state = state();
        delete(&mut state, "a");
        assert_eq!((counts(&state), state.slots.len()), ([0, 0], 0));
    }

    #[test]
    fn a_run_takes_the_place_of_who_prints_on() {
        let mut state = state();
        drop(run(&mut state, "x"));
        assert_eq!((counts(&state), state.slots["a"].record.run), ([1, 0], 2));
        spawn_fails(&mut state, "a");
        assert_eq!(counts(&state), [0, 0]);
    }

    #[test]
    fn a_run_by_another_counts_for_that_one_and_if_it_is_not_to_be_for_nobody_else() {
        let mut state = state();
        let mut failed = run(&mut state, "y");
        assert_eq!(counts(&state), [0, 1]);
        drop(state.not_committed(&mut failed, "no room"));
        assert_eq!(counts(&state), [1, 0]);
        drop(state.try_again(NOW));
        drop(start(&mut state, "y", "b", ""));
        drop(run(&mut state, "y"));
        assert_eq!((counts(&state), state.slots["a"].record.run), ([1, 1], 1));
    }

    #[test]
    fn what_was_not_started_counts_for_nobody() {
        let mut state = state();
        drop(start(&mut state, "y", "b", ""));
        assert_eq!(counts(&state), [1, 1]);
        spawn_fails(&mut state, "b");
        assert_eq!((counts(&state), state.slots.len()), ([1, 0], 1));
    }

    #[test]
    fn one_that_was_killed_while_it_waited_counts_for_nobody() {
        let mut state = state();
        delete(&mut state, "a");
        drop(start(&mut state, "x", "ahead", "q"));
        drop(start(&mut state, "y", "waits", "q"));
        assert_eq!(counts(&state), [1, 1]);
        assert!(matches!(state.slots["waits"].record.phase, Phase::Queued { .. }));
        kill(&mut state, "waits");
        assert_eq!(counts(&state), [1, 0]);
        spawn_fails(&mut state, "ahead");
        for id in ["ahead", "waits"] {
            delete(&mut state, id);
        }
        assert_eq!((counts(&state), state.slots.len()), ([0, 0], 0));
    }
}
