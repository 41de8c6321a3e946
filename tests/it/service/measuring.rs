//! Metrics: what is scraped is true, is there when a server was replaced, and tells no secret.

mod formats;
mod openmetrics;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use procyard::grpc::pb;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::Endpoint;
use tonic::{Code, Request};

use crate::support::callers::listens_at;
use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{SOON, binary, soon, until};
use openmetrics::Scrape;

const DOCUMENTED: &str = include_str!("../../../docs/metrics.md");

/// Asks for OpenMetrics.
const SCRAPE: &str =
    "GET /metrics HTTP/1.1\r\nhost: a\r\naccept: application/openmetrics-text\r\n\r\n";

/// A service whose metrics are scraped.
struct Measured {
    service: TestService,
    metrics: SocketAddr,
    log: NamedTempFile,
}

impl Measured {
    async fn start() -> Measured {
        let log = NamedTempFile::new().unwrap();
        let service = TestService::start_from_copy_with(|command| {
            command.args(["--listen", "tcp://127.0.0.1:0", "--metrics", "tcp://127.0.0.1:0"]);
            command.env("RUST_LOG", "info").stderr(log.reopen().unwrap());
        });
        let mut metrics = None;
        until("it tells where its metrics are", || {
            let said = std::fs::read_to_string(log.path()).unwrap();
            let place = said.split_once("metrics on http://").map(|(_, place)| place);
            metrics = place.and_then(|place| place.split_once("/metrics")?.0.parse().ok());
            metrics.is_some()
        })
        .await;
        Measured { service, metrics: metrics.unwrap(), log }
    }

    /// The answer to a request: its first line, its headers and its body.
    async fn ask(&self, request: &str) -> (String, String, String) {
        let mut io = soon(TcpStream::connect(self.metrics)).await.unwrap();
        soon(io.write_all(request.as_bytes())).await.unwrap();
        let mut answer = String::new();
        soon(io.read_to_string(&mut answer)).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let (first, headers) = head.split_once("\r\n").unwrap();
        (first.into(), headers.to_lowercase(), body.into())
    }

    async fn scrape(&self) -> Scrape {
        let (first, headers, body) = self.ask(SCRAPE).await;
        assert_eq!(first, "HTTP/1.1 200 OK");
        let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert!(headers.lines().any(|header| header == kind), "{headers}");
        Scrape::parse(&body)
    }

    /// Scrapes until a sample is what it is to become.
    async fn becomes(&self, key: &str, wanted: impl Fn(f64) -> bool) -> Scrape {
        let begin = std::time::Instant::now();
        loop {
            let scrape = self.scrape().await;
            let found = scrape.samples.get(key).copied().unwrap_or(0.0);
            if wanted(found) {
                return scrape;
            }
            assert!(begin.elapsed() < SOON, "{key} stays {found}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_that_others_may_reach_are_warned_of() {
    for (host, warned) in [("0.0.0.0", true), ("127.0.0.1", false)] {
        let log = NamedTempFile::new().unwrap();
        let _service = TestService::start_with(|command| {
            command.arg("--metrics").arg(format!("tcp://{host}:0"));
            command.env("RUST_LOG", "info").stderr(log.reopen().unwrap());
        });
        let said = || std::fs::read_to_string(log.path()).unwrap();
        until("it serves", || said().contains("serving")).await;
        assert_eq!(said().contains("open to whoever reaches"), warned, "{}", said());
    }
}

fn handled(method: &str, code: &str) -> String {
    let form = match method {
        "Follow" | "Watch" => "server_stream",
        _ => "unary",
    };
    let service = "procyard.v1.ProcessService";
    format!(
        "grpc_server_handled_total{{grpc_type=\"{form}\",grpc_service=\"{service}\",\
         grpc_method=\"{method}\",grpc_code=\"{code}\"}}"
    )
}

fn exits(outcome: &str, cause: &str) -> String {
    format!("procyard_exits_total{{outcome=\"{outcome}\",cause=\"{cause}\"}}")
}

const STARTED: &str = "procyard_processes_started_total";
const FINISHED: &str = "procyard_processes_finished";
const RUNNING: &str = "procyard_processes_live{state=\"running\"}";
const CAPTURED: &str = "procyard_output_bytes_total";
const DROPPED: &str = "procyard_output_dropped_bytes_total";
const STARTS: &str = "procyard_server_starts_total";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_and_ends_are_counted_by_what_they_mean() {
    let measured = Measured::start().await;
    let mut client = measured.service.client().await;
    let first = measured.scrape().await;
    assert_eq!((first.get(STARTED), first.get(RUNNING), first.get(FINISHED)), (0.0, 0.0, 0.0));
    finish(&mut client, "", shell("true")).await;
    finish(&mut client, "", shell("exit 3")).await;
    begin(&mut client, "a", argv(&["sleep", "600"])).await;
    let before = measured.scrape().await;
    assert_eq!((before.get(STARTED), before.get(RUNNING), before.get(FINISHED)), (3.0, 1.0, 2.0));
    soon(client.kill(kill("a"))).await.unwrap();
    let after = measured.scrape().await;
    for (ends, count) in [
        (exits("succeeded", "exited"), 1.0),
        (exits("failed", "exited"), 1.0),
        (exits("canceled", "killed"), 1.0),
        (exits("failed", "lost"), 0.0),
    ] {
        assert_eq!(after.get(&ends), count, "{ends}");
    }
    assert_eq!((after.get(RUNNING), after.get(FINISHED)), (0.0, 3.0));
    assert_eq!(after.get("procyard_spawn_seconds_count"), 3.0);
    assert!(after.get("procyard_commit_seconds_count") >= 3.0);
    assert_eq!(after.get("procyard_commit_failures_total"), 0.0);
    soon(client.delete(pb::DeleteRequest { id: "a".into(), ..Default::default() })).await.unwrap();
    let gone = measured.scrape().await;
    assert_eq!((gone.get(FINISHED), gone.get(&exits("canceled", "killed"))), (2.0, 1.0));
    assert_eq!(gone.get("procyard_events_total{kind=\"deleted\"}"), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_counted_to_the_byte_and_stays_so_when_it_is_deleted() {
    let measured = Measured::start().await;
    let mut client = measured.service.client().await;
    finish(&mut client, "a", shell("printf 1234567890")).await;
    let small = measured.scrape().await;
    assert_eq!((small.get(CAPTURED), small.get(DROPPED)), (10.0, 0.0));
    let flood = shell("yes 0123456 | head -c 1000000");
    finish(&mut client, "b", pb::Spec { transcript_bytes: 64 << 10, ..flood }).await;
    let flooded = measured.scrape().await;
    let dropped = get(&mut client, "b").await.transcript.unwrap().dropped_bytes;
    assert!(dropped > 900_000, "{dropped}");
    assert_eq!((flooded.get(CAPTURED), flooded.get(DROPPED)), (1_000_010.0, dropped as f64));
    for id in ["a", "b"] {
        let delete = pb::DeleteRequest { id: id.into(), ..Default::default() };
        soon(client.delete(delete)).await.unwrap();
    }
    let deleted = measured.scrape().await;
    assert_eq!((deleted.get(CAPTURED), deleted.get(DROPPED)), (1_000_010.0, dropped as f64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_restarted_goes_on_with_its_output_and_none_of_it_counts_twice() {
    let measured = Measured::start().await;
    let mut client = measured.service.client().await;
    let fails = restarted(pb::restart::Policy::OnFailure, shell("printf 1234567; exit 1"));
    let restart = pb::Restart { max_restarts: 2, ..fails.restart.unwrap() };
    begin(&mut client, "a", pb::Spec { restart: Some(restart), ..fails }).await;
    assert_eq!(ended(&mut client, "a").await.restarts, 2);
    let scrape = measured.scrape().await;
    assert_eq!((scrape.get(CAPTURED), scrape.get(STARTED)), (21.0, 3.0));
    assert_eq!(scrape.get("procyard_events_total{kind=\"restarting\"}"), 2.0);
    assert_eq!(scrape.get(&exits("failed", "gave_up")), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_and_does_not_read_is_seen_to_fall_behind() {
    let measured = Measured::start().await;
    let mut client = measured.service.client().await;
    let (followers, most) = ("procyard_followers", "procyard_follower_lag_most_chunks");
    let all = "procyard_follower_lag_all_chunks";
    begin(&mut client, "quiet", argv(&["sleep", "600"])).await;
    let quiet = ask_follow(&mut client, follow("quiet")).await;
    let calm = measured.becomes(followers, |found| found == 1.0).await;
    assert_eq!((calm.get(most), calm.get(all)), (0.0, 0.0));
    begin(&mut client, "loud", argv(&["yes", "0123456"])).await;
    let stopped = ask_follow(&mut client, follow("loud")).await;
    let behind = measured.becomes(most, |found| found > 1000.0).await;
    assert_eq!(behind.get(followers), 2.0);
    assert!(behind.get(all) >= behind.get(most));
    let canceled = handled("Follow", "Canceled");
    assert!(!behind.samples.contains_key(&canceled));
    drop(stopped);
    let left = measured.becomes(followers, |found| found == 1.0).await;
    assert_eq!(left.get(most), 0.0);
    measured.becomes(&canceled, |found| found == 1.0).await;
    drop(quiet);
    measured.becomes(&canceled, |found| found == 2.0).await;
    soon(client.kill(kill_at_once("loud"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_come_to_the_end_is_not_behind_though_none_of_it_was_wanted() {
    let measured = Measured::start().await;
    let mut client = measured.service.client().await;
    let (followers, all) = ("procyard_followers", "procyard_follower_lag_all_chunks");
    begin(&mut client, "a", shell("echo out; exec sleep 600")).await;
    let printed = pb::WaitRequest { wait: Some(until_output("out")), ..wait_for_it("a") };
    assert!(soon(client.wait(printed)).await.unwrap().into_inner().wait.unwrap().met);
    for stream in [pb::Stream::Stdout, pb::Stream::Stderr] {
        let streams = vec![stream.into()];
        let heartbeat_interval = Some(millis(600_000));
        let request = pb::FollowRequest { streams, heartbeat_interval, ..follow("a") };
        let following = ask_follow(&mut client, request).await;
        measured.becomes(followers, |found| found == 1.0).await;
        measured.becomes(all, |found| found == 0.0).await;
        drop(following);
        measured.becomes(followers, |found| found == 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_counted_by_how_they_end_and_refusals_are_as_well() {
    let measured = Measured::start().await;
    let mut client = measured.service.client().await;
    finish(&mut client, "a", shell("true")).await;
    soon(client.get(pb::GetRequest { id: "nobody".into() })).await.unwrap_err();
    let (_, process) = follow_to_end(ask_follow(&mut client, follow("a")).await).await;
    assert_eq!(process.id, "a");
    // Nobody that the gate knows.
    let tcp = listens_at(measured.log.path()).await;
    let endpoint = Endpoint::from_shared(format!("http://{tcp}")).unwrap();
    let mut stranger = Client::new(soon(endpoint.connect()).await.unwrap());
    let refused = soon(stranger.list(pb::ListRequest::default())).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let scrape = measured.becomes(&handled("Follow", "OK"), |found| found == 1.0).await;
    for (method, code) in [("Start", "OK"), ("Get", "NotFound"), ("List", "Unauthenticated")] {
        assert_eq!(scrape.get(&handled(method, code)), 1.0, "{method} {code}");
    }
    let start =
        "{grpc_type=\"unary\",grpc_service=\"procyard.v1.ProcessService\",grpc_method=\"Start\"}";
    assert_eq!(scrape.get(&format!("grpc_server_started_total{start}")), 1.0);
    assert_eq!(scrape.get(&format!("grpc_server_handling_seconds_count{start}")), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_label_is_anything_that_a_client_chose() {
    let measured = Measured::start().await;
    let mut client = measured.service.client().await;
    let spec = pb::Spec { owner: "chosen".into(), name: "chosen".into(), ..shell("echo chosen") };
    finish(&mut client, "chosen", spec).await;
    let mut request = Request::new(pb::GetRequest { id: "chosen".into() });
    request.metadata_mut().insert("x-request-id", "chosen".parse().unwrap());
    soon(client.get(request)).await.unwrap();
    for n in 0..20 {
        let mut grpc = tonic::client::Grpc::new(measured.service.channel().await);
        soon(grpc.ready()).await.unwrap();
        let codec = tonic_prost::ProstCodec::<pb::GetRequest, pb::GetResponse>::default();
        let path = format!("/chosen.Service{n}/Chosen{n}").parse().unwrap();
        let request = Request::new(pb::GetRequest { id: "chosen".into() });
        soon(grpc.unary(request, path, codec)).await.unwrap_err();
    }
    let scrape = measured.scrape().await;
    assert!(!scrape.samples.keys().any(|key| key.to_lowercase().contains("chosen")));
    let labels = "{grpc_type=\"unknown\",grpc_service=\"unknown\",grpc_method=\"unknown\"";
    let unknown = format!("grpc_server_handled_total{labels},grpc_code=\"Unimplemented\"}}");
    assert_eq!(scrape.get(&unknown), 20.0);
    assert_eq!(scrape.values("version"), [env!("CARGO_PKG_VERSION").to_owned()].into());
    let services = scrape.values("grpc_service");
    assert_eq!(services.len(), 5, "{services:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrape_waits_for_the_next_server_and_learns_that_it_is_another() {
    let measured = Measured::start().await;
    let mut client = measured.service.client().await;
    begin(&mut client, "a", shell("printf 123; exec sleep 600")).await;
    let wait = pb::WaitRequest { wait: Some(until_output("123")), ..wait_for_it("a") };
    soon(client.wait(wait)).await.unwrap();
    let first = measured.scrape().await;
    assert_eq!((first.get(STARTS), first.get(CAPTURED)), (1.0, 3.0));
    measured.service.kill_server();
    let second = measured.scrape().await;
    assert_eq!((second.get(STARTS), second.get(RUNNING), second.get(STARTED)), (2.0, 1.0, 0.0));
    // What the first has counted is not counted again.
    assert_eq!(second.get(CAPTURED), 0.0);
    let began = "process_start_time_seconds";
    assert_ne!(second.get(began), first.get(began));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_keeps_the_address() {
    let measured = Measured::start().await;
    measured.service.client().await;
    assert_eq!(measured.scrape().await.get(STARTS), 1.0);
    let mut command = Command::new(binary());
    let state = measured.service.directory.path().join("state");
    command.arg("upgrade").arg("--state-dir").arg(state);
    let upgrading = tokio::task::spawn_blocking(move || command.output().unwrap());
    // Answered by either.
    measured.scrape().await;
    let output = soon(upgrading).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(measured.scrape().await.get(STARTS), 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_else_is_there_and_who_is_slow_keeps_nobody_from_scraping() {
    let measured = Measured::start().await;
    for (request, status) in [
        ("GET / HTTP/1.1", "404"),
        ("GET /metrics/ HTTP/1.1", "404"),
        ("GET /debug HTTP/1.0", "404"),
        ("POST /metrics HTTP/1.1", "405"),
        ("HEAD /debug HTTP/1.1", "404"),
    ] {
        let (first, headers, _) = measured.ask(&format!("{request}\r\nhost: a\r\n\r\n")).await;
        assert!(first.contains(status), "{request}: {first}");
        assert!(status != "405" || headers.contains("allow: get, head"), "{headers}");
    }
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut io = soon(TcpStream::connect(measured.metrics)).await.unwrap();
        soon(io.write_all(b"GET /metrics HTTP/1.1\r\n")).await.unwrap();
        slow.push(io);
    }
    // More than there is room for; their time is soon over.
    measured.scrape().await;
    for mut io in slow {
        let mut said = Vec::new();
        let _ = soon(io.read_to_end(&mut said)).await;
        assert!(!String::from_utf8_lossy(&said).contains("200 OK"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_may_be_had_on_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("metrics.sock");
    let service = TestService::start_with(|command| {
        command.env("PROCYARD_METRICS", format!("unix://{}", socket.display()));
    });
    until("there is a socket for metrics", || socket.exists()).await;
    let mut io = soon(UnixStream::connect(&socket)).await.unwrap();
    soon(io.write_all(SCRAPE.as_bytes())).await.unwrap();
    let mut answer = String::new();
    soon(io.read_to_string(&mut answer)).await.unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(Scrape::parse(body).get(STARTS), 1.0);
    drop(service);
    assert!(!socket.exists(), "the socket outlived its service");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_brings_one_answer() {
    let measured = Measured::start().await;
    let twice = SCRAPE.repeat(2);
    let (_, headers, body) = measured.ask(&twice).await;
    assert!(headers.contains("connection: close"), "{headers}");
    Scrape::parse(&body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_is_documented_and_whatever_is_documented_is_there() {
    let measured = Measured::start().await;
    let mut client = measured.service.client().await;
    finish(&mut client, "", shell("true")).await;
    let scrape = measured.scrape().await;
    let mut there: Vec<(String, &str)> = Vec::new();
    for (family, kind) in &scrape.families {
        let suffix = match kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        there.push((format!("{family}{suffix}"), kind));
    }
    let rows = DOCUMENTED.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut documented: Vec<(String, &str)> = rows
        .map(|row| {
            let (name, rest) = row.split_once("` | ").unwrap();
            (name.to_owned(), rest.split_once(" | ").unwrap().0)
        })
        .collect();
    there.sort_unstable();
    documented.sort_unstable();
    assert_eq!(there, documented);
}
