//! The processes that the keeper holds: the living, and the finished until they are released.
//!
//! Owns the table and one entry's state. An entry knows what the server was told of it, so that
//! a report is made from the state and no queue of news exists.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::cgroup::{Cgroups, Leaf};
use super::controllers::Confined;
use super::input::Input;
use super::output::{MAX_UNREAD, Output, Pause, Pumped, Sink};
use super::poller::{Poller, Token};
use super::ring::Writer;
use super::spawn::{Child, Spawner};
use super::start::ProcessCgroups;
use super::stream_helpers::{Call, StreamHelpers};
use super::streams::Streams;
use super::terminal::Terminal;
use super::tree::{self, Known, LeafOwner};
use super::turns::wall_clock;
use crate::process::{Exit, Launch};
use crate::protocol::pb;

/// Most processes held at once, living and finished. The server releases finished ones long
/// before; the bound keeps a mistake there from taking the keeper's memory.
pub(super) const MAX_HELD: usize = 65_536;

/// How long news of a flood may wait for more of it.
const BULK_NEWS: Duration = Duration::from_micros(500);

/// What a buffer of a pipe holds at most. A packet (`O_DIRECT`) takes a whole one, however short it
/// is, and a read takes one at least.
const PIPE_PAGE: usize = 4096;

/// One process.
pub(super) struct Held {
    pub(super) id: Box<str>,
    pub(super) run: u32,
    pub(super) pid: i32,
    /// None once it was reaped: from then on the pid may be another's.
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) start_time: u64,
    pub(super) on_terminal: bool,
    /// Until it has ended: terminals are scarce.
    pub(super) terminal: Option<Terminal>,
    /// stdout or the terminal, and stderr; none when ended.
    pub(super) outputs: [Option<Output>; 2],
    pub(super) input: Input,
    pub(super) sink: Sink,
    pub(super) exit: Option<Box<Exit>>,
    /// Its leaf in the cgroup tree, until it has ended and left nobody there.
    pub(super) leaf: Option<Leaf>,
    /// Numbers of the leaves of earlier launches in which descendants live on.
    earlier_leaves: Vec<u64>,
    /// The user that it was started as, unless that is root or the keeper's own.
    uid: Option<u32>,
    /// What limits its tree, until it has ended.
    pub(super) confined: Option<Confined>,
    /// The keeper has sent it SIGKILL.
    pub(super) killed: bool,
    told: Told,
}

/// What the server was told.
#[derive(Default)]
struct Told {
    /// It stands in the list of those with news.
    listed: bool,
    ring: bool,
    exit: bool,
}

impl Held {
    /// A process that was just started. Its ring unmaps what was written if `unmap_written`.
    pub(super) fn new(
        launch: &Launch,
        child: Child,
        cgroups: ProcessCgroups,
        streams: Streams,
        unmap_written: bool,
    ) -> Held {
        let ProcessCgroups { leaf, confined } = cgroups;
        let Streams { terminal, outputs, input, child: _ } = streams;
        Held {
            id: launch.id.as_str().into(),
            run: launch.run,
            pid: child.pid,
            pidfd: Some(child.pidfd),
            start_time: wall_clock(),
            on_terminal: terminal.is_some(),
            terminal,
            outputs,
            input,
            sink: Sink::new(launch, unmap_written),
            exit: None,
            leaf,
            earlier_leaves: Vec::new(),
            uid: launch.user.as_ref().map(|user| user.uid).filter(|uid| *uid != 0),
            confined,
            killed: false,
            told: Told::default(),
        }
    }

    /// Nothing can write to its outputs any more.
    fn drained(&self) -> bool {
        self.exit.is_some() && self.outputs.iter().all(Option::is_none)
    }

    /// An output waits until chunks are acknowledged.
    fn awaits_reader(&self) -> bool {
        self.outputs.iter().flatten().any(|output| output.paused == Some(Pause::RingFull))
    }

    /// Reads one output once, and lets go of it when it has ended. `waits`: also waits for a read that may
    /// be late.
    pub(super) fn pump(
        &mut self,
        (token, waits): (Token, bool),
        time: u64,
        poller: &Poller,
        helpers: &mut StreamHelpers,
    ) -> Pumped {
        let Token::Output(_, output) = token else { return Pumped::Empty };
        let Some(source) = &mut self.outputs[output] else { return Pumped::Empty };
        let pumped = source.pump(&mut self.sink, time, (token, waits), helpers);
        if pumped == Pumped::Ended {
            self.end_output(output, poller);
        }
        pumped
    }

    /// Takes what a late read has brought, as [`Held::pump`] does.
    pub(super) fn finish_read(
        &mut self,
        output: usize,
        time: u64,
        call: Call,
        poller: &Poller,
        helpers: &mut StreamHelpers,
    ) -> Pumped {
        let Some(source) = &mut self.outputs[output] else { return Pumped::Empty };
        let pumped = source.finish_read(&mut self.sink, time, call, helpers);
        if pumped == Pumped::Ended {
            self.end_output(output, poller);
        }
        pumped
    }

    /// Nobody can write to an output any more. Closing alone would not end the watch: a terminal
    /// stays open through other descriptors, and would be reported as ended for ever.
    pub(super) fn end_output(&mut self, output: usize, poller: &Poller) {
        if let Some(output) = self.outputs[output].take() {
            poller.remove(&output.end);
        }
        self.terminal = None;
    }

    /// Nothing can be typed any more.
    pub(super) fn end_input(&mut self, poller: &Poller) {
        if let Some(end) = self.input.end() {
            poller.remove(end);
        }
        self.input.close();
    }

    /// Reads all that was written before the exit: until there is nothing, or until as much was
    /// read as the pipe can have held, in bytes and in packets, since a descendant may write for ever.
    /// What another process keeps from being read is not waited for.
    pub(super) fn drain(
        &mut self,
        key: u64,
        time: u64,
        poller: &Poller,
        helpers: &mut StreamHelpers,
    ) {
        self.sink.open_exit_room();
        for output in 0..self.outputs.len() {
            let mut left = MAX_UNREAD;
            let mut reads_left = MAX_UNREAD / PIPE_PAGE;
            loop {
                match self.pump((Token::Output(key, output), true), time, poller, helpers) {
                    Pumped::Bytes(len) | Pumped::Bulk(len) if len < left && reads_left > 1 => {
                        left -= len;
                        reads_left -= 1;
                    }
                    Pumped::NoRoom => self.sink.give_way(),
                    _ => break,
                }
            }
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.release();
            helpers.finish_closes();
            self.pump((Token::Output(key, 0), true), time, poller, helpers);
        }
    }

    /// Lets go of its outputs: whoever still writes to them is told so by the kernel.
    pub(super) fn end_outputs(&mut self, poller: &Poller) {
        for output in 0..self.outputs.len() {
            self.end_output(output, poller);
        }
    }

    /// Who it is, for a server that has not met it.
    fn describe(&self) -> pb::Held {
        let size = self.terminal.as_ref().map(Terminal::size);
        pb::Held {
            id: self.id.to_string(),
            run: self.run,
            pid: self.pid.cast_unsigned(),
            start_time: self.start_time,
            rows: size.map_or(0, |size| size.rows.into()),
            cols: size.map_or(0, |size| size.cols.into()),
        }
    }

    /// What the server should know, and the ring's descriptor if it has not got it yet.
    pub(super) fn report(&mut self, key: u64, adoption: bool) -> (pb::Report, Option<Rc<OwnedFd>>) {
        if adoption {
            self.told = Told::default();
        }
        self.told.listed = false;
        let ring = self.sink.ring.as_ref().filter(|_| !self.told.ring).map(Writer::fd);
        self.told.ring |= ring.is_some();
        let exit = self.exit.as_ref().filter(|_| !self.told.exit).map(|exit| exit.as_ref().clone());
        self.told.exit |= exit.is_some();
        let held = adoption.then(|| self.describe());
        let report = pb::Report {
            key,
            held,
            ring: ring.is_some(),
            next_seq: self.sink.next_seq(),
            input: Some(self.input.state().into()),
            exit: exit.map(Into::into),
            drained: self.drained(),
            awaits_reader: self.awaits_reader(),
        };
        (report, ring)
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Table {
    held: HashMap<u64, Held>,
    by_pid: HashMap<i32, u64>,
    by_id: HashMap<Box<str>, u64>,
    /// The processes that have leaves, by the numbers of these.
    by_leaf: HashMap<u64, u64>,
    /// Those with news for the server, the oldest first.
    news: VecDeque<u64>,
    /// Those of which more of the same will be told soon, and when it is to be told at last.
    bulk_news: BTreeSet<u64>,
    bulk_due: Option<Instant>,
    last_key: u64,
    /// The server's pid, which is no process of the table.
    pub(super) server: Option<i32>,
    /// The pid of one that is to take over, likewise.
    pub(super) candidate: Option<i32>,
}

impl Table {
    /// The number for the next process.
    pub(super) fn next_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    pub(super) fn insert(&mut self, key: u64, held: Held) {
        self.by_pid.insert(held.pid, key);
        self.by_id.insert(held.id.clone(), key);
        self.by_leaf.extend(held.leaf.as_ref().map(|leaf| (leaf.number(), key)));
        self.held.insert(key, held);
    }

    /// A leaf is free for another process.
    pub(super) fn leaf_freed(&mut self, leaf: &Leaf) {
        self.by_leaf.remove(&leaf.number());
    }

    /// Leaves of an earlier launch in which descendants live on belong to the next one.
    pub(super) fn inherit_leaves(&mut self, from: u64, to: u64, cgroups: &Cgroups) {
        let Some(before) = self.held.get_mut(&from) else { return };
        let own = before.leaf.as_ref().map(Leaf::number);
        let mut leaves = std::mem::take(&mut before.earlier_leaves);
        leaves.extend(own);
        for leaf in &leaves {
            self.by_leaf.remove(leaf);
        }
        leaves.retain(|leaf| cgroups.has_members(*leaf));
        if let Some(held) = self.held.get_mut(&to) {
            self.by_leaf.extend(leaves.iter().map(|leaf| (*leaf, to)));
            held.earlier_leaves.extend(leaves);
        }
    }

    pub(super) fn get(&self, key: u64) -> Option<&Held> {
        self.held.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Held> {
        self.held.get_mut(&key)
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn keys(&self) -> Vec<u64> {
        let mut keys: Vec<u64> = self.held.keys().copied().collect();
        keys.sort_unstable();
        keys
    }

    /// Descriptors that the rings to come may need at most.
    pub(super) fn rings_to_come(&self) -> usize {
        self.by_pid.len()
    }

    /// The newest run of this id that is held.
    pub(super) fn newest(&self, id: &str) -> Option<(u64, &Held)> {
        let key = *self.by_id.get(id)?;
        self.held.get(&key).map(|held| (key, held))
    }

    pub(super) fn by_pid(&self, pid: i32) -> Option<u64> {
        self.by_pid.get(&pid).copied()
    }

    /// It was reaped: its pid means nothing from here on.
    pub(super) fn reaped(&mut self, key: u64) {
        if let Some(held) = self.held.get_mut(&key) {
            held.pidfd = None;
            self.by_pid.remove(&held.pid);
        }
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<Held> {
        let held = self.held.remove(&key)?;
        if self.by_id.get(&held.id) == Some(&key) {
            self.by_id.remove(&held.id);
        }
        let own = held.leaf.as_ref().map(Leaf::number);
        for leaf in held.earlier_leaves.iter().copied().chain(own) {
            if self.by_leaf.get(&leaf) == Some(&key) {
                self.by_leaf.remove(&leaf);
            }
        }
        Some(held)
    }

    /// The server is to be told of it.
    pub(super) fn has_news(&mut self, key: u64) {
        if let Some(held) = self.held.get_mut(&key)
            && !std::mem::replace(&mut held.told.listed, true)
        {
            self.news.push_back(key);
        }
    }

    /// The server is to be told of it, but not each time: it prints faster than is worth telling.
    pub(super) fn has_bulk_news(&mut self, key: u64) {
        self.bulk_news.insert(key);
        self.bulk_due.get_or_insert_with(|| Instant::now() + BULK_NEWS);
    }

    /// When the news that can wait is to be told.
    pub(super) fn bulk_news_due(&self) -> Option<Instant> {
        self.bulk_due
    }

    /// Takes some of those with news.
    pub(super) fn take_news(&mut self, most: usize) -> Vec<u64> {
        if self.bulk_due.take_if(|due| *due <= Instant::now()).is_some() {
            for key in std::mem::take(&mut self.bulk_news) {
                self.has_news(key);
            }
        }
        self.news.drain(..most.min(self.news.len())).collect()
    }

    /// Nobody is there to be told; an adoption will tell it all.
    pub(super) fn forget_news(&mut self) {
        (self.bulk_news, self.bulk_due) = (BTreeSet::new(), None);
        for key in std::mem::take(&mut self.news) {
            if let Some(held) = self.held.get_mut(&key) {
                held.told.listed = false;
            }
        }
    }
}

/// The children that the keeper made itself.
pub(super) struct OwnChildren<'a> {
    pub(super) table: &'a Table,
    pub(super) spawner: &'a Spawner,
    pub(super) helpers: &'a StreamHelpers,
    pub(super) cgroups: Option<&'a Cgroups>,
}

impl Known for OwnChildren<'_> {
    fn is_own(&self, pid: i32) -> bool {
        let Table { by_pid, server, candidate, .. } = self.table;
        by_pid.contains_key(&pid)
            || [*server, *candidate].contains(&Some(pid))
            || self.spawner.pids().any(|own| own == pid)
            || self.helpers.owns(pid)
    }

    fn led_by(&self, leader: i32) -> Option<u64> {
        self.table.by_pid(leader)
    }

    fn leaf_owner(&self, pid: i32) -> LeafOwner {
        let Some(leaf) = self.cgroups.and_then(|cgroups| cgroups.leaf_of(pid)) else {
            return LeafOwner::NoLeaf;
        };
        self.table.by_leaf.get(&leaf).map_or(LeafOwner::Unknown, |key| LeafOwner::Process(*key))
    }

    fn named(&self, id: &str, orphan: i32) -> Option<u64> {
        let (key, held) = self.table.newest(id)?;
        // By its real user: any user can execute a program that is setuid root.
        let may_belong =
            |uid: u32| tree::uids(orphan).is_some_and(|[real, ..]| [uid, 0].contains(&real));
        held.uid.is_none_or(may_belong).then_some(key)
    }

    fn holds(&self, key: u64) -> bool {
        self.table.held.contains_key(&key)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    use super::*;
    use crate::keeper::stream_helpers::End;
    use crate::process::Io;
    use crate::transcript::Stream;

    #[test]
    fn drain_ends_though_each_read_brings_little() {
        let launch = Launch::new("a", ["x"]);
        let mut helpers = StreamHelpers::new().unwrap();
        let io = Io::Pipes { stdin: false, merge_stderr: true };
        let mut streams = Streams::open(io, helpers.closes()).unwrap();
        // Of a file whose size is not known each read takes little, and there is always more.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let endless = rustix::fs::open("/dev/zero", flags, Mode::empty()).unwrap();
        streams.outputs =
            [Some(Output::new(End::of_terminal(endless, helpers.closes()), Stream::Stdout)), None];
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let child = Child { pid: getpid().as_raw_nonzero().get(), pidfd };
        let mut held = Held::new(&launch, child, ProcessCgroups::default(), streams, false);
        let first = held.sink.next_seq();
        held.drain(1, 0, &Poller::new().unwrap(), &mut helpers);
        let chunks = held.sink.next_seq() - first;
        assert!((1..=512).contains(&chunks), "{chunks} chunks");
    }
}
