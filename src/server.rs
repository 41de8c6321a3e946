//! The server: the process that has all the policy.
//!
//! Puts the parts together: what the keeper holds and the store has goes to the supervisor, the
//! service stands over it, and the door lets clients in. Owns the order of beginning and ending:
//! nobody is let in before everything is known, and at a shutdown health turns first, then the
//! processes end, then the connections.

mod authority;
mod browsers;
mod connections;
mod descriptors;
mod services;
mod socket;

use std::error::Error;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use crate::grpc::framework::MESSAGE_LIMIT;
use crate::grpc::info::About;
use crate::grpc::service::Service;
use crate::keeper_client::Keeper;
use crate::store::{Limits, Loaded, StateDir, Store};
use crate::supervisor::{Capacity, FromKeeper, Keep, Stage, Supervisor};
use connections::Door;

/// How long connections may take to end once every process has. With the longest grace of a
/// shutdown this stays below the time after which the keeper ends everything by itself.
const DRAIN: Duration = Duration::from_secs(3);

/// What a server is told when it is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where records, events and scripts are.
    pub state_dir: PathBuf,
    /// What is kept of finished processes.
    pub keep: Keep,
    /// Events that are kept at most.
    pub max_events: u64,
    /// How many may run at a time.
    pub capacity: Capacity,
}

/// Serves until the keeper says that it is time to stop, or is gone.
pub fn run(
    link: UnixStream,
    listeners: Vec<OwnedFd>,
    options: &Options,
) -> Result<(), Box<dyn Error>> {
    descriptors::raise_limit();
    let state_dir = StateDir::lock(&options.state_dir)?;
    let (store, loaded) = Store::open(&state_dir, Limits { max_events: options.max_events })?;
    // One thread for everything but the store: what wakes whom never crosses a core.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let options = Options { state_dir: state_dir.path().into(), ..options.clone() };
    let served = runtime.block_on(serve(link, listeners, &options, store, loaded));
    // Whatever still runs has nobody to answer to.
    runtime.shutdown_background();
    served
}

async fn serve(
    link: UnixStream,
    listeners: Vec<OwnedFd>,
    options: &Options,
    store: Store,
    loaded: Loaded,
) -> Result<(), Box<dyn Error>> {
    let (keeper, reports, welcome) = Keeper::connect(link).await?;
    let held = keeper.adopt().await?;
    tracing::info!(
        keeper = welcome.pid,
        kill_domain = ?welcome.kill_domain,
        records = loaded.records.len(),
        adopted = held.len(),
        "serving"
    );
    let about = About {
        instance_id: loaded.instance_id.clone(),
        kill_domain: welcome.kill_domain,
        max_message_bytes: MESSAGE_LIMIT,
        max_finished: options.keep.count,
        max_events: options.max_events,
        max_running: options.capacity.all,
        began: (SystemTime::now(), Instant::now()),
    };
    let from_keeper = FromKeeper { keeper, reports, held };
    let (keep, capacity) = (options.keep, options.capacity.clone());
    let supervisor =
        Supervisor::begin(from_keeper, store, loaded, keep, capacity, &options.state_dir).await;
    let mut stage = supervisor.stage();
    let services = services::assemble(Service::new(supervisor, about)).await?;
    let door = Door::new(listeners)?;
    let ended = {
        let mut stage = stage.clone();
        let health = services.health;
        async move {
            let _ = stage.wait_for(|stage| *stage >= Stage::Stopping).await;
            health.set_not_serving().await;
            let _ = stage.wait_for(|stage| *stage >= Stage::AllOver).await;
        }
    };
    door.serve(services.routes, ended, DRAIN).await;
    match *stage.borrow_and_update() {
        Stage::Orphaned => Err("the keeper is gone".into()),
        _ => Ok(()),
    }
}
