//! Start→exit per second, each in one call: against raw, on terminals, in a crowd.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use procyard::grpc::pb;

use crate::common::figures::{Measured, Series, Side, interleave};
use crate::common::serve::Serve;
use crate::common::suite::Bench;
use crate::common::{Result, apart, programs, usage};
use crate::yard::{self, Client, Yard, argv, on_terminal};

/// What is to be started, over and over.
pub(crate) struct Load {
    pub(crate) spec: pb::Spec,
    pub(crate) at_once: usize,
    pub(crate) time: Duration,
}

impl Load {
    /// Starts per second, where one counts when its call was answered: it has exited.
    pub(crate) async fn run(&self, client: &Client) -> Result<f64> {
        let begin = Instant::now();
        let ended = self.count(client).await?;
        Ok(f64::from(ended) / begin.elapsed().as_secs_f64())
    }

    /// How many were started and have exited.
    async fn count(&self, client: &Client) -> Result<u32> {
        let begin = Instant::now();
        let several = (0..self.at_once).map(async |_| {
            let mut ended = 0;
            while begin.elapsed() < self.time {
                yard::run(client, self.spec.clone()).await?;
                ended += 1;
            }
            Result::Ok(ended)
        });
        Ok(try_join_all(several).await?.into_iter().sum())
    }
}

/// Pipes, against a loop without RPC.
pub(crate) fn against_raw(
    bench: &Bench,
    program: Result<&str>,
    at_once: usize,
) -> Result<Measured> {
    let program = program?;
    let yard = Yard::open()?;
    let load = Load { spec: argv(&[program]), at_once, time: bench.slice };
    let millis = bench.slice.as_millis().to_string();
    interleave(bench.rounds, |side| match side {
        Side::Ours => yard.run(async |client| load.run(client).await),
        Side::Reference => apart::run(&["starts", &millis, &at_once.to_string(), program]),
    })
}

/// CPU time that one of the two processes takes for a start with its exit, in microseconds: of all
/// figures the one that depends least on what else runs here.
pub(crate) fn cpu(
    bench: &Bench,
    at_once: usize,
    pid: fn(&Serve) -> Result<u32>,
) -> Result<Measured> {
    let spec = argv(&[bench.programs.child()?]);
    let yard = Yard::open()?;
    let pid = pid(&yard.serve)?;
    let load = Load { spec, at_once, time: bench.slice };
    let one = || {
        let before = usage::cpu(pid)?;
        let ended = yard.run(async |client| load.count(client).await)?;
        Ok((usage::cpu(pid)? - before).as_secs_f64() * 1e6 / f64::from(ended))
    };
    one()?;
    Ok(Measured::Single(Series::take(bench.rounds, one)?))
}

/// The same program on a terminal, against pipes.
pub(crate) fn terminal_against_pipes(bench: &Bench, at_once: usize) -> Result<Measured> {
    let yard = Yard::open()?;
    interleave(bench.rounds, |side| {
        let spec = argv(&[programs::TRUE]);
        let spec = if side == Side::Ours { on_terminal(spec) } else { spec };
        let load = Load { spec, at_once, time: bench.slice };
        yard.run(async |client| load.run(client).await)
    })
}

/// A service with many living processes, against one that has none.
pub(crate) fn crowded_against_empty(bench: &Bench, at_once: usize) -> Result<Measured> {
    let idle = bench.programs.child()?;
    let crowded = Yard::open()?;
    crowded.run(async |client| yard::fill(client, idle, bench.many, None).await)?;
    against_empty(bench, &crowded, at_once)
}

/// A service with many followers who wait for a silent process, against one that has none.
pub(crate) fn followed_against_empty(bench: &Bench, at_once: usize) -> Result<Measured> {
    let idle = bench.programs.child()?;
    let followed = Yard::open()?;
    let followers = followed.connect(yard::Settings::Tuned)?;
    let _followers = followed.run(async |client| {
        let id = yard::start(client, argv(&[idle, "idle"]), None).await?;
        try_join_all((0..bench.many).map(async |_| yard::follow(&followers, &id).await)).await
    })?;
    against_empty(bench, &followed, at_once)
}

fn against_empty(bench: &Bench, full: &Yard, at_once: usize) -> Result<Measured> {
    let empty = Yard::open()?;
    let load = Load { spec: argv(&[programs::TRUE]), at_once, time: bench.slice };
    interleave(bench.rounds, |side| {
        let yard = if side == Side::Ours { full } else { &empty };
        yard.run(async |client| load.run(client).await)
    })
}
