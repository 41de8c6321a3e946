//! The service manager, told what becomes of the supervisor, as systemd wants to hear it.
//!
//! Owns the socket to it. Never waits: what it has no room for is said again at a later turn, or
//! made up for by what is new by then.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// Who is told; nobody, where nobody asked.
#[derive(Default)]
pub struct Notify {
    manager: Option<Box<(UnixDatagram, SocketAddr)>>,
    /// What the supervisor does, for people.
    status: String,
    /// What there was no room for.
    unsent: Option<String>,
    /// It was told that all ends, and nothing else is news.
    over: bool,
}

impl Notify {
    /// Tells whoever is at this address, as `NOTIFY_SOCKET` has it.
    pub fn new(address: Option<&OsStr>, status: &str) -> io::Result<Notify> {
        // A line break would begin another message.
        let status = status.replace('\n', " ");
        let Some(address) = address.filter(|address| !address.is_empty()) else {
            return Ok(Notify { status, ..Notify::default() });
        };
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Notify { manager: Some(Box::new((socket, address))), status, ..Notify::default() })
    }

    /// Clients are let in, or an upgrade is over.
    pub(super) fn ready(&mut self) {
        self.tell(format!("READY=1\nSTATUS={}", self.status));
    }

    /// An upgrade begins.
    pub(super) fn reloading(&mut self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.tell(format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=upgrading"));
    }

    /// All that runs is being ended.
    pub(super) fn stopping(&mut self) {
        self.tell("STOPPING=1\nSTATUS=ending all that runs".into());
        self.over = true;
    }

    fn tell(&mut self, news: String) {
        if !self.over && self.manager.is_some() {
            self.unsent = Some(news);
            self.flush();
        }
    }

    /// Says what is still to be said.
    pub(super) fn flush(&mut self) {
        let Some(news) = &self.unsent else { return };
        let Some((socket, manager)) = self.manager.as_deref() else { return };
        let sent = socket.send_to_addr(news.as_bytes(), manager);
        let in_vain = |error: io::Error| {
            use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
            // Nobody is there, or will be. Whoever is only busy is told later.
            matches!(error.kind(), ConnectionRefused | NotFound | PermissionDenied)
        };
        if sent.map_or_else(in_vain, |_| true) {
            self.unsent = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(manager: &UnixDatagram) -> Option<String> {
        let mut buffer = [0; 256];
        let len = manager.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
    }

    fn manager() -> (tempfile::TempDir, UnixDatagram, Notify) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("n");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let notify = Notify::new(Some(path.as_os_str()), "listening\non x").unwrap();
        (directory, manager, notify)
    }

    #[test]
    fn each_step_is_told_and_nothing_after_the_last() {
        let (_directory, manager, mut notify) = manager();
        notify.ready();
        assert_eq!(received(&manager).unwrap(), "READY=1\nSTATUS=listening on x");
        notify.reloading();
        let told = received(&manager).unwrap();
        assert!(told.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{told}");
        notify.stopping();
        notify.ready();
        assert!(received(&manager).unwrap().starts_with("STOPPING=1\n"));
        assert_eq!(received(&manager), None);
    }

    #[test]
    fn what_there_is_no_room_for_is_told_later() {
        let (_directory, manager, mut notify) = manager();
        while notify.unsent.is_none() {
            notify.reloading();
        }
        notify.ready();
        while received(&manager).is_some() {}
        notify.flush();
        assert!(received(&manager).unwrap().starts_with("READY=1\n"));
        notify.flush();
        assert_eq!(received(&manager), None);
    }

    #[test]
    fn a_manager_may_have_no_file_or_be_gone_or_be_none() {
        let name = format!("procyard-notify-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap());
        let mut notify = Notify::new(Some(OsStr::new(&format!("@{name}"))), "").unwrap();
        notify.ready();
        assert!(received(&manager.unwrap()).is_some());
        notify.ready();
        assert_eq!(notify.unsent, None);
        Notify::new(None, "").unwrap().ready();
        Notify::new(Some(OsStr::new("")), "").unwrap().ready();
    }
}
