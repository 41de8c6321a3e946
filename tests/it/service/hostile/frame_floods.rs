//! Floods on many connections of one client: another caller is served meanwhile.

use std::net::SocketAddr;

use procyard::grpc::pb;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;

use crate::support::callers::{KnowingService, listens_at};
use crate::support::http2::{self, frame};

const INFO: &str = "/procyard.v1.ProcessService/GetServerInfo";
const KILL: &str = "/procyard.v1.ProcessService/Kill";

/// Connections of a flood, and what comes on each.
const CONNECTIONS: usize = 40;
const PINGS: usize = 4000;
const CALLS: usize = 200;

/// A connection that the server has accepted.
async fn connect(address: SocketAddr) -> TcpStream {
    let mut io = TcpStream::connect(address).await.unwrap();
    http2::send(&mut io, &http2::hello()).await;
    http2::next_frame(&mut io).await.expect("the server hung up");
    io
}

/// Reads what has come on a connection by now.
fn read(io: &TcpStream, buffer: &mut [u8]) -> usize {
    let mut len = 0;
    while let Ok(more @ 1..) = io.try_read(&mut buffer[len..]) {
        len += more;
    }
    len
}

/// How many frames of a kind these bytes have.
fn frames(bytes: &[u8], kind: u8) -> usize {
    let (mut rest, mut count) = (bytes, 0);
    while let [high, middle, low, frame_kind, _, _, _, _, _, payload @ ..] = rest {
        count += usize::from(*frame_kind == kind);
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        rest = payload.get(length..).unwrap_or_default();
    }
    count
}

/// Sends this on every connection of a flood at once, then a call of an admin. Fails if the server has
/// answered half of the flood before the call: each answer is a frame of this kind.
async fn admin_overtakes(known: &KnowingService, flood: &[u8], answers: usize, kind: u8) {
    let address = listens_at(&known.log_path()).await;
    let (token, request) = (known.token("root"), pb::GetServerInfoRequest {});
    let mut admin = connect(address).await;
    http2::send(&mut admin, &http2::call_with_token(1, Some(&token), INFO, &request)).await;
    http2::answer::<pb::GetServerInfoResponse>(&mut admin, 1).await;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(connect(address).await);
    }

    // What is sent to a stopped server is there at once when it continues.
    let server = Pid::from_raw(known.service.server_pid()).unwrap();
    kill_process(server, Signal::STOP).unwrap();
    for io in &mut connections {
        http2::send(io, flood).await;
    }
    http2::send(&mut admin, &http2::call_with_token(3, Some(&token), INFO, &request)).await;
    let mut buffers = vec![vec![0; 1 << 20]; CONNECTIONS];
    kill_process(server, Signal::CONT).unwrap();
    http2::answer::<pb::GetServerInfoResponse>(&mut admin, 3).await;

    let read: Vec<_> =
        connections.iter().zip(&mut buffers).map(|(io, buffer)| read(io, buffer)).collect();
    let answers_of = |(buffer, len): (&Vec<u8>, &usize)| frames(&buffer[..*len], kind);
    let answered: usize = buffers.iter().zip(&read).map(answers_of).sum();
    let all = CONNECTIONS * answers;
    assert!(answered < all / 2, "{answered} of {all} were answered before the call");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_of_a_stranger_leave_a_caller_served() {
    let known = KnowingService::start(&[("root", "admin")]).await;
    let pings = frame(http2::PING, 0, 0, b"procyard").repeat(PINGS);
    admin_overtakes(&known, &pings, PINGS, http2::PING).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_calls_of_one_caller_leave_another_served() {
    let known = KnowingService::start(&[("viewer", "viewer"), ("root", "admin")]).await;
    let (token, request) = (known.token("viewer"), pb::KillRequest::default());
    let call = |n| http2::call_with_token(2 * n as u32 + 1, Some(&token), KILL, &request);
    let calls: Vec<u8> = (0..CALLS).flat_map(call).collect();
    admin_overtakes(&known, &calls, CALLS, http2::HEADERS).await;
}
