//! Output is a log: exact bytes, exact gaps, and nobody waits for a reader who is not asked to.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use procyard::keeper_client::{Output, Spawned};
use procyard::process::{Io, Launch, Overflow, Status};
use procyard::transcript::{Batch, Stream};

use crate::support::*;

const SMALL: u64 = 64 << 10;

/// What a reader got, and what it missed, in bytes.
#[derive(Default)]
struct Read {
    received: u64,
    dropped: u64,
    gaps: u64,
    next_seq: u64,
}

impl Read {
    /// Takes a batch of a single stream, whose places must follow from what came before.
    fn take(&mut self, batch: &Batch, check: impl Fn(u64, &[u8])) {
        self.next_seq = self.next_seq.max(1);
        if let Some(gap) = batch.gap {
            assert_eq!(gap.from_seq, self.next_seq);
            self.next_seq = gap.to_seq + 1;
            self.dropped += gap.dropped_bytes.expect("a reader from the start knows every gap");
            self.gaps += 1;
        }
        for chunk in &batch.chunks {
            assert_eq!((chunk.seq, chunk.offset), (self.next_seq, self.received + self.dropped));
            check(chunk.offset, &chunk.data);
            self.next_seq += 1;
            self.received += chunk.data.len() as u64;
        }
    }
}

/// Bytes that a process ever printed.
fn printed(output: &Output) -> u64 {
    let ring = output.progress().ring.expect("something was printed");
    ring.header().total_bytes.load(std::sync::atomic::Ordering::Acquire)
}

/// Output that repeats `pattern` for ever has these bytes at this offset.
fn repeats<'a>(pattern: &'a [u8]) -> impl Fn(u64, &[u8]) + use<'a> {
    move |offset, data| {
        let at = |n: usize| pattern[(offset as usize + n) % pattern.len()];
        let wrong = data.iter().enumerate().find(|(n, byte)| **byte != at(*n));
        assert_eq!(wrong, None, "in a chunk at {offset}");
    }
}

/// Memory of a process, its rings too, but not what it has read of its program by now.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kinds = ["RssAnon:", "RssShmem:"];
    let lines = status.lines().filter(|line| kinds.iter().any(|kind| line.starts_with(kind)));
    let kib = lines.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap());
    kib.sum::<u64>() << 10
}

#[tokio::test]
async fn a_flood_stays_within_its_ring_and_every_byte_is_accounted_for() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let echo = server.sh("cat", STDIN).await;
    echoes(&server, &echo, 0).await;
    let before = resident(keeper.pid());
    let mut launch = server.launch(&["yes"], PIPES);
    launch.ring_bytes = 1 << 20;
    let flood = server.spawn(launch).await;

    let reader = tokio::spawn(read_to_end(flood.output.clone()));
    let (begin, mut rounds, mut most) = (Instant::now(), 0, 0);
    let time = Duration::from_secs(if full_volume() { 60 } else { 2 });
    while begin.elapsed() < time {
        rounds += 1;
        echoes(&server, &echo, rounds).await;
        most = most.max(resident(keeper.pid()));
    }
    soon(server.keeper.kill_tree(flood.key, libc::SIGKILL)).await.unwrap();
    server.exit(flood.key).await;
    let read = soon(reader).await.unwrap();
    assert_eq!(read.received + read.dropped, printed(&flood.output));
    assert!(printed(&flood.output) > 8 << 20, "it was no flood");
    let growth = most.saturating_sub(before);
    assert!(growth < (1 << 20) + (4 << 20), "the keeper grew by {growth} bytes");
}

async fn read_to_end(output: Output) -> Read {
    let mut read = Read::default();
    let mut follower = output.follow(1);
    while let Some(batch) = soon(follower.next(1 << 20)).await.unwrap() {
        read.take(&batch, repeats(b"y\n"));
        tokio::task::yield_now().await;
    }
    read
}

/// What is typed into `cat` comes back.
async fn echoes(server: &Server, cat: &Spawned, round: u32) {
    let line = format!("round {round}\n");
    soon(server.keeper.write(cat.key, typed(&line))).await.unwrap();
    read_until(cat, &line).await;
}

#[tokio::test]
async fn a_reader_who_comes_late_learns_exactly_what_was_dropped() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut launch = server.shell("yes 0123456 | head -c 1000000", PIPES);
    launch.ring_bytes = SMALL;
    let spawned = server.spawn(launch).await;
    server.exit(spawned.key).await;
    let mut read = Read::default();
    let batch = spawned.output.follow(1).read(usize::MAX);
    read.take(&batch, repeats(b"0123456\n"));
    assert_eq!((read.gaps, read.received + read.dropped), (1, 1_000_000));
    assert!(read.received > SMALL / 2, "only {} bytes were kept", read.received);

    // One who begins in the middle of what was dropped cannot know how much that was.
    let last = batch.gap.unwrap().to_seq;
    let batch = spawned.output.follow(2).read(usize::MAX);
    let gap = batch.gap.unwrap();
    assert_eq!((gap.from_seq, gap.to_seq, gap.dropped_bytes), (2, last, None));
    // One who begins with the oldest that is kept misses nothing.
    assert_eq!(spawned.output.follow(last + 1).read(1).gap, None);
}

#[tokio::test]
async fn many_readers_each_get_everything_and_one_who_never_reads_holds_up_nobody() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let spawned = server.sh("seq 20000; echo end", PIPES).await;
    let _idle = spawned.output.follow(1);
    let readers: Vec<_> = (0..100)
        .map(|_| {
            let output = spawned.output.clone();
            tokio::spawn(async move { text(&read_from(&output, 1).await) })
        })
        .collect();
    let expected = (1..=20_000).map(|n| format!("{n}\n")).collect::<String>() + "end\n";
    for reader in readers {
        assert!(soon(reader).await.unwrap() == expected, "a reader got something else");
    }
}

#[tokio::test]
async fn a_blocking_ring_makes_the_process_wait_and_loses_nothing() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let done = keeper.directory.path().join("done");
    let line = format!("yes 0123456 | head -c 4000000; touch {}", done.display());
    let mut launch = server.shell(&line, PIPES);
    (launch.ring_bytes, launch.overflow) = (SMALL, Overflow::Block);
    let spawned = server.spawn(launch).await;
    let mut follower = spawned.output.follow(1);
    let mut read = Read::default();
    let mut acknowledged = 0;
    while let Some(batch) = soon(follower.next(1 << 20)).await.unwrap() {
        read.take(&batch, repeats(b"0123456\n"));
        assert_eq!(read.gaps, 0);
        if read.received - acknowledged >= SMALL / 4 {
            // The rest fits neither into the ring nor into the pipe before it.
            assert!(read.received > 2_500_000 || !done.exists(), "it did not wait");
            soon(server.keeper.acknowledge(spawned.key, read.next_seq - 1)).await.unwrap();
            acknowledged = read.received;
        }
    }
    assert_eq!(read.received, 4_000_000);
    assert_eq!(server.exit(spawned.key).await.status, Status::Code(0));
    assert!(done.exists());
}

#[tokio::test]
async fn an_exit_does_not_wait_for_an_acknowledgement() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    // More than the ring takes, and no more than the smallest pipe takes besides: that is what a user
    // gets who has many.
    let mut launch = server.shell("yes 0123456 | head -c 67000", PIPES);
    (launch.ring_bytes, launch.overflow) = (SMALL, Overflow::Block);
    let (exit, chunks) = server.run(launch).await;
    assert_eq!((exit.status, bytes(&chunks).len()), (Status::Code(0), 67_000));
}

#[tokio::test]
async fn a_process_that_waits_for_an_acknowledgement_can_be_killed() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut launch = server.launch(&["yes"], PIPES);
    (launch.ring_bytes, launch.overflow) = (SMALL, Overflow::Block);
    let spawned = server.spawn(launch).await;
    let mut output = spawned.output.clone();
    soon(output.wait_until(|progress| progress.next_seq > 3)).await.unwrap();
    soon(server.keeper.kill_tree(spawned.key, libc::SIGKILL)).await.unwrap();
    assert_eq!(server.exit(spawned.key).await.status, Status::Signal(libc::SIGKILL));
    let mut read = Read::default();
    read.take(&spawned.output.follow(1).read(usize::MAX), repeats(b"y\n"));
    assert_eq!((read.gaps, read.received), (0, printed(&spawned.output)));
}

#[tokio::test]
async fn a_ring_is_made_when_the_first_byte_comes() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let silent = server.sh("exit 0", PIPES).await;
    server.exit(silent.key).await;
    assert!(silent.output.progress().ring.is_none());
    assert_eq!(read_all(&silent).await, []);
    let cat = server.sh("cat", STDIN).await;
    assert!(cat.output.progress().ring.is_none());
    assert_eq!(keeper.rings(), 0);
    echoes(&server, &cat, 1).await;
    assert!(cat.output.progress().ring.is_some());
    assert_eq!(keeper.rings(), 1);
}

#[tokio::test]
async fn numbers_begin_where_they_were_told_to() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut launch = server.shell("echo hi", PIPES);
    launch.first_seq = 1000;
    let spawned = server.spawn(launch).await;
    assert_eq!(server.exit(spawned.key).await.final_seq, 1001);
    let chunks = read_from(&spawned.output, 1000).await;
    assert_eq!((chunks[0].seq, chunks[0].offset, text(&chunks).as_str()), (1000, 0, "hi\n"));
}

#[tokio::test]
async fn output_can_be_read_on_after_its_process_was_released() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let spawned = server.sh("echo kept", PIPES).await;
    server.exit(spawned.key).await;
    let mut follower = spawned.output.follow(1);
    soon(server.keeper.release(spawned.key)).await.unwrap();
    assert_eq!(&follower.read(100).chunks[0].data[..], b"kept\n");
}

/// A launch of `cat FILE` that leaves every byte as it is.
fn cat_file(server: &mut Server, file: &std::path::Path, io: Io) -> Launch {
    let raw = if let Io::Terminal(_) = io { "stty raw -echo; " } else { "" };
    server.shell(&format!("{raw}cat {}", file.display()), io)
}

#[tokio::test]
async fn binary_output_is_kept_as_it_is() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let file = keeper.directory.path().join("binary");
    // Every byte next to every other.
    let binary: Vec<u8> = (0..=255u8).flat_map(|a| (0..=255u8).flat_map(move |b| [a, b])).collect();
    std::fs::write(&file, &binary).unwrap();
    for (io, stream) in [(PIPES, Stream::Stdout), (TERMINAL, Stream::Terminal)] {
        let launch = cat_file(&mut server, &file, io);
        let (_, chunks) = server.run(launch).await;
        assert!(chunks.iter().all(|chunk| chunk.stream == stream));
        assert!(bytes(&chunks) == binary, "not the same on {io:?}");
    }
}

#[tokio::test]
async fn a_large_output_without_a_newline_is_read_whole() {
    let total: u64 = if full_volume() { 100_000_000 } else { 10_000_000 };
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let line = format!("yes 0123456 | tr -d '\\n' | head -c {total}");
    let mut launch = server.shell(&line, PIPES);
    launch.overflow = Overflow::Block;
    let spawned = server.spawn(launch).await;
    let mut follower = spawned.output.follow(1);
    let mut read = Read::default();
    while let Some(batch) = soon(follower.next(1 << 20)).await.unwrap() {
        read.take(&batch, repeats(b"0123456"));
        soon(server.keeper.acknowledge(spawned.key, read.next_seq - 1)).await.unwrap();
    }
    assert_eq!((read.received, read.gaps), (total, 0));
}

#[tokio::test]
async fn characters_split_at_every_byte_arrive_byte_by_byte() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let characters = "aé漢😀";
    let prints: String =
        characters.bytes().map(|byte| format!("printf '\\{byte:03o}'; read x; ")).collect();
    for io in [STDIN, TERMINAL] {
        let quiet = if io == TERMINAL { "stty -echo; " } else { "" };
        let spawned = server.sh(&format!("{quiet}{prints}"), io).await;
        let mut follower = spawned.output.follow(1);
        for byte in characters.bytes() {
            let batch = soon(follower.next(100)).await.unwrap().unwrap();
            assert_eq!(batch.chunks.iter().map(|c| &c.data[..]).collect::<Vec<_>>(), [[byte]]);
            soon(server.keeper.write(spawned.key, typed("\n"))).await.unwrap();
        }
        assert_eq!(soon(follower.next(100)).await.unwrap(), None);
        assert_eq!(text(&read_all(&spawned).await), characters);
    }
}

#[tokio::test]
async fn a_cursor_in_the_middle_continues_exactly_there() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let line = "i=0; while [ $i -lt 50 ]; do i=$((i+1)); echo $i; echo e$i >&2; done";
    let launch = server.shell(line, PIPES);
    let spawned: Spawned = server.spawn(launch).await;
    server.exit(spawned.key).await;
    let all = read_all(&spawned).await;
    let mut offsets: BTreeMap<u8, u64> = BTreeMap::new();
    for chunk in &all {
        let offset = offsets.entry(chunk.stream as u8).or_default();
        assert_eq!(chunk.offset, *offset);
        *offset += chunk.data.len() as u64;
        let rest = soon(spawned.output.follow(chunk.seq).next(1 << 20)).await.unwrap().unwrap();
        assert_eq!(rest.chunks, all[chunk.seq as usize - 1..]);
    }
    assert!(all.iter().any(|chunk| chunk.stream == Stream::Stderr));
}
