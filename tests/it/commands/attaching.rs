//! `procyard attach`: one sits down at a process, whatever happens in between.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use procyard::grpc::pb;

use super::{Running, failed, finished, waits_for_its_reader};
use crate::support::service::*;
use crate::support::tty::Tty;
use crate::support::{binary, soon};

/// The keys that leave.
const DETACH: &str = "\x10\x11";
/// How often the server is killed under a session.
const KILLS: usize = 4;

/// Waits until a process has printed this.
async fn prints(client: &mut Client, id: &str, regex: &str) {
    let request = pb::WaitRequest { wait: Some(until_output(regex)), ..wait_for_it(id) };
    assert!(soon(client.wait(request)).await.unwrap().into_inner().wait.unwrap().met);
}

/// Answers each line with the same line.
const ANSWERS: &str =
    "stty -echo; echo ready; while read -r word; do echo \"heard $word\"; done; exit 3";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sees_what_is_there_types_and_leaves_it_alone() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", on_terminal(shell(ANSWERS))).await;
    prints(&mut client, "p", "ready").await;
    let mut tty = Tty::start(service.procyard(&["attach", "p"]));
    tty.expect("attached to p; ctrl-p ctrl-q leaves it alone");
    // What was printed before is drawn again.
    tty.expect("ready");
    tty.type_in("one\r");
    tty.expect("heard one");
    tty.type_in(DETACH);
    tty.expect("p runs on");
    assert_eq!(tty.ended(), 0);
    assert_eq!(get(&mut client, "p").await.state(), pb::State::Running);
    // By its end, too, and then its code is passed on.
    let mut tty = Tty::start(service.procyard(&["attach", "--detach-keys", "ctrl-a,d", "p"]));
    tty.expect("ctrl-a d leaves it alone");
    tty.expect("heard one");
    tty.type_in("two\r\x04");
    tty.expect("heard two");
    tty.expect("p: exited with code 3");
    assert_eq!(tty.ended(), 3);
    let (code, said) = failed(service.procyard(&["attach", "p"]));
    assert!(code == 125 && said.contains("procyard logs p"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_typed_just_before_leaving_arrives() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", on_terminal(shell(ANSWERS))).await;
    prints(&mut client, "p", "ready").await;
    for word in ["one", "two", "three"] {
        let mut tty = Tty::start(service.procyard(&["attach", "p"]));
        tty.expect("ready");
        tty.type_in(format!("{word}\r{DETACH}"));
        tty.expect("p runs on");
        assert_eq!(tty.ended(), 0);
        prints(&mut client, "p", &format!("heard {word}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_about_to_be_restarted_is_typed_to_when_it_runs_again() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "stty -echo; echo ready; read -r word; echo \"heard $word\"";
    let mut spec = restarted(pb::restart::Policy::Always, on_terminal(shell(line)));
    spec.restart.as_mut().unwrap().backoff_min = Some(millis(8000));
    begin_ready(&mut client, "p", spec).await;
    let input = Some(pb::write_stdin_request::Input::Text("one\r".into()));
    let write = pb::WriteStdinRequest { id: "p".into(), input, ..Default::default() };
    soon(client.write_stdin(write)).await.unwrap();
    soon(async {
        while get(&mut client, "p").await.restarts == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut tty = Tty::start(service.procyard(&["attach", "p"]));
    tty.expect("attached to p");
    tty.expect("heard one");
    service.kill_server();
    tty.expect("ready");
    tty.type_in("two\r");
    tty.expect("heard two");
    tty.type_in(DETACH);
    tty.expect("p runs on");
    assert_eq!(tty.ended(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_typed_to_one_that_ended_is_not_mixed_up_with_what_the_next_is_given() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "stty -echo; echo ready; while read -r word; do echo \"heard $word\"; \
                [ \"$word\" = enough ] && exit; done";
    let mut spec = restarted(pb::restart::Policy::Always, on_terminal(shell(line)));
    // Long enough that the count is looked at in between.
    spec.restart.as_mut().unwrap().backoff_min = Some(millis(1000));
    begin_ready(&mut client, "p", spec).await;
    let mut tty = Tty::start(service.procyard(&["attach", "--since-start", "p"]));
    tty.expect("ready");
    tty.type_in("enough\r");
    tty.expect("heard enough");
    tty.expect("ready");
    tty.type_in("two\r");
    tty.expect("heard two");
    service.kill_server();
    tty.type_in("three\r");
    tty.expect("heard three");
    tty.type_in(DETACH);
    tty.expect("p runs on");
    assert_eq!(tty.ended(), 0);
    assert_eq!(tty.all().matches("heard two").count(), 1, "{}", tty.all());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_keys_that_leave_all_keys_are_for_the_process() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "stty raw -echo; echo ready; head -c 3 | od -An -tx1; exit 3";
    begin(&mut client, "p", on_terminal(shell(line))).await;
    prints(&mut client, "p", "ready").await;
    let mut tty = Tty::start(service.procyard(&["attach", "--detach-keys", "none", "p"]));
    tty.expect("no key leaves it alone");
    tty.expect("ready");
    tty.type_in(format!("{DETACH}\x03"));
    tty.expect(" 10 11 03\n");
    assert_eq!(tty.ended(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_could_have_been_the_first_of_two_arrives_when_no_second_comes() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "stty raw -echo; echo ready; head -c 1 | od -An -tx1";
    begin(&mut client, "p", on_terminal(shell(line))).await;
    prints(&mut client, "p", "ready").await;
    let mut tty = Tty::start(service.procyard(&["attach", "p"]));
    tty.expect("ready");
    tty.type_in("\x10");
    // Lines end like this on a raw terminal.
    tty.expect(" 10\n");
    assert_eq!(tty.ended(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_size_is_that_of_the_window_and_a_mere_onlooker_changes_nothing() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "trap 'echo now $(stty size)' WINCH; echo ready; while :; do sleep 600 & wait; done";
    begin(&mut client, "p", on_terminal(shell(line))).await;
    prints(&mut client, "p", "ready").await;
    let mut onlooker = Tty::start_sized(service.procyard(&["attach", "--no-stdin", "p"]), 50, 50);
    onlooker.expect("ready");
    let mut tty = Tty::start_sized(service.procyard(&["attach", "p"]), 30, 100);
    tty.expect("now 30 100");
    onlooker.expect("now 30 100");
    tty.resize(40, 120);
    tty.expect("now 40 120");
    assert!(!onlooker.all().contains("50 50"), "{}", onlooker.all());
    kill_pid(onlooker.child.id().cast_signed(), libc::SIGINT);
    assert_eq!(onlooker.ended(), 130);
    assert_eq!(get(&mut client, "p").await.state(), pb::State::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_again_and_again_costs_no_byte_in_either_direction() {
    let service = TestService::start();
    let mut client = service.client().await;
    // Each line that is typed brings twenty that are printed, some of them while nobody serves.
    let line = "stty -echo; echo ready; while read -r n; do i=0; while [ $i -lt 20 ]; do \
                i=$((i + 1)); echo \"<$n.$i>\"; sleep 0.01; done; done; echo over";
    begin(&mut client, "p", on_terminal(shell(line))).await;
    prints(&mut client, "p", "ready").await;
    let mut tty = Tty::start(service.procyard(&["attach", "p"]));
    tty.expect("ready");
    let mut typed = 0;
    for _ in 0..KILLS {
        for _ in 0..5 {
            typed += 1;
            tty.type_in(format!("{typed}\r"));
        }
        tty.expect(&format!("<{}.1>", typed - 3));
        service.kill_server();
        typed += 1;
        tty.type_in(format!("{typed}\r"));
        tty.expect(&format!("<{typed}.20>"));
    }
    tty.type_in("\x04");
    tty.expect("over");
    assert_eq!(tty.ended(), 0);
    let expected: Vec<String> =
        (1..=typed).flat_map(|n| (1..=20).map(move |i| format!("<{n}.{i}>"))).collect();
    let all = tty.all();
    let seen: Vec<&str> = all.lines().filter(|line| line.starts_with('<')).collect();
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_terminal_is_afterwards_what_it_was() {
    let service = TestService::start();
    let mut client = service.client().await;
    for (id, typed, signal, expected) in [
        ("detached", DETACH, None, 0),
        ("ended", "\x04", None, 3),
        ("told", "", Some(libc::SIGTERM), 143),
        ("hung-up", "", Some(libc::SIGHUP), 129),
    ] {
        begin(&mut client, id, on_terminal(shell(ANSWERS))).await;
        prints(&mut client, id, "ready").await;
        // The shell tells who it is, and becomes the command: it is in the foreground.
        let script = format!(
            "before=$(stty -g); sh -c 'echo pid $$ .; exec {} attach {id}'; code=$?; \
             [ \"$before\" = \"$(stty -g)\" ] && echo all is well, code $code.",
            binary()
        );
        let mut tty = Tty::start(super::in_shell(&service, &script));
        tty.expect("pid ");
        let pid = tty.expect(" .").parse().unwrap();
        tty.expect("ready");
        match signal {
            Some(signal) => kill_pid(pid, signal),
            None => tty.type_in(typed),
        }
        tty.expect(&format!("all is well, code {expected}."));
        assert_eq!(tty.ended(), 0);
    }
}

/// Takes the window over as editors do, and lets go of it by no word.
const TAKES_OVER: &str = "stty -echo; printf '\\033[?1049;1;2004;1000;1006h\\033=\\033[?25lready'; \
                          read -r word; [ \"$word\" = die ] && kill -9 $$; exit 3";

/// What a window is like after all that was shown on it.
fn window(tty: &Tty) -> vt100::Parser {
    let size = |length| std::num::NonZeroU16::new(length).unwrap();
    let mut window = vt100::Parser::new(size(24), size(80), 0);
    window.process(tty.all().as_bytes());
    window
}

/// Its modes in one word each; none are the usual.
fn modes(screen: &vt100::Screen) -> Vec<&'static str> {
    let mouse = screen.mouse_protocol_mode() == vt100::MouseProtocolMode::PressRelease;
    let encoding = screen.mouse_protocol_encoding() == vt100::MouseProtocolEncoding::Sgr;
    let modes = [
        ("alternate", screen.alternate_screen()),
        ("cursor", screen.application_cursor()),
        ("keypad", screen.application_keypad()),
        ("paste", screen.bracketed_paste()),
        ("mouse", mouse),
        ("encoding", encoding),
        ("hidden", screen.hide_cursor()),
    ];
    modes.into_iter().filter(|(_, on)| *on).map(|(mode, _)| mode).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_is_in_the_modes_of_the_program_as_long_as_one_looks_at_it() {
    let service = TestService::start();
    let mut client = service.client().await;
    let all = ["alternate", "cursor", "keypad", "paste", "mouse", "encoding", "hidden"];
    for (id, typed, expected) in
        [("detached", DETACH, 0), ("killed", "die\r", 137), ("ended", "end\r", 3)]
    {
        let attached = format!("attach {id}");
        let run = format!("run --id run-{id} -t -- sh -c \"$LINE\"");
        begin(&mut client, id, on_terminal(shell(TAKES_OVER))).await;
        prints(&mut client, id, "ready").await;
        for words in [attached, run] {
            let script = format!("echo before; {} {words}; echo code $?.", binary());
            let mut shell = super::in_shell(&service, &script);
            shell.env("LINE", TAKES_OVER);
            let mut tty = Tty::start(shell);
            tty.expect("ready");
            assert_eq!(modes(window(&tty).screen()), all, "{words}: {:?}", tty.all());
            assert!(!window(&tty).screen().contents().contains("before"), "{words}");
            tty.type_in(typed);
            tty.expect(&format!("code {expected}."));
            assert_eq!(tty.ended(), 0);
            let window = window(&tty);
            assert_eq!(modes(window.screen()), [""; 0], "{words}: {:?}", tty.all());
            let shown = window.screen().contents();
            assert!(shown.contains("before") && !shown.contains("ready"), "{words}: {shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_on_pipes_is_typed_to_and_read_as_well() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["sed", "-u", "s/^/heard /"]))).await;
    let mut command = service.procyard(&["attach", "--since-start", "p"]);
    command.stdin(Stdio::piped());
    let mut child = Running::start(command);
    let (mut stdin, stdout) = (child.0.stdin.take().unwrap(), child.0.stdout.take().unwrap());
    let mut lines = BufReader::new(stdout).lines();
    for n in 0..3 {
        writeln!(stdin, "line {n}").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), format!("heard line {n}"));
        service.kill_server();
    }
    drop(stdin);
    assert!(lines.next().is_none());
    assert_eq!(child.finished().status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_waits_for_a_reader_goes_on_when_one_acknowledges() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "yes 0123456 | head -c 8000000; exit 3";
    let overflow = pb::Overflow::Block.into();
    let spec = pb::Spec { transcript_bytes: 64 << 10, overflow, ..shell(line) };
    begin(&mut client, "p", spec).await;
    waits_for_its_reader(&mut client, "p").await;
    let output = finished(service.procyard(&["attach", "--acknowledge", "p"]));
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_attaches_to_itself() {
    let service = TestService::start();
    let own = ["run", "-t", "--id", "p", "--", &binary(), "attach", "p"];
    let mut tty = Tty::start(service.procyard(&own));
    tty.expect("this is p itself");
    assert_eq!(tty.ended(), 125);
}

#[test]
fn a_process_that_is_not_there_is_told_in_a_line() {
    let service = TestService::start();
    let (code, said) = failed(service.procyard(&["attach", "nobody"]));
    assert!(code == 125 && said.contains("nobody") && said.contains("procyard ps"), "{said}");
}
