//! Calls that only look: how many there can be, and how long the slow ones take.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use procyard::grpc::pb;

use crate::common::figures::{Measured, Series, percentile};
use crate::common::suite::Bench;
use crate::common::{Result, programs};
use crate::starts::Load;
use crate::yard::{self, Client, Settings, Yard, argv};

/// Get per second.
pub(crate) fn rate(bench: &Bench, at_once: usize) -> Result<Measured> {
    let idle = bench.programs.child()?;
    let yard = Yard::open()?;
    let id = yard.run(async |client| yard::start(client, argv(&[idle, "idle"]), None).await)?;
    let one = || yard.run(async |client| gets(client, &id, at_once, bench.slice).await);
    one()?;
    Ok(Measured::Single(Series::take(bench.rounds, one)?))
}

async fn gets(client: &Client, id: &str, at_once: usize, time: Duration) -> Result<f64> {
    let begin = Instant::now();
    let several = (0..at_once).map(async |_| {
        let mut answered = 0;
        while begin.elapsed() < time {
            get(client, id).await?;
            answered += 1;
        }
        Result::Ok(answered)
    });
    let answered: u32 = try_join_all(several).await?.into_iter().sum();
    Ok(f64::from(answered) / begin.elapsed().as_secs_f64())
}

async fn get(client: &Client, id: &str) -> Result<()> {
    client.clone().get(pb::GetRequest { id: id.into() }).await?;
    Ok(())
}

/// A percentile of Get, asked every millisecond by a client of its own, while another always has
/// 64 starts under way and a child floods.
pub(crate) fn get_under_load(bench: &Bench, percent: usize) -> Result<Measured> {
    let child = bench.programs.child()?;
    let time = bench.slice.max(Duration::from_millis(200)) * 3;
    let series = Series::take(bench.rounds.min(5), || {
        let yard = Yard::open()?;
        let flood = argv(&[child, "flood", "0"]);
        let id = yard.run(async |client| yard::start(client, flood, None).await)?;
        let times = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                yard::runtime()?.block_on(async {
                    let client = yard::connect(yard.serve.socket(), Settings::Tuned).await?;
                    let load = Load { spec: argv(&[programs::TRUE]), at_once: 64, time };
                    load.run(&client).await
                })
            });
            let times = yard.run(async |client| paced_gets(client, &id, time).await);
            load.join().map_err(|_| "the load broke down")??;
            times
        })?;
        Ok(percentile(&times, percent))
    })?;
    Ok(Measured::Single(series))
}

/// Microseconds of each call.
async fn paced_gets(client: &Client, id: &str, time: Duration) -> Result<Vec<f64>> {
    let (all, mut times) = (Instant::now(), Vec::new());
    while all.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let begin = Instant::now();
        get(client, id).await?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// The 99th percentile of a List of 50, with many live processes and ten times as many finished
/// ones, which are younger: those in some states only, or all.
pub(crate) fn list(bench: &Bench, states: &[pb::State]) -> Result<Measured> {
    let child = bench.programs.child()?;
    let yard = Yard::open()?;
    yard.run(async |client| {
        yard::fill(client, child, bench.many, None).await?;
        finish(client, child, 10 * bench.many).await
    })?;
    let states = states.iter().map(|state| i32::from(*state)).collect();
    let selector = Some(pb::Selector { states, ..pb::Selector::default() });
    let request = pb::ListRequest { selector, page_size: 50, ..pb::ListRequest::default() };
    let series = Series::take(bench.rounds, || {
        let mut times = Vec::new();
        yard.run(async |client| {
            for _ in 0..bench.slice.as_millis() {
                let begin = Instant::now();
                let list = client.clone().list(request.clone()).await?.into_inner();
                times.push(begin.elapsed().as_secs_f64() * 1e6);
                if list.processes.len() != 50 {
                    return Err(format!("{} in a list of 50", list.processes.len()).into());
                }
            }
            Ok(percentile(&times, 99))
        })
    })?;
    Ok(Measured::Single(series))
}

/// Starts so many processes and waits for their ends.
pub(crate) async fn finish(client: &Client, program: &str, count: usize) -> Result<()> {
    const AT_ONCE: usize = 64;
    let several = (0..AT_ONCE).map(async |part| {
        for _ in (part..count).step_by(AT_ONCE) {
            yard::run(client, argv(&[program])).await?;
        }
        Result::Ok(())
    });
    try_join_all(several).await?;
    Ok(())
}
