//! Who belongs to whom: the descendants of a process, wherever they went.
//!
//! The keeper is a subreaper, so all descendants stay below it: each is reached from the process
//! itself, or from an orphan that became the keeper's child. Orphans belong to a process by
//! session, by group or by their cgroup leaf, and outside of all leaves by the cookie `PROCYARD_ID`
//! in their environment. Whatever is not below the keeper is never looked at, let alone signalled.
//!
//! An orphan is the keeper's child, so its pid stays its own until the keeper reaps it, and
//! what was found out about it can be kept under its pid.

mod environ;
mod unkillable;
mod walk;

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::spawn::COOKIE;
use crate::process::Descendant;
use environ::EnvironReader;

pub(super) use environ::Environment;
pub(super) use unkillable::held_zombie;
pub use unkillable::signal_leftovers;
pub(super) use walk::{Group, LeafMembers, Walk};

/// Ticks of a second in what the kernel tells of used time, whatever it counts with itself.
const TICKS: u64 = 100;

/// Flags of a task, in the kernel's numbers: it exits; it was forked and has executed nothing.
const PF_EXITING: u32 = 0x4;
const PF_FORKNOEXEC: u32 = 0x40;

/// Longest id that is remembered of an orphan: longer than any that a process can have.
const MAX_ID_REMEMBERED: usize = 1024;

/// Finds descendants.
pub(super) struct Forest {
    keeper: i32,
    /// The kernel's list of the keeper's children; without one, as some kernels are, all of
    /// `/proc` is searched for children.
    list: Option<File>,
    /// The keeper's adopted children, and whose they are.
    orphans: HashMap<i32, Orphan>,
    /// Processes that were found below one that is being killed, by pid: start time and owner. An
    /// orphan among them is that owner's, whatever its environment says.
    seen: HashMap<i32, (u64, u64)>,
    /// Processes that were below the keeper before it became one, by pid: start time. None of them
    /// belongs to a process that the keeper started, whatever its environment says.
    earlier: HashMap<i32, u64>,
    environs: EnvironReader,
}

/// A child that the keeper has adopted.
struct Orphan {
    start: u64,
    /// The process whose descendant it is, if that was found out.
    owner: Option<u64>,
    /// It is in a leaf of the keeper, which tells whose it is.
    is_in_leaf: bool,
    /// What its environment says. It is searched once: an exec brings another.
    searched: Option<Searched>,
}

/// An environment that was searched for the cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Searched {
    environ: Environ,
    /// The id that it names; the process with that id may be started later.
    id: Option<Box<str>>,
}

/// Where the environment of a process lies in its memory; zeros: it has none yet, in the middle of
/// an exec, or it is not the keeper's to read.
type Environ = (u64, u64);

/// A pass over the keeper's children that places orphans, in slices.
pub(super) struct Pass {
    children: Vec<i32>,
    which: Which,
}

/// The orphans that a pass places.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that came since the last pass.
    New,
    /// Those whose owner is not known, too.
    Unplaced,
}

/// Whose leaf a process is in.
pub(super) enum LeafOwner {
    /// It is in none of the keeper's leaves.
    NoLeaf,
    /// It is in one that no held process has: that was released, or is about to be held.
    Unknown,
    /// It is in the leaf of this process.
    Process(u64),
}

/// What the keeper knows of the processes it started.
pub(super) trait Known {
    /// How many children the keeper started and has not reaped.
    fn own(&self) -> usize;
    /// The keeper started this child itself.
    fn is_own(&self, pid: i32) -> bool;
    /// The process that leads this session or group, if it was not reaped yet: afterwards the
    /// number may be another's.
    fn led_by(&self, leader: i32) -> Option<u64>;
    /// Whose leaf a process is in.
    fn leaf_owner(&self, pid: i32) -> LeafOwner;
    /// The process with this id, if an orphan may belong to it by its user.
    fn named(&self, id: &str, orphan: i32) -> Option<u64>;
    /// The keeper holds this process.
    fn holds(&self, key: u64) -> bool;
}

/// A living member of a tree.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) pid: i32,
    start: u64,
    command: String,
}

impl Member {
    fn new(pid: i32, stat: Stat) -> Member {
        Member { pid, start: stat.start, command: stat.command }
    }

    /// A living process, if `belongs` says that it is the one that is meant.
    pub(super) fn find(pid: i32, belongs: impl FnOnce() -> bool) -> Option<Member> {
        // In this order: whoever has the pid afterwards has another start time.
        let stat = Stat::read(pid).filter(|stat| stat.alive)?;
        belongs().then(|| Member::new(pid, stat))
    }

    /// Whether both are the same process; the pid alone may be another's by now.
    pub(super) fn is_same(&self, other: &Member) -> bool {
        self.identity() == other.identity()
    }

    /// The pid and the start time, which no other process has.
    pub(super) fn identity(&self) -> (i32, u64) {
        (self.pid, self.start)
    }

    pub(super) fn describe(&self) -> Descendant {
        Descendant { pid: self.pid.cast_unsigned(), command: self.command.clone() }
    }
}

impl Forest {
    /// To be called before the keeper starts anything: what is below it by then is never signalled.
    pub(super) fn new(keeper: i32) -> Forest {
        let list = File::open(format!("/proc/{keeper}/task/{keeper}/children")).ok();
        let (orphans, seen, earlier) = (HashMap::new(), HashMap::new(), HashMap::new());
        let environs = EnvironReader::default();
        let mut forest = Forest { keeper, list, orphans, seen, earlier, environs };
        let mut walk = forest.walk(forest.children(), None);
        forest.advance_walk(&mut walk, None, None);
        forest.earlier = walk.members.iter().map(Member::identity).collect();
        forest
    }

    fn is_earlier(&self, pid: i32, start: u64) -> bool {
        self.earlier.get(&pid) == Some(&start)
    }

    /// All children of the keeper are known: each leaves their list only by being reaped here.
    pub(super) fn knows_all(&self, known: &impl Known) -> bool {
        let own = known.own() + self.environs.count();
        self.children().len() == own + self.orphans.len()
    }

    pub(super) fn begin_pass(&self, which: Which) -> Pass {
        Pass { children: self.children(), which }
    }

    /// Places orphans until the time is up. True: the pass is done.
    pub(super) fn advance(
        &mut self,
        pass: &mut Pass,
        known: &impl Known,
        until: Option<Instant>,
    ) -> bool {
        while let Some(pid) = pass.children.pop() {
            let again = pass.which == Which::Unplaced;
            let done = |orphan: &Orphan| {
                orphan.owner.is_some() || !again || self.is_earlier(pid, orphan.start)
            };
            if known.is_own(pid) || self.environs.owns(pid) {
                // A child that is being started is listed a moment before its pid is known here.
                self.orphans.remove(&pid);
                continue;
            }
            if self.orphans.get(&pid).is_some_and(done) {
                continue;
            }
            self.place(pid, known);
            if until.is_some_and(|until| Instant::now() >= until) {
                return pass.children.is_empty();
            }
        }
        true
    }

    /// Finds out whose an orphan is.
    fn place(&mut self, pid: i32, known: &impl Known) {
        // Listed a while ago, it may have been reaped, and its pid may be a stranger's by now.
        let stat = Stat::read(pid).filter(|stat| stat.parent == self.keeper);
        let Some(stat) = stat else { return };
        if self.is_earlier(pid, stat.start) {
            let searched = Some(Searched { environ: stat.environ, id: None });
            let (start, owner, is_in_leaf) = (stat.start, None, false);
            self.orphans.insert(pid, Orphan { start, owner, is_in_leaf, searched });
            return;
        }
        let seen = self.seen.get(&pid).filter(|(start, _)| *start == stat.start);
        let seen = seen.map(|(_, key)| *key).filter(|key| known.holds(*key));
        // A session cannot be joined from outside.
        let led = known.led_by(stat.session).or_else(|| known.led_by(stat.group));
        let (start, owner) = (stat.start, led.or(seen));
        let mut orphan = Orphan { start, owner, is_in_leaf: false, searched: None };
        if orphan.owner.is_none() {
            match known.leaf_owner(pid) {
                LeafOwner::NoLeaf => self.place_by_cookie(pid, &mut orphan, stat.environ, known),
                LeafOwner::Unknown => orphan.is_in_leaf = true,
                LeafOwner::Process(key) => (orphan.is_in_leaf, orphan.owner) = (true, Some(key)),
            }
        }
        self.orphans.insert(pid, orphan);
    }

    /// Finds out whose an orphan is by its environment, which can say anything.
    fn place_by_cookie(
        &mut self,
        pid: i32,
        orphan: &mut Orphan,
        environ: Environ,
        known: &impl Known,
    ) {
        let before = self.orphans.remove(&pid).and_then(|orphan| orphan.searched);
        let same = before.filter(|searched| searched.environ == environ);
        orphan.searched = same.or_else(|| self.search((pid, orphan.start), environ));
        let id = orphan.searched.as_ref().and_then(|searched| searched.id.as_deref());
        orphan.owner = id.and_then(|id| known.named(id, pid));
    }

    /// Searches the environment of an orphan for the cookie. None: it is in the middle of an exec, and
    /// has none for a moment, or it cannot be read now.
    fn search(&mut self, process: (i32, u64), environ: Environ) -> Option<Searched> {
        let read = self.environs.read(process)?;
        let denied =
            read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        let content = read.unwrap_or_default();
        let is_there = environ.1 != 0 && (!content.is_empty() || environ.0 == environ.1);
        let id = content.value(COOKIE).filter(|id| id.len() <= MAX_ID_REMEMBERED);
        let id = id.map(|id| String::from_utf8_lossy(id).into());
        (is_there || denied).then_some(Searched { environ, id })
    }

    /// Whether a child of the keeper reads environments.
    pub(super) fn is_reader(&self, pid: i32) -> bool {
        self.environs.owns(pid)
    }

    /// A child of the keeper that reads environments was killed.
    pub(super) fn lose_reader(&mut self, pid: i32) {
        self.environs.lose(pid);
    }

    /// Places all orphans at once.
    pub(super) fn refresh(&mut self, known: &impl Known) {
        let mut pass = self.begin_pass(Which::Unplaced);
        self.advance(&mut pass, known, None);
    }

    /// Remembers whose these processes are, should they become orphans.
    pub(super) fn remember(&mut self, key: u64, members: &[Member]) {
        self.seen.extend(members.iter().map(|member| (member.pid, (member.start, key))));
    }

    /// Nothing is being killed any more.
    pub(super) fn forget_seen(&mut self) {
        self.seen = HashMap::new();
    }

    /// This process is an orphan that was not reaped yet.
    pub(super) fn is_orphan(&self, pid: i32, start: u64) -> bool {
        self.orphans.get(&pid).is_some_and(|orphan| orphan.start == start)
    }

    /// An orphan was reaped.
    pub(super) fn forget(&mut self, pid: i32) {
        self.orphans.remove(&pid);
        self.earlier.remove(&pid);
    }

    /// The orphans of one process belong to another from now on.
    pub(super) fn inherit(&mut self, from: u64, to: u64) {
        for orphan in self.orphans.values_mut().filter(|orphan| orphan.owner == Some(from)) {
            orphan.owner = Some(to);
        }
    }

    /// There are no orphans.
    pub(super) fn is_empty(&self) -> bool {
        self.orphans.is_empty()
    }

    /// Of every orphan it is known whose it is, or that its leaf or its environment does not say so.
    pub(super) fn all_judged(&self) -> bool {
        let judged = |orphan: &Orphan| {
            orphan.owner.is_some() || orphan.is_in_leaf || orphan.searched.is_some()
        };
        self.orphans.values().all(judged)
    }

    /// The orphans that belong to a process.
    pub(super) fn roots(&self, key: u64) -> Vec<i32> {
        let owned = self.orphans.iter().filter(|(_, orphan)| orphan.owner == Some(key));
        owned.map(|(pid, _)| *pid).collect()
    }

    /// Every orphan and all below it, of any process, but for those that were there before the keeper.
    pub(super) fn everyone(&self) -> Vec<Member> {
        let orphans = self.orphans.iter();
        let adopted = orphans.filter(|(pid, orphan)| !self.is_earlier(**pid, orphan.start));
        let mut walk = self.walk(adopted.map(|(pid, _)| *pid).collect(), None);
        self.advance_walk(&mut walk, None, None);
        walk.members
    }

    /// The children of the keeper, which has one thread.
    fn children(&self) -> Vec<i32> {
        match &self.list {
            Some(list) => pids(&read_from_start(list)),
            None => search_children(self.keeper).collect(),
        }
    }
}

/// The children of a process, where the kernel has no list of them.
fn search_children(parent: i32) -> impl Iterator<Item = i32> {
    let is_child = move |pid: &i32| Stat::read(*pid).is_some_and(|stat| stat.parent == parent);
    numbers("/proc").filter(is_child)
}

/// All of a file that the kernel writes anew for each reader.
fn read_from_start(file: &File) -> Vec<u8> {
    let mut content = vec![0; 4096];
    let mut len = 0;
    while let Ok(more @ 1..) = file.read_at(&mut content[len..], len as u64) {
        len += more;
        content.resize(content.len().max(len + 4096), 0);
    }
    content.truncate(len);
    content
}

/// The numbers in a list of pids.
pub(super) fn pids(list: &[u8]) -> Vec<i32> {
    let words = list.split(u8::is_ascii_whitespace);
    words.filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok()).collect()
}

/// Sends a signal to a member, if it still is who it was when it was found.
pub(super) fn signal(member: &Member, signal: i32) -> bool {
    try_signal(member, signal).is_ok()
}

fn try_signal(member: &Member, signal: i32) -> io::Result<()> {
    let gone = || io::Error::from_raw_os_error(libc::ESRCH);
    let pid = Pid::from_raw(member.pid).filter(|_| member.pid > 1).ok_or_else(gone)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    // The descriptor pins whoever has the pid now; only then is it known to be the same one.
    let same = Stat::read(member.pid).is_some_and(|stat| stat.start == member.start);
    if same { send(&pidfd, signal) } else { Err(gone()) }
}

/// Sends a signal to a group that someone unreaped belongs to, so that it cannot be another's.
pub(super) fn signal_group(group: i32, signal: i32) -> io::Result<()> {
    if group <= 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: sends a signal; touches no memory.
    match unsafe { libc::kill(-group, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends a signal through a pidfd.
pub(super) fn send(pidfd: &impl AsRawFd, signal: i32) -> io::Result<()> {
    let (fd, none) = (pidfd.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: no pointer is passed but null, which asks for an ordinary siginfo.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, none, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The entries of a directory that are numbers.
pub(super) fn numbers(directory: &str) -> impl Iterator<Item = i32> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The parent of a process.
pub(super) fn parent(pid: i32) -> Option<i32> {
    Stat::read(pid).map(|stat| stat.parent)
}

/// Whether a child that is a zombie, or about to be one, never executed a program.
pub(super) fn ended_before_exec(pid: i32) -> bool {
    // Both, as an exec releases the memory of its parent before it clears the second.
    let ended = PF_EXITING | PF_FORKNOEXEC;
    Stat::read(pid).is_some_and(|stat| stat.flags & ended == ended)
}

/// The real, effective, saved and file system user ids of a process.
pub(super) fn uids(pid: i32) -> Option<[u32; 4]> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let uids: Result<Vec<u32>, _> = uids.split_whitespace().map(str::parse).collect();
    uids.ok()?.try_into().ok()
}

/// The CPU time that a process has used itself, without those that it waited for, in microseconds.
/// Known until it is reaped.
pub(super) fn cpu_micros(pid: i32) -> Option<u64> {
    let stat = Stat::read(pid)?;
    Some(stat.ticks * (1_000_000 / TICKS))
}

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    command: String,
    alive: bool,
    /// It runs, or waits for a CPU.
    runnable: bool,
    parent: i32,
    group: i32,
    session: i32,
    flags: u32,
    /// User and system time, of which a second has [`TICKS`].
    ticks: u64,
    start: u64,
    environ: Environ,
}

impl Stat {
    fn read(pid: i32) -> Option<Stat> {
        let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Stat::parse(&String::from_utf8_lossy(&bytes))
    }

    /// The command stands in parentheses and may itself have some.
    fn parse(line: &str) -> Option<Stat> {
        let (before, after) = line.rsplit_once(')')?;
        let command = before.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = after.split_whitespace().collect();
        let number = |n: usize| fields.get(n)?.parse().ok();
        // Without its main thread a program looks like a zombie, yet its other threads live.
        let threads: u32 = fields.get(17)?.parse().ok()?;
        let state = *fields.first()?;
        Some(Stat {
            command,
            alive: !matches!(state, "Z" | "X" | "x") || threads > 1,
            runnable: state == "R",
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            flags: fields.get(6)?.parse().ok()?,
            ticks: [11, 12]
                .map(|n| fields.get(n)?.parse::<u64>().ok())
                .into_iter()
                .sum::<Option<_>>()?,
            start: fields.get(19)?.parse().ok()?,
            environ: [47, 48]
                .map(|n| fields.get(n).and_then(|at| at.parse().ok()).unwrap_or(0))
                .into(),
        })
    }
}

#[cfg(test)]
mod tests;
