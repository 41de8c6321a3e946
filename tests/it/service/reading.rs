//! Read: exact bytes from a cursor, in pages of any size, and a wait that never misses anything.

use procyard::grpc::pb;
use tonic::Code;

use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{Gate, full_volume, soon};

const SMALL: u64 = 64 << 10;

/// The same with a small ring.
fn in_small_ring(spec: pb::Spec, overflow: pb::Overflow) -> pb::Spec {
    pb::Spec { transcript_bytes: SMALL, overflow: overflow.into(), ..spec }
}

/// Lines on both streams that come in many chunks, for they are written one by one.
const LINES: &str = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo out $i; echo err $i >&2; done";

fn lines(word: &str) -> String {
    (1..=60).map(|n| format!("{word} {n}\n")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_is_a_normal_answer_and_its_cursor_leads_to_what_comes() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "cat", with_stdin(argv(&["cat"]))).await;
    let empty = ask_read(&mut client, read("cat")).await;
    let cursor = pb::Cursor { since_seq: 1, next_seq: 1, latest_seq: 0, first_seq: 1 };
    assert_eq!((empty.chunks.len(), empty.gap, empty.ended), (0, None, false));
    assert_eq!((empty.cursor, empty.state()), (Some(cursor), pb::State::Running));

    let typed =
        pb::WriteStdinRequest { wait: Some(until_output("hello")), ..typed("cat", "hello") };
    soon(client.write_stdin(typed)).await.unwrap();
    for since_seq in [None, Some(0), Some(1)] {
        let full = ask_read(&mut client, pb::ReadRequest { since_seq, ..read("cat") }).await;
        assert_eq!(text(&full.chunks, pb::Stream::Stdout), "hello");
        let cursor = pb::Cursor { since_seq: 1, next_seq: 2, latest_seq: 1, first_seq: 1 };
        assert_eq!((full.cursor, full.gap, full.ended), (Some(cursor), None, false));
    }
    let rest = ask_read(&mut client, pb::ReadRequest { since_seq: Some(2), ..read("cat") }).await;
    assert_eq!((rest.chunks.len(), rest.ended, rest.cursor.unwrap().next_seq), (0, false, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_any_size_add_up_to_the_exact_bytes() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = format!("{LINES}; yes 0123456 | head -c 300000");
    let process = run_to_end(&mut client, "p", shell(&line)).await;
    let mut expected = lines("out").into_bytes();
    expected.extend(b"0123456\n".iter().cycle().take(300_000));
    for max_bytes in [1, 7, 1000, 65_536, 1 << 20, 3 << 20] {
        let transcript = read_to_end(&mut client, "p", max_bytes).await;
        assert!(transcript.stream(pb::Stream::Stdout) == expected, "pages of {max_bytes}");
        assert_eq!(transcript.stream(pb::Stream::Stderr), lines("err").as_bytes());
        assert_eq!(
            (transcript.gaps, transcript.next_seq),
            (0, process.transcript.unwrap().next_seq)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_as_large_as_was_asked_unless_its_first_chunk_is_larger() {
    let service = TestService::start();
    let mut client = service.client().await;
    run_to_end(&mut client, "p", shell(LINES)).await;
    for max_bytes in [1_u32, 20, 100, 400] {
        let mut since_seq = 1;
        loop {
            let request =
                pb::ReadRequest { since_seq: Some(since_seq), view: paged(max_bytes), ..read("p") };
            let page = ask_read(&mut client, request).await;
            let size: usize = page.chunks.iter().map(|chunk| chunk.data.len()).sum();
            assert!(page.chunks.len() == 1 || size <= max_bytes as usize, "{size} of {max_bytes}");
            let cursor = page.cursor.unwrap();
            assert_eq!(page.ended, cursor.next_seq == cursor.latest_seq + 1);
            if page.ended {
                break;
            }
            assert!(cursor.next_seq > since_seq, "no way forward");
            since_seq = cursor.next_seq;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_streams_that_are_asked_for_come_and_the_others_are_passed_over() {
    let service = TestService::start();
    let mut client = service.client().await;
    run_to_end(&mut client, "p", shell(&format!("{LINES}; head -c 3000000 /dev/zero"))).await;
    for (stream, expected) in
        [(pb::Stream::Stderr, lines("err")), (pb::Stream::Terminal, String::new())]
    {
        let (mut since_seq, mut got, mut last_seq) = (1, String::new(), 0);
        loop {
            let streams = vec![stream.into()];
            let request = pb::ReadRequest { streams, view: paged(100), ..read_on("p", since_seq) };
            let page = ask_read(&mut client, request).await;
            assert!(page.chunks.iter().all(|chunk| chunk.stream() == stream));
            assert!(page.chunks.iter().map(|chunk| chunk.seq).is_sorted());
            assert!(page.chunks.first().is_none_or(|chunk| chunk.seq > last_seq));
            last_seq = page.chunks.last().map_or(last_seq, |chunk| chunk.seq);
            got += &text(&page.chunks, stream);
            since_seq = page.cursor.unwrap().next_seq;
            if page.ended {
                break;
            }
        }
        assert_eq!(got, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_one_stream_is_not_woken_by_another() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let line = format!("echo noise; read x <{}; echo more; echo word >&2; cat", gate.path);
    begin(&mut client, "p", with_stdin(shell(&line))).await;
    soon(client.wait(wait("p", until_output("noise")))).await.unwrap();
    let mut other = client.clone();
    let reading = tokio::spawn(async move {
        let streams = vec![pb::Stream::Stderr.into()];
        ask_read(&mut other, pb::ReadRequest { streams, ..read_on("p", 1) }).await
    });
    gate.open(1);
    let answer = soon(reading).await.unwrap();
    assert_eq!(text(&answer.chunks, pb::Stream::Stderr), "word\n");
    assert_eq!((answer.chunks.len(), answer.ended), (1, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_take_nothing_from_each_other() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", shell(&format!("{LINES}; seq 5000; {LINES}"))).await;
    let readers: Vec<_> = (0..30)
        .map(|n| {
            let mut client = client.clone();
            tokio::spawn(async move { read_to_end(&mut client, "p", 1 << (n % 12 + 5)).await })
        })
        .collect();
    let numbers: String = (1..=5000).map(|n| format!("{n}\n")).collect();
    let expected = lines("out") + &numbers + &lines("out");
    for reader in readers {
        let transcript = soon(reader).await.unwrap();
        assert!(transcript.stdout() == expected, "a reader got something else");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_read_wakes_on_output_and_on_the_end() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = shell("stty -echo 2>/dev/null; echo up; read x; echo $x; read y");
    for (id, spec) in [("pipes", with_stdin(line.clone())), ("terminal", on_terminal(line))] {
        begin(&mut client, id, spec).await;
        let up = soon(client.wait(wait(id, until_output("up\r?\n")))).await.unwrap();
        let seen = up.into_inner().wait.unwrap().r#match.unwrap().seq;
        let other = client.clone();
        let waiting = |since_seq| {
            let mut client = other.clone();
            tokio::spawn(async move { ask_read(&mut client, read_on(id, since_seq)).await })
        };
        let reading = waiting(seen + 1);
        soon(client.write_stdin(typed(id, "word\n"))).await.unwrap();
        let mut answer = soon(reading).await.unwrap();
        assert!(answer.chunks[0].data.starts_with(b"word"));
        // On a terminal the end of a line may come after the line.
        while !answer.chunks.last().unwrap().data.ends_with(b"\n") {
            answer = soon(waiting(answer.cursor.unwrap().next_seq)).await.unwrap();
        }
        assert!(!answer.ended);
        let reading = waiting(answer.cursor.unwrap().next_seq);
        soon(client.write_stdin(typed(id, "\n"))).await.unwrap();
        let answer = soon(reading).await.unwrap();
        assert_eq!((answer.chunks.len(), answer.ended), (0, true));
        assert_eq!(answer.state(), pb::State::Exited);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wake_up_is_lost_however_short_a_process_is() {
    let service = TestService::start();
    let client = service.client().await;
    let (tasks, each) = (10, if full_volume() { 500 } else { 40 });
    let readers: Vec<_> = (0..tasks)
        .map(|task| {
            let mut client = client.clone();
            tokio::spawn(async move {
                for n in 0..each {
                    let id = format!("p-{task}-{n}");
                    let (spec, expected) = match n % 3 {
                        0 => (argv(&["true"]), ""),
                        1 => (argv(&["echo", "word"]), "word\n"),
                        _ => (shell("echo a; echo b"), "a\nb\n"),
                    };
                    begin(&mut client, &id, spec).await;
                    // It waits for as long as may be: only a wake-up ends it in time.
                    let transcript = read_to_end(&mut client, &id, 1 << 20).await;
                    assert_eq!(transcript.stdout(), expected);
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_is_said_only_when_it_has_exited_and_all_was_read() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let line = format!("echo one; read x <{0}; echo two; read x <{0}", gate.path);
    begin(&mut client, "p", shell(&line)).await;
    let one = ask_read(&mut client, read_on("p", 1)).await;
    assert_eq!((one.chunks.len(), one.ended), (1, false));
    gate.open(1);
    soon(client.wait(wait("p", until_output("two")))).await.unwrap();
    let all = ask_read(&mut client, read("p")).await;
    assert_eq!(text(&all.chunks, pb::Stream::Stdout), "one\ntwo\n");
    assert!(!all.ended, "it has not exited");
    assert!(!get(&mut client, "p").await.transcript.unwrap().ended);
    gate.open(1);
    soon(client.wait(wait("p", until_exit()))).await.unwrap();
    let page = pb::ReadRequest { view: paged(1), ..read("p") };
    let part = ask_read(&mut client, page).await;
    assert_eq!(text(&part.chunks, pb::Stream::Stdout), "one\n");
    assert!(!part.ended, "there is more to read");
    assert_eq!(part.state(), pb::State::Exited);
    assert!(ask_read(&mut client, read("p")).await.ended);
    let next_seq = all.cursor.unwrap().next_seq;
    let end = ask_read(&mut client, read_on("p", next_seq)).await;
    assert_eq!((end.chunks.len(), end.ended), (0, true));
    assert!(get(&mut client, "p").await.transcript.unwrap().ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_is_over_is_an_answer_and_one_that_is_too_long_is_refused() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", shell("sleep 600")).await;
    let patient = pb::ReadRequest { wait: Some(millis(20)), ..read("p") };
    let answer = ask_read(&mut client, patient).await;
    assert_eq!((answer.chunks.len(), answer.ended), (0, false));
    let negative = prost_types::Duration { seconds: -1, nanos: 0 };
    for wait in [millis(600_001), negative] {
        let request = pb::ReadRequest { wait: Some(wait), view: paged((3 << 20) + 1), ..read("p") };
        let status = soon(client.read(request)).await.unwrap_err();
        assert_eq!((status.code(), &reason(&status)[..]), (Code::InvalidArgument, "INVALID_FIELD"));
        assert_eq!(bad_fields(&status), ["view.max_bytes", "wait"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_after_the_end_is_refused_and_one_at_the_end_is_not() {
    let service = TestService::start();
    let mut client = service.client().await;
    run_to_end(&mut client, "done", argv(&["echo", "word"])).await;
    run_to_end(&mut client, "silent", argv(&["true"])).await;
    begin(&mut client, "live", argv(&["sleep", "600"])).await;
    for (id, next) in [("done", 2), ("silent", 1), ("live", 1)] {
        let at = pb::ReadRequest { since_seq: Some(next), ..read(id) };
        assert_eq!(ask_read(&mut client, at).await.ended, id != "live");
        for ahead in [next + 1, u64::MAX] {
            let request = pb::ReadRequest { since_seq: Some(ahead), ..read(id) };
            let status = soon(client.read(request)).await.unwrap_err();
            assert_eq!((status.code(), &reason(&status)[..]), (Code::OutOfRange, "CURSOR_AHEAD"));
            let metadata = details(&status).error_info().unwrap().metadata.clone();
            assert_eq!(metadata["next"], next.to_string());
        }
    }
    let nobody = soon(client.read(read("nobody"))).await;
    assert_eq!(refusal(nobody), (Code::NotFound, "PROCESS_NOT_FOUND".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_whose_cursor_was_overrun_learns_exactly_how_much_it_missed() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    // Eight bytes at a time, so that the pattern goes on through all of it.
    let line = format!(
        "printf '0123456\\n'; read x <{0}; printf '0123456\\n'; read x <{0}; \
         yes 0123456 | head -c 1000000",
        gate.path
    );
    begin(&mut client, "p", in_small_ring(shell(&line), pb::Overflow::DropOldest)).await;
    let first = ask_read(&mut client, read_on("p", 1)).await;
    assert_eq!(first.chunks.len(), 1);
    let (first, mut second) = (first.cursor.unwrap().next_seq, Transcript::new());
    gate.open(1);
    let more = ask_read(&mut client, read_on("p", first)).await;
    assert_eq!((more.chunks.len(), more.chunks[0].seq), (1, 2));
    gate.open(1);
    soon(client.wait(wait("p", until_exit()))).await.unwrap();

    // Both cursors came in answers, whoever they were given to.
    for (cursor, before) in [(first, 8), (more.cursor.unwrap().next_seq, 16), (1, 0)] {
        second = Transcript::new();
        let answer = ask_read(&mut client, read_on("p", cursor)).await;
        let gap = answer.gap.expect("a gap");
        let oldest = &answer.chunks[0];
        assert_eq!((gap.from_seq, gap.to_seq + 1), (cursor, oldest.seq));
        assert_eq!(gap.dropped_bytes, Some(oldest.offset - before));
        assert_eq!(answer.cursor.unwrap().since_seq, cursor);
        for chunk in &answer.chunks {
            assert_repeats(b"0123456\n", chunk.offset, &chunk.data);
        }
        if cursor == 1 {
            second.take(answer.gap, &answer.chunks);
        }
    }
    assert_eq!(second.received() + second.dropped, 1_000_016);
    assert!(second.received() > SMALL / 2, "only {} bytes were kept", second.received());
    let figures = get(&mut client, "p").await.transcript.unwrap();
    assert_eq!((figures.total_bytes, figures.dropped_bytes), (1_000_016, second.dropped));
    // Without a cursor, reading begins with the oldest that is kept, and misses nothing.
    let oldest = ask_read(&mut client, read("p")).await;
    assert_eq!((oldest.gap, oldest.chunks[0].seq), (None, figures.first_seq));
    assert_eq!(oldest.cursor.unwrap().first_seq, figures.first_seq);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_that_nobody_was_given_brings_a_gap_of_unknown_size() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "yes 0123456 | head -c 1000000";
    run_to_end(&mut client, "p", in_small_ring(shell(line), pb::Overflow::DropOldest)).await;
    let answer = ask_read(&mut client, read_on("p", 2)).await;
    let gap = answer.gap.unwrap();
    assert_eq!((gap.from_seq, gap.to_seq + 1), (2, answer.chunks[0].seq));
    assert_eq!(gap.dropped_bytes, None, "it cannot be known");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_along_a_flood_accounts_for_every_byte() {
    let service = TestService::start();
    let mut client = service.client().await;
    let total = if full_volume() { 200_000_000 } else { 20_000_000 };
    let line = format!("yes 0123456 | head -c {total}");
    begin(&mut client, "p", in_small_ring(shell(&line), pb::Overflow::DropOldest)).await;
    let mut transcript = Transcript::new();
    loop {
        let answer = ask_read(&mut client, read_on("p", transcript.next_seq)).await;
        for chunk in &answer.chunks {
            assert_repeats(b"0123456\n", chunk.offset, &chunk.data);
        }
        transcript.take(answer.gap, &answer.chunks);
        if answer.ended {
            break;
        }
    }
    assert_eq!(transcript.received() + transcript.dropped, total);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_descendant_prints_after_the_exit_can_still_be_read() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let line = format!("(read x <{}; echo late) & echo early", gate.path);
    let process = run_to_end(&mut client, "p", shell(&line)).await;
    assert!(!process.exit.as_ref().unwrap().output_complete);
    assert_eq!(process.lingering.len(), 1);
    let early = ask_read(&mut client, read("p")).await;
    assert_eq!(text(&early.chunks, pb::Stream::Stdout), "early\n");
    assert!(early.ended);
    gate.open(1);
    let since_seq = early.cursor.unwrap().next_seq;
    let late = soon(async {
        loop {
            let answer = ask_read(&mut client, read_on("p", since_seq)).await;
            assert!(answer.ended, "all that there is was read");
            if !answer.chunks.is_empty() {
                break answer;
            }
        }
    })
    .await;
    assert_eq!(text(&late.chunks, pb::Stream::Stdout), "late\n");
    soon(async { while !get(&mut client, "p").await.exit.unwrap().output_complete {} }).await;
    assert_eq!(get(&mut client, "p").await.exit.unwrap().final_seq, since_seq);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binary_output_comes_back_as_it_is() {
    let service = TestService::start();
    let mut client = service.client().await;
    let file = service.directory.path().join("binary");
    // Every byte next to every other.
    let binary: Vec<u8> = (0..=255u8).flat_map(|a| (0..=255u8).flat_map(move |b| [a, b])).collect();
    std::fs::write(&file, &binary).unwrap();
    let pipes = shell(&format!("cat {}", file.display()));
    let terminal = on_terminal(shell(&format!("stty raw -echo; cat {}", file.display())));
    for (id, spec, stream) in
        [("p", pipes, pb::Stream::Stdout), ("t", terminal, pb::Stream::Terminal)]
    {
        begin(&mut client, id, spec).await;
        let transcript = read_to_end(&mut client, id, 10_000).await;
        assert!(transcript.stream(stream) == binary, "not the same on {stream:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn characters_that_come_byte_by_byte_are_not_touched() {
    let service = TestService::start();
    let mut client = service.client().await;
    let characters = "aé漢😀";
    let prints: String =
        characters.bytes().map(|byte| format!("printf '\\{byte:03o}'; read x; ")).collect();
    let pipes = with_stdin(shell(&prints));
    let terminal = on_terminal(shell(&format!("stty -echo; {prints}")));
    for (id, spec) in [("p", pipes), ("t", terminal)] {
        begin(&mut client, id, spec).await;
        for (n, byte) in characters.bytes().enumerate() {
            let answer = ask_read(&mut client, read_on(id, n as u64 + 1)).await;
            let data: Vec<&[u8]> = answer.chunks.iter().map(|chunk| &chunk.data[..]).collect();
            assert_eq!(data, [[byte]]);
            soon(client.write_stdin(typed(id, "\n"))).await.unwrap();
        }
        let all = read_to_end(&mut client, id, 1 << 20).await;
        assert_eq!(all.bytes.into_values().collect::<Vec<_>>().concat(), characters.as_bytes());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_output_without_a_newline_is_read_whole_from_a_ring_that_blocks() {
    let total: u64 = if full_volume() { 100_000_000 } else { 10_000_000 };
    let service = TestService::start();
    let mut client = service.client().await;
    let line = format!("yes 0123456 | tr -d '\\n' | head -c {total}");
    let spec = pb::Spec { overflow: pb::Overflow::Block.into(), ..shell(&line) };
    begin(&mut client, "p", spec).await;
    let mut transcript = Transcript::new();
    loop {
        let ack_seq = transcript.next_seq - 1;
        let request = pb::ReadRequest { ack_seq, ..read_on("p", transcript.next_seq) };
        let answer = ask_read(&mut client, request).await;
        for chunk in &answer.chunks {
            assert_repeats(b"0123456", chunk.offset, &chunk.data);
        }
        transcript.take(answer.gap, &answer.chunks);
        if answer.ended {
            break;
        }
    }
    assert_eq!((transcript.received(), transcript.gaps), (total, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_that_blocks_makes_its_process_wait_until_readers_acknowledge() {
    let service = TestService::start();
    let mut client = service.client().await;
    let done = service.directory.path().join("done");
    let total = 4_000_000;
    let line = format!("yes 0123456 | head -c {total}; touch {}", done.display());
    begin(&mut client, "p", in_small_ring(shell(&line), pb::Overflow::Block)).await;
    let mut transcript = Transcript::new();
    loop {
        // Half a ring is acknowledged at a time; the rest does not fit into ring and pipes.
        let ack_seq = transcript.next_seq - 1;
        let view = paged(SMALL as u32 / 2);
        let request = pb::ReadRequest { ack_seq, view, ..read_on("p", transcript.next_seq) };
        let answer = ask_read(&mut client, request).await;
        transcript.take(answer.gap, &answer.chunks);
        assert!(transcript.received() > total - 1_500_000 || !done.exists(), "it did not wait");
        if answer.ended {
            break;
        }
    }
    assert_eq!((transcript.received(), transcript.gaps), (total, 0));
    assert!(done.exists());
    // Who acknowledges late, or more than there is, does no harm.
    for ack_seq in [1, transcript.next_seq, u64::MAX] {
        let request = pb::ReadRequest { ack_seq, ..read_on("p", transcript.next_seq) };
        assert!(ask_read(&mut client, request).await.ended);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_waits_for_an_acknowledgement_can_be_killed_and_read() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", in_small_ring(argv(&["yes"]), pb::Overflow::Block)).await;
    let mut full = 0;
    soon(async {
        // Until it prints no more.
        loop {
            let now = get(&mut client, "p").await.transcript.unwrap().total_bytes;
            if now > SMALL / 2 && now == full {
                break;
            }
            full = now;
            soon(client.wait(wait("p", until_quiet(50)))).await.unwrap();
        }
    })
    .await;
    end(&mut client, "p").await;
    let transcript = read_to_end(&mut client, "p", 1 << 20).await;
    let figures = get(&mut client, "p").await.transcript.unwrap();
    assert_eq!((transcript.received(), transcript.gaps), (figures.total_bytes, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_who_leaves_touches_nothing() {
    let service = TestService::start();
    let mut client = service.client().await;
    let process = begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    for _ in 0..50 {
        let mut other = client.clone();
        let reading = tokio::spawn(async move { other.read(read_on("p", 1)).await });
        tokio::task::yield_now().await;
        reading.abort();
        let _ = reading.await;
    }
    let now = get(&mut client, "p").await;
    assert_eq!((now.pid, now.state()), (process.pid, pb::State::Running));
    let typed = pb::WriteStdinRequest { eof: true, ..typed("p", "still here") };
    soon(client.write_stdin(typed)).await.unwrap();
    assert_eq!(read_to_end(&mut client, "p", 100).await.stdout(), "still here");
}
