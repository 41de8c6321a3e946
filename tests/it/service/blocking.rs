//! Transcripts that block: whoever needs every byte gets every byte, the process waits meanwhile,
//! and nobody else does.

use procyard::grpc::pb;
use procyard::grpc::pb::follow_response::Message;

use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{cpu_ticks, full_volume, soon};

/// The smallest transcript there is.
const SMALL: u64 = 64 << 10;

/// The same with the smallest transcript, which blocks.
fn blocking(spec: pb::Spec) -> pb::Spec {
    pb::Spec { transcript_bytes: SMALL, overflow: pb::Overflow::Block.into(), ..spec }
}

/// A long line, to be printed again and again: no part of it looks like another.
fn long_line() -> String {
    (1..=9000).map(|n| format!("{n},")).collect()
}

/// A read that brings little and says that all before `next_seq` was taken.
fn acknowledge(id: &str, next_seq: u64) -> pb::ReadRequest {
    let view = paged(1);
    pb::ReadRequest { ack_seq: next_seq - 1, since_seq: Some(next_seq), view, ..read(id) }
}

/// All memory of a process, rings and programs too.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Waits until a process prints no more, though it would: how much it has printed.
async fn stands_still(client: &mut Client, id: &str) -> u64 {
    let total = async |client: &mut Client| get(client, id).await.transcript.unwrap().total_bytes;
    soon(async {
        let mut before = 0;
        loop {
            let now = total(client).await;
            if now > SMALL / 2 && now == before {
                return now;
            }
            before = now;
            soon(client.wait(wait(id, until_quiet(1000)))).await.unwrap();
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_who_acknowledges_gets_every_byte_of_any_amount_and_no_memory_grows() {
    let total: u64 = if full_volume() { 2 << 30 } else { 64 << 20 };
    let service = TestService::start();
    let mut client = service.client().await;
    let pattern = long_line() + "\n";
    let line = format!("yes {} | head -c {total}", long_line());
    let (keeper, server) = (service.child.id(), service.server_pid().cast_unsigned());
    output_of(&mut client, argv(&["true"])).await;
    let before = [keeper, server].map(resident);
    begin(&mut client, "p", blocking(shell(&line))).await;

    // Whatever the place in the pattern, the next 64 KiB of it lie in one piece.
    let endless = pattern.repeat(4);
    let mut stream = ask_follow(&mut client, follow("p")).await;
    let (mut next_seq, mut received, mut acknowledged) = (1, 0, 0);
    let process = loop {
        match next_message(&mut stream).await {
            Message::Chunk(chunk) => {
                assert_eq!((chunk.seq, chunk.offset), (next_seq, received));
                let expected = &endless.as_bytes()[received as usize % pattern.len()..];
                assert!(expected.starts_with(&chunk.data), "other bytes at {received}");
                next_seq += 1;
                received += chunk.data.len() as u64;
            }
            Message::Heartbeat(_) => {}
            Message::End(end) => break end.process.unwrap(),
            Message::Gap(gap) => panic!("{gap:?}"),
        }
        if received - acknowledged > SMALL / 2 {
            acknowledged = received;
            ask_read(&mut client, acknowledge("p", next_seq)).await;
        }
    };
    assert_eq!((received, process.exit.unwrap().final_seq), (total, next_seq));
    let after = [keeper, server].map(resident);
    for (after, before) in after.into_iter().zip(before) {
        assert!(after < before + (32 << 20), "from {before} to {after} bytes");
    }
    // What nobody needs any more is gone, and whoever comes only now is told so.
    let late = ask_read(&mut client, read_on("p", 1)).await;
    let (gap, oldest) = (late.gap.unwrap(), &late.chunks[0]);
    assert_eq!((gap.from_seq, gap.to_seq + 1), (1, oldest.seq));
    assert_eq!(gap.dropped_bytes, Some(oldest.offset));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_waits_for_room_costs_nothing_and_goes_on_when_there_is_some() {
    let service = TestService::start();
    let mut client = service.client().await;
    let process = begin(&mut client, "p", blocking(argv(&["yes", "0123456"]))).await;
    begin(&mut client, "cat", with_stdin(argv(&["cat"]))).await;
    let printed = stands_still(&mut client, "p").await;
    assert!(printed <= SMALL, "{printed} bytes in a transcript of {SMALL}");

    let everyone = [process.pid, service.child.id(), service.server_pid().cast_unsigned()];
    let before = everyone.map(cpu_ticks);
    soon(client.wait(wait("p", within(1000, until_output("never"))))).await.unwrap();
    let used: Vec<u64> =
        everyone.iter().zip(before).map(|(pid, was)| cpu_ticks(*pid) - was).collect();
    assert!(used.iter().all(|ticks| *ticks < 20), "ticks of a second's hundred: {used:?}");
    assert_eq!(get(&mut client, "p").await.transcript.unwrap().total_bytes, printed);
    // Nobody else waits.
    let answered =
        pb::WriteStdinRequest { wait: Some(until_output("word")), ..typed("cat", "word") };
    assert!(write(&mut client, answered).await.wait.unwrap().met);
    assert_eq!(output_of(&mut client, argv(&["echo", "word"])).await, "word\n");

    // Reading alone makes no room; acknowledging does, and no more than was acknowledged.
    let all = ask_read(&mut client, read("p")).await.chunks;
    assert_eq!(get(&mut client, "p").await.transcript.unwrap().total_bytes, printed);
    let (next_seq, half) = (all.len() as u64 + 1, all.len() as u64 / 2);
    ask_read(&mut client, acknowledge("p", half + 1)).await;
    let more = ask_read(&mut client, read_on("p", next_seq)).await.chunks;
    assert_eq!((more[0].seq, more[0].offset), (next_seq, printed));
    let now = stands_still(&mut client, "p").await;
    assert!(now < printed + SMALL, "from {printed} to {now}");
    let kept = ask_read(&mut client, read("p")).await.chunks;
    assert!((2..=half + 1).contains(&kept[0].seq), "{} is the oldest", kept[0].seq);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_stopped_while_it_waits_for_room_says_its_last_words() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "trap 'echo last words >&2; exit 3' TERM; yes 0123456 & wait";
    begin(&mut client, "p", blocking(shell(line))).await;
    begin(&mut client, "other", argv(&["sleep", "600"])).await;
    let printed = stands_still(&mut client, "p").await;
    let killed = soon(client.kill(kill("p"))).await.unwrap().into_inner();
    assert_eq!(exit(&killed.processes[0]).code, Some(3));

    let transcript = read_to_end(&mut client, "p", 1 << 20).await;
    assert_eq!(transcript.gaps, 0);
    assert_eq!(transcript.stream(pb::Stream::Stderr), b"last words\n");
    let stdout = transcript.stream(pb::Stream::Stdout);
    assert!(stdout.len() as u64 > printed, "what stood in the pipe is missing");
    assert_repeats(b"0123456\n", 0, stdout);
    assert_eq!(get(&mut client, "other").await.state(), pb::State::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_ends_while_nobody_acknowledges_is_kept_to_its_last_byte() {
    let service = TestService::start();
    let mut client = service.client().await;
    // More than the transcript keeps, and less than transcript and pipe, however they are filled.
    let line = "yes 0123456 | head -c 67000; printf end";
    let process = run_to_end(&mut client, "p", blocking(shell(line))).await;
    assert_eq!(exit(&process).code, Some(0));
    let transcript = read_to_end(&mut client, "p", 1 << 20).await;
    assert_eq!((transcript.received(), transcript.gaps), (67_003, 0));
    assert!(transcript.stdout().ends_with("0123456\nend"));
    assert_eq!(exit(&process).final_seq, transcript.next_seq);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_waits_on_for_the_next_server_which_lets_it_go_on() {
    let service = TestService::start();
    let mut client = service.client().await;
    let total = 1_000_000;
    let line = format!("yes 0123456 | head -c {total}");
    begin(&mut client, "p", blocking(shell(&line))).await;
    let printed = stands_still(&mut client, "p").await;
    let mut transcript = Transcript::new();
    transcript.take(None, &ask_read(&mut client, read("p")).await.chunks);
    service.kill_server();
    let mut client = service.client().await;
    assert_eq!(get(&mut client, "p").await.transcript.unwrap().total_bytes, printed);
    loop {
        let ack_seq = transcript.next_seq - 1;
        let request = pb::ReadRequest { ack_seq, ..read_on("p", transcript.next_seq) };
        let answer = ask_read(&mut client, request).await;
        transcript.take(answer.gap, &answer.chunks);
        if answer.ended {
            break;
        }
    }
    assert_eq!((transcript.received(), transcript.gaps), (total, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_that_waits_for_its_reader_is_shown_as_blocked() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "head -c 3000000 /dev/zero; echo; exec sleep 600";
    begin(&mut client, "p", blocking(shell(line))).await;
    begin(&mut client, "q", shell(line)).await;
    becomes(&mut client, pb::Blocked::Reader).await;
    let listed = list(&mut client).await;
    assert_eq!(listed[0].blocked(), pb::Blocked::Unspecified);
    assert_eq!(listed[1].blocked(), pb::Blocked::Reader);
    let shown = service.procyard(&["ps"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(" blocked ") && shown.contains(" running "), "{shown}");
    // The next server knows it, too.
    service.kill_server();
    let mut client = service.client().await;
    assert_eq!(get(&mut client, "p").await.blocked(), pb::Blocked::Reader);
    // A reader makes room until all of it was printed.
    soon(async {
        loop {
            let transcript = get(&mut client, "p").await.transcript.unwrap();
            ask_read(&mut client, acknowledge("p", transcript.next_seq)).await;
            if transcript.total_bytes == 3_000_001 {
                break;
            }
        }
    })
    .await;
    becomes(&mut client, pb::Blocked::Unspecified).await;
    begin(&mut client, "r", blocking(argv(&["yes"]))).await;
    let killed = soon(client.kill(kill_at_once("r"))).await.unwrap().into_inner();
    assert_eq!(killed.processes[0].blocked(), pb::Blocked::Unspecified);
}

async fn becomes(client: &mut Client, wanted: pb::Blocked) {
    soon(async { while get(client, "p").await.blocked() != wanted {} }).await;
}
