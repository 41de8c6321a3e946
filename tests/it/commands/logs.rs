//! `procyard logs`.

use std::io::Read;

use procyard::grpc::pb;

use super::{Running, failed, finished, objects, printed};
use crate::support::Gate;
use crate::support::service::*;
use crate::support::tty::Tty;

/// Reads stdout of a command until it has shown this.
fn read_until(child: &mut Running, seen: &mut String, text: &str) {
    let stdout = child.0.stdout.as_mut().unwrap();
    let mut buffer = [0; 4096];
    while !seen.contains(text) {
        let read = stdout.read(&mut buffer).unwrap();
        assert!(read > 0, "it ended after {seen:?}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
}

/// All the rest, when it has ended well.
fn rest(mut child: Running, mut seen: String) -> (String, String) {
    child.0.stdout.take().unwrap().read_to_string(&mut seen).unwrap();
    let mut errors = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(child.0.wait().unwrap().success(), "{errors}");
    (seen, errors)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_stream_goes_where_it_came_from_byte_by_byte() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = r"printf 'a\0\033[31m\377b'; printf 'e\n\001' >&2";
    finish(&mut client, "p", shell(line)).await;
    let output = finished(service.procyard(&["logs", "p"]));
    assert!(output.status.success());
    assert_eq!(output.stdout, b"a\0\x1b[31m\xffb");
    assert_eq!(output.stderr, b"e\n\x01");
    let output = finished(service.procyard(&["logs", "--stderr", "p"]));
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b""[..], &b"e\n\x01"[..]));
    let output = finished(service.procyard(&["logs", "--follow", "--stdout", "--strip-ansi", "p"]));
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"a\xffb"[..], &b""[..]));
    let mut tty = Tty::start(service.procyard(&["logs", "p"]));
    tty.expect("\x1b[31m");
    assert_eq!(tty.ended(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_an_answer_of_it_comes_whole() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "p", shell("seq 400000")).await;
    let all: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
    assert!(all.len() > 2 << 20);
    let output = printed(service.procyard(&["logs", "p"]));
    assert!(output == all, "{} bytes came", output.len());
    let nines: String = all
        .lines()
        .filter(|line| line.contains('9'))
        .fold(String::new(), |nines, line| nines + line + "\n");
    assert!(nines.len() > 1 << 20);
    assert!(printed(service.procyard(&["logs", "--grep", "9", "p"])) == nines);
    assert!(printed(service.procyard(&["logs", "--grep", "9", "--follow", "p"])) == nines);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_are_chosen() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "p", shell("seq 20; echo ERROR; echo after")).await;
    for follow in [false, true] {
        let logs = |args: &[&str]| {
            let follow: &[_] = if follow { &["-f"] } else { &[] };
            printed(service.procyard(&[&["logs", "p"], follow, args].concat()))
        };
        assert_eq!(logs(&["--tail", "2"]), "ERROR\nafter\n");
        assert_eq!(logs(&["--tail", "0"]), "");
        assert_eq!(logs(&["--grep", "error", "-i"]), "ERROR\n");
        assert_eq!(logs(&["--grep", "ERR", "-C", "1"]), "20\nERROR\nafter\n");
        assert_eq!(logs(&["--grep", "1", "--tail", "2"]), "18\n19\n");
        assert_eq!(logs(&["--since-seq", "1", "--tail", "1"]), "after\n");
    }
    assert_eq!(printed(service.procyard(&["logs", "p", "--head", "2"])), "1\n2\n");
    assert_eq!(
        printed(service.procyard(&["logs", "p", "--head", "1", "--tail", "1"])),
        "1\nafter\n"
    );
    let dated = printed(service.procyard(&["logs", "p", "--head", "1", "--timestamps"]));
    let (time, line) = dated.split_once(' ').unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z') && line == "1\n", "{dated}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_get_a_chunk_per_line() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "p", shell("echo hi")).await;
    for args in [&["-o", "json"][..], &["-o", "json", "-f"], &["-o", "json", "-f", "--grep", "h"]] {
        let chunks = objects(&printed(service.procyard(&[&["logs", "p"], args].concat())));
        assert_eq!(chunks.len(), 1);
        assert_eq!(chunks[0]["seq"], "1");
        assert_eq!(chunks[0]["stream"], "STREAM_STDOUT");
        assert_eq!(chunks[0]["data"], "aGkK");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_will_do_and_a_missing_process_is_told() {
    let service = TestService::start();
    let mut client = service.client().await;
    let name = "the build".to_owned();
    finish(&mut client, "p", pb::Spec { name, ..shell("echo hi") }).await;
    assert_eq!(printed(service.procyard(&["logs", "the build"])), "hi\n");
    let (code, said) = failed(service.procyard(&["logs", "nobody"]));
    assert_eq!(code, 1);
    assert!(said.contains("nobody") && said.contains("procyard ps --all"), "{said}");
    let (code, said) = failed(service.procyard(&["logs", "p", "-f", "--grep", "("]));
    assert_eq!(code, 1);
    assert!(said.contains("grep"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_kept_any_more_is_told() {
    let service = TestService::start();
    let mut client = service.client().await;
    let spec = pb::Spec { transcript_bytes: 64 << 10, ..shell("seq 100000") };
    finish(&mut client, "p", spec).await;
    for args in [&["logs", "p"][..], &["logs", "p", "-f"], &["logs", "p", "--since-seq", "1"]] {
        let output = finished(service.procyard(args));
        assert!(output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("not kept any more"), "{said}");
        assert!(output.stdout.ends_with(b"\n99999\n100000\n"));
    }
}

/// Follows one that prints when it is told, while the server is killed again and again.
async fn through_kills(args: &[&str], expected: &str) {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    // Half a line is under way at each kill.
    let line = format!(
        "for i in 1 2 3 4; do echo a$i; echo e$i >&2; printf half; read x <{0}; echo b$i; done",
        gate.path
    );
    begin(&mut client, "p", shell(&line)).await;
    let mut child = Running::start(service.procyard(&[&["logs", "p", "--follow"], args].concat()));
    let mut seen = String::new();
    for round in 1..=4 {
        read_until(&mut child, &mut seen, &format!("a{round}\n"));
        service.kill_server();
        gate.open(1);
    }
    let (seen, errors) = rest(child, seen);
    assert_eq!(seen, expected);
    let stderr = if args.contains(&"--stdout") { "" } else { "e1\ne2\ne3\ne4\n" };
    assert_eq!(errors, stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_follows_on_when_the_server_is_killed_and_loses_and_doubles_nothing() {
    let all = "a1\nhalfb1\na2\nhalfb2\na3\nhalfb3\na4\nhalfb4\n";
    through_kills(&[], all).await;
    through_kills(&["--strip-ansi", "--tail", "100"], all).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_it_does_when_lines_are_chosen() {
    let matching = "a1\nhalfb1\na2\na3\nhalfb3\na4\n";
    through_kills(&["--stdout", "--grep", "^a|b[13]"], matching).await;
    through_kills(
        &["--stdout", "--grep", "^a", "-C", "1"],
        "a1\nhalfb1\na2\nhalfb2\na3\nhalfb3\na4\nhalfb4\n",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_printed_comes_at_once_and_ctrl_c_ends_it() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    begin(
        &mut client,
        "p",
        shell(&format!("echo one; read x <{}; echo two; sleep 600", gate.path)),
    )
    .await;
    let mut tty = Tty::start(service.procyard(&["logs", "-f", "p"]));
    tty.expect("one\r\n");
    gate.open(1);
    tty.expect("two\r\n");
    tty.type_in("\x03");
    assert_eq!(tty.ended(), 130);
    // It looked on, nothing else.
    assert_eq!(get(&mut client, "p").await.state(), pb::State::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_is_not_left_on_a_screen_that_was_another_s() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "p", shell("printf '\\033[?1049;25l\\033[?1049hdrawn'")).await;
    let mut tty = Tty::start(service.procyard(&["logs", "p"]));
    tty.expect("drawn");
    assert_eq!(tty.ended(), 0);
    assert!(tty.all().ends_with("drawn\x1b[?25h\x1b[?1049l"), "{:?}", tty.all());
}
