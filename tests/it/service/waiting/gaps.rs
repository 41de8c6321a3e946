//! Output that is dropped while a call waits: the answer tells it as a gap.

use super::*;

/// More than is kept of it, and then the end.
const FLOOD: &str = "head -c 1000000 /dev/zero";

fn small(spec: pb::Spec) -> pb::Spec {
    pb::Spec { transcript_bytes: 64 << 10, ..spec }
}

/// The gap reaches from a chunk to the first that is kept.
fn assert_dropped(gap: Option<pb::Gap>, chunks: &[pb::Chunk], since: u64) {
    let gap = gap.expect("a gap");
    assert_eq!((gap.from_seq, gap.to_seq + 1), (since, chunks[0].seq));
    assert!(gap.dropped_bytes.unwrap() > 900_000, "{gap:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_wait_and_write_stdin_tell_what_was_dropped() {
    let service = TestService::start();
    let mut client = service.client().await;
    let started = finish(&mut client, "start", small(shell(FLOOD))).await;
    assert_dropped(started.gap, &started.chunks, 1);
    let whole = finish(&mut client, "whole", shell("echo all")).await;
    assert_eq!((whole.gap, whole.chunks.len()), (None, 1));

    let spec = small(with_stdin(shell(&format!("echo ready; read x; {FLOOD}"))));
    begin_ready(&mut client, "write", spec.clone()).await;
    let view = Some(pb::View::default());
    let request = pb::WriteStdinRequest { wait: Some(until_exit()), view, ..typed("write", "x\n") };
    let written = write(&mut client, request).await;
    assert_dropped(written.gap, &written.chunks, 2);

    begin_ready(&mut client, "wait", spec).await;
    let wait = Some(until_exit());
    let view = Some(pb::View::default());
    let request = pb::WaitRequest { wait, view, since_seq: Some(1), ..wait_for_it("wait") };
    let waits = waiting(&client, request);
    write(&mut client, typed("wait", "x\n")).await;
    let waited = soon(waits).await.unwrap();
    assert_dropped(waited.gap, &waited.chunks, 1);
}
