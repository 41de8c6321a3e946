//! A process that was told to end: its grace period, and who of its tree is left. Pure.

use std::time::Duration;

use super::{Ask, Moment, Order, after};
use crate::process::signal;
use crate::process::{Cause, Descendant, Exit, TreeSignal, Unkillable};

/// First pause between two looks at who is left; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(256);

/// Pause after a SIGKILL that has not ended the leader, before the next one.
const KILL_RETRY_INTERVAL: Duration = Duration::from_secs(10);

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
    /// SIGKILL was asked for, and not answered with processes that remain.
    pub(super) killing: bool,
    /// When SIGKILL is repeated, after one that left processes.
    pub(super) retry_at: Moment,
    /// The processes that the last SIGKILL has not ended.
    pub(super) unkillable: Vec<Unkillable>,
    /// The leader is among them.
    pub(super) leader_remains: bool,
    /// Nobody of the tree is left.
    pub(super) gone: bool,
    /// Requests to the keeper that are not answered yet: at most one signal, one look and one SIGKILL.
    pub(super) unanswered: u32,
    /// The signal of the last order that came while a request was unanswered: it is sent on the answer.
    pub(super) wanted: Option<i32>,
    /// When to look who is left, once it has exited.
    pub(super) look_at: Option<Moment>,
    pub(super) pause: Duration,
    pub(super) exit: Option<Box<Exit>>,
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
            retry_at: 0,
            unkillable: Vec::new(),
            leader_remains: false,
            gone: false,
            unanswered: 0,
            wanted: None,
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
        self.retry_at = self.retry_at.min(after(now, stop.grace));
        self.signal = Some(stop.signal);
        if stop.grace.is_zero() || stop.signal == signal::KILL {
            self.kill_at = now;
            return self.kill();
        }
        self.wanted = Some(stop.signal);
        self.signal_wanted()
    }

    /// Asks for the wanted signal, unless a request is unanswered. However many orders come meanwhile,
    /// the keeper gets one signal on the answer.
    fn signal_wanted(&mut self) -> Option<Ask> {
        if self.unanswered > 0 {
            return None;
        }
        let wanted = self.wanted.take().filter(|_| !self.killing && !self.is_settled());
        wanted.map(|signal| self.ask(Ask::Signal(signal)))
    }

    pub(super) fn tick(&mut self, now: Moment) -> Option<Ask> {
        if self.kill_due().is_some_and(|at| at <= now) {
            return self.kill();
        }
        self.look_at.take_if(|at| *at <= now).map(|_| self.ask(Ask::Look))
    }

    /// When SIGKILL is due, unless it was asked for.
    pub(super) fn kill_due(&self) -> Option<Moment> {
        (!self.killing).then(|| self.kill_at.max(self.retry_at))
    }

    /// Its tree is gone, or all that remains of it is descendants that SIGKILL has not ended.
    pub(super) fn is_settled(&self) -> bool {
        self.gone || !self.unkillable.is_empty() && !self.leader_remains
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

    pub(super) fn signalled(
        &mut self,
        signal: i32,
        outcome: TreeSignal,
        now: Moment,
    ) -> Option<Ask> {
        let TreeSignal { members, unkillable, leader_remains, .. } = outcome;
        self.unanswered = self.unanswered.saturating_sub(1);
        if signal == signal::KILL {
            self.gone |= unkillable.is_empty();
            self.killing = unkillable.is_empty();
            self.retry_at = after(now, KILL_RETRY_INTERVAL);
            (self.unkillable, self.leader_remains) = (unkillable, leader_remains);
            if self.exit.is_some() {
                self.leader_has_exited(now);
            }
        }
        for member in members {
            if !self.reached.iter().any(|known| known.pid == member.pid) {
                self.reached.push(member);
            }
        }
        self.signal_wanted()
    }

    pub(super) fn seen(&mut self, outcome: &TreeSignal, now: Moment) -> Option<Ask> {
        self.unanswered = self.unanswered.saturating_sub(1);
        if outcome.members.is_empty() && !outcome.may_miss_some {
            self.gone = true;
            self.unkillable = Vec::new();
        } else if !self.killing {
            self.look_at = Some(after(now, self.pause));
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        self.signal_wanted()
    }

    pub(super) fn exited(&mut self, exit: Exit, now: Moment) {
        // That an exit lists no descendant proves nothing: they may have changed parents meanwhile.
        if !self.killing && !self.leader_remains {
            let pause = if exit.lingering.is_empty() { Duration::ZERO } else { self.pause };
            self.look_at = Some(after(now, pause));
        }
        self.leader_has_exited(now);
        self.exit = Some(Box::new(exit));
    }

    /// What a SIGKILL left was named when the leader still ran: another one decides.
    fn leader_has_exited(&mut self, now: Moment) {
        if std::mem::take(&mut self.leader_remains) {
            (self.unkillable, self.retry_at) = (Vec::new(), now);
        }
    }
}
