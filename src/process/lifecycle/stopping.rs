//! A process that was told to end: its grace period, and who of its tree is left. Pure.

use std::time::Duration;

use super::{Ask, Moment, Order, after};
use crate::process::signal;
use crate::process::{Cause, Descendant, Exit};

/// First pause between two looks at who is left; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(256);

/// What is known of a process that was told to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopping {
    pub(super) why: Cause,
    /// Somebody wants it to be over: it is not started again.
    pub(super) for_good: bool,
    /// The end of the grace period.
    pub(super) kill_at: Moment,
    /// What it was told by last.
    pub(super) signal: Option<i32>,
    /// SIGKILL was asked for.
    pub(super) killing: bool,
    /// Nobody of the tree is left.
    pub(super) gone: bool,
    /// Requests to the keeper that are not answered yet.
    pub(super) unanswered: u32,
    /// When to look who is left, once it has exited.
    pub(super) look_at: Option<Moment>,
    pub(super) pause: Duration,
    pub(super) exit: Option<Exit>,
    /// Everyone whom a signal reached.
    pub(super) reached: Vec<Descendant>,
}

impl Stopping {
    pub(super) fn new(why: Cause) -> Stopping {
        Stopping {
            why,
            for_good: false,
            kill_at: Moment::MAX,
            signal: None,
            killing: false,
            gone: false,
            unanswered: 0,
            look_at: None,
            pause: FIRST_PAUSE,
            exit: None,
            reached: Vec::new(),
        }
    }

    /// Takes an order: the first one, or one more. A grace period only ever gets shorter.
    pub(super) fn hurry(&mut self, Order { why, stop }: Order, now: Moment) -> Option<Ask> {
        self.for_good |= why.is_wanted();
        self.kill_at = self.kill_at.min(after(now, stop.grace));
        self.signal = Some(stop.signal);
        if stop.grace.is_zero() || stop.signal == signal::KILL {
            self.kill_at = now;
            return self.kill();
        }
        (!self.killing).then(|| self.ask(Ask::Signal(stop.signal)))
    }

    pub(super) fn tick(&mut self, now: Moment) -> Option<Ask> {
        if self.kill_at <= now && !self.killing {
            return self.kill();
        }
        self.look_at.take_if(|at| *at <= now).map(|_| self.ask(Ask::Look))
    }

    fn kill(&mut self) -> Option<Ask> {
        if std::mem::replace(&mut self.killing, true) {
            return None;
        }
        self.look_at = None;
        Some(self.ask(Ask::Signal(signal::KILL)))
    }

    fn ask(&mut self, ask: Ask) -> Ask {
        self.unanswered += 1;
        ask
    }

    pub(super) fn signalled(&mut self, signal: i32, members: Vec<Descendant>) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.gone |= signal == signal::KILL;
        for member in members {
            if !self.reached.iter().any(|known| known.pid == member.pid) {
                self.reached.push(member);
            }
        }
    }

    pub(super) fn seen(&mut self, members: &[Descendant], now: Moment) {
        self.unanswered = self.unanswered.saturating_sub(1);
        if members.is_empty() {
            self.gone = true;
        } else if !self.killing {
            self.look_at = Some(after(now, self.pause));
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
    }

    pub(super) fn exited(&mut self, exit: Exit, now: Moment) {
        if exit.lingering.is_empty() {
            self.gone = true;
        } else if !self.killing {
            self.look_at = Some(after(now, self.pause));
        }
        self.exit = Some(exit);
    }
}
