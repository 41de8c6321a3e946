//! Logs that nobody reads: it serves on. And logs that machines read.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::support::service::*;

/// Runs some processes, and has the server replaced in between.
async fn serves(service: &TestService) {
    for _ in 0..2 {
        let mut client = service.client().await;
        for _ in 0..20 {
            assert_eq!(output_of(&mut client, shell("echo hi")).await, "hi\n");
        }
        service.kill_server();
    }
    assert_eq!(output_of(&mut service.client().await, shell("echo hi")).await, "hi\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_serves_on_when_its_log_pipe_is_full() {
    let (log, writer) = std::io::pipe().unwrap();
    // As small as a pipe can be, before anything is in it.
    // SAFETY: changes a pipe of our own.
    assert!(unsafe { libc::fcntl(log.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) } > 0);
    let mut service = TestService::start_with(|command| {
        command.env("RUST_LOG", "trace").stderr(writer);
    });
    serves(&service).await;
    service.stop();
    assert!(service.child.wait().unwrap().success());
    drop(log);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_serves_on_when_its_log_pipe_is_closed() {
    let mut service = TestService::start_with(|command| {
        command.env("RUST_LOG", "trace").stderr(Stdio::piped());
    });
    drop(service.child.stderr.take());
    serves(&service).await;
    service.stop();
    assert!(service.child.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_serves_without_stdin_stdout_and_stderr() {
    let close = |descriptors: std::ops::Range<i32>| {
        move |command: &mut Command| {
            // SAFETY: system calls on the descriptors of the child alone.
            unsafe {
                command.pre_exec(move || {
                    for fd in descriptors.clone() {
                        libc::close(fd);
                    }
                    Ok(())
                });
            }
        }
    };
    for descriptors in [0..1, 0..3] {
        let mut service = TestService::start_with(close(descriptors));
        serves(&service).await;
        service.stop();
        assert!(service.child.wait().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_in_json_are_one_object_per_line() {
    let mut service = TestService::start_with(|command| {
        command.args(["--log-format", "json"]).env("RUST_LOG", "info").stderr(Stdio::piped());
    });
    let log = service.child.stderr.take().unwrap();
    serves(&service).await;
    service.stop();
    let lines: Vec<_> = BufReader::new(log).lines().map(Result::unwrap).collect();
    let parsed: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(parsed.iter().all(|line| line.is_object() && line["level"].is_string()), "{lines:?}");
    let said = |words: &str| {
        let has = |line: &&serde_json::Value| {
            line["message"].as_str().is_some_and(|message| message.contains(words))
        };
        parsed.iter().filter(has).count()
    };
    assert_eq!((said("listening on"), said("serving")), (1, 3), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_line_tells_where_it_listens_and_how_to_try_it() {
    let mut service = TestService::start_with(|command| {
        command.env("RUST_LOG", "info").stderr(Stdio::piped());
    });
    let log = service.child.stderr.take().unwrap();
    service.client().await;
    service.stop();
    let mut said = String::new();
    BufReader::new(log).read_to_string(&mut said).unwrap();
    let first = said.lines().next().unwrap();
    let address = format!("unix://{}", service.socket().display());
    assert!(first.contains(&address) && first.contains("grpcurl"), "{said}");
}
