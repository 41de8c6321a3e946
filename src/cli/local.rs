//! The supervisor that `stop` and `upgrade` signal: the one that every other command talks to.
//!
//! Owns finding its keeper, and proving that a signal reaches that process and no other. Where the
//! proof fails, the command is refused.

pub(super) mod listener;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, getuid, pidfd_open, pidfd_send_signal};

use super::client::{Peer, Place, Remote};
use super::options::{named_state_dir, state_dir_here};
use super::trouble::Trouble;
use crate::store::StateDir;
use listener::Listeners;

/// The supervisor to act on.
#[derive(clap::Args)]
pub(super) struct Target {
    /// Act on the supervisor with this state directory instead of the one at the usual socket. If
    /// --server or PROCYARD_SERVER is given, too, both must name the same supervisor.
    #[arg(long, value_name = "PATH")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    remote: Remote,
}

impl Target {
    /// The keeper of the supervisor.
    pub(super) fn keeper(&self) -> Result<Keeper, Trouble> {
        match &self.state_dir {
            Some(state_dir) if !self.remote.is_named() => Keeper::of(state_dir),
            _ => self.keeper_at_address(),
        }
    }

    /// The connection to the supervisor of this keeper; none: its address is not known, or its server
    /// is not trusted.
    pub(super) fn remote(&self, keeper: &Keeper) -> Option<Remote> {
        if self.keeper_at_address().is_ok_and(|found| found.pid == keeper.pid) {
            return Some(self.remote.clone());
        }
        let Place::Unix(usual) = Place::usual() else { return None };
        let sockets = Listeners::of(keeper.pid).ok()?.sockets_named(usual.file_name()?);
        let mut remotes = sockets.map(|path| self.remote.at(Place::Unix(path)));
        remotes.find(|remote| {
            let peer = remote.open().and_then(|stream| Peer::of(&stream));
            peer.is_ok_and(|peer| peer.pid == Some(keeper.pid))
        })
    }

    /// The keeper that serves at the address that other commands connect to.
    fn keeper_at_address(&self) -> Result<Keeper, Trouble> {
        let place = self.remote.place();
        let named = self.state_dir.clone().or_else(named_state_dir);
        let stream = self.connect(&place)?;
        let keeper = match keeper_behind(&stream)? {
            Some(keeper) => keeper,
            None => passed_listener(&place, &stream, named.as_deref())
                .map_err(|trouble| foreign(&place, &stream).unwrap_or(trouble))?,
        };
        match named {
            Some(named) if !is_same_directory(&named, &keeper.state_dir) => {
                Err(self.contradiction(&place, &keeper.state_dir, &named))
            }
            _ => Ok(keeper),
        }
    }

    /// The refusal of a state directory that is not the one of the supervisor at an address.
    fn contradiction(&self, place: &Place, served: &Path, named: &Path) -> Trouble {
        let (served, named) = (served.display(), named.display());
        let what_to_do = match self.state_dir.is_none() && !self.remote.is_named() {
            true => format!(
                "PROCYARD_STATE_DIR names {named}; pass --state-dir {named} to act on it, or unset \
                 PROCYARD_STATE_DIR"
            ),
            false => format!(
                "{named} was named; give only one of --server (or PROCYARD_SERVER) and --state-dir \
                 (or PROCYARD_STATE_DIR)"
            ),
        };
        Trouble::new(format!(
            "cannot choose a supervisor: {place} is served with the state directory {served}, but \
             {what_to_do}"
        ))
    }

    fn connect(&self, place: &Place) -> Result<UnixStream, Trouble> {
        if !place.is_local() {
            return Err(Trouble::new(format!(
                "cannot find the keeper of {place}: the supervisor may run on another machine; there, \
                 give no --server or PROCYARD_SERVER and pass --state-dir PATH"
            )));
        }
        self.remote.open().map_err(|error| {
            let by_directory =
                Keeper::of(&state_dir_here()).ok().filter(|_| !self.remote.is_named());
            let hint = by_directory.map(|keeper| {
                let state_dir = keeper.state_dir.display();
                format!("; to act on the one with pid {}, pass --state-dir {state_dir}", keeper.pid)
            });
            let hint = hint.unwrap_or_default();
            match error.kind() {
                io::ErrorKind::PermissionDenied => Trouble::new(format!("{place}: {error}")),
                _ => Trouble::new(format!("no procyard serves at {place}: {error}{hint}")),
            }
        })
    }
}

/// The keeper that opened the socket at the other end of a connection.
fn keeper_behind(stream: &UnixStream) -> Result<Option<Keeper>, Trouble> {
    match Peer::of(stream)?.pid.and_then(StateDir::claimed_by) {
        Some(state_dir) => Keeper::of(&state_dir).map(Some),
        None => Ok(None),
    }
}

/// The refusal of a supervisor that another user runs; none: this user may signal it.
fn foreign(place: &Place, stream: &UnixStream) -> Option<Trouble> {
    let (own, uid) = (getuid(), Peer::of(stream).ok()?.uid);
    (!own.is_root() && own.as_raw() != uid).then(|| {
        Trouble::new(format!(
            "cannot stop or upgrade {place}: it is run by uid {uid}; only that user or root can"
        ))
    })
}

/// The keeper that was passed its listening socket by a service manager.
fn passed_listener(
    place: &Place,
    stream: &UnixStream,
    named: Option<&Path>,
) -> Result<Keeper, Trouble> {
    let state_dir = named.map_or_else(state_dir_here, Path::to_owned);
    let keeper = Keeper::of(&state_dir)?;
    if listener::is_held_by(keeper.pid, stream)? {
        return Ok(keeper);
    }
    Err(Trouble::new(format!(
        "cannot find the keeper of {place}: the one with the state directory {} does not listen \
         there; name the right one by --state-dir",
        state_dir.display()
    )))
}

fn is_same_directory(one: &Path, other: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    identity(one).is_some() && identity(one) == identity(other)
}

/// A keeper process, pinned: its pid may be reused, this handle never means another process.
pub(super) struct Keeper {
    /// Its pid, for people.
    pub(super) pid: u32,
    pub(super) state_dir: PathBuf,
    pidfd: OwnedFd,
}

impl Keeper {
    /// The keeper that has claimed a state directory.
    fn of(state_dir: &Path) -> Result<Keeper, Trouble> {
        let missing = || Trouble::new(format!("no procyard serves with {}", state_dir.display()));
        let claimed =
            || StateDir::keeper(state_dir).map_err(|error| Trouble::new(error.to_string()));
        let keeper = claimed()?.ok_or_else(missing)?;
        let pid = i32::try_from(keeper).ok().and_then(Pid::from_raw).ok_or_else(missing)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
        // The descriptor pins the process that has the pid now; the second look proves that this
        // process is the keeper.
        if claimed()? != Some(keeper) {
            return Err(missing());
        }
        Ok(Keeper { pid: keeper, state_dir: state_dir.into(), pidfd })
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<(), Trouble> {
        let sent = pidfd_send_signal(&self.pidfd, signal);
        sent.map_err(|errno| {
            Trouble::new(format!("cannot signal the procyard with pid {}: {errno}", self.pid))
        })
    }

    /// Whether it ends within this time.
    pub(super) fn ends_within(&self, timeout: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        Ok(rustix::event::poll(&mut fds, Some(&timeout))? > 0)
    }
}
