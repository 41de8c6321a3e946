//! How long the exit of a process waits until the owner of each orphan is known.
//!
//! The programs of one caller can keep the owner of some orphan unknown all the time, and each exit
//! that waits holds up all others. So exits wait for a share of all time only.

use std::time::{Duration, Instant};

use super::tree::UNKNOWN_OWNER_TIMEOUT;

/// How long the keeper waits between two looks at the orphans.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// How long exits may wait, one after the other, before the share bounds them.
const MAX_BURST: Duration = Duration::from_secs(1);

/// Exits wait for one part in so many of all time.
const SHARE: u32 = 10;

/// The wait of an exit, and what exits may still wait.
pub(super) struct OwnerWait {
    /// When the wait that is under way began, and when the next look is due.
    under_way: Option<(Instant, Instant)>,
    /// When the share of all time has paid for the waits until now.
    paid_at: Instant,
}

impl OwnerWait {
    pub(super) fn new(now: Instant) -> OwnerWait {
        OwnerWait { under_way: None, paid_at: now }
    }

    /// When the wait that is under way needs another look.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.under_way.map(|(_, look)| look)
    }

    /// Waits until the next look. False: it has waited for as long as it may.
    pub(super) fn extend(&mut self, now: Instant) -> bool {
        let begin = self.under_way.map_or(now, |(begin, _)| begin);
        let may_wait = now < begin + UNKNOWN_OWNER_TIMEOUT
            && self.paid_after(begin, now) < now + SHARE * MAX_BURST;
        if may_wait {
            self.under_way = Some((begin, now + LOOK_INTERVAL));
        }
        may_wait
    }

    /// The exit waits no longer.
    pub(super) fn end(&mut self, now: Instant) {
        if let Some((begin, _)) = self.under_way.take() {
            self.paid_at = self.paid_after(begin, now);
        }
    }

    fn paid_after(&self, begin: Instant, end: Instant) -> Instant {
        self.paid_at.max(begin) + SHARE * (end - begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_waits_half_a_second_at_most() {
        let begin = Instant::now();
        let mut wait = OwnerWait::new(begin);
        assert!(wait.extend(begin));
        assert_eq!(wait.next_look(), Some(begin + LOOK_INTERVAL));
        assert!(wait.extend(begin + Duration::from_millis(499)));
        assert!(!wait.extend(begin + Duration::from_millis(500)));
        wait.end(begin + Duration::from_millis(500));
        assert_eq!(wait.next_look(), None);
    }

    #[test]
    fn exits_wait_for_a_share_of_all_time() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut wait = OwnerWait::new(begin);
        // Time before the burst does not prolong it.
        for start in [100_000, 100_400] {
            assert!(wait.extend(at(start)) && wait.extend(at(start + 399)));
            wait.end(at(start + 400));
        }
        assert!(wait.extend(at(100_800)) && wait.extend(at(101_000)));
        assert!(!wait.extend(at(101_200)), "the wait that is under way counts, too");
        wait.end(at(101_200));
        assert!(!wait.extend(at(101_200)));
        assert!(wait.extend(at(103_000)));
    }
}
