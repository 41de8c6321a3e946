//! `procyard run`: like the same command without it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use procyard::grpc::pb;

use super::{Running, failed, finished, in_shell, printed, waits_for_its_reader};
use crate::support::service::*;
use crate::support::transcript::wait;
use crate::support::tty::Tty;
use crate::support::{Gate, SOON, binary, soon};

/// How often the server is killed under a command.
const KILLS: usize = 4;

/// Runs a command with pipes for all three streams.
fn piped(mut command: Command) -> Running {
    command.stdin(Stdio::piped());
    Running::start(command)
}

/// A line of shell under `run`.
fn run_shell<'a>(options: &[&'a str], line: &'a str) -> Vec<&'a str> {
    [&["run"], options, &["--", "sh", "-c", line]].concat()
}

/// As a shell tells it.
fn code(output: &Output) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap())
}

/// Bytes of which no part looks like another.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// The next line that a command prints.
fn next_line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line
}

#[test]
fn output_error_output_and_exit_code_are_those_of_the_command() {
    let service = TestService::start();
    let line = "echo out; echo err >&2; printf 'no newline\\000\\377'; exit 7";
    let output = finished(service.procyard(&run_shell(&[], line)));
    assert_eq!(output.stdout, b"out\nno newline\0\xff");
    assert_eq!(output.stderr, b"err\n");
    assert_eq!(code(&output), 7);
    for (line, expected) in [("exit 0", 0), ("kill -9 $$", 137), ("kill -SEGV $$", 139)] {
        let output = finished(service.procyard(&run_shell(&[], line)));
        assert_eq!((code(&output), output.stderr.as_slice()), (expected, &b""[..]), "{line}");
    }
}

#[test]
fn what_cannot_be_run_is_told_in_a_line_and_by_the_usual_code() {
    let service = TestService::start();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["run", "--no-such-option", "true"], 125, "--no-such-option"),
        (&["run", "--", "no-such-program"], 127, "no-such-program"),
        (&["run", "--", "/etc/passwd"], 126, "/etc/passwd"),
        (&["run", "-C", "/no/such/directory", "--", "true"], 125, "/no/such/directory"),
        (&["run", "--timeout", "100ms", "--", "sleep", "600"], 124, "time"),
        (&["run", "--id", "not an id", "--", "true"], 125, "id"),
        (&["run", "-d", "--", "no-such-program"], 127, "no-such-program"),
    ];
    for (args, expected, word) in cases {
        let mut command = service.procyard(args);
        // Directories that may not be looked into would be told of instead.
        command.env("PATH", "/usr/bin:/bin");
        let (code, said) = failed(command);
        assert_eq!(code, expected, "{said}");
        assert!(said.contains(word), "{said}");
    }
    let mut nowhere = service.procyard(&["run", "--", "true"]);
    nowhere.env("PROCYARD_SERVER", "unix:///nowhere.sock");
    assert_eq!(failed(nowhere).0, 125);
}

#[test]
fn it_runs_here_with_the_path_of_here_and_the_variables_that_it_is_given() {
    let service = TestService::start();
    let directory = service.directory.path().canonicalize().unwrap();
    let args =
        run_shell(&["-e", "GIVEN=a=b", "-e", "TAKEN"], "pwd -P; echo $PATH $GIVEN $TAKEN$OTHER");
    let mut command = service.procyard(&args);
    let path = format!("{}:/here", std::env::var("PATH").unwrap());
    command.env("PATH", &path).env("TAKEN", "taken").env("OTHER", "other");
    assert_eq!(printed(command), format!("{}\n{path} a=b taken\n", directory.display()));
}

#[test]
fn ten_megabytes_come_out_as_they_went_in() {
    let service = TestService::start();
    let data = noise(10_000_000);
    let path = service.directory.path().join("data");
    std::fs::write(&path, &data).unwrap();
    // From a file, and from a pipe.
    let mut from_file = service.procyard(&["run", "--", "cat"]);
    from_file.stdin(File::open(&path).unwrap());
    let output = finished(from_file);
    assert!(output.status.success() && output.stdout == data, "{:?}", output.stderr);
    let mut child = piped(service.procyard(&["run", "--", "cat"]));
    let mut stdin = child.0.stdin.take().unwrap();
    let sent = data.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let output = child.finished();
    writer.join().unwrap();
    assert!(output.status.success() && output.stdout == data, "{:?}", output.stderr);
}

#[test]
fn a_process_that_does_not_read_to_the_end_ends_the_command_all_the_same() {
    let service = TestService::start();
    let mut child = piped(service.procyard(&["run", "--", "head", "-c", "3"]));
    let mut stdin = child.0.stdin.take().unwrap();
    // More than fits anywhere on the way.
    let writer = std::thread::spawn(move || stdin.write_all(&noise(20_000_000)).is_err());
    let output = child.finished();
    assert_eq!((code(&output), output.stdout.len()), (0, 3), "{:?}", output.stderr);
    assert!(writer.join().unwrap(), "nobody was told that it was not read");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_holds_the_process_back_and_loses_nothing() {
    let total = 32 << 20;
    let service = TestService::start();
    let line = format!("yes 0123456 | head -c {total}");
    let options = ["--id", "p", "--transcript", "64K"];
    let mut child = piped(service.procyard(&run_shell(&options, &line)));
    let mut client = service.client().await;
    let mut stdout = child.0.stdout.take().unwrap();
    let mut first = [0; 8];
    stdout.read_exact(&mut first).unwrap();
    // Nobody reads: it waits, long before its end.
    waits_for_its_reader(&mut client, "p").await;
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    assert_eq!(&first, b"0123456\n");
    assert!(rest == b"0123456\n".repeat(total / 8 - 1), "{} bytes", rest.len());
    assert_eq!(code(&child.finished()), 0);
}

#[test]
fn signals_reach_the_process() {
    let service = TestService::start();
    for (name, number) in [
        ("INT", libc::SIGINT),
        ("TERM", libc::SIGTERM),
        ("HUP", libc::SIGHUP),
        ("QUIT", libc::SIGQUIT),
        ("USR1", libc::SIGUSR1),
        ("USR2", libc::SIGUSR2),
    ] {
        let line = format!(
            "trap 'echo heard; exit 3' {name}; echo ready; while :; do sleep 600 & wait; done"
        );
        let mut child = piped(service.procyard(&run_shell(&[], &line)));
        let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
        assert_eq!(next_line(&mut stdout), "ready\n");
        kill_pid(child.0.id().cast_signed(), number);
        assert_eq!(next_line(&mut stdout), "heard\n", "{name}");
        assert_eq!(code(&child.finished()), 3, "{name}");
    }
    // Without a handler it ends by it, and so does the command, as a shell tells it.
    let mut child = piped(service.procyard(&run_shell(&[], "echo ready; exec sleep 600")));
    let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
    assert_eq!(next_line(&mut stdout), "ready\n");
    kill_pid(child.0.id().cast_signed(), libc::SIGTERM);
    assert_eq!(code(&child.finished()), 143);
}

#[test]
fn a_signal_that_is_ignored_here_is_not_passed_on() {
    let service = TestService::start();
    // As a shell starts what it runs in the background.
    let mut command = in_shell(&service, &format!("trap '' INT; exec {} run -- cat", binary()));
    command.stdin(Stdio::piped());
    let mut child = Running::start(command);
    let (mut stdin, stdout) = (child.0.stdin.take().unwrap(), child.0.stdout.take().unwrap());
    let mut stdout = BufReader::new(stdout);
    for line in ["one\n", "two\n"] {
        stdin.write_all(line.as_bytes()).unwrap();
        assert_eq!(next_line(&mut stdout), line);
        kill_pid(child.0.id().cast_signed(), libc::SIGINT);
    }
    drop(stdin);
    assert_eq!(code(&child.finished()), 0);
}

#[test]
fn the_interrupt_key_works_as_often_as_it_is_pressed() {
    let service = TestService::start();
    let line = "trap 'echo caught' INT; echo ready; while :; do sleep 600 & wait; done";
    let mut tty = Tty::start(service.procyard(&run_shell(&[], line)));
    tty.expect("ready");
    for _ in 0..3 {
        tty.type_in("\x03");
        tty.expect("caught");
    }
    tty.type_in("\x1c");
    assert_eq!(tty.ended(), 128 + libc::SIGQUIT);
}

/// Processes that hang, until this is dropped.
struct Hanging([i32; 2]);

impl Hanging {
    fn begin(pids: [i32; 2]) -> Hanging {
        pids.into_iter().for_each(|pid| kill_pid(pid, libc::SIGSTOP));
        Hanging(pids)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.into_iter().for_each(|pid| kill_pid(pid, libc::SIGCONT));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_is_not_kept_by_a_service_that_does_not_answer() {
    let service = TestService::start();
    let line = "trap '' INT; echo ready; exec sleep 600";
    let mut child = piped(service.procyard(&run_shell(&["--id", "p"], line)));
    let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
    assert_eq!(next_line(&mut stdout), "ready\n");
    // The keeper, too: it would replace the server.
    let hanging = Hanging::begin([service.child.id().cast_signed(), service.server_pid()]);
    let begin = Instant::now();
    while child.0.try_wait().unwrap().is_none() {
        // Long before the connection is given up, which would do as well.
        assert!(begin.elapsed() < SOON / 2, "it does not end");
        kill_pid(child.0.id().cast_signed(), libc::SIGINT);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(hanging);
    assert_eq!(code(&child.finished()), 130);
    assert_eq!(get(&mut service.client().await, "p").await.state(), pb::State::Running);
}

#[test]
fn lines_typed_at_a_terminal_reach_a_process_on_pipes() {
    let service = TestService::start();
    let mut tty = Tty::start(service.procyard(&["run", "--", "sed", "-u", "s/^/heard /"]));
    tty.type_in("one\n");
    tty.expect("heard one");
    tty.type_in("two\n\x04");
    tty.expect("heard two");
    assert_eq!(tty.ended(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whose_output_nobody_takes_is_told_so() {
    let service = TestService::start();
    let mut child = piped(service.procyard(&["run", "--id", "p", "--", "yes"]));
    let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
    assert_eq!(next_line(&mut stdout), "y\n");
    drop(stdout);
    let output = child.finished();
    assert_eq!((code(&output), output.stderr.as_slice()), (141, &b""[..]));
    let process = get(&mut service.client().await, "p").await;
    assert_eq!(exit(&process).signal, Some(libc::SIGPIPE));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_outlives_a_command_that_is_killed() {
    let service = TestService::start();
    let mut gate = Gate::new(service.directory.path());
    let line = format!("echo ready; read x <{}; echo still here; exec sleep 600", gate.path);
    let mut child = piped(service.procyard(&run_shell(&["--id", "p"], &line)));
    assert_eq!(next_line(&mut BufReader::new(child.0.stdout.take().unwrap())), "ready\n");
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    gate.open(1);
    let mut client = service.client().await;
    let printed = soon(client.wait(wait("p", until_output("still here")))).await.unwrap();
    assert!(printed.into_inner().wait.unwrap().met);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn detached_it_prints_its_id_and_nothing_else() {
    let service = TestService::start();
    let mut client = service.client().await;
    let id = printed(service.procyard(&[
        "run",
        "-d",
        "--name",
        "n",
        "--label",
        "a=b",
        "--",
        "/bin/sleep",
        "600",
    ]));
    let process = get(&mut client, id.trim()).await;
    assert_eq!((id.trim().len(), &id[..6]), ("sleep-k3v9x2".len(), "sleep-"));
    assert_eq!(process.state(), pb::State::Running);
    let spec = process.spec.unwrap();
    assert_eq!((spec.name.as_str(), spec.labels["a"].as_str()), ("n", "b"));
    // Which is there already is not started again.
    let again = ["run", "-d", "--id", "same", "--", "sleep", "600"];
    for _ in 0..2 {
        assert_eq!(printed(service.procyard(&again)), "same\n");
    }
    assert_eq!(list(&mut client).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_one_stays_unless_it_is_to_be_forgotten() {
    let service = TestService::start();
    assert_eq!(printed(service.procyard(&["run", "--id", "kept", "--", "echo", "a"])), "a\n");
    assert_eq!(
        printed(service.procyard(&["run", "--id", "gone", "--rm", "--", "echo", "b"])),
        "b\n"
    );
    // A process of an earlier call is shown, and kept.
    let again = ["run", "--id", "kept", "--rm", "--", "echo", "a"];
    assert_eq!(printed(service.procyard(&again)), "a\n");
    let mut child = piped(service.procyard(&["run", "--id", "unread", "--rm", "--", "yes"]));
    assert_eq!(next_line(&mut BufReader::new(child.0.stdout.take().unwrap())), "y\n");
    assert_eq!(code(&child.finished()), 141);
    assert_eq!(ids(&list(&mut service.client().await).await), ["kept"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_waits_for_its_turn_has_its_input_when_it_runs() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "first", in_queue("q", argv(&["sleep", "600"]))).await;
    let mut child = piped(service.procyard(&["run", "--id", "p", "--queue", "q", "--", "cat"]));
    child.0.stdin.take().unwrap().write_all(b"patience").unwrap();
    soon(async {
        while list(&mut client).await.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    soon(client.kill(kill_at_once("first"))).await.unwrap();
    let output = child.finished();
    assert_eq!((code(&output), output.stdout.as_slice()), (0, &b"patience"[..]));
}

/// Types numbered lines, and has something happen to the server now and then.
fn type_and(strike: impl Fn(), mut stdin: ChildStdin, mut stdout: impl BufRead) {
    let mut next = 1;
    for _ in 0..=KILLS {
        // Some are on their way when it happens.
        for number in next..next + 200 {
            writeln!(stdin, "line {number}").unwrap();
        }
        for number in next..next + 50 {
            assert_eq!(next_line(&mut stdout), format!("heard line {number}\n"));
        }
        strike();
        for number in next + 50..next + 200 {
            assert_eq!(next_line(&mut stdout), format!("heard line {number}\n"));
        }
        next += 200;
    }
    drop(stdin);
    assert_eq!(next_line(&mut stdout), "over\n");
    assert_eq!(next_line(&mut stdout), "");
}

/// The same to a process that answers each line.
fn costs_no_byte(service: &TestService, strike: impl Fn()) {
    let line = "sed -u 's/^/heard /'; echo over; exit 4";
    let mut child = piped(service.procyard(&run_shell(&[], line)));
    let stdout = BufReader::new(child.0.stdout.take().unwrap());
    type_and(strike, child.0.stdin.take().unwrap(), stdout);
    let output = child.finished();
    assert_eq!((code(&output), output.stderr.as_slice()), (4, &b""[..]));
}

#[test]
fn a_server_that_is_killed_again_and_again_costs_no_byte_in_either_direction() {
    let service = TestService::start();
    costs_no_byte(&service, || service.kill_server());
}

#[test]
fn an_upgrade_costs_no_byte_in_either_direction() {
    let service = TestService::start();
    let state_dir = service.directory.path().join("state");
    let upgrade = ["upgrade", "--state-dir", state_dir.to_str().unwrap()];
    costs_no_byte(&service, || assert!(printed(service.procyard(&upgrade)).contains("upgraded")));
}

#[test]
fn a_server_that_is_killed_while_much_comes_and_goes_costs_no_byte() {
    let service = TestService::start();
    let data = noise(20_000_000);
    let mut child = piped(service.procyard(&["run", "--", "cat"]));
    let mut stdin = child.0.stdin.take().unwrap();
    let mut stdout = child.0.stdout.take().unwrap();
    let sent = data.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let mut received = Vec::new();
    for _ in 0..KILLS {
        let mut part = vec![0; 4_000_000];
        stdout.read_exact(&mut part).unwrap();
        received.extend_from_slice(&part);
        service.kill_server();
    }
    stdout.read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert!(received == data, "{} bytes came of {}", received.len(), data.len());
    assert_eq!(code(&child.finished()), 0);
}

#[test]
fn a_terminal_has_the_size_of_the_window_and_follows_it() {
    let service = TestService::start();
    let line = "trap 'stty size' WINCH; stty size; while :; do sleep 600 & wait; done";
    let mut command = service.procyard(&run_shell(&["-t"], line));
    command.env("TERM", "vt100");
    let mut tty = Tty::start_sized(command, 30, 100);
    tty.expect("30 100");
    tty.resize(40, 120);
    tty.expect("40 120");
    tty.type_in("\x03");
    assert_eq!(tty.ended(), 130);
}

#[test]
fn a_shell_on_a_terminal_is_a_shell_on_a_terminal() {
    let service = TestService::start();
    let mut command = service.procyard(&["run", "-t", "--", "sh"]);
    command.env("TERM", "vt100").env("PS1", "$ ");
    let mut tty = Tty::start(command);
    tty.type_in("tty && echo $TERM $((6 * 7))\r");
    tty.expect("/dev/");
    tty.expect("vt100 42");
    tty.type_in("exit 5\r");
    assert_eq!(tty.ended(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_terminal_is_afterwards_what_it_was_however_it_is_left() {
    let service = TestService::start();
    let binary = crate::support::binary();
    let ways = [
        ("true", ""),
        ("echo ready; exec sleep 600", "\x03"),
        ("echo ready; exec sleep 600", "\x10\x11"),
        ("printf '\\033[?1049hready'; kill -9 $$", ""),
    ];
    for (n, (line, typed)) in ways.into_iter().enumerate() {
        let script = format!(
            "before=$(stty -g); {binary} run --id p{n} -t -- sh -c \"$LINE\"; echo code $?; \
             [ \"$before\" = \"$(stty -g)\" ] && echo all is well"
        );
        let mut shell = in_shell(&service, &script);
        shell.env("LINE", line);
        let mut tty = Tty::start(shell);
        if !typed.is_empty() {
            tty.expect("ready");
            tty.type_in(typed);
        }
        tty.expect("code ");
        tty.expect("all is well");
        assert_eq!(tty.ended(), 0);
    }
    let mut client = service.client().await;
    assert_eq!(get(&mut client, "p1").await.state(), pb::State::Exited);
    assert_eq!(get(&mut client, "p2").await.state(), pb::State::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_that_waits_for_its_turn_has_the_size_of_the_window_by_then() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "first", in_queue("q", argv(&["sleep", "600"]))).await;
    let line = "stty size; while :; do stty size; sleep 0.1; done";
    let args = run_shell(&["-t", "--id", "p", "--queue", "q"], line);
    let mut tty = Tty::start_sized(service.procyard(&args), 30, 100);
    soon(async {
        while list(&mut client).await.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    tty.resize(40, 120);
    soon(client.kill(kill_at_once("first"))).await.unwrap();
    tty.expect("40 120");
    tty.type_in("\x03");
    assert_eq!(tty.ended(), 130);
}
