//! The keeper is killed while it starts a process, and the first server of the next one dies as well.

use procyard::failpoint::Point::{RecoveryReconciled, SpawnAnswered};
use procyard::grpc::pb::Cause;

use super::World;
use crate::support::service::*;
use crate::support::{soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_of_a_killed_keeper_is_lost_for_every_later_server() {
    let mut world = World::new(Vec::new(), true);
    let mut client = world.service.client().await;
    // The server dies before it records that the command runs, if the keeper answers at all.
    world.arm(SpawnAnswered, 1);
    let first = world.path("first");
    let kill_once = format!("mkdir {} && kill -9 $PPID", first.display());
    let spec = shell(&world.line(&kill_once));
    soon(client.start(start("a", spec))).await.unwrap_err();
    until("the keeper is dead", || world.service.child.try_wait().unwrap().is_some()).await;
    let deaths = world.died().len();
    let _ = std::fs::remove_file(world.path("points").join(SpawnAnswered.name()));
    // The next keeper's first server dies before it has recorded anything.
    world.arm(RecoveryReconciled, 1);
    let points = world.path("points");
    world.service.begin_anew(|command| {
        command.env("PROCYARD_FAILPOINTS", &points).env("RUST_LOG", "error");
    });
    until("its first server is dead", || world.died().len() > deaths).await;
    let mut client = world.next_server().await;
    let process = ended(&mut client, "a").await;
    assert_eq!(exit(&process).cause(), Cause::Lost);
    world.end(client, 1).await;
}
