//! Jobs that procyard ends: killed, out of time, deleted while they live, or by the shutdown.

use std::time::Duration;

use procyard::grpc::pb::{self, Cause};

use super::{check, start};
use crate::calls::Caller;
use crate::promise::Promise;
use crate::specs::{self, until_output};

/// Says that it runs, and does so until it is ended.
const WAITS: &str = "echo ran >>$PROCYARD_ID; echo ready; exec sleep 86400";
/// The same, and takes no SIGTERM for an answer: what is ignored stays so in what is executed.
const IGNORES: &str = "trap '' TERM; echo ran >>$PROCYARD_ID; echo ready; exec sleep 86400";
/// How long one has that ignores what it is told.
const GRACE: Duration = Duration::from_millis(300);

pub(super) async fn timed_out(caller: &mut Caller) -> Option<()> {
    let promise = Promise::ends(Cause::TimedOut, libc::SIGTERM);
    let (id, spec) = specs::new(&caller.world, "timed", &promise, specs::shell(WAITS));
    let timeout = Duration::from_millis(100) + caller.random.millis(900);
    let spec = pb::Spec { timeout: Some(specs::span(timeout)), ..spec };
    start(caller, &id, &spec, None).await?;
    let process = caller.ended(&id).await?;
    check(caller, &process, 1, "ran\n");
    Some(())
}

pub(super) async fn killed(caller: &mut Caller) -> Option<()> {
    let promise = Promise::ends(Cause::Killed, libc::SIGTERM);
    let (id, spec) = specs::new(&caller.world, "killed", &promise, specs::shell(WAITS));
    start(caller, &id, &spec, Some(until_output("ready"))).await?;
    let process = caller.kill(&id, None).await?;
    check(caller, &process, 1, "ran\n");
    Some(())
}

pub(super) async fn stubborn(caller: &mut Caller) -> Option<()> {
    let promise = Promise::ends(Cause::Killed, libc::SIGKILL);
    let (id, spec) = specs::new(&caller.world, "stubborn", &promise, specs::shell(IGNORES));
    start(caller, &id, &spec, Some(until_output("ready"))).await?;
    let process = caller.kill(&id, Some(GRACE)).await?;
    check(caller, &process, 1, "ran\n");
    Some(())
}

pub(super) async fn deleted(caller: &mut Caller) -> Option<()> {
    let promise = Promise::ends(Cause::Killed, libc::SIGKILL);
    let (id, spec) = specs::new(&caller.world, "deleted", &promise, specs::shell(WAITS));
    start(caller, &id, &spec, Some(until_output("ready"))).await?;
    caller.delete(&id, true).await
}

/// Lives until the shutdown.
pub(super) async fn idle(mut caller: Caller) {
    let promise = Promise::ends(Cause::Shutdown, libc::SIGTERM);
    let (id, spec) = specs::new(&caller.world, "idle", &promise, specs::shell(WAITS));
    start(&mut caller, &id, &spec, Some(until_output("ready"))).await;
}
