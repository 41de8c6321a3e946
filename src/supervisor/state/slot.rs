//! One process in the supervisor's state: its record, its life, and who waits for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{ServiceKey, Starter};
use crate::process::lifecycle::{Ask, Ended, Running, after};
use crate::process::{
    Cause, Descendant, End, KeeperId, Kind, Life, Moment, Phase, Policy, Printed, Record, Spec,
    Started, StructuredOutput, Unkillable,
};
use crate::store::Change;
use crate::supervisor::effects::{Action, Effects, Killed, Reply};
use crate::supervisor::error::Error;
use crate::supervisor::limits::want_of_memory;
use crate::supervisor::queue::Place;
use crate::supervisor::registry::{Entry, Held, Seen};
use crate::supervisor::retention::Footprint;
use crate::supervisor::spawn_limit::SpawnLimit;

/// Numbers that are passed over after a process that was lost: more than it can have printed since
/// it was last saved, however long the disk was full. No reader's place is ever given to something
/// else.
const UNSAVED: u64 = 1 << 40;

/// A process.
pub(super) struct Slot {
    pub(super) entry: Arc<Entry>,
    pub(super) record: Arc<Record>,
    /// The spec as events show it.
    pub(super) brief: Arc<Spec>,
    pub(super) life: Life,
    pub(super) held: Option<Held>,
    /// What the keeper has of an earlier run. It is freed when it is recorded what became of the
    /// next one: until then it tells how far the numbers of chunks have come.
    pub(super) outdated: Option<Held>,
    /// Why its probe is not met, if that is known.
    pub(super) not_ready: String,
    /// It has exited, and what it set is being read.
    pub(super) exiting: bool,
    pub(super) started: Option<Started>,
    /// It is among those of whoever began it, of whom there may be only so many.
    pub(super) counted: bool,
    /// The ticket with which it waits until the keeper may be asked for its launch.
    pub(super) spawn_ticket: Option<u64>,
    /// Where it waits, while it does.
    pub(super) place: Option<Place>,
    /// What the program set, known from its exit until that is recorded.
    pub(super) output: Option<StructuredOutput>,
    /// When its life is to be told that time has passed.
    pub(super) timer: Option<Moment>,
    /// Whom the signals of its end reached.
    pub(super) reached: Vec<Descendant>,
    pub(super) waiting: Waiting,
}

/// Who waits for a process. Calls that were cancelled are removed when others are added.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) starts: Vec<Starter>,
    pub(super) kills: Vec<Reply<Killed>>,
    pub(super) deletes: Vec<Reply<()>>,
}

impl Slot {
    pub(super) fn new(record: Arc<Record>, life: Life, held: Option<Held>) -> Slot {
        Slot {
            entry: Entry::new(Arc::clone(&record), held.clone()),
            brief: record.spec.brief(),
            started: record.started(),
            counted: false,
            record,
            life,
            held,
            outdated: None,
            not_ready: String::new(),
            exiting: false,
            spawn_ticket: None,
            place: None,
            output: None,
            timer: None,
            reached: Vec::new(),
            waiting: Waiting::default(),
        }
    }

    pub(super) fn seen(&self) -> Seen {
        Seen {
            record: Arc::clone(&self.record),
            held: self.held.clone(),
            place: self.place.clone(),
            removed: false,
        }
    }

    /// Makes the next record.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Record)) {
        change(Arc::make_mut(&mut self.record));
    }

    pub(super) fn set_phase(&mut self, phase: Phase) {
        self.change(|record| record.phase = phase);
    }

    /// The keeper has started it. Without a probe it is ready at once.
    pub(super) fn begun(&mut self, started: Started) {
        let ready = self.record.spec.readiness.is_none().then_some(started.time);
        self.started = Some(Started { ready, ..started });
        self.change(|record| (record.printing, record.keeper) = (record.launch, None));
    }

    /// The keeper is about to be asked to start it, or it waits until that may be. The record says which.
    pub(super) fn place_spawn(&mut self, spawns: &mut SpawnLimit, keeper: Option<&KeeperId>) {
        self.spawn_ticket = spawns.begin_or_wait(&self.record);
        let unasked = self.spawn_ticket.is_some();
        self.change(|record| (record.keeper, record.unasked) = (keeper.cloned(), unasked));
    }

    /// The same for a new launch. Starts of a service are counted.
    pub(super) fn begins(
        &mut self,
        spawns: &mut SpawnLimit,
        keeper: Option<&KeeperId>,
        now: Moment,
    ) {
        self.place_spawn(spawns, keeper);
        if let Some(restart) = self.record.spec.service.as_ref().map(|service| service.restart) {
            self.change(|record| record.restarts.starting(&restart, now));
        }
    }

    /// Records what SIGKILL has not ended. True: the record has changed.
    pub(super) fn set_unkillable(&mut self, unkillable: Vec<Unkillable>) -> bool {
        let changed = self.record.unkillable != unkillable;
        if changed {
            self.change(|record| record.unkillable = unkillable);
        }
        changed
    }

    /// Puts a question about the tree to the keeper; about processes that an earlier keeper could
    /// not end, to the kernel.
    pub(super) fn ask(&self, ask: Ask) -> Option<Action> {
        let id = Arc::clone(&self.record.id);
        let leftovers = &self.record.unkillable;
        match &self.held {
            Some(held) => {
                let by = self.record.by.clone();
                Some(Action::Ask { id, by, key: held.key, ask })
            }
            None if leftovers.is_empty() => None,
            None => Some(Action::AskLeftovers { id, leftovers: leftovers.clone(), ask }),
        }
    }

    /// SIGKILL has not ended its leader: answers the calls that wait for the end.
    pub(super) fn answer_kill_failed(&mut self, then: &mut Effects) {
        for reply in std::mem::take(&mut self.waiting.kills) {
            let (seen, reached) = (self.seen(), self.life.reached().to_vec());
            then.actions.push(Action::AnswerKill(reply, Ok(Killed { seen, reached })));
        }
        self.refuse_deletes(then);
    }

    /// Answers deletes by force of what SIGKILL has not ended.
    pub(super) fn refuse_deletes(&mut self, then: &mut Effects) {
        for reply in std::mem::take(&mut self.waiting.deletes) {
            let error = Error::StillRunning(self.record.id.to_string());
            then.actions.push(Action::AnswerDelete(reply, Err(error)));
        }
    }

    /// Descendants that outlived it, and the way to them.
    pub(super) fn rest(&self) -> Option<u64> {
        let exit = self.record.last_end().and_then(|end| end.exit.as_ref());
        let lingers = exit.is_some_and(|exit| !exit.lingering.is_empty());
        self.held.as_ref().filter(|_| lingers).map(|held| held.key)
    }

    /// The phase that something that happened leads to.
    pub(super) fn phase_after(&mut self, kind: Kind, wall: u64) -> Option<Phase> {
        let started = self.started.as_mut()?;
        match kind {
            Kind::Started => Some(Phase::Running(*started)),
            Kind::Ready => {
                started.ready = Some(wall);
                Some(Phase::Running(*started))
            }
            Kind::Stopping => {
                let (started, ending) = (*started, self.life.ending()?);
                Some(Phase::Stopping { started, ending })
            }
            Kind::Queued | Kind::Completed | Kind::Restarting | Kind::RunAgain | Kind::Deleted => {
                None
            }
        }
    }

    /// A service that is started again by the next supervisor, if it ends with this one.
    pub(super) fn comes_back(&self) -> bool {
        let service = self.record.spec.service.as_ref();
        let policy = service.map_or(Policy::Never, |service| service.restart.policy);
        policy != Policy::Never && !self.waiting.for_its_end()
    }

    /// It pauses or waits, and is left so when the supervisor ends: the next one goes on.
    pub(super) fn rests(&self) -> bool {
        matches!(self.record.phase, Phase::Backoff { .. } | Phase::Queued { .. })
            && self.comes_back()
    }

    /// The number of the first chunk of its next launch.
    pub(super) fn next_seq(&self) -> u64 {
        let lost = |end: &End| end.started.is_some() && !self.record.is_end_known();
        let lost = self.held.is_none() && self.record.last_end().is_some_and(lost);
        printed(self).next_seq + if lost { UNSAVED } else { 0 }
    }

    /// What the keeper has of an earlier launch, before the next one.
    pub(super) fn earlier(&self) -> Option<Held> {
        self.outdated.as_ref().or(self.held.as_ref()).cloned()
    }

    /// What makes its service the same, if it is one.
    pub(super) fn service_key(&self) -> Option<ServiceKey> {
        service_key(&self.record.spec)
    }

    /// The record as events show it.
    pub(super) fn brief_record(&self) -> Arc<Record> {
        self.record.brief(&self.brief)
    }

    /// Its record goes. It is shown once more, not as it was published last: its end may be news
    /// yet, and its readers have the output still.
    pub(super) fn leave(&self, then: &mut Effects) {
        then.changes.push(Change::Remove(Arc::clone(&self.record.id)));
        then.actions.push(Action::Leave(Arc::clone(&self.record)));
        let seen = Seen { removed: true, ..self.seen() };
        then.actions.push(Action::Publish(Arc::clone(&self.entry), seen));
    }

    /// What was saved of its transcript goes.
    pub(super) fn leave_disk(&self, then: &mut Effects) {
        let Record { birth, run, .. } = *self.record;
        if printed(self).bytes > 0 {
            then.actions.push(Action::RemoveTranscript { birth, run });
        }
    }

    /// What it takes once it is finished.
    pub(super) fn footprint(&self) -> Footprint {
        let ring = self.held.as_ref().and_then(|held| held.output.progress().ring);
        let kept = ring.map_or(0, |ring| ring.memory());
        let filed = self.record.archive.map_or(0, |archived| archived.file_bytes);
        let output_bytes = self.record.output_bytes() as u64;
        let bytes = kept + filed + self.record.spec.bytes() as u64 + output_bytes;
        Footprint { bytes, output_bytes }
    }
}

impl Waiting {
    /// Somebody wants it to be over.
    pub(super) fn for_its_end(&self) -> bool {
        !self.kills.is_empty() || !self.deletes.is_empty()
    }

    /// Tells everyone that there is no such process, and those who asked for it why.
    pub(super) fn fail(self, id: &str, error: &Error, then: &mut Effects) {
        let Waiting { starts, kills, deletes } = self;
        let starts = starts.into_iter();
        let why = || Err(error.clone());
        then.actions.extend(starts.map(|starter| Action::AnswerStart(starter.reply, why())));
        let kills = kills.into_iter();
        let missing = || Err(Error::NotFound(id.into()));
        then.actions.extend(kills.map(|reply| Action::AnswerKill(reply, missing())));
        let deletes = deletes.into_iter();
        then.actions.extend(deletes.map(|reply| Action::AnswerDelete(reply, Ok(()))));
    }
}

/// Fewest waiters that are added before those that have left are removed.
const MIN_SPARE_WAITERS: usize = 4;

/// Adds a waiter, and removes those that have left, whenever the vector is full. It then gets room for as
/// many as it holds, so that the cost per waiter is constant.
pub(super) fn add_waiter<T>(waiters: &mut Vec<T>, new: T, has_left: impl Fn(&T) -> bool) {
    if waiters.len() == waiters.capacity() {
        waiters.retain(|waiter| !has_left(waiter));
        waiters.reserve(waiters.len().max(MIN_SPARE_WAITERS));
    }
    waiters.push(new);
}

/// Bytes of what is said of an end: it may repeat arguments or a path, and every event has it.
const MAX_DETAIL_BYTES: usize = 4 << 10;

/// How a process ended, for its record.
pub(super) fn end(slot: &mut Slot, ended: Ended, wall: u64) -> End {
    let Ended { cause, exit, reached: _, unkillable: _, mut detail, for_good: _ } = ended;
    let drained = slot.held.as_ref().map(|held| held.output.progress().drained);
    if let (Phase::Backoff { last, .. }, None) = (&slot.record.phase, &exit) {
        // It ended long ago; that it does not begin again is what is new.
        return End {
            cause,
            printed: printed(slot),
            output_complete: last.output_complete || drained == Some(true),
            detail: "while it waited for its restart".into(),
            typed: last.typed,
            ..last.clone()
        };
    }
    if let (Cause::ReadinessFailed, Some(readiness)) = (cause, &slot.record.spec.readiness) {
        detail = match slot.record.phase {
            Phase::Stopping { .. } => readiness.unmet(&slot.not_ready),
            _ => "before it was ready".into(),
        };
    }
    let memory =
        exit.as_ref().and_then(|exit| want_of_memory(&slot.record.spec.limits, cause, exit));
    let said = (!detail.is_empty()).then_some(detail);
    let mut detail = said.into_iter().chain(memory).collect::<Vec<_>>().join(": ");
    let mut end = detail.len().min(MAX_DETAIL_BYTES);
    while !detail.is_char_boundary(end) {
        end -= 1;
    }
    detail.truncate(end);
    End {
        cause,
        time: exit.as_ref().map_or(wall, |exit| exit.time),
        started: slot.started,
        printed: printed(slot),
        output_complete: drained.unwrap_or(cause != Cause::Lost),
        exit,
        detail,
        output: slot.output.take(),
        size: slot.entry.sizes().last().map(|(_, size)| *size),
        typed: slot.held.as_ref().map_or(0, |held| held.output.progress().input.accepted),
    }
}

/// What bounds a process that was started.
pub(super) fn running(spec: &Spec, started: Started) -> Running {
    let pending = spec.readiness.as_ref().filter(|ready| !ready.keep && started.ready.is_none());
    let cpu_seconds = spec.limits.cpu_seconds;
    Running {
        deadline: spec.timeout.map(|span| after(started.moment, span)),
        ready_by: pending.map(|readiness| after(started.moment, readiness.timeout)),
        cpu_limit: (cpu_seconds > 0).then(|| Duration::from_secs(cpu_seconds)),
    }
}

/// What makes a service the same, if it is one.
pub(super) fn service_key(spec: &Spec) -> Option<ServiceKey> {
    let service = spec.service.as_ref()?;
    Some((service.name.clone(), spec.owner.clone(), spec.workspace.clone()))
}

/// What a process has printed so far.
pub(super) fn printed(slot: &Slot) -> Printed {
    let progress = slot.held.as_ref().map(|held| held.output.progress()).unwrap_or_default();
    let before = slot.record.archive.map(|archived| archived.figures).unwrap_or_default();
    match progress.ring {
        Some(ring) => {
            let figures = ring.figures();
            Printed {
                next_seq: figures.next_seq,
                bytes: before.total_bytes + figures.total_bytes,
                last_time: figures.last_time,
            }
        }
        None => {
            let last = slot.record.last_end().map(|end| end.printed).unwrap_or_default();
            let outdated = slot.outdated.as_ref().map_or(0, Held::next_seq);
            let numbers = [
                progress.next_seq,
                slot.record.first_seq,
                before.next_seq,
                last.next_seq,
                outdated,
            ];
            Printed {
                next_seq: numbers.into_iter().max().unwrap_or_default(),
                bytes: before.total_bytes.max(last.bytes),
                last_time: before.last_time.max(last.last_time),
            }
        }
    }
}

/// A process that has printed nothing and left nobody behind is nothing that the keeper must hold.
pub(super) fn release_if_empty(
    slot: &mut Slot,
    keys: &mut HashMap<u64, Arc<str>>,
    then: &mut Effects,
) {
    let Some(end) = slot.record.end() else { return };
    let alone = end.exit.as_ref().is_none_or(|exit| exit.lingering.is_empty());
    let empty = |held: &Held| held.output.progress().ring.is_none();
    if let Some(held) = slot.held.take_if(|held| alone && end.output_complete && empty(held)) {
        keys.remove(&held.key);
        then.actions.push(Action::Release(held.key));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::add_waiter;

    #[test]
    fn waiters_that_have_left_are_removed_at_constant_cost() {
        let looks = Cell::new(0);
        let has_left = |id: &u32| {
            looks.set(looks.get() + 1);
            id.is_multiple_of(2)
        };
        let mut waiters = Vec::new();
        (0..10_000).for_each(|id| add_waiter(&mut waiters, id, has_left));
        let stay = waiters.iter().filter(|id| *id % 2 == 1).count();
        assert_eq!(stay, 5_000);
        assert!(waiters.capacity() <= 20_000 && looks.get() <= 40_000, "{}", looks.get());
        let mut waiters = Vec::new();
        (0..10_000).for_each(|id| add_waiter(&mut waiters, id, |_| true));
        assert!(waiters.len() <= 8, "{}", waiters.len());
    }
}
