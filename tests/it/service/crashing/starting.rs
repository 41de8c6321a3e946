//! Start: a process, a script, one that has to wait for its turn, and the turn.

use procyard::failpoint::Point::*;
use procyard::grpc::pb::{self, Cause, Kind, State};

use super::{Points, World, at_each, prints, runs, started};
use crate::support::service::*;
use crate::support::soon;

pub(super) const START: Points = Points {
    unrecorded: &[(CallAsked, 1), (CommitHanded, 1), (CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (CommitHeard, 1),
        (LaunchBegun, 1),
        (SpawnAsked, 1),
        (KeeperAsked, 1),
        (SpawnAnswered, 1),
        (CommitHanded, 2),
        (CommitWritten, 2),
        (CommitDone, 2),
        (CommitHeard, 2),
        (EventTold, 1),
        (CallAnswered, 1),
    ],
    twice: &[
        ((CommitWritten, 1), (RecoveryLoaded, 1)),
        ((CommitDone, 1), (RecoveryAdopted, 1)),
        ((CommitDone, 1), (SpawnAnswered, 1)),
        ((KeeperAsked, 1), (RecoveryReconciled, 1)),
        ((SpawnAnswered, 1), (CommitWritten, 2)),
        ((SpawnAnswered, 1), (CommitDone, 2)),
        ((SpawnAnswered, 1), (RecoveryDone, 1)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_made_again_is_the_same_start_at_every_point() {
    at_each(&START, starts).await;
}

async fn starts(world: World) {
    let spec = shell(&world.line("echo said; exec sleep 600"));
    let mut client = world.service.client().await;
    let mut client = world.crash(client.start(start("a", spec.clone()))).await;
    let answer = soon(client.start(start("a", spec))).await.unwrap().into_inner();
    assert_eq!(answer.existed, world.recorded);
    runs(&answer.process.unwrap());
    prints(&mut client, "a", "said\n").await;
    assert_eq!(world.rings(), 1);
    assert_eq!(story(&mut client, "a").await, [Kind::Started]);
    world.end(client, 1).await;
}

pub(super) const BROKEN: Points = Points {
    unrecorded: &[(CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (SpawnAsked, 1),
        (SpawnAnswered, 1),
        (CommitWritten, 2),
        (CommitDone, 2),
        (CallAnswered, 1),
    ],
    twice: &[((CommitDone, 1), (SpawnAnswered, 1)), ((SpawnAnswered, 1), (CommitDone, 2))],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_cannot_be_executed_never_runs_at_any_point() {
    at_each(&BROKEN, cannot_be_executed).await;
}

/// Whoever makes the call again is told why, or finds a record that tells it: between two servers
/// there may have been nobody to tell.
async fn cannot_be_executed(world: World) {
    let request = start("a", argv(&["/nonexistent/program"]));
    let mut client = world.service.client().await;
    let mut client = world.crash(client.start(request.clone())).await;
    match soon(client.start(request)).await {
        Err(refused) => {
            assert_eq!(reason(&refused), "SPAWN_FAILED");
            assert_eq!(list(&mut client).await, []);
            assert_eq!(story(&mut client, "a").await, []);
        }
        Ok(answer) => {
            assert!(answer.into_inner().existed && world.recorded);
            let process = ended(&mut client, "a").await;
            assert_eq!((exit(&process).cause(), process.pid), (Cause::StartFailed, 0));
            assert_eq!(story(&mut client, "a").await, [Kind::Completed]);
        }
    }
    world.end(client, 0).await;
}

pub(super) const SCRIPT: Points = Points {
    unrecorded: &[(CommitWritten, 1)],
    recorded: &[
        (ScriptRemoved, 1),
        (SpawnAsked, 1),
        (KeeperAsked, 1),
        (SpawnAnswered, 1),
        (CommitWritten, 2),
        (CommitHeard, 2),
        (ExitReported, 1),
        (OutputRead, 1),
        (OutputRemoved, 1),
        (ScriptRemoved, 2),
    ],
    twice: &[
        ((SpawnAsked, 1), (RecoverySwept, 1)),
        ((SpawnAsked, 1), (SpawnAnswered, 1)),
        ((SpawnAnswered, 1), (RecoverySwept, 1)),
        ((OutputRead, 1), (RecoveryDone, 1)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_runs_once_and_what_it_set_is_there_at_every_point() {
    at_each(&SCRIPT, runs_a_script).await;
}

/// A script that sets something and exits with 3.
pub(super) fn setting(world: &World, first: &str) -> pb::Spec {
    let code = world.line(&format!("{first}\necho '[7]' >$PROCYARD_OUTPUT; echo said; exit 3"));
    let script = pb::Script { code, ..Default::default() };
    pb::Spec { program: Some(pb::spec::Program::Script(script)), ..Default::default() }
}

/// It has run once, to its end, and everything of that is there.
pub(super) async fn has_set(client: &mut Client, id: &str) {
    let process = ended(client, id).await;
    let exit = exit(&process);
    assert_eq!((exit.cause(), exit.code, process.run), (Cause::Exited, Some(3), 1));
    let output = process.output.expect("what it set is gone");
    let list = pb_list(output.value.unwrap().to_value().unwrap());
    assert_eq!((list, output.error.as_str()), (vec![7.0], ""));
    assert_eq!(printed(client, id).await, "said\n");
    assert_eq!(story(client, id).await, [Kind::Started, Kind::Completed]);
}

fn pb_list(value: prost_types::Value) -> Vec<f64> {
    let Some(prost_types::value::Kind::ListValue(list)) = value.kind else { panic!("{value:?}") };
    let number = |value: &prost_types::Value| match value.kind {
        Some(prost_types::value::Kind::NumberValue(number)) => number,
        _ => panic!("{value:?}"),
    };
    list.values.iter().map(number).collect()
}

async fn runs_a_script(world: World) {
    let spec = setting(&world, "");
    let mut client = world.service.client().await;
    let mut client = world.crash(client.start(start("a", spec.clone()))).await;
    let answer = soon(client.start(start("a", spec))).await.unwrap().into_inner();
    assert_eq!(answer.existed, world.recorded);
    has_set(&mut client, "a").await;
    world.end(client, 1).await;
}

pub(super) const QUEUE: Points = Points {
    unrecorded: &[(CallAsked, 1), (CommitHanded, 1), (CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (CommitHeard, 1),
        (EventTold, 1),
        (Performed, 1),
        (CallAnswered, 1),
    ],
    twice: &[((CommitDone, 1), (RecoveryDone, 1))],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_in_a_queue_has_one_place_at_every_point() {
    at_each(&QUEUE, waits_in_a_queue).await;
}

async fn waits_in_a_queue(world: World) {
    let mut client = world.service.client().await;
    begin(&mut client, "first", in_queue("q", shell(&world.wait()))).await;
    let spec = in_queue("q", shell(&world.line("echo said")));
    let mut client = world.crash(client.start(start("a", spec.clone()))).await;
    let answer = soon(client.start(start("a", spec))).await.unwrap().into_inner();
    assert_eq!(answer.existed, world.recorded);
    let process = answer.process.unwrap();
    assert_eq!((process.state(), process.queue_position, process.pid), (State::Queued, 1, 0));
    assert_eq!(story(&mut client, "a").await, [Kind::Queued]);
    world.open_gate();
    assert_eq!(exit(&ended(&mut client, "a").await).code, Some(0));
    assert_eq!(printed(&mut client, "a").await, "said\n");
    assert_eq!(story(&mut client, "a").await, [Kind::Queued, Kind::Started, Kind::Completed]);
    world.end(client, 1).await;
}

pub(super) const ADMIT: Points = Points {
    unrecorded: &[(ExitReported, 1), (CommitHanded, 1), (CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (CommitHeard, 1),
        (Performed, 1),
        (LaunchBegun, 1),
        (SpawnAsked, 1),
        (KeeperAsked, 1),
        (SpawnAnswered, 1),
        (CommitWritten, 2),
        (CommitDone, 2),
        (CommitHeard, 2),
    ],
    twice: &[
        ((ExitReported, 1), (CommitDone, 1)),
        ((CommitDone, 1), (SpawnAsked, 1)),
        ((SpawnAnswered, 1), (CommitWritten, 2)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_has_its_turn_once_at_every_point() {
    at_each(&ADMIT, has_its_turn).await;
}

async fn has_its_turn(world: World) {
    let mut client = world.service.client().await;
    begin(&mut client, "first", in_queue("q", shell(&world.wait()))).await;
    let spec = in_queue("q", shell(&world.line("echo said; exec sleep 600")));
    begin(&mut client, "a", spec.clone()).await;
    let mut client = world.crash(async { world.open_gate() }).await;
    prints(&mut client, "a", "said\n").await;
    let answer = soon(client.start(start("a", spec))).await.unwrap().into_inner();
    assert!(answer.existed);
    assert_eq!(exit(&ended(&mut client, "first").await).code, Some(0));
    // Its output may be there before it is recorded that it runs.
    started(&mut client, "a", 1).await;
    runs(&get(&mut client, "a").await);
    assert_eq!(story(&mut client, "a").await, [Kind::Queued, Kind::Started]);
    assert_eq!(story(&mut client, "first").await, [Kind::Started, Kind::Completed]);
    world.end(client, 1).await;
}
