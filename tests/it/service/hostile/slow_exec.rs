//! A program whose exec takes as long as its owner likes: the keeper does not wait for it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use procyard::grpc::pb;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use super::{have_sandbox, with_large_environment};
use crate::support::callers::KnowingService;
use crate::support::service::*;
use crate::support::{helpers, lease, soon, stat};

/// Processes of one caller with a readiness command that is slow, more than it may have launches under way.
const SLOW_READINESS_COMMANDS: usize = 60;

/// Launches of one caller that take as much memory as it may have under way, each.
const LARGE_LAUNCHES: usize = 8;

/// Children of the keeper that wait for their exec: each is in a session of its own, as no helper is.
fn execs_under_way(keeper: u32) -> usize {
    let waits = |pid: &u32| stat(*pid).get(3) == Some(&pid.to_string());
    helpers(keeper).into_iter().filter(waits).count()
}

/// A copy of `true` with a lease on it, as long as the file is held.
fn leased_program(directory: &Path) -> (PathBuf, File) {
    let program = directory.join("program");
    // Not copied by this process, whose other tests could have the file open for writing as well.
    assert!(Command::new("cp").arg("/bin/true").arg(&program).status().unwrap().success());
    let file = File::open(&program).unwrap();
    lease(&file);
    (program, file)
}

/// Starts a program that another process has a lease on, with this sandbox.
async fn leased_program_is_not_waited_for(sandbox: Option<pb::Sandbox>) {
    let service = TestService::start();
    let mut client = service.client().await;
    let (program, file) = leased_program(service.directory.path());
    let server = service.server_pid();
    let spec = pb::Spec { sandbox, ..argv(&[program.to_str().unwrap()]) };
    let refused = soon(client.start(start("leased", spec))).await.unwrap_err();
    assert_eq!(errno(&refused), libc::ETIME.to_string());
    finish_in_time(&mut client, "other", "true").await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_starts_of_one_caller_leave_another_callers_start_prompt() {
    let callers = [("a", "operator,owner=a"), ("b", "operator,owner=b")];
    let known = KnowingService::start(&callers).await;
    let (a, mut b) = (known.caller("a").await, known.caller("b").await);
    let (program, file) = leased_program(known.service.directory.path());
    let program = program.to_str().unwrap();
    let mut admin = known.service.client().await;
    for wave in 0..2 {
        let starts = (0..150).map(|n| {
            let (mut a, spec) = (a.clone(), argv(&[program]));
            let request = start(&format!("leased-{wave}-{n}"), spec);
            tokio::spawn(async move { drop(a.start(request).await) })
        });
        let starts: Vec<_> = starts.collect();
        // On a slow machine the first of them fail meanwhile.
        soon(async { while list(&mut admin).await.len() < 110 + 150 * wave {} }).await;
        // The calls are cancelled; what they have asked for is not.
        starts.iter().for_each(JoinHandle::abort);
    }
    let before = list(&mut admin).await.len();
    soon(b.start(run("other", argv(&["/bin/true"])))).await.unwrap();
    // It has not waited for those that wait: of the leased ones no more than are under way have failed.
    let after = list(&mut admin).await.len();
    assert!(after + 32 > before, "{after} of {before} processes are left");
    drop(file);
    // Those that waited start. A few may have been too late before the lease was given back.
    let are_over = async {
        loop {
            let all = list(&mut admin).await;
            if all.iter().all(|process| process.state() == pb::State::Exited) {
                return all.len();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(soon(are_over).await > 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readiness_commands_of_one_caller_hold_few_helpers() {
    let callers = [("a", "operator,owner=a"), ("b", "operator,owner=b")];
    let known = KnowingService::start(&callers).await;
    let (mut a, mut b) = (known.caller("a").await, known.caller("b").await);
    let (program, _file) = leased_program(known.service.directory.path());
    let keeper = known.service.child.id();
    let readiness = pb::Readiness {
        exec: vec![program.to_str().unwrap().into()],
        timeout: Some(millis(600_000)),
        ..Default::default()
    };
    for n in 0..SLOW_READINESS_COMMANDS {
        let spec = pb::Spec { readiness: Some(readiness.clone()), ..argv(&["sleep", "600"]) };
        soon(a.start(start(&format!("silent-{n}"), spec))).await.unwrap();
    }
    // The keeper takes starts in order: what it was asked for before waits for its exec by now.
    soon(b.start(run("other", argv(&["/bin/true"])))).await.unwrap();
    let waiting = execs_under_way(keeper);
    assert!((1..=32).contains(&waiting), "{waiting} execs are under way");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_launches_of_one_caller_are_under_way_one_at_a_time() {
    let callers = [("a", "operator,owner=a"), ("b", "operator,owner=b")];
    let known = KnowingService::start(&callers).await;
    let (a, mut b) = (known.caller("a").await, known.caller("b").await);
    let (program, file) = leased_program(known.service.directory.path());
    let (keeper, mut admin) = (known.service.child.id(), known.service.client().await);
    let starts = (0..LARGE_LAUNCHES).map(|n| {
        let spec = with_large_environment(argv(&[program.to_str().unwrap()]));
        let (mut a, request) = (a.clone(), start(&format!("large-{n}"), spec));
        tokio::spawn(async move { drop(a.start(request).await) })
    });
    let starts: Vec<_> = starts.collect();
    soon(async { while list(&mut admin).await.len() < LARGE_LAUNCHES {} }).await;
    soon(b.start(run("other", argv(&["/bin/true"])))).await.unwrap();
    let waiting = execs_under_way(keeper);
    assert!((1..=2).contains(&waiting), "{waiting} execs are under way");
    drop(file);
    for start in starts {
        soon(start).await.unwrap();
    }
}
