//! The server: the process that has all the policy.
//!
//! For now it speaks to the keeper, adopts what runs, and ends it when the keeper is told to
//! stop. The listening sockets are held open for the service to come: clients that connect wait
//! in the backlog.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::keeper_client::{Keeper, Report};

/// How long processes may take to end by themselves after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Serves until the keeper says that it is time to stop, or is gone.
pub fn run(link: UnixStream, listeners: Vec<OwnedFd>) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (keeper, mut reports, welcome) = Keeper::connect(link).await?;
        let held = keeper.adopt().await?;
        tracing::info!(
            keeper = welcome.pid,
            kill_domain = ?welcome.kill_domain,
            adopted = held.len(),
            listeners = listeners.len(),
            "serving"
        );
        loop {
            match reports.next().await {
                Some(Report::Shutdown) => return end_all(&keeper).await,
                Some(Report::Exited { key, exit }) => tracing::debug!(key, ?exit, "exited"),
                Some(Report::Drained { .. }) => {}
                None => return Err("the keeper is gone".into()),
            }
        }
    })
}

/// Ends everything that still runs: TERM, and after the grace period KILL, which the keeper also
/// does to whatever is left when this process is gone.
async fn end_all(keeper: &Keeper) -> Result<(), Box<dyn Error>> {
    let mut living = keeper.adopt().await?;
    living.retain(|held| held.exit.is_none());
    for held in &living {
        let _ = keeper.kill_tree(held.key, libc::SIGTERM).await;
    }
    let all_ended = async {
        for held in &mut living {
            let _ = held.output.wait_until(|progress| progress.final_seq.is_some()).await;
        }
    };
    let _ = tokio::time::timeout(GRACE, all_ended).await;
    Ok(())
}
