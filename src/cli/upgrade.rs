//! `procyard upgrade`: the server is replaced by the version that is now on disk.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::local::{Keeper, Place};
use super::print;
use super::trouble::Trouble;
use crate::keeper::answer_path;

/// How long the keeper may take to tell: the new server has 10 s to say who it is and 10 s to
/// serve, and the old one takes a moment to end.
const PATIENCE: Duration = Duration::from_secs(40);
/// How often is looked meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// Replaces the server of a running `serve` by the version that is now on disk. Processes run on.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard upgrade
  procyard upgrade --state-dir /var/lib/procyard")]
pub(super) struct Upgrade {
    #[command(flatten)]
    place: Place,
}

impl Upgrade {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let state_dir = self.place.state_dir();
        let keeper = Keeper::find(&state_dir)?;
        let answer = Answer::new(&state_dir)?;
        keeper.signal(Signal::HUP)?;
        let line = answer.wait(|| keeper.ends_within(Duration::ZERO).is_ok_and(|ended| !ended))?;
        if line.starts_with("upgraded") {
            print::line(line).map_err(Trouble::from)?;
            return Ok(());
        }
        Err(line.into())
    }
}

/// The file that the keeper answers in, removed when dropped.
struct Answer(PathBuf);

impl Answer {
    fn new(state_dir: &Path) -> io::Result<Answer> {
        let path = answer_path(state_dir, std::process::id());
        // One of the same name was left by someone who was killed.
        let _ = fs::remove_file(&path);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Answer(path))
    }

    /// Waits for the line, as long as the keeper lives.
    fn wait(&self, lives: impl Fn() -> bool) -> Result<String, Box<dyn Error>> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            // In this order: one that has ended may have answered before.
            let alive = lives();
            if let Some(line) = fs::read_to_string(&self.0)?.strip_suffix('\n') {
                return Ok(line.to_owned());
            }
            if !alive {
                return Err("the keeper has ended".into());
            }
            std::thread::sleep(LOOK);
        }
        Err("the keeper did not say what came of it; its log does".into())
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
