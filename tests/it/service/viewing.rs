//! Views: what is selected and nothing else, and an exact count of what is not.

use procyard::grpc::pb;
use procyard::grpc::pb::follow_response::Message;
use tonic::{Code, Streaming};

use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{Gate, cpu_ticks, full_volume, soon, until};

/// 10,000 lines, of which the 5,000th is an error.
const LINES: &str = "seq 1 4999; echo error: 5000; seq 5001 10000";

fn grep(pattern: &str, context: u32) -> pb::View {
    pb::View { grep: pattern.into(), context, ..Default::default() }
}

fn ends(head_lines: u32, tail_lines: u32) -> pb::View {
    pb::View { head_lines, tail_lines, ..Default::default() }
}

fn viewed(id: &str, view: pb::View) -> pb::ReadRequest {
    pb::ReadRequest { view: Some(view), ..read(id) }
}

async fn view(client: &mut Client, id: &str, view: pb::View) -> pb::ReadResponse {
    ask_read(client, viewed(id, view)).await
}

/// All that an answer shows, in order.
fn shown(chunks: &[pb::Chunk]) -> String {
    let bytes: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.data.to_vec()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn length(chunks: &[pb::Chunk]) -> u64 {
    chunks.iter().map(|chunk| chunk.data.len() as u64).sum()
}

fn omitted(bytes: u64, lines: u64) -> Option<pb::Omitted> {
    Some(pb::Omitted { bytes, lines })
}

/// What comes of following, up to the end.
async fn followed(
    mut stream: Streaming<pb::FollowResponse>,
) -> (Vec<pb::Chunk>, Option<pb::Omitted>) {
    let mut chunks = Vec::new();
    loop {
        match next_message(&mut stream).await {
            Message::Chunk(chunk) => chunks.push(chunk),
            Message::Gap(gap) => panic!("{gap:?}"),
            Message::Heartbeat(_) => {}
            Message::End(end) => return (chunks, end.omitted),
        }
    }
}

/// The next chunks of a stream, until they show so much.
async fn shows(stream: &mut Streaming<pb::FollowResponse>, expected: &str) {
    let mut got = String::new();
    while got.len() < expected.len() {
        let Message::Chunk(chunk) = next_message(stream).await else {
            panic!("no chunk after {got:?}");
        };
        got += &shown(&[chunk]);
    }
    assert_eq!(got, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_error_in_ten_thousand_lines_is_found_with_its_context_and_the_rest_is_counted() {
    let service = TestService::start();
    let mut client = service.client().await;
    let all = run_to_end(&mut client, "p", shell(LINES)).await.transcript.unwrap();
    let around = "4998\n4999\nerror: 5000\n5001\n5002\n";
    let rest = all.total_bytes - around.len() as u64;
    let found = view(&mut client, "p", grep("error", 2)).await;
    assert_eq!((shown(&found.chunks).as_str(), found.omitted), (around, omitted(rest, 9995)));
    assert!(found.ended && found.cursor.unwrap().next_seq == all.next_seq);
    // The same by following it, and in upper case.
    let view = pb::View { ignore_case: true, ..grep("ERROR", 2) };
    let request = pb::FollowRequest { view: Some(view.clone()), ..follow("p") };
    let (chunks, left) = followed(ask_follow(&mut client, request).await).await;
    assert_eq!((shown(&chunks).as_str(), left), (around, omitted(rest, 9995)));
    let none = pb::View { ignore_case: false, ..view };
    let found = ask_read(&mut client, viewed("p", none)).await;
    assert_eq!((found.chunks.len(), found.omitted), (0, omitted(all.total_bytes, 10_000)));
    assert!(found.ended && found.uptime.is_some() && found.last_output_time.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_of_a_transcript_are_shown_and_its_middle_is_counted() {
    let service = TestService::start();
    let mut client = service.client().await;
    let all = run_to_end(&mut client, "p", shell("seq 1 10000")).await.transcript.unwrap();
    for (head, tail, expected, lines) in
        [(2, 0, "1\n2\n", 9998), (0, 2, "9999\n10000\n", 9998), (2, 1, "1\n2\n10000\n", 9997)]
    {
        let answer = view(&mut client, "p", ends(head, tail)).await;
        assert_eq!(shown(&answer.chunks), expected);
        let rest = all.total_bytes - expected.len() as u64;
        assert_eq!(answer.omitted, omitted(rest, lines));
        assert!(answer.ended && answer.cursor.unwrap().next_seq == all.next_seq);
    }
    let whole = view(&mut client, "p", ends(8000, 8000)).await;
    let expected: String = (1..=10_000).map(|n| format!("{n}\n")).collect();
    assert!(shown(&whole.chunks) == expected && whole.omitted == omitted(0, 0));
    // Of lines that match it is those that count; the first and the last of them stay.
    let some = pb::View { head_lines: 1, tail_lines: 1, ..grep("^.*99$", 1) };
    let answer = view(&mut client, "p", some).await;
    assert_eq!(shown(&answer.chunks), "98\n99\n100\n9998\n9999\n10000\n");
    // What does not fit is left out from the middle.
    let little = pb::View { max_bytes: 200, ..ends(1000, 1000) };
    let answer = view(&mut client, "p", little).await;
    let text = shown(&answer.chunks);
    assert!(text.starts_with("1\n2\n3\n") && text.ends_with("9999\n10000\n"), "{text}");
    assert!(length(&answer.chunks) + 128 <= 200);
    let left = answer.omitted.unwrap();
    assert_eq!(left.bytes + length(&answer.chunks), all.total_bytes);
    assert_eq!(left.lines + text.lines().count() as u64, 10_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_matching_lines_add_up_and_nothing_is_lost_or_doubled() {
    let service = TestService::start();
    let mut client = service.client().await;
    let all = run_to_end(&mut client, "p", shell("seq 1 20000")).await.transcript.unwrap();
    let expected: String =
        (1..=20_000).filter(|n| n.to_string().contains('7')).map(|n| format!("{n}\n")).collect();
    for max_bytes in [1, 20_000, 3 << 20] {
        let (mut since_seq, mut got, mut left) = (1, Vec::new(), pb::Omitted::default());
        loop {
            let view = Some(pb::View { max_bytes, ..grep("7", 0) });
            let request = pb::ReadRequest { view, since_seq: Some(since_seq), ..read("p") };
            let page = ask_read(&mut client, request).await;
            let omitted = page.omitted.unwrap();
            (left.bytes, left.lines) = (left.bytes + omitted.bytes, left.lines + omitted.lines);
            got.extend(page.chunks);
            if page.ended {
                break;
            }
            assert!(page.cursor.unwrap().next_seq > since_seq, "no way forward");
            since_seq = page.cursor.unwrap().next_seq;
        }
        assert!(shown(&got) == expected, "pages of {max_bytes}");
        let lines = 20_000 - expected.lines().count() as u64;
        assert_eq!(left, pb::Omitted { bytes: all.total_bytes - expected.len() as u64, lines });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn escape_sequences_are_left_out_also_where_chunks_and_reads_cut_them() {
    let service = TestService::start();
    let mut client = service.client().await;
    let strip = pb::View { strip_ansi: true, ..Default::default() };
    let colour = on_terminal(shell(r"printf '\033[31mred\033[0m\n'"));
    let request = pb::StartRequest { view: Some(strip.clone()), ..run("red", colour) };
    let answer = soon(client.start(request)).await.unwrap().into_inner();
    assert_eq!(shown(&answer.chunks), "red\r\n");
    assert_eq!(answer.omitted, omitted(9, 0));

    // Each byte is a chunk of its own, and each is read by itself.
    let sequence = "a\x1b[38;5;1mb\x1b]0;title\x07c\x1b(B\u{e4}\r\nd";
    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    let (mut since_seq, mut got, mut left) = (1, String::new(), 0);
    for (at, byte) in sequence.bytes().enumerate() {
        write(&mut client, typed("p", [byte])).await;
        let wait = ask_read(&mut client, read_on("p", at as u64 + 1)).await;
        assert_eq!(wait.chunks.len(), 1);
        let view = Some(strip.clone());
        let request = pb::ReadRequest { view, since_seq: Some(since_seq), ..read("p") };
        let answer = ask_read(&mut client, request).await;
        since_seq = answer.cursor.unwrap().next_seq;
        assert_eq!(since_seq, at as u64 + 2);
        left += answer.omitted.unwrap().bytes;
        got.extend(answer.chunks.iter().flat_map(|chunk| chunk.data.to_vec()).map(char::from));
    }
    assert_eq!(got, "abc\u{c3}\u{a4}\r\nd");
    assert_eq!(left as usize + "abcä\r\nd".len(), sequence.len());
    let whole = view(&mut client, "p", strip.clone()).await;
    assert_eq!(shown(&whole.chunks), "abc\u{e4}\r\nd");
    let found = view(&mut client, "p", pb::View { strip_ansi: true, ..grep("^abcä$", 0) }).await;
    assert_eq!(shown(&found.chunks), "abc\u{e4}\r\n");
    // Two who follow: one sees it stripped, and one finds a line.
    write(&mut client, pb::WriteStdinRequest { eof: true, ..typed("p", "") }).await;
    let request = pb::FollowRequest { view: Some(strip), ..follow("p") };
    let (chunks, left) = followed(ask_follow(&mut client, request).await).await;
    assert_eq!(shown(&chunks), "abc\u{e4}\r\nd");
    assert_eq!(left.unwrap().bytes + length(&chunks), sequence.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_viewed_apart_and_together_without_mixing_their_lines() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    // Each half of a line is a chunk, with the other stream between.
    let halves = "printf 'one '; read x <GATE; printf 'oops ' >&2; read x <GATE; \
        printf 'line\\ntwo\\n'; read x <GATE; printf 'again\\n' >&2; read x <GATE";
    begin(&mut client, "p", shell(&halves.replace("GATE", &gate.path))).await;
    for chunk in 1..=4 {
        ask_read(&mut client, read_on("p", chunk)).await;
        gate.open(1);
    }
    ended(&mut client, "p").await;
    let all = view(&mut client, "p", ends(0, 10)).await;
    assert_eq!(shown(&all.chunks), "one line\noops again\ntwo\n");
    let found = view(&mut client, "p", grep("one|again", 0)).await;
    assert_eq!(shown(&found.chunks), "one line\noops again\n");
    assert_eq!(found.omitted, omitted(4, 1));
    let places = found.chunks.iter().map(|chunk| (chunk.seq, chunk.stream(), chunk.offset));
    let (stdout, stderr) = (pb::Stream::Stdout, pb::Stream::Stderr);
    let expected = [(1, stdout, 0), (3, stdout, 4), (2, stderr, 0), (4, stderr, 5)];
    assert_eq!(places.collect::<Vec<_>>(), expected);
    for (stream, expected, left) in
        [(stdout, "two\n", omitted(9, 1)), (stderr, "oops again\n", omitted(0, 0))]
    {
        let request = pb::ReadRequest { streams: vec![stream.into()], ..viewed("p", ends(0, 1)) };
        let answer = ask_read(&mut client, request).await;
        assert_eq!((shown(&answer.chunks).as_str(), answer.omitted), (expected, left));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn characters_cut_at_every_byte_are_whole_in_a_view() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    let line = "für 10 € ✔ 𝄞\n";
    let mut next_seq = 1;
    for byte in line.repeat(2).bytes() {
        write(&mut client, typed("p", [byte])).await;
        next_seq = ask_read(&mut client, read_on("p", next_seq)).await.cursor.unwrap().next_seq;
    }
    assert_eq!(next_seq as usize, 2 * line.len() + 1, "each byte is a chunk");
    for some in [grep("€ ✔ .$", 0), ends(1, 1), pb::View { strip_ansi: true, ..ends(0, 2) }] {
        let answer = view(&mut client, "p", some).await;
        assert_eq!((shown(&answer.chunks), answer.omitted), (line.repeat(2), omitted(0, 0)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_waits_for_what_matches_and_counts_what_does_not() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    let mut waiting = client.clone();
    let request = pb::ReadRequest { view: Some(grep("error", 0)), ..read_on("p", 1) };
    let waiting = tokio::spawn(async move { ask_read(&mut waiting, request).await });
    // It is cut in the middle of the word.
    for (at, part) in ["fine\n", "fine, too\n", "an err", "or\n"].iter().enumerate() {
        write(&mut client, typed("p", part)).await;
        ask_read(&mut client, read_on("p", at as u64 + 1)).await;
    }
    let answer = soon(waiting).await.unwrap();
    assert_eq!(shown(&answer.chunks), "an error\n");
    assert_eq!((answer.omitted, answer.cursor.unwrap().next_seq), (omitted(15, 2), 5));
    // A line under way that may match yet is left for the next read.
    write(&mut client, typed("p", "fine\n")).await;
    ask_read(&mut client, read_on("p", 5)).await;
    write(&mut client, typed("p", "err")).await;
    ask_read(&mut client, read_on("p", 6)).await;
    let brief = |since_seq| pb::ReadRequest {
        wait: Some(millis(20)),
        view: Some(grep("error", 0)),
        ..read_on("p", since_seq)
    };
    let empty = ask_read(&mut client, brief(5)).await;
    assert_eq!((empty.chunks.len(), empty.omitted), (0, omitted(5, 1)));
    assert_eq!((empty.cursor.unwrap().next_seq, empty.ended), (6, false));
    write(&mut client, typed("p", "or?")).await;
    ask_read(&mut client, read_on("p", 7)).await;
    let prompt = ask_read(&mut client, brief(6)).await;
    assert_eq!((shown(&prompt.chunks).as_str(), prompt.omitted), ("error?", omitted(0, 0)));
    // The end wakes, and so it does who finds nothing.
    let mut waiting = client.clone();
    let request = pb::ReadRequest { view: Some(grep("never", 0)), ..read_on("p", 1) };
    let waiting = tokio::spawn(async move { ask_read(&mut waiting, request).await });
    write(&mut client, pb::WriteStdinRequest { eof: true, ..typed("p", "") }).await;
    let answer = soon(waiting).await.unwrap();
    assert!(answer.ended && answer.chunks.is_empty());
    assert_eq!(answer.omitted, omitted(35, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn matching_lines_are_followed_as_they_come_after_the_last_that_are_there() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    let first = "error 1\nfine\nerror 2\nfine\nbefore 3\nerror 3\n";
    write(&mut client, typed("p", first)).await;
    ask_read(&mut client, read_on("p", 1)).await;
    let view = |tail_lines, view| Some(pb::View { tail_lines, ..view });
    let request = pb::FollowRequest { view: view(1, grep("error", 1)), ..follow("p") };
    let mut finds = ask_follow(&mut client, request).await;
    let request = pb::FollowRequest { view: view(2, pb::View::default()), ..follow("p") };
    let mut all = ask_follow(&mut client, request).await;
    shows(&mut finds, "before 3\nerror 3\n").await;
    shows(&mut all, "before 3\nerror 3\n").await;
    // What follows a match comes with it, and what is not whole does not come yet.
    for part in ["after 3\nfine\nbef", "ore 4\nan err", "or 4\nlast"] {
        write(&mut client, typed("p", part)).await;
        shows(&mut all, part).await;
    }
    shows(&mut finds, "after 3\nbefore 4\nan error 4\n").await;
    write(&mut client, pb::WriteStdinRequest { eof: true, ..typed("p", "!") }).await;
    let (chunks, left) = followed(finds).await;
    assert_eq!(shown(&chunks), "last!");
    let fine = "error 1\nfine\nerror 2\nfine\n".len() as u64 + "fine\n".len() as u64;
    assert_eq!(left, omitted(fine, 5));
    let (chunks, left) = followed(all).await;
    assert_eq!((shown(&chunks).as_str(), left), ("!", omitted(fine - 5, 4)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_out_is_told_wherever_a_view_is_taken() {
    let service = TestService::start();
    let mut client = service.client().await;
    let lines = "echo ready; seq 1 100; while read x; do seq 1 $x; done";
    let started = pb::StartRequest {
        wait: Some(until_output("100\n")),
        view: Some(ends(1, 1)),
        ..start("p", with_stdin(shell(lines)))
    };
    let answer = soon(client.start(started)).await.unwrap().into_inner();
    assert_eq!(shown(&answer.chunks), "ready\n100\n");
    assert_eq!(answer.omitted, omitted(288, 99));
    assert!(answer.cursor.unwrap().next_seq > 1);
    let request = pb::WaitRequest { view: Some(grep("^1.$", 0)), ..wait("p", until_output("100")) };
    let waited = soon(client.wait(request)).await.unwrap().into_inner();
    let teens: String = (10..20).map(|n| format!("{n}\n")).collect();
    assert_eq!((shown(&waited.chunks), waited.omitted), (teens, omitted(268, 91)));
    let typed = pb::WriteStdinRequest {
        wait: Some(until_output("20\n")),
        view: Some(ends(0, 1)),
        ..typed("p", "20\n")
    };
    let wrote = write(&mut client, typed).await;
    assert_eq!((shown(&wrote.chunks).as_str(), wrote.omitted), ("20\n", omitted(48, 19)));
    let plain = soon(client.wait(wait("p", until_output("20")))).await.unwrap().into_inner();
    assert_eq!(plain.omitted, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_view_is_refused_wherever_it_is_taken_with_all_that_is_bad() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    let bad = || Some(pb::View { head_lines: 100_001, ..grep("ä(b", 1001) });
    let read = client.read(viewed("p", bad().unwrap())).await.unwrap_err();
    let start = pb::StartRequest { view: bad(), ..start("q", argv(&["true"])) };
    let started = client.start(start).await.unwrap_err();
    let wait = pb::WaitRequest { view: bad(), ..wait("p", until_exit()) };
    let waited = client.wait(wait).await.unwrap_err();
    let wrote = pb::WriteStdinRequest { view: bad(), ..typed("p", "x") };
    let wrote = client.write_stdin(wrote).await.unwrap_err();
    let follow = pb::FollowRequest { view: bad(), ..follow("p") };
    let followed = client.follow(follow).await.unwrap_err();
    for status in [read, started, waited, wrote, followed] {
        assert_eq!(
            (status.code(), reason(&status)),
            (Code::InvalidArgument, "INVALID_FIELD".into())
        );
        assert_eq!(bad_fields(&status), ["view.head_lines", "view.context", "view.grep"]);
        assert!(status.message().contains("at character 2: unclosed group"), "{status:?}");
    }
    assert_eq!(ids(&list(&mut client).await), ["p"], "nothing was started");
}

/// FAULTS 22: no view is afraid of a line that never ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_megabytes_without_a_newline_are_shown_in_every_view() {
    let service = TestService::start();
    let mut client = service.client().await;
    let total: u64 = if full_volume() { 100_000_000 } else { 10_000_000 };
    let line = format!("head -c {total} /dev/zero | tr '\\0' x");
    let spec = pb::Spec { transcript_bytes: 256 << 20, ..shell(&line) };
    let all = run_to_end(&mut client, "p", spec).await.transcript.unwrap();
    assert_eq!((all.total_bytes, all.dropped_bytes), (total, 0));
    let before = own_memory(service.server_pid());
    let strip = |view| pb::View { strip_ansi: true, ..view };
    let views = [ends(1, 0), ends(0, 1), ends(5, 5), strip(ends(1, 1)), strip(grep("x$", 3))];
    for some in views.into_iter().chain([grep("x", 0), grep("y", 10), strip(ends(0, 0))]) {
        let answer = view(&mut client, "p", some.clone()).await;
        let (bytes, left) = (length(&answer.chunks), answer.omitted.unwrap());
        assert!(bytes <= 1 << 20 && (bytes > 900_000 || some.grep == "y"), "{bytes} in {some:?}");
        if answer.ended {
            assert_eq!((bytes + left.bytes, left.lines), (total, u64::from(bytes == 0)));
        }
        let live = pb::View { head_lines: 0, ..some.clone() };
        let request = pb::FollowRequest { view: Some(live), ..follow("p") };
        let (chunks, left) = followed(ask_follow(&mut client, request).await).await;
        assert_eq!(length(&chunks) + left.map_or(0, |left| left.bytes), total, "{some:?}");
    }
    let grown = own_memory(service.server_pid()).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_search_keeps_nobody_waiting() {
    let service = TestService::start();
    let mut client = service.client().await;
    // One line, and so one search that cannot be interrupted.
    run_to_end(&mut client, "p", shell("head -c 6000 /dev/zero | tr '\\0' x")).await;
    let mut other = service.client().await;
    let server = service.server_pid().cast_unsigned();
    let before = cpu_ticks(server);
    let slow = grep("(?:x[a-z]{1,60}){1,20}Q", 5);
    let searching = tokio::spawn(async move { view(&mut other, "p", slow).await });
    // There is nothing else that the server is busy with.
    let under_way = || searching.is_finished() || cpu_ticks(server) > before + 10;
    until("the search is under way", under_way).await;
    let mut answered = 0;
    while !searching.is_finished() {
        get(&mut client, "p").await;
        answered += 1;
    }
    assert_eq!(searching.await.unwrap().omitted, omitted(6000, 1));
    // Were they answered after it, there would be the first, and perhaps a few before its own
    // answer has arrived.
    assert!(answered > 20, "{answered} answers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_lines_of_a_flood_are_whole_and_all_before_them_is_accounted_for() {
    let service = TestService::start();
    let mut client = service.client().await;
    let flood = pb::Spec { transcript_bytes: 1 << 20, ..argv(&["yes", "0123456"]) };
    begin(&mut client, "p", flood).await;
    let first_seq =
        async |client: &mut Client| get(client, "p").await.transcript.unwrap().first_seq;
    soon(async { while first_seq(&mut client).await < 2 {} }).await;
    for round in 0..if full_volume() { 500 } else { 30 } {
        let request = pb::ReadRequest { since_seq: Some(1), ..viewed("p", ends(0, 3)) };
        let answer = ask_read(&mut client, request).await;
        let (gap, last) = (answer.gap.unwrap(), answer.chunks.last().unwrap());
        assert!(gap.from_seq == 1 && gap.to_seq < answer.cursor.unwrap().next_seq);
        let dropped = gap.dropped_bytes.expect("who began at the beginning knows every gap");
        let seen = answer.omitted.unwrap().bytes + length(&answer.chunks);
        let end = last.offset + last.data.len() as u64;
        assert_eq!(dropped + seen, end, "in round {round}");
        let begin = end - length(&answer.chunks);
        assert_repeats(b"0123456\n", begin, shown(&answer.chunks).as_bytes());
        assert_eq!(begin % 8, 0, "in round {round}");
    }
    let view = Some(ends(0, 3));
    let request = pb::FollowRequest { since_seq: Some(1), view, ..follow("p") };
    let mut stream = ask_follow(&mut client, request).await;
    assert!(matches!(next_message(&mut stream).await, Message::Gap(gap) if gap.from_seq == 1));
    assert!(matches!(next_message(&mut stream).await, Message::Chunk(_)));
    end(&mut client, "p").await;
}
