//! The life of a process, as a pure function of what happens to it.
//!
//! ```text
//!          Admitted              Started             Exited
//!  Queued ──────────► Starting ──────────► Running ───────────────────────────► Exited
//!    │                 ▲  │                   │ Stop, or its time is over          │ ▲
//!    │ Stop            │  │ Stop is kept      ▼                                    │ │
//!    ▼                 │  │ until Started  Stopping ── Exited, and nobody is left ─┘ │
//!  Exited         Tick │  │                   │  ▲                                   │
//!                      │  │ StartFailed       └──┘ at the end of the grace period:   │ Stop
//!                      │  ▼                        SIGKILL to whoever is left        │
//!                      │ Exited                                                      │
//!                      └──────────────────────────────────────────────────────── Backoff
//!                                      a service that is to be started again ───────►┘
//! ```
//!
//! Owns the order of things: what may follow what, which signal goes out when, and why a process
//! ended. Knows no clock, no keeper and no store: time comes as an argument, and what is to be
//! done is returned. A process that is being stopped is over when its whole tree is gone; one
//! that exits by itself is over at once, whether or not descendants live on. Descendants that
//! SIGKILL does not end do not delay the end of their leader, which names them; a leader that
//! SIGKILL does not end stays in `Stopping`, and SIGKILL is repeated.
//!
//! The answers to signals and the news of the exit come by different ways and in any order, so
//! nothing here relies on one.

mod memory;
mod stopping;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Cause, Descendant, Exit, Status, Stop, TreeSignal, Unkillable};
pub use stopping::Stopping;

/// A moment on the monotonic clock, in nanoseconds: the same for all processes of one boot.
pub type Moment = u64;

/// Where a process is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// Waiting for its turn.
    Queued,
    /// Asked of the keeper, not answered yet.
    Starting {
        /// It is to be stopped as soon as it has started.
        order: Option<Order>,
    },
    /// Running.
    Running(Running),
    /// Told to end.
    Stopping(Stopping),
    /// Ended, and to be started again.
    Backoff {
        /// When.
        until: Moment,
    },
    /// Over.
    Exited,
}

/// What bounds a process that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// When its time is over.
    pub deadline: Option<Moment>,
    /// It is not ready yet, and must be by then.
    pub ready_by: Option<Moment>,
    /// The CPU time after which the kernel kills it.
    pub cpu_limit: Option<Duration>,
}

/// How a process is being ended: what has to be known of it if the supervisor begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Why.
    pub why: Cause,
    /// When whoever is left is killed.
    pub kill_at: Moment,
    /// Somebody wants it to be over: it is not started again.
    #[serde(default)]
    pub for_good: bool,
    /// The signal that it was told by last. None in records of old: the one of its spec.
    #[serde(default)]
    pub signal: Option<i32>,
}

impl Ending {
    /// How it is told once more, for what is left of its grace period.
    pub fn again(&self, usual: Stop, now: Moment) -> Stop {
        let grace = Duration::from_nanos(self.kill_at.saturating_sub(now));
        Stop { signal: self.signal.unwrap_or(usual.signal), grace }
    }
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
    /// Its turn has come.
    Admitted,
    /// The keeper has started it.
    Started(Running),
    /// Its probe was met.
    Ready,
    /// It could not be started.
    StartFailed {
        /// Why.
        detail: String,
    },
    /// It is to end.
    Stop(Order),
    /// The keeper has sent a signal to the tree, and answered what it came to.
    Signalled {
        /// Which.
        signal: i32,
        /// After SIGKILL without any unkillable process: the tree is gone.
        outcome: TreeSignal,
    },
    /// The keeper has looked which processes of the tree there are.
    Seen {
        /// What it found.
        outcome: TreeSignal,
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
    /// It waits for its turn.
    Queued,
    /// Its program was executed.
    Started,
    /// It is ready.
    Ready,
    /// It was told to end.
    Stopping,
    /// It is over, and its last byte can be read.
    Completed,
    /// It has ended, and will be started again.
    Restarting,
    /// It begins anew under its id.
    RunAgain,
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
    /// How it ended, if it did.
    pub ended: Option<Ended>,
    /// It is to be started.
    pub start: bool,
    /// SIGKILL has not ended its leader: callers that wait for the end get their answer now.
    pub kill_failed: bool,
}

/// How a life ended. It may be told to go on after a pause: see [`Life::pause`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Why.
    pub cause: Cause,
    /// What the kernel told; none: it did not run.
    pub exit: Option<Exit>,
    /// Whom the signals of its end reached.
    pub reached: Vec<Descendant>,
    /// The descendants that SIGKILL has not ended: they run on.
    pub unkillable: Vec<Unkillable>,
    /// More to be said of it; may be empty.
    pub detail: String,
    /// Somebody wanted it to be over: it is not started again.
    pub for_good: bool,
}

impl Ended {
    /// An end of which the kernel told nothing.
    pub fn without_exit(cause: Cause) -> Ended {
        let (exit, reached, detail) = (None, Vec::new(), String::new());
        let (unkillable, for_good) = (Vec::new(), cause.is_wanted());
        Ended { cause, exit, reached, unkillable, detail, for_good }
    }
}

impl Life {
    /// A life that begins.
    pub fn new() -> Life {
        Life::Starting { order: None }
    }

    /// A life that was being ended when its supervisor began anew.
    pub fn resume_stopping(ending: Ending) -> Life {
        let Ending { why, kill_at, for_good, signal } = ending;
        Life::Stopping(Stopping { kill_at, for_good, signal, ..Stopping::new(why) })
    }

    /// A life that is over goes on after a pause.
    pub fn pause(&mut self, until: Moment) {
        *self = Life::Backoff { until };
    }

    /// It runs, and nobody has told it to end.
    pub fn is_running(&self) -> bool {
        matches!(self, Life::Running(_))
    }

    /// How it is being ended, if it is.
    pub fn ending(&self) -> Option<Ending> {
        match self {
            Life::Stopping(Stopping { why, kill_at, for_good, signal, .. }) => {
                Some(Ending { why: *why, kill_at: *kill_at, for_good: *for_good, signal: *signal })
            }
            _ => None,
        }
    }

    /// The processes that SIGKILL has not ended, while it is being ended.
    pub fn unkillable(&self) -> &[Unkillable] {
        match self {
            Life::Stopping(stopping) => &stopping.unkillable,
            _ => &[],
        }
    }

    /// The processes that a signal reached, while it is being ended.
    pub fn reached(&self) -> &[Descendant] {
        match self {
            Life::Stopping(stopping) => &stopping.reached,
            _ => &[],
        }
    }

    /// SIGKILL has not ended its leader.
    pub fn has_unkillable_leader(&self) -> bool {
        matches!(self, Life::Stopping(stopping) if stopping.leader_remains)
    }

    /// When time itself will be something that happens.
    pub fn wake_at(&self) -> Option<Moment> {
        match self {
            Life::Queued | Life::Starting { .. } | Life::Exited => None,
            Life::Running(Running { deadline, ready_by, cpu_limit: _ }) => {
                [*deadline, *ready_by].into_iter().flatten().min()
            }
            Life::Backoff { until } => Some(*until),
            Life::Stopping(stopping) => {
                [stopping.kill_due(), stopping.look_at].into_iter().flatten().min()
            }
        }
    }

    /// What follows from what happened.
    pub fn apply(&mut self, happening: Happening, now: Moment) -> Consequence {
        let mut then = Consequence::default();
        match happening {
            Happening::Admitted => self.admitted(&mut then),
            Happening::Started(running) => self.started(running, now, &mut then),
            Happening::Ready => self.ready(&mut then),
            Happening::StartFailed { detail } => self.start_failed(detail, &mut then),
            Happening::Stop(order) => self.stop(order, now, &mut then),
            Happening::Tick { stop } => self.tick(stop, now, &mut then),
            Happening::Signalled { signal, outcome } => {
                if let Life::Stopping(stopping) = self {
                    then.asks.extend(stopping.signalled(signal, outcome, now));
                    then.kill_failed = signal == super::signal::KILL && stopping.leader_remains;
                }
            }
            Happening::Seen { outcome } => {
                if let Life::Stopping(stopping) = self {
                    then.asks.extend(stopping.seen(&outcome, now));
                }
            }
            Happening::Exited(exit) => self.exited(exit, now, &mut then),
        }
        self.finish(&mut then);
        then
    }

    fn admitted(&mut self, then: &mut Consequence) {
        if *self == Life::Queued {
            self.begin(then);
        }
    }

    fn begin(&mut self, then: &mut Consequence) {
        *self = Life::new();
        then.start = true;
    }

    fn ready(&mut self, then: &mut Consequence) {
        if let Life::Running(running) = self {
            running.ready_by = None;
            then.events.push(Kind::Ready);
        }
    }

    /// Who was told to end while it could not even begin has ended for that.
    fn start_failed(&mut self, detail: String, then: &mut Consequence) {
        let Life::Starting { order } = *self else { return };
        let cause = order.map_or(Cause::StartFailed, |order| order.why);
        *self = Life::Exited;
        then.ended = Some(Ended { detail, ..Ended::without_exit(cause) });
    }

    fn end(&mut self, cause: Cause, exit: Option<Exit>, then: &mut Consequence) {
        *self = Life::Exited;
        then.ended = Some(Ended { exit, ..Ended::without_exit(cause) });
    }

    fn started(&mut self, running: Running, now: Moment, then: &mut Consequence) {
        let Life::Starting { order } = *self else { return };
        *self = Life::Running(running);
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
            Life::Running(_) => {
                let mut stopping = Stopping::new(order.why);
                then.events.push(Kind::Stopping);
                then.asks.extend(stopping.hurry(order, now));
                *self = Life::Stopping(stopping);
            }
            Life::Stopping(stopping) => then.asks.extend(stopping.hurry(order, now)),
            Life::Queued if order.why == Cause::Killed => {
                self.end(Cause::CanceledInQueue, None, then);
            }
            Life::Queued | Life::Backoff { .. } => self.end(order.why, None, then),
            Life::Exited => {}
        }
    }

    fn tick(&mut self, stop: Stop, now: Moment, then: &mut Consequence) {
        match self {
            Life::Running(running) => {
                if let Some(why) = running.overdue(now) {
                    self.stop(Order { why, stop }, now, then);
                }
            }
            Life::Stopping(stopping) => then.asks.extend(stopping.tick(now)),
            Life::Backoff { until } if *until <= now => self.begin(then),
            Life::Queued | Life::Starting { .. } | Life::Backoff { .. } | Life::Exited => {}
        }
    }

    fn exited(&mut self, exit: Exit, now: Moment, then: &mut Consequence) {
        match self {
            Life::Running(running) => {
                let cause = match exit.status {
                    _ if running.ready_by.is_some() => Cause::ReadinessFailed,
                    Status::Code(_) => Cause::Exited,
                    Status::Signal(_) if memory::ran_out(&exit, running.cpu_limit) => {
                        Cause::OutOfMemory
                    }
                    Status::Signal(_) => Cause::Signaled,
                };
                self.end(cause, Some(exit), then);
            }
            Life::Stopping(stopping) => stopping.exited(exit, now),
            Life::Queued | Life::Starting { .. } | Life::Backoff { .. } | Life::Exited => {}
        }
    }

    /// A process that is being stopped is over when it has exited, the keeper has answered every
    /// request, and its tree is gone but for descendants that SIGKILL has not ended.
    fn finish(&mut self, then: &mut Consequence) {
        let Life::Stopping(stopping) = self else { return };
        if !stopping.is_settled() || stopping.unanswered > 0 {
            return;
        }
        let Some(mut exit) = stopping.exit.take() else { return };
        let unkillable = std::mem::take(&mut stopping.unkillable);
        // All others lived on for a while only.
        exit.lingering = unkillable.iter().map(|one| one.process.clone()).collect();
        let (cause, for_good) = (stopping.why, stopping.for_good);
        let reached = std::mem::take(&mut stopping.reached);
        *self = Life::Exited;
        let ended = Ended::without_exit(cause);
        then.ended = Some(Ended { exit: Some(*exit), reached, unkillable, for_good, ..ended });
    }
}

impl Default for Life {
    fn default() -> Life {
        Life::new()
    }
}

impl Running {
    /// Why its time is over, if it is: of two reasons the one that came first.
    fn overdue(&self, now: Moment) -> Option<Cause> {
        let deadline = self.deadline.map(|at| (at, Cause::TimedOut));
        let ready_by = self.ready_by.map(|at| (at, Cause::ReadinessFailed));
        let due = [deadline, ready_by].into_iter().flatten().filter(|(at, _)| *at <= now);
        due.min_by_key(|(at, _)| *at).map(|(_, why)| why)
    }
}

/// The moment that lies a span after another.
pub fn after(now: Moment, span: Duration) -> Moment {
    now.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
