//! Starts that wait: for the end, for words, for a pause, or for as long as the client likes.

use procyard::grpc::pb;

use crate::support::service::*;
use crate::support::{Gate, soon};

async fn started(client: &mut Client, spec: pb::Spec, wait: pb::WaitFor) -> pb::StartResponse {
    let request = pb::StartRequest { wait: Some(wait), ..start("", spec) };
    soon(client.start(request)).await.unwrap().into_inner()
}

fn result(answer: &pb::StartResponse) -> (bool, bool) {
    let wait = answer.wait.as_ref().unwrap();
    (wait.met, wait.timed_out)
}

fn state(answer: &pb::StartResponse) -> pb::State {
    answer.process.as_ref().unwrap().state()
}

const MET: (bool, bool) = (true, false);
const TIMED_OUT: (bool, bool) = (false, true);
const ENDED: (bool, bool) = (false, false);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_is_met_with_all_output_and_a_timeout_leaves_the_process_alone() {
    let service = TestService::start();
    let mut client = service.client().await;
    let wait = within(60_000, until_exit());
    let answer = started(&mut client, shell("echo a; sleep 0.05; echo b"), wait).await;
    assert_eq!((result(&answer), state(&answer)), (MET, pb::State::Exited));
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "a\nb\n");
    for patience in [0, 50] {
        let wait = within(patience, until_exit());
        let answer = started(&mut client, shell("exec sleep 600"), wait).await;
        assert_eq!((result(&answer), state(&answer)), (TIMED_OUT, pb::State::Running));
    }
    assert_eq!(service.inmates().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_are_found_across_chunks_and_named() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let line = "printf 'listening on po'; read x <GATE; echo rt 7450.; exec sleep 600";
    let spec = shell(&line.replace("GATE", &gate.path));
    let mut other = client.clone();
    let port = until_output(r"port (\d+)");
    let starting = tokio::spawn(async move { started(&mut other, spec, port).await });
    let begun = Watcher::since(&mut client, 0).await.next(pb::Kind::Started).await;
    // The first part is a chunk of its own before the second one is printed.
    let part =
        pb::WaitRequest { wait: Some(until_output("on po")), ..wait_for_it(&begun.process_id) };
    assert!(soon(client.wait(part)).await.unwrap().into_inner().wait.unwrap().met);
    gate.open(1);
    let answer = soon(starting).await.unwrap();
    assert_eq!((result(&answer), state(&answer)), (MET, pb::State::Running));
    let found = answer.wait.unwrap().r#match.unwrap();
    assert_eq!((&found.text[..], found.seq), ("port 7450", 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_that_never_come_are_not_waited_for_after_the_end() {
    let service = TestService::start();
    let mut client = service.client().await;
    let answer = started(&mut client, shell("echo other"), until_output("never")).await;
    assert_eq!((result(&answer), state(&answer)), (ENDED, pb::State::Exited));
    let wait = within(50, until_output("never"));
    let answer = started(&mut client, shell("echo other; exec sleep 600"), wait).await;
    assert_eq!((result(&answer), state(&answer)), (TIMED_OUT, pb::State::Running));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_counts_from_the_first_output_on() {
    let service = TestService::start();
    let mut client = service.client().await;
    let answer =
        started(&mut client, shell("sleep 0.3; echo late; exec sleep 600"), until_quiet(50)).await;
    assert_eq!((result(&answer), state(&answer)), (MET, pb::State::Running));
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "late\n");
    let wait = within(200, until_quiet(1));
    let answer = started(&mut client, shell("exec sleep 600"), wait).await;
    assert_eq!((result(&answer), state(&answer)), (TIMED_OUT, pb::State::Running));
    let answer = started(&mut client, shell("true"), until_quiet(60_000)).await;
    assert_eq!((result(&answer), state(&answer)), (MET, pb::State::Exited));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_finds_its_process_waits_for_it_too() {
    let service = TestService::start();
    let mut client = service.client().await;
    let spec = with_stdin(shell("read line; echo got $line"));
    begin(&mut client, "a", spec.clone()).await;
    let mut other = service.client().await;
    let waiting = tokio::spawn(async move { soon(other.start(run("a", spec))).await });
    let input = pb::write_stdin_request::Input::Text("it\n".into());
    let write = pb::WriteStdinRequest { id: "a".into(), input: Some(input), ..Default::default() };
    soon(client.write_stdin(write)).await.unwrap();
    let answer = waiting.await.unwrap().unwrap().into_inner();
    assert!(answer.existed && answer.wait.unwrap().met);
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "got it\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_never_missed_however_short_the_process() {
    let service = TestService::start();
    let mut client = service.client().await;
    for n in 0..200 {
        let answer = finish(&mut client, "", argv(&["echo", &n.to_string()])).await;
        assert_eq!(text(&answer.chunks, pb::Stream::Stdout), format!("{n}\n"));
        assert_eq!(exit(answer.process.as_ref().unwrap()).code, Some(0));
    }
}
