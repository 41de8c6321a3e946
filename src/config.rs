//! Where the service listens, and where it keeps its state by default.
//!
//! Owns reading addresses and opening them safely.

pub mod inherited;
mod runtime_dir;
mod state_dir;

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

pub use state_dir::DefaultStateDir;

/// How long another instance is waited for that looks at the same directory.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// Connections over TCP that the kernel holds until they are accepted, unless it has a lower limit.
const MAX_BACKLOG: i32 = 4096;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// `unix:///path`
    Unix(PathBuf),
    /// `unix-abstract:name`
    Abstract(String),
    /// `tcp://127.0.0.1:7450`
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
        Ok(Listen::Tcp(address.parse().map_err(|_| BadListen::Address)?))
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
    /// The usual place: `$XDG_RUNTIME_DIR/procyard.sock`, without that variable
    /// `~/.procyard/procyard.sock`; root's is `/run/procyard.sock`.
    pub fn usual() -> Listen {
        Listen::Unix(runtime_dir::usual_socket())
    }

    /// Refuses the usual socket if another user may have made it. Other addresses were chosen by
    /// the user and are not looked at.
    pub fn check_usual_socket(&self) -> io::Result<()> {
        match self {
            Listen::Unix(path) if *self == Listen::usual() => runtime_dir::check_socket(path),
            _ => Ok(()),
        }
    }

    /// Whether it is reached from other machines.
    pub fn is_beyond_loopback(&self) -> bool {
        matches!(self, Listen::Tcp(address) if !address.ip().to_canonical().is_loopback())
    }

    /// Opens the socket. Its file, if it has one, is for those within reach.
    pub fn open(&self, reach: Reach) -> io::Result<Opened> {
        let opened = |socket, file, place| Opened { socket, file, place };
        Ok(match self {
            Listen::Unix(path) => {
                let (socket, file) = listen_at(path, reach)?;
                opened(socket, Some(file), self.clone())
            }
            Listen::Abstract(name) => {
                let address = UnixAddr::from_abstract_name(name)?;
                opened(UnixListener::bind_addr(&address)?.into(), None, self.clone())
            }
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                // The standard library asks for 128; the kernel drops what comes beyond it, and the
                // client tries again a second later. Unix sockets have the kernel's maximum.
                rustix::net::listen(&listener, MAX_BACKLOG)?;
                let place = Listen::Tcp(listener.local_addr()?);
                opened(listener.into(), None, place)
            }
        })
    }
}

/// A socket that was opened.
pub struct Opened {
    /// It.
    pub socket: OwnedFd,
    /// Its file, if it has one: goes when this does.
    pub file: Option<SocketFile>,
    /// Where it is: with the port that was chosen, if none was asked for.
    pub place: Listen,
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

/// Who can connect to the file of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Its owner.
    Owner,
    /// Whoever can reach its directory. Who is let in is then decided by who it is.
    Everyone,
}

/// A socket for those within reach, in a directory that is made if it is missing. A stale
/// socket is replaced; one that answers is another instance's.
pub fn listen_at(path: &Path, reach: Reach) -> io::Result<(OwnedFd, SocketFile)> {
    let refuse = |kind, what: &str| Err(io::Error::new(kind, what));
    if SocketAddrUnix::new(path).is_err() {
        let problem = format!("a socket's path has at most {} bytes", runtime_dir::MAX_SOCKET_PATH);
        return refuse(io::ErrorKind::InvalidInput, &problem);
    }
    if let Some(directory) = path.parent() {
        make(directory, reach)?;
        if path == runtime_dir::usual_socket() {
            runtime_dir::check_directory(directory)?;
        }
        let found = fs::metadata(directory)?;
        let owner = found.uid();
        if owner != 0 && owner != rustix::process::getuid().as_raw() {
            return refuse(io::ErrorKind::PermissionDenied, "the directory is another user's");
        }
        let mode = found.mode();
        if runtime_dir::can_others_replace_in(&found) {
            let problem = "others may write to the directory, and could take the socket's place";
            return refuse(io::ErrorKind::PermissionDenied, problem);
        }
        if reach == Reach::Everyone && mode & 0o001 == 0 {
            let directory = directory.display();
            tracing::warn!(
                "other users cannot enter {directory}: use chmod o+x for those that are known"
            );
        }
    }
    // Whoever else finds the same stale socket waits here until this one is in its place.
    let _alone = alone_in(path.parent().unwrap_or(Path::new("/")))?;
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return refuse(io::ErrorKind::AlreadyExists, "exists and is no socket");
        }
        Ok(_) if !is_stale(path)? => {
            return refuse(io::ErrorKind::AddrInUse, "another instance listens there");
        }
        Ok(_) | Err(_) => {}
    }
    // It gets its name when it listens: no client finds a socket that refuses it. What is there
    // already under a name by chance makes the bind fail, and stays.
    let nameless = path.with_file_name(format!(".{}", random_suffix()));
    // Made with the right permissions, not given them afterwards: no moment when others get in.
    let denied = match reach {
        Reach::Owner => 0o177,
        Reach::Everyone => 0o111,
    };
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(denied));
    let listener = UnixListener::bind(&nameless);
    rustix::process::umask(mask);
    let listener = listener?;
    fs::rename(&nameless, path).inspect_err(|_| drop(fs::remove_file(&nameless)))?;
    let file = SocketFile { path: path.into(), identity: SocketFile::identity(path)? };
    Ok((listener.into(), file))
}

/// Makes a directory, and those on the way to it, so that it can be entered by those within reach.
fn make(directory: &Path, reach: Reach) -> io::Result<()> {
    let missing = directory.ancestors().take_while(|directory| !directory.exists());
    let missing: Vec<_> = missing.filter(|path| !path.as_os_str().is_empty()).collect();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    if reach == Reach::Everyone {
        // Whatever the umask says.
        let entered = fs::Permissions::from_mode(0o711);
        missing.into_iter().try_for_each(|path| fs::set_permissions(path, entered.clone()))?;
    }
    Ok(())
}

/// Eight characters at random, for the name of a file that gets its own name when it is complete.
pub(crate) fn random_suffix() -> String {
    // The end of a UUID of this version is random.
    let random = uuid::Uuid::now_v7().as_u128() & u128::from(u32::MAX);
    format!("{random:08x}")
}

/// Keeps other instances out of a directory while something in it is looked at and replaced.
pub(crate) fn alone_in(directory: &Path) -> io::Result<fs::File> {
    let directory = fs::File::open(directory)?;
    for _ in 0..PATIENCE.as_millis() / PAUSE.as_millis() {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "another process holds the directory's lock"))
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
    }

    #[test]
    fn foreign_file_beside_the_socket_survives() {
        let directory = tempfile::tempdir().unwrap();
        let foreign = directory.path().join(format!(".{}", std::process::id()));
        fs::write(&foreign, "mine").unwrap();
        let path = directory.path().join("s");
        let (_socket, _file) = listen_at(&path, Reach::Owner).unwrap();
        assert_eq!(fs::read_to_string(&foreign).unwrap(), "mine");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_directory_that_is_made_can_be_entered_by_those_within_reach() {
        let directory = tempfile::tempdir().unwrap();
        for (reach, name, expected) in [(Reach::Owner, "a", 0o700), (Reach::Everyone, "b", 0o711)] {
            let (outer, inner) =
                (directory.path().join(name), directory.path().join(name).join("c"));
            make(&inner, reach).unwrap();
            for made in [outer, inner] {
                assert_eq!(fs::metadata(made).unwrap().mode() & 0o7777, expected);
            }
        }
        // What was there is left as it is.
        let there = directory.path().join("a");
        make(&there, Reach::Everyone).unwrap();
        assert_eq!(fs::metadata(there).unwrap().mode() & 0o7777, 0o700);
    }

    #[test]
    fn what_is_reached_from_elsewhere_is_known() {
        let far = |address: &str| address.parse::<Listen>().unwrap().is_beyond_loopback();
        for address in ["tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://192.0.2.1:1"] {
            assert!(far(address), "{address}");
        }
        for address in ["tcp://127.1.2.3:1", "tcp://[::1]:1", "tcp://[::ffff:127.0.0.1]:1"] {
            assert!(!far(address), "{address}");
        }
        assert!(!far("unix:///run/p.sock") && !far("unix-abstract:p"));
    }
}
