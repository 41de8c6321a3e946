//! `procyard stop`: the supervisor ends all that runs, and itself.

use std::error::Error;
use std::time::Duration;

use rustix::process::Signal;

use super::local::{Keeper, Place};
use super::print;

/// How long it may take. It gives itself 25 s, and some more if a server is just being replaced.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stops a running `serve`: its processes end first, as their stop policies say.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard stop
  procyard stop --state-dir /var/lib/procyard")]
pub(super) struct Stop {
    #[command(flatten)]
    place: Place,
}

impl Stop {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let state_dir = self.place.state_dir();
        let keeper = Keeper::find(&state_dir)?;
        keeper.signal(Signal::TERM)?;
        let (pid, place) = (keeper.pid, state_dir.display());
        // Who does not read this has still asked for it.
        let say = |line: String| drop(print::line(line));
        say(format!("stopping procyard (pid {pid}, {place}) and all that it runs"));
        if !keeper.ends_within(PATIENCE)? {
            return Err(format!("it has not ended within {PATIENCE:?}; its log tells why").into());
        }
        say("stopped".into());
        Ok(())
    }
}
