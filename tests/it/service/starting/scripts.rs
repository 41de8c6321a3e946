//! Scripts: code that is handed over in a private file, which is gone afterwards.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use procyard::grpc::pb::{self, spec};
use tonic::Code;

use crate::support::service::*;
use crate::support::{NOBODY, have, is_root, skip, soon, until};

fn script(code: &str, interpreter: &[&str], filename: &str) -> pb::Spec {
    let interpreter = interpreter.iter().map(|arg| (*arg).into()).collect();
    let script = pb::Script { code: code.into(), interpreter, filename: filename.into() };
    pb::Spec { program: Some(spec::Program::Script(script)), ..Default::default() }
}

/// Nothing of any script is left.
async fn no_script_is_left(service: &TestService) {
    let scripts = service.directory.path().join("state/scripts");
    let count = || std::fs::read_dir(&scripts).map_or(0, Iterator::count);
    until("the scripts are gone", || count() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_runs_in_the_shell_unless_it_names_another_interpreter() {
    let service = TestService::start();
    let mut client = service.client().await;
    let said =
        output_of(&mut client, script("echo \"${0##*/}\"\necho $((6 * 7))\n", &[], "")).await;
    assert_eq!(said, "script\n42\n");
    if have(&["python3"]) {
        let code = "import os, sys\nprint(os.path.basename(sys.argv[0]), 6 * 7)\n";
        let said = output_of(&mut client, script(code, &["python3", "-u"], "prög.py")).await;
        assert_eq!(said, "prög.py 42\n");
    }
    no_script_is_left(&service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_is_private_and_gone_afterwards() {
    let service = TestService::start();
    let mut client = service.client().await;
    let code = "echo $0; echo ready; exec sleep 600";
    let request = pb::StartRequest {
        wait: Some(until_output("ready")),
        ..start("a", script(code, &[], "x.sh"))
    };
    let answer = soon(client.start(request)).await.unwrap().into_inner();
    let said = text(&answer.chunks, pb::Stream::Stdout);
    let path = PathBuf::from(said.lines().next().unwrap());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    soon(client.kill(kill("a"))).await.unwrap();
    until("the script is gone", || !path.parent().unwrap().exists()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_of_a_mebibyte_runs() {
    let service = TestService::start();
    let mut client = service.client().await;
    let end = "\necho end\n";
    let code = "#".repeat((1 << 20) - end.len()) + end;
    assert_eq!(output_of(&mut client, script(&code, &[], "")).await, "end\n");
    // What is that large is not repeated with each event.
    let told = events(&mut client).await.remove(0).process.unwrap().spec.unwrap();
    assert_eq!(told.program, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_user_can_read_the_script() {
    if !is_root() {
        return skip("running as another user needs root");
    }
    let service = TestService::start();
    let mut client = service.client().await;
    // The directory of a test is closed to others; that of a state directory's parent is not.
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(service.directory.path(), open).unwrap();
    let user = pb::User { uid: NOBODY, gid: Some(NOBODY), groups: Vec::new() };
    let spec = pb::Spec { user: Some(user), cwd: "/".into(), ..script("id -u; cat $0", &[], "") };
    let answer = finish(&mut client, "", spec).await;
    let said = text(&answer.chunks, pb::Stream::Stdout);
    assert_eq!(said, "65534\nid -u; cat $0", "{answer:?}");
    no_script_is_left(&service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_whose_interpreter_is_missing_is_refused_and_leaves_no_file() {
    let service = TestService::start();
    let mut client = service.client().await;
    let answer = soon(client.start(start("a", script("x", &["/no/such"], "")))).await;
    let status = answer.unwrap_err();
    assert_eq!((status.code(), &reason(&status)[..]), (Code::FailedPrecondition, "SPAWN_FAILED"));
    let metadata = details(&status).error_info().unwrap().metadata.clone();
    assert_eq!((&metadata["path"][..], &metadata["errno"][..]), ("/no/such", "2"));
    assert_eq!(list(&mut client).await, []);
    no_script_is_left(&service).await;
}
