//! ^C, and whatever else asks a command to end, where nobody runs or answers who could be told.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use procyard::grpc::pb;

use super::Running;
use crate::support::service::*;
use crate::support::soon;
use crate::support::tty::Tty;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_waits_for_its_turn_is_canceled() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "first", in_queue("q", argv(&["sleep", "600"]))).await;
    let waits = ["run", "--id", "p", "--queue", "q", "--", "touch", "begun"];
    let child = Running::start(service.procyard(&waits));
    soon(async {
        while list(&mut client).await.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    kill_pid(child.0.id().cast_signed(), libc::SIGINT);
    // As ^C ends a command that runs: a shell ends its loop by that, too.
    assert_eq!(child.finished().status.signal(), Some(libc::SIGINT));
    let exit = get(&mut client, "p").await.exit.unwrap();
    assert_eq!(exit.cause(), pb::Cause::CanceledInQueue);
    assert!(!service.directory.path().join("begun").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_run_shows_its_position_and_ctrl_c_cancels_it() {
    let service = TestService::start();
    let mut client = service.client().await;
    for id in ["first", "second"] {
        begin(&mut client, id, in_queue("build", argv(&["sleep", "600"]))).await;
    }
    for (id, terminal) in [("pipes", &[][..]), ("terminal", &["-t"])] {
        let run = [&["run", "--id", id, "--queue", "build"], terminal, &["--", "touch", "begun"]];
        let mut tty = Tty::start(service.procyard(&run.concat()));
        tty.expect("procyard: waiting in queue \"build\" at position 2; press ^C to cancel\r\n");
        tty.type_in("typed before\x03");
        assert_eq!(tty.ended(), 130, "{id}");
        // A shell ends its loop only if the signal has ended the command.
        assert_eq!(tty.child.wait().unwrap().signal(), Some(libc::SIGINT), "{id}");
        let exit = get(&mut client, id).await.exit.unwrap();
        assert_eq!(exit.cause(), pb::Cause::CanceledInQueue, "{id}");
    }
    assert!(!service.directory.path().join("begun").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_reaches_a_terminal_that_has_left_its_queue() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "first", in_queue("build", argv(&["sleep", "600"]))).await;
    let line = "stty raw -echo; echo ready; head -c 2 | od -An -tx1";
    let run = ["run", "-t", "--id", "p", "--queue", "build", "--shell", line];
    let mut tty = Tty::start(service.procyard(&run));
    tty.expect("at position 1;");
    tty.type_in("a");
    soon(client.kill(kill("first"))).await.unwrap();
    tty.expect("ready");
    tty.type_in("\x03");
    // Both keys are input of the program, also the one that was typed before.
    tty.expect("61 03");
    assert_eq!(tty.ended(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn detaching_from_a_queued_process_says_that_it_waits() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "first", in_queue("build", argv(&["sleep", "600"]))).await;
    let run = ["run", "-t", "--id", "p", "--queue", "build", "--", "cat"];
    for args in [&run[..], &["attach", "p"]] {
        let mut tty = Tty::start(service.procyard(args));
        tty.expect("at position 1");
        tty.type_in("\x10\x11");
        tty.expect("procyard: p still waits to start");
        assert_eq!(tty.ended(), 0, "{args:?}");
    }
    assert_eq!(get(&mut client, "p").await.state(), pb::State::Queued);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attach_to_a_queued_process_shows_its_position() {
    let service = TestService::start();
    let mut client = service.client().await;
    for id in ["first", "p"] {
        begin(&mut client, id, in_queue("build", argv(&["sleep", "600"]))).await;
    }
    let mut tty = Tty::start(service.procyard(&["attach", "p"]));
    tty.expect("waiting in queue \"build\" at position 1\r\n");
    tty.type_in("\x03");
    assert_eq!(tty.ended(), 130);
    assert_eq!(get(&mut client, "p").await.state(), pb::State::Queued);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_waits_for_its_restart_stays_ended() {
    let service = TestService::start();
    let mut client = service.client().await;
    // The fifth start is the last, and may be faster than we are: then it is tried again.
    for n in 0..5 {
        let id = format!("p{n}");
        let args = ["run", "--id", &id, "--service", &id, "--restart", "always", "--", "sh", "-c"];
        let line = "echo begun; exit 1";
        let mut child = Running::start(service.procyard(&[&args[..], &[line]].concat()));
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert_eq!(lines.by_ref().take(4).flatten().count(), 4);
        soon(async {
            let waits = [pb::State::Backoff, pb::State::Exited];
            while !waits.contains(&get(&mut client, &id).await.state()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        kill_pid(child.0.id().cast_signed(), libc::SIGINT);
        let status = child.finished().status;
        let exit = get(&mut client, &id).await.exit.unwrap();
        if exit.cause() == pb::Cause::Killed {
            return assert_eq!(status.signal(), Some(libc::SIGINT), "{exit:?}");
        }
    }
    panic!("nobody was ended while it waited");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_that_is_closed_hangs_up_and_does_not_end_the_input() {
    let service = TestService::start();
    let mut client = service.client().await;
    // More than once, as one of two things happens first.
    for n in 0..3 {
        for tty in [&["-t"][..], &[]] {
            let id = format!("p{n}{}", tty.len());
            let run = [&["run", "--id", &id], tty, &["--", "sh", "-c", "echo ready; cat"]].concat();
            let mut tty = Tty::start(service.procyard(&run));
            tty.expect("ready");
            tty.hang_up();
            let exit = ended(&mut client, &id).await.exit.unwrap();
            assert_eq!(exit.signal, Some(libc::SIGHUP), "{run:?}: {exit:?}");
        }
    }
}

/// Ends the server, and has nobody start another, until this is dropped.
struct Away<'a>(&'a TestService);

impl Away<'_> {
    fn begin(service: &TestService) -> Away<'_> {
        let server = service.server_pid();
        service.signal(libc::SIGSTOP);
        kill_pid(server, libc::SIGKILL);
        Away(service)
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.0.signal(libc::SIGCONT);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_supervisor_is_told_so() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    let mut logs = Tty::start(service.procyard(&["logs", "-f", "p"]));
    let mut shell = Tty::start(service.procyard(&["run", "-t", "--id", "s", "--", "cat"]));
    shell.type_in("here\r");
    shell.expect("here\r\nhere");
    let input = Some(pb::write_stdin_request::Input::Text("one\n".into()));
    let write = pb::WriteStdinRequest { id: "p".into(), input, ..Default::default() };
    soon(client.write_stdin(write.clone())).await.unwrap();
    logs.expect("one");
    let away = Away::begin(&service);
    logs.expect("cannot be reached");
    shell.expect("cannot be reached");
    shell.type_in("\x10\x11");
    shell.expect("s may run on");
    assert_eq!(shell.ended(), 0);
    drop(away);
    let mut client = service.client().await;
    soon(client.write_stdin(write)).await.unwrap();
    logs.expect("one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_while_nobody_could_be_reached_is_told_later_and_so_is_the_next() {
    let service = TestService::start();
    let line = "trap 'echo caught' INT; echo ready; while :; do sleep 600 & wait; done";
    let mut tty = Tty::start(service.procyard(&["run", "--", "sh", "-c", line]));
    tty.expect("ready");
    let away = Away::begin(&service);
    tty.expect("cannot be reached");
    tty.type_in("\x03");
    tty.expect("^C");
    drop(away);
    tty.expect("caught");
    tty.type_in("\x03");
    tty.expect("caught");
    kill_pid(tty.child.id().cast_signed(), libc::SIGTERM);
    assert_eq!(tty.ended(), 143);
}
