//! Delete: a finished process is freed, one that runs only by force.

use procyard::grpc::pb;
use tonic::Code;

use crate::support::service::*;
use crate::support::{alive, soon};

fn delete(id: &str) -> pb::DeleteRequest {
    pb::DeleteRequest { id: id.into(), ..Default::default() }
}

fn delete_by_force(id: &str) -> pb::DeleteRequest {
    pb::DeleteRequest { force: true, ..delete(id) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_process_is_freed_and_its_id_can_be_used_anew() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "a", shell("echo one")).await;
    soon(client.delete(delete("a"))).await.unwrap();
    let not_found = (Code::NotFound, "PROCESS_NOT_FOUND".to_owned());
    let request = pb::GetRequest { id: "a".into() };
    assert_eq!(refusal(soon(client.get(request)).await), not_found);
    let request = pb::ReadRequest { id: "a".into(), ..Default::default() };
    assert_eq!(refusal(soon(client.read(request)).await), not_found);
    assert_eq!(list(&mut client).await, []);
    let again = finish(&mut client, "a", shell("echo two")).await;
    assert!(!again.existed);
    assert_eq!(text(&again.chunks, pb::Stream::Stdout), "two\n");
    let told = events(&mut client).await;
    assert_eq!(told[2].kind(), pb::Kind::Deleted);
    assert_eq!(exit(told[2].process.as_ref().unwrap()).code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_missing_is_an_error_unless_it_may_be() {
    let service = TestService::start();
    let mut client = service.client().await;
    let answer = soon(client.delete(delete("a"))).await;
    assert_eq!(refusal(answer), (Code::NotFound, "PROCESS_NOT_FOUND".into()));
    let request = pb::DeleteRequest { allow_missing: true, ..delete("a") };
    soon(client.delete(request)).await.unwrap();
    let answer = soon(client.delete(delete_by_force("a"))).await;
    assert_eq!(refusal(answer), (Code::NotFound, "PROCESS_NOT_FOUND".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_runs_is_freed_only_by_force_which_ends_its_tree() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin_ready(&mut client, "a", stubborn(3_600_000)).await;
    let pids = service.inmates();
    let answer = soon(client.delete(delete("a"))).await;
    assert_eq!(refusal(answer), (Code::FailedPrecondition, "STILL_RUNNING".into()));
    assert_eq!(get(&mut client, "a").await.state(), pb::State::Running);
    soon(client.delete(delete_by_force("a"))).await.unwrap();
    assert!(pids.iter().all(|pid| !alive(*pid)));
    assert_eq!(service.inmates(), [0; 0]);
    assert_eq!(list(&mut client).await, []);
    let told = events(&mut client).await;
    use pb::Kind::{Completed, Deleted, Started, Stopping};
    assert_eq!(kinds(&told), [Started, Stopping, Completed, Deleted]);
    assert_eq!(exit(told[2].process.as_ref().unwrap()).cause(), pb::Cause::Killed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lingers_of_a_process_that_is_freed_ends_with_the_service() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    let process = finish(&mut client, "a", shell("sleep 600 & exit 0")).await.process.unwrap();
    let lingering = process.lingering[0].pid;
    soon(client.delete(delete("a"))).await.unwrap();
    assert_eq!(list(&mut client).await, []);
    assert!(alive(lingering));
    drop(client);
    service.stop();
    assert!(!alive(lingering));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_is_told_the_end_before_the_record_goes() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin_ready(&mut client, "a", shell("echo ready; exec sleep 600")).await;
    let request = pb::FollowRequest { id: "a".into(), ..Default::default() };
    let mut following = soon(client.follow(request)).await.unwrap().into_inner();
    soon(following.message()).await.unwrap().unwrap();
    soon(client.delete(delete_by_force("a"))).await.unwrap();
    let last = soon(following.message()).await.unwrap().unwrap().message.unwrap();
    let pb::follow_response::Message::End(end) = last else { panic!("{last:?}") };
    assert_eq!(exit(&end.process.unwrap()).cause(), pb::Cause::Killed);
    assert!(soon(following.message()).await.unwrap().is_none());
}
