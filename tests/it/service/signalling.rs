//! Signal: one signal, delivered as it was named, and nothing else changed.

use procyard::grpc::pb;
use tonic::Code;

use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{soon, state, until};

fn signal(id: &str, signal: &str) -> pb::SignalRequest {
    pb::SignalRequest { id: id.into(), signal: signal.into(), group: false }
}

async fn send(client: &mut Client, request: pb::SignalRequest) -> pb::Process {
    soon(client.signal(request)).await.unwrap().into_inner().process.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_may_be_named_or_numbered() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "trap 'echo usr1' USR1; trap 'echo usr2' USR2; trap 'echo term' TERM; \
                trap 'echo rt' 34; echo ready; while :; do sleep 0.01; done";
    begin(&mut client, "p", argv(&["bash", "-c", line])).await;
    let mut next_seq = {
        let answer = soon(client.wait(wait("p", until_output("ready\n")))).await.unwrap();
        answer.into_inner().cursor.unwrap().next_seq
    };
    for (name, expected) in [
        ("USR1", "usr1\n"),
        ("SIGUSR2", "usr2\n"),
        ("15", "term\n"),
        ("sigterm", "term\n"),
        ("10", "usr1\n"),
        ("34", "rt\n"),
    ] {
        let process = send(&mut client, signal("p", name)).await;
        assert_eq!(process.state(), pb::State::Running, "a signal is no change of lifecycle");
        let answer = ask_read(&mut client, read_on("p", next_seq)).await;
        assert_eq!(text(&answer.chunks, pb::Stream::Stdout), expected, "{name}");
        next_seq = answer.cursor.unwrap().next_seq;
    }
    assert_eq!(get(&mut client, "p").await.state(), pb::State::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_dies_of_a_signal_was_not_killed_by_request() {
    let service = TestService::start();
    let mut client = service.client().await;
    for name in ["TERM", "KILL", "HUP", "6"] {
        let id = format!("p-{name}");
        begin(&mut client, &id, argv(&["sleep", "600"])).await;
        send(&mut client, signal(&id, name)).await;
        let answer = soon(client.wait(wait(&id, until_exit()))).await.unwrap().into_inner();
        let exit = answer.process.unwrap().exit.unwrap();
        assert_eq!((exit.cause(), exit.outcome()), (pb::Cause::Signaled, pb::Outcome::Failed));
        let numbers = [("TERM", 15), ("KILL", 9), ("HUP", 1), ("6", 6)];
        let number = numbers.iter().find(|(known, _)| *known == name).unwrap().1;
        assert_eq!((exit.signal, exit.code), (Some(number), None));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_signalled_as_a_whole_and_a_process_alone() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "trap 'echo parent' USR1; \
                (trap 'echo child; exit' USR1; echo ready; while :; do sleep 0.01; done) & \
                while :; do sleep 0.01; done";
    begin(&mut client, "p", shell(line)).await;
    let answer = soon(client.wait(wait("p", until_output("ready\n")))).await.unwrap();
    let since_seq = answer.into_inner().cursor.unwrap().next_seq;
    for _ in 0..3 {
        send(&mut client, signal("p", "USR1")).await;
    }
    soon(client.wait(wait("p", until_output("parent\n")))).await.unwrap();
    let alone = ask_read(&mut client, read_on("p", since_seq)).await;
    assert!(!text(&alone.chunks, pb::Stream::Stdout).contains("child"), "{alone:?}");
    send(&mut client, pb::SignalRequest { group: true, ..signal("p", "USR1") }).await;
    soon(client.wait(wait("p", until_output("child\n")))).await.unwrap();
    assert_eq!(get(&mut client, "p").await.state(), pb::State::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_stopped_still_runs() {
    let service = TestService::start();
    let mut client = service.client().await;
    let process = begin(&mut client, "p", with_stdin(argv(&["cat"]))).await;
    send(&mut client, signal("p", "STOP")).await;
    until("it is stopped", || state(process.pid) == Some('T')).await;
    assert_eq!(get(&mut client, "p").await.state(), pb::State::Running);
    write(&mut client, typed("p", "word")).await;
    send(&mut client, signal("p", "CONT")).await;
    soon(client.wait(wait("p", until_output("word")))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_signal_or_has_nobody_to_go_to_is_refused() {
    let service = TestService::start();
    let mut client = service.client().await;
    let process = begin(&mut client, "p", argv(&["sleep", "600"])).await;
    for name in ["", "NOPE", "0", "65", "-9", "SIG", "TERM,KILL", "99999999999999999999"] {
        let status = soon(client.signal(signal("p", name))).await.unwrap_err();
        assert_eq!(
            (status.code(), bad_fields(&status)),
            (Code::InvalidArgument, vec!["signal".into()])
        );
    }
    assert_eq!(get(&mut client, "p").await.pid, process.pid);
    run_to_end(&mut client, "over", argv(&["true"])).await;
    for group in [false, true] {
        let over = soon(client.signal(pb::SignalRequest { group, ..signal("over", "TERM") })).await;
        assert_eq!(refusal(over), (Code::FailedPrecondition, "NOT_RUNNING".into()));
    }
    let nobody = soon(client.signal(signal("nobody", "TERM"))).await;
    assert_eq!(refusal(nobody), (Code::NotFound, "PROCESS_NOT_FOUND".into()));
}
