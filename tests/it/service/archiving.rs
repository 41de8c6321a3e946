//! Finished transcripts in files: served as before, also when keeper and server are new.

use std::path::PathBuf;

use procyard::grpc::pb;

use super::hanging::Stopped;
use crate::support::service::*;
use crate::support::{Gate, alive, soon, until};

/// The file of a run, as in "1.1": the birth of its record, and the run.
pub(super) fn file(service: &TestService, run: &str) -> PathBuf {
    let name = format!("procyard-{run}.transcript");
    service.directory.path().join("state/transcripts").join(name)
}

/// Waits until the keeper has no ring any more.
pub(super) async fn nothing_in_memory(service: &TestService) {
    let links = format!("/proc/{}/fd", service.child.id());
    let rings = || {
        let links = std::fs::read_dir(&links).unwrap().flatten();
        let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
        targets.filter(|target| target.to_string_lossy().contains("procyard-ring")).count()
    };
    until("the keeper holds no ring", || rings() == 0).await;
}

/// Ends keeper and server as a loss of power would.
pub(super) async fn lose_everything(service: &mut TestService) {
    let server = service.server_pid();
    // Stopped first, so that it saves nothing when it sees that its keeper is gone.
    let stopped = Stopped::new(server);
    service.signal(libc::SIGKILL);
    kill_pid(server, libc::SIGKILL);
    std::mem::forget(stopped);
    until("the server has ended", || !alive(server.cast_unsigned())).await;
    service.begin_anew(|_| {});
}

async fn all(client: &mut Client, id: &str) -> Vec<pb::Chunk> {
    let mut chunks = Vec::new();
    let mut since = 1;
    loop {
        let request =
            pb::ReadRequest { id: id.into(), since_seq: Some(since), ..Default::default() };
        let answer = soon(client.read(request)).await.unwrap().into_inner();
        assert_eq!(answer.gap, None);
        since = answer.cursor.unwrap().next_seq;
        chunks.extend(answer.chunks);
        if answer.ended {
            return chunks;
        }
    }
}

async fn followed(client: &mut Client, id: &str) -> Vec<pb::Chunk> {
    use pb::follow_response::Message;
    let request = pb::FollowRequest { id: id.into(), since_seq: Some(1), ..Default::default() };
    let mut stream = soon(client.follow(request)).await.unwrap().into_inner();
    let mut chunks = Vec::new();
    while let Some(message) = soon(stream.message()).await.unwrap() {
        match message.message.unwrap() {
            Message::Chunk(chunk) => chunks.push(chunk),
            Message::Gap(gap) => panic!("{gap:?}"),
            Message::Heartbeat(_) | Message::End(_) => {}
        }
    }
    chunks
}

/// Waits at a gate.
fn read_from(gate: &Gate) -> String {
    format!("read passed < {}", gate.path)
}

/// Prints on both streams, in many pieces.
const PRINTER: &str =
    "i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo line $i; echo oops $i >&2; done";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_transcript_is_the_same_in_a_file_and_survives_server_and_keeper() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let spec = shell(&format!("{PRINTER}; {}", read_from(&gate)));
    begin(&mut client, "p", spec).await;
    for last in ["line 200\n", "oops 200\n"] {
        let found = pb::WaitRequest { wait: Some(until_output(last)), ..wait_for_it("p") };
        soon(client.wait(found)).await.unwrap();
    }
    let request = pb::ReadRequest { id: "p".into(), ..Default::default() };
    let before = soon(client.read(request)).await.unwrap().into_inner().chunks;
    gate.open(1);
    let live = ended(&mut client, "p").await;
    nothing_in_memory(&service).await;
    assert!(file(&service, "1.1").exists());
    for round in 0..4 {
        match round {
            1 => service.kill_server(),
            2 => service.restart(),
            3 => lose_everything(&mut service).await,
            _ => {}
        }
        let mut client = service.client().await;
        assert_eq!(all(&mut client, "p").await, before, "{round}");
        assert_eq!(followed(&mut client, "p").await, before, "{round}");
        let now = get(&mut client, "p").await;
        assert_eq!(now.transcript, live.transcript, "{round}");
        let view = pb::View { grep: "^line 77$".into(), context: 1, ..Default::default() };
        let streams = vec![pb::Stream::Stdout.into()];
        let request =
            pb::ReadRequest { id: "p".into(), streams, view: Some(view), ..Default::default() };
        let answer = soon(client.read(request)).await.unwrap().into_inner();
        let shown = text(&answer.chunks, pb::Stream::Stdout);
        assert_eq!(shown, "line 76\nline 77\nline 78\n", "{round}");
        assert_eq!(answer.omitted.unwrap().lines, 197);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_screen_and_what_was_typed_are_known_after_everything_was_restarted() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    let spec = on_terminal(shell("stty -echo; printf 'name? '; read name; echo hello $name"));
    begin(&mut client, "t", spec).await;
    let typed = pb::WriteStdinRequest {
        id: "t".into(),
        input: Some(pb::write_stdin_request::Input::Text("ann".into())),
        enter: true,
        offset: Some(0),
        ..Default::default()
    };
    let wait = Some(until_output("name"));
    soon(client.wait(pb::WaitRequest { id: "t".into(), wait, ..Default::default() }))
        .await
        .unwrap();
    soon(client.write_stdin(typed.clone())).await.unwrap();
    let before = ended(&mut client, "t").await;
    service.restart();
    let mut client = service.client().await;
    let shown = screen(&mut client, "t").await;
    assert_eq!(shown.rows[0].trim_end(), "name? hello ann");
    let after = get(&mut client, "t").await;
    assert_eq!(after.stdin.unwrap().accepted_bytes, before.stdin.unwrap().accepted_bytes);
    // Repeated by who never got the answer.
    let again = soon(client.write_stdin(typed)).await.unwrap().into_inner();
    assert_eq!((again.bytes_written, again.accepted_bytes), (0, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_file_gives_its_good_prefix_and_says_so() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    // More than one block.
    let spec = shell("for i in 1 2 3; do head -c 60000 /dev/zero | tr '\\0' $i; sleep 0.05; done");
    finish(&mut client, "p", spec).await;
    let whole = all(&mut client, "p").await;
    let end = whole.last().unwrap().seq;
    service.stop();
    let path = file(&service, "1.1");
    let bytes = std::fs::read(&path).unwrap();
    let torn = [&bytes[..150_000], &b"instead of what was there"[..]].concat();
    std::fs::write(&path, torn).unwrap();
    service.begin_anew(|_| {});
    let mut client = service.client().await;
    let request = pb::ReadRequest { id: "p".into(), ..Default::default() };
    let first = soon(client.read(request.clone())).await.unwrap().into_inner();
    assert!(!first.chunks.is_empty() && whole.starts_with(&first.chunks) && !first.ended);
    let next = first.cursor.unwrap().next_seq;
    let request = pb::ReadRequest { since_seq: Some(next), ..request };
    let rest = soon(client.read(request)).await.unwrap().into_inner();
    let missing = whole.iter().filter(|chunk| chunk.seq >= next);
    let missing: u64 = missing.map(|chunk| chunk.data.len() as u64).sum();
    let gap = rest.gap.unwrap();
    assert_eq!((gap.from_seq, gap.to_seq, gap.dropped_bytes), (next, end, Some(missing)));
    assert!(rest.ended && rest.chunks.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_go_with_their_records_and_runs_and_count_against_retention() {
    let service = TestService::start_with(|serve| {
        serve.args(["--keep-mib", "1"]);
    });
    let mut client = service.client().await;
    for id in ["a", "b"] {
        finish(&mut client, id, shell("echo hi")).await;
    }
    let (first, second) = (file(&service, "1.1"), file(&service, "2.1"));
    until("both are written", || first.exists() && second.exists()).await;
    let delete = pb::DeleteRequest { id: "a".into(), ..Default::default() };
    soon(client.delete(delete)).await.unwrap();
    soon(client.run(run_by_force("b"))).await.unwrap();
    ended(&mut client, "b").await;
    let again = file(&service, "2.2");
    until("old ones are gone", || !first.exists() && !second.exists() && again.exists()).await;
    // Half of what may be kept, each: the oldest go.
    let large = "head -c 500000 /dev/zero";
    for id in ["c", "d", "e"] {
        finish(&mut client, id, shell(large)).await;
        nothing_in_memory(&service).await;
    }
    let oldest = [again, file(&service, "3.1")];
    until("the oldest are gone", || oldest.iter().all(|file| !file.exists())).await;
    let left = list(&mut client).await;
    assert_eq!(ids(&left), ["e", "d"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_was_lost_has_the_transcript_that_was_saved() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let line = format!("{PRINTER}; {}; echo more; exec sleep 600", read_from(&gate));
    begin(&mut client, "p", shell(&line)).await;
    // The first is saved while it lives, and what it prints later is added to that.
    let path = file(&service, "1.1");
    let holds = |words: &str| {
        let saved = std::fs::read(&path).unwrap_or_default();
        saved.windows(words.len()).any(|window| window == words.as_bytes())
    };
    until("it is saved", || holds("line 200\n")).await;
    gate.open(1);
    until("more is saved", || holds("more\n")).await;
    lose_everything(&mut service).await;
    let mut client = service.client().await;
    let lost = get(&mut client, "p").await;
    assert_eq!(exit(&lost).cause(), pb::Cause::Lost);
    let saved = text(&all(&mut client, "p").await, pb::Stream::Stdout);
    assert!(
        saved.starts_with("line 1\nline 2\n") && saved.ends_with("line 200\nmore\n"),
        "{saved}"
    );

    // The second is saved when its keeper dies.
    begin(&mut client, "q", shell(&line)).await;
    gate.open(1);
    let wait = Some(until_output("more\n"));
    soon(client.wait(pb::WaitRequest { id: "q".into(), wait, ..Default::default() }))
        .await
        .unwrap();
    let server = service.server_pid();
    service.signal(libc::SIGKILL);
    until("the server has followed its keeper", || !alive(server.cast_unsigned())).await;
    service.begin_anew(|_| {});
    let mut client = service.client().await;
    assert_eq!(exit(&get(&mut client, "q").await).cause(), pb::Cause::Lost);
    let saved = text(&all(&mut client, "q").await, pb::Stream::Stdout);
    assert!(saved.ends_with("line 200\nmore\n"), "{saved}");
}

/// What was printed after the last save, and before an end that was recorded, is told as missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_whose_file_ends_early_has_an_end_all_the_same() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "p", shell("echo one; sleep 0.05; echo two")).await;
    service.stop();
    // As if the machine had gone down before the file was written, but for what was saved before.
    let path = file(&service, "1.1");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 60]).unwrap();
    let database = service.directory.path().join("state/procyard.db");
    let store = rusqlite::Connection::open(database).unwrap();
    store.execute("UPDATE process SET record = json_remove(record, '$.archive')", []).unwrap();
    drop(store);
    service.begin_anew(|_| {});
    let mut client = service.client().await;
    use pb::follow_response::Message;
    let request = pb::FollowRequest { id: "p".into(), since_seq: Some(1), ..Default::default() };
    let mut stream = soon(client.follow(request)).await.unwrap().into_inner();
    let (mut printed, mut missing, mut ended) = (0, 0, false);
    while let Some(message) = soon(stream.message()).await.unwrap() {
        match message.message.unwrap() {
            Message::Chunk(chunk) => printed += chunk.data.len() as u64,
            Message::Gap(gap) => missing += gap.dropped_bytes.unwrap(),
            Message::Heartbeat(_) => {}
            Message::End(_) => ended = true,
        }
    }
    assert!(ended && missing > 0);
    assert_eq!(printed + missing, 8);
}

/// All that a process printed, asked for in pieces.
async fn paged(client: &mut Client, id: &str, max_bytes: u32) -> Vec<pb::Chunk> {
    let mut chunks: Vec<pb::Chunk> = Vec::new();
    loop {
        let since_seq = Some(chunks.last().map_or(1, |chunk| chunk.seq + 1));
        let view = Some(pb::View { max_bytes, ..Default::default() });
        let request = pb::ReadRequest { id: id.into(), since_seq, view, ..Default::default() };
        let answer = soon(client.read(request)).await.unwrap().into_inner();
        assert_eq!(answer.gap, None);
        chunks.extend(answer.chunks);
        if answer.ended {
            return chunks;
        }
    }
}

async fn grepped(client: &mut Client, id: &str, grep: &str) -> (String, u64) {
    let view = pb::View { grep: grep.into(), context: 1, ..Default::default() };
    let request = pb::ReadRequest { id: id.into(), view: Some(view), ..Default::default() };
    let answer = soon(client.read(request)).await.unwrap().into_inner();
    (text(&answer.chunks, pb::Stream::Terminal), answer.omitted.unwrap().lines)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transcript_of_several_windows_is_paged_followed_searched_and_shown_as_before() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    // The colour is set at the very beginning, and shown to the end.
    let line = format!("printf '\\033[31m'; seq 400000; echo the end; {}", read_from(&gate));
    let spec = pb::Spec { transcript_bytes: 8 << 20, ..on_terminal(shell(&line)) };
    begin(&mut client, "p", spec).await;
    let wait = Some(until_output("the end\r\n"));
    let wait = pb::WaitRequest { id: "p".into(), wait, ..Default::default() };
    soon(client.wait(wait)).await.unwrap();
    let shown = screen(&mut client, "p").await;
    let matches = grepped(&mut client, "p", "^(1|123456|399999)\\s*$").await;
    assert!(matches.0.contains("123455") && matches.0.contains("400000"), "{matches:?}");
    gate.open(1);
    ended(&mut client, "p").await;
    nothing_in_memory(&service).await;
    let all = paged(&mut client, "p", 1 << 20).await;
    let bytes: usize = all.iter().map(|chunk| chunk.data.len()).sum();
    assert!(bytes > 2 << 20, "{bytes}");
    assert!(text(&all, pb::Stream::Terminal).ends_with("400000\r\nthe end\r\n"));
    assert_eq!(paged(&mut client, "p", 40_000).await, all);
    assert_eq!(followed(&mut client, "p").await, all);
    assert_eq!(grepped(&mut client, "p", "^(1|123456|399999)\\s*$").await, matches);
    let now = screen(&mut client, "p").await;
    assert_eq!((now.rows, now.ansi), (shown.rows, shown.ansi));
}

/// Memory of a process that is its own, or its share.
fn memory(pid: i32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    pss.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_stopped_does_not_have_a_long_file_in_memory() {
    let service = TestService::start();
    let mut client = service.client().await;
    let spec = shell("head -c 67000000 /dev/zero");
    let spec = pb::Spec { transcript_bytes: 128 << 20, ..spec };
    finish(&mut client, "p", spec).await;
    nothing_in_memory(&service).await;
    let server = service.server_pid();
    let before = memory(server);
    let mut followers = Vec::new();
    for _ in 0..3 {
        let request =
            pb::FollowRequest { id: "p".into(), since_seq: Some(1), ..Default::default() };
        let mut stream = soon(client.follow(request)).await.unwrap().into_inner();
        soon(stream.message()).await.unwrap();
        followers.push(stream);
    }
    // A file that is read as a whole is in memory before the first of it is sent.
    let after = memory(server);
    assert!(after < before + (32 << 20), "{before} {after}");
}
