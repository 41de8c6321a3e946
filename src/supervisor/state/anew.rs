//! Beginning anew: taking over what the store and the keeper have.

use std::sync::Arc;

use super::{Now, Slot, State};
use crate::keeper_client::Adopted;
use crate::process::lifecycle::{Happening, Order, after};
use crate::process::{Cause, Life, Phase, Record, Started};
use crate::supervisor::effects::{Action, Effects};
use crate::supervisor::recovery::{Fate, Found, reconcile};
use crate::supervisor::registry::Held;

impl State {
    /// Takes over what the store and the keeper have.
    pub(in crate::supervisor) fn recover(
        &mut self,
        records: Vec<Record>,
        held: Vec<Adopted>,
        now: Now,
    ) -> Effects {
        let mut effects = Effects::default();
        let then = &mut effects;
        let found =
            held.into_iter().map(|held| Found { id: held.id.clone(), run: held.run, what: held });
        let (fates, strays) = reconcile(records, found.collect());
        for (record, fate) in fates {
            let id = Arc::clone(&record.id);
            match fate {
                Fate::Finished(held) => self.take_finished(record, held, then),
                Fate::StartAgain => {
                    self.take(record, Life::new(), None, then);
                    self.start_again(&id, then);
                }
                Fate::GoesOn(held) => self.take_live(record, held, now, then),
                Fate::Lost => {
                    tracing::warn!(%id, "lost: it ran when the supervisor was ended");
                    self.take(record, Life::Exited, None, then);
                    self.never_ran(&id, Cause::Lost, String::new(), now, then);
                }
            }
        }
        then.actions.extend(strays.into_iter().map(|stray| match stray.exit {
            Some(_) => Action::Release(stray.key),
            None => Action::KillStray(stray.key),
        }));
        self.retain(now, then);
        then.actions.push(Action::Recovered);
        effects
    }

    fn take(
        &mut self,
        record: Record,
        life: Life,
        held: Option<Held>,
        then: &mut Effects,
    ) -> &mut Slot {
        let record = Arc::new(record);
        if record.end().is_none() {
            self.live += 1;
        }
        self.keys.extend(held.as_ref().map(|held| (held.key, Arc::clone(&record.id))));
        let slot = Slot::new(Arc::clone(&record), life, held);
        then.actions.push(Action::Enter(Arc::clone(&slot.entry)));
        self.slots.entry(Arc::clone(&record.id)).or_insert(slot)
    }

    fn take_finished(&mut self, record: Record, held: Option<Adopted>, then: &mut Effects) {
        let held = held.map(|held| Held { key: held.key, output: held.output });
        let slot = self.take(record, Life::Exited, held, then);
        let (record, bytes) = (Arc::clone(&slot.record), slot.bytes());
        let time = record.end().map_or(0, |end| end.time);
        if let Some(key) = slot.held.as_ref().filter(|held| held.output.progress().drained) {
            let key = key.key;
            self.drained(key, then);
        }
        self.finished.insert(time, record.birth, &record.id, bytes);
    }

    /// Goes on with a process from where its record is.
    fn take_live(&mut self, record: Record, held: Adopted, now: Now, then: &mut Effects) {
        let Adopted { key, pid, start_time, exit, output, .. } = held;
        let id = Arc::clone(&record.id);
        let (timeout, stop) = (record.spec.timeout, record.spec.stop);
        let (life, signal) = match &record.phase {
            Phase::Stopping { why, kill_at, .. } => {
                // Whether the signal was sent is not known: once more is better than never.
                (Life::resume_stopping(*why, *kill_at), Some(Order { why: *why, stop }))
            }
            Phase::Running(started) => {
                let deadline = timeout.map(|span| after(started.moment, span));
                (Life::Running { deadline }, None)
            }
            Phase::Starting | Phase::Exited(_) => (Life::new(), None),
        };
        let slot = self.take(record, life, Some(Held { key, output }), then);
        let moment = now.moment.saturating_sub(now.wall.saturating_sub(start_time));
        let started = *slot.started.get_or_insert(Started { pid, time: start_time, moment });
        if slot.life == Life::new() {
            let deadline = timeout.map(|span| after(started.moment, span));
            self.happen(&id, Happening::Started { deadline }, now, then);
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
