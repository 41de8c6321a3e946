//! How much callers may have: each of them, and all together.

use std::time::Duration;

use procyard::grpc::pb::{self, follow_response};
use tonic::Code;

use crate::support::callers::{KnowingService, TokenClient};
use crate::support::service::*;
use crate::support::soon;

const CALLERS: [(&str, &str); 2] = [("a", "operator,owner=a"), ("b", "operator,owner=b")];

/// Two callers of a service with these options.
async fn two(options: &[&str]) -> (KnowingService, TokenClient, TokenClient) {
    let service = KnowingService::start_with(&CALLERS, |command| {
        command.args(options);
    })
    .await;
    let (a, b) = (service.caller("a").await, service.caller("b").await);
    (service, a, b)
}

/// What a start that was refused says: which bound, whose, and when to come again.
async fn refused(client: &mut TokenClient, id: &str) -> (String, String, Duration) {
    let status = soon(client.start(start(id, argv(&["sleep", "600"])))).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status)),
        (Code::ResourceExhausted, "TOO_MANY_PROCESSES".into())
    );
    let details = details(&status);
    let metadata = &details.error_info().unwrap().metadata;
    let retry = details.retry_info().unwrap().retry_delay.unwrap();
    // Nothing is left of it.
    let absent = soon(client.get(pb::GetRequest { id: id.into() })).await;
    assert_eq!(refusal(absent), (Code::NotFound, "PROCESS_NOT_FOUND".into()));
    (metadata["limit"].clone(), metadata["of"].clone(), retry)
}

async fn begins(client: &mut TokenClient, id: &str) {
    soon(client.start(start(id, argv(&["sleep", "600"])))).await.unwrap();
}

async fn ends(client: &mut TokenClient, id: &str) {
    soon(client.kill(kill_at_once(id))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_caller_has_so_many_processes_and_all_have_so_many_also_after_an_accident() {
    let options = ["--caller-max-live", "2", "--max-live", "3"];
    let (service, mut a, mut b) = two(&options).await;
    begins(&mut a, "a1").await;
    begins(&mut a, "a2").await;
    let (limit, of, _) = refused(&mut a, "a3").await;
    assert_eq!((limit.as_str(), of.as_str()), ("live_processes", "caller"));
    // One that is there is no second.
    begins(&mut a, "a1").await;
    begins(&mut b, "b1").await;
    service.service.kill_server();
    let (mut a, mut b) = (service.caller("a").await, service.caller("b").await);
    assert_eq!(refused(&mut a, "a3").await.1, "caller");
    assert_eq!(refused(&mut b, "b2").await.1, "all");
    ends(&mut a, "a1").await;
    begins(&mut b, "b2").await;
    assert_eq!(refused(&mut a, "a3").await.1, "all");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_run_again_counts_for_who_runs_it() {
    let (_service, mut a, mut b) = two(&["--caller-max-live", "1"]).await;
    soon(a.start(run("a1", argv(&["true"])))).await.unwrap();
    begins(&mut a, "a2").await;
    let again = soon(a.run(run_by_force("a1"))).await;
    assert_eq!(refusal(again), (Code::ResourceExhausted, "TOO_MANY_PROCESSES".into()));
    begins(&mut b, "b1").await;
    ends(&mut a, "a2").await;
    soon(a.run(run_by_force("a1"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transcripts_of_a_caller_have_so_much_room() {
    let (_service, mut a, mut b) = two(&["--caller-max-transcripts-mib", "9"]).await;
    let large = pb::Spec { transcript_bytes: 10 << 20, ..argv(&["true"]) };
    let never = soon(a.start(start("large", large))).await.unwrap_err();
    assert_eq!(reason(&never), "TOO_MANY_PROCESSES");
    assert!(details(&never).retry_info().is_none());
    begins(&mut a, "a1").await;
    assert_eq!(refused(&mut a, "a2").await.0, "transcript_bytes");
    begins(&mut b, "b1").await;
    ends(&mut a, "a1").await;
    begins(&mut a, "a2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_prints_on_after_the_end_counts_until_it_is_gone() {
    let (_service, mut a, mut b) = two(&["--caller-max-live", "1"]).await;
    soon(a.start(run("a1", shell("sleep 600 & exit 0")))).await.unwrap();
    assert_eq!(refused(&mut a, "a2").await.0, "live_processes");
    begins(&mut b, "b1").await;
    ends(&mut a, "a1").await;
    until_it_begins(&mut a, "a2").await;
}

/// Asks again until it can be started: that nothing prints any more is learnt by and by.
async fn until_it_begins(client: &mut TokenClient, id: &str) {
    let begun = async {
        while client.start(start(id, argv(&["sleep", "600"]))).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(begun).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_starts_too_fast_is_told_when_to_come_again() {
    let (_service, mut a, mut b) = two(&["--caller-max-starts-per-second", "1"]).await;
    begins(&mut a, "a1").await;
    // A slow machine may let some more pass, never all of those that come at once.
    let at_once = (2..12).map(|n| {
        let mut client = a.clone();
        async move { client.start(start(&format!("a{n}"), argv(&["true"]))).await }
    });
    let all = soon(futures_util::future::join_all(at_once)).await;
    let refused: Vec<_> = all.into_iter().filter_map(Result::err).collect();
    let waits = refused.iter().map(|status| {
        assert_eq!(reason(status), "TOO_MANY_PROCESSES");
        let details = details(status);
        assert_eq!(details.error_info().unwrap().metadata["limit"], "starts_per_second");
        details.retry_info().unwrap().retry_delay.unwrap()
    });
    let waited = waits.max().expect("nobody was refused");
    begins(&mut b, "b1").await;
    tokio::time::sleep(waited).await;
    // One of those at once may have passed last, but none comes after this one.
    if let Err(refused) = soon(a.start(start("late", argv(&["sleep", "600"])))).await {
        tokio::time::sleep(details(&refused).retry_info().unwrap().retry_delay.unwrap()).await;
        begins(&mut a, "late").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_caller_has_so_many_streams_and_one_that_is_over_is_none() {
    let options = ["--caller-max-streams", "2", "--max-streams", "3"];
    let (_service, mut a, mut b) = two(&options).await;
    begins(&mut a, "a1").await;
    let follow = || pb::FollowRequest { id: "a1".into(), ..Default::default() };
    let mut followed = soon(a.follow(follow())).await.unwrap().into_inner();
    let watched = soon(a.watch(pb::WatchRequest::default())).await.unwrap();
    let too_many = (Code::ResourceExhausted, "TOO_MANY_STREAMS".to_owned());
    let status = soon(a.follow(follow())).await.map(drop).unwrap_err();
    let retry = details(&status).retry_info().unwrap().retry_delay;
    assert_eq!(retry, Some(Duration::from_secs(1)));
    let metadata = details(&status).error_info().unwrap().metadata.clone();
    let expected = [("limit", "streams"), ("most", "2"), ("used", "2"), ("of", "caller")];
    assert_eq!(metadata, expected.map(|(key, value)| (key.into(), value.into())).into());
    assert_eq!(refusal(Err::<(), _>(status)), too_many);
    let hour = prost_types::Duration { seconds: 3600, nanos: 0 };
    let sleep = || pb::SleepRequest { duration: Some(hour), ..Default::default() };
    assert_eq!(refusal(soon(a.sleep(sleep())).await), too_many);
    let attach = || tokio_stream::empty::<pb::AttachRequest>();
    assert_eq!(refusal(soon(a.attach(attach())).await), too_many);
    let slept = soon(b.sleep(sleep())).await.unwrap();
    assert_eq!(refusal(soon(b.sleep(sleep())).await), too_many);
    // Those that end by themselves, and those that are left, make room.
    ends(&mut a, "a1").await;
    while let Some(message) = soon(followed.message()).await.unwrap() {
        let ended = matches!(message.message, Some(follow_response::Message::End(_)));
        assert!(ended || matches!(message.message, Some(follow_response::Message::Heartbeat(_))));
    }
    until_there_is_room(&mut a).await;
    drop((watched, slept));
    until_there_is_room(&mut b).await;
}

/// Asks again until a stream can be opened: the server learns by and by that a client has left.
async fn until_there_is_room(client: &mut TokenClient) {
    let opened = async {
        while client.watch(pb::WatchRequest::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(opened).await;
}
