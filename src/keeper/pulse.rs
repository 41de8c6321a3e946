//! Whether the server lives: what is expected of it, and until when.
//!
//! Pure but for the clock that it is given. Judges only; whoever asks has read before what had
//! come, and does what follows.

use std::time::{Duration, Instant};

/// How long a server may be silent. Five of its beats: a busy machine delays some.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a server may take from its start until it serves: a large store takes time to read.
const FIRST: Duration = Duration::from_secs(60);
/// A keeper that looks so much later than it meant to was itself stopped or starved, and so may
/// the server have been.
const LATE: Duration = Duration::from_secs(1);

/// What is expected of a server.
#[derive(Debug)]
pub(super) struct Pulse {
    expected: Expected,
    since: Instant,
    /// Its time was over, and it is looked at once more: both may have been stopped together, and
    /// then it needs a moment to say so.
    suspected: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// That it says within this time that it serves.
    Serving(Duration),
    /// That something comes from it now and then.
    Beats,
    /// Nothing: its end is certain.
    Nothing,
}

/// What a look brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All is well, or it is not yet time to judge.
    Lives,
    /// It did not serve in time.
    NeverServed,
    /// Nothing came from it for too long.
    Silent,
}

impl Pulse {
    /// Of a server that was just started.
    pub(super) fn begin(now: Instant) -> Pulse {
        Pulse::within(FIRST, now)
    }

    /// Of one that is to serve within this time.
    pub(super) fn within(time: Duration, now: Instant) -> Pulse {
        Pulse { expected: Expected::Serving(time), since: now, suspected: false }
    }

    /// Something came from it.
    pub(super) fn heard(&mut self, now: Instant) {
        if self.expected == Expected::Beats {
            (self.since, self.suspected) = (now, false);
        }
    }

    /// It serves.
    pub(super) fn serves(&mut self, now: Instant) {
        (self.expected, self.since) = (Expected::Beats, now);
    }

    /// It was judged: nothing more is expected of it.
    pub(super) fn over(&mut self) {
        self.expected = Expected::Nothing;
    }

    /// When it is to be looked at, should nothing come before.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.expected {
            Expected::Serving(time) => Some(self.since + time),
            Expected::Beats if self.suspected => Some(self.since + SILENCE + LATE),
            Expected::Beats => Some(self.since + SILENCE),
            Expected::Nothing => None,
        }
    }

    /// Judges. All that had come was read before.
    pub(super) fn judge(&mut self, now: Instant) -> Verdict {
        match self.due() {
            Some(due) if now > due + LATE => {
                (self.since, self.suspected) = (now, false);
                Verdict::Lives
            }
            Some(due) if now >= due => match self.expected {
                Expected::Serving(_) => Verdict::NeverServed,
                _ if std::mem::replace(&mut self.suspected, true) => Verdict::Silent,
                _ => Verdict::Lives,
            },
            _ => Verdict::Lives,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_silent_ten_seconds_after_its_last_word() {
        let begin = Instant::now();
        let mut pulse = Pulse::begin(begin);
        pulse.serves(begin);
        let heard = begin + Duration::from_secs(8);
        pulse.heard(heard);
        assert_eq!(pulse.due(), Some(heard + SILENCE));
        assert_eq!(pulse.judge(begin + SILENCE), Verdict::Lives);
        assert_eq!(pulse.judge(heard + SILENCE), Verdict::Lives, "it is looked at once more");
        assert_eq!(pulse.due(), Some(heard + SILENCE + LATE));
        assert_eq!(pulse.judge(heard + SILENCE + LATE), Verdict::Silent);
        pulse.over();
        assert_eq!((pulse.due(), pulse.judge(heard + SILENCE)), (None, Verdict::Lives));
    }

    #[test]
    fn beats_do_not_stand_for_serving() {
        let begin = Instant::now();
        let mut pulse = Pulse::begin(begin);
        pulse.heard(begin + FIRST / 2);
        assert_eq!(pulse.judge(begin + SILENCE), Verdict::Lives);
        assert_eq!(pulse.judge(begin + FIRST), Verdict::NeverServed);
    }

    #[test]
    fn a_keeper_that_looks_too_late_grants_a_fresh_period() {
        let begin = Instant::now();
        let mut pulse = Pulse::begin(begin);
        pulse.serves(begin);
        let late = begin + SILENCE + 2 * LATE;
        assert_eq!(pulse.judge(late), Verdict::Lives);
        assert_eq!(pulse.judge(late + SILENCE), Verdict::Lives);
        assert_eq!(pulse.judge(late + SILENCE + LATE), Verdict::Silent);
    }
}
