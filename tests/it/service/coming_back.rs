//! Services that are started again when everything is: after a shutdown, and after a loss.

use procyard::grpc::pb;

use super::archiving::{file, lose_everything};
use crate::support::service::*;
use crate::support::{soon, until};
use pb::Kind::{Completed, Restarting, Started, Stopping};
use pb::restart::Policy;

/// Prints how often it was started, by the lines of a file.
fn counting(service: &TestService, name: &str, policy: Policy) -> pb::Spec {
    let file = service.directory.path().join(name);
    let file = file.display();
    let line = format!("echo >> {file}; echo up $(wc -l < {file}); exec sleep 600");
    pb::Spec { service: name.into(), ..restarted(policy, shell(&line)) }
}

async fn until_up(client: &mut Client, id: &str, times: u32) {
    let wait = Some(until_output(&format!("up {times}\n")));
    let request = pb::WaitRequest { id: id.into(), wait, ..Default::default() };
    let waited = soon(client.wait(request)).await.unwrap().into_inner().wait.unwrap();
    assert!(waited.met);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_with_a_policy_come_back_after_a_shutdown_and_others_do_not() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    for (id, policy) in
        [("always", Policy::Always), ("failing", Policy::OnFailure), ("never", Policy::Never)]
    {
        begin(&mut client, id, counting(&service, id, policy)).await;
        until_up(&mut client, id, 1).await;
    }
    let killed = counting(&service, "killed", Policy::Always);
    begin(&mut client, "killed", killed).await;
    soon(client.kill(kill_at_once("killed"))).await.unwrap();
    begin(&mut client, "job", shell("exec sleep 600")).await;
    service.restart();
    let mut client = service.client().await;
    for id in ["always", "failing"] {
        until_up(&mut client, id, 2).await;
        let process = get(&mut client, id).await;
        assert_eq!((process.state(), process.run), (pb::State::Running, 1), "{id}");
        assert_eq!(story(&mut client, id).await, [Started, Stopping, Restarting, Started], "{id}");
        // What it printed before stands before what it prints now.
        assert_eq!(printed(&mut client, id).await, "up 1\nup 2\n", "{id}");
    }
    for (id, cause) in [
        ("never", pb::Cause::Shutdown),
        ("job", pb::Cause::Shutdown),
        ("killed", pb::Cause::Killed),
    ] {
        assert_eq!(exit(&get(&mut client, id).await).cause(), cause, "{id}");
        assert_eq!(story(&mut client, id).await.last(), Some(&Completed), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_with_a_policy_come_back_after_everything_was_lost() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "s", counting(&service, "s", Policy::OnFailure)).await;
    until("it is saved", || file(&service, "1.1").exists()).await;
    lose_everything(&mut service).await;
    let mut client = service.client().await;
    until_up(&mut client, "s", 2).await;
    assert_eq!(story(&mut client, "s").await, [Started, Restarting, Started]);
    // What it may have printed unseen is told as missing, whose cursor ever that was.
    let request = pb::ReadRequest { id: "s".into(), ..Default::default() };
    let first = soon(client.read(request.clone())).await.unwrap().into_inner();
    assert_eq!(text(&first.chunks, pb::Stream::Stdout), "up 1\n");
    let since_seq = Some(first.cursor.unwrap().next_seq);
    let next = pb::ReadRequest { since_seq, ..request.clone() };
    let next = soon(client.read(next)).await.unwrap().into_inner();
    assert_eq!(
        (next.gap.is_some(), text(&next.chunks, pb::Stream::Stdout).as_str()),
        (true, "up 2\n")
    );
    assert_eq!(next.chunks[0].offset, 5);
    // All of it is in one file in the end.
    soon(client.kill(kill_at_once("s"))).await.unwrap();
    service.restart();
    let mut client = service.client().await;
    let first = soon(client.read(request)).await.unwrap().into_inner();
    assert_eq!(text(&first.chunks, pb::Stream::Stdout), "up 1\n");
    let last = pb::ReadRequest { id: "s".into(), since_seq, ..Default::default() };
    let last = soon(client.read(last)).await.unwrap().into_inner();
    assert_eq!((last.gap, last.chunks), (next.gap, next.chunks));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_pauses_at_a_shutdown_is_started_by_the_next() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    let file = service.directory.path().join("count");
    let line = format!("echo >> {0}; echo up $(wc -l < {0}); exit 1", file.display());
    let mut spec = restarted(Policy::Always, shell(&line));
    let restart = spec.restart.as_mut().unwrap();
    restart.backoff_min = Some(millis(600_000));
    restart.backoff_max = Some(millis(600_000));
    begin(&mut client, "s", spec).await;
    let mut watcher = Watcher::since(&mut client, 0).await;
    watcher.next(Restarting).await;
    service.restart();
    let mut client = service.client().await;
    // It goes on with its pause.
    assert_eq!(get(&mut client, "s").await.state(), pb::State::Backoff);
    assert_eq!(story(&mut client, "s").await, [Started, Restarting]);
    soon(client.kill(kill("s"))).await.unwrap();
    assert_eq!(printed(&mut client, "s").await, "up 1\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_who_saw_more_than_was_saved_is_told_what_is_missing() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    let gate = service.directory.path().join("gate");
    let line = format!("echo one; until [ -e {} ]; do sleep 0.02; done", gate.display());
    let mut spec = restarted(Policy::Always, shell(&format!("{line}; echo two; exec sleep 600")));
    let restart = spec.restart.as_mut().unwrap();
    // Long enough to be looked at.
    restart.backoff_min = Some(millis(600_000));
    restart.backoff_max = Some(millis(600_000));
    begin(&mut client, "s", spec).await;
    until("it is saved", || file(&service, "1.1").exists()).await;
    let before = std::fs::metadata(file(&service, "1.1")).unwrap().len();
    std::fs::write(&gate, "").unwrap();
    let wait = Some(until_output("two\n"));
    let request = pb::WaitRequest { id: "s".into(), wait, ..Default::default() };
    let cursor = soon(client.wait(request)).await.unwrap().into_inner().cursor.unwrap().next_seq;
    lose_everything(&mut service).await;
    let after = std::fs::metadata(file(&service, "1.1")).unwrap().len();
    let mut client = service.client().await;
    assert_eq!(get(&mut client, "s").await.state(), pb::State::Backoff);
    // Not ahead of the end: what it printed since it was saved is nobody's to know.
    let request = pb::ReadRequest { id: "s".into(), since_seq: Some(cursor), ..Default::default() };
    soon(client.read(request)).await.unwrap();
    // One that ends without having printed again has an end, too.
    soon(client.kill(kill("s"))).await.unwrap();
    let request = pb::FollowRequest { id: "s".into(), since_seq: Some(1), ..Default::default() };
    let mut stream = soon(client.follow(request)).await.unwrap().into_inner();
    let mut last = None;
    while let Some(message) = soon(stream.message()).await.unwrap() {
        last = message.message;
    }
    assert!(matches!(last, Some(pb::follow_response::Message::End(_))), "{last:?}");
    assert!(after >= before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_waits_in_a_queue_at_a_shutdown_waits_there_again() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    for id in ["first", "second"] {
        let spec = in_queue("q", counting(&service, id, Policy::Always));
        begin(&mut client, id, spec).await;
    }
    until_up(&mut client, "first", 1).await;
    service.restart();
    let mut client = service.client().await;
    until_up(&mut client, "first", 2).await;
    let second = get(&mut client, "second").await;
    assert_eq!((second.state(), second.queue_position), (pb::State::Queued, 1));
    soon(client.kill(kill_at_once("first"))).await.unwrap();
    until_up(&mut client, "second", 1).await;
}
