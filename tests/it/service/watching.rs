//! Watch: numbered events, each once, from any that is kept, however often a watcher comes back.

use std::time::Duration;

use procyard::grpc::pb::{self, watch_response::Message};
use tokio::task::JoinSet;
use tonic::Code;

use crate::support::service::*;
use crate::support::{full_volume, soon};

fn watch() -> pb::WatchRequest {
    pb::WatchRequest::default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_begins_with_a_heartbeat_and_with_what_happens_from_then_on() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "before", shell("true")).await;
    let mut watcher = Watcher::open(&mut client, watch()).await;
    finish(&mut client, "after", shell("exit 2")).await;
    let started = watcher.event().await.unwrap();
    let completed = watcher.event().await.unwrap();
    assert_eq!((started.seq, completed.seq), (3, 4));
    assert_eq!(started.kind(), pb::Kind::Started);
    assert_eq!(completed.kind(), pb::Kind::Completed);
    for event in [&started, &completed] {
        assert_eq!(event.process_id, "after");
        assert!(event.time.is_some());
    }
    assert_eq!(started.process.unwrap().state(), pb::State::Running);
    let process = completed.process.unwrap();
    assert_eq!(exit(&process).code, Some(2));
    assert!(exit(&process).duration.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_begins_after_the_named_event_and_ends() {
    let service = TestService::start();
    let mut client = service.client().await;
    for n in 0..3 {
        finish(&mut client, &format!("p{n}"), shell("true")).await;
    }
    for since in 0..=6 {
        let request = pb::WatchRequest { since_event: Some(since), replay_only: true, ..watch() };
        let mut watcher = Watcher::open(&mut client, request).await;
        let mut seqs = Vec::new();
        while let Some(event) = watcher.event().await {
            seqs.push(event.seq);
        }
        assert_eq!(seqs, (since + 1..=6).collect::<Vec<_>>());
    }
    let ahead = pb::WatchRequest { since_event: Some(7), ..watch() };
    let answer = soon(client.watch(ahead)).await.map(drop);
    assert_eq!(refusal(answer), (Code::OutOfRange, "CURSOR_AHEAD".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_kinds_and_processes_that_were_asked_for_come() {
    let service = TestService::start();
    let mut client = service.client().await;
    let kinds = vec![pb::Kind::Completed.into(), pb::Kind::Deleted.into()];
    let selector = Some(pb::Selector { owner: "ann".into(), ..Default::default() });
    let mut watcher =
        Watcher::open(&mut client, pb::WatchRequest { kinds, selector, ..watch() }).await;
    for (id, owner) in [("a", "ann"), ("b", "bob"), ("c", "ann")] {
        finish(&mut client, id, pb::Spec { owner: owner.into(), ..shell("true") }).await;
    }
    soon(client.delete(pb::DeleteRequest { id: "a".into(), ..Default::default() })).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let event = watcher.event().await.unwrap();
        seen.push((event.process_id.clone(), event.kind()));
    }
    use pb::Kind::{Completed, Deleted};
    assert_eq!(seen, [("a".into(), Completed), ("c".into(), Completed), ("a".into(), Deleted)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_selector_is_matched_against_the_process_as_it_was_then() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "a", shell("exit 1")).await;
    finish(&mut client, "b", shell("exit 0")).await;
    let outcomes = vec![pb::Outcome::Failed.into()];
    let selector = Some(pb::Selector { outcomes, ..Default::default() });
    let request = pb::WatchRequest { selector, since_event: Some(0), replay_only: true, ..watch() };
    let mut watcher = Watcher::open(&mut client, request).await;
    let event = watcher.event().await.unwrap();
    assert_eq!((&event.process_id[..], event.kind()), ("a", pb::Kind::Completed));
    assert!(watcher.event().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_comes_when_there_is_no_news() {
    let service = TestService::start();
    let mut client = service.client().await;
    let request = pb::WatchRequest { heartbeat_interval: Some(millis(1000)), ..watch() };
    let mut watcher = Watcher::open(&mut client, request).await;
    for _ in 0..2 {
        let message = watcher.message().await.unwrap();
        assert!(matches!(&message, Message::Heartbeat(beat) if beat.time.is_some()), "{message:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_are_no_longer_kept_are_a_gap() {
    let service = TestService::start_with(|command| {
        command.args(["--keep-events", "10"]);
    });
    let mut client = service.client().await;
    let count = if full_volume() { 5000 } else { 1000 };
    let mut runs = JoinSet::new();
    for _ in 0..count {
        let mut client = client.clone();
        runs.spawn(async move { finish(&mut client, "", argv(&["true"])).await });
        if runs.len() >= 32 {
            runs.join_next().await.unwrap().unwrap();
        }
    }
    runs.join_all().await;
    let latest = 2 * count;
    let request = pb::WatchRequest { since_event: Some(3), replay_only: true, ..watch() };
    let mut watcher = Watcher::open(&mut client, request).await;
    let Some(Message::Gap(gap)) = watcher.message().await else { panic!("no gap") };
    assert_eq!((gap.from_seq, gap.dropped_bytes), (4, None));
    let mut next = gap.to_seq + 1;
    while let Some(event) = watcher.event().await {
        assert_eq!(event.seq, next);
        next += 1;
    }
    assert_eq!(next, latest + 1);
    // More may be kept for a while than must be, but not without end.
    assert!(gap.to_seq > 4 && gap.to_seq <= latest - 10, "{gap:?}");
    let info = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    assert_eq!(info.into_inner().counts.unwrap().latest_event, latest);
}

/// Watches by coming back again and again, until so many have completed. All sequence numbers.
async fn restless(service: &TestService, completions: usize) -> Vec<pb::Event> {
    let mut events: Vec<pb::Event> = Vec::new();
    let mut completed = 0;
    let mut patience = 1;
    while completed < completions {
        let mut client = service.client().await;
        let since = events.last().map_or(0, |event| event.seq);
        let request = pb::WatchRequest { since_event: Some(since), ..watch() };
        let Ok(stream) = soon(client.watch(request)).await else { continue };
        let mut stream = stream.into_inner();
        patience = patience % 40 + 7;
        for _ in 0..patience {
            // A server that is replaced ends the stream, and that is all.
            let next = tokio::time::timeout(Duration::from_secs(1), stream.message()).await;
            let Ok(Ok(Some(answer))) = next else { break };
            match answer.message.unwrap() {
                Message::Event(event) => {
                    completed += usize::from(event.kind() == pb::Kind::Completed);
                    events.push(event);
                }
                Message::Heartbeat(_) => {}
                Message::Gap(gap) => panic!("{gap:?}"),
            }
        }
    }
    events
}

/// Each event once and in order, each process started once and completed once.
fn check(events: &[pb::Event], count: usize) {
    let seqs: Vec<_> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=events.len() as u64).collect::<Vec<_>>());
    for kind in [pb::Kind::Started, pb::Kind::Completed] {
        let of_kind = events.iter().filter(|event| event.kind() == kind);
        let mut ids: Vec<_> = of_kind.map(|event| event.process_id.clone()).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count, "{kind:?}");
    }
    assert_eq!(events.len(), 2 * count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_comes_back_again_and_again_sees_each_event_once() {
    let service = TestService::start();
    let client = service.client().await;
    let count = if full_volume() { 2000 } else { 300 };
    let starting = tokio::spawn(async move {
        for n in 0..count {
            begin(&mut client.clone(), &format!("p{n}"), argv(&["true"])).await;
        }
    });
    check(&restless(&service, count).await, count);
    starting.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_survive_the_death_of_the_server_each_once() {
    let service = TestService::start();
    let count = 200;
    let socket = service.socket();
    let starting = tokio::spawn(async move {
        for n in 0..count {
            // Retried until it is answered: the id makes it one process.
            loop {
                let Ok(channel) = connect(socket.clone()).await else { continue };
                let request = start(&format!("p{n}"), argv(&["true"]));
                if soon(Client::new(channel).start(request)).await.is_ok() {
                    break;
                }
            }
        }
    });
    let killing = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            service.kill_server();
        }
    };
    let (events, ()) = tokio::join!(restless(&service, count), killing);
    starting.await.unwrap();
    check(&events, count);
    assert_eq!(
        events.len(),
        crate::support::service::events(&mut service.client().await).await.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_survive_a_restart_and_go_on_where_they_were() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "a", shell("exit 3")).await;
    begin(&mut client, "b", shell("exec sleep 600")).await;
    let before = events(&mut client).await;
    assert_eq!(before.len(), 3);
    drop(client);
    service.restart();
    let mut client = service.client().await;
    finish(&mut client, "c", shell("true")).await;
    let after = events(&mut client).await;
    assert_eq!(after[..3], before);
    use pb::Kind::{Completed, Started, Stopping};
    assert_eq!(kinds(&after[3..]), [Stopping, Completed, Started, Completed]);
    let seqs: Vec<_> = after.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6, 7]);
}
