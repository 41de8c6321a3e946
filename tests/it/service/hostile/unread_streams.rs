//! Streams whose messages are not read, and answers of gRPC-Web that are not.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use procyard::grpc::pb;
use procyard::grpc::pb::attach_request::Message as AttachMessage;
use procyard::grpc::pb::attach_response::Message as Attached;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::Service;

use super::budgets::limit;
use crate::support::service::*;
use crate::support::soon;
use crate::support::transcript::own_memory;

const MEBIBYTE: usize = 1 << 20;

/// Bytes of a stream that the server may send before the client reads them.
const NARROW_WINDOW: u32 = 60;

/// A window that no answer here fills.
const WIDE_WINDOW: u32 = 1 << 30;

/// A connection of which the client never reads a byte.
struct Unread(UnixStream);

impl AsyncRead for Unread {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Unread {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A channel with such a window for each stream, over what is made of a connection.
async fn channel<I>(service: &TestService, window: u32, io: fn(UnixStream) -> I) -> Channel
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let socket = service.socket();
    let endpoint = Endpoint::from_static("http://localhost");
    let endpoint = endpoint.initial_stream_window_size(window);
    let endpoint = endpoint.initial_connection_window_size(WIDE_WINDOW);
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            let stream = io(UnixStream::connect(socket).await?);
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    soon(endpoint.connect_with_connector(connector)).await.unwrap()
}

/// Sends a message as the request of a call. Returns when the headers of the answer have arrived.
async fn call(
    mut channel: Channel,
    method: &str,
    (content_type, accept): (&'static str, &'static str),
    message: impl Message,
) -> http::Response<Body> {
    let message = message.encode_to_vec();
    let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let data = stream::iter([Ok::<_, Status>(Frame::data(Bytes::from(framed)))]);
    let request = http::Request::post(format!("/procyard.v1.ProcessService/{method}"))
        .header("content-type", content_type)
        .header("accept", accept)
        .header("te", "trailers")
        .body(Body::new(StreamBody::new(data)))
        .unwrap();
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    channel.call(request).await.unwrap()
}

const GRPC: (&str, &str) = ("application/grpc", "application/grpc");

/// A spec whose script has nearly a mebibyte.
fn with_long_script(command: &str) -> pb::Spec {
    let code = format!("{command}\n#{}", "x".repeat(MEBIBYTE - 100));
    let script = pb::Script { code, ..Default::default() };
    pb::Spec { program: Some(pb::spec::Program::Script(script)), ..Default::default() }
}

fn with_budget(bytes: usize) -> TestService {
    TestService::start_with(move |command| {
        command.args(["--caller-max-bytes", &bytes.to_string()]);
    })
}

fn attach(id: &str) -> pb::AttachRequest {
    let start = pb::AttachStart { id: id.into(), ..Default::default() };
    pb::AttachRequest { message: Some(AttachMessage::Start(start)) }
}

/// Opens 100 streams whose message has a record of 1 MiB, with a budget of 4 MiB.
async fn unread_records_are_charged(method: &str, command: &str, message: impl Message + Clone) {
    let service = with_budget(4 * MEBIBYTE);
    let mut client = service.client().await;
    soon(client.start(start("p", with_long_script(command)))).await.unwrap();
    let (server, before) = (service.server_pid(), own_memory(service.server_pid()));
    let narrow = channel(&service, NARROW_WINDOW, |stream| stream).await;
    let calls = (0..100).map(|_| call(narrow.clone(), method, GRPC, message.clone()));
    let answers = soon(join_all(calls)).await;
    // The budget is exhausted when no other call of the caller gets room for the record.
    let refused = soon(async {
        loop {
            if let Err(refused) = client.get(pb::GetRequest { id: "p".into() }).await {
                return refused;
            }
        }
    });
    assert_eq!(limit(&refused.await), "held_bytes", "{method}");
    let grown = own_memory(server).saturating_sub(before);
    assert!(grown < 40 * MEBIBYTE as u64, "{method}: {grown} bytes for a budget of 4 MiB");
    drop((answers, narrow));
    soon(async { while client.get(pb::GetRequest { id: "p".into() }).await.is_err() {} }).await;
    assert_eq!(service.server_pid(), server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_ends_of_follow_hold_no_more_than_the_budget() {
    let request = pb::FollowRequest { id: "p".into(), ..Default::default() };
    unread_records_are_charged("Follow", "exit", request).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_beginnings_of_attach_hold_no_more_than_the_budget() {
    unread_records_are_charged("Attach", "exec sleep 600", attach("p")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attached_clients_that_read_hold_nothing_of_the_budget() {
    let service = with_budget(3 * MEBIBYTE);
    let mut client = service.client().await;
    soon(client.start(start("p", with_long_script("exec sleep 600")))).await.unwrap();
    let mut attached = Vec::new();
    for _ in 0..8 {
        let requests = stream::iter([attach("p")]).chain(stream::pending());
        let mut answers = soon(client.attach(requests)).await.unwrap().into_inner();
        let first = soon(answers.message()).await.unwrap().unwrap();
        assert!(matches!(first.message, Some(Attached::Attached(_))), "{first:?}");
        attached.push(answers);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_watches_hold_few_large_events() {
    let service = TestService::start();
    let mut client = service.client().await;
    let label = |n| (format!("k{n}"), "\u{1F600}".repeat(256));
    let spec = pb::Spec { labels: (0..64).map(label).collect(), ..shell("true") };
    for n in 0..24 {
        finish(&mut client, &format!("p{n}"), spec.clone()).await;
    }
    let (server, before) = (service.server_pid(), own_memory(service.server_pid()));
    let narrow = channel(&service, NARROW_WINDOW, |stream| stream).await;
    let request = pb::WatchRequest { since_event: Some(0), ..Default::default() };
    let calls = (0..100).map(|_| async {
        let mut answer = call(narrow.clone(), "Watch", GRPC, request.clone()).await;
        // The server has taken a batch of events when the first of them arrives.
        answer.body_mut().frame().await.unwrap().unwrap();
        answer
    });
    let answers = soon(join_all(calls)).await;
    let grown = own_memory(server).saturating_sub(before);
    assert!(grown < 60 * MEBIBYTE as u64, "{grown} bytes for 100 events of 70 KB");
    drop(answers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_text_answers_of_grpc_web_are_charged() {
    const CALLS: usize = 4;
    let service = TestService::start_with(|command| {
        command.args(["--caller-max-calls", &CALLS.to_string()]);
    });
    let mut client = service.client().await;
    finish(&mut client, "p", shell("head -c 280000 /dev/zero")).await;
    let service = Arc::new(service);
    // More than a socket buffers, and less than HTTP/2 buffers for a stream.
    let view = pb::View { max_bytes: 270_000, ..Default::default() };
    let read = pb::ReadRequest { id: "p".into(), view: Some(view), ..Default::default() };
    let kind = ("application/grpc-web+proto", "application/grpc-web-text");
    // Each on a connection of its own: the server reads no request of one that takes no answer.
    let begin_call = || {
        let (service, read) = (Arc::clone(&service), read.clone());
        tokio::spawn(async move {
            let unread = channel(&service, WIDE_WINDOW, Unread).await;
            drop(call(unread, "Read", kind, read).await)
        })
    };
    let mut calls: Vec<_> = (0..CALLS).map(|_| begin_call()).collect();
    let info = pb::GetServerInfoRequest {};
    let refused = soon(async {
        loop {
            if let Err(refused) = client.get_server_info(info).await {
                return refused;
            }
            // A call that came during the one just answered may itself have been refused.
            calls.push(begin_call());
        }
    });
    assert_eq!(limit(&refused.await), "calls");
    // HTTP/2 holds the answers from then on, and nothing is read of them.
    for n in 0..100 {
        let refused = soon(client.get_server_info(info)).await;
        let code = refused.map_or_else(|status| status.code(), |_| Code::Ok);
        assert_eq!(code, Code::ResourceExhausted, "call {n} beside {CALLS} unread answers");
    }
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    soon(async { while client.get_server_info(info).await.is_err() {} }).await;
}
