//! Starts: from a launch to a held process.
//!
//! Owns the starts that wait and those that are under way. A helper makes the child and waits for its
//! exec (`spawn`). The keeper continues meanwhile, and answers when the helper is done or the exec is
//! late. A start that fails changes nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::cgroup::Leaf;
use super::controllers::Confined;
use super::ending::Stop;
use super::held::{Held, MAX_HELD};
use super::kill::Kill;
use super::poller::{EventFlags, Token};
use super::spawn::{Child, Failed, FailedChild, Failure, Finished, Program};
use super::streams::Streams;
use super::terminal::Terminal;
use super::tree;
use super::turns::{BUDGET, Keeper};
use crate::process::{Io, Launch, Refused, step};
use crate::protocol::pb;
use crate::protocol::pb::reply::Result as Answer;

/// How long a program file that is being written is waited for.
const BUSY_PROGRAM_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a start that finds no free descriptor waits for helpers to close some.
const CLOSES_TIMEOUT: Duration = Duration::from_millis(100);
/// Descriptors that stay free for the keeper's own needs.
const SPARE_DESCRIPTORS: usize = 8;

/// A start that waits for its turn.
pub(super) struct Start {
    /// The request that is answered; none: the server that sent it is gone.
    request: Option<u64>,
    launch: Launch,
    since: Instant,
    /// The kernel has taken no process into a leaf.
    without_leaf: bool,
    /// It was late in a leaf that was frozen, and is tried once more.
    was_frozen: bool,
}

impl Start {
    pub(super) fn new(request: u64, launch: Launch) -> Start {
        let (since, without_leaf, was_frozen) = (Instant::now(), false, false);
        Start { request: Some(request), launch, since, without_leaf, was_frozen }
    }
}

/// A start whose exec is under way.
pub(super) struct Starting {
    start: Start,
    /// The spawner's number for it.
    number: u64,
    key: u64,
    streams: Box<Streams>,
    cgroups: ProcessCgroups,
}

/// The cgroups that a process begins in.
#[derive(Default)]
pub(super) struct ProcessCgroups {
    pub(super) leaf: Option<Leaf>,
    /// What limits its tree.
    pub(super) confined: Option<Confined>,
}

impl Keeper {
    /// Begins the starts that wait, as many as fit into a turn.
    pub(super) fn start_queued(&mut self) {
        let begin = Instant::now();
        while self.is_start_due() && begin.elapsed() <= BUDGET {
            let Some(start) = self.starts.pop_front() else { return };
            if self.starting.iter().any(|other| other.start.launch.id == start.launch.id) {
                // What comes of the one under way decides about this one.
                self.retry_start(start);
                continue;
            }
            let may_retry =
                self.stream_helpers.is_closing() && start.since.elapsed() < CLOSES_TIMEOUT;
            match self.begin_start(&start) {
                Ok(Begun::Existing(answer)) => self.answer_start(&start, Ok(answer)),
                Ok(Begun::Starting { number, key, streams, cgroups }) => {
                    self.starting.push(Starting { start, number, key, streams, cgroups });
                }
                // There are descriptors when the ends of earlier ones are closed.
                Err(refused) if may_retry && is_out_of_descriptors(&refused) => {
                    self.retry_start(start);
                }
                Err(refused) => self.answer_start(&start, Err(refused)),
            }
        }
    }

    /// Whether a start waits that can be begun, or refused.
    pub(super) fn is_start_due(&self) -> bool {
        let can_begin = || self.spawner.is_ready() || self.spawner.is_exhausted();
        !self.starts.is_empty() && can_begin()
    }

    /// Whether an exec is under way that a start waits for.
    pub(super) fn is_starting(&self) -> bool {
        !self.starting.is_empty()
    }

    /// Sees to the starts whose helper is done, and to those that are late.
    pub(super) fn finish_starts(&mut self) {
        while let Some(finished) = self.spawner.take_finished() {
            self.finish_start(finished);
        }
        if let Some(request) = self.adopt_request.take_if(|_| self.starting.is_empty()) {
            let answer = self.adopt();
            self.answer(request, answer);
        }
    }

    /// The server is gone: what was not begun is dropped, what was begun is finished without an answer,
    /// or killed if it takes long: the next server waits for it, and asks again for what did not begin.
    pub(super) fn forget_start_requests(&mut self) {
        self.starts.clear();
        self.busy.clear();
        self.adopt_request = None;
        for starting in &mut self.starting {
            starting.start.request = None;
        }
        self.spawner.hurry();
    }

    fn retry_start(&mut self, start: Start) {
        self.busy.push(start);
        self.retry_soon();
    }

    fn answer_start(&mut self, start: &Start, answer: Result<Answer, Refused>) {
        if let Some(request) = start.request {
            self.answer(request, answer);
        }
    }

    fn begin_start(&mut self, start: &Start) -> Result<Begun, Refused> {
        let launch = &start.launch;
        match self.held.newest(&launch.id) {
            Some((key, held)) if held.run == launch.run => {
                return Ok(Begun::Existing(spawned(key, held, true, 0)));
            }
            Some((_, held)) if held.run > launch.run => {
                let what = format!("run {} is over: run {} has begun", launch.run, held.run);
                return Err(Refused::Invalid(what));
            }
            _ => {}
        }
        if self.earlier(launch)?.is_none() && self.held.len() >= MAX_HELD {
            return Err(Refused::TooMany);
        }
        if self.spawner.is_exhausted() || self.stream_helpers.are_exhausted() {
            return Err(Program::new(launch)?.refuse(Failure::NO_HELPER));
        }
        let mut program = Program::new(launch)?;
        if let Some(key) = launch.beside {
            let held = self.held.get(key).ok_or(Refused::UnknownProcess)?;
            program = program.beside(held.pidfd.as_ref().ok_or(Refused::NotRunning)?.as_fd())?;
        }
        let key = self.held.next_key();
        let streams = Streams::open(launch.io, self.stream_helpers.closes())
            .and_then(|streams| self.watch(key, &streams).map(|()| streams))
            .map_err(|errno| unopened(launch.io, errno))?;
        let (cgroups, leaf) = self.take_cgroups(start)?;
        if let Some(confined) = &cgroups.confined {
            program = program.joining(confined.joins());
        }
        let program = Rc::new(program);
        let Some(ends) = streams.for_child() else {
            return Err(Refused::Invalid("neither pipes nor terminal".into()));
        };
        match self.spawner.begin(Rc::clone(&program), &ends, leaf) {
            Ok(number) => Ok(Begun::Starting { number, key, streams: Box::new(streams), cgroups }),
            Err(failure) => {
                self.give_back_cgroups(cgroups, &failure, FailedChild::NotMade);
                Err(program.refuse(failure))
            }
        }
    }

    /// Watches the outputs, and sees to it that descriptors remain for the rings to come.
    fn watch(&self, key: u64, streams: &Streams) -> Result<(), Errno> {
        let mut highest = 0;
        for (n, output) in streams.outputs.iter().enumerate() {
            if let Some(output) = output {
                self.poller.add(&output.end, Token::Output(key, n), EventFlags::IN)?;
                highest = highest.max(output.end.as_fd().as_raw_fd());
            }
        }
        let other = [streams.input.end(), streams.terminal.as_ref().map(Terminal::end)];
        let other = other.into_iter().flatten().map(|end| end.as_fd().as_raw_fd());
        highest = other.fold(highest, i32::max);
        // The kernel gives out the lowest free number: all below the highest are taken.
        let to_come = self.held.rings_to_come() + self.starting.len();
        let taken = highest as usize + to_come + SPARE_DESCRIPTORS;
        if taken as u64 >= self.spawner.descriptor_limit() { Err(Errno::MFILE) } else { Ok(()) }
    }

    /// A leaf for a process where there are leaves, and what limits its tree. What cannot be limited
    /// is not started. Also returns the descriptor of the leaf.
    fn take_cgroups(
        &mut self,
        start: &Start,
    ) -> Result<(ProcessCgroups, Option<OwnedFd>), Refused> {
        let limits = &start.launch.limits;
        if limits.is_none() {
            let leaf = if start.without_leaf { None } else { self.take_leaf(false) };
            let (leaf, fd) = leaf.unzip();
            return Ok((ProcessCgroups { leaf, confined: None }, fd));
        }
        let (leaf, fd) = self.take_leaf(self.controllers.limit_leaves(limits)).unzip();
        let path = self.cgroups.as_ref().zip(leaf.as_ref());
        let path = path.map(|(cgroups, leaf)| cgroups.path(leaf));
        match self.controllers.confine(limits, path.as_deref()) {
            Ok(confined) => Ok((ProcessCgroups { leaf, confined: Some(confined) }, fd)),
            Err(error) => {
                self.discard_leaf(leaf);
                Err(unlimited(error))
            }
        }
    }

    fn discard_free_leaves(&mut self) {
        if let Some(cgroups) = &mut self.cgroups {
            cgroups.discard_free();
        }
    }

    fn discard_leaf(&mut self, leaf: Option<Leaf>) {
        if let (Some(cgroups), Some(leaf)) = (&mut self.cgroups, leaf) {
            cgroups.discard(leaf);
        }
    }

    /// Takes back the cgroups of a start that failed.
    fn give_back_cgroups(
        &mut self,
        cgroups: ProcessCgroups,
        failure: &Failure,
        child: FailedChild,
    ) {
        let ProcessCgroups { mut leaf, confined } = cgroups;
        let is_killed = child == FailedChild::Killed;
        if is_killed {
            // The program may have run before it was killed, and forked.
            if let (Some(cgroups), Some(leaf)) = (&self.cgroups, &mut leaf) {
                cgroups.kill(leaf);
            }
            confined.iter().for_each(Confined::kill);
        }
        // Whatever failed for a limited process: it may be the leaf. The leaf may also be what made a
        // start late.
        let is_doubtful = confined.is_some() || failure.is_about_the_cgroup() || is_killed;
        if let Some(confined) = confined {
            self.controllers.give_back(confined);
        }
        if is_doubtful {
            self.discard_leaf(leaf);
        } else if let (Some(cgroups), Some(leaf)) = (&mut self.cgroups, leaf) {
            cgroups.give_back(leaf, child == FailedChild::NotMade);
        }
    }

    /// Whether another process has frozen the leaf that a start is late in.
    fn is_late_by_freeze(&self, cgroups: &ProcessCgroups, failure: &Failure) -> bool {
        let leaf = self.cgroups.as_ref().zip(cgroups.leaf.as_ref());
        failure.is_timeout() && leaf.is_some_and(|(cgroups, leaf)| cgroups.is_frozen(leaf))
    }

    pub(super) fn finish_start(&mut self, finished: Finished) {
        let Finished { number, result } = finished;
        let at = self.starting.iter().position(|starting| starting.number == number);
        let Some(at) = at else { return };
        let Starting { mut start, key, streams, cgroups, .. } = self.starting.swap_remove(at);
        match result {
            Ok(child) => self.hold(&start, key, child, *streams, cgroups),
            Err(Failed { failure, refused, child }) => {
                let in_leaf = cgroups.leaf.is_some() && cgroups.confined.is_none();
                let is_frozen = self.is_late_by_freeze(&cgroups, &failure);
                self.give_back_cgroups(cgroups, &failure, child);
                if start.request.is_none() {
                    // The next server may have been told already that there is no such process, and
                    // asks for it itself.
                    return;
                }
                if is_frozen && !start.was_frozen {
                    let process = &*start.launch.id;
                    tracing::warn!(process, "start was late in a frozen leaf; trying a new one");
                    start.was_frozen = true;
                    self.discard_free_leaves();
                    self.starts.push_front(start);
                } else if failure.is_about_the_cgroup() && in_leaf {
                    // Such as below a threaded cgroup: it goes without.
                    start.without_leaf = true;
                    self.starts.push_front(start);
                } else if failure.is_busy_program() && start.since.elapsed() < BUSY_PROGRAM_TIMEOUT
                {
                    self.retry_start(start);
                } else {
                    self.answer_start(&start, Err(refused));
                }
            }
        }
    }

    /// Holds a process that has executed its program, and answers.
    fn hold(
        &mut self,
        start: &Start,
        key: u64,
        child: Child,
        streams: Streams,
        cgroups: ProcessCgroups,
    ) {
        let launch = &start.launch;
        // It may have been taken for an orphan before its pid was known here.
        self.forest.forget(child.pid);
        if let Some(confined) = &cgroups.confined
            && let Err(error) = confined.tighten(&launch.limits)
        {
            // Nothing knows it yet; it is reaped as any orphan, and so are those below it.
            let _ = tree::send(&child.pidfd, libc::SIGKILL);
            self.give_back_cgroups(cgroups, &Failure::TIMED_OUT, FailedChild::Killed);
            return self.answer_start(start, Err(unlimited(error)));
        }
        let mut held = Held::new(launch, child, cgroups, streams, self.unmap_written);
        let newest = self.held.newest(&launch.id).filter(|_| launch.continues);
        let earlier = newest.filter(|(_, held)| held.exit.is_some()).map(|(key, _)| key);
        if earlier.is_none() {
            self.come_after(&launch.id, &mut held.sink);
        }
        let answer = spawned(key, &held, false, earlier.unwrap_or(0));
        self.held.insert(key, held);
        if let Some(earlier) = earlier {
            self.go_on(earlier, key);
        }
        if matches!(self.stop, Some(Stop::Killing { .. })) {
            self.kills.push(Kill::new(key, None));
        }
        self.answer_start(start, Ok(answer));
    }
}

/// What came of the beginning of a start.
enum Begun {
    /// The process is there already.
    Existing(Answer),
    /// A helper makes it.
    Starting { number: u64, key: u64, streams: Box<Streams>, cgroups: ProcessCgroups },
}

fn spawned(key: u64, held: &Held, existed: bool, continued: u64) -> Answer {
    let (pid, start_time) = (held.pid.cast_unsigned(), held.start_time);
    Answer::Spawned(pb::Spawned { key, pid, start_time, existed, continued })
}

fn is_out_of_descriptors(refused: &Refused) -> bool {
    matches!(refused, Refused::SpawnFailed { errno: libc::EMFILE | libc::ENFILE, .. })
}

fn unopened(io: Io, errno: Errno) -> Refused {
    let step = match io {
        Io::Pipes { .. } => "cannot open pipes",
        Io::Terminal(_) => step::TERMINAL,
    };
    Refused::SpawnFailed { step: step.into(), errno: errno.raw_os_error(), path: String::new() }
}

fn unlimited(error: io::Error) -> Refused {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Refused::SpawnFailed { step: step::LIMIT_TREE.into(), errno, path: String::new() }
}
