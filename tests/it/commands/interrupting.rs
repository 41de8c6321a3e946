//! ^C, and whatever else asks a command to end, where nobody runs or answers who could be told.

use std::time::Duration;

use procyard::grpc::pb;

use super::Running;
use crate::support::service::*;
use crate::support::soon;
use crate::support::tty::Tty;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_waits_for_its_turn_is_canceled() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "first", in_queue("q", argv(&["sleep", "600"]))).await;
    let waits = ["run", "--id", "p", "--queue", "q", "--", "touch", "begun"];
    let child = Running::start(service.procyard(&waits));
    soon(async {
        while list(&mut client).await.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    kill_pid(child.0.id().cast_signed(), libc::SIGINT);
    assert_eq!(child.finished().status.code(), Some(143));
    let exit = get(&mut client, "p").await.exit.unwrap();
    assert_eq!(exit.cause(), pb::Cause::CanceledInQueue);
    assert!(!service.directory.path().join("begun").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_waits_for_its_restart_stays_ended() {
    let service = TestService::start();
    let mut client = service.client().await;
    let fails = ["run", "--id", "p", "--service", "s", "--restart", "always", "--", "true"];
    let mut child = Running::start(service.procyard(&fails));
    // The pauses grow: soon there is nobody there whenever one looks.
    soon(async {
        loop {
            let found = list(&mut client).await;
            if found.first().is_some_and(|process| process.state() == pb::State::Backoff) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    while child.0.try_wait().unwrap().is_none() {
        kill_pid(child.0.id().cast_signed(), libc::SIGINT);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let process = get(&mut client, "p").await;
    assert_eq!(process.state(), pb::State::Exited, "{process:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_while_nobody_could_be_reached_is_told_later_and_so_is_the_next() {
    let service = TestService::start();
    let line = "trap 'echo caught' INT; echo ready; while :; do sleep 600 & wait; done";
    let mut tty = Tty::start(service.procyard(&["run", "--", "sh", "-c", line]));
    tty.expect("ready");
    // Nobody starts another server.
    let server = service.server_pid();
    service.signal(libc::SIGSTOP);
    kill_pid(server, libc::SIGKILL);
    tty.expect("cannot be reached");
    tty.type_in("\x03");
    tty.expect("^C");
    service.signal(libc::SIGCONT);
    tty.expect("caught");
    tty.type_in("\x03");
    tty.expect("caught");
    kill_pid(tty.child.id().cast_signed(), libc::SIGTERM);
    assert_eq!(tty.ended(), 143);
}
