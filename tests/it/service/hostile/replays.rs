//! Replays of old events: one caller's many leave another caller's prompt.

use procyard::grpc::pb;
use procyard::grpc::pb::watch_response::Message;
use tokio::task::JoinHandle;

use crate::support::callers::{KnowingService, TokenClient};
use crate::support::service::*;
use crate::support::soon;

/// Processes, of which each leaves some events and a large record: more than are kept in memory.
const PROCESSES: usize = 600;
/// Replays of a caller that sees nothing, and its connections.
const REPLAYS: usize = 200;
const CONNECTIONS: usize = 4;

fn replay() -> pb::WatchRequest {
    pb::WatchRequest { since_event: Some(0), replay_only: true, ..Default::default() }
}

/// The number of events that a caller receives.
async fn replayed(client: &mut TokenClient) -> usize {
    let mut stream = client.watch(replay()).await.unwrap().into_inner();
    let mut events = 0;
    while let Some(answer) = stream.message().await.unwrap() {
        events += usize::from(matches!(answer.message, Some(Message::Event(_))));
    }
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_replays_leave_another_callers_replay_prompt() {
    let callers = [("blind", "viewer,owner=blind"), ("root", "admin")];
    let known = KnowingService::start(&callers).await;
    let mut root = known.caller("root").await;
    let line = format!("true # {}", "x".repeat(2 << 10));
    for first in (0..PROCESSES).step_by(50) {
        let starts = (first..first + 50).map(|n| {
            let (mut root, request) = (root.clone(), run(&format!("p{n}"), shell(&line)));
            async move { root.start(request).await.unwrap() }
        });
        soon(futures_util::future::join_all(starts)).await;
    }
    let mut replays = Vec::new();
    for _ in 0..CONNECTIONS {
        let blind = known.caller("blind").await;
        replays.extend((0..REPLAYS / CONNECTIONS).map(|_| {
            let mut blind = blind.clone();
            tokio::spawn(async move { replayed(&mut blind).await })
        }));
    }
    assert!(soon(replayed(&mut root)).await >= 2 * PROCESSES);
    // Callers have turns of the same length; without them the last replay to begin is the last to end.
    let ended = replays.iter().filter(|replay| replay.is_finished()).count();
    assert!(ended < REPLAYS / 2, "{ended} replays ended before");
    replays.iter().for_each(JoinHandle::abort);
}
