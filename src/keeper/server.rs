//! Who sits at the other end of the link: a server that the keeper starts, and starts again.
//!
//! Owns the listening sockets and the server's life. The listening sockets stay with the keeper,
//! so that while a server is replaced, clients wait in the backlog instead of failing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::SocketFlags;

use super::binary::Edition;
use super::link::Link;
use super::notify::Notify;
use super::poller::{EventFlags, Token};
use super::pulse::Verdict;
use super::spawn::Spawner;
use super::turns::Keeper;
use crate::process::Launch;

/// A server that lived this long is replaced at once when it dies. So is one that served before it
/// died, unless the one before was replaced for that.
const STEADY: Duration = Duration::from_secs(1);
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// With the time that a start takes, clients wait for two seconds at most.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// Where servers come from.
pub(super) enum Source {
    /// The keeper starts it.
    Started(Box<Started>),
    /// It is started by someone else and connects here: for tests and debuggers.
    Control(OwnedFd),
}

/// A server that the keeper starts.
pub(super) struct Started {
    pub(super) launch: Box<Launch>,
    pub(super) state_dir: PathBuf,
    edition: Edition,
    listeners: Vec<OwnedFd>,
    pid: Option<i32>,
    since: Instant,
    delay: Duration,
    /// It lets clients in.
    serves: bool,
    /// The one before died young after it had served, and was replaced at once.
    indulged: bool,
    /// Who is told what becomes of it all.
    pub(super) notify: Notify,
    /// How many there were, this one among them. Told to each, and for nothing else.
    starts: u64,
}

impl Started {
    /// A server that is due to be started: the given program, with the link as descriptor 3 and
    /// the listeners from 4 on.
    pub(super) fn new(
        launch: Box<Launch>,
        listeners: Vec<OwnedFd>,
        state_dir: PathBuf,
        notify: Notify,
    ) -> io::Result<Started> {
        let edition = Edition::own(&launch)?;
        let (since, delay) = (Instant::now(), Duration::ZERO);
        let (pid, serves, indulged, starts) = (None, false, false, 0);
        Ok(Started {
            launch,
            state_dir,
            edition,
            listeners,
            pid,
            since,
            delay,
            serves,
            indulged,
            notify,
            starts,
        })
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
        let (pid, link) = self.spawn(&self.edition, spawner)?;
        self.pid = Some(pid);
        self.starts += 1;
        tracing::info!(pid, "server started");
        Ok(link)
    }

    /// Starts a version of the server: its pid and the keeper's end of the link.
    pub(super) fn spawn(
        &self,
        edition: &Edition,
        spawner: &mut Spawner,
    ) -> io::Result<(i32, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let passed: Vec<BorrowedFd<'_>> =
            std::iter::once(theirs.as_fd()).chain(self.listeners.iter().map(AsFd::as_fd)).collect();
        let child = spawner.spawn_server(&edition.program, &passed);
        let child = child.map_err(|failed| io::Error::other(failed.refused))?;
        Ok((child.pid, ours.into()))
    }

    /// Another version has taken over, with this pid. Returns the one before.
    pub(super) fn go_on_with(&mut self, edition: Edition, pid: i32) -> Edition {
        (self.pid, self.since, self.delay) = (Some(pid), Instant::now(), Duration::ZERO);
        (self.serves, self.indulged) = (false, false);
        self.starts += 1;
        std::mem::replace(&mut self.edition, edition)
    }

    /// That one has ended, and the version before is to be started at once.
    pub(super) fn go_back_to(&mut self, former: Edition) {
        (self.edition, self.delay) = (former, Duration::ZERO);
    }

    /// It lets clients in.
    fn serves(&mut self) {
        self.serves = true;
        self.notify.ready();
    }

    /// It has ended and was reaped.
    pub(super) fn ended(&mut self, now: Instant) {
        self.pid = None;
        let served = std::mem::take(&mut self.serves);
        let steady = now - self.since >= STEADY;
        if steady || served && !self.indulged {
            (self.delay, self.indulged) = (Duration::ZERO, !steady);
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
    /// How many servers were started, the present one among them.
    pub(super) fn starts(&self) -> u64 {
        match self {
            Source::Started(started) => started.starts,
            Source::Control(_) => 0,
        }
    }

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
        self.forget_start_requests();
        for kill in &mut self.kills {
            kill.request = None;
        }
        self.held.forget_news();
        if self.stop.is_none() && !self.is_replacing() {
            // One that lives on without its link is of no use, and would not be replaced. One that
            // retires closes it last.
            self.kill_server();
        }
        if let Source::Control(listener) = &self.source {
            self.poller.modify(listener, Token::Control, EventFlags::IN);
        }
    }

    /// The server says that it lets clients in.
    pub(super) fn server_serves(&mut self) {
        if let Some(link) = &mut self.link {
            link.pulse.serves(Instant::now());
        }
        if let Source::Started(started) = &mut self.source {
            started.serves();
        }
        self.upgrade_serves();
    }

    /// When the server is to be looked at, if the keeper can replace it.
    pub(super) fn pulse_due(&self) -> Option<Instant> {
        let replaceable = matches!(self.source, Source::Started(_)) && self.stop.is_none();
        self.link.as_ref().filter(|_| replaceable)?.pulse.due()
    }

    /// Ends a server that hangs. Its end is seen as any other, and another is started.
    pub(super) fn judge_server(&mut self) {
        let now = Instant::now();
        // What has come and was not read yet may be a sign of life.
        if self.serve_due || self.pulse_due().is_none_or(|due| now < due) {
            return;
        }
        let Some(link) = &mut self.link else { return };
        // Also while so much is under way that nothing more is taken from it.
        match link.receive() {
            Ok(read) => self.serve_due |= read,
            Err(error) => return self.disconnect(&error),
        }
        let verdict = link.pulse.judge(now);
        if verdict != Verdict::Lives {
            tracing::error!(pid = self.held.server, ?verdict, "the server hangs and is replaced");
            link.pulse.over();
            self.kill_server();
            self.upgrade_is_late();
        }
    }

    /// Ends the server; its end will be seen.
    pub(super) fn kill_server(&self) {
        if let Some(server) = self.held.server {
            // SAFETY: sends a signal to our own child, not reaped, so that the pid is its own.
            unsafe { libc::kill(server, libc::SIGKILL) };
        }
    }

    /// How long until the server is to be started; none while there is one, or another is about
    /// to take over.
    pub(super) fn server_due(&self, now: Instant) -> Option<Duration> {
        let unwanted = self.stop.is_some() || self.link.is_some() || self.is_replacing();
        match &self.source {
            Source::Started(started) if !unwanted => started.due(now),
            _ => None,
        }
    }

    /// Starts the server if there is none, and it is time.
    pub(super) fn tend_server(&mut self) {
        if let Some(notify) = self.notify() {
            notify.flush();
        }
        if !self.server_due(Instant::now()).is_some_and(|due| due.is_zero()) {
            return;
        }
        let Source::Started(started) = &mut self.source else { return };
        match started.start(&mut self.spawner) {
            Ok(socket) => {
                self.held.server = started.pid();
                self.connect(socket);
            }
            Err(error) => tracing::error!(%error, "the server cannot be started"),
        }
    }

    /// Who is told what becomes of the supervisor.
    pub(super) fn notify(&mut self) -> Option<&mut Notify> {
        match &mut self.source {
            Source::Started(started) => Some(&mut started.notify),
            Source::Control(_) => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_served_is_replaced_at_once_and_young_deaths_in_a_row_are_not() {
        let launch = Box::new(Launch::new("server", ["/bin/true"]));
        let mut started =
            Started::new(launch, Vec::new(), PathBuf::new(), Notify::default()).unwrap();
        let mut now = started.since;
        let mut dies = |served: bool, age: Duration| {
            if served {
                started.serves();
            }
            started.since = now;
            now += age;
            started.ended(now);
            started.due(now).unwrap()
        };
        let young = Duration::from_millis(300);
        assert_eq!(dies(false, young), FIRST_DELAY, "it never served");
        assert_eq!(dies(false, young), 2 * FIRST_DELAY);
        assert_eq!(dies(true, young), Duration::ZERO);
        assert_eq!(dies(true, young), FIRST_DELAY, "that was not the first");
        for _ in 0..9 {
            assert!(dies(true, young) <= LONGEST_DELAY);
        }
        assert_eq!(dies(true, young), LONGEST_DELAY);
        assert_eq!(dies(true, STEADY), Duration::ZERO);
        assert_eq!(dies(true, young), Duration::ZERO);
        assert_eq!(dies(true, young), FIRST_DELAY);
    }
}
