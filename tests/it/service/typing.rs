//! WriteStdin: every byte once, in order, and its answer in one call.

use procyard::grpc::pb;
use procyard::grpc::pb::write_stdin_request::Input;
use tonic::Code;

use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{Gate, have, soon};

/// Most bytes that may pend.
const BOUND: u64 = 1 << 20;

fn typed_at(id: &str, offset: u64, data: impl AsRef<[u8]>) -> pb::WriteStdinRequest {
    pb::WriteStdinRequest { offset: Some(offset), ..typed(id, data) }
}

fn ended(request: pb::WriteStdinRequest) -> pb::WriteStdinRequest {
    pb::WriteStdinRequest { eof: true, ..request }
}

/// A line of text, as a person types it.
fn line(id: &str, text: &str) -> pb::WriteStdinRequest {
    let input = Some(Input::Text(text.into()));
    let id = id.into();
    pb::WriteStdinRequest { id, input, enter: true, ..pb::WriteStdinRequest::default() }
}

fn answered(request: pb::WriteStdinRequest, wait: pb::WaitFor) -> pb::WriteStdinRequest {
    pb::WriteStdinRequest { wait: Some(wait), ..request }
}

fn taken(answer: &pb::WriteStdinResponse) -> (u64, u64) {
    (answer.bytes_written, answer.accepted_bytes)
}

async fn refused(client: &mut Client, request: pb::WriteStdinRequest) -> (Code, String) {
    refusal(soon(client.write_stdin(request)).await)
}

/// All that it printed, when it is over.
async fn all(client: &mut Client, id: &str) -> String {
    let transcript = read_to_end(client, id, 1 << 20).await;
    String::from_utf8(transcript.bytes.into_values().collect::<Vec<_>>().concat()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_text_enter_and_the_end_reach_a_pipe() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["od", "-An", "-v", "-tx1"]))).await;
    assert_eq!(taken(&write(&mut client, typed("p", b"\0\xff\r")).await), (3, 3));
    assert_eq!(taken(&write(&mut client, line("p", "é")).await), (3, 6));
    let enter = pb::WriteStdinRequest { id: "p".into(), enter: true, ..Default::default() };
    assert_eq!(taken(&write(&mut client, enter).await), (1, 7));
    let eof = pb::WriteStdinRequest { id: "p".into(), eof: true, ..Default::default() };
    let answer = write(&mut client, eof).await;
    assert_eq!(taken(&answer), (0, 7));
    assert!(!answer.process.unwrap().stdin.unwrap().open);
    let shown = all(&mut client, "p").await;
    assert_eq!(shown.split_whitespace().collect::<Vec<_>>().join(" "), "00 ff 0d c3 a9 0a 0a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_text_enter_and_the_end_reach_a_terminal() {
    let service = TestService::start();
    let mut client = service.client().await;
    let raw = "stty raw -echo; echo ready; head -c 5 | od -An -v -tx1";
    begin(&mut client, "raw", on_terminal(shell(raw))).await;
    soon(client.wait(wait("raw", until_output("ready")))).await.unwrap();
    write(&mut client, typed("raw", b"\0\xff")).await;
    write(&mut client, line("raw", "é")).await;
    let shown = all(&mut client, "raw").await;
    assert!(shown.ends_with("00 ff c3 a9 0d\n"), "{shown:?}");

    begin(&mut client, "cooked", on_terminal(shell("stty -echo; echo ready; cat; echo over")))
        .await;
    soon(client.wait(wait("cooked", until_output("ready")))).await.unwrap();
    write(&mut client, answered(line("cooked", "word"), until_output("word\r\n"))).await;
    write(&mut client, ended(line("cooked", "last"))).await;
    assert_eq!(all(&mut client, "cooked").await, "ready\r\nword\r\nlast\r\nover\r\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_write_is_answered_by_what_followed_the_first() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "while read -r word; do echo \"heard $word\"; done";
    begin(&mut client, "p", with_stdin(shell(line))).await;
    let write = |offset, word: &str| pb::WriteStdinRequest {
        offset: Some(offset),
        ..answered(self::line("p", word), until_output(&format!("heard {word}\n")))
    };
    for _ in 0..3 {
        let answer = self::write(&mut client, write(0, "one")).await;
        assert!(answer.wait.unwrap().met);
        assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "heard one\n");
    }
    let answer = self::write(&mut client, write(4, "two")).await;
    assert_eq!((answer.bytes_written, answer.accepted_bytes), (4, 8));
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "heard two\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_ended_its_process_can_be_repeated() {
    let service = TestService::start();
    let mut client = service.client().await;
    for (id, spec, word) in
        [("quiet", shell("read -r code; exit $code"), "4"), ("cat", argv(&["cat"]), "word")]
    {
        begin(&mut client, id, with_stdin(spec)).await;
        let write = pb::WriteStdinRequest {
            offset: Some(0),
            ..answered(ended(line(id, word)), until_exit())
        };
        let first = self::write(&mut client, write.clone()).await;
        let again = self::write(&mut client, write).await;
        assert_eq!((first.bytes_written, again.bytes_written), (first.accepted_bytes, 0));
        assert_eq!(first.accepted_bytes, again.accepted_bytes);
        assert!(again.wait.unwrap().met);
        let other = pb::WriteStdinRequest { offset: Some(first.accepted_bytes), ..line(id, "x") };
        let other = refusal(soon(client.write_stdin(other)).await);
        assert_eq!(other, (Code::FailedPrecondition, "NOT_RUNNING".into()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_tells_how_far_the_input_is() {
    let service = TestService::start();
    let mut client = service.client().await;
    let stdin = |open, accepted_bytes| Some(pb::Stdin { open, accepted_bytes, pending_bytes: 0 });
    let none = begin(&mut client, "none", argv(&["sleep", "600"])).await;
    assert_eq!(none.stdin, stdin(false, 0));
    for (id, spec) in [
        ("pipes", with_stdin(argv(&["sleep", "600"]))),
        ("terminal", on_terminal(argv(&["sleep", "600"]))),
    ] {
        assert_eq!(begin(&mut client, id, spec).await.stdin, stdin(true, 0));
        assert_eq!(
            write(&mut client, typed(id, "one\n")).await.process.unwrap().stdin,
            stdin(true, 4)
        );
        assert_eq!(get(&mut client, id).await.stdin, stdin(true, 4));
        // Whoever lost an answer asks where to go on.
        let look = pb::WriteStdinRequest { id: id.into(), ..Default::default() };
        assert_eq!(write(&mut client, look).await.accepted_bytes, 4);
        let open = id == "terminal";
        write(&mut client, ended(typed_at(id, 4, "end"))).await;
        assert_eq!(get(&mut client, id).await.stdin, stdin(open, 7));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_write_is_no_second_write() {
    let service = TestService::start();
    let mut client = service.client().await;
    let pipes = with_stdin(argv(&["cat"]));
    let terminal = on_terminal(shell("stty -echo; echo ready; cat"));
    for (id, spec, ready) in [("p", pipes, ""), ("t", terminal, "ready\r\n")] {
        begin(&mut client, id, spec).await;
        soon(client.wait(wait(id, within(ready)))).await.unwrap();
        for (n, offset) in [(5, 0), (0, 0), (0, 0)] {
            let answer = write(&mut client, typed_at(id, offset, "abcd\n")).await;
            assert_eq!(taken(&answer), (n, 5));
        }
        // Partly new; and a part of what was taken.
        assert_eq!(taken(&write(&mut client, typed_at(id, 3, "d\nefg\n")).await), (4, 9));
        assert_eq!(taken(&write(&mut client, typed_at(id, 1, "bc")).await), (0, 9));
        for hole in [10, 1000, u64::MAX] {
            let status = soon(client.write_stdin(typed_at(id, hole, "x"))).await.unwrap_err();
            assert_eq!((status.code(), &reason(&status)[..]), (Code::OutOfRange, "INPUT_OFFSET"));
            let metadata = details(&status).error_info().unwrap().metadata.clone();
            assert_eq!(metadata["accepted_bytes"], "9");
        }
        let answer = write(&mut client, ended(typed_at(id, 9, "end\n"))).await;
        assert_eq!(taken(&answer), (4, 13));
        let shown = all(&mut client, id).await.replace("\r\n", "\n");
        assert_eq!(shown, format!("{}abcd\nefg\nend\n", ready.replace('\r', "")));
    }
}

/// Waits for output, if there is any to be awaited.
fn within(output: &str) -> pb::WaitFor {
    match output {
        "" => pb::WaitFor { timeout: Some(millis(0)), ..until_exit() },
        output => until_output(output),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_pipe_is_final_and_may_be_repeated() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    begin(&mut client, "p", with_stdin(shell(&format!("cat; echo end; read x <{}", gate.path))))
        .await;
    write(&mut client, answered(ended(typed_at("p", 0, "last ")), until_output("last end"))).await;
    assert_eq!(taken(&write(&mut client, ended(typed_at("p", 0, "last "))).await), (0, 5));
    let not_open = (Code::FailedPrecondition, "STDIN_NOT_OPEN".into());
    assert_eq!(refused(&mut client, typed("p", "more")).await, not_open);
    gate.open(1);
    assert_eq!(all(&mut client, "p").await, "last end\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_input_or_is_over_cannot_be_typed_to() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "none", argv(&["sleep", "600"])).await;
    for request in [typed("none", "x"), ended(typed("none", "")), line("none", "")] {
        let not_open = (Code::FailedPrecondition, "STDIN_NOT_OPEN".into());
        assert_eq!(refused(&mut client, request).await, not_open);
    }
    for (id, spec) in [
        ("pipes", with_stdin(argv(&["true"]))),
        ("terminal", on_terminal(argv(&["true"]))),
        ("neither", argv(&["true"])),
    ] {
        run_to_end(&mut client, id, spec).await;
        let not_running = (Code::FailedPrecondition, "NOT_RUNNING".into());
        assert_eq!(refused(&mut client, typed(id, "x")).await, not_running, "{id}");
        assert_eq!(refused(&mut client, ended(typed(id, ""))).await, not_running, "{id}");
    }
    let not_found = (Code::NotFound, "PROCESS_NOT_FOUND".into());
    assert_eq!(refused(&mut client, typed("nobody", "x")).await, not_found);
    let too_much = soon(client.write_stdin(typed("none", vec![0; (1 << 20) + 1]))).await;
    assert_eq!(bad_fields(&too_much.unwrap_err()), ["data"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_input_it_only_looks() {
    let service = TestService::start();
    let mut client = service.client().await;
    let look = |id: &str| pb::WriteStdinRequest { id: id.into(), ..Default::default() };
    run_to_end(&mut client, "over", argv(&["echo", "word"])).await;
    let answer = write(&mut client, look("over")).await;
    assert_eq!((answer.state(), answer.chunks.len()), (pb::State::Exited, 0));

    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    write(&mut client, answered(typed("p", "one"), until_output("one"))).await;
    let answer = write(&mut client, look("p")).await;
    assert_eq!((taken(&answer), answer.state()), ((0, 3), pb::State::Running));
    let (mut other, patient) = (client.clone(), answered(look("p"), until_output("two")));
    let waiting = tokio::spawn(async move { write(&mut other, patient).await });
    // It waits for what comes after it was asked, and that is when it has begun.
    let mut written = String::new();
    while !waiting.is_finished() {
        write(&mut client, answered(typed("p", "two"), until_output("two"))).await;
        written += "two";
    }
    let answer = waiting.await.unwrap();
    assert!(answer.wait.unwrap().met);
    let shown = text(&answer.chunks, pb::Stream::Stdout);
    assert!(!shown.is_empty() && written.ends_with(&shown), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_what_is_typed_comes_in_one_call() {
    let service = TestService::start();
    let mut client = service.client().await;
    let script = "echo ready; while read x; do echo you said $x; done; echo bye";
    begin(&mut client, "p", with_stdin(shell(script))).await;
    soon(client.wait(wait("p", until_output("ready")))).await.unwrap();
    for word in ["one", "two", "three"] {
        let request = answered(line("p", word), until_output("said .*\n"));
        let answer = write(&mut client, request).await;
        let result = answer.wait.unwrap();
        assert_eq!(result.r#match.unwrap().text, format!("said {word}\n"));
        assert_eq!(text(&answer.chunks, pb::Stream::Stdout), format!("you said {word}\n"));
    }
    // A pause after the answer is as good, and a view alone shows what is there by then.
    let answer = write(&mut client, answered(line("p", "four"), until_quiet(3000))).await;
    assert!(answer.wait.unwrap().met);
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "you said four\n");
    let viewed = pb::WriteStdinRequest { view: paged(100), ..line("p", "five") };
    let answer = write(&mut client, viewed).await;
    let since = answer.cursor.unwrap().since_seq;
    let later = ask_read(&mut client, read_on("p", since)).await;
    assert_eq!(text(&later.chunks, pb::Stream::Stdout), "you said five\n");
    // The end wakes, whatever is awaited.
    let last = answered(ended(line("p", "six")), until_output("never"));
    let answer = write(&mut client, last).await;
    let result = answer.wait.as_ref().unwrap();
    assert_eq!((result.met, result.timed_out, answer.state()), (false, false, pb::State::Exited));
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "you said six\nbye\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_of_the_answer_leaves_what_was_typed() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    let brief = pb::WaitFor { timeout: Some(millis(20)), ..until_output("never") };
    let answer = write(&mut client, answered(typed("p", "word"), brief)).await;
    assert!(answer.wait.as_ref().unwrap().timed_out);
    assert_eq!(taken(&answer), (4, 4));
    write(&mut client, ended(typed("p", "!"))).await;
    assert_eq!(all(&mut client, "p").await, "word!");
}

/// Types until it is refused; how much was taken by then.
async fn fill(client: &mut Client, id: &str) -> u64 {
    let piece = vec![b'x'; 50_000];
    let mut accepted = 0;
    loop {
        match soon(client.write_stdin(typed_at(id, accepted, &piece))).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                assert_eq!(taken(&answer), (50_000, accepted + 50_000));
                accepted = answer.accepted_bytes;
            }
            Err(status) => {
                let full = (Code::ResourceExhausted, "STDIN_FULL".into());
                assert_eq!((status.code(), reason(&status)), full);
                assert!(details(&status).retry_info().unwrap().retry_delay.is_some());
                return accepted;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_that_is_not_read_pends_up_to_its_bound_and_then_nothing_is_taken() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let pipes = with_stdin(shell(&format!("echo ready; read x <{}; wc -c", gate.path)));
    // It must not end its input by its first newline, nor cut it: raw, and counted.
    let terminal = on_terminal(shell("stty raw -echo; echo ready; exec sleep 600"));
    begin(&mut client, "p", pipes).await;
    begin(&mut client, "t", terminal).await;
    begin(&mut client, "other", with_stdin(argv(&["cat"]))).await;
    for id in ["p", "t"] {
        soon(client.wait(wait(id, until_output("ready")))).await.unwrap();
        let accepted = fill(&mut client, id).await;
        let stdin = get(&mut client, id).await.stdin.unwrap();
        assert_eq!((stdin.open, stdin.accepted_bytes), (true, accepted), "something was taken");
        assert!(stdin.pending_bytes + 50_000 > BOUND && stdin.pending_bytes <= BOUND, "{stdin:?}");
        // All or nothing: what fits is still taken, and what was taken is known.
        assert_eq!(taken(&write(&mut client, typed(id, "y")).await), (1, accepted + 1));
        assert_eq!(
            taken(&write(&mut client, typed_at(id, accepted, "y")).await),
            (0, accepted + 1)
        );
        let other = answered(typed("other", "word"), until_output("word"));
        assert!(write(&mut client, other).await.wait.unwrap().met, "others are held up");
    }
    assert_eq!(end(&mut client, "t").await.exit.unwrap().signal, Some(libc::SIGKILL));
    // It reads after all: everything is there, once.
    let accepted = get(&mut client, "p").await.stdin.unwrap().accepted_bytes;
    gate.open(1);
    soon(async {
        while refused_for_now(&mut client, ended(typed_at("p", accepted, "z"))).await {}
    })
    .await;
    assert_eq!(
        all(&mut client, "p").await.trim_start_matches("ready\n").trim(),
        (accepted + 1).to_string()
    );
}

/// Whether a write has to wait for room.
async fn refused_for_now(client: &mut Client, request: pb::WriteStdinRequest) -> bool {
    match client.write_stdin(request).await {
        Ok(_) => false,
        Err(status) => {
            assert_eq!(reason(&status), "STDIN_FULL");
            true
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mebibyte_is_taken_in_one_write() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["wc", "-c"]))).await;
    let most = vec![b'x'; 1 << 20];
    assert_eq!(taken(&write(&mut client, ended(typed("p", most))).await), (1 << 20, 1 << 20));
    assert_eq!(all(&mut client, "p").await.trim(), "1048576");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_with_offsets_make_one_input() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    let input: String = (0..500).map(|n| format!("{n:04}\n")).collect();
    // All of them type all of it, each in pieces of another size.
    let writers: Vec<_> = (0..10_usize)
        .map(|writer| {
            let (mut client, input) = (client.clone(), input.clone());
            tokio::spawn(async move {
                let mut at = 0;
                while at < input.len() {
                    let end = input.len().min(at + 10 + 7 * writer);
                    let answer =
                        write(&mut client, typed_at("p", at as u64, &input[at..end])).await;
                    assert!(answer.accepted_bytes >= end as u64);
                    at = end;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    write(&mut client, ended(typed_at("p", input.len() as u64, ""))).await;
    assert!(all(&mut client, "p").await == input, "not what was typed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_c_interrupts_on_a_terminal() {
    let service = TestService::start();
    let mut client = service.client().await;
    let script = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.01; done";
    begin(&mut client, "p", on_terminal(shell(script))).await;
    soon(client.wait(wait("p", until_output("ready")))).await.unwrap();
    let answer = write(&mut client, answered(typed("p", "\x03"), until_exit())).await;
    assert!(text(&answer.chunks, pb::Stream::Terminal).contains("interrupted"));
    assert_eq!(answer.process.unwrap().exit.unwrap().code, Some(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_with_an_interpreter() {
    if !have(&["python3"]) {
        return;
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let mut spec = on_terminal(argv(&["python3", "-i", "-q"]));
    let set = [("PYTHON_BASIC_REPL".into(), "1".into()), ("TERM".into(), "dumb".into())];
    spec.env = Some(pb::Environment { set: set.into(), ..pb::Environment::default() });
    begin(&mut client, "p", spec).await;
    soon(client.wait(wait("p", until_output(">>> $")))).await.unwrap();
    for (typed, expected) in [("x = 6 * 7", "\r\n"), ("x", "\r\n42\r\n"), ("'é' * 3", "'ééé'")]
    {
        let answer =
            write(&mut client, answered(line("p", typed), until_output("\n.*>>> $"))).await;
        let shown = text(&answer.chunks, pb::Stream::Terminal);
        assert!(shown.starts_with(typed) && shown.contains(expected), "{shown:?}");
        assert!(!shown.contains("6 * 7") || typed.contains("6 * 7"), "an old answer: {shown:?}");
    }
    let endless =
        answered(line("p", "print('go'); [0 for x in iter(int, 1)]"), until_output("\ngo"));
    assert!(write(&mut client, endless).await.wait.unwrap().met);
    let answer =
        write(&mut client, answered(typed("p", "\x03"), until_output("KeyboardInterrupt"))).await;
    assert!(answer.wait.unwrap().met);
    soon(client.wait(wait("p", until_output("KeyboardInterrupt\r?\n(.*\n)*.*>>> $"))))
        .await
        .unwrap();
    let answer = write(&mut client, answered(line("p", "exit(3)"), until_exit())).await;
    assert_eq!(answer.process.unwrap().exit.unwrap().code, Some(3));
}
