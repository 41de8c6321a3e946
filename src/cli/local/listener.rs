//! Which process holds the listening socket at the other end of a connection, and which ones a
//! process holds.
//!
//! SO_PEERCRED names the process that called listen(2). Where a service manager did, and passed the
//! socket on, the name of the socket and the descriptors of the holder are compared instead.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The flag of a listening socket in `/proc/net/unix`.
const ACCEPTS_CONNECTIONS: u32 = 1 << 16;
/// The state of a listening socket in `/proc/net/tcp`.
const TCP_LISTEN: &str = "0A";

/// Whether a process holds the listening socket of a connection. No, if it cannot be told: several
/// listening sockets may have the same name, when files were replaced.
pub(super) fn is_held_by(pid: u32, stream: &UnixStream) -> io::Result<bool> {
    let peer = stream.peer_addr()?;
    let name = match (peer.as_pathname(), peer.as_abstract_name()) {
        (Some(path), _) => path.as_os_str().as_bytes().to_vec(),
        (None, Some(name)) => [b"@", name].concat(),
        (None, None) => return Ok(false),
    };
    match listening_inodes(&fs::read("/proc/net/unix")?, &name)[..] {
        [inode] => holds_socket(pid, inode),
        _ => Ok(false),
    }
}

/// The listening sockets of a process.
pub(in crate::cli) struct Listeners {
    /// The paths that its Unix sockets were bound to. A file may have been renamed since.
    pub(in crate::cli) paths: Vec<PathBuf>,
    pub(in crate::cli) is_on_tcp: bool,
}

impl Listeners {
    pub(in crate::cli) fn of(pid: u32) -> io::Result<Listeners> {
        let own = socket_inodes(pid)?;
        let unix = fs::read("/proc/net/unix")?;
        let named = unix.split(|byte| *byte == b'\n').skip(1).filter_map(listening);
        let named = named.filter(|(inode, _)| own.contains(inode));
        let paths = named.map(|(_, name)| OsStr::from_bytes(name).into()).collect();
        // A kernel without IPv6 has no table of it.
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
        let mut lines = tables.iter().flatten().flat_map(|table| table.lines());
        let is_on_tcp =
            lines.any(|line| tcp_listening(line).is_some_and(|inode| own.contains(&inode)));
        Ok(Listeners { paths, is_on_tcp })
    }

    /// Where its Unix sockets are if their files have this name: procyard binds each to another name,
    /// and renames it.
    pub(in crate::cli) fn sockets_named(self, name: &OsStr) -> impl Iterator<Item = PathBuf> {
        self.paths.into_iter().map(move |path| path.with_file_name(name))
    }

    pub(in crate::cli) fn is_empty(&self) -> bool {
        self.paths.is_empty() && !self.is_on_tcp
    }
}

/// Inode of a line of `/proc/net/tcp`, if its socket listens.
fn tcp_listening(line: &str) -> Option<u64> {
    let mut columns = line.split_ascii_whitespace().skip(3);
    (columns.next()? == TCP_LISTEN).then(|| columns.nth(5)?.parse().ok())?
}

/// The inodes of all listening sockets with this name.
fn listening_inodes(table: &[u8], name: &[u8]) -> Vec<u64> {
    let lines = table.split(|byte| *byte == b'\n').skip(1);
    lines
        .filter_map(listening)
        .filter(|(_, found)| *found == name)
        .map(|(inode, _)| inode)
        .collect()
}

/// Inode and name of a line, if its socket listens and has a name. Columns: address, references,
/// protocol, flags, type, state, inode, name.
fn listening(line: &[u8]) -> Option<(u64, &[u8])> {
    let mut rest = line;
    let mut column = || {
        rest = rest.trim_ascii_start();
        let (column, after) = rest.split_at(rest.iter().position(|byte| *byte == b' ')?);
        rest = after;
        str::from_utf8(column).ok()
    };
    let flags = u32::from_str_radix((0..4).map(|_| column()).last()??, 16).ok()?;
    let inode = (0..3).map(|_| column()).last()??.parse().ok()?;
    (flags & ACCEPTS_CONNECTIONS != 0).then_some((inode, rest.strip_prefix(b" ")?))
}

/// Whether a process has a socket open.
fn holds_socket(pid: u32, inode: u64) -> io::Result<bool> {
    Ok(socket_inodes(pid)?.contains(&inode))
}

/// The inodes of the sockets that a process has open.
fn socket_inodes(pid: u32) -> io::Result<HashSet<u64>> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let links = descriptors.filter_map(|fd| fs::read_link(fd.path()).ok());
    let inode =
        |link: PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix("]")?.parse().ok();
    Ok(links.filter_map(inode).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_listening_sockets_of_the_name_count() {
        let table = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01  4711 /run/a b.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 12345 /run/a b.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 12346\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 12347 @name\n";
        assert_eq!(listening_inodes(table, b"/run/a b.sock"), [4711]);
        assert_eq!(listening_inodes(table, b"@name"), [12347]);
        assert!(listening_inodes(table, b"").is_empty());
    }

    #[test]
    fn only_listening_tcp_sockets_count() {
        let listens = "   0: 0100007F:1D1A 00000000:0000 0A 00000000:00000000 00:00000000 00000000 \
                       1000        0 4711 1 0000000000000000 100 0 0 10 0";
        assert_eq!(tcp_listening(listens), Some(4711));
        assert_eq!(tcp_listening(&listens.replace(" 0A ", " 01 ")), None);
        assert_eq!(tcp_listening("  sl  local_address rem_address   st"), None);
    }

    #[test]
    fn the_holder_of_a_listener_is_known_by_its_descriptors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        assert!(is_held_by(std::process::id(), &stream).unwrap());
        assert!(Listeners::of(std::process::id()).unwrap().paths.contains(&path));
        // Its file is another socket's by now.
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        assert!(!is_held_by(std::process::id(), &stream).unwrap());
    }
}
