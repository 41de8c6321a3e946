//! Typing: how long one byte takes into a terminal and back.

use std::time::Instant;

use bytes::Bytes;
use procyard::keeper_client::{Follower, Write};

use crate::common::figures::{Measured, Side, interleave, percentile};
use crate::common::programs::{READY, RETURN};
use crate::common::suite::Bench;
use crate::common::{Result, apart};
use crate::yard::{Client, TERMINAL, Yard};

/// The median, against blocking reads and writes.
pub(crate) fn against_raw(bench: &Bench) -> Result<Measured> {
    let count = bench.slice.as_millis() as usize * 2;
    let mut yard = Yard::open()?;
    interleave(bench.rounds, |side| match side {
        Side::Ours => yard.run(async |client| median(client, count).await),
        Side::Reference => apart::run(&["echo", &count.to_string()]),
    })
}

/// The median of `count` echoes, in microseconds.
async fn median(client: &mut Client, count: usize) -> Result<f64> {
    let spawned = client.start(&["/bin/sh", "-c", RETURN], TERMINAL).await?;
    let mut follower = spawned.output.follow(1);
    read(&mut follower, READY.len()).await?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        let write = Write { data: Bytes::from_static(b"x"), ..Write::default() };
        let (written, echoed) =
            tokio::join!(client.keeper.write(spawned.key, write), read(&mut follower, 1));
        times.push(begin.elapsed().as_secs_f64() * 1e6);
        written?;
        echoed?;
    }
    client.keeper.kill_tree(spawned.key, libc::SIGKILL).await?;
    let (key, _) = client.exited().await?;
    client.keeper.release(key).await?;
    Ok(percentile(&times, 50))
}

async fn read(follower: &mut Follower, mut bytes: usize) -> Result<()> {
    while bytes > 0 {
        let batch = follower.next(4096).await?.ok_or("it ended")?;
        let read: usize = batch.chunks.iter().map(|chunk| chunk.data.len()).sum();
        bytes = bytes.checked_sub(read).ok_or("more came back than was typed")?;
    }
    Ok(())
}
