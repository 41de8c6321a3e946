//! The supervisor: the only writer of state.
//!
//! ```text
//!  calls ──┐
//!  keeper ─┼─► select ─► Input ─► State::apply ─► Effects ─► commit ─► registry, events,
//!  time ───┘             (pure: lifecycle, retention, recovery)        keeper, answers
//! ```
//!
//! Owns the handle that calls use. What changes something goes to the actor, which finishes it
//! whether or not the caller stays; what only looks reads what the actor has published
//! (`registry`, `observe`). Bytes never pass through the actor.

mod actor;
mod effects;
mod error;
mod launch;
mod observe;
mod recovery;
mod registry;
mod retention;
mod state;

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::events::EventLog;
use crate::keeper_client::{Adopted, Keeper, KeeperError, Reports, Write, Written};
use crate::process::{Refused, Size, Spec};
use crate::store::{Loaded, Store};
use actor::{Actor, Queue, now};
use launch::Ground;
use state::{Call, Starter, State};

pub use actor::Stage;
pub use effects::{Begun, Killed};
pub use error::{BadField, Error};
pub use observe::{Observer, QuietFrom, Waited, figures};
pub use registry::{Counts, Entry, Held, Page, Registry, Seen};
pub use retention::Keep;
pub use state::StopOrder;

/// Calls on their way to the actor. More callers than this wait for their place: each of them
/// is waiting for an answer anyway.
const CALLS: usize = 1024;

/// A handle to the supervisor. Cheap to clone.
#[derive(Clone)]
pub struct Supervisor {
    calls: mpsc::Sender<Call>,
    registry: Arc<Registry>,
    events: Arc<EventLog>,
    store: Store,
    keeper: Keeper,
    stage: watch::Receiver<Stage>,
}

/// What the keeper had to tell when the connection began.
pub struct FromKeeper {
    /// The handle.
    pub keeper: Keeper,
    /// What will happen.
    pub reports: Reports,
    /// What it holds.
    pub held: Vec<Adopted>,
}

impl Supervisor {
    /// Takes over what the store and the keeper have, and goes on.
    pub async fn begin(
        from_keeper: FromKeeper,
        store: Store,
        loaded: Loaded,
        keep: Keep,
        state_dir: &Path,
    ) -> Supervisor {
        let FromKeeper { keeper, reports, held } = from_keeper;
        let Loaded { records, next_event, next_birth, tail, instance_id: _ } = loaded;
        let ground = Arc::new(Ground::new(state_dir));
        ground.sweep_scripts(&records);
        let mut state = State::new(keep, next_birth, next_event);
        let queue = Queue::new(state.recover(records, held, now()));
        let registry = Arc::new(Registry::default());
        let events = Arc::new(EventLog::new(next_event - 1, tail));
        let (calls, receiver) = mpsc::channel(CALLS);
        let (stage, stages) = watch::channel(Stage::Recovering);
        let actor = Actor {
            state,
            keeper: keeper.clone(),
            reports,
            store: store.clone(),
            registry: Arc::clone(&registry),
            events: Arc::clone(&events),
            ground,
            calls: receiver,
            stage,
            queue,
        };
        tokio::spawn(actor.run());
        // Nobody is told that something does not exist before all that does is known.
        let _ = stages.clone().wait_for(|stage| *stage > Stage::Recovering).await;
        Supervisor { calls, registry, events, store, keeper, stage: stages }
    }

    /// Starts a process; answered when that is recorded. One that the id names already is the
    /// answer if its spec is equal.
    ///
    /// Who is `patient` waits for the end of the process anyway: the record of its start may then
    /// share a commit with that of its end.
    pub async fn start(
        &self,
        id: Option<String>,
        spec: Spec,
        patient: bool,
    ) -> Result<Begun, Error> {
        let spec = Box::new(spec);
        self.call(|reply| Call::Start {
            id,
            spec,
            starter: Starter { reply, patient, existed: false },
        })
        .await
    }

    /// Ends the tree of a process; answered when all of it is gone.
    pub async fn kill(&self, id: String, stop: StopOrder) -> Result<Killed, Error> {
        self.call(|reply| Call::Kill { id, stop, reply }).await
    }

    /// Frees a process; with `force`, ends it first.
    pub async fn delete(&self, id: String, force: bool) -> Result<(), Error> {
        self.call(|reply| Call::Delete { id, force, reply }).await
    }

    /// A process by its id.
    pub fn find(&self, id: &str) -> Result<Arc<Entry>, Error> {
        self.registry.get(id).ok_or_else(|| Error::NotFound(id.into()))
    }

    /// All processes.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// What happened lately.
    pub fn events(&self) -> &Arc<EventLog> {
        &self.events
    }

    /// All that is recorded.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How far the supervisor is.
    pub fn stage(&self) -> watch::Receiver<Stage> {
        self.stage.clone()
    }

    /// A place in the transcript of a process.
    pub fn observe(&self, entry: Arc<Entry>, since: Option<u64>) -> Result<Observer, Error> {
        Observer::new(entry, self.stage.clone(), since)
    }

    /// Types into a process.
    pub async fn write(&self, entry: &Entry, write: Write) -> Result<Written, Error> {
        let (offset, end) =
            (write.offset, write.offset.map(|at| at.saturating_add(write.data.len() as u64)));
        let (held, id) = match self.held(entry).await {
            // A repeated write is no error because its process has ended meanwhile.
            Err(Error::NotRunning(id)) => {
                let input = entry.seen().progress().map(|progress| progress.input);
                let taken = input.filter(|input| end.is_some_and(|end| end <= input.accepted));
                let written = taken.map(|input| Written { input, added: 0 });
                return written.ok_or(Error::NotRunning(id));
            }
            held => held?,
        };
        let written = self.keeper.write(held.key, write).await;
        written.map_err(|error| match (error, offset) {
            (KeeperError::Refused(Refused::InputOffset(state)), Some(offset)) => {
                Error::InputOffset { offset, accepted: state.accepted }
            }
            (error, _) => Error::from_keeper(&id, error),
        })
    }

    /// Sets the size of a terminal.
    pub async fn resize(&self, entry: &Entry, size: Size) -> Result<(), Error> {
        let (held, id) = self.held(entry).await?;
        let resized = self.keeper.resize(held.key, size).await;
        resized.map_err(|error| Error::from_keeper(&id, error))
    }

    /// Sends one signal to a process, or to its group.
    pub async fn signal(&self, entry: &Entry, signal: i32, group: bool) -> Result<(), Error> {
        let (held, id) = self.held(entry).await?;
        let sent = self.keeper.signal(held.key, signal, group).await;
        sent.map_err(|error| Error::from_keeper(&id, error))
    }

    /// Lets a transcript that blocks forget all chunks up to `seq`.
    pub async fn acknowledge(&self, entry: &Entry, seq: u64) -> Result<(), Error> {
        let Some(held) = entry.seen().held else { return Ok(()) };
        let acknowledged = self.keeper.acknowledge(held.key, seq).await;
        acknowledged.map_err(|error| Error::from_keeper(&entry.seen().record.id, error))
    }

    /// The way to a process that runs. One that is being started is waited for.
    async fn held(&self, entry: &Entry) -> Result<(Held, Arc<str>), Error> {
        let mut watch = entry.watch();
        let decided =
            |seen: &Seen| seen.held.is_some() || seen.removed || seen.record.end().is_some();
        let seen = watch.wait_for(decided).await.map_err(|_| Error::ShuttingDown)?;
        let id = Arc::clone(&seen.record.id);
        match &seen.held {
            Some(held) if seen.record.end().is_none() => Ok((held.clone(), id)),
            _ if seen.removed => Err(Error::NotFound(id.to_string())),
            _ => Err(Error::NotRunning(id.to_string())),
        }
    }

    async fn call<T>(
        &self,
        call: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Call,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.calls.send(call(reply)).await.map_err(|_| Error::ShuttingDown)?;
        answer.await.map_err(|_| Error::ShuttingDown)?
    }
}
