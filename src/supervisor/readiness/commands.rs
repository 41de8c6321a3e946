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
    let (mut pause, mut told) = (FIRST_PAUSE, String::new());
    // The keeper tells attempts apart by their number.
    for run in 1.. {
        let launch = Launch { run, args: args.clone(), ..candidate.beside.clone() };
        let failed = match timeout(ATTEMPT, attempt(&candidate.keeper, launch)).await {
            Ok(Ok(Status::Code(0))) => return,
            Ok(Ok(Status::Code(code))) => format!("exited with code {code}"),
            Ok(Ok(Status::Signal(number))) => format!("was ended by SIG{}", signal::name(number)),
            Ok(Err(why)) => why,
            Err(_) => format!("took more than {} s", ATTEMPT.as_secs()),
        };
        if failed != told {
            (candidate.tell)(failed.clone());
            told = failed;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Runs the command once. An error: why it has no status.
async fn attempt(keeper: &Keeper, launch: Launch) -> Result<Status, String> {
    let (reply, begun) = oneshot::channel();
    let keeper = keeper.clone();
    // A task of its own: what was asked of the keeper happens even if we are dropped meanwhile, and
    // somebody has to learn of it and end it.
    tokio::spawn(async move {
        let begun = match keeper.spawn(launch).await {
            Ok(spawned) => {
                let attempt = Attempt { key: spawned.key, keeper, runtime: Handle::current() };
                Ok((spawned, attempt))
            }
            Err(error) => Err(format!("could not be started: {error}")),
        };
        let _ = reply.send(begun);
    });
    let gone = || "was forgotten by the keeper".to_owned();
    let (spawned, _attempt) = begun.await.map_err(|_| gone())??;
    let Spawned { mut output, existed, .. } = spawned;
    if existed {
        return Err("was left by the server before this one, and is too old to count".into());
    }
    let ended = output.wait_until(|progress| progress.status.is_some()).await;
    ended.ok().and_then(|progress| progress.status).ok_or_else(gone)
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
