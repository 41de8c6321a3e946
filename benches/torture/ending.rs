//! The end of a run: what is left when everybody has done what was begun, and when procyard is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use procyard::grpc::pb;

use crate::calls::Caller;
use crate::common::serve::Serve;
use crate::specs;
use crate::world::{Client, World};

/// How long what has ended may take until nothing of it is left.
const GONE: Duration = Duration::from_secs(10);

/// Everybody who lives is known to live, and there is nobody else. From here on nothing happens.
pub(crate) async fn before(world: &Arc<World>) {
    let mut caller = Caller::new(world, "ending", 0);
    let list = |mut client: Client| async move {
        let request = pb::ListRequest { live_only: true, page_size: 1000, ..Default::default() };
        client.list(request).await
    };
    let answer = caller.ask("List", list).await;
    let Some(live) = caller.granted("List", answer) else { return };
    let mut known: Vec<u32> = live.processes.iter().map(|process| process.pid).collect();
    known.sort_unstable();
    let begin = Instant::now();
    while marked(world) != known && begin.elapsed() < GONE {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let found = marked(world);
    if found != known {
        world.violation(format!("expected the processes {known:?} to be alive, found {found:?}"));
    }
    let info = |mut client: Client| async move {
        client.get_server_info(pb::GetServerInfoRequest {}).await
    };
    let answer = caller.ask("GetServerInfo", info).await;
    let info = caller.granted("GetServerInfo", answer).unwrap_or_default();
    world.settle(info.counts.unwrap_or_default().latest_event);
}

/// Procyard ends as it should when it is told to, and nothing is left of it.
pub(crate) fn after(world: &World, serve: Serve) {
    let directory = serve.directory().to_owned();
    match serve.stop() {
        Ok(status) if status.success() => {}
        ended => world.violation(format!("procyard ended with {ended:?}")),
    }
    let left = marked(world);
    if !left.is_empty() {
        world.violation(format!("procyard has ended, and the processes {left:?} have not"));
    }
    if directory.exists() {
        world.violation(format!("{} is left", directory.display()));
    }
}

/// The pids of all that was started here and lives, whoever's children they are now.
fn marked(world: &World) -> Vec<u32> {
    let mark = format!("{}={}", specs::MARK, world.directory().display());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut marked: Vec<u32> = pids
        .filter(|pid| {
            // Those who have ended have none.
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        })
        .collect();
    marked.sort_unstable();
    marked
}
