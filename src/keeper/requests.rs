//! What the server asks for, one method each.
//!
//! Owns the mapping from a request to what is done and answered. All are done at once but for
//! starts (`start`), which take as long as an exec does, and kills, which take as long as dying does.

use super::held::Held;
use super::input::Write;
use super::start::Start;
use super::tree;
use super::turns::{Keeper, tell};
use crate::process::Refused;
use crate::protocol::pb::reply::Result as Answer;
use crate::protocol::pb::to_keeper::Body;
use crate::protocol::{self, Version, pb, socket};

impl Keeper {
    /// Does what is asked and answers, or sees to it that it will be answered.
    pub(super) fn request(&mut self, message: pb::ToKeeper) {
        let pb::ToKeeper { request, body } = message;
        let done = |()| Answer::Done(pb::Done {});
        let answer = match body {
            Some(Body::Hello(hello)) => self.hello(hello),
            // The server takes the processes of this report for all that there are.
            Some(Body::Adopt(pb::Adopt {})) if self.is_starting() => {
                return self.adopt_request = Some(request);
            }
            Some(Body::Adopt(pb::Adopt {})) => self.adopt(),
            Some(Body::Spawn(spawn)) => match spawn.try_into() {
                Ok(launch) => {
                    return self.starts.push_back(Start::new(request, launch));
                }
                Err(refused) => Err(refused),
            },
            Some(Body::WriteInput(write)) => self.write_input(&write),
            Some(Body::Resize(resize)) => self.resize(&resize).map(done),
            Some(Body::Signal(signal)) => self.signal(&signal).map(done),
            Some(Body::KillTree(kill)) => match self.kill_tree(request, &kill) {
                Some(answer) => answer,
                None => return,
            },
            Some(Body::Acknowledge(ack)) => self.acknowledge(&ack).map(done),
            Some(Body::Release(release)) => self.release(&release).map(done),
            Some(Body::Serving(pb::Serving {})) => {
                self.server_serves();
                Ok(done(()))
            }
            Some(Body::Beat(pb::Beat {})) => Ok(done(())),
            None => Err(Refused::Invalid("a request that this keeper does not know".into())),
        };
        self.answer(request, answer);
    }

    pub(super) fn answer(&mut self, request: u64, answer: Result<Answer, Refused>) {
        let answer = answer.unwrap_or_else(|refused| Answer::Refusal(refused.into()));
        self.reply(request, answer);
    }

    fn hello(&mut self, hello: pb::Hello) -> Result<Answer, Refused> {
        let pb::Hello { version, release } = hello;
        let version = Version::of_server(version).map_err(Refused::Version)?;
        if let Some(link) = &mut self.link {
            (link.version, link.release) = (Some(version), release);
        }
        Ok(self.welcome(version))
    }

    pub(super) fn welcome(&self, version: Version) -> Answer {
        Answer::Welcome(pb::Welcome {
            version: version.number(),
            pid: std::process::id(),
            kill_domain: pb::KillDomain::from(self.kill_domain()).into(),
            limits: version.confines().then(|| self.controllers.enforceable().into()),
            sandbox: version.confines().then(|| self.sandbox.into()),
            server_starts: self.source.starts(),
        })
    }

    /// Reports all that is held; from here on, changes are reported.
    pub(super) fn adopt(&mut self) -> Result<Answer, Refused> {
        self.held.forget_news();
        for key in self.held.keys() {
            let terminal = self.held.get_mut(key).and_then(|held| held.terminal.as_mut());
            if let Some(terminal) = terminal {
                terminal.find_size(key, &mut self.stream_helpers);
            }
        }
        if let Some(link) = &mut self.link {
            for keys in self.held.keys().chunks(socket::MAX_DESCRIPTORS) {
                tell(link, &mut self.held, keys, true);
            }
            link.adopted = true;
        }
        Ok(Answer::Adopted(pb::Adopted {}))
    }

    fn write_input(&mut self, write: &pb::WriteInput) -> Result<Answer, Refused> {
        let pb::WriteInput { key, offset, data, eof } = write;
        let held = self.held.get_mut(*key).ok_or(Refused::UnknownProcess)?;
        if held.exit.is_some() {
            return Err(Refused::NotRunning);
        }
        let watched = held.input.waiting().is_some();
        let terminal = held.terminal.as_mut().filter(|_| *eof);
        let eof_character = terminal.map(|terminal| terminal.eof(*key, &mut self.stream_helpers));
        let write = Write { offset: *offset, data, eof: *eof, eof_character };
        let before = held.input.state().accepted;
        let state = held.input.write(&write, *key, &mut self.stream_helpers)?;
        if !watched {
            self.watch_input(*key);
        }
        let added = state.accepted - before;
        Ok(Answer::Written(pb::Written { input: Some(state.into()), added }))
    }

    fn resize(&mut self, resize: &pb::Resize) -> Result<(), Refused> {
        let pb::Resize { key, rows, cols } = *resize;
        let size = protocol::size(rows, cols)?;
        let held = self.held.get_mut(key).ok_or(Refused::UnknownProcess)?;
        if !held.on_terminal {
            return Err(Refused::NotATerminal);
        }
        let living = held.terminal.as_mut().filter(|_| held.exit.is_none());
        let terminal = living.ok_or(Refused::NotRunning)?;
        terminal.resize(key, size, &mut self.stream_helpers).map_err(|_| Refused::NotRunning)
    }

    fn signal(&mut self, signal: &pb::Signal) -> Result<(), Refused> {
        let pb::Signal { key, signal, group } = *signal;
        check_signal(signal)?;
        let held = self.held.get_mut(key).ok_or(Refused::UnknownProcess)?;
        let pidfd = held.pidfd.as_ref().ok_or(Refused::NotRunning)?;
        // Whether or not that ends it: what ended it is then not known for certain.
        held.killed |= signal == libc::SIGKILL;
        let sent = if group {
            // Not reaped, so the group is still the one that this process began.
            tree::signal_group(held.pid, signal)
        } else {
            tree::send(pidfd, signal)
        };
        sent.map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => Refused::NotRunning,
            errno => Refused::SignalFailed(errno.unwrap_or(libc::EIO)),
        })
    }

    fn acknowledge(&mut self, ack: &pb::Acknowledge) -> Result<(), Refused> {
        let pb::Acknowledge { key, seq } = *ack;
        let held = self.held.get_mut(key).ok_or(Refused::UnknownProcess)?;
        if let Some(ring) = &mut held.sink.ring {
            ring.acknowledge(seq);
        }
        self.resume(key);
        Ok(())
    }

    fn release(&mut self, release: &pb::Release) -> Result<(), Refused> {
        let pb::Release { key } = *release;
        let held = self.held.get(key).ok_or(Refused::UnknownProcess)?;
        if held.exit.is_none() {
            return Err(Refused::StillRunning);
        }
        self.forget(key);
        Ok(())
    }

    /// Takes a process off the table; its leaf is free when nobody is in it any more.
    pub(super) fn forget(&mut self, key: u64) -> Option<Held> {
        let mut held = self.held.remove(key)?;
        if let (Some(cgroups), Some(leaf)) = (&mut self.cgroups, held.leaf.take()) {
            cgroups.give_back(leaf, false);
        }
        Some(held)
    }
}

/// A signal that exists; 0 would only ask whether the process does.
pub(super) fn check_signal(signal: i32) -> Result<(), Refused> {
    if (1..=64).contains(&signal) {
        return Ok(());
    }
    Err(Refused::Invalid(format!("there is no signal {signal}")))
}
