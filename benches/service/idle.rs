//! What keeper and server cost together while processes do nothing: memory, threads, CPU time and
//! wake-ups.

use std::time::{Duration, Instant};

use crate::common::figures::{Measured, Series, Side, interleave};
use crate::common::serve::Serve;
use crate::common::suite::Bench;
use crate::common::{Result, usage};
use crate::yard::{self, Yard};

/// With no processes: two processes of one binary, whose pages they share.
pub(crate) fn empty_memory(bench: &Bench) -> Result<Measured> {
    let series = Series::take(few(bench), || of_both(&Serve::start()?, usage::pss))?;
    Ok(Measured::Single(series))
}

/// What each process adds.
pub(crate) fn memory(bench: &Bench, line: Option<&str>) -> Result<Measured> {
    let child = bench.programs.child()?;
    let series = Series::take(few(bench), || {
        let yard = Yard::open()?;
        // The first ones bring what all share.
        yard.run(async |client| yard::fill(client, child, 20, line).await)?;
        let before = of_both(&yard.serve, usage::pss)?;
        yard.run(async |client| yard::fill(client, child, bench.many, line).await)?;
        Ok((of_both(&yard.serve, usage::pss)? - before) / bench.many as f64)
    })?;
    Ok(Measured::Single(series))
}

/// Threads with many processes, and with none.
pub(crate) fn threads(bench: &Bench) -> Result<Measured> {
    let (crowded, empty) = (crowd(bench)?, Yard::open()?);
    interleave(1, |side| {
        let yard = if side == Side::Ours { &crowded } else { &empty };
        of_both(&yard.serve, usage::threads)
    })
}

/// The share of a CPU that both take while nothing happens.
pub(crate) fn cpu(bench: &Bench) -> Result<Measured> {
    let yard = crowd(bench)?;
    let seconds = |pid| Ok(usage::cpu(pid)?.as_secs_f64());
    let begin = Instant::now();
    let before = of_both(&yard.serve, seconds)?;
    rest(bench);
    let used = of_both(&yard.serve, seconds)? - before;
    let share = 100.0 * used / begin.elapsed().as_secs_f64();
    Ok(Measured::Single(Series::take(1, || Ok(share))?))
}

/// How often they wake up meanwhile.
pub(crate) fn wakeups(bench: &Bench) -> Result<Measured> {
    let yard = crowd(bench)?;
    let before = of_both(&yard.serve, usage::sleeps)?;
    rest(bench);
    let slept = of_both(&yard.serve, usage::sleeps)? - before;
    Ok(Measured::Single(Series::take(1, || Ok(slept))?))
}

/// A number of the keeper and of the server, added.
fn of_both(serve: &Serve, number: impl Fn(u32) -> Result<f64>) -> Result<f64> {
    Ok(number(serve.keeper())? + number(serve.server()?)?)
}

/// Memory varies little.
fn few(bench: &Bench) -> usize {
    bench.rounds.div_ceil(3)
}

/// A service with many idle processes, which has come to rest.
fn crowd(bench: &Bench) -> Result<Yard> {
    let child = bench.programs.child()?;
    let yard = Yard::open()?;
    yard.run(async |client| yard::fill(client, child, bench.many, None).await)?;
    std::thread::sleep(Duration::from_millis(500));
    Ok(yard)
}

fn rest(bench: &Bench) {
    std::thread::sleep(10 * bench.slice);
}
