//! Many calls of one caller at a time, and answers that it does not read.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::{self, FuturesUnordered};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use procyard::grpc::pb;
use procyard::grpc::pb::process_service_client::ProcessServiceClient;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::Service;

use super::{MANY_NUMBERS, unread_answer};
use crate::service::archiving::nothing_in_memory;
use crate::support::callers::KnowingService;
use crate::support::http2;
use crate::support::service::*;
use crate::support::transcript::own_memory;
use crate::support::{soon, until};

const MEBIBYTE: usize = 1 << 20;

/// Which limit a call was refused by.
pub(super) fn limit(status: &Status) -> String {
    assert_eq!(
        (status.code(), reason(status)),
        (Code::ResourceExhausted, "TOO_MANY_CALLS".into()),
        "{status:?}"
    );
    let details = details(status);
    assert!(details.retry_info().is_some());
    let metadata = &details.error_info().unwrap().metadata;
    assert_eq!(metadata["of"], "caller");
    metadata["limit"].clone()
}

/// A connection on which little is sent before it is read.
async fn narrow(service: &TestService) -> Channel {
    let socket = service.socket();
    let endpoint = Endpoint::from_static("http://localhost");
    let endpoint = endpoint.initial_stream_window_size(65_535);
    let endpoint = endpoint.initial_connection_window_size(65_535);
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(socket).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    soon(endpoint.connect_with_connector(connector)).await.unwrap()
}

/// An answer to Read of which only the headers were read.
async fn unread(
    channel: Channel,
    id: &str,
) -> Result<Response<Streaming<pb::ReadResponse>>, Status> {
    let view = pb::View { max_bytes: 3 << 20, ..Default::default() };
    let request = pb::ReadRequest { id: id.into(), view: Some(view), ..Default::default() };
    unread_answer(channel, "Read", request).await
}

/// Bytes of output of an answer that is read now.
async fn read_all(answer: Response<Streaming<pb::ReadResponse>>) -> usize {
    let answer = answer.into_inner().message().await.unwrap().unwrap();
    answer.chunks.iter().map(|chunk| chunk.data.len()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers_hold_no_more_than_the_budget() {
    let service = TestService::start_with(|command| {
        command.args(["--caller-max-bytes", &(8 * MEBIBYTE).to_string()]);
    });
    let mut client = service.client().await;
    finish(&mut client, "p", shell("head -c 4194304 /dev/zero | tr '\\0' a")).await;
    // Each Read would have a part of the file in memory while it waits for room.
    nothing_in_memory(&service).await;
    let server = service.server_pid();
    let before = own_memory(server);
    let channel = narrow(&service).await;
    let answers = soon(join_all((0..40).map(|_| unread(channel.clone(), "p")))).await;
    let (made, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    // Two of 3 MiB fit into the budget.
    assert!(made.len() == 2, "{} answers were made", made.len());
    for status in refused {
        assert_eq!(limit(&status.unwrap_err()), "held_bytes");
    }
    let grown = own_memory(server).saturating_sub(before);
    assert!(grown < 40 * MEBIBYTE as u64, "{grown} bytes for a budget of 8 MiB");
    // Small answers are still made, and large ones when there is room again.
    get(&mut client, "p").await;
    let answers = made.into_iter().map(|answer| read_all(answer.unwrap()));
    let lengths = soon(join_all(answers)).await;
    assert!(lengths.iter().sum::<usize>() <= 8 * MEBIBYTE, "{lengths:?}");
    drop(soon(unread(channel, "p")).await.unwrap());
    assert_eq!(service.server_pid(), server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_structured_outputs_hold_no_more_than_the_budget() {
    let service = TestService::start_with(|command| {
        command.args(["--caller-max-bytes", &(8 * MEBIBYTE).to_string()]);
    });
    let mut client = service.client().await;
    finish(&mut client, "p", shell(MANY_NUMBERS)).await;
    let server = service.server_pid();
    let before = own_memory(server);
    let channel = narrow(&service).await;
    let gets = (0..40).map(|_| {
        let request = pb::GetRequest { id: "p".into() };
        unread_answer::<_, pb::GetResponse>(channel.clone(), "Get", request)
    });
    let answers = soon(join_all(gets)).await;
    let (made, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    // Three of 2.5 MiB fit into the budget.
    assert!(made.len() == 3, "{} answers were made", made.len());
    for status in refused {
        assert_eq!(limit(&status.unwrap_err()), "held_bytes");
    }
    let grown = own_memory(server).saturating_sub(before);
    assert!(grown < 40 * MEBIBYTE as u64, "{grown} bytes for a budget of 8 MiB");
}

/// A call whose request has 3 MiB and lacks the last byte. Returns how it was refused.
async fn half_sent(mut channel: Channel, method: &str) -> Status {
    let length = 3 * MEBIBYTE as u32;
    // One field, which is unknown and has more bytes than come.
    let field = [&b"\x7a\xff\xff\xff\x7f"[..], &vec![0; length as usize - 6]].concat();
    let message = [&[0][..], &length.to_be_bytes(), &field].concat();
    let pieces = Bytes::from(message);
    let data = (0..pieces.len()).step_by(1 << 14).map(move |from| {
        let piece = pieces.slice(from..pieces.len().min(from + (1 << 14)));
        Ok::<_, Status>(Frame::data(piece))
    });
    let body = StreamBody::new(stream::iter(data).chain(stream::pending()));
    let request = http::Request::post(format!("/procyard.v1.ProcessService/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(body))
        .unwrap();
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    let answer = channel.call(request).await.unwrap();
    match Status::from_header_map(answer.headers()) {
        Some(refused) => refused,
        // Attach answers before it has read a message.
        None => {
            let mut body = answer.into_body();
            while let Some(frame) = body.frame().await {
                if let Some(trailers) = frame.unwrap().trailers_ref() {
                    return Status::from_header_map(trailers).unwrap();
                }
            }
            panic!("the answer has no status")
        }
    }
}

/// Sends 20 requests of 3 MiB but for their last bytes, with a budget of 4 MiB.
async fn half_sent_requests_are_refused(method: &'static str) {
    let service = TestService::start_with(|command| {
        command.args(["--caller-max-bytes", &(4 * MEBIBYTE).to_string()]);
    });
    let mut client = service.client().await;
    let server = service.server_pid();
    let before = own_memory(server);
    let channel = service.channel().await;
    let mut calls = JoinSet::new();
    (0..20).for_each(|_| drop(calls.spawn(half_sent(channel.clone(), method))));
    let refused = soon(calls.join_next()).await.unwrap().unwrap();
    assert_eq!(limit(&refused), "held_bytes", "{method}");
    let grown = own_memory(server).saturating_sub(before);
    assert!(grown < 20 * MEBIBYTE as u64, "{method}: {grown} bytes for a budget of 4 MiB");
    soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    assert_eq!(service.server_pid(), server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_sent_requests_hold_no_more_than_the_budget() {
    tokio::join!(half_sent_requests_are_refused("Start"), half_sent_requests_are_refused("Attach"));
}

/// An Attach that has begun: what sends its next message, and its answer.
async fn attach(
    client: &mut Client,
    id: String,
) -> (mpsc::Sender<pb::AttachRequest>, Streaming<pb::AttachResponse>) {
    let (sender, messages) = mpsc::channel(1);
    let start = pb::AttachStart { id, ..Default::default() };
    let start = Some(pb::attach_request::Message::Start(start));
    sender.send(pb::AttachRequest { message: start }).await.unwrap();
    let mut answer = soon(client.attach(ReceiverStream::new(messages))).await.unwrap().into_inner();
    soon(answer.message()).await.unwrap().expect("no Attached came");
    (sender, answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_inputs_of_many_attaches_on_one_connection_arrive() {
    const PROCESSES: usize = 40;
    // They exceed the window of the connection when each fills that of its call, and their inputs the budget.
    const ATTACHES: usize = 160;
    const INPUT: usize = 192 << 10;
    let service = TestService::start_with(|command| {
        command.args(["--caller-max-bytes", &(12 * MEBIBYTE).to_string()]);
    });
    let mut client = service.client().await;
    let script = format!("head -c {} >/dev/null", ATTACHES / PROCESSES * INPUT);
    for n in 0..PROCESSES {
        begin(&mut client, &format!("p{n}"), with_stdin(shell(&script))).await;
    }
    let mut attached = Vec::new();
    for n in 0..ATTACHES {
        attached.push(attach(&mut client, format!("p{}", n % PROCESSES)).await);
    }
    for (sender, _) in &attached {
        let data = Some(pb::attach_request::Message::Data(vec![b'a'; INPUT].into()));
        sender.try_send(pb::AttachRequest { message: data }).unwrap();
    }
    // Each process exits when it has read all input.
    let ended = |message: &pb::AttachResponse| {
        matches!(message.message, Some(pb::attach_response::Message::End(_)))
    };
    soon(async {
        for (_, answer) in &mut attached {
            while !ended(&answer.message().await.unwrap().expect("no End came")) {}
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_of_follow_are_charged_to_the_budget() {
    const STREAMS: usize = 40;
    let service = TestService::start_with(|command| {
        command.args(["--caller-max-bytes", &(8 * MEBIBYTE).to_string()]);
    });
    let mut client = service.client().await;
    let print =
        "yes \"$(head -c 8000 /dev/zero | tr '\\0' a)\" | head -n 500; echo end; exec sleep 600";
    begin(&mut client, "p", shell(print)).await;
    soon(client.wait(pb::WaitRequest { wait: Some(until_output("end")), ..wait_for_it("p") }))
        .await
        .unwrap();
    // A line that matches would be shown with a mebibyte of lines before it, which the view keeps.
    let view = pb::View { grep: "absent".into(), context: 1000, ..Default::default() };
    let request = pb::FollowRequest { id: "p".into(), view: Some(view), ..Default::default() };
    let mut ends = FuturesUnordered::new();
    for _ in 0..STREAMS {
        let mut stream = soon(client.follow(request.clone())).await.unwrap().into_inner();
        ends.push(async move {
            loop {
                if let Err(refused) = stream.message().await {
                    return refused;
                }
            }
        });
    }
    // The budget has room for eight of them, and one may exceed it.
    for _ in 0..STREAMS - 9 {
        let refused = soon(ends.next()).await.unwrap();
        assert_eq!(limit(&refused), "held_bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caller_has_so_many_calls_and_others_are_not_refused() {
    let callers = [("a", "operator,owner=a"), ("b", "operator,owner=b")];
    let known = KnowingService::start_with(&callers, |command| {
        command.args(["--caller-max-calls", "4"]);
    })
    .await;
    let (mut a, mut b) = (known.caller("a").await, known.caller("b").await);
    soon(a.start(start("p", argv(&["sleep", "600"])))).await.unwrap();
    let waits: Vec<_> = (0..4)
        .map(|_| {
            let (mut a, wait) = (a.clone(), Some(until_exit()));
            let request = pb::WaitRequest { wait, ..wait_for_it("p") };
            // The call below may have the last place for a moment.
            tokio::spawn(async move { while a.wait(request.clone()).await.is_err() {} })
        })
        .collect();
    let info = pb::GetServerInfoRequest {};
    let refused = soon(async {
        loop {
            if let Err(refused) = a.get_server_info(info).await {
                return refused;
            }
        }
    });
    assert_eq!(limit(&refused.await), "calls");
    soon(b.get_server_info(info)).await.unwrap();
    // Streams have their own bound, and health is for everyone.
    drop(soon(a.watch(pb::WatchRequest::default())).await.unwrap());
    let mut health = HealthClient::new(known.service.channel().await);
    soon(health.check(HealthCheckRequest::default())).await.unwrap();
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    soon(async { while a.get_server_info(info).await.is_err() {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caller_has_so_many_watches_and_others_are_not_refused() {
    let known = KnowingService::start(&[("a", "viewer"), ("b", "viewer")]).await;
    let (mut a, mut b) = (known.caller("a").await, known.caller("b").await);
    let mut watches = Vec::new();
    for _ in 0..255 {
        watches.push(soon(a.watch(pb::WatchRequest::default())).await.unwrap());
    }
    let wake_on = Some(pb::Selector { name: "none".into(), ..Default::default() });
    let sleep = pb::SleepRequest { duration: Some(millis(3_600_000)), ..Default::default() };
    let waits = pb::SleepRequest { wake_on, ..sleep.clone() };
    let waiting = soon(a.sleep(waits.clone())).await.unwrap();
    let refused = [
        soon(a.watch(pb::WatchRequest::default())).await.unwrap_err(),
        soon(a.sleep(waits.clone())).await.unwrap_err(),
    ];
    for refused in refused {
        assert_eq!(reason(&refused), "TOO_MANY_STREAMS");
        let details = details(&refused);
        assert_eq!(details.error_info().unwrap().metadata["limit"], "watches");
    }
    // A Sleep that no event ends is not counted, nor are those of another caller.
    drop(soon(a.sleep(sleep)).await.unwrap());
    drop(soon(b.watch(pb::WatchRequest::default())).await.unwrap());
    drop(waiting);
    soon(async { while a.watch(pb::WatchRequest::default()).await.is_err() {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_calls_share_a_fixed_number_of_threads() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "p", shell("head -c 1048576 /dev/zero | tr '\\0' a; sleep 0")).await;
    let server = service.server_pid();
    let waits: Vec<_> = (0..100)
        .map(|n| {
            let mut client: ProcessServiceClient<Channel> = client.clone();
            let wait = Some(until_output(&format!("(?:a?){{900}}X{n}")));
            tokio::spawn(async move {
                client.wait(pb::WaitRequest { wait, ..wait_for_it("p") }).await.map(drop)
            })
        })
        .collect();
    let threads = || std::fs::read_dir(format!("/proc/{server}/task")).unwrap().count();
    let busy = || cpu_seconds(server) > 0.5;
    until("the searches are under way", busy).await;
    assert!(threads() < 24, "{} threads", threads());
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}

fn cpu_seconds(pid: i32) -> f64 {
    crate::support::cpu_ticks(pid.cast_unsigned()) as f64 / 100.0
}

/// Follow streams of processes on one connection, of which nothing is read.
async fn unread_follows(service: &TestService, id: &str, count: u32) -> UnixStream {
    let mut io = soon(UnixStream::connect(service.socket())).await.unwrap();
    let request = pb::FollowRequest { id: id.into(), ..Default::default() };
    let path = "/procyard.v1.ProcessService/Follow";
    let calls = (0..count).map(|n| http2::call(2 * n + 1, "localhost", path, &request));
    let sent: Vec<u8> = http2::hello().into_iter().chain(calls.flatten()).collect();
    http2::send(&mut io, &sent).await;
    io
}

/// Bytes that a follower reads until the process is followed to its newest output.
async fn follow_bytes(client: &mut Client, id: &str, bytes: usize) {
    let request = pb::FollowRequest { id: id.into(), ..Default::default() };
    let mut stream = soon(client.follow(request)).await.unwrap().into_inner();
    let mut read = 0;
    while read < bytes {
        let message = soon(stream.message()).await.unwrap().unwrap().message;
        if let Some(pb::follow_response::Message::Chunk(chunk)) = message {
            read += chunk.data.len();
        }
    }
    assert_eq!(read, bytes);
}

/// Waits until a process does nothing any more.
async fn idle(pid: i32) {
    let ticks = || crate::support::cpu_ticks(pid.cast_unsigned());
    let mut before = u64::MAX;
    while before != ticks() {
        before = ticks();
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_follows_hold_little_and_others_are_read() {
    const OUTPUT: usize = 4 * MEBIBYTE;
    const STREAMS: u32 = 400;
    let service = TestService::start_with(|command| {
        command.args(["--caller-max-bytes", &(16 * MEBIBYTE).to_string()]);
    });
    let mut client = service.client().await;
    let print = format!("head -c {OUTPUT} /dev/zero | tr '\\0' a");
    // The transcript of one is in memory, that of the other in a file.
    begin(&mut client, "live", shell(&format!("{print}; exec sleep 600"))).await;
    follow_bytes(&mut client, "live", OUTPUT).await;
    finish(&mut client, "filed", shell(&print)).await;
    let filed = || !is_empty(&service.directory.path().join("state/transcripts"));
    until("the transcript is in a file", filed).await;
    follow_bytes(&mut client, "filed", OUTPUT).await;
    let server = service.server_pid();
    for id in ["live", "filed"] {
        let before = own_memory(server);
        let mut unread = Vec::new();
        for _ in 0..4 {
            unread.push(unread_follows(&service, id, STREAMS / 4).await);
        }
        idle(server).await;
        let grown = own_memory(server).saturating_sub(before);
        // A chunk of 64 KiB and what its stream takes, for each, and the share of all.
        let most = STREAMS as usize * (160 << 10) + 4 * MEBIBYTE;
        assert!(grown < most as u64, "{id}: {grown} bytes for {STREAMS} streams");
        follow_bytes(&mut client, "live", OUTPUT).await;
        follow_bytes(&mut client, "filed", OUTPUT).await;
    }
    assert_eq!(service.server_pid(), server);
}

fn is_empty(directory: &std::path::Path) -> bool {
    std::fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}
