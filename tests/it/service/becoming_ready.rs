//! Readiness: by words, by a port, by a command; and what becomes of those who are not ready.

use procyard::grpc::pb::readiness::Probe;
use procyard::grpc::pb::restart::Policy;
use procyard::grpc::pb::{self, Cause, Kind, Outcome, State};

use crate::support::service::*;
use crate::support::{Gate, alive, free_port, have, soon, until};

fn by(probe: Probe) -> pb::Readiness {
    let timeout = Some(millis(600_000));
    pb::Readiness { probe: Some(probe), timeout, ..Default::default() }
}

fn by_words(regex: &str) -> pb::Readiness {
    by(Probe::OutputRegex(regex.into()))
}

fn by_command(line: &str) -> pb::Readiness {
    let exec = ["/bin/sh", "-c", line].map(str::to_owned).into();
    pb::Readiness { exec, timeout: Some(millis(600_000)), ..Default::default() }
}

fn soon_ready(milliseconds: u32, readiness: pb::Readiness) -> pb::Readiness {
    pb::Readiness { timeout: Some(millis(milliseconds)), ..readiness }
}

fn when_ready(readiness: pb::Readiness, spec: pb::Spec) -> pb::Spec {
    pb::Spec { readiness: Some(readiness), ..spec }
}

async fn start_until_ready(client: &mut Client, id: &str, spec: pb::Spec) -> pb::StartResponse {
    let request = pb::StartRequest { wait: Some(until_ready()), ..start(id, spec) };
    soon(client.start(request)).await.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_probe_is_ready_when_it_runs() {
    let service = TestService::start();
    let mut client = service.client().await;
    let answer = start_until_ready(&mut client, "a", shell("sleep 600")).await;
    assert!(answer.wait.unwrap().met);
    let process = answer.process.unwrap();
    assert!(process.ready);
    assert_eq!(process.ready_time, process.start_time);
    soon(client.kill(kill_at_once("a"))).await.unwrap();
    let process = get(&mut client, "a").await;
    assert!(!process.ready && process.ready_time.is_some());
    assert_eq!(story(&mut client, "a").await, [Kind::Started, Kind::Stopping, Kind::Completed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_are_found_across_chunks_and_streams_are_not_mixed() {
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = Gate::new(service.directory.path());
    let line = format!(
        "printf listen; printf ing >&2; read x <{0}; printf ing; read x <{0}; echo more; sleep 600",
        gate.path
    );
    begin(&mut client, "a", when_ready(by_words("listening"), shell(&line))).await;
    let wait = |until| pb::WaitRequest { wait: Some(until), ..wait_for_it("a") };
    let both = wait(until_output("ing"));
    assert!(soon(client.wait(both)).await.unwrap().into_inner().wait.unwrap().met);
    let process = get(&mut client, "a").await;
    assert_eq!((process.ready, process.ready_time), (false, None));
    let mut gate = gate;
    gate.open(1);
    let answer = soon(client.wait(wait(until_ready()))).await.unwrap().into_inner();
    assert!(answer.wait.unwrap().met);
    assert!(answer.process.unwrap().ready);
    gate.open(1);
    let mut watcher = Watcher::since(&mut client, 0).await;
    assert!(watcher.next(Kind::Ready).await.process.unwrap().ready);
    soon(client.kill(kill_at_once("a"))).await.unwrap();
    let all = [Kind::Started, Kind::Ready, Kind::Stopping, Kind::Completed];
    assert_eq!(story(&mut client, "a").await, all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_counts_only_when_one_of_the_tree_listens_on_it() {
    if !have(&["python3"]) {
        return;
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let port = free_port();
    let stranger = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let gate = Gate::new(service.directory.path());
    // A descendant listens, not the process itself.
    let line = format!(
        "read x <{}; python3 -c 'import socket, time; s = socket.create_server((\"127.0.0.1\", \
         {port})); time.sleep(600)'; true",
        gate.path
    );
    let spec = when_ready(by(Probe::TcpPort(port.into())), shell(&line));
    begin(&mut client, "a", spec).await;
    let wait = |until| pb::WaitRequest { wait: Some(until), ..wait_for_it("a") };
    // Long enough for several looks at the stranger's port.
    let looked = soon(client.wait(wait(within(700, until_ready())))).await.unwrap().into_inner();
    assert!(looked.wait.unwrap().timed_out);
    drop(stranger);
    let mut gate = gate;
    gate.open(1);
    assert!(soon(client.wait(wait(until_ready()))).await.unwrap().into_inner().wait.unwrap().met);
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    soon(client.kill(kill_at_once("a"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_tried_until_it_succeeds_with_the_surroundings_of_the_process() {
    let service = TestService::start();
    let mut client = service.client().await;
    let place = service.directory.path().to_str().unwrap().to_owned();
    let command = "echo x >>tries; test -e \"$FLAG\"";
    let spec = pb::Spec {
        cwd: place.clone(),
        env: Some(pb::Environment {
            set: [("FLAG".into(), "flag".into())].into(),
            ..Default::default()
        }),
        ..when_ready(by_command(command), shell("sleep 600"))
    };
    begin(&mut client, "a", spec).await;
    let tries = std::path::Path::new(&place).join("tries");
    until("it was tried twice", || {
        std::fs::read_to_string(&tries).is_ok_and(|tries| tries.lines().count() >= 2)
    })
    .await;
    assert!(!get(&mut client, "a").await.ready);
    std::fs::write(std::path::Path::new(&place).join("flag"), "").unwrap();
    let wait = pb::WaitRequest { wait: Some(until_ready()), ..wait_for_it("a") };
    assert!(soon(client.wait(wait)).await.unwrap().into_inner().wait.unwrap().met);
    // The command is no process of its own to anyone.
    assert_eq!(list(&mut client).await.len(), 1);
    soon(client.kill(kill_at_once("a"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_ready_in_time_is_ended_and_says_why() {
    let service = TestService::start();
    let mut client = service.client().await;
    let spec = shell("trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done");
    // Time for a shell to set its trap before.
    let readiness = soon_ready(8000, by_words("never said"));
    let answer = start_until_ready(&mut client, "a", when_ready(readiness, spec)).await;
    let wait = answer.wait.unwrap();
    assert!(!wait.met && !wait.timed_out);
    let process = answer.process.unwrap();
    let exit = exit(&process);
    assert_eq!((exit.cause(), exit.outcome()), (Cause::ReadinessFailed, Outcome::Failed));
    assert_eq!(exit.code, Some(5), "it was asked to end, not killed");
    let message = "not ready: exited with code 5: no output matched \"never said\" within 8s";
    assert_eq!(exit.message, message);
    let told = [Kind::Started, Kind::Stopping, Kind::Completed];
    assert_eq!(story(&mut client, "a").await, told);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_a_command_did_not_succeed_is_said() {
    let service = TestService::start();
    let mut client = service.client().await;
    let missing = pb::Readiness { exec: vec!["/nonexistent".into()], ..Default::default() };
    let cases = [
        ("code", by_command("exit 7"), "it exited with code 7"),
        ("signal", by_command("kill -KILL $$"), "it was ended by SIGKILL"),
        ("hangs", by_command("exec sleep 600"), "it has not ended"),
        ("missing", missing, "it could not be started: cannot execute \"/nonexistent\""),
    ];
    for (id, readiness, _) in &cases {
        // Time for a command to be tried before.
        let readiness = soon_ready(8000, readiness.clone());
        begin(&mut client, id, when_ready(readiness, shell("exec sleep 600"))).await;
    }
    for (id, _, said) in cases {
        let process = ended(&mut client, id).await;
        let message = &exit(&process).message;
        assert!(message.contains(said), "{id}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_exits_before_it_is_ready_has_failed_unless_that_is_accepted() {
    let service = TestService::start();
    let mut client = service.client().await;
    let spec = |keep| {
        let readiness = pb::Readiness { keep_on_failure: keep, ..by_words("never") };
        when_ready(readiness, shell("exit 0"))
    };
    let process = finish(&mut client, "a", spec(false)).await.process.unwrap();
    let failed = exit(&process);
    assert_eq!((failed.cause(), failed.outcome()), (Cause::ReadinessFailed, Outcome::Failed));
    assert_eq!(failed.message, "not ready: exited with code 0: before it was ready");
    let process = finish(&mut client, "b", spec(true)).await.process.unwrap();
    let exited = exit(&process);
    assert_eq!((exited.cause(), exited.outcome()), (Cause::Exited, Outcome::Succeeded));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_kept_may_become_ready_later() {
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = Gate::new(service.directory.path());
    let readiness = pb::Readiness { keep_on_failure: true, ..soon_ready(1, by_words("at last")) };
    let line = format!("read x <{}; echo at last; sleep 600", gate.path);
    begin(&mut client, "a", when_ready(readiness, shell(&line))).await;
    let wait = |until| pb::WaitRequest { wait: Some(until), ..wait_for_it("a") };
    let early = soon(client.wait(wait(within(200, until_ready())))).await.unwrap().into_inner();
    assert!(early.wait.unwrap().timed_out);
    assert_eq!(early.process.unwrap().state(), State::Running);
    let mut gate = gate;
    gate.open(1);
    assert!(soon(client.wait(wait(until_ready()))).await.unwrap().into_inner().wait.unwrap().met);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_service_has_to_become_ready_anew_by_its_own_words() {
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = Gate::new(service.directory.path());
    let first = service.directory.path().join("first");
    let line = format!(
        "if mkdir {}; then echo ready; read x <{1}; exit 1; fi; echo again; read x <{1}; echo ready; \
         sleep 600",
        first.display(),
        gate.path
    );
    let spec = when_ready(by_words("ready"), restarted(Policy::OnFailure, shell(&line)));
    assert!(start_until_ready(&mut client, "a", spec).await.wait.unwrap().met);
    let mut gate = gate;
    gate.open(1);
    let wait = |until| pb::WaitRequest { wait: Some(until), ..wait_for_it("a") };
    let again = wait(until_output("again"));
    assert!(soon(client.wait(again)).await.unwrap().into_inner().wait.unwrap().met);
    let process = get(&mut client, "a").await;
    assert!(!process.ready, "what the launch before said does not count");
    gate.open(1);
    assert!(soon(client.wait(wait(until_ready()))).await.unwrap().into_inner().wait.unwrap().met);
    let all = [Kind::Started, Kind::Ready, Kind::Restarting, Kind::Started, Kind::Ready];
    assert_eq!(story(&mut client, "a").await, all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probing_goes_on_with_the_next_server_and_leaves_nobody_behind() {
    let service = TestService::start();
    let mut client = service.client().await;
    let flag = service.directory.path().join("flag");
    let pids = service.directory.path().join("pids");
    let command = format!(
        "test -e {} || {{ echo $$ >>{}; exec sleep 600; }}",
        flag.display(),
        pids.display()
    );
    begin(&mut client, "a", when_ready(by_command(&command), shell("sleep 600"))).await;
    let probes = || -> Vec<u32> {
        let pids = std::fs::read_to_string(&pids).unwrap_or_default();
        pids.lines().map(|pid| pid.parse().unwrap()).collect()
    };
    until("a command is under way", || !probes().is_empty()).await;
    service.kill_server();
    let mut client = service.client().await;
    assert!(!get(&mut client, "a").await.ready);
    let first = probes()[0];
    until("the next server has ended it", || !alive(first)).await;
    std::fs::write(&flag, "").unwrap();
    // The one that was begun meanwhile sleeps on: it is ended with the process.
    soon(client.kill(kill_at_once("a"))).await.unwrap();
    until("no command is left", || probes().iter().all(|pid| !alive(*pid))).await;
    until("nobody is left", || service.inmates().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_before_an_immediate_exit_counts_as_ready() {
    let service = TestService::start();
    let mut client = service.client().await;
    for attempt in 0..20 {
        let id = format!("a{attempt}");
        let spec = when_ready(by_words("now"), shell("echo now; exit 3"));
        let process = finish(&mut client, &id, spec).await.process.unwrap();
        let exit = exit(&process);
        assert_eq!((exit.cause(), exit.code), (Cause::Exited, Some(3)), "{exit:?}");
        assert!(process.ready_time.is_some(), "{process:?}");
        assert_eq!(story(&mut client, &id).await, [Kind::Started, Kind::Ready, Kind::Completed]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_of_descendants_after_the_exit_is_not_searched() {
    let service = TestService::start();
    let mut client = service.client().await;
    let spec = when_ready(by_words("never"), shell("yes & sleep 0.1; exit 3"));
    soon(client.start(start("p", spec))).await.unwrap();
    let process = ended(&mut client, "p").await;
    assert_eq!((exit(&process).cause(), process.ready), (pb::Cause::ReadinessFailed, false));
}
