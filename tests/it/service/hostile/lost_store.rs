//! The store is removed, emptied or truncated under a running server: what runs is adopted.

use std::fs::{self, OpenOptions};
use std::path::Path;

use procyard::grpc::pb;

use crate::service::archiving::{file, nothing_in_memory};
use crate::support::service::*;
use crate::support::{alive, soon, until};

async fn store(client: &mut Client) -> pb::Store {
    let info = pb::GetServerInfoRequest {};
    soon(client.get_server_info(info)).await.unwrap().into_inner().store.unwrap()
}

fn remove(state: &Path, ends: &[&str]) {
    ends.iter().for_each(|end| fs::remove_file(state.join(format!("procyard.db{end}"))).unwrap());
}

fn cut(state: &Path, end: &str, bytes: u64) {
    let file = OpenOptions::new().write(true).open(state.join(format!("procyard.db{end}")));
    file.unwrap().set_len(bytes).unwrap();
}

/// A service with "old", which has ended, and "live"; then the store suffers and the server dies.
/// "live" must go on.
async fn survives(harm: impl Fn(&Path)) -> (TestService, pb::Store) {
    survives_in(TestService::start(), harm).await
}

async fn survives_in(service: TestService, harm: impl Fn(&Path)) -> (TestService, pb::Store) {
    let mut client = service.client().await;
    finish(&mut client, "old", shell("echo old words")).await;
    nothing_in_memory(&service).await;
    let spec = with_stdin(shell("echo first; while read x; do echo got $x; done"));
    let live = begin(&mut client, "live", spec).await;
    let wait = Some(until_output("first"));
    let wait = pb::WaitRequest { id: "live".into(), wait, ..Default::default() };
    soon(client.wait(wait)).await.unwrap();
    harm(&service.directory.path().join("state"));
    service.kill_server();
    let mut client = service.client().await;
    let told = store(&mut client).await;
    // Another server finds nothing more to repair.
    service.kill_server();
    let mut client = service.client().await;
    assert_eq!(store(&mut client).await, told);
    let found = get(&mut client, "live").await;
    assert_eq!((found.state(), found.pid), (pb::State::Running, live.pid));
    let write = pb::WriteStdinRequest {
        id: "live".into(),
        input: Some(pb::write_stdin_request::Input::Text("word\n".into())),
        wait: Some(until_output("got word")),
        ..Default::default()
    };
    soon(client.write_stdin(write)).await.unwrap();
    assert_eq!(printed(&mut client, "live").await, "first\ngot word\n");
    let new = begin(&mut client, "new", shell("exec sleep 600")).await;
    soon(client.kill(kill_at_once("live"))).await.unwrap();
    until("it has ended", || !alive(live.pid)).await;
    assert!(alive(new.pid));
    (service, told)
}

/// The records are gone; the transcript of "old" is set aside.
async fn records_are_lost(harm: impl Fn(&Path)) {
    records_are_lost_in(TestService::start(), harm).await;
}

async fn records_are_lost_in(service: TestService, harm: impl Fn(&Path)) {
    let (service, told) = survives_in(service, harm).await;
    assert!(told.repair_time.is_some() && told.lost_records > 0, "{told:?}");
    assert!(told.lost_events > 0, "{told:?}");
    let kept = fs::read(file(&service, "1.1").with_extension("transcript.lost")).unwrap();
    assert!(kept.windows(9).any(|window| window == b"old words"));
}

/// "old" is still there, with its output.
async fn records_are_restored(harm: impl Fn(&Path)) -> pb::Store {
    let (service, told) = survives(harm).await;
    assert!(told.repair_time.is_some(), "{told:?}");
    assert_eq!(told.saved_records, 2, "{told:?}");
    let mut client = service.client().await;
    assert_eq!(exit(&get(&mut client, "old").await).code, Some(0));
    assert_eq!(printed(&mut client, "old").await, "old words\n");
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_database_and_log_lose_no_process() {
    records_are_lost(|state| remove(state, &["", "-wal", "-shm"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_database_and_log_lose_no_process() {
    records_are_lost(|state| ["", "-wal", "-shm"].iter().for_each(|end| cut(state, end, 0))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_database_without_log_loses_no_process() {
    records_are_lost(|state| {
        cut(state, "", 5000);
        remove(state, &["-wal", "-shm"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_log_loses_no_process() {
    records_are_lost(|state| remove(state, &["-wal", "-shm"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn earlier_copy_of_the_database_loses_no_process() {
    let mut service = TestService::start();
    drop(service.client().await);
    service.stop();
    let state = service.directory.path().join("state");
    let (database, copy) = (state.join("procyard.db"), service.directory.path().join("copy"));
    fs::copy(database, &copy).unwrap();
    service.begin_anew(|_| {});
    records_are_lost_in(service, |state| {
        remove(state, &["", "-wal", "-shm"]);
        fs::copy(&copy, state.join("procyard.db")).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_of_another_program_loses_no_process() {
    records_are_lost(|state| {
        remove(state, &["", "-wal", "-shm"]);
        let foreign = rusqlite::Connection::open(state.join("procyard.db")).unwrap();
        foreign.execute_batch("CREATE TABLE recipes (a)").unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_database_is_restored_from_its_log() {
    let told = records_are_restored(|state| remove(state, &[""])).await;
    assert!(told.damaged_file.ends_with("-wal"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_database_is_restored_from_its_log() {
    records_are_restored(|state| cut(state, "", 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_database_is_restored_from_its_log() {
    records_are_restored(|state| cut(state, "", 5000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_state_directory_loses_no_process() {
    survives(|state| {
        for entry in fs::read_dir(state).unwrap().flatten() {
            let path = entry.path();
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_lost_between_two_starts_is_told() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "old", shell("echo old words")).await;
    drop(client);
    service.stop();
    fs::remove_file(service.directory.path().join("state/procyard.db")).unwrap();
    service.begin_anew(|_| {});
    let mut client = service.client().await;
    let told = store(&mut client).await;
    assert_eq!((told.saved_records, told.lost_records), (0, 1), "{told:?}");
    assert!(file(&service, "1.1").with_extension("transcript.lost").exists());
    // No number is given twice: its file would be taken for that of a new process.
    finish(&mut client, "new", shell("echo new words")).await;
    assert_eq!(printed(&mut client, "new").await, "new words\n");
}
