//! Typing: how long one byte takes into a terminal and back.

use std::time::Instant;

use procyard::grpc::pb;
use tonic::Streaming;

use crate::common::figures::{Measured, Side, interleave, percentile};
use crate::common::programs::{READY, RETURN};
use crate::common::suite::Bench;
use crate::common::{Result, apart};
use crate::yard::{self, Client, Told, Yard, argv, on_terminal};

/// The median of WriteStdin and Follow, against blocking reads and writes.
pub(crate) fn against_raw(bench: &Bench) -> Result<Measured> {
    let count = bench.slice.as_millis() as usize * 2;
    let yard = Yard::open()?;
    interleave(bench.rounds, |side| match side {
        Side::Ours => yard.run(async |client| median(client, count).await),
        Side::Reference => apart::run(&["echo", &count.to_string()]),
    })
}

/// The median of `count` echoes, in microseconds.
async fn median(client: &Client, count: usize) -> Result<f64> {
    let spec = on_terminal(argv(&["/bin/sh", "-c", RETURN]));
    let id = yard::start(client, spec, None).await?;
    let mut stream = yard::follow(client, &id).await?;
    read(&mut stream, READY.len()).await?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        tokio::try_join!(write(client, &id), read(&mut stream, 1))?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    yard::kill(client, id).await?;
    Ok(percentile(&times, 50))
}

async fn write(client: &Client, id: &str) -> Result<()> {
    let input = Some(pb::write_stdin_request::Input::Data(b"x"[..].into()));
    let id = id.into();
    let request = pb::WriteStdinRequest { id, input, ..pb::WriteStdinRequest::default() };
    client.clone().write_stdin(request).await?;
    Ok(())
}

async fn read(stream: &mut Streaming<pb::FollowResponse>, mut bytes: usize) -> Result<()> {
    while bytes > 0 {
        let Told::Chunk(chunk) = yard::next(stream).await? else { return Err("it ended".into()) };
        bytes = bytes.checked_sub(chunk.data.len()).ok_or("more came back than was typed")?;
    }
    Ok(())
}
