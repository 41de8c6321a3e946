//! Many followers of one process.

use std::time::Duration;

use futures_util::future::try_join_all;

use crate::common::figures::{Measured, Series};
use crate::common::suite::Bench;
use crate::common::{Result, usage};
use crate::yard::{self, Client, Settings, Told, Yard, argv};

/// Connections that the followers share.
const CONNECTIONS: usize = 10;

/// Server CPU for each chunk that a follower got, in microseconds. The child prints about 1000
/// chunks a second; every follower has to get every one.
pub(crate) fn cpu_per_delivery(bench: &Bench) -> Result<Measured> {
    let child = bench.programs.child()?;
    let yard = Yard::open()?;
    let clients: Vec<Client> =
        (0..CONNECTIONS).map(|_| yard.connect(Settings::Tuned)).collect::<Result<_>>()?;
    let chunks = (bench.slice * 10).max(Duration::from_secs(1)).as_millis();
    let series = Series::take(bench.rounds.div_ceil(2), || {
        let before = usage::cpu(yard.serve.server()?)?;
        let delivered = yard.run(async |client| {
            let clock = argv(&[child, "clock", &chunks.to_string()]);
            let id = yard::start(client, clock, None).await?;
            let clients = clients.iter().cycle().take(bench.many);
            try_join_all(clients.map(async |client| follow(client, &id).await)).await
        })?;
        let used = usage::cpu(yard.serve.server()?)? - before;
        let all = delivered.iter().sum::<u64>();
        if delivered.iter().any(|count| count != &delivered[0]) {
            return Err("followers got different numbers of chunks".into());
        }
        Ok(used.as_secs_f64() * 1e6 / all as f64)
    })?;
    Ok(Measured::Single(series))
}

/// How many chunks came: all that there are.
async fn follow(client: &Client, id: &str) -> Result<u64> {
    let mut stream = yard::follow(client, id).await?;
    let mut next = 1;
    loop {
        match yard::next(&mut stream).await? {
            Told::Chunk(chunk) if chunk.seq == next => next += 1,
            Told::Chunk(_) | Told::Gap(_) => return Err("a follower missed something".into()),
            Told::End => return Ok(next - 1),
        }
    }
}
