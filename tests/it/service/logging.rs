//! Logs: each line says which call and which process it is about.

use std::path::Path;

use procyard::grpc::pb;
use serde_json::Value;
use tempfile::NamedTempFile;
use tonic::transport::Endpoint;
use tonic::{Request, Response};

use crate::support::callers::{KnowingService, listens_at};
use crate::support::service::*;
use crate::support::{soon, until};

const HEADER: &str = "x-request-id";

/// A service that logs so much, in JSON, and where.
fn logging(level: &str) -> (TestService, NamedTempFile) {
    let log = NamedTempFile::new().unwrap();
    let service = TestService::start_with(|command| {
        command.args(["--log-format", "json", "--listen", "tcp://127.0.0.1:0"]);
        command.env("RUST_LOG", level);
        command.stderr(log.reopen().unwrap());
    });
    (service, log)
}

/// The lines of a log that are written in full.
fn lines(log: &Path) -> Vec<Value> {
    let said = std::fs::read_to_string(log).unwrap();
    let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// The first line that has these values, when it is there.
async fn line(log: &NamedTempFile, wanted: &[(&str, &str)]) -> Value {
    let mut found = None;
    until(&format!("there is a line with {wanted:?}"), || {
        let has = |line: &Value| wanted.iter().all(|(field, value)| line[*field] == *value);
        found = lines(log.path()).into_iter().find(has);
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// A request that names itself.
fn named<T>(id: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(HEADER, id.parse().unwrap());
    request
}

/// A client over TCP that shows no token.
async fn stranger(log: &NamedTempFile) -> Client {
    let tcp = listens_at(log.path()).await;
    let endpoint = Endpoint::from_shared(format!("http://{tcp}")).unwrap();
    Client::new(soon(endpoint.connect()).await.unwrap())
}

fn id_of<T>(response: &Response<T>) -> String {
    response.metadata().get(HEADER).unwrap().to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_keeps_the_id_that_its_caller_gave_it_and_gets_one_otherwise() {
    let service = TestService::start();
    let mut client = service.client().await;
    let get = |id: &str| named(id, pb::GetServerInfoRequest {});
    for chosen in ["a", "Trace-1.2_3", &"x".repeat(64)] {
        let answer = soon(client.get_server_info(get(chosen))).await.unwrap();
        assert_eq!(id_of(&answer), chosen);
    }
    let mut made = std::collections::HashSet::new();
    for bad in ["", "a b", "a\"b", "a;b", &"x".repeat(65)] {
        let id = id_of(&soon(client.get_server_info(get(bad))).await.unwrap());
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        assert!((1..=64).contains(&id.len()) && id.chars().all(allowed), "{id}");
        assert!(made.insert(id), "one id was given twice");
    }
    // Refusals and streams have one as well.
    let refused = client.get(named("refused", pb::GetRequest { id: "nobody".into() }));
    let refused = soon(refused).await.unwrap_err();
    assert_eq!(refused.metadata().get(HEADER).unwrap(), "refused");
    let watch = client.watch(named("watch", pb::WatchRequest::default()));
    assert_eq!(id_of(&soon(watch).await.unwrap()), "watch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lines_of_a_call_name_it_and_its_process() {
    let (service, log) = logging("info");
    let mut client = service.client().await;
    let started = named("start-1", run("a", shell("echo word")));
    soon(client.start(started)).await.unwrap();
    let told = line(&log, &[("request", "start-1")]).await;
    assert_eq!((&told["call"], &told["process"]), (&"Start".into(), &"a".into()));
    soon(client.kill(named("kill-1", kill("nobody")))).await.unwrap_err();
    let told = line(&log, &[("request", "kill-1")]).await;
    assert_eq!((&told["call"], &told["process"]), (&"Kill".into(), &"nobody".into()));
    // Without one of its own it has the one that its answer tells.
    let delete = pb::DeleteRequest { id: "a".into(), ..Default::default() };
    let made = id_of(&soon(client.delete(delete)).await.unwrap());
    let told = line(&log, &[("call", "Delete")]).await;
    assert_eq!(told["request"], made.as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_names_its_call_to_the_last_line() {
    let (service, log) = logging("info");
    let mut client = service.client().await;
    begin(&mut client, "a", on_terminal(argv(&["sleep", "600"]))).await;
    let start = pb::AttachStart { id: "a".into(), ..Default::default() };
    let message = Some(pb::attach_request::Message::Start(start));
    let messages = tokio_stream::iter([pb::AttachRequest { message }]);
    let mut request = Request::new(messages);
    request.metadata_mut().insert(HEADER, "attach-1".parse().unwrap());
    let mut stream = soon(client.attach(request)).await.unwrap().into_inner();
    soon(stream.message()).await.unwrap().unwrap();
    drop(stream);
    let told = line(&log, &[("call", "Attach"), ("result", "ended")]).await;
    assert_eq!((&told["request"], &told["process"]), (&"attach-1".into(), &"a".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_has_a_line_with_its_call() {
    let (service, log) = logging("info");
    let mut client = service.client().await;
    begin_ready(&mut client, "a", stubborn(600_000)).await;
    let mut watcher = Watcher::since(&mut client, 0).await;
    let mut other = client.clone();
    let killing = tokio::spawn(async move { other.kill(named("left-1", kill("a"))).await });
    watcher.next(pb::Kind::Stopping).await;
    killing.abort();
    let told = line(&log, &[("request", "left-1")]).await;
    assert_eq!(told["result"], "unanswered");
    soon(client.kill(kill_at_once("a"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_of_a_process_by_nobodys_call_names_it_as_well() {
    let (service, log) = logging("debug");
    let mut client = service.client().await;
    finish(&mut client, "a", shell("true")).await;
    for kind in ["Started", "Completed"] {
        let told = line(&log, &[("message", kind), ("process", "a")]).await;
        assert_eq!(told["id"], Value::Null, "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_refused_is_named_however_little_is_logged() {
    let (_service, log) = logging("warn,procyard::cli::serve=info");
    let mut client = stranger(&log).await;
    soon(client.get(named("stranger-1", pb::GetRequest { id: "a".into() }))).await.unwrap_err();
    let told = line(&log, &[("request", "stranger-1")]).await;
    assert_eq!((&told["call"], &told["level"]), (&"Get".into(), &"WARN".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_supervisor_refuses_is_told_with_the_call_that_asked_for_it() {
    let known = KnowingService::start(&[("ci", "operator,owner=ci")]).await;
    begin(&mut known.service.client().await, "theirs", argv(&["sleep", "600"])).await;
    let mut ci = known.caller("ci").await;
    soon(ci.kill(named("kill-2", kill("theirs")))).await.unwrap_err();
    known.audit("theirs", 2).await;
    let log = known.log();
    let of_call = |line: &&str| line.ends_with(" request=kill-2") && line.contains("theirs");
    let lines: Vec<_> = log.lines().filter(of_call).collect();
    let outside = lines.iter().filter(|line| line.contains("outside of the scope"));
    assert_eq!((lines.len(), outside.count()), (2, 1), "{log}");
}
