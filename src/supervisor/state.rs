//! The state of the supervisor, and what becomes of it.
//!
//! Owns every process's record and life. [`State::apply`] is synchronous: one input changes the
//! state and yields effects, which the loop (`actor`) performs. Knows no clock and no I/O: time
//! comes with each input.

mod anew;
mod calls;
mod slot;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::effects::{Action, Begun, Effects, Killed, Reply};
use super::error::Error;
use super::registry::Held;
use super::retention::{Finished, Keep};
use crate::events::Event;
use crate::keeper_client::{Report, Spawned};
use crate::process::lifecycle::{Ask, Consequence, Happening, Order, after};
use crate::process::{
    Cause, Descendant, End, Exit, Kind, Life, Moment, Phase, Printed, Spec, Started, Stop,
};
use crate::store::Change;
use slot::{Slot, Waiting, end, printed, release_if_empty};

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

/// Something that the supervisor is told.
pub(super) enum Input {
    /// A call.
    Call(Call),
    /// The keeper's answer to a spawn.
    Spawned { id: Arc<str>, result: Result<Spawned, Error> },
    /// The keeper's answer to a question about a tree.
    Answered { id: Arc<str>, ask: Ask, members: Vec<Descendant> },
    /// The keeper's report.
    Report(Report),
    /// Time has passed.
    Tick,
}

/// A call that changes something.
pub(super) enum Call {
    /// Start a process.
    Start { id: Option<String>, spec: Box<Spec>, starter: Starter },
    /// End a process; without `stop`, as its spec says.
    Kill { id: String, stop: StopOrder, reply: Reply<Killed> },
    /// Free a process.
    Delete { id: String, force: bool, reply: Reply<()> },
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
    /// Exits that overtook the answer to their spawn. No more than spawns are under way.
    early: HashMap<u64, Exit>,
    starting: usize,
    timers: BTreeSet<(Moment, Arc<str>)>,
    live: usize,
    finished: Finished,
    keep: Keep,
    next_birth: u64,
    next_event: u64,
    shutting_down: bool,
    /// Why nothing can be recorded at present.
    failing: Option<String>,
}

impl State {
    pub(super) fn new(keep: Keep, next_birth: u64, next_event: u64) -> State {
        State {
            slots: HashMap::new(),
            keys: HashMap::new(),
            early: HashMap::new(),
            starting: 0,
            timers: BTreeSet::new(),
            live: 0,
            finished: Finished::default(),
            keep,
            next_birth,
            next_event,
            shutting_down: false,
            failing: None,
        }
    }

    /// When a [`Input::Tick`] is due.
    pub(super) fn wake_at(&self, now: Now) -> Option<Moment> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let expiry = self.finished.next_expiry(&self.keep);
        let expiry = expiry.map(|at| now.moment.saturating_add(at.saturating_sub(now.wall)));
        timer.into_iter().chain(expiry).min()
    }

    /// Takes one input. Synchronous: all that takes time is an effect.
    pub(super) fn apply(&mut self, input: Input, now: Now) -> Effects {
        let mut effects = Effects::default();
        let then = &mut effects;
        match input {
            Input::Call(Call::Start { id, spec, starter }) => {
                self.start(id, *spec, starter, now, then);
            }
            Input::Call(Call::Kill { id, stop, reply }) => self.kill(&id, stop, reply, now, then),
            Input::Call(Call::Delete { id, force, reply }) => {
                self.delete(&id, force, reply, now, then);
            }
            Input::Spawned { id, result } => self.spawned(&id, result, now, then),
            Input::Answered { id, ask, members } => {
                let happening = match ask {
                    Ask::Signal(signal) => Happening::Signalled { signal, members },
                    Ask::Look => Happening::Seen { members },
                };
                self.happen(&id, happening, now, then);
            }
            Input::Report(Report::Exited { key, exit }) => self.exited(key, exit, now, then),
            Input::Report(Report::Drained { key }) => self.drained(key, then),
            Input::Report(Report::Shutdown) => self.shut_down(now, then),
            Input::Tick => self.tick(now, then),
        }
        effects
    }

    fn spawned(
        &mut self,
        id: &Arc<str>,
        result: Result<Spawned, Error>,
        now: Now,
        then: &mut Effects,
    ) {
        self.starting -= 1;
        let spawned = match result {
            Ok(spawned) => spawned,
            Err(Error::OutOfDescriptors | Error::TooManyProcesses) if self.make_way(now, then) => {
                return self.start_again(id, then);
            }
            Err(error) => return self.not_started(id, &error, now, then),
        };
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Spawned { key, pid, start_time, output, existed: _, continued: _ } = spawned;
        slot.held = Some(Held { key, output });
        slot.started = Some(Started { pid, time: start_time, moment: now.moment });
        self.keys.insert(key, Arc::clone(id));
        let entry = Arc::clone(&slot.entry);
        let starts = std::mem::take(&mut slot.waiting.starts);
        let deadline = slot.record.spec.timeout.map(|span| after(now.moment, span));
        self.happen(id, Happening::Started { deadline }, now, then);
        if let Some(exit) = self.early.remove(&key) {
            self.happen(id, Happening::Exited(exit), now, then);
        }
        let runs = self.slots.get(id).is_some_and(|slot| slot.life.is_running());
        then.patient = runs && starts.iter().all(|starter| starter.patient);
        for Starter { reply, existed, .. } in starts {
            let begun = Begun { entry: Arc::clone(&entry), existed };
            then.actions.push(Action::AnswerStart(reply, Ok(begun)));
        }
        if self.starting == 0 {
            self.early.clear();
        }
    }

    /// Frees some of the finished processes of which the keeper holds something, oldest first: the
    /// living go before the dead. False: there are none.
    fn make_way(&mut self, now: Now, then: &mut Effects) -> bool {
        let held = |id: &&Arc<str>| self.slots.get(*id).is_some_and(|slot| slot.held.is_some());
        let oldest = self.finished.oldest_first().filter(held).take(MADE_WAY);
        let oldest: Vec<Arc<str>> = oldest.cloned().collect();
        for id in &oldest {
            tracing::warn!(%id, "freed before its time: the keeper can hold no more");
            self.remove(id, now, then);
        }
        !oldest.is_empty()
    }

    fn start_again(&mut self, id: &Arc<str>, then: &mut Effects) {
        let Some(slot) = self.slots.get(id) else { return };
        then.actions.push(Action::Spawn(Arc::clone(&slot.record)));
        self.starting += 1;
    }

    /// A process that never was leaves no record. Only if whoever asked cannot be told (because
    /// the server died in between), the record has to tell.
    fn not_started(&mut self, id: &Arc<str>, error: &Error, now: Now, then: &mut Effects) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if slot.record.spec.is_script() {
            then.actions.push(Action::RemoveScript(Arc::clone(&slot.record)));
        }
        if slot.waiting.starts.is_empty() {
            self.never_ran(id, Cause::StartFailed, error.to_string(), now, then);
            return;
        }
        let Some(slot) = self.slots.remove(id) else { return };
        self.live -= 1;
        slot.leave(then);
        slot.waiting.fail(id, error, then);
        self.over(then);
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

    /// Nothing can print any more.
    fn drained(&mut self, key: u64, then: &mut Effects) {
        let Some(slot) = self.keys.get(&key).and_then(|id| self.slots.get_mut(id)) else { return };
        let Phase::Exited(end) = &slot.record.phase else { return };
        if end.output_complete {
            return;
        }
        let end = End { output_complete: true, printed: printed(&slot.held), ..end.clone() };
        slot.set_phase(Phase::Exited(end));
        release_if_empty(slot, &mut self.keys, then);
        then.changes.push(Change::Update(Arc::clone(&slot.record)));
        then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
    }

    fn shut_down(&mut self, now: Now, then: &mut Effects) {
        self.shutting_down = true;
        let live = self.slots.values().filter(|slot| slot.record.end().is_none());
        let live = live.map(|slot| (Arc::clone(&slot.record.id), slot.record.spec.stop));
        for (id, stop) in live.collect::<Vec<_>>() {
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
        self.retain(now, then);
    }

    /// Lets the life of a process take its course.
    fn happen(&mut self, id: &Arc<str>, happening: Happening, now: Now, then: &mut Effects) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let Consequence { events, asks, mut ended } = slot.life.apply(happening, now.moment);
        let changed = !events.is_empty();
        for kind in events {
            let Some(started) = slot.started else { continue };
            let phase = match kind {
                Kind::Started => Some(Phase::Running(started)),
                Kind::Stopping => slot.life.ending().map(|(why, kill_at)| Phase::Stopping {
                    started,
                    why,
                    kill_at,
                }),
                Kind::Completed => {
                    ended.take().map(|ended| Phase::Exited(end(slot, started, ended)))
                }
                Kind::Deleted => None,
            };
            let Some(phase) = phase else { continue };
            slot.set_phase(phase);
            if kind == Kind::Completed {
                release_if_empty(slot, &mut self.keys, then);
            }
            then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
            tell(kind, slot, &mut self.next_event, now, then);
        }
        if changed {
            then.changes.push(Change::Update(Arc::clone(&slot.record)));
        }
        if let Some(held) = &slot.held {
            let ask = |ask| Action::Ask { id: Arc::clone(id), key: held.key, ask };
            then.actions.extend(asks.into_iter().map(ask));
        }
        let timer = slot.life.wake_at();
        if slot.timer != timer {
            if let Some(old) = std::mem::replace(&mut slot.timer, timer) {
                self.timers.remove(&(old, Arc::clone(id)));
            }
            self.timers.extend(timer.map(|at| (at, Arc::clone(id))));
        }
        if changed && slot.record.end().is_some() {
            self.completed(id, now, then);
        }
    }

    /// A process is over: whoever waited for that is answered.
    fn completed(&mut self, id: &Arc<str>, now: Now, then: &mut Effects) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        self.live -= 1;
        then.actions.push(Action::Finish(Arc::clone(&slot.record)));
        if slot.record.spec.is_script() {
            then.actions.push(Action::RemoveScript(Arc::clone(&slot.record)));
        }
        // Those who asked for the start were answered when it had started.
        let Waiting { starts: _, kills, deletes } = std::mem::take(&mut slot.waiting);
        for reply in kills {
            let killed = Killed { seen: slot.seen(), reached: slot.reached.clone() };
            then.actions.push(Action::AnswerKill(reply, Ok(killed)));
        }
        slot.reached = Vec::new();
        let time = slot.record.end().map_or(0, |end| end.time);
        self.finished.insert(time, slot.record.birth, &slot.record.id, slot.bytes());
        if !deletes.is_empty() {
            self.remove(id, now, then);
        }
        then.actions.extend(deletes.into_iter().map(|reply| Action::AnswerDelete(reply, Ok(()))));
        self.retain(now, then);
        self.over(then);
    }

    /// Frees the oldest finished processes, as many as are too many.
    fn retain(&mut self, now: Now, then: &mut Effects) {
        while let Some(id) = self.finished.excess(&self.keep, now.wall) {
            self.remove(&id, now, then);
        }
    }

    /// Frees a finished process.
    fn remove(&mut self, id: &Arc<str>, now: Now, then: &mut Effects) {
        let Some(slot) = self.slots.remove(id) else { return };
        let time = slot.record.end().map_or(0, |end| end.time);
        self.finished.remove(time, slot.record.birth);
        slot.leave(then);
        if let Some(held) = &slot.held {
            self.keys.remove(&held.key);
            then.actions.push(Action::Release(held.key));
        }
        tell(Kind::Deleted, &slot, &mut self.next_event, now, then);
    }

    /// Ends the record of a process that never ran or was lost.
    fn never_ran(
        &mut self,
        id: &Arc<str>,
        cause: Cause,
        detail: String,
        now: Now,
        then: &mut Effects,
    ) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let end = End {
            cause,
            time: now.wall,
            started: slot.started,
            exit: None,
            printed: Printed { next_seq: 1, ..Printed::default() },
            output_complete: cause != Cause::Lost,
            detail,
        };
        slot.life = Life::Exited;
        slot.set_phase(Phase::Exited(end));
        then.changes.push(Change::Update(Arc::clone(&slot.record)));
        then.actions.push(Action::Publish(Arc::clone(&slot.entry), slot.seen()));
        tell(Kind::Completed, slot, &mut self.next_event, now, then);
        self.completed(id, now, then);
    }

    fn over(&self, then: &mut Effects) {
        if self.shutting_down && self.live == 0 {
            then.actions.push(Action::AllOver);
        }
    }

    /// Whether it can be recorded again is known when it is tried: what comes now may begin.
    pub(super) fn try_again(&mut self) {
        self.failing = None;
    }

    /// A commit has failed. What it would have begun does not begin; the rest will be tried again.
    pub(super) fn not_committed(&mut self, begun: &[Arc<str>], error: &str) -> Effects {
        let mut effects = Effects::default();
        self.failing = Some(error.into());
        for id in begun {
            let Some(slot) = self.slots.remove(id) else { continue };
            self.live -= 1;
            self.starting -= 1;
            slot.waiting.fail(id, &Error::Store(error.into()), &mut effects);
        }
        self.over(&mut effects);
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
