//! Sandboxed commands that put a symbolic link where another command may write.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use pb::sandbox::Files;
use procyard::grpc::pb;
use tempfile::TempDir;
use tonic::{Code, Status};

use super::have_sandbox;
use crate::support::service::*;
use crate::support::soon;

/// A workspace of the hostile command, with a directory `inner` in which another command runs, and
/// `target` beside it, which neither may write.
struct Place {
    _directory: TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        for name in ["outer/inner/deep", "target/deep", "other"] {
            fs::create_dir_all(path.join(name)).unwrap();
        }
        Place { _directory: directory, path }
    }

    fn at(&self, path: &str) -> String {
        self.path.join(path).to_str().unwrap().into()
    }

    /// A command that writes in `cwd` and in `writable`, which are all that it may write.
    fn spec(&self, cwd: &str, writable: &[&str], line: &str) -> pb::Spec {
        let sandbox = pb::Sandbox {
            files: Files::WorkspaceWrite.into(),
            writable: writable.iter().map(|path| self.at(path)).collect(),
            ..Default::default()
        };
        pb::Spec { cwd: self.at(cwd), sandbox: Some(sandbox), ..shell(line) }
    }

    /// Has a command replace `inner` by a link to `target`.
    async fn plant_link(&self, client: &mut Client) {
        let line = format!("mv inner away && ln -s {} inner && echo planted", self.at("target"));
        let planted = output_of(client, self.spec("outer", &[], &line)).await;
        assert_eq!(planted, "planted\n");
    }
}

fn assert_link_refused(status: &Status, path: &str) {
    assert_eq!((status.code(), &reason(status)[..]), (Code::FailedPrecondition, "SPAWN_FAILED"));
    let metadata = details(status).error_info().unwrap().metadata.clone();
    assert_eq!((&metadata["path"][..], &metadata["errno_name"][..]), (path, "ELOOP"));
    assert!(status.message().contains("name the directory by its real path"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_launch_does_not_follow_a_planted_link() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_sandbox(&mut client, &["files"]).await {
        return;
    }
    let place = Place::new();
    let inner = place.at("outer/inner");
    let write = |path: &str| format!("echo 1 >{path}/made && echo written");
    let specs = [
        ("cwd", place.spec("outer/inner", &[], &write(".")), inner.clone()),
        ("deep", place.spec("outer/inner/deep", &[], &write(".")), place.at("outer/inner/deep")),
        ("writable", place.spec("other", &["other", "outer/inner"], &write(&inner)), inner),
    ];
    for (id, spec, _) in &specs {
        let answer = finish(&mut client, id, spec.clone()).await;
        assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "written\n", "{id}");
    }
    place.plant_link(&mut client).await;
    for (id, spec, path) in &specs {
        let status = soon(client.run(run_by_force(id))).await.unwrap_err();
        assert_link_refused(&status, path);
        let status = soon(client.start(start("", spec.clone()))).await.unwrap_err();
        assert_link_refused(&status, path);
        assert_eq!(status.message().starts_with("spec.sandbox.writable: "), *id == "writable");
    }
    for made in ["target/made", "target/deep/made"] {
        assert!(!place.path.join(made).exists(), "{made}");
    }
    // Links stay usable where the sandbox lets nothing be written because of them.
    let read_only = pb::Sandbox { files: Files::ReadOnly.into(), ..Default::default() };
    for sandbox in [None, Some(read_only)] {
        let spec = pb::Spec { cwd: place.at("outer/inner"), sandbox, ..shell("pwd -P") };
        assert_eq!(output_of(&mut client, spec).await.trim(), place.at("target"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_process_does_not_follow_a_planted_link() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_sandbox(&mut client, &["files"]).await {
        return;
    }
    let place = Place::new();
    let first = pb::Spec { queue: "q".into(), ..shell("exec sleep 600") };
    begin(&mut client, "first", first).await;
    let spec = pb::Spec { queue: "q".into(), ..place.spec("outer/inner", &[], "echo 1 >made") };
    assert_eq!(begin(&mut client, "second", spec).await.state(), pb::State::Queued);
    place.plant_link(&mut client).await;
    soon(client.kill(kill_at_once("first"))).await.unwrap();
    let process = ended(&mut client, "second").await;
    let exit = exit(&process);
    assert_eq!(exit.cause(), pb::Cause::StartFailed);
    assert!(exit.message.contains(&place.at("outer/inner")), "{exit:?}");
    assert!(!place.path.join("target/made").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn link_to_outside_of_the_roots_is_refused_as_outside() {
    let place = Place::new();
    let service = TestService::start_with(|command| {
        command.args(["--root", &place.at("outer")]);
    });
    let mut client = service.client().await;
    if !have_sandbox(&mut client, &["files"]).await {
        return;
    }
    symlink(place.path.join("outer/inner"), place.path.join("outer/link")).unwrap();
    let spec = place.spec("outer/link", &[], "true");
    let status = soon(client.start(start("", spec))).await.unwrap_err();
    assert_link_refused(&status, &place.at("outer/link"));
    place.plant_link(&mut client).await;
    let spec = place.spec("outer/inner", &[], "true");
    let told = refusal(soon(client.start(start("", spec))).await);
    assert_eq!(told, (Code::PermissionDenied, "CWD_NOT_ALLOWED".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_directory_may_be_named_through_a_link() {
    let place = Place::new();
    let link = place.at("link");
    symlink(place.path.join("other"), &link).unwrap();
    for option in ["--cwd", "--root", ""] {
        let service = TestService::start_with(|command| {
            match option {
                "" => command.current_dir(&link).env("PWD", &link),
                option => command.args([option, &link]),
            };
        });
        let mut client = service.client().await;
        if !have_sandbox(&mut client, &["files"]).await {
            return;
        }
        let spec = pb::Spec { cwd: String::new(), ..place.spec("", &[], "echo 1 >made; pwd -P") };
        assert_eq!(output_of(&mut client, spec).await.trim(), place.at("other"), "{option:?}");
        fs::remove_file(place.path.join("other/made")).unwrap();
    }
}
