//! Jobs: short processes of all kinds, one after the other, in several rows at a time.
//!
//! Each is started with an id that the client chose, however often its start breaks, and writes a
//! line to a file of its own whenever it is executed: that is how often it was.

mod plain;
mod queued;
mod services;
mod stopped;

use std::sync::Arc;

use procyard::grpc::pb;
use tokio::task::JoinSet;

use crate::calls::Caller;
use crate::promise::Promise;
use crate::specs;
use crate::world::{Counts, World};

/// Rows of jobs, of which each has one process at a time.
const ROWS: u64 = 16;
/// Longest pause between two jobs of a row, in milliseconds.
const PAUSE: u64 = 400;
/// Processes that live until procyard is told to stop.
const IDLE: u64 = 4;

pub(crate) fn spawn(world: &Arc<World>, load: &mut JoinSet<()>) {
    for number in 0..ROWS {
        load.spawn(row(Caller::new(world, "job", number)));
    }
    for number in 0..IDLE {
        load.spawn(stopped::idle(Caller::new(world, "idle", number)));
    }
    for queue in [queued::ONE, queued::TWO] {
        load.spawn(queued::row(Caller::new(world, queue.name, 0), queue));
    }
}

async fn row(mut caller: Caller) {
    while !caller.world.stopped() {
        let pause = caller.random.millis(PAUSE);
        tokio::time::sleep(pause).await;
        let done = match caller.random.below(9) {
            0 => plain::started(&mut caller).await,
            1 => plain::awaited(&mut caller).await,
            2 => plain::run_again(&mut caller).await,
            3 => services::failing(&mut caller).await,
            4 => services::recovering(&mut caller).await,
            5 => stopped::timed_out(&mut caller).await,
            6 => stopped::killed(&mut caller).await,
            7 => stopped::stubborn(&mut caller).await,
            _ => stopped::deleted(&mut caller).await,
        };
        // What went wrong is noted.
        let _ = done;
    }
}

/// Starts a process and holds the answer against what is known already.
async fn start(
    caller: &mut Caller,
    id: &str,
    spec: &pb::Spec,
    wait: Option<pb::WaitFor>,
) -> Option<pb::Process> {
    let answer = caller.start(specs::start(id, spec, wait)).await?;
    Counts::add(&caller.world.counts.starts, 1);
    let process = answer.process?;
    if process.id != id || process.run != 1 {
        caller.world.violation(format!("{id}: started as {} in run {}", process.id, process.run));
    }
    Some(process)
}

/// It has exited, in this run and as promised, and was executed as often as its file must say.
fn check(caller: &Caller, process: &pb::Process, run: u32, executed: &str) {
    let (world, id) = (&caller.world, &process.id);
    if (process.state(), process.run) != (pb::State::Exited, run) {
        let found = (process.state(), process.run);
        world.violation(format!("{id}: expected the end of run {run}, found {found:?}"));
        return;
    }
    world.check(id, Promise::kept(process));
    let file = std::fs::read_to_string(world.file(id)).unwrap_or_default();
    if file != executed {
        world.violation(format!("{id}: executed: expected {executed:?}, found {file:?}"));
    }
    // Nobody asks for it again.
    let _ = std::fs::remove_file(world.file(id));
}
