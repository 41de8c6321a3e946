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
mod archives;
mod caller_budget;
mod caller_turns;
mod confining;
mod effects;
mod errands;
mod error;
mod followers;
mod launch;
mod limits;
mod observe;
mod orphans;
mod output_turns;
mod outputs;
mod queue;
mod quota;
mod readiness;
mod recovery;
mod registry;
mod replay;
mod resize_queue;
mod retention;
mod saving;
mod scripts;
mod seeing;
mod spawn_limit;
mod state;
mod thread_share;
mod viewing;
mod worker_pool;

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot, watch};

use crate::access::{Caller, Grant};
use crate::events::EventLog;
use crate::failpoint::{self, Point};
use crate::keeper::signal_leftovers;
use crate::keeper_client::{Adopted, Keeper, KeeperError, Reports, Write, Written};
use crate::metrics::supervising::Supervising;
use crate::process::{self, Enforceable, Record, Refused, Selector, Size, Spec, State};
use crate::store::{Loaded, Store};
use crate::telemetry::request::{self, RequestId};
use actor::{Actor, Queue, now};
use archives::Archives;
use caller_budget::ActorPlace;
use caller_turns::{CallerTurns, MAX_TREE_SIGNALS_OF_CALLER};
use confining::Confiner;
use followers::Followers;
use launch::Ground;
use output_turns::OutputTurns;
use readiness::MAX_ATTEMPTS_OF_CALLER;
use registry::Registry;
use saving::Saver;
use state::{Call, Left, Starter};

pub use actor::Stage;
pub use caller_budget::{CallTicket, CallerBudgets};
pub use confining::{Confinement, is_within};
pub use effects::{Begun, Killed};
pub use error::{BadField, Error};
pub use followers::{Follower, Lag};
pub use limits::enforceable as enforceable_limits;
pub use observe::{Observer, QuietFrom, Waited, figures, observable};
pub use queue::{Capacity, Place};
pub use quota::{Bound, LATER, Quota, Quotas, Reached};
pub use readiness::{AttemptTurns, Candidate, ready};
pub use recovery::CurrentKeeper;
pub use registry::{Counts, Entry, Held, Page, Seen};
pub use replay::{SCREEN_BYTES, Typist};
pub use retention::Keep;
pub use state::StopOrder;
pub use thread_share::ThreadShare;
pub use viewing::{LiveView, Shown, Sight};
pub use worker_pool::{WorkerPool, Workers};

/// Calls on their way to the actor, a few of each caller. More than this wait for their place: each of them
/// is waiting for an answer anyway.
const CALLS: usize = 1024;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A caller's handle to the supervisor: what is outside of its scope is not there. Cheap to clone.
#[derive(Clone)]
pub struct Supervisor {
    parts: Arc<Parts>,
    caller: Arc<Caller>,
    /// The worker threads for this caller.
    workers: Workers,
    /// What this call holds of the caller's budget.
    ticket: Arc<CallTicket>,
}

/// The supervisor as nobody sees it. What there is it shows to callers only.
#[derive(Clone)]
pub struct Whole(Arc<Parts>);

struct Parts {
    calls: mpsc::Sender<QueuedCall>,
    registry: Arc<Registry>,
    events: Arc<EventLog>,
    store: Store,
    keeper: Keeper,
    archives: Arc<Archives>,
    saver: Arc<Mutex<Saver>>,
    confiner: Arc<Confiner>,
    workers: Arc<WorkerPool>,
    stage: watch::Receiver<Stage>,
    /// Which limits of whole trees the keeper can enforce.
    limits: Enforceable,
    metrics: Supervising,
    /// Who follows output.
    followers: Followers,
}

/// A call on its way to the actor.
struct QueuedCall {
    caller: Arc<Caller>,
    request: Option<RequestId>,
    call: Call,
    _place: ActorPlace,
}

/// What the keeper had to tell when the connection began.
pub struct FromKeeper {
    /// The handle.
    pub keeper: Keeper,
    /// What will happen.
    pub reports: Reports,
    /// What it holds.
    pub held: Vec<Adopted>,
    /// Which keeper it is.
    pub identity: CurrentKeeper,
    /// Which limits of whole trees it can enforce.
    pub limits: Enforceable,
    /// Which parts of a sandbox it can put up; none: it is too old to confine anyone.
    pub sandbox: Option<process::Parts>,
}

/// What the supervisor was told to go by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// What is kept of finished processes.
    pub keep: Keep,
    /// How many may run at a time.
    pub capacity: Capacity,
    /// Where processes may run, and what they may reach.
    pub confinement: Confinement,
}

impl Whole {
    /// The same for a call of a caller.
    pub fn seen_by(&self, caller: Arc<Caller>, ticket: Arc<CallTicket>) -> Supervisor {
        let workers = self.0.workers.for_caller(&caller.name);
        Supervisor { parts: Arc::clone(&self.0), caller, workers, ticket }
    }

    /// Saves what was printed by those that are to be lost, because the keeper is.
    pub async fn save(&self) {
        self.0.saver.lock().await.save(true).await;
    }

    /// How far the supervisor is.
    pub fn stage(&self) -> watch::Receiver<Stage> {
        self.0.stage.clone()
    }

    /// What it counts.
    pub fn metrics(&self) -> &Supervising {
        &self.0.metrics
    }

    /// How far behind those are who follow output now.
    pub fn lag(&self) -> Lag {
        self.0.followers.lag()
    }

    /// How many processes are in each state now.
    pub fn count_states(&self) -> impl Fn(State) -> u64 {
        let states = self.0.registry.states();
        move |state| states[state as usize]
    }
}

/// Brings together what was recorded, what is held and what is on the disk; what comes of it is to
/// be done first.
async fn recover(
    state: &mut state::State,
    mut records: Vec<Record>,
    held: Vec<Adopted>,
    first_birth: u64,
    ground: &Ground,
    archives: &Arc<Archives>,
) -> Queue {
    for record in &mut records {
        let unkillable = std::mem::take(&mut record.unkillable);
        record.unkillable = signal_leftovers(unkillable, 0);
    }
    let ids = held.iter().map(|held| &*held.id);
    let lost_before = orphans::lost_before(&records, first_birth, ids);
    ground.scripts.sweep(&records, lost_before);
    let left = Left {
        outputs: ground.outputs.take_over(&records, &held, lost_before),
        saved: archives.take_over(&records, &held).await,
    };
    failpoint::reach(Point::RecoverySwept);
    let queue = Queue::new(state.recover(records, held, left, now()));
    failpoint::reach(Point::RecoveryReconciled);
    queue
}

impl Supervisor {
    /// Takes over what the store and the keeper have, and goes on.
    pub async fn begin(
        from_keeper: FromKeeper,
        store: Store,
        loaded: Loaded,
        (state_dir, rules): (&Path, Rules),
        workers: Arc<WorkerPool>,
    ) -> Whole {
        let Rules { keep, capacity, confinement } = rules;
        let FromKeeper { keeper, reports, held, identity, limits, sandbox } = from_keeper;
        let confiner = Arc::new(Confiner::new(confinement, sandbox));
        let Loaded { records, next_event, next_birth, tail, repaired, is_new, instance_id: _ } =
            loaded;
        let ground = Arc::new(Ground::new(state_dir, Arc::clone(&confiner)));
        let mut state = state::State::new(keep, capacity, next_birth, next_event);
        let first_birth = repaired.as_ref().map_or(0, |repaired| repaired.first_birth);
        // What a database does not know that was made after it was started is not unknown.
        let made_at = is_new.then(|| now().wall / NANOS_PER_SECOND);
        state.repaired_at = repaired.map(|repaired| repaired.time).or(made_at);
        state.keeper = identity;
        let archives = Arc::new(Archives::new(state_dir));
        archives.trim_lost(keep).await;
        let queue = recover(&mut state, records, held, first_birth, &ground, &archives).await;
        let registry = Arc::new(Registry::default());
        let events = Arc::new(EventLog::new(next_event - 1, tail));
        let (calls, receiver) = mpsc::channel(CALLS);
        let (stage, stages) = watch::channel(Stage::Recovering);
        let metrics = Supervising::default();
        let actor = Actor {
            state,
            keeper: keeper.clone(),
            reports,
            store: store.clone(),
            registry: Arc::clone(&registry),
            events: Arc::clone(&events),
            ground,
            output_turns: OutputTurns::new(),
            archives: Arc::clone(&archives),
            workers: Arc::clone(&workers),
            attempts: CallerTurns::new(MAX_ATTEMPTS_OF_CALLER),
            tree_signals: CallerTurns::new(MAX_TREE_SIGNALS_OF_CALLER),
            calls: receiver,
            request: None,
            stage,
            queue,
            metrics: metrics.clone(),
        };
        tokio::spawn(actor.run());
        let saver = Saver::new(Arc::clone(&registry), Arc::clone(&archives));
        let saver = Arc::new(Mutex::new(saver));
        tokio::spawn(Saver::run(Arc::clone(&saver), stages.clone()));
        // Nobody is told that something does not exist before all that does is known.
        let _ = stages.clone().wait_for(|stage| *stage > Stage::Recovering).await;
        failpoint::reach(Point::RecoveryDone);
        Whole(Arc::new(Parts {
            calls,
            registry,
            events,
            store,
            keeper,
            archives,
            saver,
            confiner,
            workers,
            stage: stages,
            limits,
            metrics,
            followers: Followers::default(),
        }))
    }

    /// Starts a process; answered when that is recorded. One that the id names already is the
    /// answer if its spec is equal. Owner and workspace are put into the caller's scope first.
    ///
    /// Who is `patient` waits for the end of the process anyway: the record of its start may then
    /// share a commit with that of its end.
    pub async fn start(
        &self,
        id: Option<String>,
        mut spec: Spec,
        patient: bool,
    ) -> Result<Begun, Error> {
        let Grant { scope, may, .. } = &self.caller.grant;
        (spec.owner, spec.workspace) = scope.settle(spec.owner, spec.workspace)?;
        may.allow(&spec)?;
        // Whether one that waits may run is found out when its turn comes; what is clear is said
        // at once.
        let spec = Arc::new(spec);
        self.can_run(&spec, !spec.queue.is_empty()).await?;
        let spec = Box::new(Arc::unwrap_or_clone(spec));
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

    /// Ends all live processes that a selector matches; answered when all of them are gone.
    pub async fn kill_all(
        &self,
        selector: Selector,
        stop: StopOrder,
    ) -> Result<Vec<Killed>, Error> {
        // What looks at all records has its place from then on: the Kills of one caller do so one after another.
        let place = self.ticket.actor_place().await?;
        let found = self.find_live(&selector).await;
        let selector = Box::new(selector);
        let kill = |reply| Call::KillAll { selector, found, stop, reply };
        let answers = self.call_from(place, kill).await?;
        let mut killed = Vec::new();
        for answer in answers {
            match answer.await.map_err(|_| Error::ShuttingDown)? {
                // Freed meanwhile by someone else.
                Err(Error::NotFound(_)) => {}
                answer => killed.push(answer?),
            }
        }
        Ok(killed)
    }

    /// Runs a finished process again; answered when that is recorded. With `force` what it left is
    /// cleared.
    pub async fn run(&self, id: String, force: bool) -> Result<Begun, Error> {
        // This server may be told or able to do less than the one that ran it: nothing is cleared
        // for what cannot run.
        let record = Arc::clone(&self.find(&id)?.seen().record);
        self.can_run(&record.spec, true).await?;
        self.call(|reply| Call::Run { id, force, reply }).await
    }

    /// Frees a process; with `force`, ends it first.
    pub async fn delete(&self, id: String, force: bool) -> Result<(), Error> {
        self.call(|reply| Call::Delete { id, force, reply }).await
    }

    /// What this call holds of the caller's budget, for what may outlive the call.
    pub fn shared_ticket(&self) -> Arc<CallTicket> {
        Arc::clone(&self.ticket)
    }

    /// What this call holds of the caller's budget.
    pub fn ticket(&self) -> &Arc<CallTicket> {
        &self.ticket
    }

    /// Runs what takes a while for this call on a worker thread.
    pub async fn run_apart<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.workers.run(job).await
    }

    /// How far the supervisor is.
    pub fn stage(&self) -> watch::Receiver<Stage> {
        self.parts.stage.clone()
    }

    /// Somebody follows what is observed, and is counted as long as this is held.
    pub fn follower_of(&self, observer: &Observer) -> Follower {
        self.parts.followers.enter(Arc::clone(observer.entry()), observer.next_seq())
    }

    /// A place in the transcript of a process.
    pub fn observe(&self, entry: Arc<Entry>, since: Option<u64>) -> Result<Observer, Error> {
        let archives = Arc::clone(&self.parts.archives);
        let call = (self.workers.clone(), Arc::clone(&self.ticket));
        let stage = self.parts.stage.clone();
        Observer::new(entry, archives, call, stage, since)
    }

    /// Types into a process.
    pub async fn write(&self, entry: &Entry, write: Write) -> Result<Written, Error> {
        let (offset, end) =
            (write.offset, write.offset.map(|at| at.saturating_add(write.data.len() as u64)));
        let (held, id) = match self.held(entry).await {
            // A repeated write is no error because its process has ended meanwhile.
            Err(Error::NotRunning(id)) => {
                let input = entry.seen().input().unwrap_or_default();
                let taken = end.is_some_and(|end| end <= input.accepted);
                let written = taken.then_some(Written { input, added: 0 });
                return written.ok_or(Error::NotRunning(id));
            }
            held => held?,
        };
        let written = self.parts.keeper.write(held.key, write).await;
        written.map_err(|error| match (error, offset) {
            (KeeperError::Refused(Refused::InputOffset(state)), Some(offset)) => {
                Error::InputOffset { offset, accepted: state.accepted }
            }
            (error, _) => Error::from_keeper(&id, error),
        })
    }

    /// Sets the size of a terminal. What is printed from here on is drawn at that size, as far as
    /// can be told: the little that was under way is drawn anew by who is told of the size.
    pub async fn resize(&self, entry: &Arc<Entry>, size: Size) -> Result<(), Error> {
        let (held, id) = self.held(entry).await?;
        let resized = resize_queue::resize(entry, &self.parts.keeper, held, size).await;
        resized.map_err(|error| Error::from_keeper(&id, error))
    }

    /// Sends one signal to a process, or to its group.
    pub async fn signal(&self, entry: &Entry, signal: i32, group: bool) -> Result<(), Error> {
        let (held, id) = self.held(entry).await?;
        let sent = self.parts.keeper.signal(held.key, signal, group).await;
        sent.map_err(|error| Error::from_keeper(&id, error))
    }

    /// Lets a transcript that blocks forget all chunks up to `seq`.
    pub async fn acknowledge(&self, entry: &Entry, seq: u64) -> Result<(), Error> {
        let mut watch = entry.watch();
        loop {
            let Some(Held { key, .. }) = watch.borrow_and_update().held else { return Ok(()) };
            match self.parts.keeper.acknowledge(key, seq).await {
                // Its transcript has gone on under another number, which is about to be known.
                Err(KeeperError::Refused(Refused::UnknownProcess)) => {
                    let other = |seen: &Seen| seen.removed || !seen.is_held_as(key);
                    watch.wait_for(other).await.map_err(|_| Error::ShuttingDown)?;
                }
                done => {
                    let id = Arc::clone(&watch.borrow().record.id);
                    return done.map_err(|error| Error::from_keeper(&id, error));
                }
            }
        }
    }

    /// Refuses what cannot run here, as far as that is known before it is tried; with `look`, also
    /// by where its directories lead now.
    async fn can_run(&self, spec: &Arc<Spec>, look: bool) -> Result<(), Error> {
        let Parts { confiner, limits, .. } = &*self.parts;
        limits::check(&spec.limits, *limits)?;
        confiner.check(spec)?;
        if !look || !confiner.has_roots() {
            return Ok(());
        }
        let (confiner, spec) = (Arc::clone(confiner), Arc::clone(spec));
        self.workers.run(move || confiner.look(&spec)).await?
    }

    /// The way to a process that runs. One that is being started is waited for.
    async fn held(&self, entry: &Entry) -> Result<(Held, Arc<str>), Error> {
        let mut watch = entry.watch();
        let decided = |seen: &Seen| seen.removed || seen.record.state() != State::Starting;
        let seen = watch.wait_for(decided).await.map_err(|_| Error::ShuttingDown)?;
        let id = Arc::clone(&seen.record.id);
        match &seen.held {
            Some(held) if !seen.removed && seen.record.last_end().is_none() => {
                Ok((held.clone(), id))
            }
            _ if seen.removed => Err(Error::NotFound(id.to_string())),
            _ => Err(Error::NotRunning(id.to_string())),
        }
    }

    async fn call<T>(
        &self,
        call: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Call,
    ) -> Result<T, Error> {
        let place = self.ticket.actor_place().await?;
        self.call_from(place, call).await
    }

    async fn call_from<T>(
        &self,
        place: ActorPlace,
        call: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Call,
    ) -> Result<T, Error> {
        failpoint::reach(Point::CallAsked);
        let (reply, answer) = oneshot::channel();
        let (caller, request) = (Arc::clone(&self.caller), request::current());
        let queued = QueuedCall { caller, request, call: call(reply), _place: place };
        self.parts.calls.send(queued).await.map_err(|_| Error::ShuttingDown)?;
        let answer = answer.await;
        failpoint::reach(Point::CallAnswered);
        answer.map_err(|_| Error::ShuttingDown)?
    }
}
