//! Which files a process may write: none, or those of its workspace.

use std::fs;
use std::path::PathBuf;

use pb::sandbox::Files;
use procyard::grpc::pb;
use tempfile::TempDir;
use tonic::Code;

use super::{begin_until_ready, have_parts, in_directory, ready_by, sandboxed};
use crate::support::service::*;
use crate::support::{NOBODY, is_root, skip, soon, until};

/// A workspace with a file in it, and a place beside it with another.
struct Place {
    _directory: TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Place {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["work", "work/deep", "beside", "third"] {
            fs::create_dir_all(path.join(name)).unwrap();
            fs::write(path.join(name).join("file"), "before").unwrap();
        }
        std::os::unix::fs::symlink(path.join("beside"), path.join("work/out")).unwrap();
        std::os::unix::fs::symlink(path.join("beside/file"), path.join("work/link")).unwrap();
        Place { _directory: directory, path }
    }

    fn at(&self, path: &str) -> String {
        self.path.join(path).to_str().unwrap().into()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path.join(path)).unwrap_or_else(|_| "none".into())
    }

    /// A shell line in the workspace.
    fn in_workspace(&self, files: Files, line: &str) -> pb::Spec {
        let sandbox = pb::Sandbox { files: files.into(), ..Default::default() };
        in_directory(&self.at("work"), sandboxed(sandbox, shell(line)))
    }
}

/// Tries everything that changes a file at a path `$1`, or makes something in a directory `$2`;
/// says what it could.
const TRY: &str = r#"
try() { what=$1; shift; if "$@" 2>/dev/null; then echo "$what"; fi; }
write() { echo after >"$file"; }
append() { echo after >>"$file"; }
cut() { truncate -s 1 "$file"; }
make() { echo >"$place/made"; }
directory() { mkdir "$place/directory"; }
link() { ln -s nowhere "$place/symlink"; }
fifo() { mkfifo "$place/fifo"; }
move() { mv "$file" "$place/moved" </dev/null; }
remove() { rm "$place/file"; }
for what in write append cut make directory link fifo move remove; do try $what $what; done
"#;

fn trying(file: &str, place: &str) -> String {
    format!("file={file} place={place}; {TRY}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_only_read_changes_nothing_and_reads_and_executes_everything() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_parts(&mut client, &["files"]).await {
        return;
    }
    let place = Place::new();
    for (file, directory) in [("file", "."), ("link", "out"), ("../beside/file", "../beside")] {
        let line = trying(file, directory);
        let spec = place.in_workspace(Files::ReadOnly, &line);
        assert_eq!(output_of(&mut client, spec).await, "", "{file}");
    }
    assert_eq!(
        (place.read("work/file"), place.read("beside/file")),
        ("before".into(), "before".into())
    );
    // Without a sandbox the same line can do all of it.
    let line = trying("file", ".");
    let all = output_of(&mut client, in_directory(&place.at("work"), shell(&line))).await;
    assert_eq!(all, "write\nappend\ncut\nmake\ndirectory\nlink\nfifo\nmove\n");
    let line = "cat link && cat /etc/passwd >/dev/null && echo x >/dev/null && echo to >&2 && \
                echo err >/dev/stderr && sh -c 'echo run'";
    let spec = place.in_workspace(Files::ReadOnly, line);
    let answer = finish(&mut client, "", spec).await;
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "beforerun\n");
    assert_eq!(text(&answer.chunks, pb::Stream::Stderr), "to\nerr\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_write_its_workspace_writes_there_and_nowhere_else() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_parts(&mut client, &["files"]).await {
        return;
    }
    let place = Place::new();
    for (file, directory) in [("link", "out"), ("../beside/file", "../beside")] {
        let line = trying(file, directory);
        let spec = place.in_workspace(Files::WorkspaceWrite, &line);
        // A link to elsewhere is itself in the workspace.
        let told = output_of(&mut client, spec).await;
        assert_eq!(told, "", "{file}");
    }
    assert_eq!(place.read("beside/file"), "before");
    assert_eq!(fs::read_dir(place.path.join("beside")).unwrap().count(), 1);
    fs::write(place.path.join("work/file"), "before").unwrap();
    let line = trying("file", "deep");
    let told = output_of(&mut client, place.in_workspace(Files::WorkspaceWrite, &line)).await;
    assert_eq!(told, "write\nappend\ncut\nmake\ndirectory\nlink\nfifo\nmove\nremove\n");
    // Neither out of the workspace nor into it, but for a copy.
    fs::write(place.path.join("work/file"), "before").unwrap();
    let rename = "import os,sys\nfor a, b in ((1, 2), (2, 1)):\n try: os.rename(sys.argv[a], sys.argv[b])\n except OSError as e: print(e.errno)";
    if crate::support::have(&["python3"]) {
        let spec = argv(&["python3", "-c", rename, "file", "../beside/file"]);
        let sandbox = pb::Sandbox { files: Files::WorkspaceWrite.into(), ..Default::default() };
        let spec = in_directory(&place.at("work"), sandboxed(sandbox, spec));
        let told = output_of(&mut client, spec).await;
        assert!(told == "18\n18\n" || told == "13\n13\n", "{told}");
    }
    assert_eq!(
        (place.read("work/file"), place.read("beside/file")),
        ("before".into(), "before".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn further_directories_are_writable_when_they_are_named() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_parts(&mut client, &["files"]).await {
        return;
    }
    let place = Place::new();
    let sandbox = |writable: &str| pb::Sandbox {
        files: Files::WorkspaceWrite.into(),
        writable: vec![place.at("third"), place.at(writable)],
        ..Default::default()
    };
    let line =
        "pwd -P; echo 1 >made; echo 1 >../beside/made; echo 1 >../third/made; echo 1 >../made";
    let spec = in_directory(&place.at("work"), sandboxed(sandbox("beside"), shell(line)));
    let answer = finish(&mut client, "a", spec).await;
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout).trim(), place.at("work"));
    let made = ["work/made", "beside/made", "third/made", "made"].map(|path| place.read(path));
    assert_eq!(made, ["1\n", "1\n", "1\n", "none"]);
    let kept = answer.process.unwrap().spec.unwrap().sandbox.unwrap();
    assert_eq!(kept, pb::Sandbox { no_new_privileges: true, ..sandbox("beside") });
    // What is not there, or is no directory, is named.
    for (writable, errno) in [("none", "ENOENT"), ("beside/file", "ENOTDIR")] {
        let spec = in_directory(&place.at("work"), sandboxed(sandbox(writable), shell("true")));
        let status = soon(client.start(start("b", spec))).await.unwrap_err();
        assert_eq!(
            (status.code(), &reason(&status)[..]),
            (Code::FailedPrecondition, "SPAWN_FAILED")
        );
        let metadata = details(&status).error_info().unwrap().metadata.clone();
        assert_eq!((&metadata["path"], &metadata["errno_name"][..]), (&place.at(writable), errno));
        assert!(status.message().starts_with("spec.sandbox.writable: "), "{status:?}");
    }
    drop(service);
    let service = TestService::start_with(|command| {
        command.args(["--root", &place.at("work"), "--root", &place.at("third")]);
    });
    let mut client = service.client().await;
    for (queue, writable) in [("", "beside"), ("q", "beside"), ("", "none"), ("", "work/out")] {
        let spec = sandboxed(sandbox(writable), in_queue(queue, shell("true")));
        let status = soon(client.start(start("b", spec))).await.unwrap_err();
        assert_eq!(
            (status.code(), &reason(&status)[..]),
            (Code::PermissionDenied, "CWD_NOT_ALLOWED")
        );
        assert!(status.message().contains(&place.at(writable)), "{status:?}");
        assert!(status.message().starts_with("spec.sandbox.writable: "), "{status:?}");
    }
    let spec = sandboxed(sandbox("work/deep"), shell("echo 2 >../third/made"));
    assert_eq!(finish(&mut client, "b", spec).await.process.unwrap().exit.unwrap().code, Some(0));
    assert_eq!(ids(&list(&mut client).await), ["b"]);
    let outputs = service.directory.path().join("state/outputs");
    until("no output file is left", || fs::read_dir(&outputs).unwrap().count() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_stands_on_terminals_for_scripts_in_each_run_and_after_the_server() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_parts(&mut client, &["files"]).await {
        return;
    }
    let place = Place::new();
    let line = "echo x >/dev/tty && echo y >/dev/stdout && stty size && echo 1 >made || echo no";
    let spec = on_terminal(place.in_workspace(Files::ReadOnly, line));
    let answer = finish(&mut client, "t", spec).await;
    let told = text(&answer.chunks, pb::Stream::Terminal).replace('\r', "");
    assert_eq!(answer.process.unwrap().output, None, "what was made for it says nothing");
    assert!(told.starts_with("x\ny\n24 80\n") && told.ends_with("no\n"), "{told:?}");
    let script = pb::Script {
        code: "echo 1 >made || echo no\necho 7 >$PROCYARD_OUTPUT".into(),
        ..Default::default()
    };
    let script = pb::Spec {
        program: Some(pb::spec::Program::Script(script)),
        ..place.in_workspace(Files::ReadOnly, "")
    };
    let answer = finish(&mut client, "s", script).await;
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "no\n");
    let set = answer.process.unwrap().output.unwrap().value.unwrap().to_value().unwrap();
    assert_eq!(set.kind, Some(prost_types::value::Kind::NumberValue(7.0)));
    service.kill_server();
    let mut client = service.client().await;
    soon(client.run(run_by_force("s"))).await.unwrap();
    ended(&mut client, "s").await;
    assert_eq!(printed(&mut client, "s").await, "no\n");
    assert_eq!(place.read("work/made"), "none");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_stands_for_other_users_few_descriptors_and_commands_of_readiness() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_parts(&mut client, &["files"]).await {
        return;
    }
    let place = Place::new();
    for open_files in [4, 5, 16] {
        let limits = Some(pb::Limits { open_files, ..Default::default() });
        let line = "ulimit -n; ulimit -Hn; exec touch made";
        let spec = pb::Spec { limits, ..place.in_workspace(Files::WorkspaceWrite, line) };
        assert_eq!(output_of(&mut client, spec).await, format!("{open_files}\n{open_files}\n"));
        assert_eq!(place.read("work/made"), "");
        fs::remove_file(place.path.join("work/made")).unwrap();
    }
    let cannot = "! touch made 2>/dev/null && read x <file && [ $x = before ]";
    fs::write(place.path.join("work/file"), "before\n").unwrap();
    let spec = place.in_workspace(Files::ReadOnly, "exec sleep 600");
    assert!(begin_until_ready(&mut client, "r", ready_by(&["sh", "-c", cannot], spec)).await);
    assert_eq!(place.read("work/made"), "none");
    soon(client.kill(kill_at_once("r"))).await.unwrap();
    if !is_root() {
        return skip("another user needs root");
    }
    let user = Some(pb::User { uid: NOBODY, ..Default::default() });
    std::os::unix::fs::chown(place.path.join("work"), Some(NOBODY), None).unwrap();
    std::os::unix::fs::chown(place.path.join("third"), Some(NOBODY), None).unwrap();
    let line = "id -u; echo 1 >made; echo 1 >../third/made; echo [8] >$PROCYARD_OUTPUT";
    let spec = pb::Spec { user, ..place.in_workspace(Files::WorkspaceWrite, line) };
    let answer = finish(&mut client, "u", spec).await;
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), format!("{NOBODY}\n"));
    assert_eq!([place.read("work/made"), place.read("third/made")], ["1\n", "none"]);
    assert!(answer.process.unwrap().output.unwrap().value.is_some());
}
