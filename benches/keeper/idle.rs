//! What processes cost that do nothing: memory, threads, CPU time and wake-ups.

use std::time::{Duration, Instant};

use crate::common::figures::{Measured, Series, Side, interleave};
use crate::common::serve::Serve;
use crate::common::suite::Bench;
use crate::common::{Result, apart, usage};
use crate::yard::Yard;

/// The keeper of `procyard serve`: its server is of the same binary, whose pages they share.
pub(crate) fn empty_memory(bench: &Bench) -> Result<Measured> {
    let series = Series::take(few(bench), || usage::pss(Serve::start()?.keeper()))?;
    Ok(Measured::Single(series))
}

/// What each process adds to the keeper. Pages of a ring that the client has mapped as well
/// count half here and half there.
pub(crate) fn keeper_memory(bench: &Bench, count: usize, line: Option<&str>) -> Result<Measured> {
    let child = bench.programs.child()?;
    let series = Series::take(few(bench), || {
        let mut yard = Yard::open()?;
        let before = usage::pss(yard.pid())?;
        yard.run(async |client| client.fill(child, count, line).await)?;
        Ok((usage::pss(yard.pid())? - before) / count as f64)
    })?;
    Ok(Measured::Single(series))
}

/// What each process adds to the process that has the connection: less than to a server, which
/// has a record of each beside it. Taken apart, where no memory was freed that could be used
/// again.
pub(crate) fn client_memory(bench: &Bench, line: Option<&str>) -> Result<Measured> {
    let (child, count) = (bench.programs.child()?, bench.many.to_string());
    let words: Vec<&str> = ["client memory", child, &count].into_iter().chain(line).collect();
    Ok(Measured::Single(Series::take(few(bench), || apart::run(&words))?))
}

/// What is measured in a process apart.
pub(crate) fn apart(words: &[&str]) -> Result<f64> {
    match *words {
        ["client memory", child, count] => own_growth(child, count.parse()?, None),
        ["client memory", child, count, line] => own_growth(child, count.parse()?, Some(line)),
        _ => apart::nothing_else(words),
    }
}

/// How much this process grows with each of so many processes, in KiB.
fn own_growth(child: &str, count: usize, line: Option<&str>) -> Result<f64> {
    let mut yard = Yard::open()?;
    let before = usage::pss(std::process::id())?;
    yard.run(async |client| client.fill(child, count, line).await)?;
    Ok((usage::pss(std::process::id())? - before) / count as f64)
}

/// Memory varies little.
fn few(bench: &Bench) -> usize {
    bench.rounds.div_ceil(3)
}

/// Threads of a keeper that holds many, and of one that holds none.
pub(crate) fn threads(bench: &Bench) -> Result<Measured> {
    let (crowded, empty) = (crowd(bench)?, Yard::open()?);
    interleave(1, |side| {
        let yard = if side == Side::Ours { &crowded } else { &empty };
        usage::threads(yard.pid())
    })
}

/// The share of a CPU that a keeper takes while nothing happens.
pub(crate) fn cpu(bench: &Bench) -> Result<Measured> {
    let yard = crowd(bench)?;
    let begin = Instant::now();
    let before = usage::cpu(yard.pid())?;
    rest(bench);
    let used = usage::cpu(yard.pid())? - before;
    let share = 100.0 * used.as_secs_f64() / begin.elapsed().as_secs_f64();
    Ok(Measured::Single(Series::take(1, || Ok(share))?))
}

/// How often it wakes up meanwhile.
pub(crate) fn wakeups(bench: &Bench) -> Result<Measured> {
    let yard = crowd(bench)?;
    let before = usage::sleeps(yard.pid())?;
    rest(bench);
    let slept = usage::sleeps(yard.pid())? - before;
    Ok(Measured::Single(Series::take(1, || Ok(slept))?))
}

/// A keeper with many idle processes, which has come to rest.
fn crowd(bench: &Bench) -> Result<Yard> {
    let child = bench.programs.child()?;
    let mut yard = Yard::open()?;
    yard.run(async |client| client.fill(child, bench.many, None).await)?;
    std::thread::sleep(Duration::from_millis(200));
    Ok(yard)
}

fn rest(bench: &Bench) {
    std::thread::sleep(10 * bench.slice);
}
