//! Kill: the whole tree ends, and the answer comes when it is gone.

use std::path::Path;

use procyard::grpc::pb::{self, Cause};
use tokio::task::JoinSet;
use tonic::Code;

use crate::support::service::*;
use crate::support::{alive, have, hide_cgroups, is_root, soon};

async fn killed(client: &mut Client, request: pb::KillRequest) -> pb::KillResponse {
    soon(client.kill(request)).await.unwrap().into_inner()
}

/// Signal and cause of the end in an answer.
fn how(answer: &pb::KillResponse) -> (Option<i32>, Cause) {
    let exit = exit(&answer.processes[0]);
    (exit.signal, exit.cause())
}

/// Living processes that work in a directory.
fn inhabitants(directory: &Path) -> Vec<u32> {
    let here = std::fs::canonicalize(directory).unwrap();
    let lives =
        |pid: &u32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == here);
    crate::support::pids().filter(lives).filter(|pid| alive(*pid)).collect()
}

/// Says that it is ready and lives with children: one of its group, one in a session of its own
/// with a child, and one whose parent is gone. None of them takes SIGTERM.
const FAMILY: &str = "trap '' TERM; sleep 600 & (sleep 600 &) ; \
                      setsid sh -c 'sleep 600 & echo ready; wait' & wait";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_tree_is_gone_when_the_answer_comes_and_the_answer_names_it() {
    let service = TestService::start();
    let mut client = service.client().await;
    let cwd = service.directory.path().join("home");
    std::fs::create_dir(&cwd).unwrap();
    let spec =
        pb::Spec { cwd: cwd.to_str().unwrap().into(), ..stopped_by("TERM", 50, shell(FAMILY)) };
    let process = begin_ready(&mut client, "a", spec).await;
    let mut family = inhabitants(&cwd);
    assert!(family.len() == 5, "{family:?}");
    let answer = killed(&mut client, kill("a")).await;
    assert_eq!(inhabitants(&cwd), [0; 0]);
    let mut named: Vec<_> = answer.killed.iter().map(|killed| killed.pid).collect();
    assert!(named.contains(&process.pid));
    named.sort_unstable();
    family.sort_unstable();
    assert_eq!(named, family);
    assert!(answer.killed.iter().any(|killed| killed.command == "sleep"));
    assert_eq!(how(&answer), (Some(9), Cause::Killed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_ignores_the_signal_is_killed_after_the_grace_period_and_not_before() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done";
    begin_ready(&mut client, "a", stopped_by("TERM", 5000, shell(line))).await;
    let begin = std::time::Instant::now();
    let answer = killed(&mut client, kill("a")).await;
    assert!(begin.elapsed() >= std::time::Duration::from_millis(5000));
    assert_eq!(how(&answer), (Some(9), Cause::Killed));
    let read = pb::ReadRequest { id: "a".into(), ..Default::default() };
    let read = soon(client.read(read)).await.unwrap().into_inner();
    assert_eq!(text(&read.chunks, pb::Stream::Stdout), "ready\nasked\n", "output is kept");
    assert!(read.ended);
    let told = events(&mut client).await;
    let wanted = [pb::Kind::Started, pb::Kind::Stopping, pb::Kind::Completed];
    assert_eq!(kinds(&told), wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_descendant_that_outlives_its_process_is_waited_for_and_killed() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "(trap '' TERM; exec setsid sh -c 'echo ready; exec sleep 600') & exec sleep 600";
    let process = begin_ready(&mut client, "a", stopped_by("TERM", 400, shell(line))).await;
    let answer = killed(&mut client, kill("a")).await;
    assert_eq!(service.inmates(), [0; 0]);
    assert_eq!(how(&answer), (Some(15), Cause::Killed), "the process itself has heeded the signal");
    assert_eq!((answer.killed.len(), answer.killed[0].pid), (2, process.pid));
    assert!(!alive(answer.killed[1].pid));
}

/// Descendants that ignore SIGTERM and fork and exit all the time: no look finds them for sure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descendants_that_change_parents_are_killed_after_the_grace_period() {
    if !have(&["perl"]) {
        return;
    }
    let service =
        if is_root() { TestService::start_with(hide_cgroups) } else { TestService::start() };
    let mut client = service.client().await;
    let cwd = service.directory.path().join("home");
    std::fs::create_dir(&cwd).unwrap();
    // Should they escape, they end by themselves.
    let line = "use POSIX; $end = time + 20; $| = 1; \
                for (1..3) { if (!fork) { $SIG{TERM} = 'IGNORE'; while (time < $end) { \
                exit if fork; POSIX::setsid(); select(undef, undef, undef, 0.0003) } exit } } \
                print 'ready'; sleep 30";
    for n in 0..3 {
        let id = format!("p{n}");
        let spec = pb::Spec {
            cwd: cwd.to_str().unwrap().into(),
            ..stopped_by("TERM", 300, argv(&["perl", "-e", line]))
        };
        begin_ready(&mut client, &id, spec).await;
        let answer = killed(&mut client, kill(&id)).await;
        assert_eq!(how(&answer), (Some(15), Cause::Killed));
        for _ in 0..10 {
            assert_eq!(inhabitants(&cwd), [0; 0]);
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_and_overrides_come_before_the_spec() {
    let service = TestService::start();
    let mut client = service.client().await;
    // Would wait for an hour.
    begin_ready(&mut client, "force", stubborn(3_600_000)).await;
    assert_eq!(how(&killed(&mut client, kill_at_once("force")).await), (Some(9), Cause::Killed));
    begin_ready(&mut client, "grace", stubborn(3_600_000)).await;
    let request = pb::KillRequest { grace: Some(millis(20)), ..kill("grace") };
    assert_eq!(how(&killed(&mut client, request).await), (Some(9), Cause::Killed));
    begin_ready(&mut client, "zero", stubborn(3_600_000)).await;
    let request = pb::KillRequest { grace: Some(millis(0)), ..kill("zero") };
    assert_eq!(how(&killed(&mut client, request).await), (Some(9), Cause::Killed));
    begin_ready(&mut client, "signal", stubborn(3_600_000)).await;
    let request = pb::KillRequest { signal: Some("SIGINT".into()), ..kill("signal") };
    assert_eq!(how(&killed(&mut client, request).await), (Some(2), Cause::Killed));
    begin_ready(&mut client, "number", stubborn(3_600_000)).await;
    let request = pb::KillRequest { signal: Some("9".into()), ..kill("number") };
    assert_eq!(how(&killed(&mut client, request).await), (Some(9), Cause::Killed));
    let line = shell("echo ready; exec sleep 600");
    begin_ready(&mut client, "spec", stopped_by("HUP", 60_000, line)).await;
    assert_eq!(how(&killed(&mut client, kill("spec")).await), (Some(1), Cause::Killed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_is_woken_to_hear_the_signal() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "trap 'echo heard; exit 6' TERM; echo ready; while :; do sleep 0.01; done";
    begin_ready(&mut client, "a", stopped_by("TERM", 60_000, shell(line))).await;
    let stop = pb::SignalRequest { id: "a".into(), signal: "STOP".into(), group: true };
    soon(client.signal(stop)).await.unwrap();
    let answer = killed(&mut client, kill("a")).await;
    assert_eq!(exit(&answer.processes[0]).code, Some(6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_kill_hurries_the_first_and_both_are_answered() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin_ready(&mut client, "a", stubborn(3_600_000)).await;
    let mut watcher = Watcher::since(&mut client, 0).await;
    let mut other = client.clone();
    let first = tokio::spawn(async move { killed(&mut other, kill("a")).await });
    watcher.next(pb::Kind::Stopping).await;
    assert_eq!(get(&mut client, "a").await.state(), pb::State::Stopping);
    assert!(!first.is_finished());
    let second = killed(&mut client, kill_at_once("a")).await;
    let first = soon(first).await.unwrap();
    assert_eq!(how(&first), (Some(9), Cause::Killed));
    assert_eq!(first.processes, second.processes);
    // A longer grace would not have slowed it down, nor would it be told twice.
    let told = events(&mut client).await;
    let wanted = [pb::Kind::Started, pb::Kind::Stopping, pb::Kind::Completed];
    assert_eq!(kinds(&told), wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_kills_at_once_end_it_once() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin_ready(&mut client, "a", stubborn(100)).await;
    let mut kills = JoinSet::new();
    for _ in 0..20 {
        let mut client = service.client().await;
        kills.spawn(async move { killed(&mut client, kill("a")).await });
    }
    for answer in kills.join_all().await {
        assert_eq!(how(&answer), (Some(9), Cause::Killed));
    }
    let told = events(&mut client).await;
    assert_eq!(told.iter().filter(|event| event.kind() == pb::Kind::Completed).count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_after_the_end_changes_nothing() {
    let service = TestService::start();
    let mut client = service.client().await;
    let process = finish(&mut client, "a", shell("echo hi; exit 3")).await.process.unwrap();
    for request in [kill("a"), kill_at_once("a"), kill("a")] {
        let answer = killed(&mut client, request).await;
        assert_eq!(answer.processes, std::slice::from_ref(&process));
        assert_eq!(answer.killed, []);
    }
    assert_eq!(events(&mut client).await.len(), 2);
    let missing = soon(client.kill(kill("missing"))).await;
    assert_eq!(refusal(missing), (Code::NotFound, "PROCESS_NOT_FOUND".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descendants_that_linger_after_the_end_can_be_killed() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = shell("trap '' TERM; setsid sleep 600 & exit 3");
    let process = finish(&mut client, "a", line).await.process.unwrap();
    let lingering = process.lingering[0].pid;
    assert!(alive(lingering));
    let answer = killed(&mut client, kill("a")).await;
    assert!(!alive(lingering));
    assert_eq!(answer.killed.iter().map(|killed| killed.pid).collect::<Vec<_>>(), [lingering]);
    // How it ended is not rewritten.
    let after = exit(&answer.processes[0]).clone();
    assert_eq!((after.code, after.cause()), (Some(3), Cause::Exited));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_that_overtakes_the_start_still_kills() {
    let service = TestService::start();
    let mut client = service.client().await;
    for n in 0..50 {
        let id = format!("p{n}");
        let (mut starter, request) = (client.clone(), start(&id, shell("exec sleep 600")));
        let starting = tokio::spawn(async move { soon(starter.start(request)).await });
        // Not found is right as long as it was not accepted.
        let answer = loop {
            match soon(client.kill(kill(&id))).await {
                Ok(answer) => break answer.into_inner(),
                Err(status) => assert_eq!(status.code(), Code::NotFound),
            }
        };
        assert_eq!(how(&answer).1, Cause::Killed);
        let started = starting.await.unwrap().unwrap().into_inner().process.unwrap();
        assert_eq!(started.pid, answer.processes[0].pid);
    }
    assert_eq!(service.inmates(), [0; 0]);
}
