//! The end of the keeper, seen by its server, which then kills what the keeper left running.
//!
//! The link alone does not tell: a keeper also closes it to a server that it replaces, and then
//! everything must run on. So the server watches the keeper's process.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, getppid, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::keeper::Leftovers;
use crate::process::KeeperId;

/// How long a keeper whose link has closed may take to exit, and its leftovers to be killed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// The process of the keeper that started this server.
pub(super) struct KeeperProcess {
    pidfd: OwnedFd,
    id: Option<KeeperId>,
}

impl KeeperProcess {
    /// The process at the other end of the link; none: it is not the parent of this process, or no
    /// longer.
    pub(super) fn open(link: &UnixStream) -> io::Result<Option<KeeperProcess>> {
        let keeper = socket_peercred(link)?.pid;
        if getppid() != Some(keeper) {
            return Ok(None);
        }
        let pidfd = pidfd_open(keeper, PidfdFlags::empty())?;
        let id = identify(keeper.as_raw_nonzero().get());
        // Asked again: the parent lived when the descriptor was opened, so the pid was its own.
        Ok((getppid() == Some(keeper)).then_some(KeeperProcess { pidfd, id }))
    }

    /// The identity of the keeper; none: the kernel does not tell it here.
    pub(super) fn id(&self) -> Option<KeeperId> {
        self.id.clone()
    }

    /// Kills the leftovers as soon as the keeper exits. This server must have locked the state
    /// directory, and keep it until [`KeeperExit::finish`] returns.
    pub(super) fn kill_leftovers_at_exit(self, leftovers: Leftovers) -> io::Result<KeeperExit> {
        // SAFETY: the descriptor is owned, so it stays open and the same until it is dropped.
        let pidfd = unsafe { AsyncFd::register_with_interest(self.pidfd, Interest::READABLE) }?;
        let (exited, wait_for_exit) = mpsc::channel::<()>();
        let (done, killed) = oneshot::channel();
        // A thread of its own, made in advance: the runtime's blocking threads are few, and all of
        // them may wait for a disk that hangs.
        std::thread::Builder::new().name("leftovers".into()).spawn(move || {
            // An error: the runtime has ended before the keeper.
            if wait_for_exit.recv().is_ok() {
                leftovers.kill();
                let _ = done.send(());
            }
        })?;
        Ok(KeeperExit(tokio::spawn(async move {
            // A pidfd is readable once its process has exited.
            if pidfd.readable().await.is_ok() {
                tracing::error!("the keeper has exited: killing what it left running");
                let _ = exited.send(());
                let _ = killed.await;
            }
        })))
    }
}

fn identify(pid: i32) -> Option<KeeperId> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The command stands in parentheses and may have some itself.
    let (_, fields) = stat.rsplit_once(')')?;
    let start_ticks = fields.split_whitespace().nth(19)?.parse().ok()?;
    Some(KeeperId::new(&boot_id, pid, start_ticks))
}

/// Waits for the keeper to exit, in a task of its own.
pub(super) struct KeeperExit(JoinHandle<()>);

impl KeeperExit {
    /// Waits until the leftovers of a keeper whose link has closed are killed. A keeper that lives
    /// on has left nothing.
    pub(super) async fn finish(self) {
        let _ = tokio::time::timeout(EXIT_TIMEOUT, self.0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_have_different_identities() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(identify(own).is_some() && identify(own) == identify(own));
        assert_ne!(identify(own), identify(1));
    }

    #[test]
    fn link_to_another_process_than_the_parent_is_not_watched() {
        let (link, _other) = UnixStream::pair().unwrap();
        assert!(KeeperProcess::open(&link).unwrap().is_none());
    }
}
