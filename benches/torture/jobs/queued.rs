//! Jobs in queues: never more at a time than there are places, and where there is one place, in the
//! order of their coming. They see that for themselves.

use std::time::Duration;

use procyard::grpc::pb::{self, Cause};

use super::start;
use crate::calls::Caller;
use crate::promise::{Promise, Status};
use crate::{play, specs};

/// A queue of the server.
#[derive(Clone, Copy)]
pub(super) struct Queue {
    /// Also the role of those in it.
    pub(super) name: &'static str,
    /// The role of those who are killed before their turn.
    canceled: &'static str,
    places: u64,
}

/// One that the server was told nothing of.
pub(super) const ONE: Queue = Queue { name: "one", canceled: "one.canceled", places: 1 };
pub(super) const TWO: Queue = Queue { name: "two", canceled: "two.canceled", places: 2 };

/// How many are put into it before they are waited for.
const MOST: u64 = 6;
/// How long one has its place at most, in milliseconds.
const TURN: u64 = 100;

pub(super) async fn row(mut caller: Caller, queue: Queue) {
    let mut turns = 0;
    while !caller.world.stopped() {
        if batch(&mut caller, queue, &mut turns).await.is_none() {
            return;
        }
        let pause = caller.random.millis(500);
        tokio::time::sleep(pause).await;
    }
    if queue.places == 1 {
        check_order(&caller, queue, turns);
    }
}

/// Puts some into the queue, one after the other, and waits until all are through.
async fn batch(caller: &mut Caller, queue: Queue, turns: &mut u64) -> Option<()> {
    let mut waiting = Vec::new();
    for _ in 0..1 + caller.random.below(MOST) {
        let turn = 5 + caller.random.below(TURN);
        let id = put(caller, queue, queue.name, &Promise::exits(0), turn).await?;
        *turns += 1;
        waiting.push(id);
    }
    if caller.random.percent(40) {
        cancel(caller, queue, turns).await?;
    }
    for id in waiting {
        let process = caller.ended(&id).await?;
        caller.world.check(&id, Promise::kept(&process));
    }
    Some(())
}

/// Kills one that cannot have its turn yet, since those before it take a while.
async fn cancel(caller: &mut Caller, queue: Queue, turns: &mut u64) -> Option<()> {
    let mut before = Vec::new();
    for _ in 0..queue.places {
        before.push(
            put(caller, queue, queue.name, &Promise::ends(Cause::Killed, libc::SIGTERM), 600_000)
                .await?,
        );
        *turns += 1;
    }
    let promise =
        Promise { status: Status::None, cause: Cause::CanceledInQueue, ..Promise::exits(0) };
    let id = put(caller, queue, queue.canceled, &promise, 0).await?;
    let process = caller.kill(&id, None).await?;
    caller.world.check(&id, Promise::kept(&process));
    for id in before {
        // In its turn it is killed, and not before.
        caller.wait(&id, specs::until_output("noted")).await?;
        let process = caller.kill(&id, Some(Duration::from_secs(10))).await?;
        caller.world.check(&id, Promise::kept(&process));
    }
    Some(())
}

async fn put(
    caller: &mut Caller,
    queue: Queue,
    role: &'static str,
    promise: &Promise,
    turn: u64,
) -> Option<String> {
    let words = ["turn", queue.name, &queue.places.to_string(), &turn.to_string()];
    let program = play::command(&words).ok()?;
    let (id, spec) = specs::new(&caller.world, role, promise, specs::argv(program));
    let spec = pb::Spec { queue: queue.name.into(), ..spec };
    start(caller, &id, &spec, None).await?;
    Some(id)
}

/// All had their turn, once and in order.
fn check_order(caller: &Caller, queue: Queue, turns: u64) {
    let found = std::fs::read_to_string(caller.world.file(&format!("{}.order", queue.name)));
    let found = found.unwrap_or_default();
    let expected: String = (0..turns).map(|number| format!("{}-{number}\n", queue.name)).collect();
    if found != expected {
        let first = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
        let counts = (found.lines().count(), turns);
        caller.world.violation(format!(
            "queue {}: turns found and expected {counts:?}, first different {first:?}",
            queue.name
        ));
    }
}
