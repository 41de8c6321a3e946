//! Floods of calls that are refused: they end no server, and no connection lasts for them.

use std::net::SocketAddr;

use procyard::grpc::pb;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tonic_health::pb::HealthCheckRequest;

use crate::support::callers::{KnowingService, listens_at};
use crate::support::http2::{self, frame};
use crate::support::soon;

const LIST: &str = "/procyard.v1.ProcessService/List";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const KILL: &str = "/procyard.v1.ProcessService/Kill";

/// Connections of the flood, and calls on each: as many as a connection may have under way.
const CONNECTIONS: usize = 40;
const CALLS: u32 = 1024;

/// So many calls, on streams from the third on.
fn calls(token: Option<&str>, path: &str, count: u32) -> Vec<u8> {
    let request = pb::KillRequest::default();
    (1..=count).flat_map(|n| http2::call_with_token(2 * n + 1, token, path, &request)).collect()
}

/// A connection on which this was sent, whose answers are not read.
async fn flooded(address: SocketAddr, calls: &[u8]) -> TcpStream {
    let mut io = TcpStream::connect(address).await.unwrap();
    http2::send(&mut io, &http2::hello()).await;
    http2::send(&mut io, calls).await;
    io
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_refused_calls_does_not_end_the_server() {
    let known = KnowingService::start(&[("viewer", "viewer"), ("root", "admin")]).await;
    let address = listens_at(&known.log_path()).await;
    let mut admin = known.caller("root").await;
    let server = known.service.server_pid();
    let calls = calls(Some(&known.token("viewer")), KILL, CALLS);
    let mut flood = Vec::new();
    for _ in 0..CONNECTIONS {
        flood.push(flooded(address, &calls).await);
    }
    // Answered after all calls that were there before.
    soon(admin.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    assert_eq!(known.service.server_pid(), server);
    assert!(!known.log().contains("the server hangs"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_with_refused_calls_only_is_closed() {
    let known = KnowingService::start(&[("root", "admin")]).await;
    let address = listens_at(&known.log_path()).await;
    // A connection that watches health would stay.
    let watch = http2::call(1, "localhost", WATCH, &HealthCheckRequest::default());
    let refused = [watch, calls(None, LIST, 65)].concat();
    let mut closed = flooded(address, &refused).await;
    let mut answers = Vec::new();
    let end = soon(closed.read_to_end(&mut answers)).await;
    assert!(end.is_ok() || !answers.is_empty(), "{end:?}");
    // As many refused calls as are allowed leave it open, and so does health.
    let mut open = flooded(address, &calls(None, LIST, 64)).await;
    let ping = frame(http2::PING, 0, 0, b"procyard");
    http2::send(&mut open, &ping).await;
    while http2::next_frame(&mut open).await.expect("the server hung up").kind != http2::PING {}
    // A connection of a caller stays, however many of its calls fail.
    let failing = calls(Some(&known.token("root")), KILL, 200);
    let mut admin = flooded(address, &failing).await;
    http2::send(&mut admin, &ping).await;
    while http2::next_frame(&mut admin).await.expect("the server hung up").kind != http2::PING {}
    known.caller("root").await.get_server_info(pb::GetServerInfoRequest {}).await.unwrap();
}
