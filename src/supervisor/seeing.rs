//! What a caller sees of what there is: its handle's looks, each through its scope.
//!
//! What is outside of a scope is as if absent. That somebody reached for it is logged all the same;
//! the answer does not tell.

use std::sync::Arc;

use super::Supervisor;
use super::error::Error;
use super::registry::{Counts, Entry, Page};
use crate::access::{Caller, Does};
use crate::events::{Event, Tail};
use crate::process::{Mode, Record, Selector};
use crate::telemetry::refusals;

/// Records up to which they are counted on the main thread.
const MAX_INLINE_RECORDS: usize = 64;

impl Supervisor {
    /// Whose handle it is.
    pub fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// Refuses who may not do such a thing, for what a part of a call does more than the call.
    pub fn may(&self, does: Does, call: &'static str) -> Result<(), Error> {
        let (role, needs) = (self.caller.grant.role, does.needs());
        if role < needs { Err(Error::Role { call, role, needs }) } else { Ok(()) }
    }

    /// A process by its id.
    pub fn find(&self, id: &str) -> Result<Arc<Entry>, Error> {
        let entry = self.parts.registry.get(id);
        let entry = entry.filter(|entry| reaches(&self.caller, &entry.seen().record));
        entry.ok_or_else(|| Error::NotFound(id.into()))
    }

    /// The record of a process, if the caller sees it. Unlike [`Supervisor::find`], this logs nothing.
    pub fn record_of(&self, id: &str) -> Option<Arc<Record>> {
        let record = self.parts.registry.get(id)?.seen().record;
        self.caller.sees(&record).then_some(record)
    }

    /// Up to `size` processes that were made before the one with the birth `before`.
    pub fn list(
        &self,
        selector: &Selector,
        live_only: bool,
        before: Option<u64>,
        size: usize,
    ) -> Page {
        let meant = |record: &Record| self.caller.means(selector, record);
        self.parts.registry.list(meant, live_only, before, size)
    }

    /// The records of the live processes that a Kill by a selector means. Between turns on the server's thread others
    /// have it. Worker threads are not needed: a file system that does not answer may have taken those of the caller.
    pub(super) async fn find_live(&self, selector: &Selector) -> Vec<Arc<Record>> {
        let mut scan = self.parts.registry.scan(true, None);
        let mut found = Vec::new();
        loop {
            let turn = self.ticket.thread_turn().await;
            while turn.has_time() {
                let Some(record) = scan.next().map(|entry| entry.record()) else { return found };
                if is_killed_by(selector, &self.caller, &record) {
                    found.push(record);
                }
            }
        }
    }

    /// How many records there are, of all callers.
    pub fn record_count(&self) -> usize {
        self.parts.registry.len()
    }

    /// How many processes there are. Many records are counted on a worker thread.
    pub async fn counts(&self) -> Result<Counts, Error> {
        let own = self.clone();
        let count = move || own.parts.registry.counts(|record| own.caller.sees(record));
        match self.record_count() <= MAX_INLINE_RECORDS {
            true => Ok(count()),
            false => self.run_apart(count).await,
        }
    }

    /// The number of the last event of all, and of each that comes.
    pub fn latest_event(&self) -> tokio::sync::watch::Receiver<u64> {
        self.parts.events.subscribe()
    }

    /// The next events of all after one, wherever they are; none: there are no more yet. Which of
    /// them the caller may be told is said by [`Caller::means`]; that there are others is no secret,
    /// as their numbers are.
    pub async fn next_events(&self, after: u64, most: usize) -> Result<Vec<Arc<Event>>, Error> {
        match self.parts.events.since(after, most) {
            Tail::Events(events) => Ok(events),
            Tail::TooOld => {
                let _turn = self.ticket.store_turn().await?;
                let stored = self.parts.store.events(after, most).await;
                let stored = stored.map_err(|error| Error::Store(error.to_string()))?;
                Ok(stored.into_iter().map(Arc::new).collect())
            }
        }
    }
}

/// Whether a Kill by a selector ends a process: a live one, a service only if services are asked for.
pub(super) fn is_killed_by(selector: &Selector, caller: &Caller, record: &Record) -> bool {
    let is_spared = record.spec.mode == Mode::Service && !selector.asks_for_services();
    record.end().is_none() && !is_spared && caller.means(selector, record)
}

/// Whether a process that a caller names is there for it.
pub(super) fn reaches(caller: &Caller, record: &Record) -> bool {
    let sees = caller.sees(record);
    if !sees {
        // Which call it was is not known here; if it would have changed something, its own line is
        // the next.
        let (caller, process) = (caller.name.as_str(), &*record.id);
        let result = "outside of the scope";
        if refusals::has_line(caller, result) {
            tracing::warn!(target: "procyard::audit", caller, call = "", process, result);
        }
    }
    sees
}
