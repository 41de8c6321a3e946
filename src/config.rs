//! Where the service listens: addresses, and the sockets that come of them.
//!
//! Owns reading addresses and opening them safely.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// `unix:///path`
    Unix(PathBuf),
    /// `unix-abstract:name`
    Abstract(String),
    /// `tcp://127.0.0.1:7450`; loopback only.
    Tcp(SocketAddr),
}

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadListen {
    /// It has another form.
    #[error("use unix:///path, unix-abstract:name or tcp://address:port")]
    Form,
    /// The path does not begin with a slash.
    #[error("the path of a Unix socket begins with a slash: unix:///path")]
    Relative,
    /// It is not an IP address and a port.
    #[error("an IP address and a port are needed, as in tcp://127.0.0.1:7450")]
    Address,
    /// It is reached from elsewhere.
    #[error("without credentials procyard listens on loopback only, as in tcp://127.0.0.1:7450")]
    NotLoopback,
}

impl FromStr for Listen {
    type Err = BadListen;

    fn from_str(address: &str) -> Result<Listen, BadListen> {
        if let Some(path) = address.strip_prefix("unix://") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Listen::Unix(path))
            } else {
                Err(BadListen::Relative)
            };
        }
        if let Some(name) = address.strip_prefix("unix-abstract:").filter(|name| !name.is_empty()) {
            return Ok(Listen::Abstract(name.into()));
        }
        let address = address.strip_prefix("tcp://").ok_or(BadListen::Form)?;
        let address: SocketAddr = address.parse().map_err(|_| BadListen::Address)?;
        if address.ip().is_loopback() {
            Ok(Listen::Tcp(address))
        } else {
            Err(BadListen::NotLoopback)
        }
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Unix(path) => write!(f, "unix://{}", path.display()),
            Listen::Abstract(name) => write!(f, "unix-abstract:{name}"),
            Listen::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

impl Listen {
    /// The usual place: `$XDG_RUNTIME_DIR/procyard.sock`; root's is `/run/procyard.sock`.
    pub fn usual() -> Listen {
        let uid = rustix::process::getuid();
        let directory = match std::env::var_os("XDG_RUNTIME_DIR") {
            _ if uid.is_root() => "/run".into(),
            Some(directory) if Path::new(&directory).is_absolute() => PathBuf::from(directory),
            _ => std::env::temp_dir().join(format!("procyard-{}", uid.as_raw())),
        };
        Listen::Unix(directory.join("procyard.sock"))
    }

    /// Opens the socket. Its file, if it has one, goes when the second value does.
    pub fn open(&self) -> io::Result<(OwnedFd, Option<SocketFile>)> {
        match self {
            Listen::Unix(path) => listen_at(path).map(|(socket, file)| (socket, Some(file))),
            Listen::Abstract(name) => {
                let address = UnixAddr::from_abstract_name(name)?;
                Ok((UnixListener::bind_addr(&address)?.into(), None))
            }
            Listen::Tcp(address) => Ok((TcpListener::bind(address)?.into(), None)),
        }
    }
}

/// The file of a Unix socket, removed when dropped, unless another has taken its place.
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn identity(path: &Path) -> io::Result<(u64, u64)> {
        fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if SocketFile::identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A socket that only its owner can reach, in a directory that is made if it is missing. A stale
/// socket is replaced; one that answers is another instance's.
pub fn listen_at(path: &Path) -> io::Result<(OwnedFd, SocketFile)> {
    let refuse = |kind, what: &str| Err(io::Error::new(kind, what));
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let owner = fs::metadata(directory)?.uid();
        if owner != 0 && owner != rustix::process::getuid().as_raw() {
            return refuse(io::ErrorKind::PermissionDenied, "the directory is another user's");
        }
    }
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return refuse(io::ErrorKind::AlreadyExists, "exists and is no socket");
        }
        Ok(_) if is_stale(path)? => fs::remove_file(path)?,
        Ok(_) => return refuse(io::ErrorKind::AddrInUse, "another instance listens there"),
        Err(_) => {}
    }
    // Made with the right permissions, not given them afterwards: no moment when others get in.
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(mask);
    let listener = listener?;
    let file = SocketFile { path: path.into(), identity: SocketFile::identity(path)? };
    Ok((listener.into(), file))
}

/// Whether nobody listens on a socket any more. Only a refused connection shows it: a full
/// backlog is someone's.
fn is_stale(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => Ok(true),
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_as_it_is_written() {
        for address in
            ["unix:///run/p.sock", "unix-abstract:p", "tcp://127.0.0.1:7450", "tcp://[::1]:1"]
        {
            assert_eq!(address.parse::<Listen>().unwrap().to_string(), address);
        }
    }

    #[test]
    fn a_bad_address_is_refused_with_the_reason() {
        let reason = |address: &str| address.parse::<Listen>().unwrap_err();
        assert_eq!(reason("http://x"), BadListen::Form);
        assert_eq!(reason("unix-abstract:"), BadListen::Form);
        assert_eq!(reason("unix://p.sock"), BadListen::Relative);
        assert_eq!(reason("tcp://localhost"), BadListen::Address);
        assert_eq!(reason("tcp://0.0.0.0:7450"), BadListen::NotLoopback);
    }
}
