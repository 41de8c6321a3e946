//! What the server asks for, one method each.
//!
//! Owns the mapping from a request to what is done and answered. All are done at once but for
//! starts, which wait for their share of a turn, and kills, which take as long as dying does.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::held::{Begun, Held, MAX_HELD};
use super::input::Write;
use super::poller::{EventFlags, Token};
use super::spawn::{Ends, Program};
use super::streams::Streams;
use super::terminal::Terminal;
use super::tree;
use super::turns::{BUDGET, Keeper, tell};
use crate::process::{Io, Launch, Refused, step};
use crate::protocol::pb::reply::Result as Answer;
use crate::protocol::pb::to_keeper::Body;
use crate::protocol::{self, Version, pb, socket};

/// How long a program file that is being written is waited for.
const BUSY_PROGRAM: Duration = Duration::from_secs(2);
/// Descriptors that stay free for the keeper's own needs.
const SPARE_DESCRIPTORS: usize = 8;

/// A start that waits for its turn.
pub(super) struct Start {
    request: u64,
    launch: Launch,
    since: Instant,
}

impl Keeper {
    /// Does what is asked and answers, or sees to it that it will be answered.
    pub(super) fn request(&mut self, message: pb::ToKeeper) {
        let pb::ToKeeper { request, body } = message;
        let done = |()| Answer::Done(pb::Done {});
        let answer = match body {
            Some(Body::Hello(hello)) => self.hello(hello),
            Some(Body::Adopt(pb::Adopt {})) => self.adopt(),
            Some(Body::Spawn(spawn)) => match spawn.try_into() {
                Ok(launch) => {
                    return self.starts.push_back(Start { request, launch, since: Instant::now() });
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

    fn answer(&mut self, request: u64, answer: Result<Answer, Refused>) {
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
    fn adopt(&mut self) -> Result<Answer, Refused> {
        self.held.forget_news();
        if let Some(link) = &mut self.link {
            for keys in self.held.keys().chunks(socket::MAX_DESCRIPTORS) {
                tell(link, &mut self.held, keys, true);
            }
            link.adopted = true;
        }
        Ok(Answer::Adopted(pb::Adopted {}))
    }

    /// Makes the starts that wait, as many as fit into a turn.
    pub(super) fn start_queued(&mut self) {
        let begin = Instant::now();
        while let Some(start) = self.starts.pop_front() {
            match self.start(&start.launch) {
                Err(Refused::SpawnFailed { errno: libc::ETXTBSY, .. })
                    if start.since.elapsed() < BUSY_PROGRAM =>
                {
                    self.busy.push(start);
                    self.retry_soon();
                }
                answer => self.answer(start.request, answer),
            }
            if begin.elapsed() > BUDGET {
                return;
            }
        }
    }

    fn start(&mut self, launch: &Launch) -> Result<Answer, Refused> {
        let spawned = |key, held: &Held, existed, continued| {
            let (pid, start_time) = (held.pid.cast_unsigned(), held.start_time);
            Ok(Answer::Spawned(pb::Spawned { key, pid, start_time, existed, continued }))
        };
        match self.held.newest(&launch.id) {
            Some((key, held)) if held.run == launch.run => return spawned(key, held, true, 0),
            Some((_, held)) if held.run > launch.run => {
                let what = format!("run {} is over: run {} has begun", launch.run, held.run);
                return Err(Refused::Invalid(what));
            }
            _ => {}
        }
        let earlier = self.earlier(launch)?;
        if earlier.is_none() && self.held.len() >= MAX_HELD {
            return Err(Refused::TooMany);
        }
        let mut program = Program::new(launch)?;
        if let Some(key) = launch.beside {
            let held = self.held.get(key).ok_or(Refused::UnknownProcess)?;
            program = program.beside(held.pidfd.as_ref().ok_or(Refused::NotRunning)?.as_fd());
        }
        let key = self.held.next_key();
        let streams = Streams::open(launch.io)
            .and_then(|streams| self.watch(key, &streams).map(|()| streams))
            .map_err(|errno| unopened(launch.io, errno))?;
        let begun = if launch.limits.is_none() {
            self.spawn(&program, &streams)?
        } else {
            self.spawn_confined(program, &launch.limits, &streams)?
        };
        let mut held = Held::new(launch, begun, streams, self.unmap_written);
        if earlier.is_none() {
            self.come_after(&launch.id, &mut held.sink);
        }
        let answer = spawned(key, &held, false, earlier.unwrap_or(0));
        self.held.insert(key, held);
        if let Some(earlier) = earlier {
            self.go_on(earlier, key);
        }
        answer
    }

    /// Watches the outputs, and sees to it that descriptors remain for the rings to come.
    fn watch(&self, key: u64, streams: &Streams) -> Result<(), Errno> {
        let mut highest = 0;
        for (n, output) in streams.outputs.iter().enumerate() {
            if let Some(output) = output {
                self.poller.add(&output.fd, Token::Output(key, n), EventFlags::IN)?;
                highest = highest.max(output.fd.as_raw_fd());
            }
        }
        // The kernel gives out the lowest free number: all below the highest are taken.
        let taken = highest as usize + self.held.rings_to_come() + SPARE_DESCRIPTORS;
        if taken as u64 >= self.spawner.descriptor_limit() { Err(Errno::MFILE) } else { Ok(()) }
    }

    /// Starts the program, in a leaf of its own where there are leaves. Where the kernel takes
    /// nobody into it, such as below a threaded cgroup, it goes without.
    pub(super) fn spawn(&mut self, program: &Program, streams: &Streams) -> Result<Begun, Refused> {
        let ends = ends(streams)?;
        let confined = None;
        if let Some((leaf, fd)) = self.take_leaf(false)
            && let Some(cgroups) = &mut self.cgroups
        {
            match self.spawner.spawn(program, &ends, Some(fd.as_fd())) {
                Ok(child) => return Ok(Begun { child, leaf: Some(leaf), confined }),
                Err(failure) => {
                    if !failure.is_about_the_cgroup() {
                        cgroups.give_back(leaf, !failure.is_timeout());
                        return Err(program.explain(failure));
                    }
                    cgroups.discard(leaf);
                }
            }
        }
        let child = self.spawner.spawn(program, &ends, None);
        let child = child.map_err(|failure| program.explain(failure))?;
        Ok(Begun { child, leaf: None, confined })
    }

    fn write_input(&mut self, write: &pb::WriteInput) -> Result<Answer, Refused> {
        let pb::WriteInput { key, offset, data, eof } = write;
        let held = self.held.get_mut(*key).ok_or(Refused::UnknownProcess)?;
        if held.exit.is_some() {
            return Err(Refused::NotRunning);
        }
        let watched = held.input.waiting().is_some();
        let eof_character = held.terminal.as_ref().map(Terminal::eof);
        let write = Write { offset: *offset, data, eof: *eof, eof_character };
        let before = held.input.state().accepted;
        let state = held.input.write(&write)?;
        if !watched {
            self.watch_input(*key);
        }
        let added = state.accepted - before;
        Ok(Answer::Written(pb::Written { input: Some(state.into()), added }))
    }

    fn resize(&mut self, resize: &pb::Resize) -> Result<(), Refused> {
        let pb::Resize { key, rows, cols } = *resize;
        let size = protocol::size(rows, cols)?;
        let held = self.held.get(key).ok_or(Refused::UnknownProcess)?;
        if !held.on_terminal {
            return Err(Refused::NotATerminal);
        }
        let living = held.terminal.as_ref().filter(|_| held.exit.is_none());
        let terminal = living.ok_or(Refused::NotRunning)?;
        terminal.resize(size).map_err(|_| Refused::NotRunning)
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

/// The child's ends of its streams.
pub(super) fn ends(streams: &Streams) -> Result<Ends<'_>, Refused> {
    streams.for_child().ok_or_else(|| Refused::Invalid("neither pipes nor terminal".into()))
}

/// A signal that exists; 0 would only ask whether the process does.
pub(super) fn check_signal(signal: i32) -> Result<(), Refused> {
    if (1..=64).contains(&signal) {
        return Ok(());
    }
    Err(Refused::Invalid(format!("there is no signal {signal}")))
}

fn unopened(io: Io, errno: Errno) -> Refused {
    let step = match io {
        Io::Pipes { .. } => "cannot open pipes",
        Io::Terminal(_) => step::TERMINAL,
    };
    Refused::SpawnFailed { step: step.into(), errno: errno.raw_os_error(), path: String::new() }
}
