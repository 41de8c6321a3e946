//! The life of a process, as a pure function of what happens to it.
//!
//! ```text
//!              Started             Exited
//!  Starting ──────────► Running ───────────────────────────► Exited
//!     │                    │ Stop, or its time is over          ▲
//!     │ Stop is kept       ▼                                    │
//!     │ until Started   Stopping ── Exited, and nobody is left ─┘
//!     │                    │  ▲
//!     │ StartFailed        └──┘ at the end of the grace period: SIGKILL to whoever is left
//!     ▼
//!  (no record stays)
//! ```
//!
//! Owns the order of things: what may follow what, which signal goes out when, and why a process
//! ended. Knows no clock, no keeper and no store: time comes as an argument, and what is to be
//! done is returned. A process that is being stopped is over when its whole tree is gone; one
//! that exits by itself is over at once, whoever of its descendants lives on.
//!
//! The answers to signals and the news of the exit come by different ways and in any order, so
//! nothing here relies on one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Cause, Descendant, Exit, Status, Stop};
use crate::process::signal;

/// A moment on the monotonic clock, in nanoseconds: the same for all processes of one boot.
pub type Moment = u64;

/// First pause between two looks at who is left; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(256);

/// Where a process is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// Asked of the keeper, not answered yet.
    Starting {
        /// It is to be stopped as soon as it has started.
        order: Option<Order>,
    },
    /// Running.
    Running {
        /// When its time is over.
        deadline: Option<Moment>,
    },
    /// Told to end.
    Stopping(Stopping),
    /// Over.
    Exited,
}

/// What is known of a process that was told to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopping {
    why: Cause,
    /// The end of the grace period.
    kill_at: Moment,
    /// SIGKILL was asked for.
    killing: bool,
    /// Nobody of the tree is left.
    gone: bool,
    /// Requests to the keeper that are not answered yet.
    unanswered: u32,
    /// When to look who is left, once it has exited.
    look_at: Option<Moment>,
    pause: Duration,
    exit: Option<Exit>,
    /// Everyone whom a signal reached.
    reached: Vec<Descendant>,
}

/// An order to end a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Why.
    pub why: Cause,
    /// How.
    pub stop: Stop,
}

/// Something that happened to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The keeper has started it.
    Started {
        /// When its time will be over.
        deadline: Option<Moment>,
    },
    /// It is to end.
    Stop(Order),
    /// The keeper has sent a signal to the tree. After SIGKILL: nobody is left.
    Signalled {
        /// Which.
        signal: i32,
        /// Whom it reached.
        members: Vec<Descendant>,
    },
    /// The keeper has looked who is there.
    Seen {
        /// Them.
        members: Vec<Descendant>,
    },
    /// It has exited.
    Exited(Exit),
    /// Time has passed.
    Tick {
        /// How it is to end if its time is over.
        stop: Stop,
    },
}

/// What is told of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Its program was executed.
    Started,
    /// It was told to end.
    Stopping,
    /// It is over, and its last byte can be read.
    Completed,
    /// Its record was freed.
    Deleted,
}

/// What is to be asked of the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// To send a signal to the tree.
    Signal(i32),
    /// To look who is there.
    Look,
}

/// What follows from something that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Consequence {
    /// What is to be told, in this order.
    pub events: Vec<Kind>,
    /// What is to be asked of the keeper, in this order.
    pub asks: Vec<Ask>,
    /// How it ended: present exactly when `events` has [`Kind::Completed`].
    pub ended: Option<Ended>,
}

/// How a life ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Why.
    pub cause: Cause,
    /// What the kernel told.
    pub exit: Exit,
    /// Whom the signals of its end reached.
    pub reached: Vec<Descendant>,
}

impl Life {
    /// A life that begins.
    pub fn new() -> Life {
        Life::Starting { order: None }
    }

    /// A life that was being ended when its supervisor began anew.
    pub fn resume_stopping(why: Cause, kill_at: Moment) -> Life {
        Life::Stopping(Stopping { kill_at, ..Stopping::new(why) })
    }

    /// It runs, and nobody has told it to end.
    pub fn is_running(&self) -> bool {
        matches!(self, Life::Running { .. })
    }

    /// Why it was told to end and when it will be killed, if it is being ended.
    pub fn ending(&self) -> Option<(Cause, Moment)> {
        match self {
            Life::Stopping(stopping) => Some((stopping.why, stopping.kill_at)),
            _ => None,
        }
    }

    /// When time itself will be something that happens.
    pub fn wake_at(&self) -> Option<Moment> {
        match self {
            Life::Starting { .. } | Life::Exited => None,
            Life::Running { deadline } => *deadline,
            Life::Stopping(stopping) => {
                let kill_at = (!stopping.killing).then_some(stopping.kill_at);
                [kill_at, stopping.look_at].into_iter().flatten().min()
            }
        }
    }

    /// What follows from what happened.
    pub fn apply(&mut self, happening: Happening, now: Moment) -> Consequence {
        let mut then = Consequence::default();
        match happening {
            Happening::Started { deadline } => self.started(deadline, now, &mut then),
            Happening::Stop(order) => self.stop(order, now, &mut then),
            Happening::Tick { stop } => self.tick(stop, now, &mut then),
            Happening::Signalled { signal, members } => {
                if let Life::Stopping(stopping) = self {
                    stopping.signalled(signal, members);
                }
            }
            Happening::Seen { members } => {
                if let Life::Stopping(stopping) = self {
                    stopping.seen(&members, now);
                }
            }
            Happening::Exited(exit) => self.exited(exit, now, &mut then),
        }
        self.finish(&mut then);
        then
    }

    fn started(&mut self, deadline: Option<Moment>, now: Moment, then: &mut Consequence) {
        let Life::Starting { order } = *self else { return };
        *self = Life::Running { deadline };
        then.events.push(Kind::Started);
        if let Some(order) = order {
            self.stop(order, now, then);
        }
    }

    fn stop(&mut self, order: Order, now: Moment, then: &mut Consequence) {
        match self {
            Life::Starting { order: kept } => {
                // Of two orders the first says why, and the shorter grace holds.
                let grace = kept.map_or(order.stop.grace, |kept| kept.stop.grace);
                let first = kept.get_or_insert(order);
                first.stop.grace = grace.min(order.stop.grace);
            }
            Life::Running { .. } => {
                let mut stopping = Stopping::new(order.why);
                then.events.push(Kind::Stopping);
                then.asks.extend(stopping.hurry(order.stop, now));
                *self = Life::Stopping(stopping);
            }
            Life::Stopping(stopping) => then.asks.extend(stopping.hurry(order.stop, now)),
            Life::Exited => {}
        }
    }

    fn tick(&mut self, stop: Stop, now: Moment, then: &mut Consequence) {
        match self {
            Life::Running { deadline: Some(deadline) } if *deadline <= now => {
                self.stop(Order { why: Cause::TimedOut, stop }, now, then);
            }
            Life::Stopping(stopping) => then.asks.extend(stopping.tick(now)),
            Life::Starting { .. } | Life::Running { .. } | Life::Exited => {}
        }
    }

    fn exited(&mut self, exit: Exit, now: Moment, then: &mut Consequence) {
        match self {
            Life::Running { .. } => {
                let cause = match exit.status {
                    Status::Code(_) => Cause::Exited,
                    Status::Signal(_) => Cause::Signaled,
                };
                *self = Life::Exited;
                then.events.push(Kind::Completed);
                then.ended = Some(Ended { cause, exit, reached: Vec::new() });
            }
            Life::Stopping(stopping) => stopping.exited(exit, now),
            Life::Starting { .. } | Life::Exited => {}
        }
    }

    /// A process that is being stopped is over when it has exited, everyone is gone, and the
    /// keeper has told whom it reached.
    fn finish(&mut self, then: &mut Consequence) {
        let Life::Stopping(stopping) = self else { return };
        if !stopping.gone || stopping.unanswered > 0 {
            return;
        }
        let Some(mut exit) = stopping.exit.take() else { return };
        // They lived on for a while only.
        exit.lingering = Vec::new();
        let (cause, reached) = (stopping.why, std::mem::take(&mut stopping.reached));
        *self = Life::Exited;
        then.events.push(Kind::Completed);
        then.ended = Some(Ended { cause, exit, reached });
    }
}

impl Default for Life {
    fn default() -> Life {
        Life::new()
    }
}

impl Stopping {
    fn new(why: Cause) -> Stopping {
        Stopping {
            why,
            kill_at: Moment::MAX,
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
    fn hurry(&mut self, stop: Stop, now: Moment) -> Option<Ask> {
        self.kill_at = self.kill_at.min(after(now, stop.grace));
        if stop.grace.is_zero() || stop.signal == signal::KILL {
            self.kill_at = now;
            return self.kill();
        }
        (!self.killing).then(|| self.ask(Ask::Signal(stop.signal)))
    }

    fn tick(&mut self, now: Moment) -> Option<Ask> {
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

    fn signalled(&mut self, signal: i32, members: Vec<Descendant>) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.gone |= signal == signal::KILL;
        for member in members {
            if !self.reached.iter().any(|known| known.pid == member.pid) {
                self.reached.push(member);
            }
        }
    }

    fn seen(&mut self, members: &[Descendant], now: Moment) {
        self.unanswered = self.unanswered.saturating_sub(1);
        if members.is_empty() {
            self.gone = true;
        } else if !self.killing {
            self.look_at = Some(after(now, self.pause));
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn exited(&mut self, exit: Exit, now: Moment) {
        if exit.lingering.is_empty() {
            self.gone = true;
        } else if !self.killing {
            self.look_at = Some(after(now, self.pause));
        }
        self.exit = Some(exit);
    }
}

/// The moment that lies a span after another.
pub fn after(now: Moment, span: Duration) -> Moment {
    now.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
