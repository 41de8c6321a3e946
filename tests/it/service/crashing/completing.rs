//! Ends that come by themselves: of a script that has set something, of one that has printed
//! nothing, and of a service that is started again.

use procyard::failpoint::Point::*;
use procyard::grpc::pb::restart::Policy;
use procyard::grpc::pb::{self, Cause, Kind};

use super::starting::{has_set, setting};
use super::{Points, World, at_each, kept, prints, runs};
use crate::support::service::*;

pub(super) const COMPLETE: Points = Points {
    unrecorded: &[(ExitReported, 1), (OutputRead, 1), (CommitHanded, 1), (CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (CommitHeard, 1),
        (EventTold, 1),
        (Performed, 1),
        (OutputRemoved, 1),
        (ScriptRemoved, 1),
    ],
    twice: &[
        ((ExitReported, 1), (RecoverySwept, 1)),
        ((OutputRead, 1), (RecoveryReconciled, 1)),
        ((OutputRead, 1), (CommitHanded, 1)),
        ((OutputRead, 1), (CommitWritten, 1)),
        ((OutputRead, 1), (CommitDone, 1)),
        ((ExitReported, 1), (EventTold, 1)),
        ((ExitReported, 1), (OutputRemoved, 1)),
        ((CommitDone, 1), (RecoverySwept, 1)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_recorded_once_with_all_that_was_left_at_every_point() {
    at_each(&COMPLETE, completes).await;
}

async fn completes(world: World) {
    let mut client = world.service.client().await;
    begin(&mut client, "a", setting(&world, &world.wait())).await;
    let mut client = world.crash(async { world.open_gate() }).await;
    has_set(&mut client, "a").await;
    world.end(client, 1).await;
}

pub(super) const SILENT: Points = Points {
    unrecorded: &[(ExitReported, 1), (CommitWritten, 1)],
    recorded: &[(CommitDone, 1), (CommitHeard, 1), (ReleaseAsked, 1), (KeeperAsked, 1)],
    twice: &[((ExitReported, 1), (ReleaseAsked, 1)), ((ReleaseAsked, 1), (RecoveryDone, 1))],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_printed_nothing_leaves_nothing_at_every_point() {
    at_each(&SILENT, completes_in_silence).await;
}

async fn completes_in_silence(world: World) {
    let mut client = world.service.client().await;
    let line = world.line(&format!("{}; exit 4", world.wait()));
    begin(&mut client, "a", shell(&line)).await;
    let mut client = world.crash(async { world.open_gate() }).await;
    let process = ended(&mut client, "a").await;
    let exit = exit(&process);
    assert_eq!((exit.cause(), exit.code, exit.output_complete), (Cause::Exited, Some(4), true));
    assert_eq!((printed(&mut client, "a").await.as_str(), process.output), ("", None));
    assert_eq!(story(&mut client, "a").await, [Kind::Started, Kind::Completed]);
    world.end(client, 1).await;
}

pub(super) const FILE: Points = Points {
    unrecorded: &[
        (TranscriptWritten, 1),
        (TranscriptNamed, 1),
        (CommitHanded, 2),
        (CommitWritten, 2),
    ],
    recorded: &[
        (CommitDone, 2),
        (CommitHeard, 2),
        (ReleaseAsked, 1),
        (KeeperAsked, 1),
        (Performed, 2),
    ],
    twice: &[
        ((TranscriptWritten, 1), (RecoverySwept, 1)),
        ((TranscriptWritten, 1), (TranscriptNamed, 1)),
        ((TranscriptNamed, 1), (CommitWritten, 2)),
        ((TranscriptNamed, 1), (CommitDone, 2)),
        ((CommitDone, 2), (RecoverySwept, 1)),
        ((CommitDone, 2), (ReleaseAsked, 1)),
        ((CommitHeard, 2), (RecoveryDone, 1)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transcript_is_the_same_on_its_way_to_its_file_at_every_point() {
    at_each(&FILE, is_filed).await;
}

async fn is_filed(world: World) {
    let mut client = world.service.client().await;
    let print = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo line $i; echo oops $i >&2; done";
    let line = world.line(&format!("{print}; echo ready; {}", world.wait()));
    begin_ready(&mut client, "a", shell(&line)).await;
    let both = pb::WaitRequest { wait: Some(until_output("oops 100\n")), ..wait_for_it("a") };
    crate::support::soon(client.wait(both)).await.unwrap();
    let request = pb::ReadRequest { id: "a".into(), ..Default::default() };
    let before = crate::support::soon(client.read(request)).await.unwrap().into_inner().chunks;
    assert!(before.len() > 1);
    let mut client = world.crash(async { world.open_gate() }).await;
    ended(&mut client, "a").await;
    assert_eq!(kept(&mut client, "a").await, before);
    world.filed().await;
    assert_eq!(kept(&mut client, "a").await, before);
    assert_eq!(story(&mut client, "a").await, [Kind::Started, Kind::Completed]);
    world.end(client, 1).await;
}

pub(super) const RESTART: Points = Points {
    unrecorded: &[(ExitReported, 1), (CommitHanded, 1), (CommitWritten, 1)],
    recorded: &[
        (CommitDone, 1),
        (CommitHeard, 1),
        (EventTold, 1),
        (TimeCome, 1),
        (CommitHanded, 2),
        (CommitWritten, 2),
        (CommitDone, 2),
        (CommitHeard, 2),
        (LaunchBegun, 1),
        (EarlierEnded, 1),
        (SpawnAsked, 1),
        (KeeperAsked, 2),
        (SpawnAnswered, 1),
        (CommitHanded, 3),
        (CommitWritten, 3),
        (CommitDone, 3),
        (CommitHeard, 3),
    ],
    twice: &[
        ((ExitReported, 1), (CommitDone, 1)),
        ((CommitDone, 1), (TimeCome, 1)),
        ((TimeCome, 1), (CommitDone, 2)),
        ((CommitDone, 2), (EarlierEnded, 1)),
        ((EarlierEnded, 1), (SpawnAnswered, 1)),
        ((SpawnAnswered, 1), (CommitWritten, 3)),
    ],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_started_again_once_for_each_end_at_every_point() {
    at_each(&RESTART, is_started_again).await;
}

async fn is_started_again(world: World) {
    let mut client = world.service.client().await;
    let line = world.line(&format!("echo up; {}", world.wait()));
    let spec = restarted(Policy::Always, shell(&line));
    let request = pb::StartRequest { wait: Some(until_output("up")), ..start("a", spec) };
    crate::support::soon(client.start(request)).await.unwrap();
    let mut client = world.crash(async { world.open_gate() }).await;
    {
        let mut watcher = Watcher::since(&mut client, 0).await;
        watcher.next(Kind::Restarting).await;
        watcher.next(Kind::Started).await;
    }
    prints(&mut client, "a", "up\nup\n").await;
    let process = get(&mut client, "a").await;
    runs(&process);
    assert_eq!((process.restarts, process.run), (1, 1));
    let expected = [Kind::Started, Kind::Restarting, Kind::Started];
    assert_eq!(story(&mut client, "a").await, expected);
    world.end(client, 2).await;
}
