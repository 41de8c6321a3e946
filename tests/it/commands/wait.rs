//! `procyard wait`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use procyard::grpc::pb;

use super::{Running, failed, finished, in_shell, objects, printed};
use crate::support::service::*;
use crate::support::tty::Tty;
use crate::support::{Gate, binary, have, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_exits_as_the_process_did() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "good", shell("true")).await;
    finish(&mut client, "bad", shell("exit 3")).await;
    finish(&mut client, "signaled", shell("kill -USR1 $$")).await;
    let wait = |args: &[&str]| {
        let output = finished(service.procyard(&[&["wait"], args].concat()));
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = wait(&["good"]);
    assert_eq!(code, 0);
    assert!(said.starts_with("good: exited with code 0 after "), "{said}");
    assert_eq!(wait(&["bad"]).0, 3);
    assert_eq!(wait(&["signaled"]).0, 128 + libc::SIGUSR1);
    let (code, said) = wait(&["good", "bad", "signaled"]);
    assert_eq!((code, said.lines().count()), (3, 3), "{said}");
    let (code, said) = wait(&["-o", "json", "bad"]);
    assert_eq!(code, 3);
    assert_eq!(objects(&said)[0]["process"]["exit"]["code"], 3);
    assert_eq!(objects(&said)[0]["wait"]["met"], true);
    let (code, said) = failed(service.procyard(&["wait", "nobody"]));
    assert_eq!(code, 125);
    assert!(said.contains("procyard ps --all"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_things_can_be_waited_for_and_not_for_ever() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "over", shell("echo one")).await;
    begin(&mut client, "lives", shell("echo listening on 80; sleep 600")).await;
    let wait = |args: &[&str]| {
        let output = finished(service.procyard(&[&["wait"], args].concat()));
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(wait(&["--ready", "lives"]), (0, "lives: ready\n".into()));
    let (code, said) = wait(&["--prints", "on [0-9]+", "lives"]);
    assert_eq!((code, said.starts_with("lives: printed on 80 in chunk ")), (0, true), "{said}");
    assert_eq!(wait(&["--quiet", "50ms", "lives"]), (0, "lives: quiet\n".into()));
    assert_eq!(wait(&["--timeout", "10ms", "lives"]), (124, "lives: the time is over\n".into()));
    let (code, said) = wait(&["--prints", "two", "over"]);
    assert_eq!((code, said.starts_with("over: exited with code 0")), (1, true), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_waits_on_when_the_server_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let metrics = directory.path().join("metrics");
    let service = TestService::start_with(|command| {
        command.arg("--metrics").arg(format!("unix://{}", metrics.display()));
    });
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    begin(&mut client, "p", shell(&format!("read x <{}; exit 7", gate.path))).await;
    let mut tty = Tty::start(service.procyard(&["wait", "--timeout", "1h", "p"]));
    let mut other = Running::start(service.procyard(&["wait", "--prints", "x", "p"]));
    until("both wait", || waits(&metrics) >= 2).await;
    service.kill_server();
    until("both wait again", || waits(&metrics) >= 2).await;
    service.kill_server();
    assert_eq!(get(&mut service.client().await, "p").await.state(), pb::State::Running);
    gate.open(1);
    tty.expect("p: exited with code 7 after ");
    assert_eq!(tty.ended(), 7);
    assert_eq!(other.0.wait().unwrap().code(), Some(1));
}

/// How often the server that there is was asked to wait.
fn waits(metrics: &Path) -> usize {
    let mut answer = String::new();
    // A server that is just being replaced has an end without an answer.
    let asked = UnixStream::connect(metrics).and_then(|mut io| {
        io.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")?;
        io.read_to_string(&mut answer)
    });
    let started = |line: &&str| {
        line.starts_with("grpc_server_started_total") && line.contains("grpc_method=\"Wait\"")
    };
    let line = asked.ok().and_then(|_| answer.lines().find(started));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// The lines of an example in a help text, with another port.
fn example(help: &str, from: &str, to: &str, port: u16) -> String {
    let lines = help.lines().map(str::trim).skip_while(|line| !line.starts_with(from));
    let mut example = Vec::new();
    for line in lines {
        example.push(line.replace("8080", &port.to_string()));
        if line.starts_with(to) {
            return example.join(" && ");
        }
    }
    panic!("no such example in {help}");
}

#[test]
fn the_readiness_example_of_the_help_works() {
    if !have(&["python3", "curl"]) {
        return;
    }
    let service = TestService::start();
    let help = printed(service.procyard(&["wait", "--help"]));
    let port = crate::support::free_port();
    let script = example(&help, "procyard run", "procyard wait --prints", port);
    let mut shell = in_shell(&service, &script);
    // The directory that is served is the service's own; a name leads to the program.
    let bin = service.directory.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(binary(), bin.join("procyard")).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}:{path}", bin.display())).env("no_proxy", "localhost");
    shell.current_dir(service.directory.path());
    let said = printed(shell);
    assert!(said.contains(": ready\n") && said.contains("Directory listing"), "{script}: {said}");
    assert!(said.contains(": printed Serving HTTP in chunk "), "{script}: {said}");
}

#[test]
fn readiness_by_output_and_by_a_command_is_waited_for() {
    let service = TestService::start();
    let start = |id: &str, how: &[&str]| {
        let program = ["--", "sh", "-c", "touch up; echo it is up; exec sleep 600"];
        let args = [&["run", "-d", "--id", id, "--ready-timeout", "1m"], how, &program].concat();
        printed(service.procyard(&args));
        printed(service.procyard(&["wait", "--ready", "--timeout", "1m", id]))
    };
    assert_eq!(start("a", &["--ready-prints", "is up"]), "a: ready\n");
    assert_eq!(start("b", &["--ready-exec", "test -e up && true"]), "b: ready\n");
    let (code, said) = failed(service.procyard(&["run", "--ready-prints", "(", "--", "true"]));
    assert_eq!(code, 125);
    assert!(said.starts_with("procyard: --ready-prints: "), "{said}");
}
