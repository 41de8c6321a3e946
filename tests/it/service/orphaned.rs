//! The keeper dies: nobody runs on unseen, and what ran is lost, not running.

use std::process::Command;

use procyard::grpc::pb::{self, Cause, Kind};

use super::hanging::Stopped;
use crate::support::service::*;
use crate::support::{alive, hide_cgroups, is_root, skip, until};

/// A process with a descendant that left its session, and what it wrote its pid into.
async fn begin_with_runaway(service: &TestService, client: &mut Client) -> (u32, u32) {
    let file = service.directory.path().join("runaway");
    let line = format!(
        "(setsid sh -c 'echo $$ >{0}.new; mv {0}.new {0}; exec sleep 600' &) ; sleep 600",
        file.display()
    );
    let process = begin(client, "a", shell(&line)).await;
    until("it ran away", || file.exists()).await;
    let runaway = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    (process.pid, runaway)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_killed_keeper_leaves_is_ended_by_the_next_and_nobody_else_is() {
    killed_and_begun_anew(|_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_cgroups_they_are_found_by_their_environment() {
    if !is_root() {
        return skip("needs root to hide cgroups");
    }
    killed_and_begun_anew(hide_cgroups).await;
}

async fn killed_and_begun_anew(change: fn(&mut Command)) {
    let mut service = TestService::start_with(change);
    let other = TestService::start_with(change);
    let mut client = service.client().await;
    let (child, runaway) = begin_with_runaway(&service, &mut client).await;
    // Of the same id, in another state directory.
    let mut strangers = other.client().await;
    let (foreign_child, foreign_runaway) = begin_with_runaway(&other, &mut strangers).await;
    let server = service.server_pid().cast_unsigned();
    // One that hangs does not see that its keeper is gone.
    let stopped = Stopped::new(server.cast_signed());
    service.signal(libc::SIGKILL);
    until("its children follow it", || !alive(child)).await;
    assert!(alive(runaway) && alive(server), "nothing is left to be found");

    service.begin_anew(change);
    until("the server that hangs is ended", || !alive(server)).await;
    std::mem::forget(stopped);
    let mut client = service.client().await;
    assert!(!alive(runaway), "it runs on unseen");
    let process = get(&mut client, "a").await;
    let exit = exit(&process);
    assert_eq!((exit.cause(), exit.code, exit.signal), (Cause::Lost, None, None));
    assert_eq!(story(&mut client, "a").await, [Kind::Started, Kind::Completed]);

    assert!(alive(foreign_child) && alive(foreign_runaway), "another's was ended");
    assert_eq!(get(&mut strangers, "a").await.state(), pb::State::Running);
}
