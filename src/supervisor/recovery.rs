//! Beginning anew: the records of the store against what the keeper holds. Pure.
//!
//! Nothing is believed RUNNING that the keeper does not hold, and nothing that it holds runs on
//! without a record.

use std::collections::HashMap;

use crate::process::{Phase, Record};

/// Something that the keeper holds.
pub(super) struct Found<T> {
    pub(super) id: String,
    pub(super) run: u32,
    /// All that is known of it.
    pub(super) what: T,
}

/// What is to be done for one record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate<T> {
    /// It is over; its transcript may be left.
    Finished(Option<T>),
    /// It was accepted, and the keeper never heard of it: the start is asked for again.
    StartAgain,
    /// The keeper has started it, which the record may not know yet.
    GoesOn(T),
    /// It was running, and the keeper does not have it.
    Lost,
}

/// Gives each record its fate. What no record knows comes last.
pub(super) fn reconcile<T>(
    records: Vec<Record>,
    found: Vec<Found<T>>,
) -> (Vec<(Record, Fate<T>)>, Vec<T>) {
    let mut held: HashMap<(String, u32), T> =
        found.into_iter().map(|found| ((found.id, found.run), found.what)).collect();
    let fates = records.into_iter().map(|record| {
        let held = held.remove(&(record.id.to_string(), record.run));
        let fate = match (&record.phase, held) {
            (Phase::Exited(_), held) => Fate::Finished(held),
            (Phase::Starting | Phase::Running(_) | Phase::Stopping { .. }, Some(held)) => {
                Fate::GoesOn(held)
            }
            (Phase::Starting, None) => Fate::StartAgain,
            (Phase::Running(_) | Phase::Stopping { .. }, None) => Fate::Lost,
        };
        (record, fate)
    });
    let fates = fates.collect();
    (fates, held.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::record::tests::{finished, record};
    use crate::process::{Cause, Started};

    const STARTED: Started = Started { pid: 7, time: 1, moment: 1 };

    fn fate(phase: Phase, run: Option<u32>) -> (Fate<u8>, Vec<u8>) {
        let found = run.map(|run| Found { id: "a".into(), run, what: 1 });
        let record = Record { phase, ..record("a", 1) };
        let (mut fates, strays) = reconcile(vec![record], found.into_iter().collect());
        (fates.remove(0).1, strays)
    }

    #[test]
    fn what_the_keeper_holds_goes_on() {
        let stopping = Phase::Stopping { started: STARTED, why: Cause::Killed, kill_at: 5 };
        for phase in [Phase::Starting, Phase::Running(STARTED), stopping] {
            assert_eq!(fate(phase, Some(1)), (Fate::GoesOn(1), vec![]));
        }
    }

    #[test]
    fn what_the_keeper_does_not_hold_is_lost_or_starts_again() {
        assert_eq!(fate(Phase::Running(STARTED), None), (Fate::Lost, vec![]));
        assert_eq!(fate(Phase::Starting, None), (Fate::StartAgain, vec![]));
    }

    #[test]
    fn another_run_is_nobody_s() {
        assert_eq!(fate(Phase::Running(STARTED), Some(2)), (Fate::Lost, vec![1]));
    }

    #[test]
    fn the_finished_keep_their_transcripts_as_long_as_there_are_any() {
        let ended = finished().phase;
        assert_eq!(fate(ended.clone(), Some(1)).0, Fate::Finished(Some(1)));
        assert_eq!(fate(ended, None).0, Fate::Finished(None));
    }
}
