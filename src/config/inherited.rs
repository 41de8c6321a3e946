//! Listening sockets that the supervisor was started with, as systemd passes them.
//!
//! Owns which descriptors those are, and that they are what they should be. What is passed belongs
//! to whoever passed it: its file is not made here, nor removed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{SocketAddrAny, SocketAddrUnix, SocketType};

use super::Listen;

/// The first descriptor that is passed.
const FIRST: RawFd = 3;
/// Most that are taken. Nobody has so many; a number that is nonsense would take descriptors that
/// are something else.
const MOST: RawFd = 64;

/// What systemd tells the process that it starts, and only that one: whoever else finds it would
/// take descriptors for sockets that are none, or speak in the supervisor's name.
pub const VARIABLES: [&str; 7] = [
    "LISTEN_PID",
    "LISTEN_PIDFDID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// Takes the sockets that were passed to this process, and tells where they are. To be called once,
/// and first: nothing else knows a descriptor above the standard ones yet.
pub fn take() -> Result<(Vec<OwnedFd>, Vec<Listen>), String> {
    let told = |name| std::env::var_os(name);
    let count = count(told("LISTEN_PID"), told("LISTEN_FDS"), std::process::id())?;
    let all: Result<Vec<_>, _> = (FIRST..FIRST + count).map(take_one).collect();
    Ok(all?.into_iter().unzip())
}

/// How many were passed to the process with this pid.
fn count(pid: Option<OsString>, fds: Option<OsString>, own: u32) -> Result<RawFd, String> {
    let number = |text: &OsStr| text.to_str().and_then(|text| text.parse::<u32>().ok());
    // Another's: it was inherited by way of somebody who did not take it away.
    let (Some(_), Some(fds)) = (pid.as_deref().and_then(number).filter(|pid| *pid == own), fds)
    else {
        return Ok(0);
    };
    let count = number(&fds).and_then(|count| RawFd::try_from(count).ok());
    let count = count.filter(|count| *count <= MOST);
    count.ok_or_else(|| format!("LISTEN_FDS={}: a number up to {MOST} is needed", fds.display()))
}

fn take_one(fd: RawFd) -> Result<(OwnedFd, Listen), String> {
    // SAFETY: only asks whether the descriptor is open, and keeps it from children.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(format!("LISTEN_FDS: descriptor {fd} is not open"));
    }
    // SAFETY: open, and nothing else in this process knows it yet.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let place = place(socket.as_fd())?;
    Ok((socket, place))
}

/// Where a socket listens.
fn place(socket: BorrowedFd<'_>) -> Result<Listen, String> {
    let is_stream = socket_type(socket).is_ok_and(|kind| kind == SocketType::STREAM);
    let listens = is_stream && socket_acceptconn(socket).is_ok_and(|listens| listens);
    let address = rustix::net::getsockname(socket).map_err(io::Error::from);
    let place = address.ok().filter(|_| listens).and_then(listen);
    let problem = "is no socket that listens for streams, of Unix or of TCP";
    place.ok_or_else(|| format!("LISTEN_FDS: descriptor {} {problem}", socket.as_raw_fd()))
}

/// An address as it is written.
fn listen(address: SocketAddrAny) -> Option<Listen> {
    if let Ok(address) = SocketAddr::try_from(address.clone()) {
        return Some(Listen::Tcp(address));
    }
    let address = SocketAddrUnix::try_from(address).ok()?;
    let path =
        address.path_bytes().map(|path| Listen::Unix(Path::new(OsStr::from_bytes(path)).into()));
    let name = || address.abstract_name().map(|name| String::from_utf8_lossy(name).into_owned());
    path.or_else(|| name().map(Listen::Abstract))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixListener, UnixStream};

    use super::*;

    #[test]
    fn what_is_passed_to_another_is_not_taken_and_nonsense_is_refused() {
        let counted = |pid: Option<&str>, fds: Option<&str>| {
            count(pid.map(Into::into), fds.map(Into::into), 7)
        };
        assert_eq!(counted(Some("7"), Some("2")), Ok(2));
        assert_eq!(counted(Some("7"), Some("0")), Ok(0));
        for (pid, fds) in [(None, None), (None, Some("1")), (Some("7"), None)] {
            assert_eq!(counted(pid, fds), Ok(0));
        }
        for pid in ["8", "", "x"] {
            assert_eq!(counted(Some(pid), Some("1")), Ok(0));
        }
        for fds in ["", "x", "-1", "65", "99999999999"] {
            assert!(counted(Some("7"), Some(fds)).unwrap_err().contains("LISTEN_FDS="), "{fds}");
        }
    }

    #[test]
    fn a_socket_tells_where_it_listens_and_all_else_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let unix = UnixListener::bind(&path).unwrap();
        assert_eq!(place(unix.as_fd()), Ok(Listen::Unix(path)));
        let name = format!("procyard-{}", std::process::id());
        let unnamed = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name).unwrap());
        assert_eq!(place(unnamed.unwrap().as_fd()), Ok(Listen::Abstract(name)));
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"] {
            // There may be no IPv6 here.
            let Ok(tcp) = TcpListener::bind(address) else { continue };
            assert_eq!(place(tcp.as_fd()), Ok(Listen::Tcp(tcp.local_addr().unwrap())));
        }
        let refused = |fd: BorrowedFd<'_>| place(fd).unwrap_err().contains("listens for streams");
        assert!(refused(UnixDatagram::unbound().unwrap().as_fd()));
        assert!(refused(UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()));
        assert!(refused(UnixStream::pair().unwrap().0.as_fd()));
        assert!(refused(std::fs::File::open("/").unwrap().as_fd()));
    }
}
