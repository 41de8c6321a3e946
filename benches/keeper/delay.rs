//! How long a printed line lies in its pipe while the keeper has much else to do.

use std::time::Duration;

use procyard::transcript::Chunk;

use crate::common::figures::{Measured, Series, percentile};
use crate::common::suite::Bench;
use crate::common::{Result, programs};
use crate::starts::Load;
use crate::yard::{Client, PIPES, Yard};

/// A percentile of the delay of a child that tells the time every millisecond, while 64 starts
/// are always under way and another child floods.
pub(crate) fn percentile_under_load(bench: &Bench, percent: usize) -> Result<Measured> {
    let child = bench.programs.child()?;
    let time = bench.slice.max(Duration::from_millis(200)) * 3;
    let rounds = bench.rounds.min(5);
    let series = Series::take(rounds, || {
        let mut yard = Yard::open()?;
        let delays = yard.run(async |client| delays(client, child, time).await)?;
        Ok(percentile(&delays, percent))
    })?;
    Ok(Measured::Single(series))
}

/// Delays in microseconds.
async fn delays(client: &mut Client, child: &str, time: Duration) -> Result<Vec<f64>> {
    client.start(&[child, "flood", "0"], PIPES).await?;
    // It ends with the yard; what it printed until the load ends is what counts.
    let ticks = (10 * time.as_millis()).to_string();
    let clock = client.start(&[child, "clock", &ticks], PIPES).await?;
    let load = Load { program: programs::TRUE, io: PIPES, at_once: 64, time };
    load.run(client).await?;
    let chunks = clock.output.follow(1).read(usize::MAX).chunks;
    let delays: Vec<f64> = chunks.iter().flat_map(lines).collect();
    if delays.len() < 100 { Err("hardly anything was printed".into()) } else { Ok(delays) }
}

/// How long before its capture each line of a chunk was printed.
fn lines(chunk: &Chunk) -> impl Iterator<Item = f64> {
    let text = String::from_utf8_lossy(&chunk.data).into_owned();
    let printed: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let captured = chunk.time;
    // The capture's time is taken right before the read, so a line may be a little younger.
    printed.into_iter().map(move |printed| captured.saturating_sub(printed) as f64 / 1e3)
}
