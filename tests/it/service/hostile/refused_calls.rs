//! Floods of calls that are refused: they end no server, and no connection lasts for them.

use std::net::SocketAddr;

use procyard::grpc::pb;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::support::callers::{KnowingService, listens_at};
use crate::support::http2::{self, frame};
use crate::support::soon;

const LIST: &str = "/procyard.v1.ProcessService/List";
const KILL: &str = "/procyard.v1.ProcessService/Kill";

/// Connections of the flood, and calls on each: as many as a connection may have under way.
const CONNECTIONS: usize = 100;
const CALLS: u32 = 1024;

/// A connection on which so many calls were sent, whose answers are not read.
async fn flooded(address: SocketAddr, token: Option<&str>, path: &str, calls: u32) -> TcpStream {
    let mut io = TcpStream::connect(address).await.unwrap();
    let request = pb::KillRequest::default();
    let calls =
        (0..calls).flat_map(|n| http2::call_with_token(2 * n + 1, token, path, &request)).collect();
    http2::send(&mut io, &[http2::hello(), calls].concat()).await;
    io
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_refused_calls_does_not_end_the_server() {
    let known = KnowingService::start(&[("viewer", "viewer"), ("root", "admin")]).await;
    let address = listens_at(&known.log_path()).await;
    let mut admin = known.caller("root").await;
    let server = known.service.server_pid();
    let token = known.token("viewer");
    let mut flood = Vec::new();
    for _ in 0..CONNECTIONS {
        flood.push(flooded(address, Some(&token), KILL, CALLS).await);
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
    let mut closed = flooded(address, None, LIST, 65).await;
    let mut answers = Vec::new();
    let end = soon(closed.read_to_end(&mut answers)).await;
    assert!(end.is_ok() || !answers.is_empty(), "{end:?}");
    // As many refused calls as are allowed leave it open, and so does health.
    let mut open = flooded(address, None, LIST, 64).await;
    let ping = frame(http2::PING, 0, 0, b"procyard");
    http2::send(&mut open, &ping).await;
    while http2::next_frame(&mut open).await.expect("the server hung up").kind != http2::PING {}
    // A connection of a caller stays, however many of its calls fail.
    let token = known.token("root");
    let mut admin = flooded(address, Some(&token), KILL, 200).await;
    http2::send(&mut admin, &ping).await;
    while http2::next_frame(&mut admin).await.expect("the server hung up").kind != http2::PING {}
    known.caller("root").await.get_server_info(pb::GetServerInfoRequest {}).await.unwrap();
}
