//! Services that are started again by themselves.

use std::time::Duration;

use procyard::grpc::pb;

use super::{check, start};
use crate::calls::Caller;
use crate::promise::Promise;
use crate::specs;
use crate::world::Counts;

/// First pause before a restart, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));

/// Fails until its restarts are used up.
pub(super) async fn failing(caller: &mut Caller) -> Option<()> {
    let restarts = 1 + caller.random.below(3) as u32;
    let promise = Promise { restarts, cause: pb::Cause::GaveUp, ..Promise::exits(3) };
    run(caller, "failing", &promise, "echo ran >>$PROCYARD_ID; exit 3").await
}

/// Fails at first, and succeeds then. It could be started once more.
pub(super) async fn recovering(caller: &mut Caller) -> Option<()> {
    let restarts = 1 + caller.random.below(2) as u32;
    let promise = Promise { restarts, ..Promise::exits(0) };
    let line =
        format!("echo ran >>$PROCYARD_ID; [ $(wc -l <$PROCYARD_ID) -gt {restarts} ] || kill -9 $$");
    run(caller, "recovering", &promise, &line).await
}

async fn run(caller: &mut Caller, role: &'static str, promise: &Promise, line: &str) -> Option<()> {
    let (id, spec) = specs::new(&caller.world, role, promise, specs::shell(line));
    let allowed = if role == "failing" { promise.restarts } else { promise.restarts + 1 };
    let restart = pb::Restart {
        policy: pb::restart::Policy::OnFailure.into(),
        max_restarts: allowed,
        backoff_min: Some(specs::span(BACKOFF.0)),
        backoff_max: Some(specs::span(BACKOFF.1)),
        give_up: None,
    };
    let (mode, service) = (pb::Mode::Service.into(), id.clone());
    let spec = pb::Spec { mode, service, restart: Some(restart), ..spec };
    start(caller, &id, &spec, None).await?;
    let process = caller.ended(&id).await?;
    Counts::add(&caller.world.counts.starts, process.restarts.into());
    let executed = "ran\n".repeat(promise.restarts as usize + 1);
    check(caller, &process, 1, &executed);
    Some(())
}
