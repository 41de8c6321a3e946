//! The state of the supervisor, and what becomes of it.
//!
//! Owns every process's record and life. [`State::apply`] is synchronous: one input changes the
//! state and yields effects, which the loop (`actor`) performs. Knows no clock and no I/O: time
//! comes with each input.

mod anew;
mod archiving;
mod calls;
mod counting;
mod ending;
mod slot;
mod starting;
mod undoing;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::effects::{Action, Begun, Effects, Killed, Receiver, Reply};
use super::error::Error;
use super::output_turns::OutputTurn;
use super::queue::{Capacity, Queues};
use super::quota::Usage;
use super::recovery::CurrentKeeper;
use super::registry::Seen;
use super::retention::{Finished, Keep};
use super::spawn_limit::SpawnLimit;
use crate::access::Caller;
use crate::events::Event;
use crate::keeper_client::{Output, Report, Spawned};
use crate::process::lifecycle::{Ask, Consequence, Happening, Order};
use crate::process::{
    Archived, Cause, End, Exit, Kind, Moment, Phase, Probe, Record, Selector, Spec, Stop,
    StructuredOutput, TreeSignal, signal,
};
use crate::store::Change;
use archiving::archive;

pub(super) use anew::Left;
use slot::{Slot, printed, release_if_empty};

/// Longest grace that a shutdown gives: the keeper waits for 20 s and then kills all.
const SHUTDOWN_GRACE: std::time::Duration = std::time::Duration::from_secs(12);

/// Finished processes that make way at once for one that finds no room.
const MADE_WAY: usize = 16;

/// The time of an input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// On the clock that spans are counted by.
    pub(super) moment: Moment,
    /// Nanoseconds since 1970.
    pub(super) wall: u64,
}

impl Now {
    /// Something between 0 and 1 that nobody foresees: the last digits of the clock.
    fn chance(self) -> f64 {
        const DIGITS: u64 = 1_000_003;
        (self.wall % DIGITS) as f64 / DIGITS as f64
    }
}

/// What makes a service the same: its name, owner and workspace.
type ServiceKey = (String, String, String);

/// Something that the supervisor is told.
pub(super) enum Input {
    /// A call, and whose it is.
    Call(Arc<Caller>, Call),
    /// The keeper's answer to a spawn.
    Spawned { id: Arc<str>, result: Result<Spawned, Error> },
    /// The keeper's answer to a question about a tree.
    Answered { id: Arc<str>, ask: Ask, outcome: TreeSignal },
    /// The descendants that outlived a finished process were killed, as far as SIGKILL ends them.
    RestKilled { key: u64, seen: Seen, outcome: TreeSignal },
    /// The probe of a launch was met.
    Ready { id: Arc<str>, launch: u32 },
    /// An attempt to find a launch ready has failed.
    NotReady { id: Arc<str>, launch: u32, why: String },
    /// An attempt of a caller's readiness command is due, and begins when this is answered.
    Attempt { caller: Arc<str>, bytes: usize, begin: oneshot::Sender<()> },
    /// The keeper has answered an attempt that was to begin, or was not asked.
    AttemptAnswered { caller: Arc<str>, bytes: usize },
    /// The keeper has forgotten an attempt, after it has told its exit.
    AttemptForgotten { key: u64 },
    /// The keeper's report.
    Report(Report),
    /// A process has exited, as the keeper reports it, and what it set was read.
    Exited { key: u64, exit: Exit, output: Option<StructuredOutput>, turn: Option<OutputTurn> },
    /// Nothing can print any more, and the record has a turn to be written.
    Drained { key: u64, turn: Option<OutputTurn> },
    /// The transcript of a finished process was written to a file, or could not be.
    Archived {
        record: Arc<Record>,
        key: u64,
        result: io::Result<Archived>,
        turn: Option<OutputTurn>,
    },
    /// Time has passed.
    Tick,
}

/// A call that changes something.
pub(super) enum Call {
    /// Start a process.
    Start { id: Option<String>, spec: Box<Spec>, starter: Starter },
    /// End a process; without `stop`, as its spec says.
    Kill { id: String, stop: StopOrder, reply: Reply<Killed> },
    /// End those live processes that match, of those that were found to.
    KillAll {
        selector: Box<Selector>,
        found: Vec<Arc<Record>>,
        stop: StopOrder,
        reply: Reply<Vec<Receiver<Killed>>>,
    },
    /// Run a process again.
    Run { id: String, force: bool, reply: Reply<Begun> },
    /// Free a process.
    Delete { id: String, force: bool, reply: Reply<()> },
}

impl Call {
    /// Whether nothing waits for its answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Call::Start { starter, .. } => starter.reply.is_closed(),
            Call::Kill { reply, .. } => reply.is_closed(),
            Call::KillAll { reply, .. } => reply.is_closed(),
            Call::Run { reply, .. } => reply.is_closed(),
            Call::Delete { reply, .. } => reply.is_closed(),
        }
    }
}

/// Who asked for a start.
pub(super) struct Starter {
    pub(super) reply: Reply<Begun>,
    /// Waits for the end of the process anyway, and so not for the record of its start.
    pub(super) patient: bool,
    /// The id named the process already.
    pub(super) existed: bool,
}

/// How a process is to be ended, where it differs from its spec.
#[derive(Clone, Copy, Debug, Default)]
pub struct StopOrder {
    /// Another signal.
    pub signal: Option<i32>,
    /// Another grace period.
    pub grace: Option<std::time::Duration>,
    /// SIGKILL at once.
    pub force: bool,
}

impl StopOrder {
    /// SIGKILL at once.
    pub(super) const FORCE: StopOrder = StopOrder { signal: None, grace: None, force: true };

    fn over(self, usual: Stop) -> Stop {
        let StopOrder { signal, grace, force } = self;
        let stop =
            Stop { signal: signal.unwrap_or(usual.signal), grace: grace.unwrap_or(usual.grace) };
        if force { Stop { grace: std::time::Duration::ZERO, ..stop } } else { stop }
    }
}

/// The state of the supervisor.
pub(super) struct State {
    slots: HashMap<Arc<str>, Slot>,
    /// Whom the keeper's numbers mean.
    keys: HashMap<u64, Arc<str>>,
    /// Exits of whom nobody knows: they may have overtaken the answer to their spawn, and are kept
    /// as long as spawns are under way. Others are those of attempts, until the keeper has forgotten these.
    early: HashMap<u64, Exit>,
    starting: usize,
    timers: BTreeSet<(Moment, Arc<str>)>,
    usage: Usage,
    queues: Queues,
    /// The launches that the keeper is asked for, and those that wait for that.
    spawns: SpawnLimit,
    /// The live process of each service.
    services: HashMap<ServiceKey, Arc<str>>,
    finished: Finished,
    keep: Keep,
    next_birth: u64,
    next_event: u64,
    /// When the store was last repaired, seconds since 1970, if it ever was.
    pub(super) repaired_at: Option<u64>,
    /// The keeper that is asked for launches.
    pub(super) keeper: CurrentKeeper,
    shutting_down: bool,
    /// Nobody is admitted, as who has room is being found out.
    closed: bool,
    /// Why nothing can be recorded at present.
    failing: Option<String>,
    /// Transcripts that are being written to files, by the keeper's numbers.
    archiving: HashSet<u64>,
    /// Kills of descendants that outlived a finished process, by the keeper's numbers: those under way,
    /// and the calls that wait for each.
    rest_kills: HashMap<u64, Vec<Reply<Killed>>>,
    /// When it is tried again to write those that could not be.
    archive_at: Option<Moment>,
}

impl State {
    pub(super) fn new(keep: Keep, capacity: Capacity, next_birth: u64, next_event: u64) -> State {
        State {
            slots: HashMap::new(),
            keys: HashMap::new(),
            early: HashMap::new(),
            starting: 0,
            timers: BTreeSet::new(),
            usage: Usage::new(capacity.quotas),
            queues: Queues::new(capacity),
            spawns: SpawnLimit::default(),
            services: HashMap::new(),
            finished: Finished::default(),
            keep,
            next_birth,
            next_event,
            repaired_at: None,
            keeper: CurrentKeeper::default(),
            shutting_down: false,
            closed: false,
            failing: None,
            archiving: HashSet::new(),
            rest_kills: HashMap::new(),
            archive_at: None,
        }
    }

    /// When a [`Input::Tick`] is due.
    pub(super) fn wake_at(&self, now: Now) -> Option<Moment> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let expiry = self.finished.next_expiry(&self.keep);
        let expiry = expiry.map(|at| now.moment.saturating_add(at.saturating_sub(now.wall)));
        timer.into_iter().chain(expiry).chain(self.archive_at).min()
    }

    /// The record of a process that the keeper has started.
    pub(super) fn launched(&self, key: u64) -> Option<&Arc<Record>> {
        self.keys.get(&key).and_then(|id| self.slots.get(id)).map(|slot| &slot.record)
    }

    /// The pattern that makes a running process ready and the output to search, if it is not ready.
    pub(super) fn pending_pattern(&self, key: u64) -> Option<(String, Output)> {
        let slot = self.keys.get(&key).and_then(|id| self.slots.get(id))?;
        let Probe::Output(pattern) = &slot.record.spec.readiness.as_ref()?.probe else {
            return None;
        };
        let held = slot.held.as_ref().filter(|held| held.key == key)?;
        let is_pending = slot.life.is_running() && !slot.record.is_ready();
        is_pending.then(|| (pattern.clone(), held.output.clone()))
    }

    /// What a process has set is read before its exit is taken.
    pub(super) fn is_exiting(&mut self, key: u64) {
        if let Some(slot) = self.keys.get(&key).and_then(|id| self.slots.get_mut(id)) {
            slot.exiting = true;
        }
    }

    /// The exit that overtook the answer to its spawn, which is this input. It comes next.
    pub(super) fn overtaken(&mut self, input: &Input) -> Option<Input> {
        let Input::Spawned { result: Ok(Spawned { key, .. }), .. } = input else { return None };
        let exit = self.early.remove(key)?;
        Some(Input::Report(Report::Exited { key: *key, exit }))
    }

    /// Takes one input. Synchronous: all that takes time is an effect.
    pub(super) fn apply(&mut self, input: Input, now: Now) -> Effects {
        let mut effects = Effects::default();
        let then = &mut effects;
        match input {
            Input::Call(caller, call) => self.call(&caller, call, now, then),
            Input::Spawned { id, result } => self.spawned(&id, result, now, then),
            Input::Answered { id, ask, outcome } => self.answered(&id, ask, outcome, now, then),
            Input::RestKilled { key, seen, outcome } => {
                self.rest_killed(key, seen, outcome, then);
            }
            Input::Ready { id, launch } => self.ready(&id, launch, now, then),
            Input::NotReady { id, launch, why } => self.not_ready(&id, launch, why),
            Input::Attempt { caller, bytes, begin } => self.attempt(&caller, bytes, begin, then),
            Input::AttemptAnswered { caller, bytes } => self.attempt_answered(&caller, bytes, then),
            Input::AttemptForgotten { key } => drop(self.early.remove(&key)),
            Input::Report(Report::Exited { key, exit }) => self.exited(key, exit, now, then),
            Input::Exited { key, exit, output, turn } => {
                if let Some(slot) = self.keys.get(&key).and_then(|id| self.slots.get_mut(id)) {
                    (slot.output, slot.exiting) = (output, false);
                }
                self.exited(key, exit, now, then);
                then.actions.extend(turn.map(Action::EndOutputTurn));
            }
            Input::Report(Report::Drained { key }) => self.drained(key, then),
            Input::Drained { key, turn } => {
                self.drained(key, then);
                then.actions.extend(turn.map(Action::EndOutputTurn));
            }
            Input::Report(Report::Shutdown) => self.shut_down(now, then),
            // For those who wait, and no change of any process.
            Input::Report(Report::Retire) => {}
            Input::Archived { record, key, result, turn } => {
                self.archived(&record, key, result, now, then);
                then.actions.extend(turn.map(Action::EndOutputTurn));
            }
            Input::Tick => self.tick(now, then),
        }
        effects
    }

    fn exited(&mut self, key: u64, exit: Exit, now: Now, then: &mut Effects) {
        match self.keys.get(&key).cloned() {
            Some(id) => self.happen(&id, Happening::Exited(exit), now, then),
            None if self.starting > 0 => {
                self.early.insert(key, exit);
            }
            None => {}
        }
    }

    fn answered(
        &mut self,
        id: &Arc<str>,
        ask: Ask,
        outcome: TreeSignal,
        now: Now,
        then: &mut Effects,
    ) {
        let leftover = self.slots.get(id).is_some_and(|slot| slot.held.is_none());
        if leftover && outcome.unkillable.is_empty() {
            return self.leftover_ended(id, now, then);
        }
        let happening = match ask {
            Ask::Signal(signal) => Happening::Signalled { signal, outcome },
            Ask::Look => Happening::Seen { outcome },
        };
        self.happen(id, happening, now, then);
    }

    /// Nothing can print any more.
    fn drained(&mut self, key: u64, then: &mut Effects) {
        let Some(slot) = self.keys.get(&key).and_then(|id| self.slots.get_mut(id)) else { return };
        let Phase::Exited(end) = &slot.record.phase else { return };
        if end.output_complete {
            return;
        }
        let end = End { output_complete: true, printed: printed(slot), ..end.clone() };
        slot.set_phase(Phase::Exited(end));
        release_if_empty(slot, &mut self.keys, then);
        slot.count(&mut self.usage);
        // It may have grown since its end.
        let time = slot.record.end().map_or(0, |end| end.time);
        self.finished.insert(time, slot.record.birth, &slot.record.id, slot.footprint());
        then.changes.push(Change::Update(Arc::clone(&slot.record)));
        then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
        archive(slot, &mut self.archiving, then);
    }

    fn shut_down(&mut self, now: Now, then: &mut Effects) {
        self.shutting_down = true;
        let live = self.slots.values().filter(|slot| slot.record.end().is_none());
        let live =
            live.map(|slot| (Arc::clone(&slot.record.id), slot.record.spec.stop, slot.rests()));
        for (id, stop, rests) in live.collect::<Vec<_>>() {
            if rests {
                self.set_timer(&id);
                continue;
            }
            let stop = Stop { grace: stop.grace.min(SHUTDOWN_GRACE), ..stop };
            self.happen(&id, Happening::Stop(Order { why: Cause::Shutdown, stop }), now, then);
        }
        self.over(then);
    }

    fn tick(&mut self, now: Now, then: &mut Effects) {
        while let Some((at, id)) = self.timers.first().cloned()
            && at <= now.moment
        {
            self.timers.pop_first();
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            slot.timer = None;
            let stop = slot.record.spec.stop;
            self.happen(&id, Happening::Tick { stop }, now, then);
        }
        self.archive_again(now, then);
        self.retain(now, then);
    }

    /// Lets the life of a process take its course.
    fn happen(&mut self, id: &Arc<str>, happening: Happening, now: Now, then: &mut Effects) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        // It is over by itself, though that is not told yet: nothing can end it any more.
        if slot.exiting && matches!(happening, Happening::Stop(_) | Happening::Tick { .. }) {
            return;
        }
        if slot.spawn_ticket.is_some() && matches!(happening, Happening::Stop(_)) {
            return self.withdraw(id, happening, now, then);
        }
        let killed = matches!(happening, Happening::Signalled { signal: signal::KILL, .. });
        let consequence = slot.life.apply(happening, now.moment);
        let Consequence { events, asks, ended, start, kill_failed } = consequence;
        let mut changed = !events.is_empty();
        for kind in events {
            let Some(phase) = slot.phase_after(kind, now.wall) else { continue };
            slot.set_phase(phase);
            then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
            tell(kind, slot, &mut self.next_event, now, then);
        }
        // Another order may have changed how it ends.
        if let Some(phase) = slot.phase_after(Kind::Stopping, now.wall)
            && phase != slot.record.phase
        {
            slot.set_phase(phase);
            changed = true;
        }
        if killed && slot.set_unkillable(slot.life.unkillable().to_vec()) {
            then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
            changed = true;
        }
        if changed {
            then.changes.push(Change::Update(Arc::clone(&slot.record)));
        }
        if kill_failed {
            slot.answer_kill_failed(then);
        }
        then.actions.extend(asks.into_iter().filter_map(|ask| slot.ask(ask)));
        if let Some(ended) = ended {
            self.ended(id, ended, now, then);
        }
        if start {
            self.launch(id, now, then);
        }
        if kill_failed {
            self.over(then);
        }
        self.set_timer(id);
    }

    /// Sees to it that a process hears of the time when it wants to.
    fn set_timer(&mut self, id: &Arc<str>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let timer = slot.life.wake_at().filter(|_| !self.shutting_down || !slot.rests());
        if slot.timer != timer {
            if let Some(old) = std::mem::replace(&mut slot.timer, timer) {
                self.timers.remove(&(old, Arc::clone(id)));
            }
            self.timers.extend(timer.map(|at| (at, Arc::clone(id))));
        }
    }

    /// Whether it can be recorded again is known when it is tried: what comes now may begin, and
    /// who waited for what could not.
    pub(super) fn try_again(&mut self, now: Now) -> Effects {
        let mut effects = Effects::default();
        self.failing = None;
        self.admit(now, &mut effects);
        effects
    }
}

/// Makes the event that something happened, numbered.
fn tell(kind: Kind, slot: &Slot, next_event: &mut u64, now: Now, then: &mut Effects) {
    let record = slot.brief_record();
    let event = Arc::new(Event { seq: *next_event, time: now.wall, kind, record });
    *next_event += 1;
    then.changes.push(Change::Event(Arc::clone(&event)));
    then.actions.push(Action::Tell(event));
}
