//! Replacing the server by the version that is now on disk, or staying with the one that serves.
//!
//! The new one is started beside the old one and says who it is. Only if both can speak with each
//! other is the old one told to retire; when it is gone the new one is welcomed, and proves itself
//! by serving in time. If it does not, the old version is started again, from its file that was
//! held open.
//!
//! ```text
//!             hello            old one gone            serves
//!   Trying ───────────► Replacing ─────────► Proving ─────────► upgraded
//!     │ ends, late,         │ ends              │ ends, late
//!     ▼ refused             ▼                   ▼
//!   refused               undone              undone: the old version again
//! ```
//!
//! Owns the stages (pure: [`Stage::on`]) and the candidate until it has taken over. What came of
//! it is logged, and written into the file of whoever asked for it, if they made one.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::binary::Edition;
use super::link::Link;
use super::poller::{EventFlags, Token};
use super::pulse::Pulse;
use super::server::Source;
use super::turns::Keeper;
use crate::process::{Refused, Status};
use crate::protocol::pb::reply::Result as Answer;
use crate::protocol::pb::to_keeper::Body;
use crate::protocol::{Version, pb};

/// How long a new server may take to say who it is, and then, once welcomed, to serve.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the old server may take to end by itself. It takes about a second with clients that do
/// not leave, and longer only while its last commits wait for a slow disk: clients wait meanwhile.
const RETIREMENT: Duration = Duration::from_secs(5);

/// An upgrade under way.
pub(super) struct Upgrade {
    /// The pid of whoever asked.
    asker: u32,
    stage: Stage,
    /// When the new server is to have said who it is, and then, when the old one is to be gone.
    until: Instant,
    /// The version that it replaces, for people.
    from: String,
    /// The new server, until it has taken over.
    candidate: Option<Candidate>,
    /// The version before, from then on.
    former: Option<Edition>,
    /// The keeper was told to stop, and waits until there is a server to be asked.
    stop_asked: bool,
}

struct Candidate {
    edition: Edition,
    link: Link,
    /// The number of its hello, once that was accepted.
    hello: u64,
}

/// How far an upgrade is.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// The old one serves. Why the new one was refused, if it was.
    Trying(Option<String>),
    /// The old one retires, or is being ended.
    Replacing,
    /// The new one is the server. Why it is being ended, if it is.
    Proving(Option<String>),
}

/// What happened to an upgrade.
enum Event {
    /// The new one can be spoken with.
    Accepted,
    /// It cannot, for this reason.
    Refused(String),
    /// The new one has ended.
    Ended(Status),
    /// The new one took too long, or the old one does.
    Late,
    /// The old one has ended.
    OldGone,
    /// The new one serves.
    Serves,
    /// The keeper was told to stop.
    Stopping,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
enum Next {
    Wait,
    /// Let the old one end by itself.
    RetireServer,
    /// End whoever is the server now.
    EndServer,
    /// The candidate becomes the server.
    TakeOver,
    /// It is over, and the candidate is the server or nobody is wanted.
    Finish(Outcome),
    /// The candidate is ended.
    GiveUp(Outcome),
    /// The version before is the server's again.
    GoBack(Outcome),
}

/// What came of an upgrade.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Upgraded,
    /// Nothing was stopped.
    Refused(String),
    /// The old version serves again.
    Undone(String),
}

impl Stage {
    fn on(&mut self, event: Event) -> Next {
        let ended = |status: Status| match status {
            Status::Code(code) => format!("the new server ended with code {code}; see its log"),
            Status::Signal(signal) => format!("the new server was ended by signal {signal}"),
        };
        let stopping = || "the keeper was told to stop".to_owned();
        match (&mut *self, event) {
            (Stage::Trying(_), Event::Accepted) => {
                *self = Stage::Replacing;
                Next::RetireServer
            }
            // It may know an older version, and say that.
            (Stage::Trying(reason), Event::Refused(why)) => {
                *reason = Some(why);
                Next::Wait
            }
            (Stage::Trying(reason), Event::Ended(status)) => {
                Next::GiveUp(Outcome::Refused(reason.take().unwrap_or_else(|| ended(status))))
            }
            (Stage::Trying(reason), Event::Late) => {
                let late = || format!("the new server did not say who it is within {PATIENCE:?}");
                Next::GiveUp(Outcome::Refused(reason.take().unwrap_or_else(late)))
            }
            (Stage::Trying(_), Event::Stopping) => Next::GiveUp(Outcome::Refused(stopping())),
            (Stage::Replacing, Event::OldGone) => {
                *self = Stage::Proving(None);
                Next::TakeOver
            }
            (Stage::Replacing, Event::Late) => Next::EndServer,
            (Stage::Replacing, Event::Ended(status)) => {
                Next::GiveUp(Outcome::Undone(ended(status)))
            }
            (Stage::Replacing, Event::Stopping) => Next::GiveUp(Outcome::Undone(stopping())),
            (Stage::Proving(None), Event::Serves) => Next::Finish(Outcome::Upgraded),
            (Stage::Proving(reason), Event::Late) => {
                let late = || format!("the new server did not serve within {PATIENCE:?}");
                reason.get_or_insert_with(late);
                Next::EndServer
            }
            (Stage::Proving(reason), Event::Ended(status)) => {
                Next::GoBack(Outcome::Undone(reason.take().unwrap_or_else(|| ended(status))))
            }
            (Stage::Proving(_), Event::Stopping) => Next::Finish(Outcome::Undone(stopping())),
            _ => Next::Wait,
        }
    }
}

impl Keeper {
    /// SIGHUP: begins an upgrade, or says why not.
    pub(super) fn ask_to_upgrade(&mut self, asker: u32) {
        let begun = match (&self.upgrade, &self.stop) {
            (Some(_), _) => Err(io::Error::other("another upgrade is under way")),
            (_, Some(_)) => Err(io::Error::other("the keeper was told to stop")),
            (None, None) => self.begin_upgrade(asker),
        };
        match begun {
            Ok(()) => tracing::info!(pid = self.held.candidate, "upgrading: a new server begins"),
            Err(error) => self.tell_asker(asker, &Outcome::Refused(error.to_string()), ""),
        }
    }

    fn begin_upgrade(&mut self, asker: u32) -> io::Result<()> {
        let Source::Started(started) = &mut self.source else {
            return Err(io::Error::other("this keeper starts no servers"));
        };
        let edition = Edition::on_disk(&started.launch)?;
        let (pid, socket) = started.spawn(&edition, &mut self.spawner)?;
        self.held.candidate = Some(pid);
        started.notify.reloading();
        let watched = self.poller.add(&socket, Token::Candidate, EventFlags::IN);
        let candidate = Candidate { edition, link: Link::new(socket), hello: 0 };
        let from = self.link.as_ref().map(|link| link.release.clone());
        self.upgrade = Some(Upgrade {
            asker,
            stage: Stage::Trying(watched.err().map(|errno| errno.to_string())),
            until: Instant::now() + PATIENCE,
            from: from.unwrap_or_default(),
            candidate: Some(candidate),
            former: None,
            stop_asked: false,
        });
        Ok(())
    }

    /// When the new server is to have said who it is, or the old one to be gone.
    pub(super) fn upgrade_due(&self) -> Option<Instant> {
        let proving = |upgrade: &&Upgrade| matches!(upgrade.stage, Stage::Proving(_));
        self.upgrade.as_ref().filter(|upgrade| !proving(upgrade)).map(|upgrade| upgrade.until)
    }

    /// No server is to be started but the one that waits to take over.
    pub(super) fn is_replacing(&self) -> bool {
        self.upgrade.as_ref().is_some_and(|upgrade| upgrade.stage == Stage::Replacing)
    }

    /// What the new server said has been read, if it said something, and the old one's end was
    /// seen.
    pub(super) fn tend_upgrade(&mut self) {
        if self.upgrade_due().is_some_and(|due| due <= Instant::now()) {
            self.advance_upgrade(Event::Late);
        }
    }

    /// The new server says something, or has closed its link.
    pub(super) fn hear_candidate(&mut self) {
        let Some(candidate) = self.upgrade.as_mut().and_then(|all| all.candidate.as_mut()) else {
            return;
        };
        match candidate.hear() {
            Ok(Some(event)) => self.advance_upgrade(event),
            Ok(None) => {}
            // Its end will be seen, or it is late.
            Err(_) => self.poller.remove(candidate.link.socket()),
        }
    }

    /// The new server has ended before it took over.
    pub(super) fn candidate_ended(&mut self, status: Status) {
        self.held.candidate = None;
        self.advance_upgrade(Event::Ended(status));
    }

    /// The server has ended, the old one or the new.
    pub(super) fn upgrade_lost_server(&mut self, status: Status) {
        match self.upgrade.as_ref().map(|upgrade| &upgrade.stage) {
            Some(Stage::Replacing) => self.advance_upgrade(Event::OldGone),
            Some(Stage::Proving(_)) => self.advance_upgrade(Event::Ended(status)),
            _ => {}
        }
    }

    /// The server serves, the old one or the new.
    pub(super) fn upgrade_serves(&mut self) {
        self.advance_upgrade(Event::Serves);
    }

    /// The server did not serve in time, the old one or the new.
    pub(super) fn upgrade_is_late(&mut self) {
        if self.upgrade.as_ref().is_some_and(|all| matches!(all.stage, Stage::Proving(_))) {
            self.advance_upgrade(Event::Late);
        }
    }

    /// Whether a stop has to wait, as nobody can be asked to end what runs while one server takes
    /// the place of another. A second one does not wait.
    pub(super) fn postpones_stop(&mut self) -> bool {
        let replacing = |upgrade: &&mut Upgrade| upgrade.stage == Stage::Replacing;
        let upgrade = self.upgrade.as_mut().filter(replacing);
        upgrade.is_some_and(|upgrade| !std::mem::replace(&mut upgrade.stop_asked, true))
    }

    /// The keeper stops.
    pub(super) fn abandon_upgrade(&mut self) {
        self.advance_upgrade(Event::Stopping);
    }

    fn advance_upgrade(&mut self, event: Event) {
        let Some(upgrade) = &mut self.upgrade else { return };
        match upgrade.stage.on(event) {
            Next::Wait => {}
            Next::RetireServer | Next::EndServer if self.held.server.is_none() => {
                self.advance_upgrade(Event::OldGone);
            }
            Next::RetireServer => self.retire_server(),
            Next::EndServer => {
                // Looked at again then, should it still be there.
                upgrade.until = Instant::now() + RETIREMENT;
                self.kill_server();
            }
            Next::TakeOver => self.take_over(),
            Next::Finish(outcome) | Next::GiveUp(outcome) => self.end_upgrade(&outcome),
            Next::GoBack(outcome) => {
                if let (Source::Started(started), Some(former)) =
                    (&mut self.source, upgrade.former.take())
                {
                    started.go_back_to(former);
                }
                self.end_upgrade(&outcome);
            }
        }
    }

    /// Has the old server end by itself, if it has come as far as to be told.
    fn retire_server(&mut self) {
        if let Some(upgrade) = &mut self.upgrade {
            upgrade.until = Instant::now() + RETIREMENT;
        }
        match &mut self.link {
            Some(link) if link.version.is_some() => {
                link.push(pb::from_keeper::Body::Retire(pb::Retire {}), Vec::new());
            }
            _ => self.kill_server(),
        }
    }

    /// The old server is gone, and the new one, which waits for its welcome, is the server.
    fn take_over(&mut self) {
        if self.link.is_some() {
            // Its end was seen first.
            self.disconnect(&io::ErrorKind::BrokenPipe.into());
        }
        let Some(upgrade) = &mut self.upgrade else { return };
        let (Source::Started(started), Some(candidate)) =
            (&mut self.source, upgrade.candidate.take())
        else {
            return;
        };
        let Candidate { edition, mut link, hello } = candidate;
        let stop = std::mem::take(&mut upgrade.stop_asked);
        self.held.server = self.held.candidate.take();
        upgrade.former = self.held.server.map(|pid| started.go_on_with(edition, pid));
        self.poller.modify(link.socket(), Token::Link, EventFlags::IN);
        link.pulse = Pulse::within(PATIENCE, Instant::now());
        if let Some(version) = link.version {
            link.reply(hello, self.welcome(version));
        }
        self.link = Some(link);
        self.serve_due = true;
        if stop {
            self.ask_to_stop();
        }
    }

    /// It is over. A candidate that has not taken over is ended.
    fn end_upgrade(&mut self, outcome: &Outcome) {
        let Some(upgrade) = self.upgrade.take() else { return };
        if let Some(candidate) = self.held.candidate {
            // SAFETY: sends a signal to our own child, not reaped, so that the pid is its own.
            unsafe { libc::kill(candidate, libc::SIGKILL) };
        }
        let to = self.link.as_ref().map(|link| link.release.clone()).unwrap_or_default();
        if let Some(notify) = self.notify() {
            notify.ready();
        }
        self.tell_asker(upgrade.asker, outcome, &change(&upgrade.from, &to));
        if upgrade.stop_asked && self.stop.is_none() {
            self.ask_to_stop();
        }
    }

    /// Says what came of it, in the log and to whoever asked.
    fn tell_asker(&self, asker: u32, outcome: &Outcome, change: &str) {
        let words = match outcome {
            Outcome::Upgraded => format!("upgraded: server {change}"),
            Outcome::Refused(why) => format!("refused: {why}"),
            Outcome::Undone(why) => format!("undone: {why}"),
        };
        match outcome {
            Outcome::Upgraded => tracing::info!("{words}"),
            Outcome::Refused(_) | Outcome::Undone(_) => tracing::error!("upgrade {words}"),
        }
        if let Source::Started(started) = &self.source {
            // Whoever asked by a signal alone has made no file, and reads the log.
            let _ = answer(&answer_path(&started.state_dir, asker), &words);
        }
    }
}

impl Candidate {
    /// Reads its hello and judges it. An error: there is nothing to be read from it any more.
    fn hear(&mut self) -> io::Result<Option<Event>> {
        let message = loop {
            match self.link.next().map_err(io::Error::other)? {
                None if self.link.receive()? => {}
                None => return Ok(None),
                Some(message) => break message,
            }
        };
        let pb::ToKeeper { request, body } = message;
        let Some(Body::Hello(pb::Hello { version, release })) = body else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match Version::of_server(version) {
            Ok(version) => {
                (self.link.version, self.link.release) = (Some(version), release);
                self.hello = request;
                Ok(Some(Event::Accepted))
            }
            Err(why) => {
                self.link.reply(request, Answer::Refusal(Refused::Version(why.clone()).into()));
                self.link.flush()?;
                Ok(Some(Event::Refused(why)))
            }
        }
    }
}

fn change(from: &str, to: &str) -> String {
    let shown = |release: &str| if release.is_empty() { "?".into() } else { release.to_owned() };
    format!("{} → {}", shown(from), shown(to))
}

/// The file in the state directory that someone with this pid may make, empty, before they ask for
/// an upgrade by SIGHUP. One line in it tells what came of that.
pub fn answer_path(state_dir: &Path, asker: u32) -> PathBuf {
    state_dir.join(format!("upgrade.{asker}"))
}

/// Writes into a file that someone has made to be told. One that is not empty is another.
fn answer(path: &Path, words: &str) -> io::Result<()> {
    let careful = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = OpenOptions::new().write(true).custom_flags(careful).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > 0 {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    file.write_all(format!("{}\n", words.replace('\n', " ")).as_bytes())
}

#[cfg(test)]
mod tests;
