//! Kills the server at random moments, and measures how long nobody is served then.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use procyard::grpc::pb;

use crate::calls::Caller;
use crate::common::serve::Serve;
use crate::options::Options;
use crate::random::Random;
use crate::world::{Client, Counts, World};

/// No outage may be longer, however slow the machine is.
const LONGEST: Duration = Duration::from_secs(10);
/// Between two looks for a new server.
const LOOK: Duration = Duration::from_millis(1);

/// Kills until the time is over, and leaves a server that serves.
pub(crate) async fn run(world: &Arc<World>, serve: &Serve, options: &Options) {
    let begin = Instant::now();
    let mut random = Random::new(world.seed, "killer", 0);
    let mut caller = Caller::new(world, "prober", 0);
    loop {
        let pause = if random.percent(20) {
            // It has hardly begun to serve.
            random.millis(20)
        } else {
            random.exponential(options.kills_per_second)
        };
        if begin.elapsed() + pause >= options.time {
            tokio::time::sleep(options.time.saturating_sub(begin.elapsed())).await;
            return;
        }
        tokio::time::sleep(pause).await;
        kill(world, serve).await;
        if random.percent(15) {
            // The next one dies before it has read what there is, or in the middle of that.
            tokio::time::sleep(random.millis(40)).await;
            kill(world, serve).await;
        }
        let (killed, time) = (Instant::now(), SystemTime::now());
        served(world, &mut caller, time).await;
        let outage = killed.elapsed();
        let micros = outage.as_micros() as u64;
        world.counts.longest_outage.fetch_max(micros, Ordering::Relaxed);
        if outage > LONGEST {
            world.violation(format!("no answer for {outage:?} after a kill"));
        }
    }
}

/// Kills the server; if there is none just now, the next.
async fn kill(world: &World, serve: &Serve) {
    let begin = Instant::now();
    while let Err(error) = serve.kill_server() {
        if begin.elapsed() > LONGEST {
            return world.violation(format!("no server to kill for {LONGEST:?}: {error}"));
        }
        tokio::time::sleep(LOOK).await;
    }
    Counts::add(&world.counts.kills, 1);
}

/// Waits for an answer of a server that began after that time, on a new connection.
async fn served(world: &World, caller: &mut Caller, killed: SystemTime) {
    loop {
        caller.client = world.own_client();
        let info = |mut client: Client| async move {
            client.get_server_info(pb::GetServerInfoRequest {}).await
        };
        let answer = caller.ask("GetServerInfo", info).await;
        let Some(info) = caller.granted("GetServerInfo", answer) else { return };
        let began = info.start_time.and_then(|time| SystemTime::try_from(time).ok());
        if began.is_some_and(|began| began >= killed) {
            return;
        }
    }
}
