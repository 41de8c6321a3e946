//! One instance for one state directory and one socket, whoever comes first.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::support::service::*;
use crate::support::{binary, until};

/// An instance with a socket and a state directory in a directory.
fn serve(directory: &Path, socket: &str, state: &str) -> Command {
    let mut command = Command::new(binary());
    command.arg("serve");
    command.arg("--listen").arg(format!("unix://{}", directory.join(socket).display()));
    command.arg("--state-dir").arg(directory.join(state));
    command.env("RUST_LOG", "warn").stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The reason of an instance that refused to start.
fn reason_of(output: Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_instance_is_refused_with_the_reason_and_harms_nobody() {
    let service = TestService::start();
    let mut client = service.client().await;
    let process = begin(&mut client, "a", shell("exec sleep 600")).await;
    let directory = service.directory.path();
    let reason = reason_of(serve(directory, "other.sock", "state").output().unwrap());
    assert!(reason.contains("state") && reason.contains("another"), "{reason}");
    assert!(!directory.join("other.sock").exists(), "a socket is left behind");
    let reason = reason_of(serve(directory, "s.sock", "other").output().unwrap());
    assert!(reason.contains("another instance listens there"), "{reason}");
    assert_eq!(get(&mut client, "a").await.pid, process.pid);
    assert_eq!(get(&mut service.client().await, "a").await.pid, process.pid);
}

/// Instances that are ended, whatever comes of them.
struct Racers(Vec<Child>);

impl Drop for Racers {
    fn drop(&mut self) {
        for racer in &mut self.0 {
            if racer.try_wait().unwrap().is_none() {
                kill_pid(racer.id().cast_signed(), libc::SIGTERM);
                racer.wait().unwrap();
            }
        }
    }
}

/// Starts many at once, and waits until one serves and the others have given up.
async fn race(mut commands: Vec<Command>) -> Child {
    let mut racers = Racers(commands.iter_mut().map(|command| command.spawn().unwrap()).collect());
    until("all but one have given up", || {
        let going_on = racers.0.iter_mut().map(|racer| racer.try_wait().unwrap().is_none());
        going_on.filter(|goes_on| *goes_on).count() <= 1
    })
    .await;
    let at = racers.0.iter_mut().position(|racer| racer.try_wait().unwrap().is_none());
    let winner = racers.0.swap_remove(at.expect("one goes on"));
    for loser in std::mem::take(&mut racers.0) {
        let reason = reason_of(loser.wait_with_output().unwrap());
        assert!(reason.contains("another"), "{reason}");
    }
    winner
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_race_for_a_stale_socket_exactly_one_wins() {
    for _ in 0..5 {
        let directory = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(directory.path().join("s.sock")).unwrap());
        let commands = (0..6).map(|n| serve(directory.path(), "s.sock", &format!("state{n}")));
        let child = race(commands.collect()).await;
        let service = TestService { child, directory };
        assert_eq!(output_of(&mut service.client().await, shell("echo hi")).await, "hi\n");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_race_for_a_state_directory_exactly_one_wins() {
    let directory = tempfile::tempdir().unwrap();
    let commands = (0..6).map(|n| serve(directory.path(), &format!("s{n}.sock"), "state"));
    let child = race(commands.collect()).await;
    let left = std::fs::read_dir(directory.path()).unwrap();
    let left = left.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        Path::new(&name).extension().is_some_and(|extension| extension == "sock")
    });
    assert_eq!(left.count(), 1, "those who gave up took their sockets along");
    drop(TestService { child, directory });
}

#[test]
fn a_state_that_cannot_be_used_or_a_place_that_is_not_safe_is_refused_with_the_reason() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    std::fs::write(directory.join("file"), "no directory at all").unwrap();
    let reason = reason_of(serve(directory, "s.sock", "file").output().unwrap());
    assert!(reason.contains("cannot use") && reason.contains("/file"), "{reason}");

    let open = directory.join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let reason = reason_of(serve(directory, "open/s.sock", "state").output().unwrap());
    assert!(reason.contains("others may write to the directory"), "{reason}");

    let long = "x".repeat(120);
    let reason = reason_of(serve(directory, &long, "state").output().unwrap());
    assert!(reason.contains("at most 107 bytes"), "{reason}");
}
