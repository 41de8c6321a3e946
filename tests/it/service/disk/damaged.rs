//! The store is damaged under a running server: what runs runs on.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use procyard::grpc::pb;

use crate::support::service::*;
use crate::support::{alive, soon, until};

/// Overwrites a file from some byte on.
fn spoil(path: &Path, from: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let nonsense = vec![0xa5; usize::try_from(length.saturating_sub(from)).unwrap()];
    file.write_all_at(&nonsense, from).unwrap();
}

async fn store(client: &mut Client) -> pb::Store {
    let info = pb::GetServerInfoRequest {};
    soon(client.get_server_info(info)).await.unwrap().into_inner().store.unwrap()
}

const COUNTS: &str = "i=0; while :; do echo line $i; i=$((i+1)); sleep 0.01; done";

/// Lines that a follower sees from a chunk on, until there are enough.
async fn lines(client: &mut Client, since: u64) -> (Vec<String>, u64) {
    let read =
        pb::ReadRequest { id: "counts".into(), since_seq: Some(since), ..Default::default() };
    let answer = soon(client.read(read)).await.unwrap().into_inner();
    assert!(answer.gap.is_none(), "{:?}", answer.gap);
    let said = text(&answer.chunks, pb::Stream::Stdout);
    (said.lines().map(str::to_owned).collect(), answer.cursor.unwrap().next_seq)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_records_are_gone_and_what_runs_is_taken_over() {
    let service = TestService::start();
    let mut client = service.client().await;
    assert_eq!(store(&mut client).await, pb::Store::default());
    let counts = begin(&mut client, "counts", shell(COUNTS)).await;
    let script =
        pb::Script { code: "read x; echo $x\nread y; exit 5".into(), ..Default::default() };
    let program = Some(pb::spec::Program::Script(script));
    let script = with_stdin(pb::Spec { program, ..Default::default() });
    let script = begin(&mut client, "script", script).await;
    let (before, next) = lines(&mut client, 0).await;
    let state = service.directory.path().join("state");
    for file in ["procyard.db", "procyard.db-wal", "procyard.db-shm"] {
        spoil(&state.join(file), 0);
    }
    service.kill_server();
    let mut client = service.client().await;
    let repaired = store(&mut client).await;
    assert!(repaired.repair_time.is_some() && repaired.saved_records == 0, "{repaired:?}");
    assert!(state.join(&repaired.damaged_file).exists());
    let found = get(&mut client, "counts").await;
    assert_eq!((found.state(), found.pid), (pb::State::Running, counts.pid));
    assert_eq!(found.spec.unwrap().description, "recovered: its record was damaged");
    // From its first line on, and where it was left.
    let (all, _) = lines(&mut client, 0).await;
    assert!(all.len() >= before.len() && all[0] == "line 0");
    let (more, _) = lines(&mut client, next).await;
    assert_eq!(more.first(), all.get(before.len()));
    // Another server knows them by their new records, and the script is still where it was.
    service.kill_server();
    let mut client = service.client().await;
    assert_eq!(get(&mut client, "script").await.pid, script.pid);
    assert_eq!(std::fs::read_dir(state.join("scripts")).unwrap().count(), 1);
    let input = pb::write_stdin_request::Input::Text("a\nb\n".into());
    let write =
        pb::WriteStdinRequest { id: "script".into(), input: Some(input), ..Default::default() };
    soon(client.write_stdin(write)).await.unwrap();
    assert_eq!(exit(&ended(&mut client, "script").await).code, Some(5));
    soon(client.kill(kill_at_once("counts"))).await.unwrap();
    until("it has ended", || !alive(counts.pid)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_that_shows_while_it_serves_is_repaired_by_the_next_server() {
    let service = TestService::start();
    let mut client = service.client().await;
    let counts = begin(&mut client, "counts", shell(COUNTS)).await;
    for n in 0..40 {
        finish(&mut client, &format!("old{n}"), shell("true")).await;
    }
    let (_, next) = lines(&mut client, 0).await;
    let server = service.server_pid();
    let state = service.directory.path().join("state");
    spoil(&state.join("procyard.db"), 0);
    spoil(&state.join("procyard.db-wal"), 32);
    // What was read before is in memory, until other pages take its place.
    for n in 0..6 {
        let large = shell(&format!("true # {}", "x".repeat(100 << 10)));
        let _ = soon(client.start(start(&format!("large{n}"), large))).await;
    }
    let delete = pb::DeleteRequest { id: "old0".into(), ..Default::default() };
    let _ = soon(client.delete(delete)).await;
    until("another server is there", || service.server_pid() != server).await;
    let mut client = service.client().await;
    assert!(store(&mut client).await.repair_time.is_some());
    assert!(!state.join("procyard.db.is-damaged").exists());
    let found = get(&mut client, "counts").await;
    assert_eq!((found.state(), found.pid), (pb::State::Running, counts.pid));
    lines(&mut client, next).await;
}
