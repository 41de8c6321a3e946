//! Outputs and processes that do not end together: descendants that keep an output open, and
//! processes that close theirs and live on.

use std::time::Duration;

use procyard::keeper_client::{Report, Write};
use procyard::process::Status;
use tokio::task::JoinSet;

use crate::support::*;

#[tokio::test]
async fn an_exit_is_told_while_a_grandchild_keeps_the_pipe_and_its_later_output_is_recorded() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let line = format!("(read x <{}; echo later; echo err >&2) & echo hi; exit 4", gate.path);
    let mut spawned = server.sh(&line, PIPES).await;
    let exit = server.exit(spawned.key).await;
    assert_eq!(exit.status, Status::Code(4));
    assert_eq!(text(&read_all(&spawned).await), "hi\n");
    let [lingering] = &exit.lingering[..] else { panic!("{:?}", exit.lingering) };
    assert_eq!(lingering.command, "sh");
    assert!(alive(lingering.pid), "the exit was told only when the grandchild had ended");
    assert!(!spawned.output.progress().drained);

    gate.open(1);
    let drained = soon(server.reports.next()).await;
    assert_eq!(drained, Some(Report::Drained { key: spawned.key }));
    let progress = soon(spawned.output.wait_until(|progress| progress.drained)).await.unwrap();
    let batch = spawned.output.follow(1).read(1 << 20);
    let all: Vec<u8> = batch.chunks.iter().flat_map(|chunk| chunk.data.to_vec()).collect();
    assert_eq!(String::from_utf8(all).unwrap(), "hi\nlater\nerr\n");
    assert!(progress.next_seq > exit.final_seq, "what came later stands after the exit");
    until("it is gone", || !alive(lingering.pid)).await;
}

#[tokio::test]
async fn an_exit_does_not_wait_for_a_grandchild_that_prints_for_ever() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let spawned = server.sh("yes & echo $!; exit 4", PIPES).await;
    let exit = server.exit(spawned.key).await;
    assert_eq!(exit.status, Status::Code(4));
    let commands: Vec<&str> = exit.lingering.iter().map(|one| one.command.as_str()).collect();
    assert_eq!(commands.len(), 1, "{commands:?}");
    assert!(alive(exit.lingering[0].pid));
    let ended = soon(server.keeper.kill_tree(spawned.key, libc::SIGKILL)).await.unwrap();
    assert_eq!(ended.len(), 1);
    assert!(!alive(exit.lingering[0].pid));
}

#[tokio::test]
async fn an_exit_on_a_terminal_is_told_while_a_grandchild_has_it_open() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let spawned = server.sh("trap '' HUP; sleep 600 & echo hi", TERMINAL).await;
    let exit = server.exit(spawned.key).await;
    assert_eq!(exit.status, Status::Code(0));
    assert_eq!(text(&read_all(&spawned).await), "hi\r\n");
    assert_eq!(exit.lingering.len(), 1);
    assert!(alive(exit.lingering[0].pid));
}

/// The keeper does next to nothing while nothing happens.
async fn is_quiet(keeper: &TestKeeper) {
    let before = cpu_ticks(keeper.pid());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = cpu_ticks(keeper.pid()) - before;
    assert!(used < 10, "{used} % of a CPU for nothing");
}

#[tokio::test]
async fn a_process_that_closed_its_pipes_costs_nothing_and_ends_as_ever() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let line = format!("echo hi; exec <&- >&- 2>&-; read x <{}; exit 3", gate.path);
    let spawned = server.sh(&line, STDIN).await;
    read_until(&spawned, "hi\n").await;
    is_quiet(&keeper).await;
    assert_eq!(spawned.output.progress().final_seq, None, "closed outputs are no exit");
    gate.open(1);
    assert_eq!(server.exit(spawned.key).await.status, Status::Code(3));
    assert_eq!(text(&read_all(&spawned).await), "hi\n");
}

#[tokio::test]
async fn a_process_that_closed_its_terminal_costs_nothing_and_may_open_it_again() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let line = format!(
        "echo one; exec </dev/null >/dev/null 2>&1; read x <{0}; echo two >/dev/tty; \
         read x <{0}; exec </dev/tty >/dev/tty; read typed; echo got $typed; exit 3",
        gate.path
    );
    let spawned = server.sh(&line, TERMINAL).await;
    read_until(&spawned, "one\r\n").await;
    is_quiet(&keeper).await;
    gate.open(1);
    read_until(&spawned, "two\r\n").await;
    gate.open(1);
    let write = Write { data: "x\n".into(), ..Write::default() };
    soon(server.keeper.write(spawned.key, write)).await.unwrap();
    assert_eq!(server.exit(spawned.key).await.status, Status::Code(3));
    let shown = text(&read_all(&spawned).await);
    assert!(shown.starts_with("one\r\ntwo\r\n") && shown.ends_with("got x\r\n"), "{shown:?}");
}

#[tokio::test]
async fn input_that_was_read_costs_nothing_however_it_was_written() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut readers = Vec::new();
    for _ in 0..100 {
        let mut reader = server.sh("exec cat >/dev/null", STDIN).await;
        // More than a pipe takes, then, after a moment for the reader, a little more: all in one
        // go, so that what pends may be gone before the keeper waits for room.
        let mut asked = JoinSet::new();
        for (len, delays) in [(100_000, 200), (1, 0)] {
            let write = Write { data: vec![b'x'; len].into(), ..Write::default() };
            let (handle, key) = (server.keeper.clone(), reader.key);
            asked.spawn(async move { handle.write(key, write).await.map(drop) });
            for _ in 0..delays {
                let handle = server.keeper.clone();
                asked.spawn(async move { handle.acknowledge(key, 0).await });
            }
        }
        while let Some(answer) = soon(asked.join_next()).await {
            answer.unwrap().unwrap();
        }
        let read = reader.output.wait_until(|progress| progress.input.pending == 0);
        soon(read).await.unwrap();
        readers.push(reader.key);
    }
    is_quiet(&keeper).await;
    for reader in readers {
        soon(server.keeper.close(reader)).await.unwrap();
        assert_eq!(server.exit(reader).await.status, Status::Code(0));
    }
}

#[tokio::test]
async fn what_has_ended_costs_nothing_until_it_is_released() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for io in [PIPES, STDIN, TERMINAL] {
        server.output("echo hi", io).await;
        server.output("true", io).await;
    }
    // One that ends with input before it that it never read.
    let deaf = server.sh("stty raw -echo; echo deaf; exec sleep 600", TERMINAL).await;
    read_until(&deaf, "deaf").await;
    let write = Write { data: vec![b'x'; 500_000].into(), ..Write::default() };
    let state = soon(server.keeper.write(deaf.key, write)).await.unwrap();
    assert!(state.input.pending > 0, "{state:?}");
    is_quiet(&keeper).await;
    soon(server.keeper.signal(deaf.key, libc::SIGKILL, false)).await.unwrap();
    assert_eq!(server.exit(deaf.key).await.status, Status::Signal(9));
    is_quiet(&keeper).await;
}
