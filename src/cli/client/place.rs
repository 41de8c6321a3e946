//! The address of a service, as a client writes it.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::peer::check_uid;
use super::{CONNECT_TIMEOUT, Peer};
use crate::config::{BadListen, Listen};

/// Where a service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Place {
    /// `unix:///path`
    Unix(PathBuf),
    /// `unix-abstract:name`
    Abstract(String),
    /// `tcp://host:port`; other than what is listened on, a host may have a name.
    Tcp(String),
}

impl Place {
    /// Where `serve` listens unless it is told otherwise.
    pub(in crate::cli) fn usual() -> Place {
        Listen::usual().into()
    }

    /// Whether it is on this machine, and may be told what only means something here.
    pub(in crate::cli) fn is_local(&self) -> bool {
        !matches!(self, Place::Tcp(_))
    }

    /// Whether it is a TCP address of this machine.
    pub(in crate::cli) fn is_loopback(&self) -> bool {
        let Place::Tcp(address) = self else { return false };
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let host = host.trim_matches(['[', ']']);
        host == "localhost" || host.parse().is_ok_and(|host: IpAddr| host.is_loopback())
    }

    /// Whether what is sent there may leave this machine.
    pub(in crate::cli) fn is_far(&self) -> bool {
        !self.is_local() && !self.is_loopback()
    }

    /// Connects to a Unix socket of a server that root, this user or `server_uid` runs.
    pub(in crate::cli) fn open(&self, server_uid: Option<u32>) -> io::Result<UnixStream> {
        let stream = match self {
            Place::Unix(path) => {
                Listen::Unix(path.clone()).check_usual_socket()?;
                connect(&SocketAddrUnix::new(path)?)?
            }
            Place::Abstract(name) => connect(&SocketAddrUnix::new_abstract_name(name.as_bytes())?)?,
            Place::Tcp(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        // The credentials of the process that called listen(2): no path can be swapped for them.
        check_uid(Peer::of(&stream)?.uid, server_uid)?;
        Ok(stream)
    }
}

/// Connects within a bounded time: a full backlog blocks.
fn connect(address: &SocketAddrUnix) -> io::Result<UnixStream> {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_TIMEOUT))?;
    match rustix::net::connect(&socket, address) {
        Err(Errno::AGAIN) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, "it accepts no connections"))
        }
        connected => Ok(connected.map(|()| socket.into())?),
    }
}

impl From<Listen> for Place {
    fn from(listen: Listen) -> Place {
        match listen {
            Listen::Unix(path) => Place::Unix(path),
            Listen::Abstract(name) => Place::Abstract(name),
            Listen::Tcp(address) => Place::Tcp(address.to_string()),
        }
    }
}

/// Why it is no address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(in crate::cli) enum BadPlace {
    /// What a server would say of it, too.
    #[error(transparent)]
    Form(#[from] BadListen),
    /// The host or the port is missing.
    #[error("a host and a port are needed, as in tcp://localhost:7450")]
    Port,
}

impl FromStr for Place {
    type Err = BadPlace;

    fn from_str(address: &str) -> Result<Place, BadPlace> {
        if address.starts_with('/') {
            return Ok(Place::Unix(address.into()));
        }
        let Some(address) = address.strip_prefix("tcp://") else {
            return Ok(address.parse::<Listen>()?.into());
        };
        let (host, port) = address.rsplit_once(':').ok_or(BadPlace::Port)?;
        match !host.is_empty() && port.parse::<u16>().is_ok() {
            true => Ok(Place::Tcp(address.to_owned())),
            false => Err(BadPlace::Port),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Unix(path) => write!(f, "unix://{}", path.display()),
            Place::Abstract(name) => write!(f, "unix-abstract:{name}"),
            Place::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for address in ["unix:///a/b", "unix-abstract:a", "tcp://host:1", "tcp://[::1]:7450"] {
            assert_eq!(address.parse::<Place>().unwrap().to_string(), address);
        }
        for bad in ["", "host:1", "tcp://host", "tcp://:1", "tcp://host:x", "unix://a"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
        assert_eq!("/a/b".parse(), "unix:///a/b".parse::<Place>());
    }

    #[test]
    fn loopback_is_known_by_name_and_by_number() {
        let is_loopback = |address: &str| address.parse::<Place>().unwrap().is_loopback();
        assert!(is_loopback("tcp://localhost:1") && is_loopback("tcp://127.0.0.2:1"));
        assert!(is_loopback("tcp://[::1]:1"));
        assert!(!is_loopback("tcp://10.0.0.1:1") && !is_loopback("unix:///localhost:1"));
        let is_far = |address: &str| address.parse::<Place>().unwrap().is_far();
        assert!(is_far("tcp://10.0.0.1:1") && is_far("tcp://localhost.example:1"));
        assert!(!is_far("tcp://[::1]:1") && !is_far("unix:///a") && !is_far("unix-abstract:a"));
    }
}
