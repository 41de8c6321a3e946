//! A supervisor that nobody has started by hand: the first command that needs one starts it.
//!
//! Owns how it is cut loose from the terminal, the shell and the directory of whoever was first,
//! and the wait until it can be reached. Which of two that are started at once stays is settled by
//! the lock of the state directory; both who started them reach that one.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::client::Peer;
use super::local::listener::Listeners;
use super::options::{state_dir_here, state_dir_problem};
use crate::config::{Listen, inherited};
use crate::server::credentials::token_file;
use crate::store::StateDir;
use crate::telemetry;

/// How long it may take until it listens. It has little to do before: the disk may be slow, and
/// another that is just ending has its lock for a while.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often is looked meanwhile.
const LOOK: Duration = Duration::from_millis(10);
/// How long a socket may listen before it has its name.
const NAMING_TIMEOUT: Duration = Duration::from_millis(500);
/// As much of the end of a log is read to find its last line.
const LAST_BYTES: u64 = 4096;

/// A supervisor to be started, and where it will be.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// Its program: a procyard.
    pub program: PathBuf,
    /// The Unix socket that it listens on.
    pub socket: PathBuf,
    /// Where its records are, and its log.
    pub state_dir: PathBuf,
}

impl Daemon {
    /// This program, in the usual places.
    pub fn usual() -> Result<Daemon, String> {
        let program = std::env::current_exe().map_err(|error| format!("own file: {error}"))?;
        let Listen::Unix(socket) = Listen::usual() else { return Err("no usual socket".into()) };
        let state_dir = state_dir_here();
        // It will have another directory.
        let absolute = std::path::absolute(&state_dir);
        let state_dir = absolute.map_err(|error| format!("{}: {error}", state_dir.display()))?;
        Ok(Daemon { program, socket, state_dir })
    }

    /// Where it logs.
    pub fn log(&self) -> PathBuf {
        self.state_dir.join(telemetry::file::DEFAULT_NAME)
    }

    /// Starts it and returns when it can be reached, be it another that was faster. The error is
    /// one line, with the reason from its log.
    pub fn start(&self) -> Result<(), String> {
        let because =
            |error: &dyn std::fmt::Display| format!("a supervisor cannot be started: {error}");
        StateDir::prepare(&self.state_dir, &token_file::own_files(&self.state_dir))
            .map_err(|error| because(&state_dir_problem(&self.state_dir, &error)))?;
        if let Some(keeper) = self.keeper_elsewhere() {
            return Err(because(&self.claimed(keeper)));
        }
        let logged = fs::metadata(self.log()).map_or(0, |log| log.len());
        let mut child = self.spawn().map_err(|error| because(&error))?;
        let deadline = Instant::now() + PATIENCE;
        let reached = self.wait(&mut child, deadline).map_err(|error| because(&error))?;
        if reached {
            return Ok(());
        }
        let log = self.log();
        let last = last_line(&log, logged).unwrap_or_default();
        let why =
            last.unwrap_or_else(|| format!("it does not listen on {}", self.socket.display()));
        let why = why.strip_prefix("procyard: ").unwrap_or(&why);
        Err(format!("{}; its log is {}", because(&why), log.display()))
    }

    /// The keeper that has claimed the state directory and listens on other sockets; none also
    /// while a keeper starts or stops.
    fn keeper_elsewhere(&self) -> Option<u32> {
        let keeper = StateDir::keeper(&self.state_dir).ok()??;
        let deadline = Instant::now() + NAMING_TIMEOUT;
        while Instant::now() < deadline {
            let listens = Listeners::of(keeper).is_ok_and(|listeners| !listeners.is_empty());
            if !listens || UnixStream::connect(&self.socket).is_ok() {
                return None;
            }
            std::thread::sleep(LOOK);
        }
        Some(keeper)
    }

    /// Says which keeper has claimed the state directory, and how to reach it.
    fn claimed(&self, keeper: u32) -> String {
        let (state_dir, socket) = (self.state_dir.display(), self.socket.display());
        let is_on_tcp = Listeners::of(keeper).is_ok_and(|listeners| listeners.is_on_tcp);
        let what_to_do = match self.address_of(keeper) {
            Some(path) => format!("set PROCYARD_SERVER to unix://{}", path.display()),
            None if is_on_tcp => "set PROCYARD_SERVER to its address".to_owned(),
            None => format!(
                "if its socket file was removed, `procyard stop --state-dir {state_dir}` ends it and \
                 all that it runs"
            ),
        };
        format!(
            "{state_dir} is used by another procyard (pid {keeper}), which does not listen on \
             {socket}; {what_to_do}"
        )
    }

    /// The Unix socket at which a keeper can be reached, if it has the usual name.
    fn address_of(&self, keeper: u32) -> Option<PathBuf> {
        let name = self.socket.file_name()?;
        let mut sockets = Listeners::of(keeper).ok()?.sockets_named(name);
        sockets.find(|path| {
            let peer = UnixStream::connect(path).and_then(|stream| Peer::of(&stream));
            peer.is_ok_and(|peer| peer.pid == Some(keeper))
        })
    }

    fn spawn(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        let (log, socket) = (self.log(), format!("unix://{}", self.socket.display()));
        command.arg("serve").args(["--listen", &socket]);
        command.arg("--state-dir").arg(&self.state_dir).arg("--log-file").arg(&log);
        // What it says before it has opened its log, it says there, too.
        let said = telemetry::file::open(&log).map_err(|error| {
            let problem = format!("cannot open its log {}: {error}", log.display());
            io::Error::new(error.kind(), problem)
        })?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        command.current_dir(home());
        if std::env::var_os("RUST_LOG").is_none() {
            // Nobody looks at it until something is wrong.
            command.env("RUST_LOG", "warn");
        }
        for name in inherited::VARIABLES {
            command.env_remove(name);
        }
        // A session of its own: no terminal's, whose end or ^C would be told to it. Other
        // descriptors it closes by itself.
        // SAFETY: a system call that touches no memory.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
        command.spawn()
    }

    /// Whether it could be reached in time, or another that is at home there.
    fn wait(&self, child: &mut Child, deadline: Instant) -> io::Result<bool> {
        loop {
            // In this order: one that has ended may have found another that listens.
            let ended = child.try_wait()?.is_some();
            if let Ok(stream) = UnixStream::connect(&self.socket) {
                settle(child, &stream);
                return Ok(true);
            }
            let another = ended && StateDir::keeper(&self.state_dir).is_ok_and(|pid| pid.is_some());
            if ended && !another || Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Ends the one that was started if another listens: it would take the other's place should that be
/// stopped while it waits for the lock.
fn settle(child: &mut Child, reached: &UnixStream) {
    if !Peer::of(reached).is_ok_and(|peer| peer.pid == Some(child.id())) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A directory that will be there, and in nobody's way.
fn home() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    home.filter(|home| home.is_absolute() && home.is_dir()).unwrap_or_else(|| "/".into())
}

/// The last line of a log that was written after it had this size.
fn last_line(log: &Path, size: u64) -> io::Result<Option<String>> {
    let mut file = File::open(log)?;
    let now = file.metadata()?.len();
    // It may have been put aside meanwhile.
    let begin = if now < size { 0 } else { size };
    file.seek(SeekFrom::Start(begin.max(now.saturating_sub(LAST_BYTES))))?;
    let mut text = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().rfind(|line| !line.trim().is_empty()).map(str::to_owned))
}
