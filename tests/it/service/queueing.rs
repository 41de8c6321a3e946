//! Queues: who waits for whom, and what becomes of those who wait.

use procyard::grpc::pb::{self, Cause, Kind, Outcome, State};
use tonic::Code;

use crate::support::service::*;
use crate::support::{Gate, soon};

/// A service of which so many of the queue `two` may run, and so many in all.
fn service(two: usize, all: Option<usize>) -> TestService {
    TestService::start_with(|command| {
        command.arg("--queue").arg(format!("two={two}"));
        command.args(all.iter().flat_map(|all| ["--max-running".to_owned(), all.to_string()]));
    })
}

async fn state(client: &mut Client, id: &str) -> (State, u32) {
    let process = get(client, id).await;
    (process.state(), process.queue_position)
}

/// Waits until its turn has come.
async fn running(client: &mut Client, id: &str) {
    let request = pb::WaitRequest { wait: Some(until_ready()), ..wait_for_it(id) };
    assert!(soon(client.wait(request)).await.unwrap().into_inner().wait.unwrap().met);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_in_a_queue_run_one_at_a_time_in_the_order_of_their_coming() {
    let service = TestService::start();
    let mut client = service.client().await;
    let file = service.directory.path().join("order");
    let gate = Gate::new(service.directory.path());
    let first = in_queue("q", shell(&format!("read x <{}", gate.path)));
    assert_eq!(begin(&mut client, "first", first).await.state(), State::Running);
    let ids: Vec<String> = (1..=9).map(|n| format!("p{n}")).collect();
    for (n, id) in (1..).zip(&ids) {
        let spec = in_queue("q", shell(&format!("echo {id} >>{}", file.display())));
        let process = begin(&mut client, id, spec).await;
        assert_eq!((process.state(), process.queue_position), (State::Queued, n));
        assert_eq!((process.pid, process.start_time), (0, None));
    }
    assert_eq!(begin(&mut client, "other", in_queue("r", shell("true"))).await.queue_position, 0);
    let mut gate = gate;
    gate.open(1);
    for id in &ids {
        assert_eq!(exit(&ended(&mut client, id).await).outcome(), Outcome::Succeeded);
    }
    let lines: Vec<String> =
        std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(lines, ids);
    let told = events(&mut client).await;
    let of = |id: &str| {
        let told = told.iter().filter(|event| event.process_id == id);
        told.map(pb::Event::kind).collect::<Vec<_>>()
    };
    assert_eq!(of("p5"), [Kind::Queued, Kind::Started, Kind::Completed]);
    assert_eq!(of("first"), [Kind::Started, Kind::Completed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_has_the_room_that_was_configured_and_all_have_a_bound() {
    let service = service(2, Some(3));
    let mut client = service.client().await;
    for id in ["a", "b"] {
        let process = begin(&mut client, id, in_queue("two", shell("sleep 600"))).await;
        assert_eq!(process.state(), State::Running);
    }
    begin(&mut client, "c", in_queue("two", shell("sleep 600"))).await;
    assert_eq!(state(&mut client, "c").await, (State::Queued, 1));
    assert_eq!(begin(&mut client, "d", shell("sleep 600")).await.state(), State::Running);
    // Three run: what has a queue waits, what has none is refused, and nothing of it is left.
    begin(&mut client, "e", in_queue("other", shell("sleep 600"))).await;
    assert_eq!(state(&mut client, "e").await, (State::Queued, 1));
    let refused = soon(client.start(start("f", shell("true")))).await.unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused)),
        (Code::ResourceExhausted, "TOO_MANY_PROCESSES".into())
    );
    assert!(details(&refused).retry_info().is_some());
    assert_eq!(list(&mut client).await.len(), 5);
    let info =
        soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap().into_inner();
    assert_eq!(info.capabilities.unwrap().max_running, 3);
    let counts = info.counts.unwrap();
    assert_eq!((counts.live, counts.queued), (5, 2));
    // The one that has no queue makes room for the one of another queue.
    soon(client.kill(kill_at_once("d"))).await.unwrap();
    running(&mut client, "e").await;
    assert_eq!(state(&mut client, "c").await, (State::Queued, 1));
    soon(client.kill(kill_at_once("a"))).await.unwrap();
    running(&mut client, "c").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_killed_while_it_waits_ends_at_once_and_the_others_move_up() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "runs", in_queue("q", shell("sleep 600"))).await;
    for id in ["a", "b", "c"] {
        begin(&mut client, id, in_queue("q", shell("echo never"))).await;
    }
    let killed = soon(client.kill(kill("b"))).await.unwrap().into_inner();
    let process = &killed.processes[0];
    assert_eq!(exit(process).outcome(), Outcome::Canceled);
    assert_eq!(exit(process).cause(), Cause::CanceledInQueue);
    assert_eq!(
        (exit(process).code, exit(process).signal, exit(process).duration),
        (None, None, None)
    );
    assert_eq!((process.queue_position, killed.killed.len()), (0, 0));
    assert_eq!(state(&mut client, "a").await, (State::Queued, 1));
    assert_eq!(state(&mut client, "c").await, (State::Queued, 2));
    let selector = pb::Selector {
        queue: "q".into(),
        states: vec![State::Queued.into()],
        ..Default::default()
    };
    let request = pb::ListRequest { selector: Some(selector), ..Default::default() };
    let page = soon(client.list(request)).await.unwrap().into_inner();
    assert_eq!(ids(&page.processes), ["c", "a"]);
    let delete = pb::DeleteRequest { id: "a".into(), ..Default::default() };
    let answer = soon(client.delete(delete.clone())).await;
    assert_eq!(refusal(answer), (Code::FailedPrecondition, "STILL_RUNNING".into()));
    soon(client.delete(pb::DeleteRequest { force: true, ..delete })).await.unwrap();
    assert_eq!(state(&mut client, "c").await, (State::Queued, 1));
    soon(client.kill(kill_at_once("runs"))).await.unwrap();
    assert_eq!(exit(&ended(&mut client, "c").await).outcome(), Outcome::Succeeded);
    assert_eq!(printed(&mut client, "b").await, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_waits_cannot_be_typed_into_but_can_be_waited_for() {
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = Gate::new(service.directory.path());
    begin(&mut client, "runs", in_queue("q", shell(&format!("read x <{}", gate.path)))).await;
    begin(&mut client, "a", in_queue("q", with_stdin(shell("echo hi")))).await;
    let write = pb::WriteStdinRequest { id: "a".into(), enter: true, ..Default::default() };
    let answer = soon(client.write_stdin(write)).await;
    assert_eq!(refusal(answer), (Code::FailedPrecondition, "NOT_RUNNING".into()));
    let signal = pb::SignalRequest { id: "a".into(), signal: "TERM".into(), group: false };
    let answer = soon(client.signal(signal)).await;
    assert_eq!(refusal(answer), (Code::FailedPrecondition, "NOT_RUNNING".into()));
    // A start that waits for the end waits in the queue as well.
    let mut other = client.clone();
    let waiting =
        tokio::spawn(
            async move { finish(&mut other, "b", in_queue("q", shell("echo done"))).await },
        );
    let mut watcher = Watcher::since(&mut client, 0).await;
    while watcher.next(Kind::Queued).await.process_id != "b" {}
    let mut gate = gate;
    gate.open(1);
    assert_eq!(text(&waiting.await.unwrap().chunks, pb::Stream::Stdout), "done\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_cannot_be_executed_ends_the_record_of_one_in_a_queue() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "runs", in_queue("q", shell("sleep 600"))).await;
    begin(&mut client, "waits", in_queue("q", argv(&["/nonexistent/program"]))).await;
    begin(&mut client, "next", in_queue("q", shell("true"))).await;
    soon(client.kill(kill_at_once("runs"))).await.unwrap();
    for process in [
        ended(&mut client, "waits").await,
        // The same whether it had to wait or not.
        begin(&mut client, "at-once", in_queue("r", argv(&["/nonexistent/program"]))).await,
    ] {
        assert_eq!(exit(&process).cause(), Cause::StartFailed);
        assert_eq!((exit(&process).outcome(), process.pid), (Outcome::Failed, 0));
        let message = &exit(&process).message;
        assert!(
            message.contains("/nonexistent/program") && message.contains("No such file"),
            "{message}"
        );
    }
    assert_eq!(exit(&ended(&mut client, "next").await).outcome(), Outcome::Succeeded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_retried_finds_the_one_that_waits() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "runs", in_queue("q", shell("sleep 600"))).await;
    let spec = in_queue("q", shell("true"));
    begin(&mut client, "a", spec.clone()).await;
    let again = soon(client.start(start("a", spec))).await.unwrap().into_inner();
    assert!(again.existed);
    assert_eq!(again.process.unwrap().queue_position, 1);
    assert_eq!(list(&mut client).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_survives_the_server() {
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = Gate::new(service.directory.path());
    begin(&mut client, "runs", in_queue("q", shell(&format!("read x <{}", gate.path)))).await;
    for id in ["a", "b", "c"] {
        begin(&mut client, id, in_queue("q", shell(&format!("echo {id}")))).await;
    }
    service.kill_server();
    let mut client = service.client().await;
    for (n, id) in (1..).zip(["a", "b", "c"]) {
        assert_eq!(state(&mut client, id).await, (State::Queued, n));
    }
    let mut gate = gate;
    gate.open(1);
    for id in ["a", "b", "c"] {
        ended(&mut client, id).await;
    }
    let told = events(&mut client).await;
    let completed = told.iter().filter(|event| event.kind() == Kind::Completed);
    let order: Vec<&str> = completed.map(|event| event.process_id.as_str()).collect();
    assert_eq!(order, ["runs", "a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_ends_those_who_wait_without_starting_them() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "runs", in_queue("q", shell("sleep 600"))).await;
    let trace = service.directory.path().join("trace");
    begin(&mut client, "a", in_queue("q", shell(&format!("touch {}", trace.display())))).await;
    service.restart();
    let mut client = service.client().await;
    let process = get(&mut client, "a").await;
    assert_eq!(exit(&process).cause(), Cause::Shutdown);
    assert!(!trace.exists());
}
