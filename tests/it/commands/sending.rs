//! `procyard send` and `procyard keys`: typing from afar.

use std::fs::File;
use std::time::Duration;

use super::{Running, failed, finished, printed};
use crate::support::service::*;
use crate::support::transcript::wait;
use crate::support::tty::Tty;
use crate::support::{Gate, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_is_typed_once_and_its_answer_is_printed() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["sed", "-u", "s/^/heard /"]))).await;
    let send = |args: &[&str]| service.procyard(&[&["send"], args].concat());
    let answered = printed(send(&["--enter", "--wait-output", "\n", "p", "hello", "world"]));
    assert_eq!(answered, "heard hello world\n");
    // A person sees the same.
    let mut tty = Tty::start(send(&["-e", "--wait-output", "heard", "p", "-x"]));
    tty.expect("heard -x");
    assert_eq!(tty.ended(), 0);
    assert_eq!(printed(send(&["p", "no newline"])), "");
    let json = printed(send(&["--eof", "--wait-output", "newline", "-o", "json", "p"]));
    assert!(json.contains(r#""acceptedBytes":"25""#), "{json}");
    assert_eq!(ended(&mut client, "p").await.exit.unwrap().code, Some(0));
    let (code, said) = failed(send(&["p", "too late"]));
    assert!(code == 1 && said.contains('p'), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_any_size_is_sent() {
    let service = TestService::start();
    let mut client = service.client().await;
    // It does not read at first: more comes than can wait.
    let mut gate = Gate::new(service.directory.path());
    let line = format!("read x <{}; wc -c", gate.path);
    begin(&mut client, "p", with_stdin(shell(&line))).await;
    let path = service.directory.path().join("file");
    std::fs::write(&path, "0123456789".repeat(300_000)).unwrap();
    let mut command = service.procyard(&["send", "--stdin", "--eof", "p"]);
    command.stdin(File::open(&path).unwrap());
    let child = Running::start(command);
    soon(async {
        while get(&mut client, "p").await.stdin.unwrap().pending_bytes < 900_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    gate.open(1);
    let output = child.finished();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    ended(&mut client, "p").await;
    assert_eq!(crate::support::service::printed(&mut client, "p").await.trim(), "3000000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_pressed_by_name() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "stty raw -echo; echo ready; head -c 5 | od -An -tx1";
    begin_ready(&mut client, "p", on_terminal(shell(line))).await;
    let mut tty =
        Tty::start(service.procyard(&["keys", "--wait-output", "0d", "p", "up", "C-c", "enter"]));
    tty.expect("1b 5b 41 03 0d");
    assert_eq!(tty.ended(), 0);
    begin_ready(&mut client, "q", on_terminal(shell("echo ready; exec sleep 600"))).await;
    let (code, said) = failed(service.procyard(&["keys", "q", "no-such-key"]));
    assert!(code == 1 && said.contains("no-such-key"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_waited_for_in_vain_is_told_by_the_code() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["sed", "-u", "s/^/heard /"]))).await;
    let waiting = ["send", "--timeout", "200ms", "--wait-output", "never", "-e", "p", "a"];
    let output = finished(service.procyard(&waiting));
    assert_eq!(output.status.code(), Some(124));
    // What came in time is printed.
    assert!(b"heard a\n".starts_with(&output.stdout), "{output:?}");
    begin(&mut client, "null", argv(&["sleep", "600"])).await;
    let (code, said) = failed(service.procyard(&["send", "null", "a"]));
    assert!(code == 1 && said.contains("null"), "{said}");
    assert!(failed(service.procyard(&["send", "nobody", "a"])).1.contains("procyard ps"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_waited_for_though_the_server_is_killed() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let line = format!("read word; echo heard $word; read x <{}; echo over; read word", gate.path);
    begin(&mut client, "p", with_stdin(shell(&line))).await;
    let child =
        Running::start(service.procyard(&["send", "-e", "--wait-output", "over", "p", "a"]));
    soon(client.wait(wait("p", until_output("heard a")))).await.unwrap();
    service.kill_server();
    gate.open(1);
    let output = child.finished();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), printed.as_ref()), (Some(0), "heard a\nover\n"));
    // It was typed once: the next line is still to come.
    assert_eq!(get(&mut service.client().await, "p").await.stdin.unwrap().accepted_bytes, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_never_reads_is_not_waited_for_for_ever() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["sleep", "600"]))).await;
    let path = service.directory.path().join("file");
    std::fs::write(&path, "0123456789".repeat(300_000)).unwrap();
    let mut command = service.procyard(&["send", "--stdin", "--timeout", "100ms", "p"]);
    command.stdin(File::open(&path).unwrap());
    let (code, said) = failed(command);
    assert!(code == 124 && said.contains("does not read"), "{said}");
}
