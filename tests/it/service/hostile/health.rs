//! Clients without credentials cannot keep health from answering.

use std::net::SocketAddr;

use tokio::net::TcpStream;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::callers::{KnowingService, listens_at};
use crate::support::http2::{self, frame};
use crate::support::soon;

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Connections of the flood, and calls on each: together more than there could ever be slots.
const CONNECTIONS: usize = 200;
const CALLS: u32 = 8;

/// Connections on each of which a client without credentials has sent `calls`, once all are read.
async fn flood(address: SocketAddr, calls: impl Fn(u32) -> Vec<u8>) -> Vec<TcpStream> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut io = TcpStream::connect(address).await.unwrap();
        let calls: Vec<u8> = (0..CALLS).flat_map(|n| calls(2 * n + 1)).collect();
        let ping = frame(http2::PING, 0, 0, b"procyard");
        http2::send(&mut io, &[http2::hello(), calls, ping].concat()).await;
        connections.push(io);
    }
    for io in &mut connections {
        while http2::next_frame(io).await.expect("the server hung up").kind != http2::PING {}
    }
    connections
}

/// Asks for health without credentials, on a connection of its own.
async fn health(address: SocketAddr) -> HealthClient<tonic::transport::Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(soon(endpoint.connect()).await.unwrap())
}

async fn health_is_served(address: SocketAddr) {
    for _ in 0..20 {
        let mut health = health(address).await;
        let answer = soon(health.check(HealthCheckRequest::default())).await.unwrap();
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_checks_do_not_fail_a_probe() {
    let known = KnowingService::start(&[]).await;
    let address = listens_at(&known.log_path()).await;
    let _flood = flood(address, |stream| http2::call_headers(stream, "localhost", CHECK)).await;
    health_is_served(address).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers_do_not_fail_a_probe() {
    let known = KnowingService::start(&[]).await;
    let address = listens_at(&known.log_path()).await;
    // The client grants no window to the answers.
    let no_window = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let call = |stream| {
        let call = http2::call(stream, "localhost", CHECK, &HealthCheckRequest::default());
        [no_window.clone(), call].concat()
    };
    let _flood = flood(address, call).await;
    health_is_served(address).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_watches_do_not_fail_another_watch() {
    let known = KnowingService::start(&[]).await;
    let address = listens_at(&known.log_path()).await;
    let call = |stream| http2::call(stream, "localhost", WATCH, &HealthCheckRequest::default());
    let _flood = flood(address, call).await;
    let mut health = health(address).await;
    let watch = soon(health.watch(HealthCheckRequest::default())).await.unwrap();
    let first = soon(watch.into_inner().message()).await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    health_is_served(address).await;
}
