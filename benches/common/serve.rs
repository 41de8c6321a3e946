//! `procyard serve`: a keeper and the server that it starts, stopped when dropped.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Result, programs};

/// What a client of HTTP/2 says first: that it is one, and that it has no settings.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

pub(crate) struct Serve {
    child: Child,
    /// Of its socket and its records.
    directory: TempDir,
}

impl Serve {
    /// Starts both and waits until the server serves.
    pub(crate) fn start() -> Result<Serve> {
        Serve::start_with(|_| {})
    }

    /// The same with a command that was changed, such as to have more options.
    pub(crate) fn start_with(change: impl FnOnce(&mut Command)) -> Result<Serve> {
        let directory = tempfile::tempdir()?;
        let listen = format!("unix://{}", directory.path().join("socket").display());
        let mut command = Command::new(programs::procyard());
        command.args(["serve", "--listen", &listen]);
        command.arg("--state-dir").arg(directory.path().join("state"));
        command.env("RUST_LOG", "warn").stdin(Stdio::null());
        change(&mut command);
        let child = command.spawn()?;
        let serve = Serve { child, directory };
        let begin = Instant::now();
        let mut connection = loop {
            match UnixStream::connect(serve.socket()) {
                Ok(connection) => break connection,
                Err(error) if begin.elapsed() > Duration::from_secs(10) => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        // The keeper holds the socket: only an answer says that the server is there.
        connection.write_all(GREETING)?;
        connection.read_exact(&mut [0; 9])?;
        Ok(serve)
    }

    /// Where its socket and its records are.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// The keeper's pid.
    pub(crate) fn keeper(&self) -> u32 {
        self.child.id()
    }

    /// The server's pid: that of the keeper's child which was called so.
    pub(crate) fn server(&self) -> Result<u32> {
        let keeper = self.keeper();
        let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"))?;
        let server = children.split_whitespace().find(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(b"server")
        });
        Ok(server.ok_or("the keeper has no server")?.parse()?)
    }

    /// Ends the server as an accident would. The keeper starts another.
    pub(crate) fn kill_server(&self) -> Result<()> {
        let server = self.server()?.cast_signed();
        // SAFETY: a signal to a child of the keeper, which only now was one.
        match unsafe { libc::kill(server, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }

    /// Ends both as a person would, and tells how that went. The directory is gone afterwards.
    pub(crate) fn stop(mut self) -> Result<ExitStatus> {
        self.terminate();
        Ok(self.child.wait()?)
    }

    fn terminate(&self) {
        // SAFETY: signals our own child, which was not waited for.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGTERM) };
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.terminate();
            let _ = self.child.wait();
        }
    }
}
