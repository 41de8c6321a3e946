//! `procyard upgrade`: the server is replaced by the version that is now on disk.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::local::Target;
use super::print;
use super::trouble::Trouble;
use crate::keeper::answer_path;

/// How long the keeper may take to tell: the new server has 10 s to say who it is and 10 s to
/// serve, and the old one takes a moment to end.
const PATIENCE: Duration = Duration::from_secs(40);
/// How often is looked meanwhile.
const LOOK: Duration = Duration::from_millis(20);
/// Longest answer, bytes.
const MAX_ANSWER: usize = 4096;

/// Replaces the server that other commands talk to by the version that is now on disk. Processes
/// run on.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard upgrade
  procyard upgrade --state-dir /var/lib/procyard")]
pub(super) struct Upgrade {
    #[command(flatten)]
    target: Target,
}

impl Upgrade {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let keeper = self.target.keeper()?;
        let answer = Answer::new(&keeper.state_dir)?;
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
struct Answer {
    path: PathBuf,
    // Read through this descriptor: another user's state directory may lead the path elsewhere.
    file: File,
}

impl Answer {
    fn new(state_dir: &Path) -> io::Result<Answer> {
        let path = answer_path(state_dir, std::process::id());
        let mut options = OpenOptions::new();
        let made = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        // Another file of this name may be anyone's: it stays. The next command has another pid.
        let file = made.map_err(|error| {
            let problem = format!("cannot make {}: {error}; run it again", path.display());
            io::Error::new(error.kind(), problem)
        })?;
        // The keeper writes to it, and may be another user's.
        let owner = fs::metadata(state_dir)?.uid();
        if owner != file.metadata()?.uid() {
            fchown(&file, Some(owner), None)?;
        }
        Ok(Answer { path, file })
    }

    /// Waits for the line, as long as the keeper lives.
    fn wait(&self, lives: impl Fn() -> bool) -> Result<String, Box<dyn Error>> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            // In this order: one that has ended may have answered before.
            let alive = lives();
            if let Some(line) = self.line()? {
                return Ok(line);
            }
            if !alive {
                return Err("the keeper has ended".into());
            }
            std::thread::sleep(LOOK);
        }
        Err("the keeper did not say what came of it; its log does".into())
    }

    /// The line, once it is whole.
    fn line(&self) -> io::Result<Option<String>> {
        let mut bytes = [0; MAX_ANSWER];
        let size = self.file.read_at(&mut bytes, 0)?;
        let line = bytes[..size].split_inclusive(|byte| *byte == b'\n').next();
        let whole = line.and_then(|line| line.strip_suffix(b"\n"));
        Ok(whole.map(|line| String::from_utf8_lossy(line).into_owned()))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
