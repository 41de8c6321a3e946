//! Signs of life between server and keeper, and what health says of them.
//!
//! The only one that changes health. A keeper that answers no beat can start nothing and capture
//! nothing: health says so until it answers again.
//!
//! Everything that is served runs in one thread, so a server that hangs does not beat. A server that is busy
//! is not one that hangs: the task here gets its turn after all others that are ready to run, which may be
//! hundreds of thousands. So each turn of a connection's or call's task and of the supervisor ends with
//! [`Heartbeat::beat_if_overdue`](crate::keeper_client::Heartbeat::beat_if_overdue), which sends a beat if
//! the task here is late. Only a thread that is stuck in one turn, or stopped, stays silent.

use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};

use super::services::Health;
use crate::keeper_client::{Keeper, KeeperError};
use crate::supervisor::Stage;

/// How often the server gives a sign of life. The keeper replaces one that misses five.
const BEAT: Duration = Duration::from_secs(2);
/// How long the keeper may take to answer one. It answers within milliseconds unless the machine
/// is in trouble.
const ANSWER: Duration = Duration::from_secs(5);

/// Turns of all tasks that an answer may take once it has come: the connection sends the request, reads the
/// answer and hands it over. One to spare.
const ANSWER_TURNS: usize = 4;

/// Says that the server serves, then beats, until the supervisor stops: then health turns.
pub(super) async fn run(keeper: Keeper, health: Health, mut stage: watch::Receiver<Stage>) {
    tokio::select! {
        biased;
        _ = stage.wait_for(|stage| *stage >= Stage::Stopping) => {}
        () = beat(&keeper, &health) => {}
    }
    health.set_not_serving().await;
}

/// Beats as long as the keeper is there. Never ends: others notice when it is gone.
async fn beat(keeper: &Keeper, health: &Health) {
    let mut next = Instant::now();
    let mut alive = answered(keeper.serving(), health).await.is_ok();
    while alive {
        next = Instant::now().max(next + BEAT);
        sleep_until(next).await;
        alive = answered(keeper.beat(), health).await.is_ok();
    }
    std::future::pending().await
}

/// Waits for an answer. While it is late, health says that nobody should come here.
async fn answered(
    answer: impl Future<Output = Result<(), KeeperError>>,
    health: &Health,
) -> Result<(), KeeperError> {
    let mut answer = pin!(answer);
    if let Ok(answered) = timeout(ANSWER, &mut answer).await {
        return answered;
    }
    // A busy server may not have read it yet.
    for _ in 0..ANSWER_TURNS {
        yield_now().await;
        if let Some(answered) = answer.as_mut().now_or_never() {
            return answered;
        }
    }
    tracing::error!("the keeper does not answer");
    health.set_not_serving().await;
    answer.await?;
    tracing::info!("the keeper answers again");
    health.set_serving().await;
    Ok(())
}
