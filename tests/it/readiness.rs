//! Readiness: each probe holds when it should, not before, and leaves nothing behind.

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use procyard::keeper_client::Spawned;
use procyard::process::{Launch, Probe};
use procyard::supervisor::{AttemptTurns, Candidate, WorkerPool, ready};
use procyard::transcript::ring::MIN_CAPACITY;
use tokio::task::JoinHandle;

use crate::support::*;

static WORKERS: LazyLock<WorkerPool> = LazyLock::new(|| WorkerPool::start().unwrap());

/// Long enough for a probe to be tried several times.
const SEVERAL_TRIES: Duration = Duration::from_millis(700);

/// Awaits the readiness of a process, commands being started in a directory.
fn awaiting(
    server: &Server,
    spawned: &Spawned,
    probe: Probe,
    first_seq: u64,
    cwd: &Path,
) -> JoinHandle<()> {
    let beside = Launch {
        cwd: cwd.to_str().unwrap().into(),
        env: vec![(b"PATH".to_vec(), b"/usr/local/bin:/usr/bin:/bin".to_vec())],
        ring_bytes: MIN_CAPACITY,
        ..Launch::new(format!("{}/probe", spawned.key), [b""; 0])
    };
    let candidate = Candidate {
        id: "test".into(),
        keeper: server.keeper.clone(),
        key: spawned.key,
        pid: spawned.pid,
        output: spawned.output.clone(),
        first_seq,
        beside: Arc::new(move || beside.clone()),
        workers: WORKERS.for_caller("test"),
        turns: AttemptTurns::default(),
        tell: Box::new(|_| {}),
    };
    tokio::spawn(ready(probe, candidate))
}

async fn is_not_ready(awaiting: &mut JoinHandle<()>) {
    assert!(tokio::time::timeout(SEVERAL_TRIES, awaiting).await.is_err(), "it was told too early");
}

fn exec(args: &[&str]) -> Probe {
    Probe::Exec(args.iter().map(|arg| (*arg).into()).collect())
}

/// A program that listens on an address and says so.
fn listener(address: &str, port: u16) -> String {
    let family = if address.contains(':') { "socket.AF_INET6" } else { "socket.AF_INET" };
    format!(
        "import socket, time; s = socket.socket({family}); s.bind((\"{address}\", {port})); \
         s.listen(); print(\"listening\", flush=True); time.sleep(600)"
    )
}

#[tokio::test]
async fn words_make_ready_across_chunks_and_those_of_an_earlier_launch_do_not() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let line = format!(
        "echo up on 1; read x <{0}; printf 'up '; read x <{0}; echo on 80; exec sleep 600",
        gate.path
    );
    let spawned = server.sh(&line, PIPES).await;
    read_until(&spawned, "up on 1").await;
    let here = keeper.directory.path().to_owned();
    let probe = || Probe::Output(r"up on [0-9]+\n".into());
    soon(awaiting(&server, &spawned, probe(), 1, &here)).await.unwrap();
    let mut later = awaiting(&server, &spawned, probe(), 2, &here);
    let mut never = awaiting(&server, &spawned, Probe::Output("nobody says so".into()), 1, &here);
    gate.open(1);
    read_until(&spawned, "up on 1\nup ").await;
    is_not_ready(&mut later).await;
    gate.open(1);
    soon(later).await.unwrap();
    assert!(!never.is_finished());
    soon(server.keeper.kill_tree(spawned.key, libc::SIGKILL)).await.unwrap();
    server.exit(spawned.key).await;
    is_not_ready(&mut never).await;
}

#[tokio::test]
async fn a_port_makes_ready_if_one_of_the_tree_listens_and_not_if_a_stranger_does() {
    if !have(&["python3"]) {
        return;
    }
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let here = keeper.directory.path().to_owned();
    let mut gate = Gate::new(&here);
    for address in ["127.0.0.1", "::1"] {
        if TcpListener::bind((address, 0)).is_err() {
            skip(&format!("no {address} here"));
            continue;
        }
        // A stranger on the same port of another address, from beginning to end.
        let port = free_port();
        let stranger = TcpListener::bind(("127.0.0.2", port)).unwrap();
        // A descendant of a descendant listens.
        let program = listener(address, port);
        let line = format!("(read x <{}; python3 -c '{program}'; :) & wait", gate.path);
        let spawned = server.sh(&line, PIPES).await;
        let mut awaiting = awaiting(&server, &spawned, Probe::Port(port), 1, &here);
        is_not_ready(&mut awaiting).await;
        gate.open(1);
        soon(awaiting).await.unwrap();
        read_until(&spawned, "listening").await;
        drop(stranger);
    }
}

#[tokio::test]
async fn a_port_in_a_network_namespace_of_a_descendant_is_found() {
    if !have(&["python3"]) || !possible(&["unshare", "-n"]) {
        return skip("no network namespace of its own can be had");
    }
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let port = free_port();
    let line = format!("unshare -n python3 -c '{}'; :", listener("0.0.0.0", port));
    let spawned = server.sh(&line, PIPES).await;
    let here = keeper.directory.path();
    soon(awaiting(&server, &spawned, Probe::Port(port), 1, here)).await.unwrap();
}

#[tokio::test]
async fn a_command_makes_ready_when_it_succeeds_and_is_tried_until_then() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let here = keeper.directory.path().to_owned();
    let spawned = server.sh("exec sleep 600", PIPES).await;
    // In the directory that was asked for.
    let line = "echo tried >>tries; echo more than anyone reads; [ -e flag ]";
    let mut awaiting = awaiting(&server, &spawned, exec(&["sh", "-c", line]), 1, &here);
    let tries = || std::fs::read_to_string(here.join("tries")).unwrap_or_default().lines().count();
    until("it was tried three times", || tries() >= 3).await;
    is_not_ready(&mut awaiting).await;
    std::fs::write(here.join("flag"), "").unwrap();
    soon(awaiting).await.unwrap();
    only_the_process_is_left(&keeper, server, spawned.pid).await;
}

#[tokio::test]
async fn a_command_that_cannot_be_executed_yet_is_tried_again() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let here = keeper.directory.path().to_owned();
    let spawned = server.sh("exec sleep 600", PIPES).await;
    let path = here.join("probe");
    let mut awaiting = awaiting(&server, &spawned, exec(&[path.to_str().unwrap()]), 1, &here);
    is_not_ready(&mut awaiting).await;
    // Moved into its place: whoever is executed must not be open for writing.
    executable(&here.join("made"), "#!/bin/sh\nexit 0\n");
    std::fs::rename(here.join("made"), path).unwrap();
    soon(awaiting).await.unwrap();
}

#[tokio::test]
async fn who_stops_asking_leaves_no_command_running() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let here = keeper.directory.path().to_owned();
    let spawned = server.sh("exec sleep 600", PIPES).await;
    let line = "touch begun; sleep 600 & setsid sleep 600 & sleep 600";
    let waiting = awaiting(&server, &spawned, exec(&["sh", "-c", line]), 1, &here);
    until("the command runs", || here.join("begun").exists()).await;
    until("it has begun others", || keeper.inhabitants().len() > 1).await;
    waiting.abort();
    until("nobody of it is left", || keeper.inhabitants().is_empty()).await;
    // At any moment, also while it is being started.
    for n in 0..40 {
        let waiting = awaiting(&server, &spawned, exec(&["sh", "-c", line]), 1, &here);
        let begin = std::time::Instant::now();
        while begin.elapsed() < Duration::from_micros(50 * n) {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        let _ = waiting.await;
    }
    until("nobody of them is left", || keeper.inhabitants().is_empty()).await;
    only_the_process_is_left(&keeper, server, spawned.pid).await;
}

/// The keeper holds the process and nothing else.
async fn only_the_process_is_left(keeper: &TestKeeper, server: Server, pid: u32) {
    until("no command is left", || children(keeper.pid()) == [pid]).await;
    // What was dropped is released a moment after it has ended.
    let begin = std::time::Instant::now();
    let mut server = server;
    loop {
        let held = soon(server.keeper.adopt()).await.unwrap();
        if held.len() == 1 {
            break;
        }
        assert!(begin.elapsed() < SOON, "{held:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
        while server.reports.try_next().is_some() {}
    }
}
