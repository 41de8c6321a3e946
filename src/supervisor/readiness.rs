//! Readiness: finding out when a process can be used.
//!
//! Owns the three ways: by what it prints, by a port that it listens on (`ports`), by a command
//! (`commands`). Only ever tells that it is ready: how long that may take, and what becomes of a
//! process that is not, is for whoever asks. Who stops asking leaves nothing running.

mod commands;
mod ports;

use regex::bytes::RegexBuilder;

use super::observe::{SEARCHED, search};
use crate::keeper_client::{Keeper, Output};
use crate::process::{Launch, Probe};
use crate::transcript::Matcher;

/// Bytes that the states which are built while matching may take, as for whoever waits for output.
const CACHED: usize = 1 << 20;

/// A process that is not ready yet.
pub struct Candidate {
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
    /// How a command is started beside it, but for its arguments and its run.
    pub beside: Launch,
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
    let regex = match RegexBuilder::new(pattern).dfa_size_limit(CACHED).build() {
        Ok(regex) => regex,
        Err(error) => {
            // It was compiled when it was accepted.
            let process = &candidate.beside.id;
            tracing::error!(%error, process, "a pattern that was accepted cannot be used");
            return std::future::pending().await;
        }
    };
    let mut matcher = Matcher::new(regex);
    let mut follower = candidate.output.follow(candidate.first_seq);
    loop {
        let batch = follower.read(SEARCHED);
        if batch.gap.is_some() {
            matcher.skip();
        }
        if batch.chunks.is_empty() {
            if follower.changed().await.is_err() {
                // Forgotten by the keeper: it prints nothing any more.
                return std::future::pending().await;
            }
            continue;
        }
        match search(matcher, batch.chunks).await {
            Ok((_, Some(_))) => return,
            Ok((searched, None)) => matcher = searched,
            // The server ends.
            Err(_) => return std::future::pending().await,
        }
    }
}
