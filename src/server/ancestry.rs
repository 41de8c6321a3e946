//! Tells whether the client on a Unix socket is a descendant of the keeper.
//!
//! Owns the walk from the process that connected up to the keeper. The keeper is a subreaper: an
//! orphan below it becomes its child, however often it forked and whatever session it began, so the
//! chain of parents of a descendant ends at the keeper. What cannot be found out counts as a
//! descendant: `--grant-children` takes rights away, and an error must not give them back.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::UnixStream;

/// Longest chain of parents that is followed. A client that has more counts as a descendant: each
/// step costs two reads of `/proc` on the server's only thread.
const MAX_ANCESTORS: usize = 64;

/// `SO_PEERPIDFD` of Linux 6.5, which `libc` does not have.
const SO_PEERPIDFD: libc::c_int = 77;

/// The keeper, as an ancestor of clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ancestry {
    keeper: i32,
    /// `/proc` shows the server below the keeper, so it shows others where they are, too.
    has_proc: bool,
}

impl Ancestry {
    /// The ancestry of those below the keeper with this pid.
    pub(super) fn below(keeper: u32) -> Ancestry {
        let keeper = keeper.cast_signed();
        let has_proc = parent_of(std::process::id().cast_signed()) == Some(keeper);
        if !has_proc {
            tracing::warn!(
                "cannot read /proc: every client on a Unix socket counts as a child process"
            );
        }
        Ancestry { keeper, has_proc }
    }

    /// Whether the process that connected is the keeper or below it, or may be.
    pub(super) fn includes(self, client: &UnixStream) -> bool {
        let Ok(Some(pid)) = client.peer_cred().map(|peer| peer.pid()) else { return true };
        if pid == 0 {
            // A process of another PID namespace that is not below this one, such as another
            // container of the pod. No descendant gets there: a process can only enter namespaces
            // below its own. The kernel tells the number of a process that has ended, too.
            return false;
        }
        let pidfd = match peer_pidfd(client) {
            Ok(pidfd) => Some(pidfd),
            // Before Linux 6.5. The pid may be that of another process by now, if the one that
            // connected has ended before it was accepted.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => None,
            Err(_) => return true,
        };
        let is_below = !self.has_proc || self.is_below(pid).unwrap_or(true);
        // While it lives its pid is its own, so all that was read was about it.
        is_below || pidfd.is_some_and(|pidfd| has_ended(&pidfd))
    }

    /// Whether the chain of parents leads to the keeper; none: that cannot be found out.
    fn is_below(self, pid: i32) -> Option<bool> {
        let (mut child, mut parent) = (pid, parent_of(pid)?);
        for _ in 0..MAX_ANCESTORS {
            if [child, parent].contains(&self.keeper) {
                return Some(true);
            }
            if parent == 0 {
                return Some(false);
            }
            let grandparent = parent_of(parent);
            // A parent that ended meanwhile may have left its pid to a process from elsewhere. Its
            // child has another parent since, before the pid was free.
            let parent_now = parent_of(child)?;
            if parent_now == parent {
                (child, parent) = (parent, grandparent?);
            } else {
                parent = parent_now;
            }
        }
        None
    }
}

/// The parent of a process; 0 for one that has none in this PID namespace.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The command stands in parentheses and may have some itself.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

/// A descriptor of the process that connected.
fn peer_pidfd(client: &UnixStream) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut size = size_of_val(&pidfd) as libc::socklen_t;
    // SAFETY: the kernel writes one int, and its size.
    let answer = unsafe {
        libc::getsockopt(
            client.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut size,
        )
    };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// Whether a process has ended, or that cannot be found out.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)) != Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn client_is_below_its_ancestors_and_no_other_process() {
        let (client, _server) = UnixStream::pair().unwrap();
        let (own, parent) = (std::process::id(), std::os::unix::process::parent_id());
        for ancestor in [own, parent] {
            let ancestry = Ancestry { keeper: ancestor.cast_signed(), has_proc: true };
            assert!(ancestry.includes(&client), "{ancestor}");
        }
        let mut stranger = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let ancestry = Ancestry { keeper: stranger.id().cast_signed(), has_proc: true };
        assert!(!ancestry.includes(&client));
        assert!(Ancestry { has_proc: false, ..ancestry }.includes(&client));
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    /// Names the socket to which the test below connects when the one after it runs it as a process.
    const CONNECT_TO: &str = "PROCYARD_TEST_CONNECT_TO";

    #[test]
    fn connects_where_another_test_says() {
        if let Some(path) = std::env::var_os(CONNECT_TO) {
            std::os::unix::net::UnixStream::connect(path).unwrap();
        }
    }

    #[tokio::test]
    async fn client_that_has_ended_counts_as_a_descendant() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let test = "server::ancestry::tests::connects_where_another_test_says";
        let mut connecting = std::process::Command::new(std::env::current_exe().unwrap());
        let connected = connecting.args(["--exact", test]).env(CONNECT_TO, &path).output().unwrap();
        assert!(connected.status.success(), "{connected:?}");
        let (client, _) = listener.accept().await.unwrap();
        if peer_pidfd(&client).is_err_and(|error| error.raw_os_error() == Some(libc::ENOPROTOOPT)) {
            return eprintln!("skipped: the kernel has no SO_PEERPIDFD");
        }
        let ancestry = Ancestry { keeper: i32::MAX, has_proc: true };
        assert!(ancestry.includes(&client));
    }

    #[test]
    fn process_that_is_not_there_cannot_be_placed() {
        let ancestry = Ancestry { keeper: i32::MAX, has_proc: true };
        assert_eq!(ancestry.is_below(i32::MAX - 1), None);
        assert_eq!(ancestry.is_below(1), Some(false));
    }
}
