//! Follow: everything in order, one End, and followers who cost nobody anything.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use procyard::grpc::pb;
use procyard::grpc::pb::follow_response::Message;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tonic::{Code, Streaming};

use super::archiving::{file, nothing_in_memory};
use crate::support::http2;
use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{Gate, SOON, full_volume, is_root, skip, soon, state, until};

const FOLLOW: &str = "/procyard.v1.ProcessService/Follow";

/// Lines on both streams that come in many chunks, for they are written one by one.
const LINES: &str = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo out $i; echo err $i >&2; done";

fn lines(word: &str) -> String {
    (1..=60).map(|n| format!("{word} {n}\n")).collect()
}

/// Prints the same eight bytes again and again, into a small ring.
fn flood(bytes: u64) -> pb::Spec {
    let line = shell(&format!("yes 0123456 | head -c {bytes}"));
    pb::Spec { transcript_bytes: 64 << 10, ..line }
}

/// Prints for as long as it lives, into a small ring.
fn endless() -> pb::Spec {
    pb::Spec { transcript_bytes: 1 << 20, ..argv(&["yes", "0123456"]) }
}

/// Follows from the first chunk there ever was: what is no longer kept is a gap.
fn from_the_beginning(id: &str) -> pb::FollowRequest {
    pb::FollowRequest { since_seq: Some(1), ..follow(id) }
}

/// Waits until a process has printed so many bytes more.
async fn printed_more(client: &mut Client, id: &str, bytes: u64) {
    let total = async |client: &mut Client| get(client, id).await.transcript.unwrap().total_bytes;
    let begin = total(client).await;
    soon(async { while total(client).await < begin + bytes {} }).await;
}

/// What anyone may do is done as ever: a process runs, types, is followed, listed and ended.
async fn all_is_well(client: &mut Client, round: usize) {
    let id = format!("well-{round}");
    begin(client, &id, with_stdin(argv(&["cat"]))).await;
    let following = ask_follow(client, follow(&id)).await;
    let answered = pb::WriteStdinRequest { wait: Some(until_output("word")), ..typed(&id, "word") };
    assert!(write(client, answered).await.wait.unwrap().met);
    let listed = soon(client.list(pb::ListRequest::default())).await.unwrap().into_inner();
    assert_eq!(listed.processes[0].id, id);
    write(client, pb::WriteStdinRequest { eof: true, ..typed(&id, " end") }).await;
    let (transcript, process) = follow_to_end(following).await;
    assert_eq!((transcript.stdout().as_str(), process.exit.unwrap().code), ("word end", Some(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_comes_in_order_and_then_the_end_with_the_finished_process() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let line = format!("read x <{}; {LINES}; exit 3", gate.path);
    begin(&mut client, "p", shell(&line)).await;
    let live = ask_follow(&mut client, follow("p")).await;
    gate.open(1);
    let (first, process) = follow_to_end(live).await;
    // One who comes when it is over gets the same.
    let (second, again) = follow_to_end(ask_follow(&mut client, follow("p")).await).await;
    for transcript in [&first, &second] {
        assert_eq!(transcript.stdout(), lines("out"));
        assert_eq!(transcript.stream(pb::Stream::Stderr), lines("err").as_bytes());
        assert_eq!(transcript.gaps, 0);
    }
    assert_eq!(first.next_seq, second.next_seq);
    for process in [process, again] {
        assert_eq!((&process.id[..], process.state()), ("p", pb::State::Exited));
        let exit = process.exit.unwrap();
        assert_eq!((exit.code, exit.final_seq), (Some(3), first.next_seq));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_comes_however_short_or_silent_a_process_is() {
    let service = TestService::start();
    let client = service.client().await;
    let followers: Vec<_> = (0..10)
        .map(|task| {
            let mut client = client.clone();
            tokio::spawn(async move {
                for n in 0..if full_volume() { 300 } else { 20 } {
                    let id = format!("p-{task}-{n}");
                    let words = if n % 2 == 0 { vec!["true"] } else { vec!["echo", "word"] };
                    begin(&mut client, &id, argv(&words)).await;
                    // No heartbeat comes to the rescue of a wake-up that is lost.
                    let heartbeat_interval = Some(millis(600_000));
                    let request = pb::FollowRequest { heartbeat_interval, ..follow(&id) };
                    let stream = ask_follow(&mut client, request).await;
                    let (transcript, process) = follow_to_end(stream).await;
                    assert_eq!(transcript.stdout(), if n % 2 == 0 { "" } else { "word\n" });
                    assert_eq!(process.exit.unwrap().code, Some(0));
                }
            })
        })
        .collect();
    for follower in followers {
        follower.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_who_comes_back_goes_on_where_it_was() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo $i; read x; done";
    begin(&mut client, "p", with_stdin(shell(line))).await;
    let mut transcript = Transcript::new();
    for round in 0..20 {
        let request = pb::FollowRequest { since_seq: Some(transcript.next_seq), ..follow("p") };
        let mut stream = ask_follow(&mut client, request).await;
        for _ in 0..10 {
            let Message::Chunk(chunk) = next_message(&mut stream).await else {
                panic!("no chunk in round {round}");
            };
            transcript.add(&chunk);
            write(&mut client, typed("p", "\n")).await;
        }
        // It leaves in the middle; more has been printed meanwhile.
        drop(stream);
    }
    let request = pb::FollowRequest { since_seq: Some(transcript.next_seq), ..follow("p") };
    let (transcript, _) = follow_on(ask_follow(&mut client, request).await, transcript).await;
    let expected: String = (1..=200).map(|n| format!("{n}\n")).collect();
    assert_eq!((transcript.stdout(), transcript.gaps), (expected, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_may_begin_with_any_chunk() {
    let service = TestService::start();
    let mut client = service.client().await;
    run_to_end(&mut client, "p", shell(LINES)).await;
    let all = ask_read(&mut client, read("p")).await.chunks;
    for since_seq in 0..=all.len() as u64 + 1 {
        let request = pb::FollowRequest { since_seq: Some(since_seq), ..follow("p") };
        let mut stream = ask_follow(&mut client, request).await;
        for chunk in &all[(since_seq.max(1) - 1) as usize..] {
            assert_eq!(next_message(&mut stream).await, Message::Chunk(chunk.clone()));
        }
        assert!(matches!(next_message(&mut stream).await, Message::End(_)));
        assert_eq!(soon(stream.message()).await.unwrap(), None);
    }
    let ahead = all.len() as u64 + 2;
    let request = pb::FollowRequest { since_seq: Some(ahead), ..follow("p") };
    let refused = soon(client.follow(request)).await.map(drop);
    assert_eq!(refusal(refused), (Code::OutOfRange, "CURSOR_AHEAD".into()));
    let nobody = soon(client.follow(follow("nobody"))).await.map(drop);
    assert_eq!(refusal(nobody), (Code::NotFound, "PROCESS_NOT_FOUND".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_streams_that_are_asked_for_are_followed() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", shell(&format!("{LINES}; head -c 3000000 /dev/zero"))).await;
    let streams = vec![pb::Stream::Stderr.into()];
    let mut stream = ask_follow(&mut client, pb::FollowRequest { streams, ..follow("p") }).await;
    let (mut got, mut last_seq) = (Vec::new(), 0);
    loop {
        match next_message(&mut stream).await {
            Message::Chunk(chunk) => {
                assert!(chunk.stream() == pb::Stream::Stderr && chunk.seq > last_seq);
                last_seq = chunk.seq;
                got.push(chunk);
            }
            Message::End(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(text(&got, pb::Stream::Stderr), lines("err"));
    let streams = vec![0, 99];
    let status = soon(client.follow(pb::FollowRequest { streams, ..follow("p") })).await;
    assert_eq!(bad_fields(&status.unwrap_err()), ["streams[0]", "streams[1]"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_follower_learns_by_gaps_exactly_what_it_missed() {
    let service = TestService::start();
    let mut client = service.client().await;
    let total = 8_000_000;
    begin(&mut client, "p", flood(total)).await;
    let mut stream = ask_follow(&mut client, from_the_beginning("p")).await;
    let mut transcript = Transcript::new();
    // Reads one message and then none until the process is over.
    match next_message(&mut stream).await {
        Message::Chunk(chunk) => transcript.add(&chunk),
        Message::Gap(gap) => transcript.skip(gap),
        other => panic!("{other:?}"),
    }
    soon(client.wait(wait("p", until_exit()))).await.unwrap();
    let (transcript, process) = follow_on(stream, transcript).await;
    assert!(transcript.gaps > 0, "nothing was dropped");
    assert_eq!(transcript.received() + transcript.dropped, total);
    let figures = process.transcript.unwrap();
    assert_eq!((figures.total_bytes, figures.ended), (total, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_follower_learns_what_it_missed_though_only_a_file_is_left_by_then() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", endless()).await;
    let mut stream = ask_follow(&mut client, from_the_beginning("p")).await;
    let mut transcript = Transcript::new();
    match next_message(&mut stream).await {
        Message::Chunk(chunk) => transcript.add(&chunk),
        Message::Gap(gap) => transcript.skip(gap),
        other => panic!("{other:?}"),
    }
    // Far more than is on its way to one who does not read, and than the ring has room for.
    printed_more(&mut client, "p", 64 << 20).await;
    end(&mut client, "p").await;
    until("it is in a file", || file(&service, "1.1").exists()).await;
    nothing_in_memory(&service).await;
    let (transcript, process) = follow_on(stream, transcript).await;
    assert!(transcript.gaps > 0, "nothing was dropped");
    let total = process.transcript.unwrap().total_bytes;
    assert_eq!(transcript.received() + transcript.dropped, total);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_cursor_was_overrun_begins_with_the_gap_for_any_server() {
    let service = TestService::start();
    let mut client = service.client().await;
    let total = 1_000_000;
    let process = run_to_end(&mut client, "p", flood(total)).await;
    let oldest = process.transcript.unwrap().first_seq;
    assert!(oldest > 2, "nothing was dropped");
    for _ in 0..2 {
        let stream = ask_follow(&mut client, from_the_beginning("p")).await;
        let (transcript, _) = follow_to_end(stream).await;
        assert_eq!((transcript.gaps, transcript.received() + transcript.dropped), (1, total));
        // The last that is gone, and the first that is not.
        for (since_seq, missed) in [(oldest - 1, true), (oldest, false)] {
            let request = pb::FollowRequest { since_seq: Some(since_seq), ..follow("p") };
            let mut stream = ask_follow(&mut client, request).await;
            if missed {
                let Message::Gap(gap) = next_message(&mut stream).await else { panic!("no gap") };
                assert_eq!((gap.from_seq, gap.to_seq), (oldest - 1, oldest - 1));
            }
            let Message::Chunk(chunk) = next_message(&mut stream).await else { panic!("no chunk") };
            assert_eq!(chunk.seq, oldest);
        }
        let since_seq = Some(transcript.next_seq + 1);
        let ahead = soon(client.follow(pb::FollowRequest { since_seq, ..follow("p") })).await;
        assert_eq!(refusal(ahead.map(drop)), (Code::OutOfRange, "CURSOR_AHEAD".into()));
        service.kill_server();
        client = service.client().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn following_a_flood_accounts_for_every_byte() {
    let service = TestService::start();
    let mut client = service.client().await;
    let total = if full_volume() { 200_000_000 } else { 20_000_000 };
    begin(&mut client, "p", flood(total)).await;
    let (transcript, _) =
        follow_to_end(ask_follow(&mut client, from_the_beginning("p")).await).await;
    assert_eq!(transcript.received() + transcript.dropped, total);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_filled_with_heartbeats() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    let heartbeat_interval = Some(millis(1000));
    let request = pb::FollowRequest { heartbeat_interval, ..follow("p") };
    let mut stream = ask_follow(&mut client, request).await;
    for _ in 0..2 {
        assert!(matches!(next_message(&mut stream).await, Message::Heartbeat(_)));
    }
    write(&mut client, pb::WriteStdinRequest { eof: true, ..typed("p", "word") }).await;
    let (transcript, _) = follow_to_end(stream).await;
    assert_eq!(transcript.stdout(), "word");
    for bad in [999, 600_001] {
        let heartbeat_interval = Some(millis(bad));
        let request = pb::FollowRequest { heartbeat_interval, ..follow("p") };
        let status = soon(client.follow(request)).await.unwrap_err();
        assert_eq!(bad_fields(&status), ["heartbeat_interval"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_that_blocks_goes_on_for_a_follower_who_acknowledges_by_read() {
    let service = TestService::start();
    let mut client = service.client().await;
    let total = 2_000_000;
    let spec = pb::Spec { overflow: pb::Overflow::Block.into(), ..flood(total) };
    begin(&mut client, "p", spec).await;
    let mut stream = ask_follow(&mut client, follow("p")).await;
    let mut transcript = Transcript::new();
    loop {
        match next_message(&mut stream).await {
            Message::Chunk(chunk) => transcript.add(&chunk),
            Message::End(_) => break,
            other => panic!("{other:?}"),
        }
        let ack_seq = transcript.next_seq - 1;
        let since_seq = Some(transcript.next_seq);
        let view = paged(1);
        ask_read(&mut client, pb::ReadRequest { ack_seq, since_seq, view, ..read("p") }).await;
    }
    assert_eq!((transcript.received(), transcript.gaps), (total, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_of_a_process_that_is_deleted_is_told_the_end() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", shell("echo word; exec sleep 600")).await;
    let mut stream = ask_follow(&mut client, follow("p")).await;
    assert!(matches!(next_message(&mut stream).await, Message::Chunk(_)));
    let delete = pb::DeleteRequest { id: "p".into(), force: true, allow_missing: false };
    soon(client.delete(delete)).await.unwrap();
    let Message::End(end) = next_message(&mut stream).await else { panic!("no End") };
    assert_eq!(end.process.unwrap().exit.unwrap().cause(), pb::Cause::Killed);
    assert_eq!(soon(stream.message()).await.unwrap(), None);
}

/// Followers of an endless flood who never take a message, on a connection of their own.
async fn idle_followers(service: &TestService, count: usize) -> Vec<Streaming<pb::FollowResponse>> {
    let mut client = service.client().await;
    let mut idle = Vec::new();
    for _ in 0..count {
        idle.push(ask_follow(&mut client, follow("flood")).await);
    }
    idle
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_who_never_read_hold_up_nobody_and_take_no_memory() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "flood", endless()).await;
    all_is_well(&mut client, 0).await;
    let server = service.server_pid();
    let before = own_memory(server);
    let _idle = idle_followers(&service, 20).await;
    let mut most = 0;
    for round in 1..=if full_volume() { 200 } else { 10 } {
        printed_more(&mut client, "flood", 10 << 20).await;
        all_is_well(&mut client, round).await;
        most = most.max(own_memory(server));
    }
    end(&mut client, "flood").await;
    // A buffer for each, and what the others needed for a moment.
    let growth = most.saturating_sub(before);
    assert!(growth < 20 * (400 << 10) + (16 << 20), "the server grew by {growth} bytes");
}

/// A client of another process, that follows the flood and reads what comes as fast as it can.
struct OtherClient(Child);

impl OtherClient {
    async fn follow(service: &TestService) -> OtherClient {
        let mut socket = UnixStream::connect(service.socket()).await.unwrap();
        http2::send(&mut socket, &http2::hello()).await;
        http2::send(&mut socket, &http2::call(1, "localhost", FOLLOW, &follow("flood"))).await;
        let _: pb::FollowResponse = http2::answer(&mut socket, 1).await;
        let socket = socket.into_std().unwrap();
        socket.set_nonblocking(false).unwrap();
        let mut cat = Command::new("cat");
        cat.stdin(OwnedFd::from(socket)).stdout(Stdio::null());
        OtherClient(cat.spawn().unwrap())
    }

    fn signal(&self, signal: i32) {
        // SAFETY: signals a process that this test started and nobody has waited for.
        assert_eq!(unsafe { libc::kill(self.0.id().cast_signed(), signal) }, 0);
    }

    /// Bytes that it has read so far.
    fn bytes_read(&self) -> Option<u64> {
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.0.id())).ok()?;
        io.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
    }
}

impl Drop for OtherClient {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_stopped_holds_up_nobody_and_takes_no_memory() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "flood", endless()).await;
    let other = OtherClient::follow(&service).await;
    if other.bytes_read().is_none() && !is_root() {
        return skip("what a process reads cannot be seen here");
    }
    let reads_on = |from: u64| other.bytes_read().unwrap() > from + (4 << 20);
    until("the client reads along", || reads_on(0)).await;
    all_is_well(&mut client, 0).await;
    let server = service.server_pid();
    other.signal(libc::SIGSTOP);
    until("it is stopped", || state(other.0.id()) == Some('T')).await;
    let (before, mut most) = (own_memory(server), 0);
    for round in 1..=if full_volume() { 200 } else { 10 } {
        printed_more(&mut client, "flood", 10 << 20).await;
        all_is_well(&mut client, round).await;
        most = most.max(own_memory(server));
    }
    let growth = most.saturating_sub(before);
    assert!(growth < 16 << 20, "the server grew by {growth} bytes");
    let stopped_at = other.bytes_read().unwrap();
    other.signal(libc::SIGCONT);
    until("the client goes on", || reads_on(stopped_at)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_byte_by_byte_holds_up_nobody() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "flood", endless()).await;
    let mut socket = UnixStream::connect(service.socket()).await.unwrap();
    http2::send(&mut socket, &http2::hello()).await;
    http2::send(&mut socket, &http2::call(1, "localhost", FOLLOW, &follow("flood"))).await;
    let slow = tokio::spawn(async move {
        loop {
            socket.read_u8().await.expect("the server hung up");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    for round in 0..10 {
        printed_more(&mut client, "flood", 10 << 20).await;
        all_is_well(&mut client, round).await;
    }
    assert!(!slow.is_finished());
    slow.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_followers_each_get_everything() {
    let (connections, each) = if full_volume() { (10, 100) } else { (5, 40) };
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let line = format!("read x <{0}; {LINES}; seq 2000; read x <{0}; echo last", gate.path);
    begin(&mut client, "p", shell(&line)).await;
    let mut followers = Vec::new();
    for _ in 0..connections {
        let mut client = service.client().await;
        for _ in 0..each {
            let stream = ask_follow(&mut client, follow("p")).await;
            followers.push(tokio::spawn(follow_to_end(stream)));
        }
    }
    gate.open(1);
    soon(client.wait(wait("p", until_output("\n2000\n")))).await.unwrap();
    all_is_well(&mut client, 0).await;
    gate.open(1);
    let numbers: String = (1..=2000).map(|n| format!("{n}\n")).collect();
    let expected = lines("out") + &numbers + "last\n";
    for follower in followers {
        let (transcript, process) =
            tokio::time::timeout(2 * SOON, follower).await.unwrap().unwrap();
        assert!(transcript.stdout() == expected, "a follower got something else");
        assert_eq!((transcript.gaps, process.state()), (0, pb::State::Exited));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_who_leave_leave_nothing_behind() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "flood", endless()).await;
    all_is_well(&mut client, 0).await;
    let server = service.server_pid();
    // A few on each connection: the client's library breaks one off with much on its way to
    // calls that are no more.
    let come_and_go = async |times: usize| {
        for _ in 0..times {
            let mut client = service.client().await;
            for _ in 0..10 {
                let mut stream = ask_follow(&mut client, follow("flood")).await;
                next_message(&mut stream).await;
            }
        }
    };
    come_and_go(10).await;
    let before = own_memory(server);
    come_and_go(if full_volume() { 500 } else { 50 }).await;
    let growth = own_memory(server).saturating_sub(before);
    assert!(growth < 16 << 20, "the server grew by {growth} bytes");
    assert_eq!(get(&mut client, "flood").await.state(), pb::State::Running);
}
