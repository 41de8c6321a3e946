//! A walk through background work and services, as coding agents do it, step by step.

use procyard::grpc::pb::{self, Kind, Outcome, State, readiness, sleep_response};
use tonic::Code;

use crate::support::service::*;
use crate::support::{free_port, have, soon};

fn ann() -> pb::Selector {
    pb::Selector { owner: "ann".into(), ..Default::default() }
}

/// `python3 -m http.server` as a service, ready on its port.
fn web(owner: &str, port: u16) -> pb::Spec {
    let port = port.to_string();
    let args = ["python3", "-m", "http.server", "--bind", "127.0.0.1", &port];
    let readiness = pb::Readiness {
        probe: Some(readiness::Probe::TcpPort(port.parse().unwrap())),
        timeout: Some(millis(60_000)),
        ..Default::default()
    };
    pb::Spec { owner: owner.into(), readiness: Some(readiness), ..as_service("web", argv(&args)) }
}

/// A port that nobody has at the moment.
async fn start_ready(client: &mut Client, id: &str, spec: pb::Spec) -> pb::Process {
    let request = pb::StartRequest { wait: Some(until_ready()), ..start(id, spec) };
    let answer = soon(client.start(request)).await.unwrap().into_inner();
    assert!(answer.wait.unwrap().met, "{:?}", answer.process);
    answer.process.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_and_a_build_are_started_watched_and_ended() {
    if !have(&["python3"]) {
        return;
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let begin_of_watch = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    let before = begin_of_watch.into_inner().counts.unwrap().latest_event;

    // A service, ready on its port; a second one is refused and names the first.
    let port = free_port();
    let process = start_ready(&mut client, "web", web("ann", port)).await;
    assert!(process.ready && process.ready_time.is_some());
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let refused = soon(client.start(start("web2", web("ann", port)))).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused)), (Code::AlreadyExists, "SERVICE_RUNNING".into()));
    assert_eq!(details(&refused).error_info().unwrap().metadata["id"], "web");
    start_ready(&mut client, "bobs", web("bob", free_port())).await;

    // A build of 10,000 lines with one error.
    let gate = crate::support::Gate::new(service.directory.path());
    let line = format!(
        "read x <{}; i=1; while [ $i -le 10000 ]; do if [ $i = 7000 ]; then echo 'error: broken'; \
         else echo line $i; fi; i=$((i+1)); done; exit 1",
        gate.path
    );
    let spec = pb::Spec { owner: "ann".into(), description: "the build".into(), ..shell(&line) };
    begin(&mut client, "build", spec).await;
    let request = pb::SleepRequest {
        duration: Some(millis(60_000)),
        tick_interval: Some(millis(5_000)),
        wake_on: Some(ann()),
        ..Default::default()
    };
    let mut sleep = soon(client.sleep(request)).await.unwrap().into_inner();
    let first = soon(sleep.message()).await.unwrap().unwrap().message.unwrap();
    assert!(matches!(first, sleep_response::Message::Tick(_)));
    let mut gate = gate;
    gate.open(1);
    let done = loop {
        match soon(sleep.message()).await.unwrap().unwrap().message.unwrap() {
            sleep_response::Message::Tick(_) => {}
            sleep_response::Message::Done(done) => break done,
        }
    };
    let event = done.event.unwrap();
    assert!(done.interrupted);
    assert_eq!((event.process_id.as_str(), event.kind()), ("build", Kind::Completed));

    // Its error, with what stands around it; the rest is counted.
    let view = pb::View { grep: "^error".into(), context: 1, ..Default::default() };
    let request = pb::ReadRequest { id: "build".into(), view: Some(view), ..Default::default() };
    let found = soon(client.read(request)).await.unwrap().into_inner();
    let shown = text(&found.chunks, pb::Stream::Stdout);
    assert_eq!(shown, "line 6999\nerror: broken\nline 7001\n");
    let total = get(&mut client, "build").await.transcript.unwrap().total_bytes;
    let omitted = found.omitted.unwrap();
    assert_eq!((omitted.lines, omitted.bytes), (9997, total - shown.len() as u64));

    // The completion, once, by a watch that was resumed from before.
    let request = pb::WatchRequest {
        selector: Some(ann()),
        since_event: Some(before),
        kinds: vec![Kind::Completed.into()],
        replay_only: true,
        ..Default::default()
    };
    let mut watcher = Watcher::open(&mut client, request).await;
    let completed = watcher.event().await.unwrap().process.unwrap();
    assert_eq!((completed.id.as_str(), exit(&completed).code), ("build", Some(1)));
    assert_eq!(completed.spec.as_ref().unwrap().description, "the build");
    assert!(exit(&completed).duration.is_some() && exit(&completed).outcome() == Outcome::Failed);
    assert_eq!(watcher.event().await, None);

    // All of the owner but services; then the service; and again under its name.
    let kill_all = |selector| pb::KillRequest {
        target: Some(pb::kill_request::Target::Selector(selector)),
        ..Default::default()
    };
    begin(&mut client, "other", pb::Spec { owner: "ann".into(), ..shell("sleep 600") }).await;
    let killed = soon(client.kill(kill_all(ann()))).await.unwrap().into_inner();
    assert_eq!(ids(&killed.processes), ["other"]);
    assert_eq!(get(&mut client, "web").await.state(), State::Running);
    let services = pb::Selector { service: "web".into(), ..ann() };
    let killed = soon(client.kill(kill_all(services))).await.unwrap().into_inner();
    assert_eq!(ids(&killed.processes), ["web"]);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    start_ready(&mut client, "web-again", web("ann", port)).await;
    assert_eq!(get(&mut client, "bobs").await.state(), State::Running);
}
