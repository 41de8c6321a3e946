//! Wait: what is awaited, a timeout or the end, whichever is first; and leaving touches nothing.

mod gaps;

use std::time::Duration;

use procyard::grpc::pb;
use tonic::{Code, Request};

use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{Gate, full_volume, soon};

/// The same, given up after a while.
fn within(milliseconds: u32, wait: pb::WaitFor) -> pb::WaitFor {
    pb::WaitFor { timeout: Some(millis(milliseconds)), ..wait }
}

/// Waits that nobody would sit through.
const NEVER: u32 = 3_600_000;

async fn ask(client: &mut Client, request: pb::WaitRequest) -> pb::WaitResponse {
    soon(client.wait(request)).await.unwrap().into_inner()
}

/// Waits for a process, in the background.
fn waiting(client: &Client, request: pb::WaitRequest) -> tokio::task::JoinHandle<pb::WaitResponse> {
    let mut client = client.clone();
    tokio::spawn(async move { ask(&mut client, request).await })
}

fn result(answer: &pb::WaitResponse) -> (bool, bool) {
    let result = answer.wait.as_ref().unwrap();
    (result.met, result.timed_out)
}

const MET: (bool, bool) = (true, false);
const TIMED_OUT: (bool, bool) = (false, true);
const ENDED: (bool, bool) = (false, false);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_is_awaited_and_comes_with_all_output() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let line = format!("echo first; read x <{}; echo last; exit 7", gate.path);
    begin(&mut client, "p", shell(&line)).await;
    let waits: Vec<_> = (0..20).map(|_| waiting(&client, wait("p", until_exit()))).collect();
    gate.open(1);
    for wait in waits {
        let answer = soon(wait).await.unwrap();
        assert_eq!(result(&answer), MET);
        assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "first\nlast\n");
        let process = answer.process.unwrap();
        assert_eq!((process.state(), process.exit.unwrap().code), (pb::State::Exited, Some(7)));
        assert!(process.transcript.unwrap().ended);
    }
    // Again, when it is over; and without a view there is no output, but a place to read on.
    let plain = pb::WaitRequest { view: None, ..wait("p", until_exit()) };
    let answer = ask(&mut client, plain).await;
    assert_eq!((result(&answer), answer.chunks.len()), (MET, 0));
    assert_eq!(answer.cursor.unwrap().next_seq, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_that_came_before_satisfies_unless_later_output_is_meant() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    write(
        &mut client,
        pb::WriteStdinRequest { wait: Some(until_output("one")), ..typed("p", "one") },
    )
    .await;
    for look in [until_output("one"), within(0, until_output("one"))] {
        let answer = ask(&mut client, wait("p", look)).await;
        let expected = pb::wait_result::Match { seq: 1, text: "one".into() };
        assert_eq!(answer.wait.as_ref().unwrap().r#match, Some(expected));
        assert_eq!(result(&answer), MET);
    }
    let later = pb::WaitRequest { since_seq: Some(2), ..wait("p", until_output("one")) };
    let once = pb::WaitRequest { wait: Some(within(0, until_output("one"))), ..later.clone() };
    let answer = ask(&mut client, once).await;
    assert_eq!((result(&answer), answer.chunks.len()), (TIMED_OUT, 0));
    let wait = waiting(&client, later);
    write(&mut client, typed("p", "and one more")).await;
    let answer = soon(wait).await.unwrap();
    assert_eq!(answer.wait.as_ref().unwrap().r#match.as_ref().unwrap().seq, 2);
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "and one more");
    assert_eq!(answer.cursor.unwrap().since_seq, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_match_is_found_across_chunks_of_a_byte_each() {
    let service = TestService::start();
    let mut client = service.client().await;
    let word = "listening on port 8080.";
    let prints: String = word.chars().map(|byte| format!("printf '{byte}'; read x; ")).collect();
    begin(&mut client, "p", with_stdin(shell(&prints))).await;
    let found = waiting(&client, wait("p", until_output(r"on port (\d+)\.")));
    for n in 1..=word.len() as u64 {
        // One chunk each, for the next is printed only after it was read.
        ask_read(&mut client, read_on("p", n)).await;
        write(&mut client, typed("p", "\n")).await;
    }
    let answer = soon(found).await.unwrap();
    let expected = pb::wait_result::Match { seq: 23, text: "on port 8080.".into() };
    assert_eq!(answer.wait.unwrap().r#match, Some(expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_searched_apart() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "printf re; read x; printf x >&2; read x; printf ady; read x";
    begin(&mut client, "p", with_stdin(shell(line))).await;
    let found = waiting(&client, wait("p", until_output("ready")));
    for n in 1..=3 {
        ask_read(&mut client, read_on("p", n)).await;
        if n < 3 {
            write(&mut client, typed("p", "\n")).await;
        }
    }
    let answer = soon(found).await.unwrap();
    let expected = pb::wait_result::Match { seq: 3, text: "ready".into() };
    assert_eq!(answer.wait.unwrap().r#match, Some(expected));
    let never = within(0, until_output("rexady|xady|rex"));
    assert_eq!(result(&ask(&mut client, wait("p", never)).await), TIMED_OUT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_match_that_is_not_text_is_shown_as_well_as_it_can_be() {
    let service = TestService::start();
    let mut client = service.client().await;
    run_to_end(&mut client, "p", shell("printf 'a\\377b'")).await;
    let answer = ask(&mut client, wait("p", until_output(r"(?-u)a\xffb"))).await;
    assert_eq!(answer.wait.unwrap().r#match.unwrap().text, "a\u{fffd}b");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_wakes_who_waits_for_output() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    begin(&mut client, "p", shell(&format!("echo word; read x <{}", gate.path))).await;
    let wait = || wait("p", within(NEVER, until_output("never printed")));
    let early = waiting(&client, wait());
    gate.open(1);
    for answer in [soon(early).await.unwrap(), ask(&mut client, wait()).await] {
        assert_eq!(result(&answer), ENDED);
        assert_eq!(answer.process.as_ref().unwrap().state(), pb::State::Exited);
        assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "word\n");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_awaited_and_output_puts_it_off() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    // It prints all the time, until the gate is open.
    let line = format!("(read x <{}; kill $$) & while :; do echo .; sleep 0.01; done", gate.path);
    begin(&mut client, "busy", shell(&line)).await;
    begin(&mut client, "silent", argv(&["sleep", "600"])).await;
    // One that never printed pauses too.
    assert_eq!(result(&ask(&mut client, wait("silent", until_quiet(100))).await), MET);
    let busy = wait("busy", within(300, until_quiet(3_000_000)));
    assert_eq!(result(&ask(&mut client, busy).await), TIMED_OUT);
    // The end wakes, long before the pause would be over.
    let paused = waiting(&client, wait("busy", until_quiet(3_000_000)));
    gate.open(1);
    let answer = soon(paused).await.unwrap();
    assert_eq!(answer.process.as_ref().unwrap().state(), pb::State::Exited);
    assert!(!answer.wait.unwrap().timed_out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_begins_anew_with_every_output() {
    let service = TestService::start();
    let mut client = service.client().await;
    // It prints for longer than the pause, and would have to be held up for as long to fail.
    let line = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo $i; sleep 0.1; done; exec sleep 600";
    begin(&mut client, "p", shell(line)).await;
    let answer = ask(&mut client, wait("p", until_quiet(5000))).await;
    assert_eq!(result(&answer), MET);
    assert!(text(&answer.chunks, pb::Stream::Stdout).ends_with("\n60\n"), "it was not over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_counts_from_the_call_on() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", shell("echo word; exec sleep 600")).await;
    ask(&mut client, wait("p", until_output("word"))).await;
    let answer = ask(&mut client, wait("p", until_quiet(200))).await;
    assert_eq!(result(&answer), MET);
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "word\n");
    // However long it has been silent.
    let answer = ask(&mut client, wait("p", within(0, until_quiet(200)))).await;
    assert_eq!(result(&answer), TIMED_OUT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_is_an_answer_and_leaves_the_process_alone() {
    let service = TestService::start();
    let mut client = service.client().await;
    let process = begin(&mut client, "p", shell("echo word; exec sleep 600")).await;
    ask(&mut client, wait("p", until_output("word"))).await;
    for timeout in [0, 20] {
        for until in [until_exit(), until_output("never"), until_quiet(3_000_000)] {
            let answer = ask(&mut client, wait("p", within(timeout, until))).await;
            assert_eq!(result(&answer), TIMED_OUT);
            assert_eq!(answer.wait.unwrap().r#match, None);
            assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "word\n");
            let now = answer.process.unwrap();
            assert_eq!((now.pid, now.state()), (process.pid, pb::State::Running));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_or_runs_into_a_deadline_touches_nothing() {
    let service = TestService::start();
    let mut client = service.client().await;
    let process = begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    for until in [until_exit(), until_output("never"), until_quiet(3_000_000)] {
        let mut request = Request::new(wait("p", until.clone()));
        request.set_timeout(Duration::from_millis(50));
        let status = soon(client.wait(request)).await.unwrap_err();
        assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
        let waiting = waiting(&client, wait("p", until));
        tokio::time::sleep(Duration::from_millis(20)).await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
    }
    let now = get(&mut client, "p").await;
    assert_eq!((now.pid, now.state()), (process.pid, pb::State::Running));
    write(&mut client, pb::WriteStdinRequest { eof: true, ..typed("p", "fine") }).await;
    let answer = ask(&mut client, wait("p", until_exit())).await;
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "fine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_being_started_can_be_waited_for() {
    let service = TestService::start();
    let client = service.client().await;
    for n in 0..if full_volume() { 500 } else { 50 } {
        let id = format!("p{n}");
        let (mut starter, mut waiter) = (client.clone(), client.clone());
        let started = {
            let id = id.clone();
            tokio::spawn(async move { begin(&mut starter, &id, argv(&["echo", "word"])).await })
        };
        let until = [until_exit(), until_output("word"), until_quiet(1)];
        let answer = soon(async {
            loop {
                let request = wait(&id, until[n % 3].clone());
                match waiter.wait(request).await {
                    Ok(answer) => break answer.into_inner(),
                    Err(status) => assert_eq!(reason(&status), "PROCESS_NOT_FOUND"),
                }
            }
        })
        .await;
        assert_eq!(result(&answer), MET);
        let started = started.await.unwrap();
        if n % 3 == 0 {
            assert_eq!(answer.process.unwrap().pid, started.pid);
            assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "word\n");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_awaited_is_refused() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", argv(&["sleep", "600"])).await;
    let nothing = pb::WaitFor { until: None, timeout: None };
    for (until, field) in [
        (until_output("a)"), "wait.output.regex"),
        (until_output(""), "wait.output.regex"),
        (until_output(&"x".repeat(4097)), "wait.output.regex"),
        (until_quiet(0), "wait.quiet.for"),
        (within(86_400_001, until_exit()), "wait.timeout"),
        (nothing, "wait.until"),
    ] {
        let status = soon(client.wait(wait("p", until))).await.unwrap_err();
        assert_eq!((status.code(), &reason(&status)[..]), (Code::InvalidArgument, "INVALID_FIELD"));
        assert_eq!(bad_fields(&status), [field]);
    }
    // A pattern that would take for ever elsewhere is only a pattern here.
    let large = until_output("(?:a{1,100}){1,100}(?:b{1,100}){1,100}c{1,1000}");
    let status = soon(client.wait(wait("p", within(0, large)))).await.map(drop);
    assert!(status.is_ok() || refusal(status) == (Code::InvalidArgument, "INVALID_FIELD".into()));
    let ahead = pb::WaitRequest { since_seq: Some(2), ..wait("p", until_exit()) };
    let refused = soon(client.wait(ahead)).await;
    assert_eq!(refusal(refused), (Code::OutOfRange, "CURSOR_AHEAD".into()));
    let nobody = soon(client.wait(wait("nobody", until_exit()))).await;
    assert_eq!(refusal(nobody), (Code::NotFound, "PROCESS_NOT_FOUND".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_word_is_found_in_a_flood_that_fits_its_ring() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "seq 1 500000; echo the-word; seq 500000; exec sleep 600";
    let spec = pb::Spec { transcript_bytes: 32 << 20, ..shell(line) };
    begin(&mut client, "p", spec).await;
    let answer = ask(&mut client, wait("p", until_output("\n500000\nthe-w(or)d\n1\n"))).await;
    let found = answer.wait.unwrap().r#match.unwrap();
    assert_eq!(found.text, "\n500000\nthe-word\n1\n");
    let request = pb::ReadRequest { since_seq: Some(found.seq), view: paged(1), ..read("p") };
    let chunk = ask_read(&mut client, request).await.chunks.remove(0);
    assert!(
        String::from_utf8_lossy(&chunk.data).contains("\n1\n") || chunk.data.starts_with(b"1\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_pattern_over_many_small_pieces_holds_nobody_up() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "import os\nfor _ in range(60000): os.write(1, b'x')\nos.write(1, b'!')";
    if !crate::support::have(&["python3"]) {
        return;
    }
    let done = finish(&mut client, "p", argv(&["python3", "-c", line])).await.process.unwrap();
    assert_eq!(done.transcript.unwrap().total_bytes, 60_001);
    let slow = wait("p", until_output("(?:x[a-z]{1,60}){1,20}Q"));
    let mut waiter = service.client().await;
    let waiting = tokio::spawn(async move { waiter.wait(slow).await });
    for _ in 0..20 {
        get(&mut client, "p").await;
    }
    let found = ask(&mut client, wait("p", until_output("x!"))).await;
    assert_eq!(found.wait.unwrap().r#match.unwrap().text, "x!");
    waiting.abort();
}
