//! Ready when a command exits with code 0: tried again and again, beside the process.
//!
//! Owns the command under way. However its attempt ends, all of its tree is ended and the keeper
//! forgets it.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::Candidate;
use crate::keeper_client::{Keeper, Spawned};
use crate::process::{Launch, Status, signal};

/// Pauses between attempts: the first, and the longest that it grows to.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long one attempt may take: one that hangs, such as because it came too early, is ended and
/// followed by the next.
const ATTEMPT: Duration = Duration::from_secs(10);

pub(super) async fn succeeds(command: &[String], candidate: &Candidate) {
    let args: Vec<Vec<u8>> = command.iter().map(|arg| arg.clone().into_bytes()).collect();
    let mut pause = FIRST_PAUSE;
    // The keeper tells attempts apart by their number.
    for run in 1.. {
        let launch = Launch { run, args: args.clone(), ..candidate.beside.clone() };
        let status = timeout(ATTEMPT, attempt(&candidate.keeper, launch)).await.ok().flatten();
        if status == Some(Status::Code(0)) {
            return;
        }
        tracing::debug!(id = candidate.beside.id, run, ?status, "not ready yet");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Runs the command once; none: it could not be started.
async fn attempt(keeper: &Keeper, launch: Launch) -> Option<Status> {
    let (reply, begun) = oneshot::channel();
    let keeper = keeper.clone();
    // A task of its own: what was asked of the keeper happens even if we are dropped meanwhile, and
    // somebody has to learn of it and end it.
    tokio::spawn(async move {
        let Ok(spawned) = keeper.spawn(launch).await else { return };
        let attempt = Attempt { key: spawned.key, keeper, runtime: Handle::current() };
        let _ = reply.send((spawned, attempt));
    });
    let (spawned, _attempt) = begun.await.ok()?;
    let Spawned { mut output, existed, .. } = spawned;
    if existed {
        // Left by the server before this one. Its answer is too old to count.
        return None;
    }
    output.wait_until(|progress| progress.status.is_some()).await.ok()?.status
}

/// A command that was started. Ends with this.
struct Attempt {
    keeper: Keeper,
    key: u64,
    runtime: Handle,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let (keeper, key) = (self.keeper.clone(), self.key);
        self.runtime.spawn(async move {
            let _ = keeper.kill_tree(key, signal::KILL).await;
            keeper.release(key).await
        });
    }
}
