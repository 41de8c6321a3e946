//! Refused and cancelled calls cannot remove the audit lines of changes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use procyard::grpc::pb;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::callers::{KnowingService, listens_at};
use crate::support::http2;
use crate::support::service::*;
use crate::support::{full_volume, soon, until};

const LIST: &str = "/procyard.v1.ProcessService/List";

/// Lines that refusals may have in this test: of two sources, in a few intervals.
const MAX_LINES: usize = 200;

/// The path with something at its end.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Makes calls without credentials, all at once, and reads their refusals.
async fn refused_calls(address: std::net::SocketAddr, count: u32) {
    let mut io = TcpStream::connect(address).await.unwrap();
    http2::send(&mut io, &http2::hello()).await;
    let call = |n| http2::call(2 * n + 1, "localhost", LIST, &pb::ListRequest::default());
    http2::send(&mut io, &(0..count).flat_map(call).collect::<Vec<u8>>()).await;
    let (mut refused, end_stream) = (0, 1);
    while refused < count {
        let frame = http2::next_frame(&mut io).await.expect("the server hung up");
        refused += u32::from(frame.kind == http2::HEADERS && frame.flags & end_stream != 0);
    }
}

/// Whether an audit file has a line with this.
fn has_line(audit: &Path, line: &str) -> bool {
    let changes = std::fs::read_to_string(audit).unwrap_or_default();
    changes.lines().any(|change| change.contains(line))
}

/// How many refusals the lines of a log tell of, and in how many lines.
fn told(log: &str, source: &str, result: &str) -> (usize, usize) {
    let lines: Vec<_> =
        log.lines().filter(|line| line.contains(source) && line.contains(result)).collect();
    let count = |line: &&str| {
        let summary =
            line.split_once("refused calls").and_then(|(_, rest)| rest.split_once("count="));
        let number = |rest: &str| rest.split(' ').next().unwrap().parse().unwrap();
        summary.map_or(1, |(_, rest)| number(rest))
    };
    (lines.iter().map(count).sum(), lines.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_calls_do_not_remove_audit_lines() {
    // A connection without a caller is closed after more refusals.
    let (batches, size) = if full_volume() { (1600, 64) } else { (80, 64) };
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    std::fs::write(&log, "").unwrap();
    let mut service = TestService::start_with(|command| {
        command.args(["--listen", "tcp://127.0.0.1:0", "--log-file"]).arg(&log);
        command.env("RUST_LOG", "info");
    });
    let address = listens_at(&log).await;
    let mut client = service.client().await;
    finish(&mut client, "kept", shell("true")).await;
    for _ in 0..batches {
        refused_calls(address, size).await;
    }
    // Refusals of calls by known callers, for what is not there.
    for _ in 0..100 {
        soon(client.kill(kill("absent"))).await.unwrap_err();
    }
    let delete = pb::DeleteRequest { id: "kept".into(), ..Default::default() };
    soon(client.delete(delete)).await.unwrap();
    service.stop();
    service.child.wait().unwrap();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let audit = read(&with_suffix(&log, ".audit"));
    for change in [r#"call="Start" process="kept""#, r#"call="Delete" process="kept""#] {
        assert_eq!(audit.lines().filter(|line| line.contains(change)).count(), 1, "{audit}");
    }
    assert!(!audit.contains("refused") && !audit.contains("absent"), "{audit}");
    let log = read(&with_suffix(&log, ".1")) + &read(&log);
    let (count, lines) = told(&log, "127.0.0.1", "NO_CREDENTIALS");
    assert_eq!(count, (batches * size) as usize);
    assert!(lines < MAX_LINES, "{lines} lines");
    let (count, lines) = told(&log, "uid:", "PROCESS_NOT_FOUND");
    assert_eq!(count, 100);
    assert!(lines < MAX_LINES, "{lines} lines");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_file_has_changes_whatever_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("changes");
    let service = TestService::start_with(|command| {
        command.arg("--audit-file").arg(&audit).env("RUST_LOG", "off");
    });
    let mut client = service.client().await;
    finish(&mut client, "a", shell("true")).await;
    // Of the server that comes next as well.
    service.kill_server();
    let delete = pb::DeleteRequest { id: "a".into(), ..Default::default() };
    soon(service.client().await.delete(delete)).await.unwrap();
    let changes = std::fs::read_to_string(&audit).unwrap();
    let calls: Vec<_> = changes.lines().filter_map(|line| line.split_once("call=")).collect();
    let calls: Vec<_> = calls.iter().filter_map(|(_, rest)| rest.split(' ').next()).collect();
    assert_eq!(calls, [r#""Start""#, r#""Delete""#], "{changes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_have_audit_lines_though_their_calls_wait() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("changes");
    let service = TestService::start_with(|command| {
        command.arg("--audit-file").arg(&audit);
    });
    let mut client = service.client().await;
    let spec =
        with_stdin(shell("trap '' TERM; echo ready; read line; echo got $line; exec sleep 600"));
    begin_ready(&mut client, "p", spec).await;
    let wait = Some(until_exit());
    let input = Some(pb::write_stdin_request::Input::Text("x\n".into()));
    let write = pb::WriteStdinRequest { id: "p".into(), input, wait, ..Default::default() };
    let mut writer = client.clone();
    let waits = tokio::spawn(async move { writer.write_stdin(write).await });
    until("the input has its line", || {
        has_line(&audit, r#"call="WriteStdin" process="p" result="ok""#)
    })
    .await;
    // Its process does not end in time for its answer: the server ends first.
    let mut killer = client.clone();
    let kill = pb::KillRequest { grace: Some(millis(600_000)), ..kill("p") };
    let killed = tokio::spawn(async move { killer.kill(kill).await });
    soon(async { while get(&mut client, "p").await.state() != pb::State::Stopping {} }).await;
    service.signal(libc::SIGHUP);
    assert!(soon(killed).await.unwrap().is_err() && soon(waits).await.unwrap().is_err());
    until("the kill has its line", || {
        has_line(&audit, r#"call="Kill" process="p" result="Unavailable"#)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_of_a_viewer_leave_no_audit_lines() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("changes");
    let mut known = KnowingService::start_with(&[("eye", "viewer")], |command| {
        command.arg("--audit-file").arg(&audit);
    })
    .await;
    let (mut client, eye) = (known.service.client().await, known.caller("eye").await);
    finish(&mut client, "p", shell("true")).await;
    // Each takes long to compile, and is cancelled meanwhile.
    let reads = (0..100).map(|n| {
        let grep = format!(r"(?i)(\pL|\pN|\pS){{400}}|{n}");
        let view = Some(pb::View { grep, ..Default::default() });
        let request = pb::ReadRequest { id: "p".into(), ack_seq: 1, view, ..Default::default() };
        let mut eye = eye.clone();
        async move { timeout(Duration::from_millis(200), eye.read(request)).await.is_err() }
    });
    let cancelled = soon(join_all(reads)).await.into_iter().filter(|is| *is).count();
    assert!(cancelled > 0, "all reads were answered");
    let delete = pb::DeleteRequest { id: "p".into(), ..Default::default() };
    soon(client.delete(delete)).await.unwrap();
    known.service.stop();
    known.service.child.wait().unwrap();
    let changes = std::fs::read_to_string(&audit).unwrap();
    assert!(changes.contains(r#"call="Delete""#) && !changes.contains("Read"), "{changes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_audit_file_is_not_required() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let default = with_suffix(&log, ".audit");
    std::fs::create_dir(&default).unwrap();
    for log in [log.as_path(), Path::new("/dev/stderr")] {
        let service = TestService::start_with(|command| {
            command.arg("--log-file").arg(log).stderr(std::fs::File::create("/dev/null").unwrap());
        });
        let mut client = service.client().await;
        assert_eq!(output_of(&mut client, shell("echo hi")).await, "hi\n");
        assert!(!with_suffix(Path::new("/dev/stderr"), ".audit").exists());
    }
    let warning = format!("cannot open --audit-file {}", default.display());
    let log = std::fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches(&warning).count(), 1, "{log}");
    // One that was asked for is required.
    let refused = TestService::command(directory.path(), |command| {
        command.arg("--audit-file").arg(&default);
    });
    let refused = { refused }.output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains(&warning), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_change_nothing_have_no_audit_lines() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("changes");
    let mut known = KnowingService::start_with(&[("op", "operator,owner=op")], |command| {
        command.arg("--audit-file").arg(&audit);
    })
    .await;
    let mut op = known.caller("op").await;
    soon(op.start(run("over", shell("true")))).await.unwrap();
    soon(op.start(start("live", with_stdin(shell("exec sleep 600"))))).await.unwrap();
    let nobody = pb::Selector { owner: "op".into(), name: "none".into(), ..Default::default() };
    let selected = pb::kill_request::Target::Selector(nobody);
    let selected = pb::KillRequest { target: Some(selected), ..Default::default() };
    let missing =
        pb::DeleteRequest { id: "none".into(), allow_missing: true, ..Default::default() };
    let empty = pb::WriteStdinRequest { id: "live".into(), ..Default::default() };
    let ack = pb::ReadRequest { id: "live".into(), ack_seq: 1, ..Default::default() };
    for _ in 0..20 {
        soon(op.kill(selected.clone())).await.unwrap();
        soon(op.kill(kill("over"))).await.unwrap();
        soon(op.delete(missing.clone())).await.unwrap();
        soon(op.write_stdin(empty.clone())).await.unwrap();
        soon(op.read(ack.clone())).await.unwrap();
        soon(op.start(run("over", shell("true")))).await.unwrap();
    }
    soon(op.kill(kill("live"))).await.unwrap();
    known.service.stop();
    known.service.child.wait().unwrap();
    let changes = std::fs::read_to_string(&audit).unwrap();
    let calls: Vec<_> = changes.lines().filter_map(|line| line.split_once("call=")).collect();
    let calls: Vec<_> = calls.iter().filter_map(|(_, rest)| rest.split(' ').next()).collect();
    assert_eq!(calls, [r#""Start""#, r#""Start""#, r#""Kill""#], "{changes}");
    // All are counted.
    let log = known.log();
    let lines = log.lines().filter(|line| line.contains("token:op"));
    let count = |line: &str| {
        let summary =
            line.split_once("changed nothing").and_then(|(_, rest)| rest.split_once("count="));
        summary.map_or(1, |(_, rest)| rest.split(' ').next().unwrap().parse().unwrap())
    };
    assert_eq!(lines.map(count).sum::<usize>(), 3 + 6 * 20, "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_of_survivors_has_an_audit_line() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("changes");
    let service = TestService::start_with(|command| {
        command.arg("--audit-file").arg(&audit);
    });
    let mut client = service.client().await;
    let leaves_one = "setsid sleep 600 </dev/null >/dev/null 2>&1 &";
    finish(&mut client, "p", shell(leaves_one)).await;
    let killed = soon(client.kill(kill_at_once("p"))).await.unwrap().into_inner().killed;
    assert_eq!(killed.len(), 1);
    until("the kill has its line", || has_line(&audit, r#"call="Kill" process="p" result="ok""#))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_run_that_cleared_output_has_an_audit_line() {
    let directory = tempfile::tempdir().unwrap();
    let (audit, cwd) = (directory.path().join("changes"), directory.path().join("cwd"));
    std::fs::create_dir(&cwd).unwrap();
    let service = TestService::start_with(|command| {
        command.arg("--audit-file").arg(&audit);
    });
    let mut client = service.client().await;
    let spec = pb::Spec { cwd: cwd.to_str().unwrap().into(), ..shell("echo x") };
    finish(&mut client, "p", spec).await;
    std::fs::remove_dir(&cwd).unwrap();
    soon(client.run(run_by_force("p"))).await.unwrap_err();
    assert_eq!(get(&mut client, "p").await.run, 2);
    until("the run has its line", || has_line(&audit, r#"call="Run" process="p""#)).await;
}
