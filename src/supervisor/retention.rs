//! Which finished records go. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How many finished records are kept, for how long, and how large. The oldest go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Most records.
    pub count: usize,
    /// Longest time since the end.
    pub age: Duration,
    /// Most bytes of transcripts, specs and structured outputs together.
    pub bytes: u64,
    /// Most bytes of structured outputs, which are in memory.
    pub output_bytes: u64,
}

impl Keep {
    /// Most bytes of structured outputs, where memory has no lower limit.
    pub const MAX_OUTPUT_BYTES: u64 = 256 << 20;

    /// A hundred records, for an hour, of any size.
    #[cfg(test)]
    pub(super) const HUNDRED: Keep = Keep {
        count: 100,
        age: Duration::from_secs(3600),
        bytes: u64::MAX,
        output_bytes: u64::MAX,
    };
}

/// What a finished record takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Footprint {
    /// All bytes.
    pub(super) bytes: u64,
    /// Those of its structured output.
    pub(super) output_bytes: u64,
}

/// The finished records, oldest first.
#[derive(Default)]
pub(super) struct Finished {
    /// By the time of the end, in nanoseconds since 1970, and birth.
    records: BTreeMap<(u64, u64), (Arc<str>, Footprint)>,
    total: Footprint,
}

impl Finished {
    pub(super) fn insert(&mut self, time: u64, birth: u64, id: &Arc<str>, new: Footprint) {
        self.remove(time, birth);
        self.total.bytes += new.bytes;
        self.total.output_bytes += new.output_bytes;
        self.records.insert((time, birth), (Arc::clone(id), new));
    }

    pub(super) fn remove(&mut self, time: u64, birth: u64) {
        if let Some((_, old)) = self.records.remove(&(time, birth)) {
            self.total.bytes -= old.bytes;
            self.total.output_bytes -= old.output_bytes;
        }
    }

    /// The oldest one, if it must go. The newest one stays until another finishes, whatever its
    /// size and age: its caller can still read it.
    pub(super) fn excess(&self, keep: &Keep, now: u64) -> Option<Arc<str>> {
        let expiry = self.next_expiry(keep)?;
        let is_large = self.total.bytes > keep.bytes || self.total.output_bytes > keep.output_bytes;
        let over = self.records.len() > keep.count || is_large || expiry <= now;
        self.oldest_first().next().filter(|_| over).cloned()
    }

    pub(super) fn oldest_first(&self) -> impl Iterator<Item = &Arc<str>> {
        self.records.values().map(|(id, _)| id)
    }

    /// When the oldest one will be too old, in nanoseconds since 1970. None: it is the newest.
    pub(super) fn next_expiry(&self, keep: &Keep) -> Option<u64> {
        let (time, _) = self.records.keys().next().filter(|_| self.records.len() > 1)?;
        Some(expiry(*time, keep))
    }
}

fn expiry(time: u64, keep: &Keep) -> u64 {
    time.saturating_add(u64::try_from(keep.age.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Keep =
        Keep { count: 2, age: Duration::from_nanos(100), bytes: 1000, output_bytes: 100 };

    fn footprint(bytes: u64) -> Footprint {
        Footprint { bytes, output_bytes: 0 }
    }

    fn finished(records: &[(u64, u64)]) -> Finished {
        let mut finished = Finished::default();
        for (birth, (time, bytes)) in (1..).zip(records) {
            finished.insert(*time, birth, &format!("p{birth}").into(), footprint(*bytes));
        }
        finished
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many_too_old_or_too_large_ones() {
        assert_eq!(finished(&[(5, 1), (6, 1)]).excess(&KEEP, 10), None);
        assert_eq!(finished(&[(5, 1), (6, 1), (7, 1)]).excess(&KEEP, 10).unwrap(), "p1".into());
        assert_eq!(finished(&[(9, 1), (5, 1)]).excess(&KEEP, 105).unwrap(), "p2".into());
        assert_eq!(finished(&[(5, 600), (6, 600)]).excess(&KEEP, 10).unwrap(), "p1".into());
    }

    #[test]
    fn oldest_goes_when_outputs_take_too_much_memory() {
        let mut records = finished(&[(5, 60)]);
        for (time, birth) in [(6, 2), (7, 3)] {
            let new = Footprint { bytes: 60, output_bytes: 60 };
            assert_eq!(records.excess(&KEEP, 10), None);
            records.insert(time, birth, &format!("p{birth}").into(), new);
            // The same once more.
            records.insert(time, birth, &format!("p{birth}").into(), new);
        }
        assert_eq!(records.excess(&KEEP, 10).unwrap(), "p1".into());
    }

    #[test]
    fn newest_record_stays_until_another_finishes() {
        let none = Keep { count: 0, age: Duration::ZERO, bytes: 0, output_bytes: 0 };
        let mut records = finished(&[(5, 2000)]);
        for keep in [KEEP, none] {
            assert_eq!(records.excess(&keep, u64::MAX), None);
            assert_eq!(records.next_expiry(&keep), None);
        }
        records.insert(6, 2, &"p2".into(), footprint(1));
        assert_eq!(records.excess(&KEEP, 10).unwrap(), "p1".into());
    }

    #[test]
    fn what_was_removed_no_longer_counts() {
        let mut records = finished(&[(5, 600), (6, 600)]);
        records.remove(5, 1);
        assert_eq!(records.excess(&KEEP, 10), None);
        records.insert(7, 3, &"p3".into(), footprint(1));
        assert_eq!(records.next_expiry(&KEEP), Some(106));
    }
}
