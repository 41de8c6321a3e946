//! Reaches the service, and starts one on the usual socket if there is none.

use std::io::{self, IsTerminal};

use crate::cli::client::{Client, Remote};
use crate::cli::daemon::Daemon;
use crate::cli::options::named_state_dir;
use crate::cli::print;
use crate::cli::trouble::Trouble;
use crate::config::DefaultStateDir;
use crate::telemetry::colours_are_welcome;

/// How often a supervisor is started at most: those that were there may be stopped meanwhile, but
/// not one after the other.
const MOST_STARTED: usize = 3;

/// Connects.
pub(super) async fn reach(remote: &Remote) -> Result<Client, Trouble> {
    for _ in 1..MOST_STARTED {
        found(remote).await?;
        match remote.connect().await {
            Err(_) if is_missing(remote) => {}
            connected => return connected,
        }
    }
    found(remote).await?;
    remote.connect().await
}

/// Starts a supervisor if it is for us to do so, and there is none.
pub(super) async fn found(remote: &Remote) -> Result<(), Trouble> {
    if !is_missing(remote) {
        return Ok(());
    }
    let daemon = Daemon::usual().map_err(Trouble::new)?;
    let started = tokio::task::spawn_blocking(move || daemon.start()).await;
    started.map_err(|error| Trouble::new(error.to_string()))?.map_err(Trouble::new)?;
    if io::stderr().is_terminal() {
        let (begin, end) = if colours_are_welcome() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        let place = remote.place();
        let line = format!(
            "{begin}procyard: a supervisor now serves at {place}; `procyard stop` ends it{end}\n"
        );
        let _ = print::to_stderr(line.as_bytes());
        if let Some(line) = temporary_state_dir() {
            print::tell(line);
        }
    }
    Ok(())
}

/// Says where the records are if they are not in the home directory, where they would be kept for
/// longer.
fn temporary_state_dir() -> Option<String> {
    let found = DefaultStateDir::find();
    let home = found.unusable_home.filter(|_| named_state_dir().is_none())?;
    let (home, path) = (home.display(), found.path.display());
    Some(format!(
        "cannot write to the home directory {home}: records are in {path}; set XDG_STATE_HOME to \
         keep them elsewhere"
    ))
}

fn is_missing(remote: &Remote) -> bool {
    if !remote.is_usual() {
        return false;
    }
    let kind = remote.open().err().map(|error| error.kind());
    matches!(kind, Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused))
}
