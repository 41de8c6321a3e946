//! What the keeper holds and no record knows, after the store was repaired. Pure.
//!
//! A record may have been lost with its process alive. Such a process is not ended: it gets a new
//! record, with the little that the keeper knows of it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::process::{Phase, Record, Restarts, Size, Spec, Streams};

/// The description of a process whose record was lost.
const RECOVERED: &str = "recovered: its record was damaged";

/// What the keeper knows of something that it holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct About<'a> {
    pub(super) id: &'a str,
    /// Which launch of it.
    pub(super) launch: u32,
    /// When it was started, nanoseconds since 1970.
    pub(super) start_time: u64,
    /// That of its terminal, if it has one.
    pub(super) size: Option<Size>,
}

/// Parts what no record knows into what is taken over and what is ended. It is taken over if it
/// was started before the repair, in seconds since 1970, and no record has its id: of several
/// launches the last one is.
pub(super) fn part<T>(
    strays: Vec<T>,
    repaired_at: Option<u64>,
    has_record: impl Fn(&str) -> bool,
    about: impl Fn(&T) -> About<'_>,
) -> (Vec<T>, Vec<T>) {
    let before = repaired_at.map_or(0, |time| time.saturating_add(1).saturating_mul(1_000_000_000));
    // What a probe runs is nobody's: its id is none that a process can have.
    let lost = |stray: &About<'_>| {
        stray.start_time < before && !stray.id.contains('/') && !has_record(stray.id)
    };
    let mut last: HashMap<String, u32> = HashMap::new();
    for stray in strays.iter().map(&about).filter(lost) {
        let launch = last.entry(stray.id.to_owned()).or_default();
        *launch = stray.launch.max(*launch);
    }
    strays.into_iter().partition(|stray| {
        let stray = about(stray);
        lost(&stray) && last.get(stray.id) == Some(&stray.launch)
    })
}

/// The record of a process that is taken over.
pub(super) fn record(about: About<'_>, birth: u64) -> Record {
    let unknown = Spec::unknown();
    let streams = match about.size {
        Some(size) => Streams::Terminal { size, term: String::new() },
        None => unknown.streams.clone(),
    };
    let spec = Spec { streams, description: RECOVERED.into(), ..unknown };
    Record {
        id: about.id.into(),
        birth,
        spec: Arc::new(spec),
        by: String::new(),
        run: 1,
        launch: about.launch,
        printing: about.launch,
        first_seq: 1,
        archive: None,
        restarts: Restarts::default(),
        create_time: about.start_time,
        unkillable: Vec::new(),
        keeper: None,
        unasked: false,
        phase: Phase::Starting,
    }
}

/// Whether a record was made for a process whose own was lost.
fn is_recovered(record: &Record) -> bool {
    record.spec.description == RECOVERED
}

/// The first birth since the last repair, as long as something runs whose record was lost: any file
/// of a record born before may be its.
pub(super) fn lost_before<'a>(
    records: &[Record],
    first_birth: u64,
    mut held: impl Iterator<Item = &'a str>,
) -> u64 {
    let known: HashSet<&str> = records.iter().map(|record| &*record.id).collect();
    let live = |record: &&Record| record.end().is_none();
    let orphans = held.any(|id| !known.contains(id));
    if orphans || records.iter().filter(live).any(is_recovered) { first_birth } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn about<'a>(stray: &'a (&'static str, u32, u64)) -> About<'a> {
        let (id, launch, second) = *stray;
        About { id, launch, start_time: second * SECOND, size: None }
    }

    fn parted(strays: &[(&'static str, u32, u64)], repaired_at: Option<u64>) -> [Vec<u32>; 2] {
        let (kept, ended) = part(strays.to_vec(), repaired_at, |id| id == "known", about);
        [kept, ended].map(|strays| strays.into_iter().map(|(_, launch, _)| launch).collect())
    }

    #[test]
    fn without_a_repair_what_no_record_knows_is_ended() {
        assert_eq!(parted(&[("a", 1, 5)], None), [vec![], vec![1]]);
    }

    #[test]
    fn what_was_started_before_the_repair_is_taken_over_and_what_came_later_is_not() {
        let strays = [("a", 1, 5), ("b", 2, 10), ("c", 3, 11)];
        assert_eq!(parted(&strays, Some(10)), [vec![1, 2], vec![3]]);
    }

    #[test]
    fn of_several_launches_the_last_is_taken_over_and_that_of_a_record_and_of_a_probe_never() {
        let strays = [("a", 1, 5), ("a", 2, 6), ("known", 3, 5), ("a/probe", 4, 5)];
        assert_eq!(parted(&strays, Some(10)), [vec![2], vec![1, 3, 4]]);
    }

    #[test]
    fn a_record_has_what_the_keeper_knows() {
        let size = Some(Size { cols: 80, rows: 24 });
        let about = About { id: "a", launch: 3, start_time: 7, size };
        let made = record(about, 9);
        assert_eq!((&*made.id, made.birth, made.launch, made.create_time), ("a", 9, 3, 7));
        assert!(matches!(made.spec.streams, Streams::Terminal { .. }) && is_recovered(&made));
        let made = record(About { size: None, ..about }, 9);
        assert!(matches!(made.spec.streams, Streams::Pipes { .. }));
    }
}
