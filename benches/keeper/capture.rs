//! Capture throughput: a child that prints as fast as it is read.

use std::time::Instant;

use procyard::keeper_client::Spawned;
use procyard::process::{Io, Overflow};

use crate::common::figures::{Measured, Side, interleave};
use crate::common::suite::Bench;
use crate::common::{Result, apart};
use crate::yard::{Client, PIPES, TERMINAL, Yard};

/// A terminal is that much slower than a pipe, so it is given that much less.
const TERMINAL_SHARE: u64 = 16;

/// Nobody reads, the ring overwrites itself; against a reader that throws away.
pub(crate) fn against_raw(bench: &Bench) -> Result<Measured> {
    dropping_against(bench, "pipe", PIPES, bench.flood)
}

/// The same against a pipeline.
pub(crate) fn against_cat(bench: &Bench) -> Result<Measured> {
    dropping_against(bench, "cat", PIPES, bench.flood)
}

/// On a terminal, against a blocking reader of one.
pub(crate) fn terminal_against_raw(bench: &Bench) -> Result<Measured> {
    dropping_against(bench, "terminal", TERMINAL, bench.flood / TERMINAL_SHARE)
}

fn dropping_against(bench: &Bench, reference: &str, io: Io, bytes: u64) -> Result<Measured> {
    let child = bench.programs.child()?;
    let mut yard = Yard::open()?;
    let length = bytes.to_string();
    interleave(bench.rounds, |side| match side {
        Side::Ours => yard.run(async |client| {
            let flood = Flood { child, bytes, io, overflow: Overflow::DropOldest };
            flood.run(client, async |_, _| Ok(())).await
        }),
        Side::Reference => apart::run(&["flood", reference, &length, child]),
    })
}

/// The ring makes the child wait for a follower that reads every byte; against the raw reader.
pub(crate) fn lossless_against_raw(bench: &Bench) -> Result<Measured> {
    let child = bench.programs.child()?;
    let mut yard = Yard::open()?;
    let length = bench.flood.to_string();
    interleave(bench.rounds, |side| match side {
        Side::Ours => yard.run(async |client| {
            let bytes = bench.flood;
            let flood = Flood { child, bytes, io: PIPES, overflow: Overflow::Block };
            flood.run(client, async |client, spawned| follow(client, spawned, bytes).await).await
        }),
        Side::Reference => apart::run(&["flood", "pipe", &length, child]),
    })
}

struct Flood<'a> {
    child: &'a str,
    bytes: u64,
    io: Io,
    overflow: Overflow,
}

impl Flood<'_> {
    /// Megabytes per second from before the start until the exit was reported, which says that
    /// all was captured.
    async fn run(
        &self,
        client: &mut Client,
        meanwhile: impl AsyncFnOnce(&Client, &Spawned) -> Result<()>,
    ) -> Result<f64> {
        let mut launch = client.launch(&[self.child, "flood", &self.bytes.to_string()], self.io);
        launch.overflow = self.overflow;
        let begin = Instant::now();
        let spawned = client.keeper.spawn(launch).await?;
        meanwhile(client, &spawned).await?;
        let (key, _) = client.exited().await?;
        let time = begin.elapsed();
        let ring = spawned.output.progress().ring.ok_or("nothing was captured")?;
        let captured = ring.header().total_bytes.load(std::sync::atomic::Ordering::Acquire);
        client.keeper.release(key).await?;
        // A terminal adds carriage returns.
        if captured < self.bytes {
            return Err(format!("{captured} bytes captured of {}", self.bytes).into());
        }
        Ok(self.bytes as f64 / 1e6 / time.as_secs_f64())
    }
}

/// Reads all that a process prints, and lets the keeper forget it.
async fn follow(client: &Client, spawned: &Spawned, expected: u64) -> Result<()> {
    let mut follower = spawned.output.follow(1);
    let mut read = 0;
    while let Some(batch) = follower.next(1 << 20).await? {
        read += batch.chunks.iter().map(|chunk| chunk.data.len() as u64).sum::<u64>();
        if batch.gap.is_some() {
            return Err("a blocking ring lost something".into());
        }
        client.keeper.acknowledge(spawned.key, follower.next_seq() - 1).await?;
    }
    if read == expected { Ok(()) } else { Err(format!("{read} bytes of {expected} came").into()) }
}
