//! Beginning anew: the records of the store against what the keeper holds. Pure.
//!
//! Nothing is believed RUNNING that the keeper does not hold, and nothing that it holds runs on
//! without a record.

use std::collections::HashMap;

use crate::process::{KeeperId, Phase, Record};

/// The keeper that the server talks to, as far as its records are compared with it.
#[derive(Clone, Debug, Default)]
pub struct CurrentKeeper {
    id: Option<KeeperId>,
    /// It has started no server before this one.
    is_new: bool,
}

impl CurrentKeeper {
    /// A keeper by its identity, if that is known.
    pub fn new(id: Option<KeeperId>, is_new: bool) -> CurrentKeeper {
        CurrentKeeper { id, is_new }
    }

    pub(super) fn id(&self) -> Option<&KeeperId> {
        self.id.as_ref()
    }

    /// Whether this keeper was asked for the launch of a record, and not an earlier one.
    ///
    /// The record says so itself: a server that dies before it has committed its recovery leaves records
    /// of the earlier keeper to the next server, which is not the first one. Without both identities, only
    /// the first server of a keeper knows that all records are older than it.
    fn was_asked_for(&self, record: &Record) -> bool {
        match (&self.id, &record.keeper) {
            (Some(current), Some(asked)) => current == asked,
            _ => !self.is_new,
        }
    }
}

/// Something that the keeper holds.
pub(super) struct Found<T> {
    pub(super) id: String,
    /// Which launch of it.
    pub(super) launch: u32,
    /// All that is known of it.
    pub(super) what: T,
}

/// What is to be done for one record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate<T> {
    /// It is over; its transcript may be left.
    Finished(Option<T>),
    /// It waits for its turn. An earlier launch may be left.
    Waits(Option<T>),
    /// It was accepted, and the keeper never heard of it: the start is asked for again. An earlier
    /// launch may be left.
    StartAgain(Option<T>),
    /// It has ended and waits for its restart; its transcript may be left.
    Pauses(Option<T>),
    /// The keeper has started it, which the record may not know yet.
    GoesOn(T),
    /// It was running or was to be started, and the keeper that was asked for it is gone.
    Lost,
}

/// Gives each record its fate. What no record knows comes last.
pub(super) fn reconcile<T>(
    records: Vec<Record>,
    found: Vec<Found<T>>,
    keeper: &CurrentKeeper,
) -> (Vec<(Record, Fate<T>)>, Vec<T>) {
    let mut strays = Vec::new();
    let mut held: HashMap<String, Vec<(u32, T)>> = HashMap::new();
    for Found { id, launch, what } in found {
        held.entry(id).or_default().push((launch, what));
    }
    let fates = records.into_iter().map(|record| {
        let launches = held.get_mut(&*record.id);
        let mut launches = launches.map(std::mem::take).unwrap_or_default();
        // The newest first: it knows how far the numbers of chunks have come.
        launches.sort_by_key(|(launch, _)| std::cmp::Reverse(*launch));
        let mut take = |wanted: &dyn Fn(u32) -> bool| {
            let at = launches.iter().position(|(launch, _)| wanted(*launch))?;
            Some(launches.remove(at).1)
        };
        let held = take(&|launch| launch == record.launch);
        let fate = match (&record.phase, held) {
            // One that could not be started has the transcript of the launch before.
            (Phase::Exited(_), held) => {
                Fate::Finished(held.or_else(|| take(&|launch| launch == record.printing)))
            }
            // No keeper was asked for it: what has its number was another's of its id.
            (Phase::Starting, held) if record.unasked => {
                strays.extend(held);
                Fate::StartAgain(take(&|launch| launch < record.launch))
            }
            (Phase::Starting | Phase::Running(_) | Phase::Stopping { .. }, Some(held)) => {
                Fate::GoesOn(held)
            }
            // One that waits was never asked for: what has its number was another's of its id.
            (Phase::Queued { .. }, held) => {
                strays.extend(held);
                Fate::Waits(take(&|launch| launch < record.launch))
            }
            (Phase::Backoff { .. }, held) => {
                Fate::Pauses(held.or_else(|| take(&|launch| launch == record.printing)))
            }
            (Phase::Starting, None) if keeper.was_asked_for(&record) => {
                Fate::StartAgain(take(&|launch| launch < record.launch))
            }
            // An earlier keeper may have executed it: it is not run twice.
            (Phase::Starting, None) => Fate::Lost,
            (Phase::Running(_) | Phase::Stopping { .. }, None) => Fate::Lost,
        };
        strays.extend(launches.into_iter().map(|(_, what)| what));
        (record, fate)
    });
    let fates = fates.collect();
    strays.extend(held.into_values().flatten().map(|(_, what)| what));
    (fates, strays)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::lifecycle::Ending;
    use crate::process::record::tests::{finished, record};
    use crate::process::{Cause, Started};

    const STARTED: Started = Started { pid: 7, time: 1, moment: 1, ready: None };

    fn fate(phase: Phase, launch: Option<u32>) -> (Fate<u8>, Vec<u8>) {
        let found = launch.map(|launch| Found { id: "a".into(), launch, what: 1 });
        let record = Record { phase, ..record("a", 1) };
        let (mut fates, strays) =
            reconcile(vec![record], found.into_iter().collect(), &CurrentKeeper::default());
        (fates.remove(0).1, strays)
    }

    #[test]
    fn what_the_keeper_holds_goes_on() {
        let ending = Ending { why: Cause::Killed, kill_at: 5, for_good: true, signal: None };
        let stopping = Phase::Stopping { started: STARTED, ending };
        for phase in [Phase::Starting, Phase::Running(STARTED), stopping] {
            assert_eq!(fate(phase, Some(1)), (Fate::GoesOn(1), vec![]));
        }
    }

    #[test]
    fn what_the_keeper_does_not_hold_is_lost_or_starts_again() {
        assert_eq!(fate(Phase::Running(STARTED), None), (Fate::Lost, vec![]));
        assert_eq!(fate(Phase::Starting, None), (Fate::StartAgain(None), vec![]));
    }

    #[test]
    fn start_that_an_earlier_keeper_was_asked_for_is_lost() {
        let [earlier, current] = [1, 2].map(|pid| Some(KeeperId::new("boot", pid, 7)));
        let fate = |asked: &Option<KeeperId>, is_new| {
            let record = Record { keeper: asked.clone(), ..record("a", 1) };
            let keeper = CurrentKeeper::new(current.clone(), is_new);
            reconcile(vec![record], Vec::<Found<u8>>::new(), &keeper).0.remove(0).1
        };
        // Whether or not an earlier server of this keeper has died before it could record that.
        for is_new in [true, false] {
            assert_eq!(fate(&earlier, is_new), Fate::Lost);
            assert_eq!(fate(&current, is_new), Fate::StartAgain(None));
        }
        // One that waited in the server was never asked for.
        for is_new in [true, false] {
            let record = Record { keeper: earlier.clone(), unasked: true, ..record("a", 1) };
            let keeper = CurrentKeeper::new(current.clone(), is_new);
            let stray = Found { id: "a".into(), launch: 1, what: 9 };
            let (mut fates, strays) = reconcile(vec![record], vec![stray], &keeper);
            assert_eq!((fates.remove(0).1, strays), (Fate::StartAgain(None), vec![9]));
        }
        // An earlier version did not record which keeper it asked.
        assert_eq!(fate(&None, true), Fate::Lost);
        assert_eq!(fate(&None, false), Fate::StartAgain(None));
    }

    #[test]
    fn another_launch_is_nobody_s() {
        assert_eq!(fate(Phase::Running(STARTED), Some(2)), (Fate::Lost, vec![1]));
    }

    #[test]
    fn who_waits_goes_on_waiting_and_an_earlier_launch_is_not_forgotten() {
        let queued = Phase::Queued { ticket: 1 };
        assert_eq!(fate(queued.clone(), None), (Fate::Waits(None), vec![]));
        assert_eq!(fate(queued.clone(), Some(0)), (Fate::Waits(Some(1)), vec![]));
        assert_eq!(fate(queued, Some(1)), (Fate::Waits(None), vec![1]));
        assert_eq!(fate(Phase::Starting, Some(0)), (Fate::StartAgain(Some(1)), vec![]));
        let Phase::Exited(last) = finished().phase else { panic!("finished") };
        let pause = Phase::Backoff { last, until: 5 };
        assert_eq!(fate(pause.clone(), Some(1)), (Fate::Pauses(Some(1)), vec![]));
        assert_eq!(fate(pause, None), (Fate::Pauses(None), vec![]));
    }

    #[test]
    fn of_several_earlier_launches_the_newest_counts() {
        let record = Record { launch: 3, ..record("a", 1) };
        let found = [1, 2].map(|launch| Found { id: "a".into(), launch, what: launch });
        let (fates, strays) = reconcile(vec![record], found.into(), &CurrentKeeper::default());
        assert_eq!((&fates[0].1, strays), (&Fate::StartAgain(Some(2)), vec![1]));
    }

    #[test]
    fn launches_that_failed_do_not_take_the_transcript_along() {
        let Phase::Exited(last) = finished().phase else { panic!("finished") };
        for phase in [Phase::Backoff { last: last.clone(), until: 5 }, Phase::Exited(last)] {
            let record = Record { phase, launch: 4, printing: 2, ..record("a", 1) };
            let found = [2, 1].map(|launch| Found { id: "a".into(), launch, what: launch });
            let (fates, strays) = reconcile(vec![record], found.into(), &CurrentKeeper::default());
            assert!(matches!(fates[0].1, Fate::Pauses(Some(2)) | Fate::Finished(Some(2))));
            assert_eq!(strays, [1]);
        }
    }

    #[test]
    fn the_finished_keep_their_transcripts_as_long_as_there_are_any() {
        let ended = finished().phase;
        assert_eq!(fate(ended.clone(), Some(1)).0, Fate::Finished(Some(1)));
        assert_eq!(fate(ended, None).0, Fate::Finished(None));
    }
}
