//! Readiness: finding out when a process can be used.
//!
//! Owns the three ways: by what it prints, by a port that it listens on (`ports`), by a command
//! (`commands`). Only ever tells that it is ready: how long that may take, and what becomes of a
//! process that is not, is for whoever asks. Who stops asking leaves nothing running.

mod commands;
mod ports;
mod turns;

use std::sync::Arc;

use super::observe::{SEARCHED, search};
use super::worker_pool::Workers;
use crate::keeper_client::{Keeper, Output};
use crate::process::{Launch, Probe};
use crate::transcript::{Matcher, OutputRegex};

pub use turns::AttemptTurns;
pub(super) use turns::MAX_ATTEMPTS_OF_CALLER;

/// A process that is not ready yet.
pub struct Candidate {
    /// Its public id.
    pub id: Arc<str>,
    /// Who holds it.
    pub keeper: Keeper,
    /// The keeper's number for it.
    pub key: u64,
    /// Its pid.
    pub pid: u32,
    /// The way to its output.
    pub output: Output,
    /// Number of its first chunk: what an earlier launch printed does not count.
    pub first_seq: u64,
    /// The turns of the caller that started it, which attempts of a command wait for.
    pub turns: AttemptTurns,
    /// Makes the launch of a command beside it, but for its arguments and its run.
    pub beside: Arc<dyn Fn() -> Launch + Send + Sync>,
    /// The worker threads for the caller that started it.
    pub workers: Workers,
    /// Hears how an attempt failed, if that is news.
    pub tell: Box<dyn Fn(String) + Send + Sync>,
}

/// Returns when the process is ready, and never otherwise. May be dropped at any moment.
pub async fn ready(probe: Probe, candidate: Candidate) {
    match probe {
        Probe::Output(pattern) => printed(&pattern, &candidate).await,
        Probe::Port(port) => ports::listens(port, &candidate).await,
        Probe::Exec(command) => commands::succeeds(&command, &candidate).await,
    }
}

async fn printed(pattern: &str, candidate: &Candidate) {
    let Candidate { output, first_seq, workers, id, .. } = candidate;
    if !prints(pattern, output, *first_seq, workers, id).await {
        std::future::pending().await
    }
}

/// Searches what a launch prints until it exits, and not what its descendants print later. False:
/// nothing matches, or the server ends.
pub(super) async fn prints(
    pattern: &str,
    output: &Output,
    first_seq: u64,
    workers: &Workers,
    process: &str,
) -> bool {
    let text = pattern.to_owned();
    let regex = match workers.run(move || OutputRegex::accepted(&text)).await {
        Ok(Ok(regex)) => regex,
        Err(_) => return false,
        Ok(Err(error)) => {
            // It was compiled when it was accepted.
            tracing::error!(%error, process, "a pattern that was accepted cannot be used");
            return false;
        }
    };
    let mut matcher = Matcher::new(regex);
    let mut follower = output.follow(first_seq);
    while let Ok(Some(mut batch)) = follower.next(SEARCHED).await {
        let last = output.progress().final_seq.unwrap_or(u64::MAX);
        batch.chunks.retain(|chunk| chunk.seq < last);
        if batch.gap.is_some() {
            matcher.skip();
        }
        match search(workers, matcher, batch.chunks).await {
            Ok((_, Some(_))) => return true,
            Ok((_, None)) if follower.next_seq() >= last => return false,
            Ok((searched, None)) => matcher = searched,
            Err(_) => return false,
        }
    }
    false
}
