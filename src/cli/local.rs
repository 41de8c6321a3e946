//! The supervisor of a state directory, as commands on the same machine reach it: by a signal.
//!
//! Owns being sure whom the signal goes to.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::options::state_dir_here;
use crate::store::StateDir;

/// Which supervisor is meant.
#[derive(clap::Args)]
pub(super) struct Place {
    /// The state directory of that `serve`. The default is the same as there.
    #[arg(long, value_name = "PATH", env = "PROCYARD_STATE_DIR")]
    state_dir: Option<PathBuf>,
}

impl Place {
    /// Its state directory.
    pub(super) fn state_dir(self) -> PathBuf {
        self.state_dir.unwrap_or_else(state_dir_here)
    }
}

/// The keeper of a state directory, whatever becomes of its pid.
pub(super) struct Keeper {
    /// Its pid, for people.
    pub(super) pid: u32,
    pidfd: OwnedFd,
}

impl Keeper {
    /// Who serves with a state directory now.
    pub(super) fn find(state_dir: &Path) -> Result<Keeper, Box<dyn Error>> {
        let nobody = || format!("no procyard serves with {}", state_dir.display());
        let keeper = StateDir::keeper(state_dir)?.ok_or_else(nobody)?;
        let pid = i32::try_from(keeper).ok().and_then(Pid::from_raw).ok_or_else(nobody)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        // The descriptor pins whoever has the pid now; only then is it known to be the keeper.
        if StateDir::keeper(state_dir)? != Some(keeper) {
            return Err(nobody().into());
        }
        Ok(Keeper { pid: keeper, pidfd })
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<(), Box<dyn Error>> {
        let sent = pidfd_send_signal(&self.pidfd, signal);
        sent.map_err(|errno| format!("the procyard with pid {}: {errno}", self.pid).into())
    }

    /// Whether it ends within this time.
    pub(super) fn ends_within(&self, patience: Duration) -> Result<bool, Box<dyn Error>> {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let patience = Timespec::try_from(patience)?;
        Ok(rustix::event::poll(&mut fds, Some(&patience))? > 0)
    }
}
