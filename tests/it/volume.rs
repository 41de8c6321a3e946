//! What must hold every time, tried often. `PROCYARD_VOLUME=full` tries it as often as promised.

use procyard::keeper_client::Keeper;
use procyard::process::{Io, Launch, Status};
use tokio::task::JoinSet;

use crate::support::*;

/// Processes under way at once.
const AT_ONCE: usize = 32;

fn times(full: usize) -> usize {
    if full_volume() { full } else { full / 20 }
}

/// Runs many launches, some at a time; returns what `run` made of each.
async fn many<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    count: usize,
    mut run: impl FnMut(usize) -> F,
) -> Vec<T> {
    let mut running = JoinSet::new();
    let mut results = Vec::new();
    for n in 0..count {
        if running.len() >= AT_ONCE {
            results.extend(soon(running.join_next()).await.map(Result::unwrap));
        }
        running.spawn(run(n));
    }
    results.extend(soon(running.join_all()).await);
    results
}

/// Runs one process to its end and releases it; returns how many bytes it printed.
async fn run_to_end(keeper: Keeper, launch: Launch) -> usize {
    let mut spawned = soon(keeper.spawn(launch)).await.unwrap();
    soon(spawned.output.wait_until(|progress| progress.final_seq.is_some())).await.unwrap();
    let printed = bytes(&read_all(&spawned).await).len();
    soon(keeper.release(spawned.key)).await.unwrap();
    printed
}

#[tokio::test]
async fn every_exit_is_seen_and_nothing_is_left_of_it() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let first = server.launch(&["true"], PIPES);
    run_to_end(server.keeper.clone(), first).await;
    let before = keeper.descriptors();

    let count = times(10_000);
    let handle = server.keeper.clone();
    let launches: Vec<Launch> = (0..count).map(|_| server.launch(&["true"], PIPES)).collect();
    let mut launches = launches.into_iter();
    let ended = many(count, |_| run_to_end(handle.clone(), launches.next().unwrap())).await;
    assert_eq!(ended.len(), count);

    assert_eq!(zombies(keeper.pid()), [0; 0]);
    keeper.has_closed_all_since(before).await;
    drop((handle, server));
    assert_eq!(keeper.connect().await.adopted.len(), 0);
}

#[tokio::test]
async fn the_last_output_before_an_exit_is_complete() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let cases: Vec<(usize, Io)> = [1, 4 << 10, 64 << 10, 1 << 20]
        .into_iter()
        .flat_map(|size| [(size, PIPES), (size, TERMINAL)])
        .collect();
    let count = times(20_000);
    let launches: Vec<Launch> = (0..count)
        .map(|n| {
            let (size, io) = cases[n % cases.len()];
            server.launch(&["head", "-c", &size.to_string(), "/dev/zero"], io)
        })
        .collect();
    let mut launches = launches.into_iter();
    let handle = server.keeper.clone();
    let complete = many(count, |n| {
        let run = run_to_end(handle.clone(), launches.next().unwrap());
        let (size, _) = cases[n % cases.len()];
        async move { run.await == size }
    })
    .await;
    assert_eq!(complete.iter().filter(|complete| !**complete).count(), 0);
}

/// Forks many processes whose parents end at once, and waits for their end.
async fn make_orphans(server: &mut Server, count: usize) {
    let line =
        format!("i=0; while [ $i -lt {count} ]; do (true &); i=$((i+1)); done; echo made $i");
    assert_eq!(server.output(&line, PIPES).await, (Status::Code(0), format!("made {count}\n")));
}

#[tokio::test]
async fn orphans_of_a_keeper_that_is_pid_1() {
    let Some(keeper) = TestKeeper::start_as_init() else { return skip("no namespaces here") };
    let mut server = keeper.connect().await;
    let count = if full_volume() { 10_000 } else { 1000 };
    make_orphans(&mut server, count).await;
    until("no zombie is left", || zombies(keeper.pid()).is_empty()).await;
    println!("{count} orphans came to the keeper as PID 1; none is left, not even as a zombie");
}

#[tokio::test]
async fn orphans_of_a_keeper_that_is_a_subreaper() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    make_orphans(&mut server, times(10_000)).await;
    until("no zombie is left", || zombies(keeper.pid()).is_empty()).await;
}
