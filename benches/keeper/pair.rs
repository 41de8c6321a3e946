//! `procyard serve`: a keeper and the server that it starts, stopped when dropped.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::Result;

pub(crate) struct Pair {
    child: Child,
    pub(crate) server: u32,
    /// Where its socket is.
    _directory: TempDir,
}

impl Pair {
    /// Starts both and waits until the server says that it serves.
    pub(crate) fn start() -> Result<Pair> {
        let directory = tempfile::tempdir()?;
        let listen = format!("unix://{}", directory.path().join("socket").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_procyard"));
        command.args(["serve", "--listen", &listen]).env("RUST_LOG", "info");
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let log = BufReader::new(child.stderr.take().ok_or("no stderr")?);
        let mut pair = Pair { child, server: 0, _directory: directory };
        for line in log.lines() {
            let line = line?;
            if let Some((_, pid)) = line.split_once("server started pid=") {
                pair.server = pid.trim().parse()?;
            } else if line.contains("serving") {
                return Ok(pair);
            }
        }
        Err("the server did not come".into())
    }

    pub(crate) fn keeper(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: signals our own child, which was not waited for.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGTERM) };
        let _ = self.child.wait();
    }
}
