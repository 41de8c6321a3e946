//! What the supervisor has done for it while it goes on: by the keeper, on the disk, in tasks.
//!
//! Owns no state: each errand ends in an answer to whoever asked, or in an input for the state.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::actor::Actor;
use super::archives::Archives;
use super::effects::Reply;
use super::error::Error;
use super::launch::Ground;
use super::output_turns::needs_turn;
use super::readiness::{AttemptTurns, Candidate, prints, ready};
use super::registry::{Entry, Held, Seen};
use super::state::Input;
use super::worker_pool::Workers;
use crate::failpoint::{self, Point};
use crate::keeper::signal_leftovers;
use crate::keeper_client::{Keeper, Report, Spawned};
use crate::metrics::supervising::Supervising;
use crate::process::lifecycle::Ask;
use crate::process::{
    Exit, Launch, Record, State, StructuredOutput, TreeSignal, Unkillable, signal,
};
use crate::transcript::Ring;

/// Bytes of a spec up to which its launch is made on the main thread.
const MAX_INLINE_SPEC_BYTES: usize = 64 << 10;

impl Actor {
    pub(super) fn spawn(&self, record: Arc<Record>, earlier: Option<Held>) {
        let (keeper, answers) = (self.keeper.clone(), self.queue.answers());
        let (ground, metrics) = (Arc::clone(&self.ground), self.metrics.clone());
        let workers = self.workers.for_caller(&record.by);
        tokio::spawn(async move {
            let id = Arc::clone(&record.id);
            let result = start(&keeper, ground, record, earlier, &workers, &metrics).await;
            let _ = answers.send(Input::Spawned { id, result });
        });
    }

    /// Finds out when a process is ready, and stops as soon as that does not matter any more.
    pub(super) fn probe(&self, record: &Arc<Record>, entry: &Arc<Entry>, held: Held) {
        let (Some(readiness), Some(started)) = (&record.spec.readiness, record.started()) else {
            return;
        };
        let (id, launch) = (Arc::clone(&record.id), record.launch);
        let (of, answers) = (Arc::clone(&id), self.queue.answers());
        let tell =
            move |why| drop(answers.send(Input::NotReady { id: Arc::clone(&of), launch, why }));
        let (ground, of_record) = (Arc::clone(&self.ground), Arc::clone(record));
        let rooms = record.spec.sandbox.has_rooms().then_some(held.key);
        let attempts = self.attempts.for_caller(&record.by);
        let tree_signals = self.tree_signals.for_caller(&record.by);
        let candidate = Candidate {
            id: Arc::clone(&id),
            keeper: self.keeper.clone(),
            key: held.key,
            pid: started.pid,
            output: held.output,
            first_seq: record.first_seq,
            beside: Arc::new(move || Launch { beside: rooms, ..ground.beside(&of_record) }),
            workers: self.workers.for_caller(&record.by),
            turns: AttemptTurns::new(&record.by, attempts, tree_signals, self.queue.answers()),
            tell: Box::new(tell),
        };
        let met = ready(readiness.probe.clone(), candidate);
        let (mut seen, answers) = (entry.watch(), self.queue.answers());
        // That it runs may not be published yet, if it cannot be recorded.
        let over = move |seen: &Seen| {
            let Record { launch: shown, .. } = *seen.record;
            let runs = matches!(seen.record.state(), State::Starting | State::Running);
            seen.removed || shown > launch || shown == launch && !runs
        };
        tokio::spawn(async move {
            tokio::select! {
                () = met => drop(answers.send(Input::Ready { id, launch })),
                _ = seen.wait_for(over) => {}
            }
        });
    }

    pub(super) fn ask(&self, id: Arc<str>, by: &str, key: u64, ask: Ask) {
        let (keeper, answers) = (self.keeper.clone(), self.queue.answers());
        let turns = self.tree_signals.for_caller(by);
        tokio::spawn(async move {
            let _turn = turns.acquire().await;
            failpoint::reach(Point::SignalAsked);
            let outcome = keeper.signal_tree(key, number(ask)).await;
            failpoint::reach(Point::SignalAnswered);
            // Refused only if it is gone already.
            let outcome = outcome.unwrap_or_default();
            let _ = answers.send(Input::Answered { id, ask, outcome });
        });
    }

    /// Signals processes that no keeper holds and names those that still run.
    pub(super) fn ask_leftovers(&self, id: Arc<str>, leftovers: Vec<Unkillable>, ask: Ask) {
        let answers = self.queue.answers();
        tokio::task::spawn_blocking(move || {
            let unkillable = signal_leftovers(leftovers, number(ask));
            let members = unkillable.iter().map(|one| one.process.clone()).collect();
            let outcome =
                TreeSignal { members, unkillable, leader_remains: true, ..TreeSignal::default() };
            let _ = answers.send(Input::Answered { id, ask, outcome });
        });
    }

    pub(super) fn kill_rest(&self, key: u64, seen: Seen) {
        let (keeper, answers) = (self.keeper.clone(), self.queue.answers());
        let turns = self.tree_signals.for_caller(&seen.record.by);
        tokio::spawn(async move {
            let _turn = turns.acquire().await;
            let outcome = keeper.signal_tree(key, signal::KILL).await.unwrap_or_default();
            let _ = answers.send(Input::RestKilled { key, seen, outcome });
        });
    }

    pub(super) fn release(&self, key: u64) {
        let keeper = self.keeper.clone();
        tokio::spawn(async move { keeper.release(key).await });
    }

    /// Ends whoever is left of something, lets the keeper forget it, and then answers.
    pub(super) fn free_rest(&self, id: Arc<str>, by: &str, key: u64, replies: Vec<Reply<()>>) {
        let (keeper, turns) = (self.keeper.clone(), self.tree_signals.for_caller(by));
        tokio::spawn(async move {
            let _turn = turns.acquire().await;
            let outcome = keeper.signal_tree(key, signal::KILL).await.unwrap_or_default();
            let TreeSignal { members: ended, unkillable, .. } = outcome;
            if !ended.is_empty() {
                tracing::warn!(process = %id, ?ended, "ended what no record knows any more");
            }
            if !unkillable.is_empty() {
                tracing::error!(process = %id, ?unkillable, "processes without a record still run");
            }
            failpoint::reach(Point::StrayEnded);
            let _ = keeper.release(key).await;
            failpoint::reach(Point::StrayFreed);
            for reply in replies {
                let _ = reply.send(Ok(()));
            }
        });
    }

    pub(super) fn remove_script(&self, record: Arc<Record>) {
        let ground = Arc::clone(&self.ground);
        tokio::task::spawn_blocking(move || ground.scripts.remove(&record));
    }

    /// Takes a report at once unless a structured output has to be read or recorded for it.
    pub(super) fn delay_output(&mut self, input: Input) -> Option<Input> {
        match input {
            Input::Report(Report::Exited { key, exit }) => self.read_output(key, exit),
            Input::Report(Report::Drained { key }) => self.record_output(key),
            input => Some(input),
        }
    }

    /// A record with a large output is written again in its turn.
    fn record_output(&self, key: u64) -> Option<Input> {
        let record = self.state.launched(key);
        let Some(record) = record.filter(|record| needs_turn(record.output_bytes())) else {
            return Some(Input::Report(Report::Drained { key }));
        };
        let (turns, bytes) = (self.output_turns.for_caller(&record.by), record.output_bytes());
        let answers = self.queue.answers();
        tokio::spawn(async move {
            let turn = turns.next_for(bytes).await;
            let _ = answers.send(Input::Drained { key, turn });
        });
        None
    }

    /// An exit is taken at once if the program has set nothing, which costs one look, and no pattern
    /// in its output is awaited; else when both were read. Output that matches comes before the exit,
    /// however soon that follows, so the process was ready.
    fn read_output(&mut self, key: u64, exit: Exit) -> Option<Input> {
        failpoint::reach(Point::ExitReported);
        let pending = self.state.pending_pattern(key);
        let has_set = |record: &&Arc<Record>| self.ground.outputs.is_there(record);
        let record = self.state.launched(key);
        let is_set = record.as_ref().is_some_and(has_set);
        let Some(record) = record.filter(|_| pending.is_some() || is_set) else {
            return Some(Input::Report(Report::Exited { key, exit }));
        };
        let (ground, record) = (Arc::clone(&self.ground), Arc::clone(record));
        self.state.is_exiting(key);
        let (turns, answers) = (self.output_turns.for_caller(&record.by), self.queue.answers());
        let workers = self.workers.for_caller(&record.by);
        tokio::spawn(async move {
            if let Some((pattern, output)) = pending {
                let (id, launch) = (Arc::clone(&record.id), record.launch);
                if prints(&pattern, &output, record.first_seq, &workers, &id).await {
                    let _ = answers.send(Input::Ready { id, launch });
                }
            }
            // Output that is set while the pattern is awaited counts, too.
            if !is_set && !ground.outputs.is_there(&record) {
                let _ = answers.send(Input::Exited { key, exit, output: None, turn: None });
                return;
            }
            let mut turn = turns.next().await;
            let read = tokio::task::spawn_blocking(move || ground.outputs.read(&record)).await;
            failpoint::reach(Point::OutputRead);
            let output = read.unwrap_or_default();
            turn.shrink(output.as_ref().map_or(0, StructuredOutput::bytes));
            let _ = answers.send(Input::Exited { key, exit, output, turn: Some(turn) });
        });
        None
    }

    /// Has a transcript written to a file.
    pub(super) fn archive(&self, record: Arc<Record>, key: u64, ring: Arc<Ring>) {
        let (archives, answers) = (Arc::clone(&self.archives), self.queue.answers());
        let turns = self.output_turns.for_caller(&record.by);
        tokio::spawn(async move {
            let of = Arc::clone(&record);
            let write = move |archives: &Archives| archives.write(&of, &ring, true);
            let result = archives.in_turn(write).await.map(|written| written.archived);
            let turn = turns.next_for(record.output_bytes()).await;
            let _ = answers.send(Input::Archived { record, key, result, turn });
        });
    }

    /// Removes what was written, after whoever writes it now: from here on nobody begins to.
    pub(super) fn remove_transcript(&self, birth: u64, run: u32) {
        let archives = Arc::clone(&self.archives);
        tokio::spawn(async move {
            let remove = move |archives: &Archives| {
                archives.remove(birth, run);
                Ok(())
            };
            let _ = archives.in_turn(remove).await;
        });
    }

    /// Removes what a program has set: it is recorded, or nobody will ask for it.
    pub(super) fn remove_output(&self, record: Arc<Record>) {
        if self.ground.outputs.is_there(&record) {
            let ground = Arc::clone(&self.ground);
            tokio::task::spawn_blocking(move || ground.outputs.remove(&record));
        }
    }
}

/// The number of the signal that asks.
fn number(ask: Ask) -> i32 {
    match ask {
        Ask::Signal(signal) => signal,
        // Sends nothing.
        Ask::Look => 0,
    }
}

/// Has a process started by the keeper.
async fn start(
    keeper: &Keeper,
    ground: Arc<Ground>,
    record: Arc<Record>,
    earlier: Option<Held>,
    workers: &Workers,
    metrics: &Supervising,
) -> Result<Spawned, Error> {
    failpoint::reach(Point::LaunchBegun);
    let id = Arc::clone(&record.id);
    let first_seq = match earlier {
        Some(earlier) => end_rest(keeper, earlier).await.max(record.first_seq),
        None => record.first_seq,
    };
    ground.confiner.check(&record.spec)?;
    // What takes its time is done elsewhere.
    let made = record.spec.has_output_made();
    let files = record.spec.is_script() || made || record.launch > 1;
    let encode = {
        let (keeper, ground, record) = (keeper.clone(), Arc::clone(&ground), Arc::clone(&record));
        move || {
            let launch = ground.launch(&record)?;
            io::Result::Ok(keeper.encode(Launch { first_seq, ..launch }))
        }
    };
    let launch = if files {
        let written = tokio::task::spawn_blocking(encode).await;
        written.map_err(|error| Error::Store(error.to_string()))?
    } else if record.spec.bytes() > MAX_INLINE_SPEC_BYTES {
        workers.run(encode).await?
    } else {
        encode()
    };
    let launch = launch.map_err(|error| Error::Store(format!("the script: {error}")))?;
    let spawn = async || {
        let asked = Instant::now();
        let spawned = keeper.spawn_encoded(launch.clone()?).await;
        if let Ok(Spawned { existed: false, .. }) = spawned {
            metrics.spawned(asked.elapsed());
        }
        spawned
    };
    failpoint::reach(Point::SpawnAsked);
    let mut spawned = spawn().await;
    failpoint::reach(Point::SpawnAnswered);
    if let Ok(Spawned { existed: true, key, .. }) = spawned {
        // Not this one: what no record knew had the same id, and has not been ended yet.
        let _ = keeper.kill_tree(key, signal::KILL).await;
        let _ = keeper.release(key).await;
        spawned = spawn().await;
    }
    if spawned.is_err() && made {
        ground.outputs.remove(&record);
    }
    let error = match spawned {
        Ok(spawned) => return Ok(spawned),
        Err(error) => Error::from_keeper(&id, error),
    };
    if !ground.confiner.has_roots() {
        return Err(error.about(&record.spec));
    }
    let explained = tokio::task::spawn_blocking(move || ground.confiner.explain(error)).await;
    Err(explained.map_or(Error::ShuttingDown, |error| error.about(&record.spec)))
}

/// Ends who outlived an earlier launch. What they printed to the last is counted: the number of the
/// next chunk. Nothing else knows it until the next launch is recorded, so the keeper holds the
/// earlier one until then, whoever dies.
async fn end_rest(keeper: &Keeper, earlier: Held) -> u64 {
    let _ = keeper.kill_tree(earlier.key, signal::KILL).await;
    failpoint::reach(Point::EarlierEnded);
    earlier.next_seq()
}
