//! Bounds the log lines that refusals get: the first of each source and reason, then a count.
//!
//! A refused call costs its client nothing, so that without a bound a client could fill a log of bounded
//! size and rotate everything else out of it. Of each interval the first refusals of a source (a caller,
//! a user or an address) for a reason have lines of their own; the others are counted, and a summary line
//! per source and reason tells how many they were. A client that repeats one refused call so leaves
//! lines for other refusals of its source. The counts belong to the process, as the log does.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::changes;

/// How often refusals without a line are summarised. What a killed server has counted is lost.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(30);

/// Lines in an interval: of one source for one reason, of one source, and of all.
const MAX_LINES_PER_REASON: u32 = 4;
const MAX_LINES_PER_SOURCE: u32 = 16;
const MAX_LINES: u32 = 128;

/// Pairs of source and reason that are counted apart; further ones share one count.
const MAX_SUMMARIES: usize = 64;

/// How the source and the reason of the shared count are called.
const OTHERS: &str = "others";

/// The reason of calls that were answered and changed nothing, and the name of their lines: they are
/// counted as refusals are, because a caller makes any number of them.
pub const UNCHANGED: &str = "changed nothing";

static REFUSALS: Mutex<Refusals> = Mutex::new(Refusals::new());

/// Counts a refusal. Returns whether it has a log line of its own, which the caller then writes.
/// `reason` has no part that varies between refusals of one kind, such as a time.
#[must_use]
pub fn has_line(source: &str, reason: &str) -> bool {
    REFUSALS.lock().unwrap_or_else(PoisonError::into_inner).add(source, reason)
}

/// Writes the summaries of each interval, for ever.
pub async fn summarise() {
    let mut ticks = tokio::time::interval(SUMMARY_INTERVAL);
    loop {
        ticks.tick().await;
        write_summaries();
        changes::write_summaries_when_due();
    }
}

/// Writes a line for each source and reason that had refusals without a line, and begins an interval.
pub fn write_summaries() {
    let summaries = REFUSALS.lock().unwrap_or_else(PoisonError::into_inner).take();
    for ((source, result), count) in summaries {
        match result == UNCHANGED {
            true => tracing::warn!(target: super::AUDIT_TARGET, source, result, count, "calls"),
            false => {
                tracing::warn!(target: super::AUDIT_TARGET, source, result, count, "refused calls");
            }
        }
    }
}

/// What was refused in the current interval.
#[derive(Debug)]
struct Refusals {
    lines: u32,
    /// Lines of each source, by reason.
    lines_of: BTreeMap<String, BTreeMap<String, u32>>,
    counts: BTreeMap<(String, String), u64>,
}

impl Refusals {
    const fn new() -> Refusals {
        Refusals { lines: 0, lines_of: BTreeMap::new(), counts: BTreeMap::new() }
    }

    fn add(&mut self, source: &str, reason: &str) -> bool {
        if self.has_room(source, reason) {
            let reasons = self.lines_of.entry(source.to_owned()).or_default();
            *reasons.entry(reason.to_owned()).or_default() += 1;
            self.lines += 1;
            return true;
        }
        let key = (source.to_owned(), reason.to_owned());
        let key = match self.counts.contains_key(&key) || self.counts.len() < MAX_SUMMARIES {
            true => key,
            false => (OTHERS.to_owned(), OTHERS.to_owned()),
        };
        *self.counts.entry(key).or_default() += 1;
        false
    }

    /// Whether another refusal may have a line.
    fn has_room(&self, source: &str, reason: &str) -> bool {
        let Some(reasons) = self.lines_of.get(source) else { return self.lines < MAX_LINES };
        let of_reason = reasons.get(reason).copied().unwrap_or_default();
        self.lines < MAX_LINES
            && of_reason < MAX_LINES_PER_REASON
            && reasons.values().sum::<u32>() < MAX_LINES_PER_SOURCE
    }

    fn take(&mut self) -> BTreeMap<(String, String), u64> {
        std::mem::replace(self, Refusals::new()).counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_beyond_the_first_are_counted() {
        let mut refusals = Refusals::new();
        let with_lines = (0..80_000).filter(|_| refusals.add("192.0.2.1", "no token")).count();
        assert_eq!(with_lines, MAX_LINES_PER_REASON as usize);
        assert!(refusals.add("192.0.2.1", "bad token"), "another reason has lines of its own");
        assert!(refusals.add("token:ci", "ROLE"), "another source has lines of its own");
        let counts = refusals.take();
        let expected = (("192.0.2.1".to_owned(), "no token".to_owned()), 80_000 - 4);
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [expected]);
        assert!(refusals.add("192.0.2.1", "no token"), "the next interval begins with lines");
    }

    #[test]
    fn many_reasons_of_one_source_have_bounded_lines() {
        let mut refusals = Refusals::new();
        let with_lines = (0..100).filter(|n| refusals.add("192.0.2.1", &n.to_string())).count();
        assert_eq!(with_lines, MAX_LINES_PER_SOURCE as usize);
    }

    #[test]
    fn many_sources_have_bounded_lines_and_counts() {
        let mut refusals = Refusals::new();
        let sources = || (0..10_000).map(|n| n.to_string());
        let with_lines = sources().filter(|source| refusals.add(source, "no token")).count();
        assert_eq!(with_lines, MAX_LINES as usize);
        assert!(refusals.lines_of.len() <= MAX_LINES as usize);
        let counts = refusals.take();
        assert_eq!(counts.len(), MAX_SUMMARIES + 1);
        assert_eq!(counts.values().sum::<u64>(), 10_000 - u64::from(MAX_LINES));
    }
}
