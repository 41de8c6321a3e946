//! Start→exit per second: against raw, on terminals, in a crowd, beside a large server.

use std::time::{Duration, Instant};

use procyard::process::{Io, Status};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use tokio::task::JoinSet;

use crate::common::figures::{Measured, Side, interleave};
use crate::common::suite::Bench;
use crate::common::{Result, apart, programs, usage};
use crate::yard::{Client, PIPES, TERMINAL, Yard};

/// What is to be started, over and over.
pub(crate) struct Load<'a> {
    pub(crate) program: &'a str,
    pub(crate) io: Io,
    pub(crate) at_once: usize,
    pub(crate) time: Duration,
}

impl Load<'_> {
    /// Starts per second, where one counts when its exit was reported. Its release goes on its
    /// way beside the next start, as a server's would: nobody waits for it.
    pub(crate) async fn run(&self, client: &mut Client) -> Result<f64> {
        let begin = Instant::now();
        let mut asks = JoinSet::new();
        let (mut under_way, mut ended) = (0, 0);
        loop {
            while under_way < self.at_once && begin.elapsed() < self.time {
                let launch = client.launch(&[self.program], self.io);
                let keeper = client.keeper.clone();
                asks.spawn(async move { keeper.spawn(launch).await.map(drop) });
                under_way += 1;
            }
            if under_way == 0 {
                break;
            }
            tokio::select! {
                Some(answered) = asks.join_next() => answered??,
                exited = client.exited() => {
                    let (key, status) = exited?;
                    if status != Status::Code(0) {
                        return Err(format!("something ended with {status:?}").into());
                    }
                    let keeper = client.keeper.clone();
                    asks.spawn(async move { keeper.release(key).await });
                    under_way -= 1;
                    ended += 1;
                }
            }
        }
        let rate = f64::from(ended) / begin.elapsed().as_secs_f64();
        while let Some(answered) = asks.join_next().await {
            answered??;
        }
        Ok(rate)
    }
}

/// Pipes, against a loop without RPC.
pub(crate) fn against_raw(
    bench: &Bench,
    program: Result<&str>,
    at_once: usize,
) -> Result<Measured> {
    let program = program?;
    let mut yard = Yard::open()?;
    let load = Load { program, io: PIPES, at_once, time: bench.slice };
    let millis = bench.slice.as_millis().to_string();
    interleave(bench.rounds, |side| match side {
        Side::Ours => yard.run(async |client| load.run(client).await),
        Side::Reference => apart::run(&["starts", &millis, &at_once.to_string(), program]),
    })
}

/// The same program on a terminal, against pipes.
pub(crate) fn terminal_against_pipes(
    bench: &Bench,
    program: Result<&str>,
    at_once: usize,
) -> Result<Measured> {
    let program = program?;
    let mut yard = Yard::open()?;
    interleave(bench.rounds, |side| {
        let io = if side == Side::Ours { TERMINAL } else { PIPES };
        let load = Load { program, io, at_once, time: bench.slice };
        yard.run(async |client| load.run(client).await)
    })
}

/// A keeper that holds many living processes, against one that holds none.
pub(crate) fn crowded_against_empty(bench: &Bench, at_once: usize) -> Result<Measured> {
    let idle = bench.programs.child()?;
    let (mut crowded, mut empty) = (Yard::open()?, Yard::open()?);
    crowded.run(async |client| client.fill(idle, bench.many, None).await)?;
    let load = Load { program: programs::TRUE, io: PIPES, at_once, time: bench.slice };
    interleave(bench.rounds, |side| {
        let yard = if side == Side::Ours { &mut crowded } else { &mut empty };
        yard.run(async |client| load.run(client).await)
    })
}

/// A server with much memory, which nothing that starts processes should ever copy.
pub(crate) fn large_against_small(bench: &Bench) -> Result<Measured> {
    const LARGE: usize = 4 << 30;
    let available = usage::available()?;
    if available < LARGE as u64 + (1 << 30) {
        return Err(format!("only {} MiB of memory available", available >> 20).into());
    }
    let mut yard = Yard::open()?;
    let load = Load { program: programs::TRUE, io: PIPES, at_once: 1, time: bench.slice };
    // Fewer rounds: the memory alone takes a second each time.
    interleave(bench.rounds * 5 / 7, |side| {
        let _memory = (side == Side::Ours).then(|| Resident::new(LARGE)).transpose()?;
        yard.run(async |client| load.run(client).await)
    })
}

/// Memory that is there, page by page.
struct Resident {
    base: *mut std::ffi::c_void,
    bytes: usize,
}

impl Resident {
    fn new(bytes: usize) -> Result<Resident> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base =
            unsafe { rustix::mm::mmap_anonymous(null, bytes, protection, MapFlags::PRIVATE)? };
        let resident = Resident { base, bytes };
        // SAFETY: the range is the mapping that was just made.
        unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxPopulateWrite)? };
        Ok(resident)
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing points into it.
        let _ = unsafe { rustix::mm::munmap(self.base, self.bytes) };
    }
}
