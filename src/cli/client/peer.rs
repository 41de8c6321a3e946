//! The process that listens at the other end of a Unix socket, and the users a client trusts.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use rustix::process::getuid;

/// The process that called listen(2), as the kernel recorded it.
pub(in crate::cli) struct Peer {
    /// Its pid; none if it is in a PID namespace that cannot be seen from here.
    pub(in crate::cli) pid: Option<u32>,
    pub(in crate::cli) uid: u32,
}

impl Peer {
    /// The peer of a connection.
    // Not by rustix: its pid is never 0, the kernel's is where it cannot be seen.
    pub(in crate::cli) fn of(stream: &UnixStream) -> io::Result<Peer> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut size = size_of_val(&found) as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let value = (&raw mut found).cast();
        // SAFETY: the kernel writes at most `size` bytes to `found`, which has that many and is
        // valid for all of their values.
        if unsafe { libc::getsockopt(stream.as_raw_fd(), level, option, value, &raw mut size) } != 0
        {
            return Err(io::Error::last_os_error());
        }
        let pid = u32::try_from(found.pid).ok().filter(|pid| *pid != 0);
        Ok(Peer { pid, uid: found.uid })
    }
}

/// Refuses a server unless root, this user or `server_uid` runs it.
pub(super) fn check_uid(uid: u32, server_uid: Option<u32>) -> io::Result<()> {
    if uid == 0 || uid == getuid().as_raw() || Some(uid) == server_uid {
        return Ok(());
    }
    let cause = format!(
        "cannot trust the server: it is run by uid {uid}; if that is right, pass --server-uid {uid}"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, cause))
}
