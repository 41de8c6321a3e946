//! Sleep: as long as was asked for, or until the right process completes.

use std::time::{Duration, Instant};

use procyard::grpc::pb::{self, sleep_response::Message};
use tonic::Code;

use crate::support::service::*;
use crate::support::{Gate, soon, until};

/// A stream of a sleep.
struct Sleeper(tonic::Streaming<pb::SleepResponse>);

impl Sleeper {
    /// Begins to sleep: from here on, completions count.
    async fn open(client: &mut Client, request: pb::SleepRequest) -> Sleeper {
        Sleeper(soon(client.sleep(request)).await.unwrap().into_inner())
    }

    /// The next message; none: the stream is over.
    async fn message(&mut self) -> Option<Message> {
        soon(self.0.message()).await.unwrap().map(|answer| answer.message.unwrap())
    }

    /// The end, which must come next, once and last.
    async fn done(&mut self) -> pb::sleep_response::Done {
        let message = self.message().await;
        let Some(Message::Done(done)) = message else { panic!("{message:?}") };
        assert_eq!(self.message().await, None);
        done
    }

    async fn tick(&mut self) -> (Duration, Duration) {
        let message = self.message().await;
        let Some(Message::Tick(tick)) = message else { panic!("{message:?}") };
        (span(tick.elapsed), span(tick.remaining))
    }
}

fn span(span: Option<prost_types::Duration>) -> Duration {
    Duration::try_from(span.unwrap()).unwrap()
}

fn sleep(milliseconds: u32) -> pb::SleepRequest {
    pb::SleepRequest { duration: Some(millis(milliseconds)), ..Default::default() }
}

/// So long that nothing but a completion can end it.
fn until_woken(wake_on: pb::Selector) -> pb::SleepRequest {
    pb::SleepRequest { wake_on: Some(wake_on), ..sleep(3_600_000) }
}

fn of_owner(owner: &str) -> pb::Selector {
    pb::Selector { owner: owner.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleep_is_as_long_as_was_asked_for_and_nothing_wakes_it_unasked() {
    let service = TestService::start();
    let mut client = service.client().await;
    let begin = Instant::now();
    let mut sleeper = Sleeper::open(&mut client, sleep(300)).await;
    finish(&mut client, "a", shell("true")).await;
    let done = sleeper.done().await;
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert!((Duration::from_millis(300)..=begin.elapsed()).contains(&span(done.slept)));
    assert_eq!((done.interrupted, done.event), (false, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_completion_that_is_meant_wakes() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut any = Sleeper::open(&mut client, until_woken(pb::Selector::default())).await;
    let mut of_ann = Sleeper::open(&mut client, until_woken(of_owner("ann"))).await;
    let outcomes = vec![pb::Outcome::Failed.into()];
    let failed = pb::Selector { outcomes, ..of_owner("ann") };
    let mut of_ann_failed = Sleeper::open(&mut client, until_woken(failed)).await;
    for (id, owner, line) in
        [("a", "bob", "exit 1"), ("b", "ann", "exit 0"), ("c", "ann", "exit 3")]
    {
        finish(&mut client, id, pb::Spec { owner: owner.into(), ..shell(line) }).await;
    }
    for (sleeper, id) in [(&mut any, "a"), (&mut of_ann, "b"), (&mut of_ann_failed, "c")] {
        let done = sleeper.done().await;
        assert!(done.interrupted);
        let event = done.event.unwrap();
        assert_eq!((&event.process_id[..], event.kind()), (id, pb::Kind::Completed));
        assert!(exit(&event.process.unwrap()).code.is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_completed_before_the_call_or_only_started_does_not_wake() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "before", shell("true")).await;
    let mut sleeper = Sleeper::open(&mut client, until_woken(pb::Selector::default())).await;
    begin_ready(&mut client, "runs", shell("echo ready; exec sleep 600")).await;
    soon(client.delete(pb::DeleteRequest { id: "before".into(), ..Default::default() }))
        .await
        .unwrap();
    finish(&mut client, "after", shell("true")).await;
    assert_eq!(sleeper.done().await.event.unwrap().process_id, "after");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_of_many_completions_hides_the_one_that_is_meant() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut sleeper = Sleeper::open(&mut client, until_woken(of_owner("ann"))).await;
    for n in 0..100 {
        begin(&mut client, &format!("p{n}"), argv(&["true"])).await;
    }
    begin(&mut client, "meant", pb::Spec { owner: "ann".into(), ..argv(&["true"]) }).await;
    for n in 100..200 {
        begin(&mut client, &format!("p{n}"), argv(&["true"])).await;
    }
    assert_eq!(sleeper.done().await.event.unwrap().process_id, "meant");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ticks_come_at_once_and_each_interval_and_never_with_the_end() {
    let service = TestService::start();
    let mut client = service.client().await;
    let request = pb::SleepRequest { tick_interval: Some(millis(5000)), ..sleep(8000) };
    let mut sleeper = Sleeper::open(&mut client, request).await;
    let short = pb::SleepRequest { tick_interval: Some(millis(5000)), ..sleep(5000) };
    let mut exact = Sleeper::open(&mut client, short).await;
    for (sleeper, whole) in [(&mut sleeper, 8000), (&mut exact, 5000)] {
        let (elapsed, remaining) = sleeper.tick().await;
        assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
        assert_eq!(elapsed + remaining, Duration::from_millis(whole));
    }
    assert!(!exact.done().await.interrupted);
    let (elapsed, remaining) = sleeper.tick().await;
    assert!(elapsed >= Duration::from_secs(5));
    assert_eq!(elapsed + remaining, Duration::from_millis(8000));
    assert!(!sleeper.done().await.interrupted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_ends_a_sleep_and_is_no_error() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    // Who ends only when it is let: the sleepers are told before.
    let mut gate = Gate::new(service.directory.path());
    begin_ready(&mut client, "patient", patient(&gate)).await;
    let mut plain = Sleeper::open(&mut client, sleep(3_600_000)).await;
    let mut waiting = Sleeper::open(&mut client, until_woken(of_owner("nobody"))).await;
    service.signal(libc::SIGTERM);
    for sleeper in [&mut plain, &mut waiting] {
        let done = sleeper.done().await;
        assert_eq!((done.interrupted, done.event), (true, None));
    }
    // The sleepers know of the shutdown before the process is asked to stop.
    soon(async { while get(&mut client, "patient").await.state() != pb::State::Stopping {} }).await;
    gate.open(1);
    until("the service has ended", || service.child.try_wait().unwrap().is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleep_that_cannot_be_is_refused_with_all_its_bad_fields() {
    let service = TestService::start();
    let mut client = service.client().await;
    let request = pb::SleepRequest {
        duration: Some(millis(99)),
        tick_interval: Some(millis(4999)),
        description: "x".repeat(81),
        wake_on: Some(pb::Selector { states: vec![99], ..Default::default() }),
    };
    let status = soon(client.sleep(request)).await.unwrap_err();
    assert_eq!((status.code(), &reason(&status)[..]), (Code::InvalidArgument, "INVALID_FIELD"));
    let all = ["duration", "tick_interval", "description", "wake_on.states[0]"];
    assert_eq!(bad_fields(&status), all);
    for beyond in [None, Some(millis(3_600_001))] {
        let request = pb::SleepRequest { duration: beyond, ..Default::default() };
        let status = soon(client.sleep(request)).await.unwrap_err();
        assert_eq!(bad_fields(&status), ["duration"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sleepers_that_leave_are_gone() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    for _ in 0..100 {
        Sleeper::open(&mut client, until_woken(pb::Selector::default())).await;
    }
    // The connection has room for as many as before, and the end is not held up.
    let mut sleepers = Vec::new();
    for _ in 0..100 {
        sleepers.push(Sleeper::open(&mut client, until_woken(pb::Selector::default())).await);
    }
    finish(&mut client, "a", shell("true")).await;
    for sleeper in &mut sleepers {
        assert_eq!(sleeper.done().await.event.unwrap().process_id, "a");
    }
    drop((sleepers, client));
    let begin = Instant::now();
    service.stop();
    // After that time the keeper would have ended the server by force.
    assert!(begin.elapsed() < Duration::from_secs(20));
}
