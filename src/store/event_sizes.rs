//! How many bytes the stored events take, and from which one on they are within a bound. Pure.
//!
//! Knows sums of a few events each, not every event. What earlier servers wrote is counted from the
//! newest to the oldest, some after each commit: once the counted ones exceed a bound, all that are
//! not counted yet are beyond it, too.

use std::collections::VecDeque;

/// Events of which one sum is kept.
const STEP: u64 = 64;

/// The counted events, oldest first.
#[derive(Debug, Default)]
pub(super) struct EventSizes {
    steps: VecDeque<Step>,
    bytes: u64,
    /// All events that are stored were counted.
    is_complete: bool,
}

/// Events with numbers of the same multiple of [`STEP`].
#[derive(Debug)]
struct Step {
    /// Number of the first that was counted.
    first: u64,
    bytes: u64,
}

impl EventSizes {
    /// Counts the newest event.
    pub(super) fn push(&mut self, seq: u64, bytes: u64) {
        self.bytes += bytes;
        match self.steps.back_mut() {
            Some(step) if step.first / STEP == seq / STEP => step.bytes += bytes,
            _ => self.steps.push_back(Step { first: seq, bytes }),
        }
    }

    /// The event before which those come that are not counted yet; none: all are.
    pub(super) fn uncounted_before(&self, oldest: u64) -> Option<u64> {
        let first = self.steps.front().map_or(u64::MAX, |step| step.first);
        (!self.is_complete && first > oldest).then_some(first)
    }

    /// Counts events before all that were counted, newest first. Without one, there are no more.
    pub(super) fn count_older(&mut self, older: Vec<(u64, u64)>) {
        self.is_complete = older.is_empty();
        for (seq, bytes) in older {
            self.bytes += bytes;
            match self.steps.front_mut() {
                Some(step) if step.first / STEP == seq / STEP => {
                    *step = Step { first: seq, bytes: step.bytes + bytes };
                }
                _ => self.steps.push_front(Step { first: seq, bytes }),
            }
        }
    }

    /// Events before this one were removed.
    pub(super) fn forget_before(&mut self, oldest: u64) {
        while self.steps.get(1).is_some_and(|next| next.first <= oldest)
            && let Some(step) = self.steps.pop_front()
        {
            self.bytes -= step.bytes;
        }
    }

    /// The first of the newest events that take at most so many bytes together; 0: all are known to.
    /// The last few always stay.
    pub(super) fn first_within(&self, max_bytes: u64) -> u64 {
        if self.bytes <= max_bytes {
            return 0;
        }
        let mut bytes = 0;
        let newest_first = self.steps.iter().rev();
        let within = newest_first.take_while(|step| {
            bytes += step.bytes;
            bytes <= max_bytes
        });
        let last = self.steps.back().map_or(0, |step| step.first);
        within.last().map_or(last, |step| step.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(numbers: std::ops::RangeInclusive<u64>) -> EventSizes {
        let mut sizes = EventSizes::default();
        numbers.for_each(|seq| sizes.push(seq, 10));
        sizes
    }

    #[test]
    fn newest_events_within_the_bound_stay() {
        let mut sizes = sizes(1..=640);
        assert_eq!(sizes.first_within(6400), 0);
        assert_eq!(sizes.first_within(6399), 64);
        assert_eq!(sizes.first_within(1930), 448);
        assert_eq!(sizes.first_within(0), 640, "the last ones stay");
        sizes.forget_before(448);
        assert_eq!((sizes.bytes, sizes.first_within(1930)), (1930, 0));
    }

    #[test]
    fn events_of_earlier_servers_are_counted_backwards() {
        let mut sizes = sizes(1000..=1010);
        let mut stored: Vec<_> = (1..1000).rev().map(|seq| (seq, 10)).collect();
        while let Some(before) = sizes.uncounted_before(1) {
            let next: Vec<_> = stored.extract_if(.., |(seq, _)| *seq + 200 >= before).collect();
            sizes.count_older(next);
        }
        assert_eq!((sizes.bytes, sizes.steps.front().unwrap().first), (10_100, 1));
        assert_eq!(sizes.first_within(1000), 960);
    }

    #[test]
    fn counting_ends_where_no_event_is_left() {
        let mut sizes = sizes(100..=100);
        sizes.count_older(vec![(99, 1), (50, 1)]);
        assert_eq!(sizes.uncounted_before(1), Some(50));
        sizes.count_older(Vec::new());
        assert_eq!(sizes.uncounted_before(1), None);
        assert_eq!(EventSizes::default().uncounted_before(1), Some(u64::MAX));
    }
}
