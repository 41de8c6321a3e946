//! A program whose exec takes as long as its owner likes: the keeper does not wait for it.

use std::fs::File;
use std::process::Command;

use procyard::grpc::pb;
use tonic::{Code, Status};

use super::have_sandbox;
use crate::support::service::*;
use crate::support::{lease, soon};

/// Starts a program that another process has a lease on, with this sandbox.
async fn leased_program_is_not_waited_for(sandbox: Option<pb::Sandbox>) {
    let service = TestService::start();
    let mut client = service.client().await;
    let program = service.directory.path().join("program");
    // Not copied by this process, whose other tests could have the file open for writing as well.
    assert!(Command::new("cp").arg("/bin/true").arg(&program).status().unwrap().success());
    let file = File::open(&program).unwrap();
    lease(&file);
    let server = service.server_pid();
    for n in 0..2 {
        let spec = pb::Spec { sandbox: sandbox.clone(), ..argv(&[program.to_str().unwrap()]) };
        let refused = soon(client.start(start(&format!("leased-{n}"), spec))).await.unwrap_err();
        assert_eq!(errno(&refused), libc::ETIME.to_string());
        finish_in_time(&mut client, &format!("other-{n}"), "true").await;
    }
    assert_eq!(service.server_pid(), server);
    assert!(service.inmates().is_empty());
    drop(file);
    finish_in_time(&mut client, "given-back", program.to_str().unwrap()).await;
}

fn errno(refused: &Status) -> String {
    assert_eq!(
        (refused.code(), reason(refused)),
        (Code::FailedPrecondition, "SPAWN_FAILED".into())
    );
    details(refused).error_info().unwrap().metadata["errno"].clone()
}

/// Runs a program, again if a busy machine took too long to execute it.
async fn finish_in_time(client: &mut Client, id: &str, program: &str) {
    let finished = async {
        while let Err(refused) = client.start(run(id, argv(&[program]))).await {
            assert_eq!(errno(&refused), libc::ETIME.to_string());
        }
    };
    soon(finished).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_of_a_leased_program_fails_and_others_start() {
    leased_program_is_not_waited_for(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_of_a_leased_program_with_own_pids_fails() {
    let service = TestService::start();
    if have_sandbox(&mut service.client().await, &["own_pids"]).await {
        let sandbox = pb::Sandbox { own_pids: true, ..Default::default() };
        leased_program_is_not_waited_for(Some(sandbox)).await;
    }
}
