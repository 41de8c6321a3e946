//! Allowed roots: what counts is where a process is, not what its path looks like.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use procyard::grpc::pb;
use tempfile::TempDir;
use tonic::Code;

use super::{begin_until_ready, in_directory, ready_by};
use crate::support::service::*;
use crate::support::{NOBODY, is_root, soon};

/// A place with two allowed roots and one directory that is not.
struct Place {
    directory: TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        for name in ["root/inner", "second", "other", "rooted"] {
            std::fs::create_dir_all(path.join(name)).unwrap();
        }
        symlink(path.join("other"), path.join("root/out")).unwrap();
        symlink(path.join("root/inner"), path.join("other/in")).unwrap();
        symlink("/nowhere/at/all", path.join("root/dangling")).unwrap();
        Place { directory, path }
    }

    fn at(&self, path: &str) -> String {
        self.path.join(path).to_str().unwrap().into()
    }

    /// Everyone may look around here.
    fn open_to_all(&self) {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.directory.path(), mode).unwrap();
    }

    fn service(&self) -> TestService {
        TestService::start_with(|command| {
            command.args(["--root", &self.at("root"), "--root", &self.at("second")]);
        })
    }
}

const DENIED: (Code, &str) = (Code::PermissionDenied, "CWD_NOT_ALLOWED");

async fn refused(client: &mut Client, spec: pb::Spec) -> (Code, String) {
    refusal(soon(client.start(start("a", spec))).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_allowed_by_where_it_is_and_not_by_how_it_is_called() {
    let place = Place::new();
    let service = place.service();
    let mut client = service.client().await;
    let inside = [
        ("root", "root"),
        ("root/inner", "root/inner"),
        ("root/inner/..", "root"),
        ("second", "second"),
        ("other/in", "root/inner"),
        ("other/../root/./inner/", "root/inner"),
        ("root/out/in", "root/inner"),
    ];
    for (path, real) in inside {
        for spec in [shell("pwd -P"), on_terminal(shell("pwd -P"))] {
            let answer = finish(&mut client, "", in_directory(&place.at(path), spec)).await;
            let stream = answer.chunks[0].stream();
            assert_eq!(text(&answer.chunks, stream).trim(), place.at(real), "{path}");
        }
    }
    let before = list(&mut client).await.len();
    let outside =
        ["", "other", "rooted", "root/..", "root/../other", "root/out", "root/out/../other"];
    for path in outside {
        for spec in [shell("pwd"), on_terminal(shell("pwd")), in_queue("q", shell("pwd"))] {
            let told = refused(&mut client, in_directory(&place.at(path), spec)).await;
            assert_eq!((told.0, &told.1[..]), DENIED, "{path}");
        }
    }
    assert_eq!(list(&mut client).await.len(), before, "no record stays");
    assert_eq!(service.inmates(), [0; 0]);
    let status = soon(client.start(start("a", in_directory(&place.at("root/out"), shell("pwd")))));
    let told = details(&status.await.unwrap_err()).error_info().unwrap().metadata["path"].clone();
    assert_eq!(told, place.at("root/out"), "as it was asked for, not where it leads to");
    // The id is free.
    finish(&mut client, "a", shell("true")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_learns_what_there_is_outside_of_the_roots() {
    let place = Place::new();
    std::fs::write(place.path.join("other/file"), "").unwrap();
    let service = place.service();
    let mut client = service.client().await;
    let hidden = [
        "other",
        "other/none",
        "other/file",
        "none",
        "root/out",
        "root/out/none",
        "root/out/file",
        "root/dangling",
        "root/out/../none",
    ];
    for path in hidden {
        for queue in ["", "q"] {
            let spec = in_directory(&place.at(path), in_queue(queue, shell("true")));
            let status = soon(client.start(start("a", spec))).await.unwrap_err();
            assert_eq!((status.code(), &reason(&status)[..]), DENIED, "{path}");
            let words = format!(
                "{:?} is not below a directory that is allowed here (--root)",
                place.at(path)
            );
            assert_eq!(status.message(), words);
        }
    }
    // What is missing inside is told as ever.
    for path in ["root/none", "root/inner/none/none", "other/in/none"] {
        let spec = in_directory(&place.at(path), shell("true"));
        let status = soon(client.start(start("a", spec))).await.unwrap_err();
        assert_eq!(reason(&status), "SPAWN_FAILED", "{path}");
        let metadata = details(&status).error_info().unwrap().metadata.clone();
        assert_eq!((&metadata["errno_name"][..], &metadata["path"]), ("ENOENT", &place.at(path)));
    }
    assert_eq!(list(&mut client).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_asks_for_no_directory_gets_the_first_root_or_the_default() {
    let place = Place::new();
    let service = place.service();
    let mut client = service.client().await;
    assert_eq!(output_of(&mut client, shell("pwd -P")).await.trim(), place.at("root"));
    let spec = list(&mut client).await[0].spec.clone().unwrap();
    assert_eq!(spec.cwd, "", "the spec is as it was asked for");
    drop(service);
    for root in [Some(place.at("root")), None] {
        let service = TestService::start_with(|command| {
            command.args(root.iter().flat_map(|root| ["--root", root]));
            command.env("PROCYARD_CWD", place.at("other/in"));
        });
        let mut client = service.client().await;
        assert_eq!(output_of(&mut client, shell("pwd -P")).await.trim(), place.at("root/inner"));
    }
}

/// What a service that cannot begin says.
fn complaint(place: &Place, change: impl FnOnce(&mut Command)) -> String {
    let mut command = TestService::command(&place.path, change);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn roots_that_cannot_be_are_a_reason_not_to_begin() {
    let place = Place::new();
    std::fs::write(place.path.join("file"), "").unwrap();
    let missing = complaint(&place, |command| {
        command.env("PROCYARD_ROOT", format!("{},{}", place.at("root"), place.at("none")));
    });
    assert!(missing.contains(&format!("--root {}: No such file", place.at("none"))), "{missing}");
    let file = complaint(&place, |command| {
        command.args(["--root", &place.at("file")]);
    });
    assert!(file.contains("it is not a directory"), "{file}");
    let default = complaint(&place, |command| {
        command.args(["--root", &place.at("root"), "--cwd", &place.at("root/out")]);
    });
    assert!(default.contains("it is not below a --root"), "{default}");
    std::fs::create_dir(place.path.join("a,b")).unwrap();
    symlink(place.path.join("a,b"), place.path.join("comma")).unwrap();
    let comma = complaint(&place, |command| {
        command.args(["--root", &place.at("comma")]);
    });
    assert!(comma.contains("its real path has a comma"), "{comma}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roots_hold_for_other_users_and_for_the_commands_that_tell_readiness() {
    let place = Place::new();
    place.open_to_all();
    let service = place.service();
    let mut client = service.client().await;
    let is_there = format!("[ \"$(pwd -P)\" = {} ]", place.at("root/inner"));
    let spec = in_directory(&place.at("other/in"), shell("sleep 600"));
    assert!(begin_until_ready(&mut client, "b", ready_by(&["sh", "-c", &is_there], spec)).await);
    soon(client.kill(kill_at_once("b"))).await.unwrap();
    if !is_root() {
        return crate::support::skip("another user needs root");
    }
    let user = Some(pb::User { uid: NOBODY, ..Default::default() });
    let as_nobody = |cwd: &str, line: &str| pb::Spec {
        user: user.clone(),
        ..in_directory(&place.at(cwd), shell(line))
    };
    assert_eq!(
        output_of(&mut client, as_nobody("root/inner", "id -u; pwd -P")).await,
        format!("{NOBODY}\n{}\n", place.at("root/inner"))
    );
    let told = refused(&mut client, as_nobody("root/out", "true")).await;
    assert_eq!((told.0, &told.1[..]), DENIED);
    // What that user may not enter is there all the same.
    use std::os::unix::fs::PermissionsExt;
    for closed in ["root/inner", "other"] {
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(place.path.join(closed), mode).unwrap();
    }
    assert_eq!(refused(&mut client, as_nobody("root/inner", "true")).await.1, "SPAWN_FAILED");
    assert_eq!(refused(&mut client, as_nobody("root/out", "true")).await.1, "CWD_NOT_ALLOWED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_in_a_queue_whose_directory_leads_elsewhere_by_its_turn_is_not_started() {
    let place = Place::new();
    let service = place.service();
    let mut client = service.client().await;
    begin(&mut client, "first", in_queue("q", shell("exec sleep 600"))).await;
    let moved = place.path.join("root/moved");
    std::fs::create_dir(&moved).unwrap();
    let spec = in_queue("q", in_directory(moved.to_str().unwrap(), shell("pwd -P")));
    let waits = begin(&mut client, "second", spec).await;
    assert_eq!(waits.state(), pb::State::Queued);
    std::fs::remove_dir(&moved).unwrap();
    symlink(place.path.join("other"), &moved).unwrap();
    soon(client.kill(kill_at_once("first"))).await.unwrap();
    let process = ended(&mut client, "second").await;
    let exit = exit(&process);
    assert_eq!(exit.cause(), pb::Cause::StartFailed);
    assert!(exit.message.contains("is not below a directory that is allowed here"), "{exit:?}");
    assert_eq!(printed(&mut client, "second").await, "");
    // And no more when it is run anew.
    let again = refusal(soon(client.run(run_again("second"))).await);
    assert_eq!(again, (DENIED.0, DENIED.1.to_owned()));
    assert_eq!(ended(&mut client, "second").await.run, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_this_server_does_not_allow_any_more_clears_nothing() {
    let place = Place::new();
    let mut service = place.service();
    let mut client = service.client().await;
    let spec = in_directory(&place.at("second"), shell("echo kept"));
    soon(client.start(run("a", spec))).await.unwrap();
    service.stop();
    service.begin_anew(|command| {
        command.args(["--root", &place.at("root")]);
    });
    let mut client = service.client().await;
    let again = refusal(soon(client.run(run_by_force("a"))).await);
    assert_eq!(again, (DENIED.0, DENIED.1.to_owned()));
    assert_eq!(printed(&mut client, "a").await, "kept\n");
}

/// Swaps a directory and a link to elsewhere, in one stroke each, until it is told to stop.
fn swap(inside: &Path, link: &Path, stop: &AtomicBool) -> u64 {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let mut swaps = 0;
    while !stop.load(Ordering::Relaxed) {
        renameat_with(CWD, inside, CWD, link, RenameFlags::EXCHANGE).unwrap();
        swaps += 1;
    }
    swaps
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_swapped_for_a_link_all_the_time_lets_nobody_out() {
    let place = Place::new();
    let service = place.service();
    let mut client = service.client().await;
    let (inside, link) = (place.path.join("root/inner"), place.path.join("root/out"));
    let stop = Arc::new(AtomicBool::new(false));
    let swapping = std::thread::spawn({
        let (inside, stop) = (inside.clone(), Arc::clone(&stop));
        move || swap(&inside, &link, &stop)
    });
    let (mut allowed, mut denied) = (0, 0);
    // As many as it takes to have seen both, and a number besides.
    while allowed + denied < 300 || allowed == 0 || denied == 0 {
        let spec = in_directory(inside.to_str().unwrap(), shell("pwd -P"));
        match soon(client.start(run("", spec))).await {
            Ok(answer) => {
                let told = text(&answer.into_inner().chunks, pb::Stream::Stdout);
                // Renamed while it runs, it is still below the root.
                assert!(Path::new(told.trim()).starts_with(place.path.join("root")), "{told}");
                allowed += 1;
            }
            Err(status) => {
                assert_eq!((status.code(), &reason(&status)[..]), DENIED);
                denied += 1;
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(swapping.join().unwrap() > 0);
    assert_eq!(list(&mut client).await.len(), allowed);
}
