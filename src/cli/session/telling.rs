//! Signals on their way to a process: one after the other, and equal ones that wait as one. Pure.

use std::time::Duration;

use tokio::time::Instant;

use super::signals;

/// How long an answer may take until nobody is thought to be there.
const MOMENT: Duration = Duration::from_secs(3);

/// What is to be told, and what is being told.
#[derive(Debug, Default)]
pub(super) struct Telling {
    under_way: Option<i32>,
    /// Each once: there are few signals, so this is short.
    waiting: Vec<i32>,
    /// Since when one that asks to end has no answer.
    asked: Option<Instant>,
}

impl Telling {
    /// Tells of this signal next; returns it if it can be told now.
    pub(super) fn tell(&mut self, number: i32, now: Instant) -> Option<i32> {
        if signals::ends(number) {
            self.asked.get_or_insert(now);
        }
        if self.under_way.is_some() {
            if !self.waiting.contains(&number) {
                self.waiting.push(number);
            }
            return None;
        }
        self.under_way = Some(number);
        self.under_way
    }

    /// What was told last is answered: returns what is told next.
    pub(super) fn done(&mut self, now: Instant) -> Option<i32> {
        self.under_way = if self.waiting.is_empty() { None } else { Some(self.waiting.remove(0)) };
        let left = self.under_way.iter().chain(&self.waiting);
        self.asked = left.copied().any(signals::ends).then_some(now);
        self.under_way
    }

    /// An answer may come from now on.
    pub(super) fn is_reachable(&mut self, now: Instant) {
        self.asked = self.asked.map(|_| now);
    }

    /// Whether one that asks to end has had no answer for a while.
    pub(super) fn is_in_vain(&self, now: Instant) -> bool {
        self.asked.is_some_and(|asked| now.duration_since(asked) >= MOMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_told_one_by_one_and_equal_ones_once() {
        let (now, mut telling) = (Instant::now(), Telling::default());
        assert_eq!(telling.tell(libc::SIGINT, now), Some(libc::SIGINT));
        for number in [libc::SIGUSR1, libc::SIGINT, libc::SIGUSR1] {
            assert_eq!(telling.tell(number, now), None);
        }
        assert_eq!(telling.done(now), Some(libc::SIGUSR1));
        assert_eq!(telling.done(now), Some(libc::SIGINT));
        assert_eq!(telling.done(now), None);
        assert_eq!(telling.tell(libc::SIGINT, now), Some(libc::SIGINT));
    }

    #[test]
    fn only_what_asks_to_end_and_has_no_answer_is_in_vain() {
        let (now, mut telling) = (Instant::now(), Telling::default());
        telling.tell(libc::SIGUSR1, now);
        assert!(!telling.is_in_vain(now + MOMENT));
        telling.tell(libc::SIGINT, now);
        assert!(!telling.is_in_vain(now) && telling.is_in_vain(now + MOMENT));
        telling.is_reachable(now + MOMENT);
        assert!(!telling.is_in_vain(now + MOMENT) && telling.is_in_vain(now + 2 * MOMENT));
        telling.done(now + MOMENT);
        assert!(!telling.is_in_vain(now + MOMENT));
        telling.done(now + MOMENT);
        assert!(!telling.is_in_vain(now + 3 * MOMENT));
    }
}
