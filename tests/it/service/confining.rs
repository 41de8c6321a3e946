//! Where processes may run and what they may reach: roots, privileges, sandboxes.

mod files;
mod namespaces;
mod roots;

use procyard::grpc::pb;

use crate::support::service::*;
use crate::support::{skip, soon};

/// The same in a sandbox.
fn sandboxed(sandbox: pb::Sandbox, spec: pb::Spec) -> pb::Spec {
    pb::Spec { sandbox: Some(sandbox), ..spec }
}

/// The same in a directory.
fn in_directory(cwd: &str, spec: pb::Spec) -> pb::Spec {
    pb::Spec { cwd: cwd.into(), ..spec }
}

/// The fields of a sandbox that a service can have.
async fn parts(client: &mut Client) -> Vec<String> {
    let info = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    info.into_inner().capabilities.unwrap().sandbox
}

/// Whether a service can have all these fields of a sandbox; says so if not.
async fn have_parts(client: &mut Client, wanted: &[&str]) -> bool {
    let parts = parts(client).await;
    let missing = wanted.iter().find(|part| !parts.iter().any(|have| have == *part));
    missing.inspect(|part| skip(&format!("the kernel gives no {part} here"))).is_none()
}

/// A command that tells when a process is ready.
fn ready_by(exec: &[&str], spec: pb::Spec) -> pb::Spec {
    let exec = exec.iter().map(|arg| (*arg).to_owned()).collect();
    let readiness = pb::Readiness { exec, timeout: Some(millis(60_000)), ..Default::default() };
    pb::Spec { readiness: Some(readiness), ..spec }
}

/// Starts a process and waits until it is ready, or has failed to be.
async fn begin_until_ready(client: &mut Client, id: &str, spec: pb::Spec) -> bool {
    let request = pb::StartRequest { wait: Some(until_ready()), ..start(id, spec) };
    soon(client.start(request)).await.unwrap().into_inner().wait.unwrap().met
}

const NO_NEW_PRIVILEGES: &str = "grep NoNewPrivs /proc/self/status";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn privileges_are_withheld_from_one_or_from_all_and_by_default_from_nobody() {
    let withheld = pb::Sandbox { no_new_privileges: true, ..Default::default() };
    let service = TestService::start();
    let mut client = service.client().await;
    let told = output_of(&mut client, shell(NO_NEW_PRIVILEGES)).await;
    let own = std::process::Command::new("sh").args(["-c", NO_NEW_PRIVILEGES]).output().unwrap();
    assert_eq!(told.as_bytes(), own.stdout, "as whoever started the service has it");
    let one = sandboxed(withheld.clone(), shell(NO_NEW_PRIVILEGES));
    assert_eq!(output_of(&mut client, one).await, "NoNewPrivs:\t1\n");
    let kept = list(&mut client).await[0].spec.clone().unwrap();
    assert_eq!(kept.sandbox.unwrap(), pb::Sandbox { files: 1, ..withheld });
    drop(service);
    for (args, variable) in [(&["--no-new-privileges"][..], "false"), (&[], "1")] {
        let service = TestService::start_with(|command| {
            command.args(args).env("PROCYARD_NO_NEW_PRIVILEGES", variable);
        });
        let mut client = service.client().await;
        for spec in [shell(NO_NEW_PRIVILEGES), on_terminal(shell(NO_NEW_PRIVILEGES))] {
            let answer = finish(&mut client, "", spec).await;
            let told = text(&answer.chunks, answer.chunks[0].stream());
            assert_eq!(told.trim(), "NoNewPrivs:\t1");
        }
        service.kill_server();
        let mut client = service.client().await;
        assert_eq!(output_of(&mut client, shell(NO_NEW_PRIVILEGES)).await, "NoNewPrivs:\t1\n");
    }
}
