//! Kills without end: what they ask of the server and of the keeper is bounded.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use procyard::grpc::pb;

use super::unkillable::Tracer;
use super::{PROMPT, overtakes};
use crate::support::callers::{KnowingService, TokenClient};
use crate::support::service::*;
use crate::support::{skip, soon, stat, until};

const CALLERS: [(&str, &str); 2] = [("a", "operator,owner=a"), ("b", "operator,owner=b")];

/// Processes of the hostile caller.
const PROCESSES: usize = 40;

/// How often it kills all of them, and how many of these calls are under way at a time.
const KILLS: usize = 450;
const KILLS_AT_A_TIME: usize = 150;

/// Traced processes of one caller, and how many of these it may have killed at a time.
const TRACED: usize = 600;
const KILLS_OF_CALLER: usize = 256;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_that_wait_are_few_at_a_time_for_each_caller() {
    let known = KnowingService::start(&CALLERS).await;
    let (a, mut b) = (known.caller("a").await, known.caller("b").await);
    let starts = (0..TRACED).map(|n| {
        let (mut a, request) = (a.clone(), start(&format!("p{n}"), argv(&["sleep", "600"])));
        async move { a.start(request).await.unwrap().into_inner().process.unwrap().pid }
    });
    // Fewer calls at a time than a caller may have.
    let pids: Vec<u32> = soon(stream::iter(starts).buffered(64).collect()).await;
    let Some(tracer) = Tracer::seize(pids.clone()) else {
        return skip("the kernel does not permit to trace here");
    };
    let request = pb::KillRequest { force: true, ..kill_all(0) };
    let begin = Instant::now();
    let mut killer = a.clone();
    let kill = tokio::spawn(async move { killer.kill(request).await.map(drop) });
    // Until its tracer ends, each of them remains a zombie.
    let zombies =
        || pids.iter().filter(|pid| stat(**pid).first().is_some_and(|s| s == "Z")).count();
    until("some are killed", || zombies() > 0).await;
    // Others are served, until the keeper has killed all that it was asked to.
    let mut killed = 0;
    while zombies() > killed {
        killed = zombies();
        for n in 0..3 {
            let id = format!("beside-{killed}-{n}");
            soon(b.start(run(&id, argv(&["/bin/true"])))).await.unwrap();
        }
    }
    // The keeper gives up on the first of them after 4 s.
    let is_in_time = begin.elapsed() < Duration::from_secs(3);
    assert!(!is_in_time || killed <= KILLS_OF_CALLER, "{killed} are killed at a time");
    tracer.end();
    soon(kill).await.unwrap().unwrap();
}

/// Processes that wait in a queue, with labels that take long to compare.
const QUEUED: usize = 200;

/// Kills that mean none of them.
const VAIN_KILLS: usize = 60;

fn labels(last: &str) -> HashMap<String, String> {
    let label = |n| (format!("{}{n:02}", "k".repeat(60)), "v".repeat(256));
    let mut labels: HashMap<_, _> = (0..64).map(label).collect();
    labels.insert(format!("{}63", "k".repeat(60)), last.into());
    labels
}

async fn fill_queue(client: &TokenClient) {
    let first = start("first", in_queue("q", shell("exec sleep 1000")));
    soon(client.clone().start(first)).await.unwrap();
    let starts = (0..QUEUED).map(|n| {
        let spec = pb::Spec { labels: labels("mine"), ..in_queue("q", shell("true")) };
        let (mut client, request) = (client.clone(), start(&format!("queued-{n}"), spec));
        async move { client.start(request).await.unwrap() }
    });
    soon(join_all(starts)).await;
}

/// A Kill that looks at the labels of all processes, and kills none.
fn vain_kill(client: &TokenClient) -> impl Future<Output = usize> + Send + use<> {
    let selector = pb::Selector { labels: labels("others"), ..Default::default() };
    let target = pb::kill_request::Target::Selector(selector);
    let request = pb::KillRequest { target: Some(target), ..Default::default() };
    let mut client = client.clone();
    async move { client.kill(request).await.unwrap().into_inner().processes.len() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costly_selectors_leave_another_callers_start_prompt() {
    let known = KnowingService::start(&CALLERS).await;
    let (a, mut b) = (known.caller("a").await, known.caller("b").await);
    fill_queue(&a).await;
    let kills = (0..VAIN_KILLS).map(|_| vain_kill(&a));
    overtakes(kills, async || begins(&mut b, String::new(), "true").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_kills_leave_no_work() {
    let known = KnowingService::start(&CALLERS).await;
    let (a, mut b) = (known.caller("a").await, known.caller("b").await);
    fill_queue(&a).await;
    let begin = Instant::now();
    assert_eq!(soon(vain_kill(&a)).await, 0);
    let one = begin.elapsed();
    for _ in 0..3 {
        let kills = join_all((0..VAIN_KILLS).map(|_| vain_kill(&a)));
        // They have arrived when a few are answered.
        let _ = tokio::time::timeout(4 * one, kills).await;
    }
    let begin = Instant::now();
    begins(&mut b, String::new(), "true").await;
    let all = 3 * u32::try_from(VAIN_KILLS).unwrap() * one;
    assert!(begin.elapsed() < all / 2, "{:?}, and one Kill took {one:?}", begin.elapsed());
}
