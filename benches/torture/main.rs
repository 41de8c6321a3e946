//! Torture: a mixed load through the API while the server is killed at random moments, with a model
//! of what must be true all the same.
//!
//! ```text
//! cargo bench --bench torture [-- [--seconds 60] [--seed N] [--kills-per-second 1]]
//! ```
//!
//! Owns the order of a run. `killer` kills; `printers`, `writers` and `jobs` are the load, each of
//! whom checks what it is told itself; `watchers` and `poller` check what is told of all of them;
//! `ending` checks what is left. They share a `world`, call through `calls` and check output by
//! `transcript` and ends by `promise`; what they start is partly this program again (`play`).
//!
//! What each part does follows from the seed. When it happens does not: the machine decides who comes
//! first, so that a seed repeats the load, not the run.

mod calls;
#[path = "../common/mod.rs"]
mod common;
mod ending;
mod jobs;
mod killer;
mod options;
mod play;
mod poller;
mod printers;
mod promise;
mod random;
mod specs;
mod transcript;
mod watchers;
mod world;
mod writers;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use calls::Caller;
use common::Result;
use common::serve::Serve;
use options::Options;
use tokio::task::JoinSet;
use world::World;

/// Time between two lines that tell how far it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// How long it may take from the last kill until everybody has done what was begun. No job takes
/// more than a few seconds.
const PATIENCE: Duration = Duration::from_secs(90);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == play::SWITCH
    {
        return play::main(rest);
    }
    let run = Options::parse(&arguments).map_err(Into::into).and_then(|options| torture(&options));
    match run {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("torture: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all was as it must be.
fn torture(options: &Options) -> Result<bool> {
    println!("torture: seed {}", options.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let serve = Serve::start_with(|command| {
        command.args(["--queue", "two=2", "--keep-finished", &world::KEPT.to_string()]);
        // It tells of each server that dies.
        command.env("RUST_LOG", "error");
    })?;
    let world = {
        let _entered = runtime.enter();
        Arc::new(World::new(&serve, options.seed)?)
    };
    let begin = Instant::now();
    runtime.block_on(async {
        let watchers = watchers::spawn(&world);
        let load = load(&world);
        let telling = tokio::spawn(tell(world.clone(), begin));
        killer::run(&world, &serve, options).await;
        world.stop();
        if let Err(error) = std::fs::write(world.file(play::STOP), "") {
            world.violation(format!("the printers cannot be stopped: {error}"));
        }
        join(&world, "the load", load).await;
        telling.abort();
        ending::before(&world).await;
        join(&world, "the watchers", watchers).await;
    });
    // No connection outlives it, so that the shutdown waits for none.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ending::after(&world, serve);
    println!("{}", world.summary(options.seed, begin.elapsed()));
    Ok(world.report())
}

/// Everybody who starts something, and who looks at it.
fn load(world: &Arc<World>) -> JoinSet<()> {
    let mut load = JoinSet::new();
    printers::spawn(world, &mut load);
    writers::spawn(world, &mut load);
    jobs::spawn(world, &mut load);
    load.spawn(poller::run(Caller::new(world, "poller", 0)));
    load
}

/// Waits until all of them are done, which does not take for ever.
async fn join(world: &World, whose: &str, mut tasks: JoinSet<()>) {
    let all = async {
        while let Some(done) = tasks.join_next().await {
            if let Err(error) = done {
                world.violation(format!("{whose}: {error}"));
            }
        }
    };
    if tokio::time::timeout(PATIENCE, all).await.is_err() {
        world.violation(format!("{whose}: {} are not done after {PATIENCE:?}", tasks.len()));
    }
}

async fn tell(world: Arc<World>, begin: Instant) {
    loop {
        tokio::time::sleep(PROGRESS).await;
        println!("{}", world.progress(begin.elapsed()));
    }
}
