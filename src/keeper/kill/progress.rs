//! The time that a SIGKILL to a tree has: which processes it names, and when it ends. Pure.

use std::time::{Duration, Instant};

/// How long SIGKILL may take to end a tree; then the kill is answered with what remains. A Kill is
/// so answered within 5 s after its grace period, unless other kills delay its first SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(4);

/// How much longer a kill waits for its answer while each look finds new processes only.
const NEW_PROCESSES_TIMEOUT: Duration = Duration::from_millis(500);

/// When a SIGKILL to a tree was sent.
#[derive(Clone, Copy)]
pub(super) struct Progress {
    /// The first time: from then on the tree has time to end.
    begin: Instant,
    /// The last time to a process that took it, and that the look before had not found.
    last_new: Instant,
}

/// The members of a tree that a look of a SIGKILL names as unkillable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// SIGKILL still has time.
    None,
    /// Those that the previous look signalled as well.
    SignalledBefore,
    /// All: the answer waits no longer.
    All,
}

impl Progress {
    pub(super) fn begin(now: Instant) -> Progress {
        Progress { begin: now, last_new: now }
    }

    /// Another process took SIGKILL.
    pub(super) fn reached_new(&mut self, now: Instant) {
        self.last_new = now;
    }

    /// Which processes a look that began at `now` names.
    pub(super) fn named(self, now: Instant) -> Named {
        let elapsed = now.saturating_duration_since(self.begin);
        if elapsed < KILL_TIMEOUT {
            Named::None
        } else if elapsed < KILL_TIMEOUT + NEW_PROCESSES_TIMEOUT {
            Named::SignalledBefore
        } else {
            Named::All
        }
    }

    /// SIGKILL has reached no new process for so long that another one changes nothing.
    pub(super) fn is_stuck(self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_new) >= KILL_TIMEOUT
    }
}

impl Named {
    /// Whether a member is named; `again`: the previous look signalled it as well.
    pub(super) fn includes(self, again: bool) -> bool {
        match self {
            Named::None => false,
            Named::SignalledBefore => again,
            Named::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_process_is_named_only_when_the_answer_cannot_wait() {
        let begin = Instant::now();
        let progress = Progress::begin(begin);
        let at = |after: Duration| progress.named(begin + after);
        let early = KILL_TIMEOUT.checked_sub(Duration::from_millis(1)).unwrap();
        assert!(!at(early).includes(true));
        assert!(at(KILL_TIMEOUT).includes(true) && !at(KILL_TIMEOUT).includes(false));
        assert!(at(KILL_TIMEOUT + NEW_PROCESSES_TIMEOUT).includes(false));
    }

    #[test]
    fn kill_continues_while_it_reaches_new_processes() {
        let begin = Instant::now();
        let mut progress = Progress::begin(begin);
        let later = begin + 2 * KILL_TIMEOUT;
        assert!(progress.is_stuck(begin + KILL_TIMEOUT));
        progress.reached_new(later);
        assert!(!progress.is_stuck(later));
        assert!(progress.is_stuck(later + KILL_TIMEOUT));
    }
}
