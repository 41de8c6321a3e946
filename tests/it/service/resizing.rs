//! Resize: the size of a terminal, and of nothing else.

use procyard::grpc::pb;
use tonic::Code;

use crate::support::service::*;
use crate::support::soon;
use crate::support::transcript::*;

fn resize(id: &str, rows: u32, cols: u32) -> pb::ResizeRequest {
    pb::ResizeRequest { id: id.into(), rows, cols }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_has_the_size_it_was_started_with_and_then_that_it_was_given() {
    let service = TestService::start();
    let mut client = service.client().await;
    let terminal = pb::Terminal { rows: 40, cols: 100, term: String::new() };
    let mut spec = shell("trap 'stty size' WINCH; stty size; while :; do sleep 0.01; done");
    spec.io = Some(pb::spec::Io::Terminal(terminal));
    begin(&mut client, "p", spec).await;
    soon(client.wait(wait("p", until_output("40 100\r\n")))).await.unwrap();
    for (rows, cols) in [(50, 132), (1, 1), (1000, 1000), (24, 80)] {
        let answer = soon(client.resize(resize("p", rows, cols))).await.unwrap().into_inner();
        assert_eq!(answer.process.unwrap().state(), pb::State::Running);
        let size = format!("\n{rows} {cols}\r\n");
        soon(client.wait(wait("p", until_output(&size)))).await.unwrap();
    }
    begin(&mut client, "usual", on_terminal(shell("stty size"))).await;
    let usual = read_to_end(&mut client, "usual", 100).await;
    assert_eq!(usual.stream(pb::Stream::Terminal), b"24 80\r\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sizes_that_cannot_be_are_refused_field_by_field() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", on_terminal(shell("read x; stty size"))).await;
    for (rows, cols, bad) in [
        (0, 0, &["rows", "cols"][..]),
        (0, 80, &["rows"]),
        (24, 0, &["cols"]),
        (1001, 80, &["rows"]),
        (65_535, 65_535, &["rows", "cols"]),
        (65_536 + 24, 65_536 + 80, &["rows", "cols"]),
        (u32::MAX, 80, &["rows"]),
    ] {
        let status = soon(client.resize(resize("p", rows, cols))).await.unwrap_err();
        assert_eq!((status.code(), &reason(&status)[..]), (Code::InvalidArgument, "INVALID_FIELD"));
        assert_eq!(bad_fields(&status), bad, "{rows} x {cols}");
    }
    write(&mut client, typed("p", "\r")).await;
    let transcript = read_to_end(&mut client, "p", 100).await;
    let shown = String::from_utf8_lossy(transcript.stream(pb::Stream::Terminal)).into_owned();
    assert!(shown.ends_with("24 80\r\n"), "the size changed: {shown:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_living_terminal_has_no_size() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "pipes", argv(&["sleep", "600"])).await;
    run_to_end(&mut client, "over", on_terminal(argv(&["true"]))).await;
    begin(&mut client, "killed", on_terminal(argv(&["sleep", "600"]))).await;
    end(&mut client, "killed").await;
    for (id, code, reason) in [
        ("pipes", Code::FailedPrecondition, "NOT_A_TERMINAL"),
        ("over", Code::FailedPrecondition, "NOT_RUNNING"),
        ("killed", Code::FailedPrecondition, "NOT_RUNNING"),
        ("nobody", Code::NotFound, "PROCESS_NOT_FOUND"),
    ] {
        let refused = soon(client.resize(resize(id, 40, 100))).await;
        assert_eq!(refusal(refused), (code, reason.into()), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_resizes_leave_the_last_wanted_size() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", on_terminal(shell("read x; stty size"))).await;
    let resizes = (0..200).map(|n| {
        let mut client = client.clone();
        tokio::spawn(async move { client.resize(resize("p", 1 + n, 80)).await.map(drop) })
    });
    let resizes: Vec<_> = resizes.collect();
    tokio::task::yield_now().await;
    resizes.iter().for_each(tokio::task::JoinHandle::abort);
    soon(client.resize(resize("p", 50, 132))).await.unwrap();
    write(&mut client, typed("p", "\r")).await;
    let transcript = read_to_end(&mut client, "p", 100).await;
    let shown = String::from_utf8_lossy(transcript.stream(pb::Stream::Terminal)).into_owned();
    assert!(shown.ends_with("50 132\r\n"), "{shown:?}");
}
