//! Requests that are large, never complete or come in large frames: what they can hold and delay.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use procyard::access::{Call, MAX_FIELDS, MAX_LARGE_REQUEST, MAX_PROGRAM_FIELDS, MAX_REQUEST};
use procyard::grpc::pb;
use tokio::net::{TcpStream, UnixStream};
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::Service;

use crate::support::callers::KnowingService;
use crate::support::http2::{self, frame};
use crate::support::service::*;
use crate::support::soon;

const SERVICE: &str = "procyard.v1.ProcessService";

/// How a call is refused whose message has so many bytes, of which none is sent.
async fn refused_by_prefix(mut channel: Channel, path: &str, length: usize) -> Status {
    let length = u32::try_from(length).unwrap();
    let prefix = Bytes::from([&[0][..], &length.to_be_bytes()].concat());
    let body = stream::iter([Ok::<_, Status>(Frame::data(prefix))]).chain(stream::pending());
    let request = http::Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(StreamBody::new(body)))
        .unwrap();
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    let answer = channel.call(request).await.unwrap();
    if let Some(refused) = Status::from_header_map(answer.headers()) {
        return refused;
    }
    let mut body = answer.into_body();
    while let Some(frame) = body.frame().await {
        if let Some(trailers) = frame.unwrap().trailers_ref() {
            return Status::from_header_map(trailers).unwrap();
        }
    }
    panic!("the answer has no status")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_long_request_is_refused_by_its_prefix() {
    let service = TestService::start();
    let channel = service.channel().await;
    for call in Call::ALL {
        let large = ["Start", "WriteStdin", "Attach"].contains(&call.name);
        let limit = if large { MAX_LARGE_REQUEST } else { MAX_REQUEST };
        let path = format!("/{SERVICE}/{}", call.name);
        let refused = soon(refused_by_prefix(channel.clone(), &path, limit + 1)).await;
        assert_eq!(refused.code(), Code::InvalidArgument, "{}: {refused:?}", call.name);
        assert_eq!(reason(&refused), "INVALID_FIELD");
        assert_eq!(bad_fields(&refused), ["request"]);
        assert!(refused.message().ends_with(&format!("the limit is: {limit} bytes")), "{refused}");
    }
    // Reflection ends its answer without a word.
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    soon(refused_by_prefix(channel, path, MAX_REQUEST + 1)).await;
}

fn labels(count: usize) -> pb::Selector {
    let labels = (0..count).map(|n| (n.to_string(), String::new())).collect();
    pb::Selector { labels, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selector_beyond_the_limits_of_a_spec_is_refused() {
    let service = TestService::start();
    let mut client = service.client().await;
    let text = || "\u{10ffff}".repeat(256);
    let largest = pb::Selector {
        states: vec![3; 16],
        outcomes: vec![1; 16],
        r#ref: text(),
        name: text(),
        service: text(),
        owner: text(),
        workspace: text(),
        labels: (100..164).map(|n| (format!("{n}{}", "k".repeat(60)), text())).collect(),
        mode: pb::Mode::Service.into(),
        queue: text(),
    };
    let long = pb::Selector { name: "x".repeat(257), states: vec![3; 17], ..Default::default() };
    for (selector, expected) in [
        (largest, &[][..]),
        (labels(65), &["labels"]),
        (labels(1000), &["labels"]),
        (long, &["states", "name"]),
    ] {
        let target = Some(pb::kill_request::Target::Selector(selector.clone()));
        let kill = pb::KillRequest { target, ..Default::default() };
        let hour = Some(prost_types::Duration { seconds: 3600, nanos: 0 });
        let sleep = pb::SleepRequest {
            duration: hour,
            wake_on: Some(selector.clone()),
            ..Default::default()
        };
        let selector = Some(selector);
        let list = pb::ListRequest { selector: selector.clone(), ..Default::default() };
        let watch = pb::WatchRequest { selector, ..Default::default() };
        for (field, answer) in [
            ("selector", soon(client.list(list)).await.map(drop)),
            ("selector", soon(client.kill(kill)).await.map(drop)),
            ("selector", soon(client.watch(watch)).await.map(drop)),
            ("wake_on", soon(client.sleep(sleep)).await.map(drop)),
        ] {
            let bad = answer.err().map_or(Vec::new(), |status| bad_fields(&status));
            let expected: Vec<_> = expected.iter().map(|name| format!("{field}.{name}")).collect();
            assert_eq!(bad, expected);
        }
    }
    let list = pb::ListRequest { selector: Some(labels(380_000)), ..Default::default() };
    let refused = soon(client.list(list)).await.unwrap_err();
    assert_eq!(bad_fields(&refused), ["request"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_counts_before_its_request_is_complete() {
    let service = TestService::start_with(|command| {
        command.args(["--caller-max-streams", "3"]);
    });
    let mut client = service.client().await;
    let mut io = UnixStream::connect(service.socket()).await.unwrap();
    let streams = [(1, "Follow"), (3, "Watch"), (5, "Sleep")];
    http2::send(&mut io, &http2::hello()).await;
    for (stream, method) in streams {
        let path = format!("/{SERVICE}/{method}");
        http2::send(&mut io, &http2::call_headers(stream, "localhost", &path)).await;
    }
    let refused = soon(async {
        loop {
            if let Err(refused) = client.watch(pb::WatchRequest::default()).await {
                return refused;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(reason(&refused), "TOO_MANY_STREAMS");
    let metadata = details(&refused).error_info().unwrap().metadata.clone();
    let expected = [("limit", "streams"), ("most", "3"), ("used", "3"), ("of", "caller")];
    assert_eq!(metadata, expected.map(|(key, value)| (key.into(), value.into())).into());
    // What is cancelled makes room, and all of it.
    for (stream, _) in streams {
        let cancel = frame(http2::RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        http2::send(&mut io, &cancel).await;
    }
    let mut open = Vec::new();
    soon(async {
        while open.len() < 3 {
            open.extend(client.watch(pb::WatchRequest::default()).await);
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_frame_ends_a_connection_without_a_caller() {
    const FRAME_SIZE_ERROR: [u8; 4] = 6_u32.to_be_bytes();
    let known = KnowingService::start(&[("a", "viewer")]).await;
    let mut io = TcpStream::connect(known.tcp).await.unwrap();
    // The header of a frame of 1 MiB, and no more of it.
    let header = [&[0x10, 0, 0, http2::DATA, 0][..], &1_u32.to_be_bytes()].concat();
    http2::send(&mut io, &[http2::hello(), header].concat()).await;
    let mut goaway = None;
    while let Some(frame) = http2::next_frame(&mut io).await {
        goaway = Some(frame).filter(|frame| frame.kind == http2::GOAWAY).or(goaway);
    }
    assert_eq!(goaway.expect("no GOAWAY came").payload[4..8], FRAME_SIZE_ERROR);
}

/// A Start whose spec is made of very many small fields.
fn starts_of_many_fields() -> [pb::StartRequest; 3] {
    let count = 300_000;
    let pairs = || (0..count).map(|n| (format!("v{n}"), String::new())).collect();
    let mut args = vec![String::new(); 1_500_000];
    args[0] = "true".into();
    let argv = pb::Argv { args, ..Default::default() };
    let many_args = pb::Spec { program: Some(pb::spec::Program::Argv(argv)), ..Default::default() };
    let env = Some(pb::Environment { set: pairs(), ..Default::default() });
    let many_variables = pb::Spec { env, ..shell("true") };
    let many_labels = pb::Spec { labels: pairs(), ..shell("true") };
    [many_args, many_variables, many_labels].map(|spec| start("p", spec))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_of_too_many_fields_is_refused() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut refused = Vec::new();
    for request in starts_of_many_fields() {
        refused.push((soon(client.start(request)).await.unwrap_err(), MAX_PROGRAM_FIELDS));
    }
    let watch = pb::WatchRequest { selector: Some(labels(MAX_FIELDS)), ..Default::default() };
    refused.push((soon(client.watch(watch)).await.unwrap_err(), MAX_FIELDS));
    for (refused, limit) in refused {
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert_eq!(
            (reason(&refused), bad_fields(&refused)),
            ("INVALID_FIELD".into(), vec!["request".into()])
        );
        assert!(refused.message().contains(&format!("more than {limit} fields")), "{refused}");
    }
    assert_eq!(list(&mut client).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_thousand_arguments_are_delivered() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut args = vec!["sh", "-c", "echo $#; echo ${60000}", "sh"];
    args.resize(args.len() + 59_999, "a");
    args.push("last");
    assert_eq!(output_of(&mut client, argv(&args)).await, "60000\nlast\n");
}
