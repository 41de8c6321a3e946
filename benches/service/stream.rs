//! Throughput: a child that prints as fast as it may, and a client that reads along.

use std::time::Instant;

use procyard::grpc::pb;
use tokio::task::JoinSet;

use crate::common::figures::{Measured, Side, interleave};
use crate::common::suite::Bench;
use crate::common::{Result, apart};
use crate::yard::{self, Client, Settings, Told, Yard, argv};

/// Bytes that are read before the service is told that it may forget them.
const ACKNOWLEDGED: u64 = 2 << 20;

/// The child waits for the client, who gets every byte.
pub(crate) fn lossless(bench: &Bench, settings: Settings, reference: &str) -> Result<Measured> {
    let child = bench.programs.child()?;
    let yard = Yard::open()?;
    let client = yard.connect(settings)?;
    let length = bench.flood.to_string();
    interleave(bench.rounds, |side| match side {
        Side::Ours => yard.run(async |_| every_byte(&client, child, bench.flood).await),
        Side::Reference => apart::run(&["flood", reference, &length, child]),
    })
}

/// Megabytes per second from before the start until the end was told.
async fn every_byte(client: &Client, child: &str, bytes: u64) -> Result<f64> {
    let begin = Instant::now();
    let spec = argv(&[child, "flood", &bytes.to_string()]);
    let spec = pb::Spec { overflow: pb::Overflow::Block.into(), ..spec };
    let id = yard::start(client, spec, None).await?;
    let mut stream = yard::follow(client, &id).await?;
    let mut acknowledging = JoinSet::new();
    let (mut read, mut acknowledged) = (0, 0);
    loop {
        let chunk = match yard::next(&mut stream).await? {
            Told::Chunk(chunk) => chunk,
            Told::Gap(_) => return Err("a transcript that blocks lost something".into()),
            Told::End => break,
        };
        read += chunk.data.len() as u64;
        if let Some(answered) = acknowledging.try_join_next() {
            answered??;
        }
        if read - acknowledged >= ACKNOWLEDGED && acknowledging.is_empty() {
            acknowledging.spawn(acknowledge(client.clone(), id.clone(), chunk.seq));
            acknowledged = read;
        }
    }
    if read != bytes {
        return Err(format!("{read} bytes of {bytes} came").into());
    }
    Ok(bytes as f64 / 1e6 / begin.elapsed().as_secs_f64())
}

/// Tells the service that all up to a chunk was read, and reads next to nothing.
async fn acknowledge(mut client: Client, id: String, seq: u64) -> Result<()> {
    let view = Some(pb::View { max_bytes: 1, ..Default::default() });
    let (since_seq, ack_seq) = (Some(seq + 1), seq);
    client
        .read(pb::ReadRequest { id, since_seq, view, ack_seq, ..pb::ReadRequest::default() })
        .await?;
    Ok(())
}

/// The child waits for nobody, and the client gets what it can.
pub(crate) fn dropping(bench: &Bench) -> Result<Measured> {
    let child = bench.programs.child()?;
    let yard = Yard::open()?;
    let length = bench.flood.to_string();
    interleave(bench.rounds, |side| match side {
        Side::Ours => yard.run(async |client| what_it_can(client, child, bench.flood).await),
        Side::Reference => apart::run(&["flood", "pipe", &length, child]),
    })
}

/// Megabytes per second from before the start until the exit was told.
async fn what_it_can(client: &Client, child: &str, bytes: u64) -> Result<f64> {
    let begin = Instant::now();
    let spec = argv(&[child, "flood", &bytes.to_string()]);
    let id = yard::start(client, spec, None).await?;
    let mut stream = yard::follow(client, &id).await?;
    let wait = pb::WaitRequest { id, wait: Some(yard::until_exit()), ..pb::WaitRequest::default() };
    let mut waiting = client.clone();
    let exit = async {
        waiting.wait(wait).await?;
        Result::Ok(begin.elapsed())
    };
    let following = async {
        let (mut read, mut dropped) = (0, 0);
        loop {
            match yard::next(&mut stream).await? {
                Told::Chunk(chunk) => read += chunk.data.len() as u64,
                Told::Gap(gap) => dropped += gap.dropped_bytes.ok_or("a gap of unknown size")?,
                Told::End => return Result::Ok(read + dropped),
            }
        }
    };
    let (time, told) = tokio::try_join!(exit, following)?;
    if told != bytes {
        return Err(format!("{told} bytes of {bytes} were told of").into());
    }
    Ok(bytes as f64 / 1e6 / time.as_secs_f64())
}
