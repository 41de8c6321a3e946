//! Bounds the audit lines that the changes of one caller get in a minute; further ones are counted.
//!
//! The audit file has a bounded size. Without a bound, one caller with many small changes could rotate
//! the lines of all others out of it. A summary line per caller and call tells exactly how many changes
//! had no line of their own. The counts belong to the process, as the log does.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one caller in an interval.
const MAX_LINES_PER_CALLER: u32 = 10_000;

/// How long lines are counted before the summaries are written.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(60);

static CHANGES: Mutex<Changes> = Mutex::new(Changes::new());

/// Counts a change. Returns whether it has an audit line of its own, which the caller then writes.
#[must_use]
pub fn has_line(caller: &str, call: &'static str) -> bool {
    let mut changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    changes.add(caller, call, MAX_LINES_PER_CALLER)
}

/// Writes the summaries if the interval is over.
pub fn write_summaries_when_due() {
    let now = Instant::now();
    let mut changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_due = changes.begin.is_none_or(|begin| now - begin >= SUMMARY_INTERVAL);
    if is_due {
        let counts = changes.take();
        changes.begin = Some(now);
        drop(changes);
        write(counts);
    }
}

/// Writes a line for each caller and call that had changes without a line, and begins an interval.
pub fn write_summaries() {
    let counts = CHANGES.lock().unwrap_or_else(PoisonError::into_inner).take();
    write(counts);
}

fn write(counts: Counts) {
    for ((caller, call), count) in counts {
        tracing::info!(target: super::AUDIT_TARGET, caller, call, count, "changes without a line");
    }
}

/// Changes without a line, by caller and call.
type Counts = BTreeMap<(String, &'static str), u64>;

/// What was changed in the current interval.
#[derive(Debug)]
struct Changes {
    begin: Option<Instant>,
    /// Lines of each caller. Only callers with a right to change something are here.
    lines: BTreeMap<String, u32>,
    counts: Counts,
}

impl Changes {
    const fn new() -> Changes {
        Changes { begin: None, lines: BTreeMap::new(), counts: BTreeMap::new() }
    }

    fn add(&mut self, caller: &str, call: &'static str, max_lines: u32) -> bool {
        let lines = match self.lines.get_mut(caller) {
            Some(lines) => lines,
            None => self.lines.entry(caller.to_owned()).or_default(),
        };
        if *lines < max_lines {
            *lines += 1;
            return true;
        }
        *self.counts.entry((caller.to_owned(), call)).or_default() += 1;
        false
    }

    fn take(&mut self) -> Counts {
        std::mem::replace(self, Changes { begin: self.begin, ..Changes::new() }).counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_beyond_the_lines_of_a_caller_are_counted() {
        let mut changes = Changes::new();
        let with_lines = (0..110_000).filter(|_| changes.add("a", "Start", 10_000)).count();
        assert_eq!(with_lines, 10_000);
        assert!(!changes.add("a", "Kill", 10_000));
        assert!(changes.add("b", "Kill", 10_000), "another caller has lines of its own");
        let expected = [(("a".into(), "Kill"), 1), (("a".into(), "Start"), 100_000)];
        assert_eq!(changes.take().into_iter().collect::<Vec<_>>(), expected);
        assert!(changes.add("a", "Start", 10_000), "the next interval begins with lines");
    }
}
