//! Kills without end: what they ask of the keeper is bounded.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use procyard::grpc::pb;

use super::PROMPT;
use crate::support::callers::{KnowingService, TokenClient};
use crate::support::service::*;
use crate::support::soon;

const CALLERS: [(&str, &str); 2] = [("a", "operator,owner=a"), ("b", "operator,owner=b")];

/// Processes of the hostile caller.
const PROCESSES: usize = 40;

/// How often it kills all of them, and how many of these calls are under way at a time.
const KILLS: usize = 450;
const KILLS_AT_A_TIME: usize = 150;

async fn begins(client: &mut TokenClient, id: String, line: &str) {
    soon(client.start(start(&id, shell(line)))).await.unwrap();
}

fn kill_all(grace: u32) -> pb::KillRequest {
    let grace = Some(millis(grace * 1000));
    let selector = pb::Selector { owner: "a".into(), ..Default::default() };
    let target = pb::kill_request::Target::Selector(selector);
    pb::KillRequest { target: Some(target), grace, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_kills_leave_another_callers_kill_prompt() {
    let known = KnowingService::start(&CALLERS).await;
    let (a, mut b) = (known.caller("a").await, known.caller("b").await);
    let line = "trap '' TERM; while :; do sleep 1000; done";
    let starts = (0..PROCESSES).map(|n| {
        let mut a = a.clone();
        async move { begins(&mut a, format!("stubborn-{n}"), line).await }
    });
    join_all(starts).await;
    begins(&mut b, "other".into(), "exec sleep 1000").await;
    for _ in 0..KILLS / KILLS_AT_A_TIME {
        let kills = (0..KILLS_AT_A_TIME).map(|_| {
            let mut a = a.clone();
            async move { a.kill(kill_all(3600)).await.map(drop) }
        });
        let _ = tokio::time::timeout(Duration::from_millis(100), join_all(kills)).await;
    }
    let begin = Instant::now();
    soon(b.kill(kill_at_once("other"))).await.unwrap();
    assert!(begin.elapsed() < PROMPT, "{:?}", begin.elapsed());
    // The end of the service would wait for their grace period.
    soon(a.clone().kill(pb::KillRequest { force: true, ..kill_all(0) })).await.unwrap();
}
