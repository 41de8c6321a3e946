//! Whether and when a service is started again. Pure: time and chance come as arguments.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::lifecycle::after;
use super::{GiveUp, Moment, Outcome, Policy, Restart};

/// Time up after which the backoff starts from `backoff_min` again.
const BACKOFF_RESET: Duration = Duration::from_secs(60);

/// How often a service was started again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// In this run.
    pub count: u32,
    /// Those since it was last up for long: what the pause depends on.
    pub in_a_row: u32,
    /// The latest starts, also those that failed, the newest last: as many as [`GiveUp`] counts.
    pub starts: Vec<Moment>,
}

/// What becomes of a service that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays ended.
    Over,
    /// It stays ended, though its policy would start it again.
    GivenUp(String),
    /// It is started again at this moment.
    Again(Moment),
}

impl Restarts {
    /// It is being started.
    pub fn starting(&mut self, restart: &Restart, now: Moment) {
        let counted = restart.give_up.map_or(0, |give_up| give_up.starts as usize);
        self.starts.push(now);
        self.starts.drain(..self.starts.len().saturating_sub(counted));
    }

    /// It has ended, after it was up since `started`; none: it could not be started. `chance` is
    /// between 0 and 1.
    pub fn ended(
        &mut self,
        restart: &Restart,
        outcome: Outcome,
        started: Option<Moment>,
        now: Moment,
        chance: f64,
    ) -> Verdict {
        if !restart.policy.wants(outcome) {
            return Verdict::Over;
        }
        if restart.most.is_some_and(|most| self.count >= most) {
            return Verdict::GivenUp(gave_up_after(self.count, "restart"));
        }
        if let Some(GiveUp { starts, within }) = restart.give_up
            && self.has_started(starts, within, now)
        {
            let starts = gave_up_after(starts, "start");
            return Verdict::GivenUp(format!("{starts} within {within:?}"));
        }
        if started.is_some_and(|started| now >= after(started, BACKOFF_RESET)) {
            self.in_a_row = 0;
        }
        let pause = pause(restart, self.in_a_row, chance);
        self.count = self.count.saturating_add(1);
        self.in_a_row = self.in_a_row.saturating_add(1);
        Verdict::Again(after(now, pause))
    }

    /// Whether the latest `starts` starts lie within a span that ends now.
    fn has_started(&self, starts: u32, within: Duration, now: Moment) -> bool {
        let oldest = self.starts.len().checked_sub(starts as usize);
        oldest.is_some_and(|oldest| now <= after(self.starts[oldest], within))
    }
}

impl Policy {
    /// Whether one that ended like this is to be started again.
    pub fn wants(self, outcome: Outcome) -> bool {
        match (self, outcome) {
            (Policy::Never, _) | (_, Outcome::Canceled) => false,
            (Policy::OnFailure, outcome) => outcome != Outcome::Succeeded,
            (Policy::Always, _) => true,
        }
    }
}

fn gave_up_after(count: u32, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("gave up after {count} {what}{plural}")
}

/// Doubles with each restart in a row, and is up to a quarter longer by chance: what ended
/// together does not come back together.
fn pause(restart: &Restart, in_a_row: u32, chance: f64) -> Duration {
    let doubled = restart.backoff_min.saturating_mul(1 << in_a_row.min(31));
    let pause = doubled.min(restart.backoff_max);
    pause.saturating_add(pause.mul_f64(chance.clamp(0.0, 1.0) / 4.0)).min(restart.backoff_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn always() -> Restart {
        Restart { policy: Policy::Always, ..Restart::default() }
    }

    /// The pauses of a service that ends after `up`, until it is given up.
    fn pauses(restart: &Restart, up: Duration, most: usize) -> (Vec<Duration>, Option<String>) {
        let (mut restarts, mut now, mut pauses) = (Restarts::default(), 0, Vec::new());
        while pauses.len() < most {
            restarts.starting(restart, now);
            let started = (!up.is_zero()).then_some(now);
            now = after(now, up);
            match restarts.ended(restart, Outcome::Failed, started, now, 0.0) {
                Verdict::Again(at) => {
                    pauses.push(Duration::from_nanos(at - now));
                    now = at;
                }
                Verdict::GivenUp(why) => return (pauses, Some(why)),
                Verdict::Over => return (pauses, None),
            }
        }
        (pauses, None)
    }

    #[test]
    fn a_policy_says_which_ends_are_followed_by_a_start() {
        let again = |policy, outcome| {
            let restart = Restart { policy, ..Restart::default() };
            Restarts::default().ended(&restart, outcome, None, 0, 0.0) != Verdict::Over
        };
        let outcomes = [Outcome::Succeeded, Outcome::Failed, Outcome::TimedOut, Outcome::Canceled];
        let table = [
            (Policy::Never, [false, false, false, false]),
            (Policy::OnFailure, [false, true, true, false]),
            (Policy::Always, [true, true, true, false]),
        ];
        for (policy, expected) in table {
            assert_eq!(outcomes.map(|outcome| again(policy, outcome)), expected, "{policy:?}");
        }
    }

    #[test]
    fn the_pause_doubles_up_to_the_longest() {
        let restart = Restart { backoff_max: Duration::from_secs(1), ..always() };
        let (pauses, _) = pauses(&restart, Duration::from_secs(10), 6);
        assert_eq!(
            pauses.iter().map(Duration::as_millis).collect::<Vec<_>>(),
            [100, 200, 400, 800, 1000, 1000]
        );
    }

    #[test]
    fn chance_adds_a_quarter_at_most_and_never_beyond_the_longest() {
        let restart = always();
        assert_eq!(pause(&restart, 0, 1.0), Duration::from_millis(125));
        assert_eq!(pause(&restart, 40, 1.0), Duration::from_secs(60));
        let endless = Restart { backoff_max: Duration::MAX, ..restart };
        assert!(pause(&endless, 99, 1.0) > Duration::from_secs(60));
    }

    #[test]
    fn after_a_minute_up_the_pauses_begin_anew() {
        let restart = always();
        let (pauses, _) = pauses(&restart, Duration::from_secs(60), 4);
        assert!(pauses.iter().all(|pause| *pause == restart.backoff_min), "{pauses:?}");
    }

    fn giving_up(starts: u32, within: Duration) -> Restart {
        Restart { give_up: Some(GiveUp { starts, within }), ..always() }
    }

    #[test]
    fn service_that_fails_at_once_is_started_once_a_minute_for_ever() {
        let day = Duration::from_secs(86_400);
        let (pauses, why) = pauses(&always(), Duration::from_millis(1), 100_000);
        assert_eq!(why, None);
        let mut left = day;
        let first_day = pauses.iter().take_while(|pause| {
            left = left.saturating_sub(**pause);
            !left.is_zero()
        });
        assert_eq!(first_day.count(), 1448);
    }

    #[test]
    fn restart_of_an_older_record_is_read() {
        let pause = r#"{"secs":1,"nanos":0}"#;
        let older = format!(
            r#"{{"policy":"Always","most":null,"backoff_min":{pause},"backoff_max":{pause}}}"#
        );
        let read: Restart = serde_json::from_str(&older).unwrap();
        assert_eq!((read.policy, read.give_up), (Policy::Always, None));
    }

    #[test]
    fn starts_are_remembered_only_as_far_as_they_count() {
        for (restart, kept) in [(always(), 0), (giving_up(3, Duration::from_secs(1)), 3)] {
            let mut restarts = Restarts::default();
            (0..10).for_each(|n| restarts.starting(&restart, n));
            assert_eq!(restarts.starts.len(), kept);
        }
    }

    #[test]
    fn too_many_starts_within_the_span_end_the_service() {
        let restart = giving_up(5, Duration::from_secs(10));
        let (quick, why) = pauses(&restart, Duration::from_millis(1), 100);
        assert_eq!(quick.len(), 4);
        assert_eq!(why.as_deref(), Some("gave up after 5 starts within 10s"));
        let (slow, why) = pauses(&restart, Duration::from_secs(11), 100);
        assert_eq!((slow.len(), why), (100, None));
        let (none, why) = pauses(&giving_up(1, Duration::from_secs(1)), Duration::ZERO, 100);
        assert_eq!((none.len(), why.is_some()), (0, true));
    }

    #[test]
    fn failed_starts_count_however_long_it_was_up_before() {
        let restart = giving_up(5, Duration::from_secs(10));
        let mut restarts = Restarts::default();
        restarts.starting(&restart, 0);
        let mut now = 100 * SECOND;
        let mut verdict = restarts.ended(&restart, Outcome::Failed, Some(0), now, 0.0);
        let mut pauses = Vec::new();
        while let Verdict::Again(at) = verdict {
            pauses.push(Duration::from_nanos(at - now).as_millis());
            now = at;
            restarts.starting(&restart, now);
            verdict = restarts.ended(&restart, Outcome::Failed, None, now, 0.0);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600]);
    }

    #[test]
    fn a_bound_on_restarts_holds() {
        for most in [1, 2, 50] {
            let restart = Restart { most: Some(most), ..always() };
            let (pauses, why) = pauses(&restart, Duration::from_millis(1), 100);
            let expected = gave_up_after(most, "restart");
            assert_eq!((pauses.len(), why), (most as usize, Some(expected)));
        }
    }

    #[test]
    fn a_service_is_counted_as_often_as_it_is_started_again() {
        let mut restarts = Restarts::default();
        for n in 1..=3 {
            restarts.starting(&always(), n * 100 * SECOND);
            let at = restarts.ended(&always(), Outcome::Failed, None, n * 100 * SECOND, 0.0);
            assert!(matches!(at, Verdict::Again(_)));
        }
        assert_eq!(restarts.count, 3);
    }
}
