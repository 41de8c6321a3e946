//! Ready when a command exits with code 0: tried again and again, beside the process.
//!
//! Owns the command under way. However its attempt ends, all of its tree is ended and the keeper
//! forgets it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::{AttemptTurns, Candidate};
use crate::keeper_client::{Keeper, Spawned};
use crate::process::{Launch, Status, signal};

/// Pauses between attempts: the first, and the longest that it grows to.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long one attempt may run: one that hangs, such as because it came too early, is ended and
/// followed by the next. Its launch has the keeper's deadline.
const ATTEMPT: Duration = Duration::from_secs(10);

pub(super) async fn succeeds(command: &[String], candidate: &Candidate) {
    let args: Vec<Vec<u8>> = command.iter().map(|arg| arg.clone().into_bytes()).collect();
    let (mut pause, mut told) = (FIRST_PAUSE, String::new());
    // The keeper tells attempts apart by their number.
    for run in 1.. {
        let failed = match attempt(candidate, run, args.clone()).await {
            Ok(Status::Code(0)) => return,
            Ok(Status::Code(code)) => format!("exited with code {code}"),
            Ok(Status::Signal(number)) => format!("was ended by SIG{}", signal::name(number)),
            Err(why) => why,
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
async fn attempt(candidate: &Candidate, run: u32, args: Vec<Vec<u8>>) -> Result<Status, String> {
    let turn = candidate.turns.next().await;
    let (keeper, beside) = (candidate.keeper.clone(), Arc::clone(&candidate.beside));
    let encode = move || keeper.encode(Launch { run, args, ..beside() });
    let not_started = |error: &dyn Display| format!("could not be started: {error}");
    let launch = candidate.workers.run(encode).await.map_err(|error| not_started(&error))?;
    let launch = launch.map_err(|error| not_started(&error))?;
    let (reply, begun) = oneshot::channel();
    let (keeper, turns) = (candidate.keeper.clone(), candidate.turns.clone());
    // A task of its own: what was asked of the keeper happens even if the probe is dropped meanwhile,
    // and the turn ends.
    tokio::spawn(async move {
        let bytes = launch.bytes();
        let spawned = turn.spawn(bytes, || !reply.is_closed(), keeper.spawn_encoded(launch)).await;
        let begun = match spawned {
            Some(Ok(spawned)) => {
                let (key, runtime) = (spawned.key, Handle::current());
                let attempt = Attempt { keeper, key, turns, runtime };
                Ok((spawned, attempt))
            }
            Some(Err(error)) => Err(format!("could not be started: {error}")),
            None => return,
        };
        let _ = reply.send(begun);
        turn.end(bytes).await;
    });
    let gone = || "was forgotten by the keeper".to_owned();
    let (spawned, _attempt) = begun.await.map_err(|_| gone())??;
    let Spawned { mut output, existed, .. } = spawned;
    if existed {
        return Err("was left by the server before this one, and is too old to count".into());
    }
    let ended = timeout(ATTEMPT, output.wait_until(|progress| progress.status.is_some())).await;
    let ended = ended.map_err(|_| format!("took more than {} s", ATTEMPT.as_secs()))?;
    ended.ok().and_then(|progress| progress.status).ok_or_else(gone)
}

/// A command that was started. Ends with this.
struct Attempt {
    keeper: Keeper,
    key: u64,
    turns: AttemptTurns,
    runtime: Handle,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let (keeper, key, turns) = (self.keeper.clone(), self.key, self.turns.clone());
        self.runtime.spawn(async move {
            let turn = turns.next_kill().await;
            let _ = keeper.kill_tree(key, signal::KILL).await;
            drop(turn);
            let _ = keeper.release(key).await;
            turns.forget(key);
        });
    }
}
