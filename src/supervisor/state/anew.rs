//! Beginning anew: taking over what the store and the keeper have.

use std::collections::HashMap;
use std::sync::Arc;

use super::archiving::archive;
use super::counting::ring;
use super::slot::running;
use super::{Now, Slot, State};
use crate::keeper_client::Adopted;
use crate::process::lifecycle::{Ended, Happening, Order, after};
use crate::process::{Archived, Cause, Life, Phase, Record, Started, StructuredOutput};
use crate::store::Change;
use crate::supervisor::effects::{Action, Effects};
use crate::supervisor::orphans::{self, About};
use crate::supervisor::queue::Waiter;
use crate::supervisor::recovery::{Fate, Found, reconcile};
use crate::supervisor::registry::Held;

/// What the disk has of processes besides their records.
#[derive(Default)]
pub(in crate::supervisor) struct Left {
    /// What those set that have exited without their record knowing, by the keeper's numbers.
    pub(in crate::supervisor) outputs: HashMap<u64, StructuredOutput>,
    /// How much was saved of the transcripts of those that the keeper does not hold, by births.
    pub(in crate::supervisor) saved: HashMap<u64, Archived>,
}

impl State {
    /// Takes over what the store, the keeper and the disk have.
    pub(in crate::supervisor) fn recover(
        &mut self,
        records: Vec<Record>,
        held: Vec<Adopted>,
        left: Left,
        now: Now,
    ) -> Effects {
        let mut effects = Effects::default();
        let then = &mut effects;
        self.closed = true;
        let found = held.into_iter().map(|held| Found {
            id: held.id.clone(),
            launch: held.run,
            what: held,
        });
        let Left { mut outputs, saved } = left;
        let (fates, strays) = reconcile(records, found.collect(), &self.keeper);
        for (mut record, fate) in fates {
            let id = Arc::clone(&record.id);
            // After a boot the clock begins anew: what lies ahead of it was before.
            record.restarts.starts.retain(|start| *start <= now.moment);
            let news = saved.get(&record.birth).copied().map(|saved| record.was_saved(saved));
            match fate {
                Fate::Finished(held) => {
                    then.changes.extend(news.map(|()| Change::Update(Arc::new(record.clone()))));
                    self.take_finished(record, held, then);
                }
                Fate::Waits(earlier) => self.take_queued(record, earlier.map(way), then),
                Fate::StartAgain(earlier) => {
                    // Only a restart goes on with the transcript of a launch before.
                    let goes_on = record.restarts.count > 0;
                    let (held, outdated) = match earlier.map(way) {
                        held if goes_on => (held, None),
                        outdated => (None, outdated),
                    };
                    self.usage.linger(ring(outdated.as_ref()).as_ref());
                    let asked = record.clone();
                    self.take(record, Life::new(), held, then);
                    let Some(slot) = self.slots.get_mut(&id) else { continue };
                    slot.outdated = outdated;
                    slot.place_spawn(&mut self.spawns, self.keeper.id());
                    if *slot.record != asked {
                        then.changes.push(Change::Update(Arc::clone(&slot.record)));
                    }
                    self.spawn(&id, then);
                }
                Fate::Pauses(held) => self.take_pausing(record, held.map(way), now, then),
                Fate::GoesOn(held) => {
                    let output = outputs.remove(&held.key);
                    self.take_live(record, held, output, now, then);
                }
                Fate::Lost if !record.unkillable.is_empty() => {
                    self.take_leftover(record, now, then);
                }
                Fate::Lost => {
                    tracing::warn!(process = %id, "lost: it ran when the supervisor was ended");
                    self.take(record, Life::Exited, None, then);
                    self.ended(&id, Ended::without_exit(Cause::Lost), now, then);
                    self.set_timer(&id);
                }
            }
        }
        let strays = self.take_orphans(strays, now, then);
        let stray = |stray: Adopted| Action::KillStray {
            id: stray.id.into(),
            by: String::new(),
            key: stray.key,
        };
        then.actions.extend(strays.into_iter().map(stray));
        self.closed = false;
        self.retain(now, then);
        self.admit(now, then);
        then.actions.push(Action::Recovered);
        effects
    }

    /// Takes over what runs though its record was lost. Tells what is nobody's.
    fn take_orphans(&mut self, strays: Vec<Adopted>, now: Now, then: &mut Effects) -> Vec<Adopted> {
        let known = |id: &str| self.slots.contains_key(id);
        let (orphans, strays) = orphans::part(strays, self.repaired_at, known, about);
        for orphan in orphans {
            let (process, pid) = (&orphan.id, orphan.pid);
            tracing::warn!(process, pid, "taken over: its record was damaged");
            let record = orphans::record(about(&orphan), self.next_birth);
            self.next_birth += 1;
            then.changes.push(Change::Insert(Arc::new(record.clone())));
            self.take_live(record, orphan, None, now, then);
        }
        strays
    }

    fn take(
        &mut self,
        record: Record,
        life: Life,
        held: Option<Held>,
        then: &mut Effects,
    ) -> &mut Slot {
        let record = Arc::new(record);
        self.keys.extend(held.as_ref().map(|held| (held.key, Arc::clone(&record.id))));
        let mut slot = Slot::new(Arc::clone(&record), life, held);
        slot.count(&mut self.usage);
        if record.end().is_none() {
            self.services.extend(slot.service_key().map(|key| (key, Arc::clone(&record.id))));
        }
        if !matches!(record.phase, Phase::Queued { .. } | Phase::Exited(_)) {
            self.queues.begin(&record.spec.queue);
        }
        then.actions.push(Action::Enter(Arc::clone(&slot.entry)));
        self.slots.entry(Arc::clone(&record.id)).or_insert(slot)
    }

    fn take_queued(&mut self, record: Record, outdated: Option<Held>, then: &mut Effects) {
        let Phase::Queued { ticket } = record.phase else { return };
        let place = self.queues.wait(&record.spec.queue, ticket, Waiter::new(&record));
        self.usage.linger(ring(outdated.as_ref()).as_ref());
        let slot = self.take(record, Life::Queued, None, then);
        (slot.place, slot.outdated) = (Some(place), outdated);
        let (entry, seen) = (Arc::clone(&slot.entry), slot.seen());
        then.actions.push(Action::Publish(entry, seen));
    }

    fn take_pausing(&mut self, record: Record, held: Option<Held>, now: Now, then: &mut Effects) {
        let Phase::Backoff { until, .. } = record.phase else { return };
        let id = Arc::clone(&record.id);
        let restart = record.spec.service.as_ref().map(|service| service.restart);
        let longest = restart.unwrap_or_default().backoff_max;
        let until = until.min(after(now.moment, longest));
        self.take(record, Life::Backoff { until }, held, then);
        self.set_timer(&id);
    }

    fn take_finished(&mut self, record: Record, held: Option<Adopted>, then: &mut Effects) {
        // Its file is recorded; that the keeper may forget it was not said any more. Nobody reads
        // both, one after the other.
        let filed = record.is_filed() && record.may_be_filed();
        let (filed, held) = if filed { (held, None) } else { (None, held) };
        then.actions.extend(filed.map(|held| Action::Release(held.key)));
        let slot = self.take(record, Life::Exited, held.map(way), then);
        let (record, footprint) = (Arc::clone(&slot.record), slot.footprint());
        if let Some(size) = record.end().and_then(|end| end.size) {
            slot.entry.resized(0, size);
        }
        let time = record.end().map_or(0, |end| end.time);
        let held = slot.held.as_ref().map(|held| (held.key, held.output.progress().drained));
        if let Some((key, true)) = held {
            if let Some(slot) = self.slots.get(&record.id) {
                archive(slot, &mut self.archiving, then);
            }
            self.drained(key, then);
        }
        self.finished.insert(time, record.birth, &record.id, footprint);
    }

    /// Takes over a process that an earlier keeper could not end, and that still runs: no keeper
    /// holds it, so the server itself sends it SIGKILL until it is gone.
    fn take_leftover(&mut self, record: Record, now: Now, then: &mut Effects) {
        let id = Arc::clone(&record.id);
        let stop = record.spec.stop;
        let ending = match &record.phase {
            Phase::Stopping { ending, .. } => *ending,
            _ => return,
        };
        tracing::warn!(process = %id, unkillable = ?record.unkillable, "a process still runs");
        self.take(record, Life::resume_stopping(ending), None, then);
        let order = Order { why: ending.why, stop: ending.again(stop, now.moment) };
        self.happen(&id, Happening::Stop(order), now, then);
    }

    /// Goes on with a process from where its record is.
    fn take_live(
        &mut self,
        record: Record,
        held: Adopted,
        output: Option<StructuredOutput>,
        now: Now,
        then: &mut Effects,
    ) {
        let Adopted { key, pid, start_time, size, exit, output: transcript, .. } = held;
        let id = Arc::clone(&record.id);
        let stop = record.spec.stop;
        let (life, signal) = match &record.phase {
            Phase::Stopping { ending, .. } => {
                // Whether the signal was sent is not known: once more is better than never.
                let order = Order { why: ending.why, stop: ending.again(stop, now.moment) };
                (Life::resume_stopping(*ending), Some(order))
            }
            Phase::Running(started) => (Life::Running(running(&record.spec, *started)), None),
            Phase::Queued { .. } | Phase::Backoff { .. } | Phase::Starting | Phase::Exited(_) => {
                (Life::new(), None)
            }
        };
        let slot = self.take(record, life, Some(Held { key, output: transcript }), then);
        slot.output = output;
        if let Some(size) = size {
            slot.entry.resized(0, size);
        }
        if slot.life == Life::new() {
            let moment = now.moment.saturating_sub(now.wall.saturating_sub(start_time));
            slot.begun(Started { pid, time: start_time, moment, ready: None });
            self.goes_on(&id, now, then);
        } else {
            self.probe(&id, then);
        }
        if let Some(order) = signal {
            self.happen(&id, Happening::Stop(order), now, then);
        }
        if let Some(exit) = exit {
            self.happen(&id, Happening::Exited(exit), now, then);
        }
        // Its time may have come meanwhile.
        self.happen(&id, Happening::Tick { stop }, now, then);
    }
}

fn about(held: &Adopted) -> About<'_> {
    let Adopted { id, run, start_time, size, .. } = held;
    About { id, launch: *run, start_time: *start_time, size: *size }
}

fn way(held: Adopted) -> Held {
    Held { key: held.key, output: held.output }
}
