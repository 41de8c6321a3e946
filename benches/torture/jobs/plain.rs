//! Jobs that end by themselves.

use procyard::grpc::pb;

use super::{check, start};
use crate::calls::{Caller, Failure};
use crate::promise::Promise;
use crate::specs;
use crate::world::{Client, Counts};

/// Started, and waited for afterwards; then deleted or left to retention.
pub(super) async fn started(caller: &mut Caller) -> Option<()> {
    let code = caller.random.below(4) as i32;
    let line =
        format!("echo ran >>$PROCYARD_ID; sleep 0.0{}; exit {code}", caller.random.below(10));
    let (id, spec) =
        specs::new(&caller.world, "started", &Promise::exits(code), specs::shell(&line));
    start(caller, &id, &spec, None).await?;
    let process = caller.ended(&id).await?;
    check(caller, &process, 1, "ran\n");
    if caller.random.percent(30) {
        caller.delete(&id, false).await?;
    }
    Some(())
}

/// Started and waited for in one call, with something to say.
pub(super) async fn awaited(caller: &mut Caller) -> Option<()> {
    let number = caller.random.below(1000);
    let line = format!(
        "echo ran >>$PROCYARD_ID; echo '{{\"number\": {number}}}' >$PROCYARD_OUTPUT; echo hi"
    );
    let (id, spec) = specs::new(&caller.world, "awaited", &Promise::exits(0), specs::shell(&line));
    let process = start(caller, &id, &spec, Some(specs::until_exit())).await?;
    check(caller, &process, 1, "ran\n");
    let value = process.output.as_ref().and_then(|output| output.value.as_ref());
    let found = format!("{:?}", value.and_then(|value| value.to_value().ok()));
    if !found.contains(&format!("NumberValue({number}.0)")) {
        caller.world.violation(format!("{id}: expected {number} as its output, found {found}"));
    }
    Some(())
}

/// Run several times under its id, each time once.
pub(super) async fn run_again(caller: &mut Caller) -> Option<()> {
    let runs = 2 + caller.random.below(3) as u32;
    let promise = Promise { runs, ..Promise::exits(0) };
    let line = specs::shell("echo $PROCYARD_RUN >>$PROCYARD_ID");
    let (id, spec) = specs::new(&caller.world, "again", &promise, line);
    start(caller, &id, &spec, None).await?;
    let mut process = caller.ended(&id).await?;
    for run in 2..=runs {
        again(caller, &id, run).await?;
        process = caller.ended(&id).await?;
    }
    let executed: String = (1..=runs).map(|run| format!("{run}\n")).collect();
    check(caller, &process, runs, &executed);
    Some(())
}

/// Runs it once more. A Run that broke is repeated if it was not obeyed, which the record tells.
async fn again(caller: &mut Caller, id: &str, run: u32) -> Option<()> {
    let what = format!("Run of {id}");
    loop {
        let mut client: Client = caller.client.clone();
        let request = pb::RunRequest { id: id.into(), force: true };
        match caller.once(&what, client.run(request)).await {
            Err(Failure::Broken) => caller.pause().await,
            answer => {
                caller.granted(&what, answer)?;
                break;
            }
        }
        let found = caller.get(id).await;
        let found = caller.granted(&format!("Get of {id}"), found)?.run;
        if found == run {
            break;
        }
        if found + 1 != run {
            caller
                .world
                .violation(format!("{id}: expected run {run} or the one before, found {found}"));
            return None;
        }
    }
    Counts::add(&caller.world.counts.starts, 1);
    Some(())
}
