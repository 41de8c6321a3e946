//! Run: of what has left nothing, and of what is cleared by force.

use procyard::failpoint::Point::*;
use procyard::grpc::pb::{self, Kind};
use procyard::transcript::Ring;
use tonic::Code;

use super::{Points, World, again, at_each, prints, runs, started};
use crate::support::service::*;
use crate::support::{alive, soon, until};

const RUN_AGAIN: [Kind; 4] = [Kind::Started, Kind::Completed, Kind::RunAgain, Kind::Started];

pub(super) const RUN: Points = Points {
    unrecorded: &[(CallAsked, 1), (CommitHanded, 1), (CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (CommitHeard, 1),
        (EventTold, 1),
        (Performed, 1),
        (LaunchBegun, 1),
        (SpawnAsked, 1),
        (SpawnAnswered, 1),
        (CommitHanded, 2),
        (CommitWritten, 2),
        (CommitDone, 2),
        (CommitHeard, 2),
        (CallAnswered, 1),
    ],
    twice: &[
        ((CommitDone, 1), (SpawnAsked, 1)),
        ((CommitHeard, 1), (SpawnAnswered, 1)),
        ((SpawnAnswered, 1), (CommitDone, 2)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_again_runs_once_more_at_every_point() {
    at_each(&RUN, runs_again).await;
}

async fn runs_again(world: World) {
    let mut client = world.service.client().await;
    let line = world.line("test $PROCYARD_RUN = 1 && exit 3; exec sleep 600");
    finish(&mut client, "a", shell(&line)).await;
    let mut client = world.crash(client.run(run_again("a"))).await;
    let answer = soon(client.run(run_again("a"))).await;
    again(&world, answer, (Code::FailedPrecondition, "STILL_RUNNING"));
    is_in_its_second_run(&world, &mut client).await;
    world.end(client, 2).await;
}

pub(super) const FORCE: Points = Points {
    unrecorded: &[(CallAsked, 1), (CommitHanded, 1), (CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (CommitHeard, 1),
        (LaunchBegun, 1),
        (KeeperAsked, 1),
        (EarlierEnded, 1),
        (SpawnAsked, 1),
        (KeeperAsked, 2),
        (SpawnAnswered, 1),
        (CommitWritten, 2),
        (CommitDone, 2),
        (ReleaseAsked, 1),
        (KeeperAsked, 3),
        (CallAnswered, 1),
    ],
    twice: &[
        ((CommitDone, 1), (EarlierEnded, 1)),
        ((CommitDone, 1), (SpawnAnswered, 1)),
        ((EarlierEnded, 1), (SpawnAsked, 1)),
        ((SpawnAnswered, 1), (CommitWritten, 2)),
        ((SpawnAnswered, 1), (StrayFreed, 1)),
        ((CommitDone, 2), (StrayEnded, 1)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cleared_for_another_run_is_cleared_once_at_every_point() {
    at_each(&FORCE, runs_by_force).await;
}

async fn runs_by_force(world: World) {
    let mut client = world.service.client().await;
    let line = "echo run $PROCYARD_RUN; test $PROCYARD_RUN = 1 || exec sleep 600; sleep 600 & exit";
    let first = finish(&mut client, "a", shell(&world.line(line))).await.process.unwrap();
    let left = first.lingering[0].pid;
    let mut client = world.crash(client.run(run_by_force("a"))).await;
    let answer = soon(client.run(run_by_force("a"))).await;
    again(&world, answer, (Code::FailedPrecondition, "STILL_RUNNING"));
    is_in_its_second_run(&world, &mut client).await;
    until("who outlived the first run is gone", || !alive(left)).await;
    prints(&mut client, "a", "run 2\n").await;
    let read = pb::ReadRequest { id: "a".into(), since_seq: Some(2), ..Default::default() };
    let answer = soon(client.read(read)).await.unwrap().into_inner();
    assert_eq!((answer.gap, answer.chunks[0].seq, answer.chunks[0].offset), (None, 2, 0));
    world.end(client, 2).await;
}

pub(super) const FORCE_FILED: Points = Points {
    unrecorded: &[(CallAsked, 1), (CommitHanded, 1), (CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (CommitHeard, 1),
        (TranscriptRemoved, 1),
        (SpawnAsked, 1),
        (SpawnAnswered, 1),
        (CommitDone, 2),
    ],
    twice: &[
        ((CommitDone, 1), (RecoverySwept, 1)),
        ((CommitHeard, 1), (SpawnAnswered, 1)),
        ((TranscriptRemoved, 1), (RecoveryDone, 1)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_of_a_run_goes_when_the_next_is_recorded_at_every_point() {
    at_each(&FORCE_FILED, runs_by_force_from_a_file).await;
}

async fn runs_by_force_from_a_file(world: World) {
    let mut client = world.service.client().await;
    let line = "echo run $PROCYARD_RUN; test $PROCYARD_RUN = 1 || exec sleep 600";
    finish(&mut client, "a", shell(&world.line(line))).await;
    world.filed().await;
    let mut client = world.crash(client.run(run_by_force("a"))).await;
    match world.recorded {
        true => until("the file of the first run is gone", || world.files() == 0).await,
        false => assert_eq!(printed(&mut client, "a").await, "run 1\n"),
    }
    let answer = soon(client.run(run_by_force("a"))).await;
    again(&world, answer, (Code::FailedPrecondition, "STILL_RUNNING"));
    is_in_its_second_run(&world, &mut client).await;
    prints(&mut client, "a", "run 2\n").await;
    let first = printed_first(&mut client).await;
    assert_eq!((first.seq, first.offset), (2, 0));
    world.end(client, 2).await;
}

pub(super) const FLOOD: Points = Points {
    unrecorded: &[(CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (LaunchBegun, 1),
        (EarlierEnded, 1),
        (SpawnAsked, 1),
        (KeeperAsked, 2),
        (SpawnAnswered, 1),
        (CommitDone, 2),
        (ReleaseAsked, 1),
    ],
    twice: &[
        ((CommitDone, 1), (SpawnAsked, 1)),
        ((EarlierEnded, 1), (SpawnAsked, 1)),
        ((SpawnAnswered, 1), (StrayEnded, 1)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_number_is_given_twice_to_what_descendants_print_at_any_point() {
    at_each(&FLOOD, runs_after_a_flood).await;
}

/// Who outlived the first run prints until it is ended, long after the second one is recorded.
async fn runs_after_a_flood(world: World) {
    let mut client = world.service.client().await;
    let ring = flood(&world, &mut client, "").await;
    let mut client = world.crash(client.run(run_by_force("a"))).await;
    let answer = soon(client.run(run_by_force("a"))).await;
    again(&world, answer, (Code::FailedPrecondition, "STILL_RUNNING"));
    is_in_its_second_run(&world, &mut client).await;
    prints(&mut client, "a", "run 2\n").await;
    assert_eq!(printed_first(&mut client).await.seq, ring.figures().next_seq);
    world.end(client, 2).await;
}

pub(super) const FLOOD_QUEUED: Points = Points {
    unrecorded: &[(CommitWritten, 1)],
    recorded: &[(CommitDone, 1), (CallAnswered, 1)],
    twice: &[((CommitDone, 1), (RecoveryReconciled, 1)), ((CommitHeard, 1), (RecoveryDone, 1))],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_descendants_print_while_the_next_run_waits_is_counted_at_every_point() {
    at_each(&FLOOD_QUEUED, waits_after_a_flood).await;
}

async fn waits_after_a_flood(world: World) {
    let mut client = world.service.client().await;
    let ring = flood(&world, &mut client, "q").await;
    begin(&mut client, "first", in_queue("q", shell(&world.wait()))).await;
    let mut client = world.crash(client.run(run_by_force("a"))).await;
    let answer = soon(client.run(run_by_force("a"))).await;
    again(&world, answer, (Code::FailedPrecondition, "STILL_RUNNING"));
    let before = ring.figures().next_seq;
    until("they print while it waits", || ring.figures().next_seq > before).await;
    world.open_gate();
    started(&mut client, "a", 2).await;
    prints(&mut client, "a", "run 2\n").await;
    assert_eq!(printed_first(&mut client).await.seq, ring.figures().next_seq);
    world.end(client, 2).await;
}

/// Leaves someone behind who prints for ever, and the ring of it.
async fn flood(world: &World, client: &mut Client, queue: &str) -> Ring {
    let line = "echo run $PROCYARD_RUN; test $PROCYARD_RUN = 1 || exec sleep 600; \
                while :; do echo late; done & exit";
    let spec = pb::Spec { transcript_bytes: 1 << 16, ..shell(&world.line(line)) };
    finish(client, "a", in_queue(queue, spec)).await;
    let ring = world.ring_files().next().expect("the first run has no ring");
    let ring = Ring::open(std::fs::File::open(ring).unwrap()).unwrap();
    let before = ring.figures().next_seq;
    until("they print", || ring.figures().next_seq > before).await;
    ring
}

/// The oldest chunk that is kept.
async fn printed_first(client: &mut Client) -> pb::Chunk {
    let read = pb::ReadRequest { id: "a".into(), ..Default::default() };
    soon(client.read(read)).await.unwrap().into_inner().chunks.remove(0)
}

/// Its first run is over, its second one goes on.
async fn is_in_its_second_run(world: &World, client: &mut Client) {
    started(client, "a", 2).await;
    let process = get(client, "a").await;
    runs(&process);
    assert_eq!((process.run, process.restarts), (2, 0));
    assert_eq!(story(client, "a").await, RUN_AGAIN);
    until("both runs have left a trace", || world.launches() >= 2).await;
}
