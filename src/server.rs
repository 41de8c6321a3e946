//! The server: the process that has all the policy.
//!
//! Puts the parts together: what the keeper holds and the store has goes to the supervisor, the
//! service stands over it, and the door lets clients in. Owns the order of beginning and ending:
//! nobody is let in before everything is known, and at a shutdown health turns first, then the
//! processes end, then the connections. One that another server takes over from ends its
//! connections and nothing else.

mod ancestry;
pub(crate) mod authority;
mod browsers;
mod call_budget;
mod calls;
mod connection;
mod connection_auth;
pub mod credentials;
mod descriptors;
mod fresh;
mod health_limit;
mod keeper_exit;
mod listener;
mod measured;
mod origin;
mod pulse;
mod read_turns;
mod scrapes;
mod services;
mod socket;
mod spare_thread;
mod thread_shares;
pub mod tls;

use std::error::Error;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use crate::access::MAX_LARGE_REQUEST;
use crate::failpoint::{self, Point};
use crate::grpc::info::About;
use crate::grpc::service::Service;
use crate::keeper::{Leftovers, cgroup_memory_limit, lower_oom_score};
use crate::keeper_client::{Keeper, Reports, Welcome};
use crate::store::{Limits, Loaded, StateDir, Store};
use crate::supervisor::{
    CurrentKeeper, FromKeeper, Keep, Rules, Stage, Supervisor, Whole, WorkerPool,
    enforceable_limits,
};
use crate::telemetry::{changes, refusals};
use ancestry::Ancestry;
use credentials::{Access, Credentials};
use keeper_exit::{KeeperExit, KeeperProcess};
use listener::Acceptor;
use measured::Measured;
use scrapes::Scrapes;
use tls::Tls;

/// How long connections may take to end once every process has. With the longest grace of a
/// shutdown this stays below the time after which the keeper ends everything by itself.
const DRAIN: Duration = Duration::from_secs(3);

/// The same when another server waits to take over, or the keeper is gone: the longer it takes, the
/// longer clients wait for who can do something for them. All streams end at once, and calls half a
/// second later at most.
const SHORT_DRAIN: Duration = Duration::from_secs(1);

/// Threads for what waits for the disk on the server's own behalf: the store, scripts, outputs and
/// files of transcripts. What calls ask for has the threads of the worker pool.
const MAX_BLOCKING_THREADS: usize = 8;
/// Bytes of stored events. The oldest go first.
const MAX_EVENT_BYTES: u64 = 256 << 20;
/// Structured outputs of finished processes may take one part of this many of a limited memory.
const OUTPUT_SHARE: u64 = 8;
/// What the server lowers its OOM score to, where that is permitted: processes are killed before
/// it, and the keeper after it, which replaces it.
const OOM_SCORE: i32 = -500;

/// What a server is told when it is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where records, events and scripts are.
    pub state_dir: PathBuf,
    /// Events that are kept at most.
    pub max_events: u64,
    /// Who may call.
    pub access: Access,
    /// What the supervisor goes by.
    pub rules: Rules,
}

/// The listening sockets that a server inherits from the keeper.
pub struct Sockets {
    /// For clients.
    pub listeners: Vec<OwnedFd>,
    /// For who scrapes metrics, if anybody may.
    pub metrics: Option<OwnedFd>,
}

/// Serves until the keeper says that it is time to stop, or is gone.
pub fn run(link: UnixStream, sockets: Sockets, options: &Options) -> Result<(), Box<dyn Error>> {
    descriptors::raise_limit();
    descriptors::outlive_file_limit();
    if let Err(error) = lower_oom_score(OOM_SCORE) {
        tracing::debug!(%error, "the OOM score cannot be lowered");
    }
    // One thread for everything but the store: what wakes whom never crosses a core.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .thread_keep_alive(spare_thread::IDLE)
        .build()?;
    runtime.spawn(spare_thread::keep());
    runtime.spawn(refusals::summarise());
    // Before the keeper is spoken to, which may then end another server in favour of this one;
    // what that one uses is touched when it is gone, and the keeper has said so.
    Store::understands(&options.state_dir)?;
    let keeper = KeeperProcess::open(&link)?;
    let linked = runtime.block_on(Keeper::connect(link))?;
    let state_dir = StateDir::lock(&options.state_dir)?;
    let opened = Store::open(
        &state_dir,
        Limits { max_events: options.max_events, max_event_bytes: MAX_EVENT_BYTES },
    )?;
    failpoint::reach(Point::RecoveryLoaded);
    let mut options = Options { state_dir: state_dir.path().into(), ..options.clone() };
    let memory_limit = cgroup_memory_limit();
    bound_transcripts(&mut options.rules, memory_limit);
    bound_outputs(&mut options.rules.keep, memory_limit);
    let served = runtime.block_on(async {
        let leftovers = Leftovers::new(&options.state_dir);
        let id = keeper.as_ref().and_then(KeeperProcess::id);
        let identity = CurrentKeeper::new(id, linked.2.server_starts == 1);
        let keeper = keeper.map(|keeper| keeper.kill_leftovers_at_exit(leftovers)).transpose()?;
        let watched = opened.0.clone();
        tokio::select! {
            served = serve_until_lost((linked, identity), sockets, &options, opened, keeper) => served,
            // The keeper starts another, which repairs it.
            () = watched.damaged() => Err("the store is damaged".into()),
        }
    });
    refusals::write_summaries();
    changes::write_summaries();
    // Whatever still runs has nobody to answer to.
    runtime.shutdown_background();
    served
}

/// Bounds what transcripts take of a limited memory to half of it, unless an option does.
fn bound_transcripts(rules: &mut Rules, memory_limit: Option<u64>) {
    let bound = &mut rules.capacity.quotas.all.transcript_bytes;
    if let (None, Some(limit)) = (*bound, memory_limit) {
        tracing::info!(limit, transcripts = limit / 2, "transcripts get half of the memory limit");
        *bound = Some(limit / 2);
    }
}

/// Bounds what structured outputs of finished processes take of a limited memory.
fn bound_outputs(keep: &mut Keep, memory_limit: Option<u64>) {
    let share = memory_limit.map_or(u64::MAX, |limit| limit / OUTPUT_SHARE);
    keep.output_bytes = keep.output_bytes.min(share);
}

/// The connection to the keeper, and which keeper it is.
type Linked = ((Keeper, Reports, Welcome), CurrentKeeper);

/// Serves; if the keeper is gone, returns once what it left running is killed.
async fn serve_until_lost(
    linked: Linked,
    sockets: Sockets,
    options: &Options,
    opened: (Store, Loaded),
    keeper: Option<KeeperExit>,
) -> Result<(), Box<dyn Error>> {
    let served = serve(linked, sockets, options, opened).await;
    if let (Err(_), Some(keeper)) = (&served, keeper) {
        keeper.finish().await;
    }
    served
}

async fn serve(
    ((keeper, reports, welcome), identity): Linked,
    Sockets { listeners, metrics }: Sockets,
    options: &Options,
    opened: (Store, Loaded),
) -> Result<(), Box<dyn Error>> {
    let linked = (&keeper, reports, &welcome, identity);
    let (supervisor, about) = take_over(linked, options, opened).await?;
    let stage = supervisor.stage();
    let credentials = Arc::new(Credentials::new(&options.access));
    let service = Service::new(supervisor.clone(), about);
    let quotas = options.rules.capacity.quotas;
    let services =
        services::assemble(service, stage.clone(), Arc::clone(&credentials), quotas).await?;
    let tls = options.access.tls.as_ref().map(Tls::new);
    let children = options.access.children.as_ref().map(|_| Ancestry::below(welcome.pid));
    let heartbeat = keeper.heartbeat().clone();
    let acceptor = Acceptor::new(listeners, tls, credentials, children, heartbeat)?;
    let measured = Measured {
        supervisor: supervisor.clone(),
        growth: keeper.growth().clone(),
        calls: services.calls.clone(),
        server_starts: welcome.server_starts,
        began: SystemTime::now(),
    };
    let scrapes = metrics.map(|socket| Scrapes::new(socket, measured.metrics())).transpose()?;
    let beating = tokio::spawn(pulse::run(keeper, services.health.clone(), stage.clone()));
    let ended = async {
        // Health has turned by then.
        let _ = beating.await;
        let drain = end_of(&supervisor).await;
        services.health.end().await;
        drain
    };
    tokio::join!(acceptor.serve(services.routes, ended), scraped(scrapes, stage.clone()));
    let reached = *stage.borrow();
    if reached == Stage::Orphaned { Err("the keeper is gone".into()) } else { Ok(()) }
}

/// Begins the supervisor with what the keeper holds and the store has; and what is told of it.
async fn take_over(
    (keeper, reports, welcome, identity): (&Keeper, Reports, &Welcome, CurrentKeeper),
    options: &Options,
    (store, loaded): (Store, Loaded),
) -> Result<(Whole, About), Box<dyn Error>> {
    let held = keeper.adopt().await?;
    failpoint::reach(Point::RecoveryAdopted);
    tracing::info!(
        keeper = welcome.pid,
        kill_domain = ?welcome.kill_domain,
        records = loaded.records.len(),
        adopted = held.len(),
        "serving"
    );
    let about = about(welcome, options, &loaded);
    let from_keeper = FromKeeper {
        keeper: keeper.clone(),
        reports,
        held,
        identity,
        limits: welcome.limits,
        sandbox: welcome.sandbox,
    };
    let (rules, state_dir) = (options.rules.clone(), &options.state_dir);
    let workers = Arc::new(WorkerPool::start()?);
    let begun = Supervisor::begin(from_keeper, store, loaded, (state_dir, rules), workers).await;
    Ok((begun, about))
}

/// What the server tells of itself.
fn about(welcome: &Welcome, options: &Options, loaded: &Loaded) -> About {
    About {
        instance_id: loaded.instance_id.clone(),
        kill_domain: welcome.kill_domain,
        limits: enforceable_limits(welcome.limits),
        sandbox: welcome.sandbox,
        max_message_bytes: MAX_LARGE_REQUEST,
        max_finished: options.rules.keep.count,
        max_events: options.max_events,
        max_running: options.rules.capacity.all,
        began: (SystemTime::now(), Instant::now()),
        repaired: loaded.repaired.clone(),
    }
}

/// Lets metrics be scraped, if anybody may, until all is over.
async fn scraped(scrapes: Option<Scrapes>, mut stage: watch::Receiver<Stage>) {
    let over = async { drop(stage.wait_for(|stage| *stage >= Stage::AllOver).await) };
    if let Some(scrapes) = scrapes {
        scrapes.serve(over).await;
    }
}

/// Waits until connections are to end, and tells how long they may take.
async fn end_of(supervisor: &Whole) -> Duration {
    let mut stage = supervisor.stage();
    let _ = stage.wait_for(|stage| *stage >= Stage::AllOver).await;
    let reached = *stage.borrow();
    if !reached.is_retirement() {
        // What no file has yet ends with the keeper, and clients can wait.
        supervisor.save().await;
    }
    if reached == Stage::AllOver { DRAIN } else { SHORT_DRAIN }
}
