//! Kill, Delete and timeouts: of one that obeys, one that does not, one that waits, a service, and
//! one that is over.

use procyard::failpoint::Point::*;
use procyard::grpc::pb::restart::Policy;
use procyard::grpc::pb::{self, Cause, Kind};
use tonic::Code;

use super::{Points, World, again, at_each};
use crate::support::service::*;
use crate::support::soon;

pub(super) const KILL: Points = Points {
    unrecorded: &[(CallAsked, 1), (CommitHanded, 1), (CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (CommitHeard, 1),
        (EventTold, 1),
        (Performed, 1),
        (SignalAsked, 1),
        (KeeperAsked, 1),
        (SignalAnswered, 1),
        (ExitReported, 1),
        (CommitHanded, 2),
        (CommitWritten, 2),
        (CommitDone, 2),
        (CommitHeard, 2),
        (EventTold, 2),
        (CallAnswered, 1),
    ],
    twice: &[
        ((CommitDone, 1), (RecoveryAdopted, 1)),
        ((CommitDone, 1), (SignalAnswered, 1)),
        ((SignalAnswered, 1), (CommitWritten, 2)),
        ((ExitReported, 1), (CommitDone, 2)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_that_is_made_again_finds_the_process_killed_at_every_point() {
    at_each(&KILL, kills).await;
}

async fn kills(world: World) {
    let spec = shell(&world.line("echo ready; exec sleep 600"));
    is_killed(world, spec, libc::SIGTERM).await;
}

pub(super) const STUBBORN: Points = Points {
    unrecorded: &[],
    recorded: &[
        (TimeCome, 1),
        (SignalAsked, 2),
        (KeeperAsked, 2),
        (SignalAnswered, 2),
        (ExitReported, 1),
        (CommitDone, 2),
    ],
    twice: &[
        ((SignalAnswered, 1), (RecoveryReconciled, 1)),
        ((TimeCome, 1), (SignalAnswered, 2)),
        ((SignalAsked, 2), (RecoveryReconciled, 1)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_obey_is_ended_by_force_at_every_point() {
    at_each(&STUBBORN, kills_by_force).await;
}

async fn kills_by_force(world: World) {
    let line = world.line("trap '' TERM; echo ready; exec sleep 600");
    is_killed(world, stopped_by("TERM", 200, shell(&line)), libc::SIGKILL).await;
}

pub(super) const KILL_SERVICE: Points = Points {
    unrecorded: &[(CommitWritten, 1)],
    recorded: &[(CommitDone, 1), (SignalAnswered, 1), (ExitReported, 1), (CommitDone, 2)],
    twice: &[((SignalAnswered, 1), (CommitWritten, 2))],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_killed_is_not_started_again_at_any_point() {
    at_each(&KILL_SERVICE, kills_a_service).await;
}

async fn kills_a_service(world: World) {
    let spec = shell(&world.line("echo ready; exec sleep 600"));
    is_killed(world, restarted(Policy::Always, spec), libc::SIGTERM).await;
}

/// A process is killed, and killed again, and has been ended by a signal.
async fn is_killed(world: World, spec: pb::Spec, signal: i32) {
    let mut client = world.service.client().await;
    begin_ready(&mut client, "a", spec).await;
    let mut client = world.crash(client.kill(kill("a"))).await;
    let answer = soon(client.kill(kill("a"))).await.unwrap().into_inner();
    let exit = exit(&answer.processes[0]);
    assert_eq!((exit.cause(), exit.signal, exit.code), (Cause::Killed, Some(signal), None));
    assert_eq!(printed(&mut client, "a").await, "ready\n");
    let expected = [Kind::Started, Kind::Stopping, Kind::Completed];
    assert_eq!(story(&mut client, "a").await, expected);
    world.end(client, 1).await;
}

pub(super) const KILL_PAUSED: Points = Points {
    unrecorded: &[(CommitWritten, 1)],
    recorded: &[(CommitDone, 1), (CommitHeard, 1), (CallAnswered, 1)],
    twice: &[((CommitHeard, 1), (RecoveryReconciled, 1))],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_killed_before_its_restart_has_none_at_any_point() {
    at_each(&KILL_PAUSED, kills_a_paused_service).await;
}

async fn kills_a_paused_service(world: World) {
    let mut client = world.service.client().await;
    let mut spec = restarted(Policy::Always, shell(&world.line("exit 3")));
    // Nobody waits for that long.
    spec.restart.as_mut().unwrap().backoff_min = Some(millis(60_000));
    begin(&mut client, "a", spec).await;
    Watcher::since(&mut client, 0).await.next(Kind::Restarting).await;
    let mut client = world.crash(client.kill(kill("a"))).await;
    let answer = soon(client.kill(kill("a"))).await.unwrap().into_inner();
    let exit = exit(&answer.processes[0]);
    assert_eq!((exit.cause(), exit.code), (Cause::Killed, Some(3)));
    let expected = [Kind::Started, Kind::Restarting, Kind::Completed];
    assert_eq!(story(&mut client, "a").await, expected);
    world.end(client, 1).await;
}

pub(super) const TIMEOUT: Points = Points {
    // Two commits are those of its start.
    unrecorded: &[(TimeCome, 1), (CommitWritten, 3)],
    recorded: &[(CommitDone, 3), (SignalAsked, 1), (SignalAnswered, 1), (ExitReported, 1)],
    twice: &[((TimeCome, 1), (CommitDone, 3)), ((SignalAnswered, 1), (RecoveryDone, 1))],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_that_is_over_ends_a_process_once_at_every_point() {
    at_each(&TIMEOUT, times_out).await;
}

async fn times_out(world: World) {
    let mut client = world.service.client().await;
    let spec = shell(&world.line("exec sleep 600"));
    let spec = pb::Spec { timeout: Some(millis(2000)), ..spec };
    let mut client = world.crash(client.start(start("a", spec))).await;
    let process = ended(&mut client, "a").await;
    let exit = exit(&process);
    assert_eq!((exit.cause(), exit.signal), (Cause::TimedOut, Some(libc::SIGTERM)));
    let expected = [Kind::Started, Kind::Stopping, Kind::Completed];
    assert_eq!(story(&mut client, "a").await, expected);
    world.end(client, 1).await;
}

pub(super) const CANCEL: Points = Points {
    unrecorded: &[(CallAsked, 1), (CommitHanded, 1), (CommitWritten, 1)],
    recorded: &[(CommitDone, 1), (CommitHeard, 1), (EventTold, 1), (CallAnswered, 1)],
    twice: &[((CommitDone, 1), (RecoveryDone, 1))],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_killed_in_its_queue_never_begins_at_every_point() {
    at_each(&CANCEL, cancels).await;
}

async fn cancels(world: World) {
    let mut client = world.service.client().await;
    begin(&mut client, "first", in_queue("q", shell("exec sleep 600"))).await;
    begin(&mut client, "a", in_queue("q", shell(&world.line("true")))).await;
    let mut client = world.crash(client.kill(kill("a"))).await;
    let answer = soon(client.kill(kill("a"))).await.unwrap().into_inner();
    let exit = exit(&answer.processes[0]);
    assert_eq!((exit.cause(), exit.signal, exit.code), (Cause::CanceledInQueue, None, None));
    assert_eq!(story(&mut client, "a").await, [Kind::Queued, Kind::Completed]);
    world.end(client, 0).await;
}

pub(super) const DELETE: Points = Points {
    unrecorded: &[(CallAsked, 1), (CommitHanded, 1), (CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (CommitHeard, 1),
        (EventTold, 1),
        (Performed, 1),
        (TranscriptRemoved, 1),
        (CallAnswered, 1),
    ],
    twice: &[
        ((CommitDone, 1), (RecoveryAdopted, 1)),
        ((CommitDone, 1), (RecoverySwept, 1)),
        ((CommitDone, 1), (RecoveryDone, 1)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_is_gone_with_its_transcript_at_every_point() {
    at_each(&DELETE, deletes).await;
}

async fn deletes(world: World) {
    let mut client = world.service.client().await;
    finish(&mut client, "a", shell(&world.line("echo said"))).await;
    world.filed().await;
    let expected = [Kind::Started, Kind::Completed, Kind::Deleted];
    is_deleted(world, client, pb::DeleteRequest::default(), &expected).await;
}

pub(super) const DELETE_LIVE: Points = Points {
    unrecorded: &[
        (CallAsked, 1),
        (CommitWritten, 1),
        (CommitDone, 1),
        (CommitHeard, 1),
        (SignalAsked, 1),
        (KeeperAsked, 1),
        (SignalAnswered, 1),
        (ExitReported, 1),
        (CommitHanded, 2),
        (CommitWritten, 2),
    ],
    recorded: &[
        (CommitDone, 2),
        (CommitHeard, 2),
        (EventTold, 2),
        (EventTold, 3),
        (ReleaseAsked, 1),
        (KeeperAsked, 2),
        (TranscriptRemoved, 1),
        (CallAnswered, 1),
    ],
    twice: &[
        ((SignalAnswered, 1), (CommitDone, 2)),
        ((CommitDone, 2), (StrayEnded, 1)),
        ((CommitDone, 2), (StrayFreed, 1)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_by_force_is_ended_and_gone_at_every_point() {
    at_each(&DELETE_LIVE, deletes_by_force).await;
}

async fn deletes_by_force(world: World) {
    let mut client = world.service.client().await;
    let line = world.line("setsid sleep 600 & echo ready; exec sleep 600");
    begin_ready(&mut client, "a", shell(&line)).await;
    let expected = [Kind::Started, Kind::Stopping, Kind::Completed, Kind::Deleted];
    let force = pb::DeleteRequest { force: true, ..Default::default() };
    is_deleted(world, client, force, &expected).await;
}

/// A process is deleted, and deleted again, and nothing is left of it.
async fn is_deleted(
    world: World,
    mut client: Client,
    request: pb::DeleteRequest,
    expected: &[Kind],
) {
    let request = pb::DeleteRequest { id: "a".into(), ..request };
    let mut client = world.crash(client.delete(request.clone())).await;
    let answer = soon(client.delete(request.clone())).await;
    again(&world, answer, (Code::NotFound, "PROCESS_NOT_FOUND"));
    soon(client.delete(pb::DeleteRequest { allow_missing: true, ..request })).await.unwrap();
    let answer = soon(client.get(pb::GetRequest { id: "a".into() })).await;
    assert_eq!(refusal(answer).0, Code::NotFound);
    assert_eq!(story(&mut client, "a").await, expected);
    world.end(client, 1).await;
}
