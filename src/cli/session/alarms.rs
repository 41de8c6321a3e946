//! What a session does by the clock. Pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::cli::client::AWAY;

/// How long the first of the keys that detach waits for the next.
const BETWEEN_KEYS: Duration = Duration::from_secs(1);
/// How soon the count of the input is asked for, at first and at last: a process that reads is
/// quick, and one that does not is not to be asked for all the time.
const FIRST_COUNT: Duration = Duration::from_millis(5);
const LAST_COUNT: Duration = Duration::from_millis(250);
/// How long what was typed before leaving may take to arrive.
const LEAVE: Duration = Duration::from_secs(5);

/// When to do what.
#[derive(Debug)]
pub(super) struct Alarms {
    release: Option<Instant>,
    count: Option<Instant>,
    count_pause: Duration,
    away: Option<Instant>,
    leave: Option<Instant>,
}

/// What it is time for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// To pass on a key that was held back.
    Release,
    /// To ask how far the input is.
    Count,
    /// To say that nobody can be reached.
    Away,
    /// To leave, whatever did not arrive.
    Leave,
}

impl Alarms {
    pub(super) fn new() -> Alarms {
        Alarms { release: None, count: None, count_pause: FIRST_COUNT, away: None, leave: None }
    }

    /// When the next is due.
    pub(super) fn next(&self) -> Option<Instant> {
        [self.release, self.count, self.away, self.leave].into_iter().flatten().min()
    }

    /// What is due by now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Due> {
        let alarms = [
            (&mut self.release, Due::Release),
            (&mut self.count, Due::Count),
            (&mut self.away, Due::Away),
            (&mut self.leave, Due::Leave),
        ];
        let due = alarms.into_iter().filter_map(|(alarm, due)| {
            let rings = alarm.is_some_and(|at| at <= now);
            rings.then(|| {
                *alarm = None;
                due
            })
        });
        due.collect()
    }

    /// A key is held back, or none is any more.
    pub(super) fn held(&mut self, holds: bool) {
        self.release = holds.then(|| Instant::now() + BETWEEN_KEYS);
    }

    /// Something was typed that may have arrived soon, and later if it has not.
    pub(super) fn count(&mut self) {
        if self.count.is_none() {
            self.count = Some(Instant::now() + self.count_pause);
            self.count_pause = (2 * self.count_pause).min(LAST_COUNT);
        }
    }

    /// Some of it has arrived.
    pub(super) fn arrived(&mut self) {
        self.count_pause = FIRST_COUNT;
    }

    /// We leave soon.
    pub(super) fn leave(&mut self) {
        self.count_pause = FIRST_COUNT;
        self.leave = Some(Instant::now() + LEAVE);
    }

    /// The connection was lost, or is there.
    pub(super) fn lost(&mut self, is_lost: bool) {
        self.away = is_lost.then(|| Instant::now() + AWAY);
    }
}
