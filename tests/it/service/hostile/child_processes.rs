//! Commands that call the procyard that runs them.

use std::process::Command;

use procyard::grpc::pb;

use super::have_sandbox;
use crate::support::service::*;
use crate::support::{binary, children, is_root, possible, skip, until};

/// A service whose child processes may do so much.
fn start_granting(children: &str) -> TestService {
    TestService::start_with(|command| {
        command.args(["--grant-children", children]);
    })
}

/// A shell line that asks a service who calls, as its JSON says it, or why it refuses.
fn asking(service: &TestService, command: &str) -> String {
    format!("{} {command} --server unix://{} 2>&1", binary(), service.socket().display())
}

fn who_calls(service: &TestService) -> String {
    asking(service, "info --output json")
}

/// The role that an answer tells.
fn role(answer: &str) -> &str {
    let rest = answer.split("\"role\":").nth(1).unwrap_or_else(|| panic!("{answer}"));
    rest.split('"').nth(1).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process_gets_at_most_its_grant_and_others_their_own() {
    let service = start_granting("viewer");
    let mut client = service.client().await;
    let answer = output_of(&mut client, shell(&who_calls(&service))).await;
    assert_eq!(role(&answer), "viewer", "{answer}");
    assert!(answer.contains("child:uid:"), "{answer}");
    let killing = output_of(&mut client, shell(&asking(&service, "kill $PROCYARD_ID"))).await;
    assert!(killing.contains("needs the role operator; yours is viewer"), "{killing}");
    // The test is not below the keeper, nor is what it runs; the same after an accident.
    for _ in 0..2 {
        let outside = service.procyard(&["info", "--output", "json"]).output().unwrap();
        assert_eq!(role(&String::from_utf8_lossy(&outside.stdout)), "admin");
        service.kill_server();
        let mut client = service.client().await;
        let answer = output_of(&mut client, shell(&who_calls(&service))).await;
        assert_eq!(role(&answer), "viewer", "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process_cannot_leave_its_tree_to_get_more() {
    let service = start_granting("viewer");
    let mut client = service.client().await;
    let told = service.directory.path().join("told");
    let ask = format!("{} >{1}.part; mv {1}.part {1}", who_calls(&service), told.display());
    std::fs::write(service.directory.path().join("ask"), ask).unwrap();
    let ask = format!("sh {}", service.directory.path().join("ask").display());
    // It leaves its session, and all its parents end before it connects. Without its cookie, too.
    let orphan = format!("(setsid env -u PROCYARD_ID sh -c 'sleep 0.3; {ask}' &) & exit 0");
    // PID namespaces within each other, where they can be had.
    let nested = format!("unshare -Urpf --mount-proc sh -c '{ask}' || unshare -pf {ask} || {ask}");
    for line in [orphan, nested] {
        finish(&mut client, "", shell(&line)).await;
        until("the command has been answered", || told.exists()).await;
        let answer = std::fs::read_to_string(&told).unwrap();
        assert_eq!(role(&answer), "viewer", "{line}: {answer}");
        std::fs::remove_file(&told).unwrap();
    }
    let own_pids = pb::Sandbox { own_pids: true, ..Default::default() };
    let spec = pb::Spec { sandbox: Some(own_pids), ..shell(&who_calls(&service)) };
    if have_sandbox(&mut client, &["own_pids"]).await {
        let answer = output_of(&mut client, spec).await;
        assert_eq!(role(&answer), "viewer", "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_child_process_can_still_probe_health() {
    let service = start_granting("none");
    let mut client = service.client().await;
    let refused = output_of(&mut client, shell(&who_calls(&service))).await;
    assert!(refused.contains("processes that procyard runs may not call it"), "{refused}");
    let probe = finish(&mut client, "", shell(&asking(&service, "healthcheck"))).await;
    assert_eq!(probe.process.unwrap().exit.unwrap().code, Some(0));
    assert!(service.procyard(&["info"]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process_is_its_user_by_default() {
    let service = TestService::start();
    let mut client = service.client().await;
    let answer = output_of(&mut client, shell(&who_calls(&service))).await;
    assert_eq!(role(&answer), "admin", "{answer}");
    assert!(!answer.contains("child:"), "{answer}");
}

/// A service whose keeper is PID 1, as in a container.
struct Container {
    service: TestService,
    /// The keeper's pid outside of it.
    keeper: u32,
}

impl Container {
    fn start() -> Option<Container> {
        let under = ["unshare", "--pid", "--fork", "--mount-proc"];
        if !is_root() || !possible(&under) {
            skip("a PID namespace like a container's needs root");
            return None;
        }
        let service = TestService::start_under(&under, |command| {
            command.arg("--grant-children=none");
        });
        // Waits until it listens.
        drop(service.procyard(&[]));
        let keeper = children(service.child.id())[0];
        Some(Container { service, keeper })
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // `unshare` ignores the signal, and ends with the keeper.
        kill_pid(self.keeper.cast_signed(), libc::SIGTERM);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_from_beside_a_container_or_executed_in_it_is_no_child() {
    let Some(container) = Container::start() else { return };
    let service = &container.service;
    // Its PID namespace is not below the keeper's: the kernel tells no pid.
    let beside = service.procyard(&["info", "--output", "json"]).output().unwrap();
    assert_eq!(role(&String::from_utf8_lossy(&beside.stdout)), "admin");
    // As a container runtime executes a command: it is in there, and its parent is not.
    let enter = ["--target", &container.keeper.to_string(), "--pid", "--mount", "sh", "-c"];
    let inside = Command::new("nsenter").args(enter).arg(who_calls(service)).output().unwrap();
    assert_eq!(role(&String::from_utf8_lossy(&inside.stdout)), "admin");
    let mut client = service.client().await;
    let refused = output_of(&mut client, shell(&who_calls(service))).await;
    assert!(refused.contains("processes that procyard runs may not call it"), "{refused}");
}
