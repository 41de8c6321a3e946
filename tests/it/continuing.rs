//! A run that goes on with the transcript of the run before it: one log, whatever happens between
//! the runs.

use procyard::keeper_client::{KeeperError, Output, Report, Spawned};
use procyard::process::{Io, Launch, Overflow, Refused, Status};
use procyard::transcript::{Chunk, Stream};

use crate::support::*;

const SMALL: u64 = 64 << 10;

/// The next run of a process, with another line to run.
fn next_run(before: &Launch, line: &str) -> Launch {
    let mut launch = before.clone();
    (launch.run, launch.continues) = (before.run + 1, true);
    launch.args[2] = line.into();
    launch
}

/// All that is kept, and no gap.
fn kept(output: &Output) -> Vec<Chunk> {
    let batch = output.follow(1).read(usize::MAX);
    assert_eq!(batch.gap, None);
    batch.chunks
}

/// All that is kept, of all streams, as text.
fn shown(output: &Output) -> String {
    let bytes = kept(output).iter().flat_map(|chunk| chunk.data.to_vec()).collect();
    String::from_utf8(bytes).unwrap()
}

/// Numbers from 1 on, and offsets of each stream from 0 on, without a hole.
fn assert_whole(chunks: &[Chunk]) {
    let mut offsets = [0; 4];
    for (n, chunk) in chunks.iter().enumerate() {
        let offset = &mut offsets[chunk.stream as usize];
        assert_eq!((chunk.seq, chunk.offset), (n as u64 + 1, *offset));
        *offset += chunk.data.len() as u64;
    }
}

#[tokio::test]
async fn numbers_and_offsets_go_on_without_a_hole_over_three_runs() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for io in [PIPES, TERMINAL] {
        let first = server.shell("echo one; echo err >&2", io);
        let mut launches = vec![first.clone(), next_run(&first, "echo two >&2; echo out")];
        launches.push(next_run(&launches[1], "seq 3"));
        // Another ring, and another beginning, are for those who have none.
        (launches[1].ring_bytes, launches[2].first_seq) = (SMALL, 500);
        let (mut seen, mut keys) = (Vec::new(), Vec::new());
        for launch in launches {
            let spawned = server.spawn(launch).await;
            assert_eq!(spawned.continued, keys.last().copied());
            assert_eq!(kept(&spawned.output)[..seen.len()], seen, "not there from the beginning");
            let exit = server.exit(spawned.key).await;
            assert_eq!(exit.status, Status::Code(0));
            seen = kept(&spawned.output);
            assert_whole(&seen);
            assert_eq!(exit.final_seq, seen.len() as u64 + 1);
            keys.push(spawned.key);
        }
        let streams = |stream| {
            let of = seen.iter().filter(|chunk| chunk.stream == stream);
            String::from_utf8(of.flat_map(|chunk| chunk.data.to_vec()).collect()).unwrap()
        };
        if io == PIPES {
            assert_eq!(streams(Stream::Stdout), "one\nout\n1\n2\n3\n");
            assert_eq!(streams(Stream::Stderr), "err\ntwo\n");
        } else {
            let all = "one\r\nerr\r\ntwo\r\nout\r\n1\r\n2\r\n3\r\n";
            assert_eq!(streams(Stream::Terminal), all);
        }
        for earlier in &keys[..2] {
            let gone = soon(server.keeper.release(*earlier)).await;
            assert_eq!(refused(gone), Refused::UnknownProcess);
        }
    }
}

#[tokio::test]
async fn a_run_goes_on_from_pipes_to_a_terminal_and_back() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut launch = server.shell("echo one", PIPES);
    let mut last = None;
    for (io, line) in [(TERMINAL, "printf two"), (PIPES, "echo three")] {
        let spawned = server.spawn(launch.clone()).await;
        server.exit(spawned.key).await;
        launch = Launch { io, ..next_run(&launch, line) };
        last = Some(spawned);
    }
    let spawned = server.spawn(launch).await;
    assert_eq!(spawned.continued, last.map(|last: Spawned| last.key));
    server.exit(spawned.key).await;
    let places: Vec<(u64, Stream, u64)> =
        kept(&spawned.output).iter().map(|chunk| (chunk.seq, chunk.stream, chunk.offset)).collect();
    let expected = [(1, Stream::Stdout, 0), (2, Stream::Terminal, 0), (3, Stream::Stdout, 4)];
    assert_eq!(places, expected);
}

#[tokio::test]
async fn whoever_read_the_earlier_run_reads_on_and_learns_that_it_is_over() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let first = server.shell("echo one", PIPES);
    let before = server.spawn(first.clone()).await;
    server.exit(before.key).await;
    let mut follower = before.output.follow(1);
    assert_eq!(text(&follower.read(usize::MAX).chunks), "one\n");
    let waiting = tokio::spawn({
        let mut output = before.output.clone();
        async move { output.wait_until(|progress| progress.next_seq > 2).await.map(drop) }
    });
    let after = server.spawn(next_run(&first, "echo two")).await;
    server.exit(after.key).await;
    assert_eq!(text(&follower.read(usize::MAX).chunks), "two\n");
    assert_eq!(follower.next_seq(), 3);
    assert_eq!(soon(waiting).await.unwrap(), Err(KeeperError::Disconnected));
}

#[tokio::test]
async fn a_start_that_fails_leaves_the_earlier_run_as_it_was() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let line = format!("(read x <{}; echo later) & echo one; exit 3", gate.path);
    let first = server.shell(&line, PIPES);
    let before = server.spawn(first.clone()).await;
    let exit = server.exit(before.key).await;
    let mut failing = next_run(&first, "true");
    failing.args[0] = b"/no/such/program".to_vec();
    let why = server.refusal(failing).await;
    assert!(matches!(why, Refused::SpawnFailed { errno: libc::ENOENT, .. }), "{why:?}");

    assert_eq!(shown(&before.output), "one\n");
    gate.open(1);
    let drained = soon(server.reports.next()).await;
    assert_eq!(drained, Some(Report::Drained { key: before.key }));
    assert_eq!(shown(&before.output), "one\nlater\n");
    drop(server);
    let server = keeper.connect().await;
    let [held] = &server.adopted[..] else { panic!("{:?}", server.adopted) };
    assert_eq!((held.key, held.run, &held.exit), (before.key, 1, &Some(exit)));
    let after = server.spawn(next_run(&first, "echo two")).await;
    assert_eq!(after.continued, Some(before.key));
    read_until(&after, "two\n").await;
    assert_eq!(shown(&after.output), "one\nlater\ntwo\n");
}

#[tokio::test]
async fn a_run_that_has_not_exited_is_not_gone_on_from() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let first = server.shell("cat", STDIN);
    let cat = server.spawn(first.clone()).await;
    assert_eq!(server.refusal(next_run(&first, "true")).await, Refused::StillRunning);
    soon(server.keeper.write(cat.key, typed("here\n"))).await.unwrap();
    read_until(&cat, "here\n").await;
}

#[tokio::test]
async fn a_run_that_finds_nothing_to_go_on_from_begins_where_it_was_told_to() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let silent = server.shell("true", PIPES);
    let before = server.spawn(silent.clone()).await;
    server.exit(before.key).await;
    let mut after_silence = next_run(&silent, "echo hi");
    after_silence.first_seq = 70;
    let mut alone = next_run(&server.shell("true", PIPES), "echo hi");
    alone.first_seq = 70;
    for (launch, continued) in [(after_silence, Some(before.key)), (alone, None)] {
        let spawned = server.spawn(launch).await;
        assert_eq!(spawned.continued, continued);
        assert_eq!(server.exit(spawned.key).await.final_seq, 71);
        let chunks = read_from(&spawned.output, 70).await;
        assert_eq!((chunks[0].seq, chunks[0].offset, text(&chunks).as_str()), (70, 0, "hi\n"));
    }
}

/// A run that leaves a descendant, which prints when the gate is opened, and then again.
fn leaving(server: &mut Server, gate: &Gate, io: Io) -> Launch {
    let (path, done) = (&gate.path, format!("{}.done", gate.path));
    let line = format!(
        "trap '' HUP PIPE; (read x <{path}; echo between; touch {done}; read x <{path}; \
         echo too late; rm {done}; sleep 1000) & echo one",
    );
    server.shell(&line, io)
}

#[tokio::test]
async fn what_a_descendant_printed_between_two_runs_stands_between_them() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let done = format!("{}.done", gate.path);
    for io in [PIPES, TERMINAL] {
        let first = leaving(&mut server, &gate, io);
        let before = server.spawn(first.clone()).await;
        let exit = server.exit(before.key).await;
        let [lingering] = &exit.lingering[..] else { panic!("{exit:?}") };
        gate.open(1);
        until("it has printed", || std::path::Path::new(&done).exists()).await;
        let line = format!("echo two; read x <{}; exit 5", gate.path);
        let after = server.spawn(next_run(&first, &line)).await;
        assert!(before.output.progress().drained, "its outputs were let go");
        read_until(&after, "two").await;
        gate.open(2);
        until("it has printed again", || !std::path::Path::new(&done).exists()).await;

        let over = server.exit(after.key).await;
        assert_eq!(over.status, Status::Code(5));
        let between = as_shown(b"one\nbetween\ntwo\n", io);
        assert_eq!(shown(&after.output).into_bytes(), between, "{io:?}");
        assert_whole(&kept(&after.output));
        // It belongs to the process all the same, and is ended with it.
        assert!(over.lingering.iter().any(|one| one.pid == lingering.pid), "{over:?}");
        soon(server.keeper.kill_tree(after.key, libc::SIGKILL)).await.unwrap();
        assert!(!alive(lingering.pid));
    }
}

#[tokio::test]
async fn a_blocking_ring_blocks_again_after_going_on() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut first = server.shell("yes 0123456 | head -c 67000", PIPES);
    (first.ring_bytes, first.overflow) = (SMALL, Overflow::Block);
    let before = server.spawn(first.clone()).await;
    server.exit(before.key).await;
    assert_eq!(bytes(&kept(&before.output)).len(), 67_000, "the exit room took the rest");

    let done = keeper.directory.path().join("done");
    let line = format!(
        "printf x; touch {0}.begun; yes 0123456 | head -c 2000000; touch {0}",
        done.display()
    );
    // Nothing of the new launch counts but that it goes on.
    let after = Launch { overflow: Overflow::DropOldest, ..next_run(&first, &line) };
    let after = server.spawn(after).await;
    until("it has printed", || done.with_extension("begun").exists()).await;
    // The keeper has seen it by the time that a later start has printed, and found no room.
    server.output("echo hi", PIPES).await;
    assert_eq!(bytes(&kept(&after.output)).len(), 67_000);
    let (mut follower, mut received) = (after.output.follow(1), 0);
    while let Some(batch) = soon(follower.next(1 << 20)).await.unwrap() {
        assert_eq!(batch.gap, None);
        for chunk in &batch.chunks {
            assert_eq!(chunk.offset, received);
            received += chunk.data.len() as u64;
        }
        // The rest fits neither into the ring nor into the pipe before it.
        assert!(received > 900_000 || !done.exists(), "it did not wait");
        let read = follower.next_seq() - 1;
        soon(server.keeper.acknowledge(after.key, read)).await.unwrap();
    }
    assert_eq!(received, 2_067_001);
}

#[tokio::test]
async fn the_last_words_of_many_runs_that_nobody_reads_push_out_the_first_and_say_so() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    // What a pipe of two pages takes, so that the process can exit before its output is read. The
    // kernel makes no larger ones for a user who has many: tests that run beside this one may.
    let line = |run: u32| format!("yes 0123456 | head -c 8000; echo {run}");
    let mut launch = server.shell(&line(1), PIPES);
    (launch.ring_bytes, launch.overflow) = (SMALL, Overflow::Block);
    let (mut printed, mut missed) = (0, 0);
    for run in 1..=340 {
        let spawned = server.spawn(launch.clone()).await;
        let exit = server.exit(spawned.key).await;
        printed += 8_000 + run.to_string().len() as u64 + 1;
        let batch = spawned.output.follow(1).read(usize::MAX);
        let last = batch.chunks.last().unwrap();
        assert_eq!((last.seq + 1, last.offset + last.data.len() as u64), (exit.final_seq, printed));
        assert!(bytes(&batch.chunks).ends_with(format!("\n{run}\n").as_bytes()), "run {run}");
        missed = batch.gap.map_or(0, |gap| gap.dropped_bytes.unwrap());
        assert_eq!(missed, batch.chunks[0].offset);
        assert!(missed == 0 || printed > 2 << 20, "run {run} pushed out what had room");
        launch = next_run(&launch, &line(run + 1));
    }
    assert!(missed > 0, "the exit room had room for all");
}

#[tokio::test]
async fn what_a_descendant_could_not_get_rid_of_is_read_before_it_is_cut_off() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut first = server.shell("yes 0123456 & exit 0", PIPES);
    (first.ring_bytes, first.overflow) = (SMALL, Overflow::Block);
    let before = server.spawn(first.clone()).await;
    let exit = server.exit(before.key).await;
    let [yes] = &exit.lingering[..] else { panic!("{exit:?}") };
    // It fills the exit room, and then the pipe.
    let printed = || before.output.progress().ring.map_or(0, |ring| ring.figures().total_bytes);
    let (mut last, mut looks) = (0, 0);
    until("it waits for room", || {
        looks = if printed() == last && last > 2 << 20 { looks + 1 } else { 0 };
        last = printed();
        looks > 20 && state(yes.pid) == Some('S')
    })
    .await;

    let after = server.spawn(next_run(&first, "echo two")).await;
    let over = server.exit(after.key).await;
    let batch = after.output.follow(1).read(usize::MAX);
    let (gap, end) = (batch.gap.expect("room was made"), batch.chunks.last().unwrap());
    assert_eq!((end.seq + 1, &end.data[..]), (over.final_seq, &b"two\n"[..]));
    assert!(
        end.offset > last + 4096,
        "of what stood in the pipe, {} bytes came",
        end.offset - last
    );
    let mut place = gap.dropped_bytes.unwrap();
    for chunk in &batch.chunks[..batch.chunks.len() - 1] {
        assert_eq!(chunk.offset, place);
        let at = |n: usize| b"0123456\n"[(place as usize + n) % 8];
        assert!(chunk.data.iter().enumerate().all(|(n, byte)| *byte == at(n)), "at {place}");
        place += chunk.data.len() as u64;
    }
    until("it is told by SIGPIPE", || !alive(yes.pid)).await;
}

#[tokio::test]
async fn the_next_server_adopts_the_newest_run_with_the_transcript_of_all() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let first = server.shell("echo one", PIPES);
    let before = server.spawn(first.clone()).await;
    server.exit(before.key).await;
    let second = Launch { io: STDIN, ..next_run(&first, "echo two; cat") };
    let after = server.spawn(second.clone()).await;
    read_until(&after, "two\n").await;
    drop(server);

    let mut server = keeper.connect().await;
    let [held] = &server.adopted[..] else { panic!("{:?}", server.adopted) };
    assert_eq!((held.key, held.run), (after.key, 2));
    let output = held.output.clone();
    let again = server.spawn(second).await;
    assert_eq!((again.key, again.existed, again.continued), (after.key, true, None));
    soon(server.keeper.write(after.key, typed("three\n"))).await.unwrap();
    soon(server.keeper.close(after.key)).await.unwrap();
    server.exit(after.key).await;
    assert_eq!(text(&read_from(&output, 1).await), "one\ntwo\nthree\n");
    assert_whole(&kept(&output));
}

#[tokio::test]
async fn a_run_that_does_not_go_on_stands_beside_the_earlier_one_until_that_is_released() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let first = server.shell("echo one", PIPES);
    let before = server.spawn(first.clone()).await;
    server.exit(before.key).await;
    let mut forced = Launch { io: STDIN, continues: false, ..next_run(&first, "echo two; cat") };
    forced.first_seq = 2;
    let after = server.spawn(forced.clone()).await;
    assert_eq!(after.continued, None);
    assert_eq!(shown(&before.output), "one\n");
    drop(server);

    let mut server = keeper.connect().await;
    let held: Vec<(u64, u32)> = server.adopted.iter().map(|held| (held.key, held.run)).collect();
    assert_eq!(held, [(before.key, 1), (after.key, 2)]);
    soon(server.keeper.release(before.key)).await.unwrap();
    let again = server.spawn(forced.clone()).await;
    assert_eq!((again.key, again.existed), (after.key, true), "the newest is still found");
    soon(server.keeper.write(after.key, typed("three\n"))).await.unwrap();
    soon(server.keeper.close(after.key)).await.unwrap();
    server.exit(after.key).await;
    let third = server.spawn(next_run(&forced, "echo four")).await;
    assert_eq!(third.continued, Some(after.key));
    server.exit(third.key).await;
    assert_eq!(text(&read_from(&third.output, 2).await), "two\nthree\nfour\n");
}
