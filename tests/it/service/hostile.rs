//! Hostile callers, commands and files: what they cannot do to procyard.

mod audit;
mod budgets;
mod child_processes;
mod connections;
mod descriptors_in_flight;
mod fairness;
mod health;
mod keeper_killed;
mod lost_store;
mod memory;
mod nested_keeper;
mod orphans;
mod patterns;
mod refused_calls;
mod replays;
mod requests;
mod sandbox_escape;
mod sandbox_limits;
mod sandbox_links;
mod sandbox_reach;
mod slow_exec;
mod state_directory;
mod unkillable;

use std::time::{Duration, Instant};

use procyard::grpc::pb;

use crate::support::callers::TokenClient;
use crate::support::service::Client;
use crate::support::{skip, soon};

/// How long a call of another caller may take here. A debug build on a busy machine is slow; what
/// these tests are about would take much longer.
const PROMPT: Duration = Duration::from_secs(5);

/// Calls again and again while something else runs: the longest that a call took.
async fn slowest_call_during<T>(
    client: &mut TokenClient,
    other: impl Future<Output = T>,
) -> (Duration, T) {
    let mut other = std::pin::pin!(other);
    let mut slowest = Duration::ZERO;
    loop {
        let begin = Instant::now();
        let info = soon(client.get_server_info(pb::GetServerInfoRequest {}));
        tokio::select! {
            info = info => drop(info.unwrap()),
            done = &mut other => return (slowest.max(begin.elapsed()), done),
        }
        slowest = slowest.max(begin.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a service can have all these fields of a sandbox; says so if not.
async fn have_sandbox(client: &mut Client, wanted: &[&str]) -> bool {
    let info = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    let parts = info.into_inner().capabilities.unwrap().sandbox;
    let missing = wanted.iter().find(|part| !parts.iter().any(|have| have == *part));
    missing.inspect(|part| skip(&format!("the kernel gives no {part} here"))).is_none()
}
