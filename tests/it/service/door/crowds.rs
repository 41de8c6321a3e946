//! Clients that are many, slow, broken or mean: the others are served on, in bounded memory.

use std::time::Duration;

use procyard::grpc::pb;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::net::UnixStream;

use super::{Everywhere, INFO, hung_up, info_by_hand};
use crate::support::http2::{self, frame};
use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{full_volume, skip, soon, until};

/// What a connection may cost, roughly: a debug build is not frugal.
const PER_CONNECTION: u64 = 64 << 10;

/// Whoever comes now is served as ever.
async fn served(service: &Everywhere, id: &str) {
    for mut client in [service.service.client().await, service.tcp_client().await] {
        let id = format!("{id}-{}", get_count(&mut client).await);
        run_to_end(&mut client, &id, argv(&["echo", "word"])).await;
        assert_eq!(read_to_end(&mut client, &id, 100).await.stdout(), "word\n");
    }
}

/// How many processes there are.
async fn get_count(client: &mut Client) -> usize {
    let listed = soon(client.list(pb::ListRequest::default())).await.unwrap().into_inner();
    listed.processes.len()
}

/// Descriptors that a process has open.
fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Whether so many files can be open in this process.
fn can_open(files: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= files) {
        return true;
    }
    let raised = Rlimit { current: Some(files), ..limit };
    setrlimit(Resource::Nofile, raised).is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_connections_are_kept_and_cost_little() {
    if !can_open(4096) {
        return skip("too few files can be open here");
    }
    let service = Everywhere::start().await;
    served(&service, "before").await;
    let server = service.service.server_pid();
    let memory = own_memory(server);
    let (mut unix, mut tcp) = (Vec::new(), Vec::new());
    for _ in 0..500 {
        let mut io = service.unix().await;
        http2::send(&mut io, &http2::hello()).await;
        unix.push(io);
        let mut io = service.tcp().await;
        http2::send(&mut io, &http2::hello()).await;
        tcp.push(io);
    }
    until("all are let in", || descriptors(server) > 1000).await;
    served(&service, "among-many").await;
    // They can still be used.
    let call = http2::call(1, "localhost", INFO, &pb::GetServerInfoRequest {});
    for io in unix.iter_mut().step_by(50) {
        http2::send(io, &call).await;
        let _: pb::GetServerInfoResponse = http2::answer(io, 1).await;
    }
    let growth = own_memory(server).saturating_sub(memory);
    assert!(growth < 1000 * PER_CONNECTION, "the server grew by {growth} bytes");
    drop((unix, tcp));
    until("nothing is left of them", || descriptors(server) < 100).await;
    served(&service, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_say_what_it_wants_is_sent_away_and_holds_up_nobody() {
    let service = Everywhere::start().await;
    let mut sent_away = Vec::new();
    for _ in 0..30 {
        for said in [&b""[..], &http2::PREFACE[..12], b"POST / HTTP/1.1\r\nhost: loc", b"P"] {
            let (mut unix, mut tcp) = (service.unix().await, service.tcp().await);
            http2::send(&mut unix, said).await;
            http2::send(&mut tcp, said).await;
            sent_away.push(tokio::spawn(hung_up(unix)));
            sent_away.push(tokio::spawn(hung_up(tcp)));
        }
    }
    // One that goes on and on, byte by byte, and never comes to an end.
    let mut slow = service.tcp().await;
    http2::send(&mut slow, b"POST / HTTP/1.1\r\nx: ").await;
    let slow = tokio::spawn(soon(async move {
        while slow.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }));
    // Headers of which the rest never comes.
    let mut half = service.unix().await;
    http2::send(&mut half, &http2::hello()).await;
    http2::send(&mut half, &frame(http2::HEADERS, 0, 1, b"\x83")).await;
    served(&service, "meanwhile").await;
    for connection in sent_away {
        connection.await.unwrap();
    }
    slow.await.unwrap();
    served(&service, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_without_end_are_answered_in_bounded_memory() {
    let count = if full_volume() { 100_000 } else { 10_000 };
    let service = Everywhere::start().await;
    served(&service, "before").await;
    let server = service.service.server_pid();
    let before = own_memory(server);
    let (mut reader, mut writer) = split(service.unix().await);
    let pings = tokio::spawn(async move {
        http2::send(&mut writer, &http2::hello()).await;
        let some = frame(http2::PING, 0, 0, b"procyard").repeat(100);
        for _ in 0..count / 100 {
            http2::send(&mut writer, &some).await;
        }
        writer
    });
    let mut answered = 0;
    while answered < count {
        let frame = http2::next_frame(&mut reader).await.expect("the server hung up");
        answered += usize::from(frame.kind == http2::PING && frame.payload == b"procyard");
    }
    drop(pings.await.unwrap());
    served(&service, "after").await;
    // One who does not even read the answers.
    let mut deaf = service.unix().await;
    http2::send(&mut deaf, &http2::hello()).await;
    let flood = frame(http2::PING, 0, 0, b"procyard").repeat(count);
    let _ = tokio::time::timeout(Duration::from_secs(1), deaf.write_all(&flood)).await;
    served(&service, "meanwhile").await;
    let growth = own_memory(server).saturating_sub(before);
    assert!(growth < 32 << 20, "the server grew by {growth} bytes");
}

/// Sends as many calls as it can and takes each back at once, until it is sent away.
async fn take_back(mut io: UnixStream, count: u32, call: impl Fn(u32) -> Vec<u8>) {
    http2::send(&mut io, &http2::hello()).await;
    let (mut reader, mut writer) = split(io);
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while reader.read(&mut buffer).await.is_ok_and(|len| len > 0) {}
    });
    for n in 0..count {
        let stream = 2 * n + 1;
        let cancel = frame(http2::RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        if soon(writer.write_all(&[call(stream), cancel].concat())).await.is_err() {
            break;
        }
    }
    let _ = writer.shutdown().await;
    soon(reading).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_taken_back_at_once_cost_nobody_anything() {
    let count = if full_volume() { 100_000 } else { 10_000 };
    let service = Everywhere::start().await;
    let mut client = service.service.client().await;
    begin(&mut client, "live", argv(&["sleep", "600"])).await;
    served(&service, "before").await;
    let server = service.service.server_pid();
    let before = own_memory(server);
    let headers = |stream| http2::call_headers(stream, "localhost", INFO);
    take_back(service.unix().await, count, headers).await;
    served(&service, "after-headers").await;
    // Calls that would wait for ever.
    let wait = wait("live", until_exit());
    let path = "/procyard.v1.ProcessService/Wait";
    let waits = |stream| http2::call(stream, "localhost", path, &wait);
    take_back(service.unix().await, count, waits).await;
    served(&service, "after-waits").await;
    let growth = own_memory(server).saturating_sub(before);
    assert!(growth < 32 << 20, "the server grew by {growth} bytes");
    assert_eq!(get(&mut client, "live").await.state(), pb::State::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_not_answered_and_harms_nobody() {
    let service = Everywhere::start().await;
    let mut seed = 1_u64;
    // Not random, but as senseless: the same at each run.
    let mut nonsense = |len: usize| -> Vec<u8> {
        let next = |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        };
        (0..len).map(next).collect()
    };
    for n in 0..100 {
        let bytes = nonsense(n * 20 + 1);
        let kind = [0, 1, 3, 4, 6, 7, 8, 9][n % 8];
        let framed = frame(kind, bytes[0], u32::from(bytes[0] % 4), &bytes);
        for said in
            [bytes.clone(), [http2::hello(), bytes].concat(), [http2::hello(), framed].concat()]
        {
            let (mut unix, mut tcp) = (service.unix().await, service.tcp().await);
            let _ = unix.write_all(&said).await;
            let _ = tcp.write_all(&said).await;
        }
    }
    served(&service, "after").await;
    info_by_hand(service.abstract_socket(), "localhost").await;
}
