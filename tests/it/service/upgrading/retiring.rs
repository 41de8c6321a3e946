//! The old server of an upgrade ends by itself: whoever waits is told to come again.

use std::pin::pin;

use futures_util::FutureExt;
use procyard::grpc::pb::{self, Kind, attach_request};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{install_good, upgrade};
use crate::support::service::*;
use crate::support::soon;

/// How a stream ends that must not end well.
async fn last_word<T: std::fmt::Debug>(mut stream: Streaming<T>) -> Status {
    loop {
        match soon(stream.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended as if that was all"),
            Err(status) => return status,
        }
    }
}

fn told_to_come_again(status: &Status) {
    let expected = (Code::Unavailable, "SHUTTING_DOWN".to_owned());
    assert_eq!((status.code(), reason(status)), expected, "{status:?}");
}

/// Attaches, and says so or says nothing at all.
async fn attach(client: &mut Client, id: Option<&str>) -> Streaming<pb::AttachResponse> {
    let (says, said) = mpsc::channel(1);
    if let Some(id) = id {
        let start = pb::AttachStart { id: id.into(), ..Default::default() };
        let message = Some(attach_request::Message::Start(start));
        says.send(pb::AttachRequest { message }).await.unwrap();
    }
    let stream = soon(client.attach(ReceiverStream::new(said))).await.unwrap().into_inner();
    // For as long as the stream is there.
    tokio::spawn(async move { says.closed().await });
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_is_told_to_come_again_and_what_runs_runs_on() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let service = TestService::start_from_copy_with(|serve| {
        serve.env("RUST_LOG", "info").stderr(log.reopen().unwrap());
    });
    let mut client = service.client().await;
    begin(&mut client, "flood", shell("exec yes")).await;
    begin(&mut client, "quiet", with_stdin(shell("exec cat"))).await;
    begin_ready(&mut client, "stubborn", stubborn(3_600_000)).await;
    let inmates = service.inmates();

    let mut watcher = Watcher::since(&mut client, 0).await;
    let follow = pb::FollowRequest { id: "flood".into(), ..Default::default() };
    let following = soon(client.follow(follow)).await.unwrap().into_inner();
    let sleep = pb::SleepRequest { duration: Some(millis(3_600_000)), ..Default::default() };
    let sleeping = soon(client.sleep(sleep)).await.unwrap().into_inner();
    let attached = attach(&mut client, Some("quiet")).await;
    let silent = attach(&mut client, None).await;
    let streams = [
        tokio::spawn(last_word(following)),
        tokio::spawn(last_word(sleeping)),
        tokio::spawn(last_word(attached)),
        tokio::spawn(last_word(silent)),
    ];
    let mut health = HealthClient::new(service.channel().await);
    let health = health.watch(HealthCheckRequest { service: String::new() });
    let mut health = soon(health).await.unwrap().into_inner();
    assert_eq!(soon(health.message()).await.unwrap().unwrap().status(), ServingStatus::Serving);

    let (mut reader, mut waiter, mut other, mut killer) =
        (client.clone(), client.clone(), client.clone(), client.clone());
    let read =
        pb::ReadRequest { id: "quiet".into(), wait: Some(millis(60_000)), ..Default::default() };
    let mut reading = pin!(reader.read(read));
    let wait = pb::WaitRequest { wait: Some(until_exit()), ..wait_for_it("quiet") };
    let mut waiting = pin!(waiter.wait(wait));
    let wait = pb::WaitRequest { wait: Some(until_output("never")), ..wait_for_it("flood") };
    let mut searching = pin!(other.wait(wait));
    let mut killing = pin!(killer.kill(kill("stubborn")));
    // Sent, before what waits for the last of them is.
    assert!(reading.as_mut().now_or_never().is_none() && waiting.as_mut().now_or_never().is_none());
    assert!(
        searching.as_mut().now_or_never().is_none() && killing.as_mut().now_or_never().is_none()
    );
    watcher.next(Kind::Stopping).await;

    install_good(&service);
    let upgrading = tokio::spawn(async move {
        let said = upgrade(&service).await;
        (service, said)
    });
    for stream in streams {
        told_to_come_again(&stream.await.unwrap());
    }
    told_to_come_again(&last_word(watcher.0).await);
    told_to_come_again(&soon(reading).await.unwrap_err());
    told_to_come_again(&soon(waiting).await.unwrap_err());
    told_to_come_again(&soon(searching).await.unwrap_err());
    told_to_come_again(&soon(killing).await.unwrap_err());
    assert_eq!(soon(health.message()).await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert_eq!(soon(health.message()).await.unwrap(), None);
    let (service, (well, said)) = soon(upgrading).await.unwrap();
    assert!(well, "{said}");

    // On the connection of before, which is made anew.
    assert_eq!(service.inmates(), inmates);
    let told = kinds(&events(&mut client).await);
    assert_eq!(told, [Kind::Started, Kind::Started, Kind::Started, Kind::Stopping]);
    let log = std::fs::read_to_string(log.path()).unwrap();
    let ended = log.lines().find(|line| line.contains("the old server has ended")).unwrap();
    assert!(ended.contains("Code(0)"), "{ended}");
    soon(client.kill(kill_at_once("stubborn"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_server_that_hangs_does_not_hold_up_the_new_one() {
    let service = TestService::start_from_copy();
    let mut client = service.client().await;
    begin(&mut client, "quiet", with_stdin(shell("exec cat"))).await;
    let (inmates, hung) = (service.inmates(), service.server_pid());
    install_good(&service);
    kill_pid(hung, libc::SIGSTOP);
    let (well, said) = upgrade(&service).await;
    assert!(well, "{said}");
    assert_ne!(service.server_pid(), hung);
    assert_eq!(service.inmates(), inmates);
    assert_eq!(get(&mut service.client().await, "quiet").await.state(), pb::State::Running);
}
