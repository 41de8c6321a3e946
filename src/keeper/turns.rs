//! The keeper's loop: wait, do a bounded share of everything, tell the server, wait again.
//!
//! Owns the state of the keeper. Each turn takes output first, then ends, then starts, each
//! within a budget, so that neither a flood of starts nor one of exits delays capture for long.
//! The requests are in `requests`, exits in `ending`, kills in `kill`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use super::cgroup::Cgroups;
use super::controllers::Controllers;
use super::ending;
use super::held::{OwnChildren, Table};
use super::kill::Kill;
use super::link::Link;
use super::output::{Output, Pause, Pumped};
use super::owner_wait::OwnerWait;
use super::poller::{EventFlags, Poller, Token};
use super::server::Source;
use super::spawn::Spawner;
use super::start::{Start, Starting};
use super::stream_helpers::{Call, StreamHelpers};
use super::tree::{Forest, Pass};
use super::upgrade::Upgrade;
use crate::process::{KillDomain, Parts};
use crate::protocol::{pb, socket};

/// What starts, and what exits, may take of one turn.
pub(super) const BUDGET: Duration = Duration::from_micros(500);
/// Starts that wait, and kills; beyond, nothing more is read from the server. A kill can wait for seconds, for a
/// tree that SIGKILL does not end, so that kills must not hold back starts.
const MAX_STARTS: usize = 1024;
const MAX_KILLS: usize = 4096;
/// Bytes of an output that brings much, and reads of a terminal that does, before others have their turn.
const MAX_TURN_BYTES: usize = 256 << 10;
const MAX_TURN_READS: usize = 4;
/// How often a kill is looked at again, should an event be missing.
pub(super) const KILL_TICK: Duration = Duration::from_millis(20);
/// How often is tried again what the machine had no room for.
const RETRY_TICK: Duration = Duration::from_millis(2);

/// The keeper.
pub(super) struct Keeper {
    pub(super) poller: Poller,
    pub(super) signals: OwnedFd,
    pub(super) spawner: Spawner,
    pub(super) stream_helpers: StreamHelpers,
    pub(super) forest: Forest,
    /// Dropped before the leaves, among which it may have put the keeper itself.
    pub(super) controllers: Controllers,
    pub(super) cgroups: Option<Cgroups>,
    /// Which parts of a sandbox can be had.
    pub(super) sandbox: Parts,
    /// Rings unmap what was written: the keeper's memory is limited and its OOM score is not low.
    pub(super) unmap_written: bool,
    pub(super) held: Table,
    pub(super) link: Option<Link>,
    pub(super) source: Source,
    pub(super) upgrade: Option<Upgrade>,
    /// Starts that wait for their turn, and those that wait for a busy program file.
    pub(super) starts: VecDeque<Start>,
    pub(super) busy: Vec<Start>,
    /// Starts whose exec is under way.
    pub(super) starting: Vec<Starting>,
    /// An adoption that waits for these.
    pub(super) adopt_request: Option<u64>,
    pub(super) kills: Vec<Kill>,
    /// The look at what is being killed that is under way.
    pub(super) look: Option<Pass>,
    /// Whether it is known of all children whose they are, if the slice of the look that is under way
    /// has found out.
    pub(super) all_children_judged: Option<bool>,
    /// The search for descendants that the end of a process waits for, and its pid.
    pub(super) exit_search: Option<(i32, ending::ExitSearch)>,
    pub(super) owner_wait: OwnerWait,
    /// Processes with an output that found no ring.
    pub(super) stalled: Vec<u64>,
    /// When the busy, the stalled and a throttled link are to be tried again.
    pub(super) retry_at: Option<Instant>,
    pub(super) sweep_due: bool,
    pub(super) last_sweep: Instant,
    pub(super) serve_due: bool,
    /// A request was left where it is, for want of room.
    pub(super) held_back: bool,
    pub(super) kills_due: bool,
    pub(super) last_look: Instant,
    pub(super) stop: Option<ending::Stop>,
}

/// Nanoseconds since 1970.
pub(super) fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}

impl Keeper {
    /// Runs until it was told to stop and everything has ended.
    pub(super) fn run(&mut self) -> io::Result<()> {
        self.poller.add(&self.signals, Token::Signals, EventFlags::IN)?;
        self.poller.add(self.spawner.done_event(), Token::Started, EventFlags::IN)?;
        self.poller.add(self.stream_helpers.done_event(), Token::StreamCallDone, EventFlags::IN)?;
        while !self.stopped() {
            self.tend_server();
            for (token, flags) in self.poller.wait(self.timeout())? {
                self.dispatch(token, flags);
            }
            // Before ends, so that it is known whose they are.
            self.finish_starts();
            self.sweep();
            self.serve();
            self.judge_server();
            self.tend_upgrade();
            self.retry();
            self.start_queued();
            // Before kills are answered, so that by then the exit was told.
            self.report();
            self.advance_kills();
            self.advance_stop();
            self.flush();
            self.kill_excess();
            self.stream_helpers.close_ends();
        }
        Ok(())
    }

    pub(super) fn own_children(&self) -> OwnChildren<'_> {
        let (table, spawner, helpers) = (&self.held, &self.spawner, &self.stream_helpers);
        OwnChildren { table, spawner, helpers, cgroups: self.cgroups.as_ref() }
    }

    /// How trees are ended here.
    pub(super) fn kill_domain(&self) -> KillDomain {
        if self.cgroups.is_some() { KillDomain::Cgroup } else { KillDomain::Walk }
    }

    /// How long nothing needs to be done unless something happens.
    fn timeout(&self) -> Option<Duration> {
        if self.sweep_due || self.serve_due || self.is_start_due() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let server = self.server_due(now);
        let retry = self.retry_at.map(|at| at.saturating_duration_since(now));
        let kill_due = if self.is_looking() { Duration::ZERO } else { KILL_TICK };
        let kill = (!self.kills.is_empty()).then_some(kill_due);
        let stop = self.stop.as_ref().map(|stop| stop.due(now));
        let bulk =
            self.held.bulk_news_due().filter(|_| self.link.as_ref().is_some_and(Link::has_ear));
        let bulk = bulk.map(|due| due.saturating_duration_since(now));
        let pulse = self.pulse_due().map(|due| due.saturating_duration_since(now));
        let upgrade = self.upgrade_due().map(|due| due.saturating_duration_since(now));
        let sweep = self.late_sweep_due().map(|due| due.saturating_duration_since(now));
        let start = self.spawner.due(!self.starts.is_empty());
        let start = start.map(|due| due.saturating_duration_since(now));
        let closes = self.stream_helpers.due().map(|due| due.saturating_duration_since(now));
        let dues = [server, retry, kill, stop, bulk, pulse, upgrade, sweep, start, closes];
        dues.into_iter().flatten().min()
    }

    fn dispatch(&mut self, token: Token, flags: EventFlags) {
        match token {
            Token::Signals => self.read_signals(),
            Token::Control => self.connect_waiting(),
            Token::Link if flags.contains(EventFlags::HUP) && self.is_full() => {
                // Gone, and nothing more is taken from it until something else is done.
                self.disconnect(&io::ErrorKind::BrokenPipe.into());
            }
            Token::Link => self.serve_due = true,
            Token::Candidate => self.hear_candidate(),
            Token::Started => {
                self.spawner.clear_done_event();
                // A child may have ended before it was known whose it is.
                self.sweep_due = true;
            }
            Token::StreamCallDone => {
                for call in self.stream_helpers.take_done() {
                    self.finish_call(call);
                }
            }
            Token::Output(key, output) => self.capture(key, output, flags),
            Token::Input(key) => self.type_pending(key),
            Token::Terminal(_) => {}
        }
    }

    /// Reads an output, once or, while it brings much, a few times; its next turn comes with the
    /// next event. News of much can wait for the news of more.
    fn capture(&mut self, key: u64, output: usize, flags: EventFlags) {
        let Some(held) = self.held.get_mut(key) else { return };
        let has_unappended =
            held.outputs[output].as_ref().is_some_and(|output| output.has_unappended());
        if !flags.contains(EventFlags::IN) && !has_unappended {
            // Hung up and empty.
            held.end_output(output, &self.poller);
            // Before the exit it tells nobody anything.
            if held.exit.is_some() {
                self.held.has_news(key);
            }
            return;
        }
        let token = Token::Output(key, output);
        let (mut bytes, mut reads) = (0, 0);
        let pumped = loop {
            reads += 1;
            match held.pump((token, false), wall_clock(), &self.poller, &mut self.stream_helpers) {
                Pumped::Bulk(len) if bytes + len < MAX_TURN_BYTES && reads < MAX_TURN_READS => {
                    bytes += len;
                }
                pumped => break pumped,
            }
        };
        match pumped {
            Pumped::Bulk(_) => self.held.has_bulk_news(key),
            Pumped::Empty if bytes > 0 => self.held.has_bulk_news(key),
            pumped => self.after_read(key, output, pumped),
        }
    }

    /// Reports what a read of an output has brought, and stops watching the output if it cannot be read.
    fn after_read(&mut self, key: u64, output: usize, pumped: Pumped) {
        match pumped {
            Pumped::Empty => return,
            Pumped::Bytes(_) | Pumped::Bulk(_) | Pumped::Ended => {}
            Pumped::NoRoom => self.pause(key, output, Pause::RingFull),
            Pumped::Late => self.pause(key, output, Pause::Late),
            Pumped::Trouble(error) => {
                let process = self.held.get(key).map(|held| &*held.id);
                tracing::debug!(process, %error, "output capture paused");
                self.pause(key, output, Pause::ResourceExhausted);
            }
        }
        self.held.has_news(key);
    }

    /// A late call on a pipe was made.
    fn finish_call(&mut self, call: Call) {
        match call.token() {
            Token::Output(key, output) => {
                let Some(held) = self.held.get_mut(key) else { return };
                let (poller, helpers) = (&self.poller, &mut self.stream_helpers);
                let pumped = held.finish_read(output, wall_clock(), call, poller, helpers);
                self.watch_output(key, output);
                self.after_read(key, output, pumped);
            }
            Token::Input(key) => {
                let Some(held) = self.held.get_mut(key) else { return };
                held.input.finish_write(key, call, &mut self.stream_helpers);
                self.watch_input(key);
                self.held.has_news(key);
            }
            Token::Terminal(key) => {
                let terminal = self.held.get_mut(key).and_then(|held| held.terminal.as_mut());
                if let Some(terminal) = terminal {
                    terminal.finish_resize(key, &mut self.stream_helpers);
                }
            }
            _ => {}
        }
    }

    /// A helper that makes calls on pipes was killed.
    pub(super) fn lose_stream_helper(&mut self, pid: i32) {
        if let Some(call) = self.stream_helpers.lose(pid) {
            self.finish_call(call);
        }
    }

    /// Kills the process whose stream is locked for the longest time while too many are.
    fn kill_excess(&mut self) {
        while let Some(Token::Output(key, _) | Token::Input(key) | Token::Terminal(key)) =
            self.stream_helpers.take_excess()
        {
            if let Some(held) = self.held.get(key) {
                tracing::warn!(
                    process = &*held.id,
                    "killed: it keeps its streams locked, as too many processes do"
                );
                self.kills.push(Kill::new(key, None));
                self.kills_due = true;
            }
        }
    }

    /// Stops watching an output: until chunks are acknowledged, or, if the machine is in
    /// trouble, for a while.
    fn pause(&mut self, key: u64, output: usize, why: Pause) {
        if why == Pause::ResourceExhausted {
            self.stalled.push(key);
            self.retry_soon();
        }
        let Some(held) = self.held.get_mut(key) else { return };
        if let Some(output) = &mut held.outputs[output] {
            output.paused = Some(why);
            self.poller.remove(&output.end);
        }
    }

    /// Watches the outputs of a process again.
    pub(super) fn resume(&mut self, key: u64) {
        let Some(held) = self.held.get(key) else { return };
        let can_resume = |output: &Option<Output>| output.as_ref().is_some_and(Output::can_resume);
        let paused = held.outputs.each_ref().map(can_resume);
        for output in (0..paused.len()).filter(|output| paused[*output]) {
            // What was read already comes first: the pipe may have nothing more, and no event for it.
            if self.append_rest(key, output) {
                self.watch_output(key, output);
            }
            self.held.has_news(key);
        }
    }

    /// Appends what was read of an output and found no room. False: there is still no room.
    fn append_rest(&mut self, key: u64, output: usize) -> bool {
        let Some(held) = self.held.get_mut(key) else { return false };
        if !held.outputs[output].as_ref().is_some_and(Output::has_unappended) {
            return true;
        }
        let token = Token::Output(key, output);
        match held.pump((token, false), wall_clock(), &self.poller, &mut self.stream_helpers) {
            Pumped::NoRoom => false,
            Pumped::Trouble(_) => {
                self.stalled.push(key);
                self.retry_soon();
                false
            }
            _ => true,
        }
    }

    /// Watches an output again.
    fn watch_output(&mut self, key: u64, n: usize) {
        let Some(held) = self.held.get_mut(key) else { return };
        let Some(output) = held.outputs[n].as_mut().filter(|output| output.paused.is_some()) else {
            return;
        };
        let added = self.poller.add(&output.end, Token::Output(key, n), EventFlags::IN);
        output.paused = added.is_err().then_some(Pause::ResourceExhausted);
        if output.paused.is_some() {
            self.stalled.push(key);
            self.retry_soon();
        }
    }

    /// Has another try made of what was put aside.
    pub(super) fn retry_soon(&mut self) {
        self.retry_at.get_or_insert_with(|| Instant::now() + RETRY_TICK);
    }

    /// Tries again what the machine had no room for, or what found its program being written.
    fn retry(&mut self) {
        if self.retry_at.take_if(|at| *at <= Instant::now()).is_none() {
            return;
        }
        for key in std::mem::take(&mut self.stalled) {
            self.resume(key);
            if self.held.get(key).is_some_and(|held| held.input.is_stalled()) {
                self.type_pending(key);
            }
        }
        self.starts.extend(self.busy.drain(..));
    }

    fn type_pending(&mut self, key: u64) {
        let Some(held) = self.held.get_mut(key) else { return };
        if let Some(end) = held.input.end() {
            // Watched again below, if something still pends; a later write may have taken all
            // that did along.
            self.poller.remove(end);
        }
        held.input.flush(key, &mut self.stream_helpers);
        self.watch_input(key);
        self.held.has_news(key);
    }

    /// Watches an input while something pends before it.
    pub(super) fn watch_input(&mut self, key: u64) {
        if self.held.get(key).is_some_and(|held| held.input.is_stalled()) {
            self.stalled.push(key);
            return self.retry_soon();
        }
        let Some(end) = self.held.get(key).and_then(|held| held.input.waiting()) else { return };
        let _ = self.poller.add(end, Token::Input(key), EventFlags::OUT);
    }

    /// Tells the server what has changed, as far as there is room to tell it.
    fn report(&mut self) {
        let Some(link) = &mut self.link else { return self.held.forget_news() };
        while link.has_ear() {
            let keys = self.held.take_news(socket::MAX_DESCRIPTORS);
            if keys.is_empty() {
                break;
            }
            tell(link, &mut self.held, &keys, false);
        }
    }

    /// So much is under way for the server that nothing more is taken from it.
    fn is_full(&self) -> bool {
        let starts = self.starts.len() + self.busy.len() + self.starting.len();
        let queue_full = starts >= MAX_STARTS || self.kills.len() >= MAX_KILLS;
        queue_full || self.link.as_ref().is_some_and(Link::crowded)
    }

    fn flush(&mut self) {
        let Some(link) = &mut self.link else { return };
        if let Err(error) = link.flush() {
            return self.disconnect(&error);
        }
        let full = self.is_full();
        self.serve_due |= !full && std::mem::take(&mut self.held_back);
        let Some(link) = &mut self.link else { return };
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !full);
        flags.set(EventFlags::OUT, link.awaits_socket());
        if std::mem::replace(&mut link.watched, flags) != flags {
            self.poller.modify(link.socket(), Token::Link, flags);
        }
        if link.awaits_retry() {
            self.retry_soon();
        }
    }

    /// Takes requests from the server, as far as the budget of a turn goes.
    fn serve(&mut self) {
        let begin = Instant::now();
        while std::mem::take(&mut self.serve_due) {
            match self.next_request() {
                Ok(Some(message)) => {
                    self.request(message);
                    self.serve_due = true;
                }
                Ok(None) => {}
                Err(error) => return self.disconnect(&error),
            }
            if begin.elapsed() > BUDGET {
                return;
            }
        }
    }

    /// The next request, if it is there and there is room for it.
    fn next_request(&mut self) -> io::Result<Option<pb::ToKeeper>> {
        let full = self.is_full();
        let Some(link) = &mut self.link else { return Ok(None) };
        if full {
            // Whole requests may lie in the link's buffer, for which no event will come.
            self.held_back = true;
            return Ok(None);
        }
        loop {
            match link.next().map_err(io::Error::other)? {
                None if link.receive()? => {}
                message => return Ok(message),
            }
        }
    }

    pub(super) fn reply(&mut self, request: u64, result: pb::reply::Result) {
        if let Some(link) = &mut self.link {
            link.reply(request, result);
        }
    }
}

/// Reports the state of some processes in one message.
pub(super) fn tell(link: &mut Link, table: &mut Table, keys: &[u64], adoption: bool) {
    let mut reports = Vec::with_capacity(keys.len());
    let mut fds = Vec::new();
    for key in keys {
        if let Some(held) = table.get_mut(*key) {
            let (report, ring) = held.report(*key, adoption);
            reports.push(report);
            fds.extend(ring);
        }
    }
    link.push(pb::from_keeper::Body::Reports(pb::Reports { reports }), fds);
}
