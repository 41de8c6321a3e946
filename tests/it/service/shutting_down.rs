//! The end of the service itself: in order, within its bound, and with the last news told.

mod alone;
mod logging;

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use procyard::grpc::pb::{self, follow_response, watch_response};
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::support::service::*;
use crate::support::{Gate, alive, soon, until};

/// What health says, as it changes.
async fn health(service: &TestService, name: &str) -> tonic::Streaming<HealthCheckResponse> {
    let mut client = HealthClient::new(service.channel().await);
    let request = HealthCheckRequest { service: name.into() };
    soon(client.watch(request)).await.unwrap().into_inner()
}

async fn next_status(health: &mut tonic::Streaming<HealthCheckResponse>) -> ServingStatus {
    soon(health.message()).await.unwrap().unwrap().status()
}

/// Waits for the end of the service: whether it ended well.
async fn ended_well(service: &mut TestService) -> bool {
    let mut status = None;
    until("the service has ended", || {
        status = service.child.try_wait().unwrap();
        status.is_some()
    })
    .await;
    status.unwrap().success()
}

const SHUTTING_DOWN: (Code, &str) = (Code::Unavailable, "SHUTTING_DOWN");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_turns_first_and_nothing_new_begins_while_the_rest_ends() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    begin_ready(&mut client, "a", patient(&gate)).await;
    let mut healths = Vec::new();
    for name in ["", "procyard.v1.ProcessService"] {
        let mut health = health(&service, name).await;
        assert_eq!(next_status(&mut health).await, ServingStatus::Serving);
        healths.push(health);
    }
    service.signal(libc::SIGTERM);
    for health in &mut healths {
        assert_eq!(next_status(health).await, ServingStatus::NotServing);
    }
    assert_eq!(get(&mut client, "a").await.exit, None);
    // On connections old and new.
    for mut client in [client.clone(), service.client().await] {
        let (code, reason) = refusal(soon(client.start(start("b", shell("true")))).await);
        assert_eq!((code, &reason[..]), SHUTTING_DOWN);
    }
    // What exists is still an answer.
    let found = soon(client.start(start("a", patient(&gate)))).await.unwrap().into_inner();
    assert!(found.existed);
    assert_eq!(list(&mut client).await.len(), 1);
    gate.open(1);
    assert!(ended_well(&mut service).await);
    assert!(!service.socket().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_watchers_and_waiters_get_the_last_news() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    let line =
        "trap 'sleep 0.3; echo last words; exit 4' TERM; echo ready; while :; do sleep 0.01; done";
    begin_ready(&mut client, "a", shell(line)).await;
    let mut watcher = Watcher::since(&mut client, 0).await;
    let request = pb::FollowRequest { id: "a".into(), ..Default::default() };
    let mut following = soon(client.follow(request)).await.unwrap().into_inner();
    soon(following.message()).await.unwrap().unwrap();
    let mut waiter = client.clone();
    let waiting = tokio::spawn(async move { ended(&mut waiter, "a").await });
    watcher.next(pb::Kind::Started).await;
    service.signal(libc::SIGTERM);

    let mut chunks = Vec::new();
    let end = loop {
        match soon(following.message()).await.unwrap().unwrap().message.unwrap() {
            follow_response::Message::Chunk(chunk) => chunks.push(chunk),
            follow_response::Message::End(end) => break end,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(text(&chunks, pb::Stream::Stdout), "last words\n");
    assert_eq!(exit(&end.process.unwrap()).cause(), pb::Cause::Shutdown);
    assert!(soon(following.message()).await.unwrap().is_none());
    assert_eq!(exit(&waiting.await.unwrap()).code, Some(4));

    watcher.next(pb::Kind::Stopping).await;
    let completed = watcher.next(pb::Kind::Completed).await.process.unwrap();
    assert_eq!(exit(&completed).cause(), pb::Cause::Shutdown);
    let last = soon(watcher.0.message()).await.unwrap_err();
    assert_eq!((last.code(), &reason(&last)[..]), SHUTTING_DOWN);
    assert!(ended_well(&mut service).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stubborn_child_and_idle_connections_do_not_hold_up_the_end_for_ever() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    begin_ready(&mut client, "stubborn", stubborn(3_600_000)).await;
    let children = service.inmates();
    let silent = UnixStream::connect(service.socket()).unwrap();
    let mut watcher = Watcher::open(&mut client, pb::WatchRequest::default()).await;
    let begin = Instant::now();
    service.signal(libc::SIGTERM);
    let last = loop {
        match soon(watcher.0.message()).await {
            Ok(Some(pb::WatchResponse { message: Some(watch_response::Message::Gap(gap)) })) => {
                panic!("{gap:?}")
            }
            Ok(Some(_)) => {}
            Ok(None) => panic!("ended without a word"),
            Err(status) => break status,
        }
    };
    assert_eq!(last.code(), Code::Unavailable);
    assert!(ended_well(&mut service).await);
    // The one figure that is promised: a pod is given 30 s.
    assert!(begin.elapsed() < Duration::from_secs(25), "{:?}", begin.elapsed());
    assert!(children.into_iter().all(|pid| !alive(pid)));
    drop((silent, client));
    service.begin_anew(|_| {});
    let process = get(&mut service.client().await, "stubborn").await;
    let exit = exit(&process);
    assert_eq!((exit.cause(), exit.signal), (pb::Cause::Shutdown, Some(9)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_hurries() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    begin_ready(&mut client, "a", stubborn(3_600_000)).await;
    let children = service.inmates();
    let mut watcher = Watcher::open(&mut client, pb::WatchRequest::default()).await;
    service.signal(libc::SIGTERM);
    watcher.next(pb::Kind::Stopping).await;
    let begin = Instant::now();
    service.signal(libc::SIGTERM);
    assert!(ended_well(&mut service).await);
    // Well before the grace period of a shutdown would have been over.
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert!(children.into_iter().all(|pid| !alive(pid)));
    service.begin_anew(|_| {});
    let process = get(&mut service.client().await, "a").await;
    assert_ne!(process.state(), pb::State::Running);
    assert_eq!(exit(&process).code, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lingers_does_not_hold_up_the_end_and_ends_with_it() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    let line = "trap '' TERM; setsid sleep 600 & exit 0";
    let process = finish(&mut client, "a", shell(line)).await.process.unwrap();
    let lingering = process.lingering[0].pid;
    assert!(alive(lingering));
    let begin = Instant::now();
    service.signal(libc::SIGTERM);
    assert!(ended_well(&mut service).await);
    assert!(begin.elapsed() < Duration::from_secs(25), "{:?}", begin.elapsed());
    assert!(!alive(lingering));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_from_before_the_keeper_survive_its_stop() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("pids");
    // A child, and a grandchild that the keeper adopts when its parent is killed.
    let line = format!(
        "sleep 600 & echo $! >{0}; (sleep 600 & echo $! >>{0}; wait) & echo $! >>{0}; \
         until [ $(wc -l <{0}) = 3 ]; do sleep 0.01; done; exec \"$@\"",
        file.display()
    );
    let mut service = TestService::start_under(&["sh", "-c", &line, "sh"], |_| {});
    let mut client = service.client().await;
    let pids = std::fs::read_to_string(&file).unwrap();
    let pids: Vec<u32> = pids.lines().map(|pid| pid.parse().unwrap()).collect();
    let sleeps = |pid: &u32| cmdline(*pid)[0] == "sleep";
    let (kept, parents): (Vec<u32>, Vec<u32>) = pids.iter().partition(|pid| sleeps(pid));
    assert_eq!((kept.len(), parents.len()), (2, 1));
    kill_pid(parents[0].cast_signed(), libc::SIGKILL);
    until("the parent is gone", || !alive(parents[0])).await;
    finish(&mut client, "a", shell("(setsid sleep 600 &)")).await;
    service.stop();
    let survivors: Vec<u32> = kept.iter().copied().filter(|pid| alive(*pid)).collect();
    for pid in &survivors {
        kill_pid(pid.cast_signed(), libc::SIGKILL);
    }
    assert_eq!(survivors, kept);
}
