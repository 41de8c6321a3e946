//! Who sits at the other end of the link: a server that the keeper starts, and starts again.
//!
//! Owns the listening sockets and the server's life. The listening sockets stay with the keeper,
//! so that while a server is replaced, clients wait in the backlog instead of failing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::SocketFlags;

use super::link::Link;
use super::poller::{EventFlags, Token};
use super::spawn::{Program, Spawner};
use super::turns::Keeper;
use crate::process::{Launch, Refused};

/// A server that lived this long is replaced at once when it dies.
const STEADY: Duration = Duration::from_secs(1);
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(2);

/// Where servers come from.
pub(super) enum Source {
    /// The keeper starts it.
    Started(Box<Started>),
    /// It is started by someone else and connects here: for tests and debuggers.
    Control(OwnedFd),
}

/// A server that the keeper starts.
pub(super) struct Started {
    program: Program,
    listeners: Vec<OwnedFd>,
    pid: Option<i32>,
    since: Instant,
    delay: Duration,
}

impl Started {
    /// A server that is due to be started: the given program, with the link as descriptor 3 and
    /// the listeners from 4 on.
    pub(super) fn new(launch: &Launch, listeners: Vec<OwnedFd>) -> Result<Started, Refused> {
        let program = Program::new(launch)?;
        Ok(Started { program, listeners, pid: None, since: Instant::now(), delay: Duration::ZERO })
    }

    pub(super) fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// How long until it is to be started; none while it lives.
    pub(super) fn due(&self, now: Instant) -> Option<Duration> {
        self.pid.is_none().then(|| (self.since + self.delay).saturating_duration_since(now))
    }

    /// Starts it and returns the keeper's end of the link. After a failure it is due later.
    pub(super) fn start(&mut self, spawner: &mut Spawner) -> io::Result<OwnedFd> {
        self.since = Instant::now();
        self.try_start(spawner).inspect_err(|_| self.back_off())
    }

    fn try_start(&mut self, spawner: &mut Spawner) -> io::Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let passed: Vec<BorrowedFd<'_>> =
            std::iter::once(theirs.as_fd()).chain(self.listeners.iter().map(AsFd::as_fd)).collect();
        let child = spawner.spawn_server(&self.program, &passed);
        let child = child.map_err(|failure| io::Error::other(self.program.explain(failure)))?;
        self.pid = Some(child.pid);
        tracing::info!(pid = child.pid, "server started");
        Ok(ours.into())
    }

    /// It has ended and was reaped.
    pub(super) fn ended(&mut self, now: Instant) {
        self.pid = None;
        if now - self.since >= STEADY {
            self.delay = Duration::ZERO;
        } else {
            self.back_off();
        }
        self.since = now;
    }

    fn back_off(&mut self) {
        self.delay = (self.delay * 2).clamp(FIRST_DELAY, LONGEST_DELAY);
    }
}

impl Source {
    /// Connects to the next server that waits, if servers come by themselves.
    pub(super) fn accept(&self) -> Option<OwnedFd> {
        let Source::Control(listener) = self else { return None };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        rustix::net::accept_with(listener, flags).ok()
    }
}

impl Keeper {
    /// A server is there.
    fn connect(&mut self, socket: OwnedFd) {
        match self.poller.add(&socket, Token::Link, EventFlags::IN) {
            Ok(()) => self.link = Some(Link::new(socket)),
            Err(error) => tracing::error!(%error, "the server's socket cannot be watched"),
        }
    }

    /// The server is gone. What it asked for and was not begun is dropped; what was begun is
    /// finished without an answer.
    pub(super) fn disconnect(&mut self, error: &io::Error) {
        tracing::debug!(%error, "the server is gone");
        self.link = None;
        self.held_back = false;
        self.starts.clear();
        self.busy.clear();
        for kill in &mut self.kills {
            kill.request = None;
        }
        self.held.forget_news();
        if let Some(server) = self.held.server.filter(|_| self.stop.is_none()) {
            // One that lives on without its link is of no use, and would not be replaced.
            // SAFETY: sends a signal to our own child, not reaped, so that the pid is its own.
            unsafe { libc::kill(server, libc::SIGKILL) };
        }
        if let Source::Control(listener) = &self.source {
            self.poller.modify(listener, Token::Control, EventFlags::IN);
        }
    }

    /// Starts the server if there is none, and it is time.
    pub(super) fn tend_server(&mut self) {
        if self.stop.is_some() || self.link.is_some() {
            return;
        }
        let Source::Started(started) = &mut self.source else { return };
        if !started.due(Instant::now()).is_some_and(|due| due.is_zero()) {
            return;
        }
        match started.start(&mut self.spawner) {
            Ok(socket) => {
                self.held.server = started.pid();
                self.connect(socket);
            }
            Err(error) => tracing::error!(%error, "the server cannot be started"),
        }
    }

    /// Takes a server that connected by itself; others wait until it is gone.
    pub(super) fn connect_waiting(&mut self) {
        if let Some(socket) = self.source.accept() {
            self.connect(socket);
        }
        if let (Source::Control(listener), true) = (&self.source, self.link.is_some()) {
            self.poller.modify(listener, Token::Control, EventFlags::empty());
        }
    }
}
