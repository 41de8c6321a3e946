//! Hostile callers, commands and files: what they cannot do to procyard.

mod audit;
mod budgets;
mod cgroups;
mod child_processes;
mod connections;
mod descriptors_in_flight;
mod fairness;
mod frame_floods;
mod health;
mod hung_file_system;
mod keeper_killed;
mod kills;
mod locked_pipes;
mod locked_terminals;
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
mod specs;
mod stalled_memory;
mod state_directory;
mod unkillable;
mod unread_streams;

use std::time::{Duration, Instant};

use procyard::grpc::pb;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::support::callers::TokenClient;
use crate::support::service::Client;
use crate::support::{skip, soon};

/// How long a call of another caller may take here. A debug build on a busy machine is slow; what
/// these tests are about would take much longer.
const PROMPT: Duration = Duration::from_secs(20);

/// A program whose structured output has 0.5 MiB of text and 2.5 MiB on the wire.
const MANY_NUMBERS: &str =
    "{ printf '[0'; yes ,0 | head -n 235999 | tr -d '\\n'; printf ']'; } >\"$PROCYARD_OUTPUT\"";

/// A process with an environment of 800 KB.
fn with_large_environment(spec: pb::Spec) -> pb::Spec {
    let set = (0..8).map(|n| (format!("LARGE_{n}"), "x".repeat(100_000))).collect();
    let env = pb::Environment { set, ..Default::default() };
    pb::Spec { env: Some(env), ..spec }
}

/// An answer to a call of which only the headers were read.
async fn unread_answer<Q, A>(
    channel: Channel,
    method: &str,
    request: Q,
) -> Result<Response<Streaming<A>>, Status>
where
    Q: prost::Message + 'static,
    A: prost::Message + Default + 'static,
{
    let mut client = Grpc::new(channel);
    client.ready().await.unwrap();
    let codec: ProstCodec<Q, A> = ProstCodec::default();
    let path = format!("/procyard.v1.ProcessService/{method}").parse().unwrap();
    let answer = client.server_streaming(Request::new(request), path, codec).await?;
    // A refusal is all headers.
    match answer.metadata().get("grpc-status") {
        Some(_) => Err(Status::from_header_map(&answer.metadata().clone().into_headers()).unwrap()),
        None => Ok(answer),
    }
}

/// The calls that a caller made while something else ran.
struct CallsDuring {
    slowest: Duration,
    answered: usize,
}

/// Calls again and again while something else runs.
async fn calls_during<T>(
    client: &mut TokenClient,
    other: impl Future<Output = T>,
) -> (CallsDuring, T) {
    let mut other = std::pin::pin!(other);
    let mut calls = CallsDuring { slowest: Duration::ZERO, answered: 0 };
    loop {
        let begin = Instant::now();
        let info = soon(client.get_server_info(pb::GetServerInfoRequest {}));
        tokio::select! {
            info = info => drop(info.unwrap()),
            done = &mut other => {
                calls.slowest = calls.slowest.max(begin.elapsed());
                return (calls, done);
            }
        }
        calls.slowest = calls.slowest.max(begin.elapsed());
        calls.answered += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs calls, and fails if most of them are answered before a call of another caller.
async fn overtakes<T: Send + 'static>(
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
    other: impl AsyncFnOnce(),
) {
    let calls: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
    soon(async {
        while !calls.iter().any(JoinHandle::is_finished) {
            tokio::task::yield_now().await
        }
    })
    .await;
    other().await;
    let answered = calls.iter().filter(|call| call.is_finished()).count();
    assert!(answered <= calls.len() / 2, "{answered} of {} calls were answered", calls.len());
    calls.iter().for_each(JoinHandle::abort);
}

/// Whether a service can have all these fields of a sandbox; says so if not.
async fn have_sandbox(client: &mut Client, wanted: &[&str]) -> bool {
    let info = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    let parts = info.into_inner().capabilities.unwrap().sandbox;
    let missing = wanted.iter().find(|part| !parts.iter().any(|have| have == *part));
    missing.inspect(|part| skip(&format!("the kernel gives no {part} here"))).is_none()
}
