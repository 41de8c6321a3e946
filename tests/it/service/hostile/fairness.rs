//! What costs the server much: it costs the caller that asks for it, not the others.

use std::time::Instant;

use futures_util::future::join_all;
use procyard::grpc::pb;
use tokio::task::JoinHandle;
use tonic::Code;

use super::{MANY_NUMBERS, PROMPT, calls_during, overtakes, unread_answer, with_large_environment};
use crate::support::callers::{KnowingService, TokenClient};
use crate::support::service::*;
use crate::support::{Gate, SOON, soon, until};

const CALLERS: [(&str, &str); 2] = [("a", "operator,owner=a"), ("b", "operator,owner=b")];

async fn two_callers() -> (KnowingService, TokenClient, TokenClient) {
    let known = KnowingService::start(&CALLERS).await;
    let (a, b) = (known.caller("a").await, known.caller("b").await);
    (known, a, b)
}

async fn finishes(client: &mut TokenClient, id: &str, spec: pb::Spec) {
    soon(client.start(run(id, spec))).await.unwrap();
}

/// Fails if a call of the other caller takes long.
async fn is_prompt<T>(call: impl Future<Output = T>) -> T {
    let begin = Instant::now();
    let answer = soon(call).await;
    assert!(begin.elapsed() < PROMPT, "{:?}", begin.elapsed());
    answer
}

fn are_under_way<T>(calls: &[JoinHandle<T>]) {
    assert!(calls.iter().any(|call| !call.is_finished()), "the calls cost too little to tell");
}

/// Has a terminal whose screen is costly, and asks for its screen again and again.
async fn ask_for_costly_screens(client: &mut TokenClient, id: &str) -> Vec<JoinHandle<()>> {
    let (rows, cols) = (1000, 1000);
    let large = pb::spec::Io::Terminal(pb::Terminal { rows, cols, ..Default::default() });
    // Each of these fills the whole terminal.
    let line = "i=0; while [ $i -lt 4000 ]; do printf '\\033#8\\033[2J'; i=$((i+1)); done";
    finishes(client, id, pb::Spec { io: Some(large), ..shell(line) }).await;
    let screens = (0..8).map(|_| {
        let (mut client, request) = (client.clone(), pb::ScreenRequest { id: id.into() });
        tokio::spawn(async move { drop(client.screen(request).await) })
    });
    screens.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costly_screens_leave_another_callers_screen_prompt() {
    let callers = [CALLERS[0], CALLERS[1], ("c", "operator,owner=c")];
    let known = KnowingService::start(&callers).await;
    let (mut a, mut b) = (known.caller("a").await, known.caller("b").await);
    let mut c = known.caller("c").await;
    finishes(&mut c, "c", on_terminal(shell("echo here"))).await;
    // Both together hold all permits for large screens.
    let mut screens = ask_for_costly_screens(&mut a, "a").await;
    screens.extend(ask_for_costly_screens(&mut b, "b").await);
    for _ in 0..5 {
        let request = pb::ScreenRequest { id: "c".into() };
        let shown = is_prompt(c.screen(request)).await.unwrap().into_inner();
        assert_eq!(shown.rows[0], "here");
    }
    are_under_way(&screens);
    screens.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costly_searches_leave_another_callers_search_prompt() {
    let (_known, mut a, mut b) = two_callers().await;
    finishes(&mut a, "a", shell("head -c 1048576 /dev/zero | tr '\\0' a")).await;
    finishes(&mut b, "b", shell("seq 20000; echo ready")).await;
    let wait = |id: &str, regex: &str| pb::WaitRequest {
        wait: Some(until_output(regex)),
        ..wait_for_it(id)
    };
    // A regex with a literal would skip the output.
    let waits: Vec<_> = (900..960)
        .map(|n| {
            let (mut a, request) = (a.clone(), wait("a", &format!("(?:a?){{{n}}}[^a]")));
            tokio::spawn(async move {
                loop {
                    match a.wait(request.clone()).await {
                        // Else refused because the others hold the budget for too long.
                        Err(status) if status.code() != Code::ResourceExhausted => return status,
                        _ => {}
                    }
                }
            })
        })
        .collect();
    for _ in 0..5 {
        let waited = is_prompt(b.wait(wait("b", "read[y]"))).await.unwrap().into_inner();
        assert!(waited.wait.unwrap().met);
        let grep = pb::View { grep: "^19999$".into(), ..Default::default() };
        let read = pb::ReadRequest { id: "b".into(), view: Some(grep), ..Default::default() };
        let shown = is_prompt(b.read(read)).await.unwrap().into_inner();
        assert_eq!(text(&shown.chunks, pb::Stream::Stdout), "19999\n");
    }
    assert!(!waits.iter().any(JoinHandle::is_finished), "a search was refused");
    waits.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_large_lists_leave_other_callers_served() {
    let (_known, a, mut b) = two_callers().await;
    let line = format!("true # {}", "x".repeat(40 << 10));
    let starts = (0..80).map(|n| {
        let (mut a, request) = (a.clone(), run(&format!("p{n}"), shell(&line)));
        async move { a.start(request).await.unwrap() }
    });
    soon(join_all(starts)).await;
    let request = pb::ListRequest { page_size: 1000, ..Default::default() };
    let lists = (0..200).map(|_| {
        let (mut a, request) = (a.clone(), request.clone());
        async move { a.list(request).await.map(|page| page.into_inner().processes.len()) }
    });
    let lists = tokio::time::timeout(SOON, join_all(lists));
    let (calls, listed) = calls_during(&mut b, lists).await;
    for processes in listed.unwrap().into_iter().flatten() {
        assert!(processes > 50);
    }
    assert!(calls.slowest < PROMPT, "{:?}", calls.slowest);
}

async fn ask_for_info(client: &mut TokenClient) {
    soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_with_large_outputs_leave_another_caller_served() {
    let (known, mut a, mut b) = two_callers().await;
    finishes(&mut a, "a", shell(MANY_NUMBERS)).await;
    // The answers are not decoded here: that takes as long as it takes the server to make them.
    let channel = known.service.channel().await;
    let get = || {
        let request = pb::GetRequest { id: "a".into() };
        unread_answer::<_, pb::GetResponse>(channel.clone(), "Get", request)
    };
    overtakes((0..30).map(|_| get()), async || ask_for_info(&mut b).await).await;
    let list = || {
        let request = pb::ListRequest::default();
        unread_answer::<_, pb::ListResponse>(channel.clone(), "List", request)
    };
    overtakes((0..30).map(|_| list()), async || ask_for_info(&mut b).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_server_infos_leave_another_caller_served() {
    // A scope that takes long to compare.
    let pattern = |n| format!("owner=*{}*{n}", "a*".repeat(100));
    let scope: Vec<_> = (0..200).map(pattern).collect();
    let grant = format!("viewer,{}", scope.join(","));
    let callers = [("a", grant.as_str()), ("b", "operator,owner=b")];
    let known = KnowingService::start(&callers).await;
    let (a, mut b) = (known.caller("a").await, known.caller("b").await);
    let client = known.service.client().await;
    let starts = (0..100).map(|n| {
        let spec = pb::Spec { owner: "a".repeat(200), ..shell("true") };
        let (mut client, request) = (client.clone(), run(&format!("p{n}"), spec));
        async move { client.start(request).await.unwrap() }
    });
    soon(join_all(starts)).await;
    let info = || {
        let mut a = a.clone();
        async move { a.get_server_info(pb::GetServerInfoRequest {}).await.map(drop) }
    };
    overtakes((0..30).map(|_| info()), async || ask_for_info(&mut b).await).await;
}

/// Chunks of a process, and followers that are shown none of them.
const CHUNKS: u64 = 10_000;
const FOLLOWERS: usize = 250;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_of_another_stream_leave_another_caller_served() {
    let (_known, mut a, mut b) = two_callers().await;
    let directory = tempfile::tempdir().unwrap();
    let mut gate = Gate::new(directory.path());
    // Most lines are a chunk of their own; the last one is of the other stream.
    let line = format!(
        "{{ while :; do echo; done & }}; read x <{}; kill $!; echo last >&2; exec sleep 1000",
        gate.path
    );
    soon(a.start(start("a", shell(&line)))).await.unwrap();
    let many = async || {
        let got = a.clone().get(pb::GetRequest { id: "a".into() }).await.unwrap().into_inner();
        got.process.unwrap().transcript.unwrap().next_seq > CHUNKS
    };
    soon(async {
        while !many().await {
            tokio::task::yield_now().await
        }
    })
    .await;
    gate.open(1);
    let follow = || {
        let mut a = a.clone();
        async move {
            let streams = vec![pb::Stream::Stderr.into()];
            let request = pb::FollowRequest { id: "a".into(), streams, ..Default::default() };
            let mut messages = a.follow(request).await.unwrap().into_inner();
            while let Some(answer) = messages.message().await.unwrap() {
                if matches!(answer.message, Some(pb::follow_response::Message::Chunk(_))) {
                    return;
                }
            }
            panic!("the last line was not shown");
        }
    };
    let mut follows = std::pin::pin!(soon(join_all((0..FOLLOWERS).map(|_| follow()))));
    let mut calls = 0;
    loop {
        tokio::select! {
            _ = &mut follows => break,
            () = ask_for_info(&mut b) => calls += 1,
        }
    }
    // About 10 when each of these calls waits several times for a batch of each follower.
    assert!(calls > 60, "{calls} calls were answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_readiness_commands_are_tried_less_often_than_small_ones() {
    const LARGE: usize = 24;
    let (known, mut a, mut b) = two_callers().await;
    let tries = |of: &str| known.service.directory.path().join(format!("{of}-tries"));
    let tried = |of: &str| std::fs::read(tries(of)).unwrap_or_default().len();
    let silent = |of: &str| {
        let line = format!("printf x >>{}; exit 1", tries(of).display());
        let exec = ["/bin/sh".into(), "-c".into(), line].into();
        let timeout = Some(millis(600_000));
        let readiness = pb::Readiness { exec, timeout, ..Default::default() };
        pb::Spec { readiness: Some(readiness), ..argv(&["sleep", "600"]) }
    };
    for n in 0..LARGE {
        let spec = with_large_environment(silent("large"));
        soon(a.start(start(&format!("large-{n}"), spec))).await.unwrap();
    }
    soon(b.start(start("small", silent("small")))).await.unwrap();
    let before = tried("large");
    until("the small one was tried 6 times", || tried("small") >= 6).await;
    let (large, small) = (tried("large") - before, tried("small"));
    assert!(large < LARGE * small / 4, "{large} attempts beside {small} of one process");
}
