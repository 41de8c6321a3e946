//! The disk of the state directory is full, read-only or slow: what runs runs on and can be used,
//! what cannot be recorded is refused, and all is well again when there is room.

mod damaged;
mod support;

use procyard::grpc::pb::{self, Cause};
use tonic_types::StatusExt;

use crate::service::archiving::lose_everything;
use crate::support::service::*;
use crate::support::{alive, is_root, skip, soon, until};
use support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_starts_and_nothing_else_and_goes_on_when_there_is_room() {
    let Some(mut small) = SmallDisk::start() else { return };
    let mut client = small.service.client().await;
    let live = Lives::begin(&small.service, &mut client).await;
    let full = small.fill();
    let refused = until_refused(&mut client, "full").await;
    assert!(refused.message().contains("disk is full"), "{refused}");
    assert!(refused.get_details_retry_info().is_some());
    refuses_all(&mut client).await;
    live.can_be_used(&mut client, "1").await;
    let mut killer = client.clone();
    let killing = tokio::spawn(async move { killer.kill(kill_at_once("doomed")).await });
    live.end().await;
    full.free();
    soon(killing).await.unwrap().unwrap();
    live.is_told_once(&mut client).await;
    until_ok(&mut client).await;
    small.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_while_the_disk_is_full_comes_back_and_serves() {
    let Some(mut small) = SmallDisk::start() else { return };
    let mut client = small.service.client().await;
    let live = Lives::begin(&small.service, &mut client).await;
    let full = small.fill();
    until_refused(&mut client, "full").await;
    for turn in ["1", "2"] {
        small.service.kill_server();
        client = small.service.client().await;
        refuses_all(&mut client).await;
        live.can_be_used(&mut client, turn).await;
    }
    let mut killer = client.clone();
    let killing = tokio::spawn(async move { killer.kill(kill_at_once("doomed")).await });
    live.end().await;
    // What has ended cannot be recorded, and the next server finds that out anew.
    until("it is dead, recorded or not", || !alive(live.doomed)).await;
    small.service.kill_server();
    assert!(soon(killing).await.unwrap().is_err(), "its server is gone");
    client = small.service.client().await;
    assert_eq!(get(&mut client, "typed").await.state(), pb::State::Running);
    refuses_all(&mut client).await;
    full.free();
    until_ok(&mut client).await;
    assert_eq!(exit(&ended(&mut client, "ends").await).code, Some(6));
    assert_eq!(story(&mut client, "ends").await, [pb::Kind::Started, pb::Kind::Completed]);
    ended(&mut client, "doomed").await;
    small.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_after_a_clean_stop_on_a_full_disk_serves_reads() {
    let Some(mut small) = SmallDisk::start() else { return };
    finish(&mut small.service.client().await, "done", shell("true")).await;
    small.service.stop();
    // The memory that connections share fits, and no frame of the log does.
    let full = small.fill_but(36 << 10);
    small.service.begin_anew(|_| {});
    let mut client = small.service.client().await;
    refuses_all(&mut client).await;
    full.free();
    until_ok(&mut client).await;
    expect_no_loss(&mut client).await;
    small.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_after_a_crash_on_a_full_disk_serves_reads() {
    let Some(mut small) = SmallDisk::start() else { return };
    let mut client = small.service.client().await;
    finish(&mut client, "done", shell("true")).await;
    let full = small.fill();
    until_refused(&mut client, "full").await;
    lose_everything(&mut small.service).await;
    client = small.service.client().await;
    refuses_all(&mut client).await;
    full.free();
    until_ok(&mut client).await;
    expect_no_loss(&mut client).await;
    small.check();
}

async fn expect_no_loss(client: &mut Client) {
    let info = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    let store = info.into_inner().store.unwrap();
    assert_eq!((store.lost_records, store.lost_events), (0, 0), "{store:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_finds_no_room_is_refused_and_leaves_no_record() {
    let Some(mut small) = SmallDisk::start() else { return };
    let mut client = small.service.client().await;
    begin(&mut client, "before", shell("true")).await;
    ended(&mut client, "before").await;
    // Its record fits, and then its file does not.
    let full = small.fill_but(300 << 10);
    let code = format!("exit 0\n# {}", "x".repeat(180 << 10));
    let script = pb::Script { code, ..Default::default() };
    let program = Some(pb::spec::Program::Script(script));
    let refused = soon(client.start(start("a", pb::Spec { program, ..Default::default() }))).await;
    assert_eq!(refusal(refused), (tonic::Code::Unavailable, "STORE_FAILED".into()));
    full.free();
    until_ok(&mut client).await;
    assert_eq!(ids(&list(&mut client).await), ["again", "before"]);
    small.check();
}

/// As on a file system that has become read-only: nothing at all can be written, files being open
/// or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_takes_nothing_for_a_while_refuses_starts_and_nothing_else() {
    let service = TestService::start();
    let mut client = service.client().await;
    let live = Lives::begin(&service, &mut client).await;
    let server = service.server_pid();
    limit_files(server, Some(0));
    until_refused(&mut client, "refused").await;
    refuses_all(&mut client).await;
    live.can_be_used(&mut client, "1").await;
    let mut killer = client.clone();
    let killing = tokio::spawn(async move { killer.kill(kill_at_once("doomed")).await });
    live.end().await;
    limit_files(server, None);
    soon(killing).await.unwrap().unwrap();
    live.is_told_once(&mut client).await;
    until_ok(&mut client).await;
    assert_eq!(service.server_pid(), server, "it was not replaced");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_on_a_read_only_disk_comes_back_and_serves() {
    let Some(mut small) = SmallDisk::start() else { return };
    let mut client = small.service.client().await;
    let live = Lives::begin(&small.service, &mut client).await;
    let server = small.service.server_pid();
    // No other server begins before the disk is read-only.
    small.service.signal(libc::SIGSTOP);
    kill_pid(server, libc::SIGKILL);
    until("nothing is open to be written", || small.remount("ro")).await;
    small.service.signal(libc::SIGCONT);
    client = small.service.client().await;
    refuses_all(&mut client).await;
    live.can_be_used(&mut client, "1").await;
    assert!(!events(&mut client).await.is_empty());
    live.end().await;
    assert!(small.remount("rw"));
    until_ok(&mut client).await;
    assert_eq!(exit(&ended(&mut client, "ends").await).code, Some(6));
    assert_eq!(story(&mut client, "ends").await, [pb::Kind::Started, pb::Kind::Completed]);
    small.check();
}

#[test]
fn on_a_read_only_directory_serve_says_so_in_a_line() {
    if !is_root() {
        return skip("mounting needs root");
    }
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::mount("size=1m");
    std::os::unix::fs::symlink(disk.path(), directory.path().join("state")).unwrap();
    assert!(disk.remount("ro"));
    let said = serve_fails(directory.path());
    assert!(said.contains("Read-only file system"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_a_newer_version_is_refused_in_a_line_and_left_alone() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "a", shell("true")).await;
    drop(client);
    service.stop();
    let database = service.directory.path().join("state/procyard.db");
    let connection = rusqlite::Connection::open(&database).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    drop(connection);
    let before = std::fs::read(&database).unwrap();
    let said = serve_fails(service.directory.path());
    assert!(said.contains("it has version 99, this procyard knows versions up to 1"), "{said}");
    assert_eq!(std::fs::read(&database).unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_commit_waits_reads_and_kills_do_not() {
    let service = TestService::start();
    let mut client = service.client().await;
    let live = Lives::begin(&service, &mut client).await;
    let mut doomed = Vec::new();
    for turn in 0..5 {
        let spec = shell("exec sleep 600");
        doomed.push(begin(&mut client, &format!("doomed{turn}"), spec).await.pid);
    }
    let database = service.directory.path().join("state/procyard.db");
    let other = rusqlite::Connection::open(database).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = (tonic::Code::Unavailable, "STORE_FAILED".to_owned());
    let mut turns = doomed.into_iter().zip(0..);
    let mut kills = Vec::new();
    let starting = loop {
        let (doomed, turn) = turns.next().expect("what is used waits for the commit");
        let mut starter = client.clone();
        let request = start(&format!("a{turn}"), shell("true"));
        let starting = tokio::spawn(async move { starter.start(request).await });
        let mut killer = client.clone();
        let request = kill_at_once(&format!("doomed{turn}"));
        kills.push(tokio::spawn(async move { killer.kill(request).await }));
        live.can_be_used(&mut client, &turn.to_string()).await;
        until("it is dead, recorded or not", || !alive(doomed)).await;
        // The store gives up after five seconds: nothing of this waited for that, unless the
        // machine was so slow, which is not so in every turn.
        if !starting.is_finished() {
            break starting;
        }
        assert_eq!(refusal(starting.await.unwrap()), refused);
    };
    other.execute_batch("ROLLBACK").unwrap();
    for (killing, turn) in kills.into_iter().zip(0..) {
        soon(killing).await.unwrap().unwrap();
        let doomed = get(&mut client, &format!("doomed{turn}")).await;
        assert_eq!(exit(&doomed).cause(), Cause::Killed);
    }
    // It may have given up in the moment before.
    let started = soon(starting).await.unwrap();
    assert!(started.is_ok() || refusal(started) == refused);
}
