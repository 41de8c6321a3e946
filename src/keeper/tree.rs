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
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::spawn::COOKIE;
use crate::process::Descendant;

pub(super) use environ::{Environment, ProcReader, identity};
pub(super) use unkillable::held_zombie;
pub use unkillable::signal_leftovers;
pub(super) use walk::{Group, KilledGroups, LeafMembers, Walk};

/// Ticks of a second in what the kernel tells of used time, whatever it counts with itself.
const TICKS: u64 = 100;

/// Flags of a task, in the kernel's numbers: it exits; it was forked and has executed nothing.
const PF_EXITING: u32 = 0x4;
const PF_FORKNOEXEC: u32 = 0x40;

/// Longest id that is remembered of an orphan: longer than any that a process can have.
const MAX_ID_REMEMBERED: usize = 1024;

/// How long an orphan whose owner is unknown is taken for a descendant of any process.
pub(super) const UNKNOWN_OWNER_TIMEOUT: Duration = Duration::from_millis(500);

/// Finds descendants.
pub(super) struct Forest {
    keeper: i32,
    keeper_group: i32,
    /// The kernel's list of the keeper's children; without one, as some kernels are, all of
    /// `/proc` is searched for children.
    list: Option<File>,
    /// The keeper's adopted children, and whose they are.
    orphans: HashMap<i32, Orphan>,
    /// Processes that were found below one that is being killed, by pid: start time and owner. An
    /// orphan among them is that owner's, whatever its environment says.
    seen: HashMap<i32, (u64, u64)>,
    /// The processes whose trees are being killed: an orphan that turns out to be of one is killed at
    /// once. By key: the orphans that were, and that no kill has taken yet.
    killed: HashMap<u64, Vec<Member>>,
    /// Processes that were below the keeper before it became one, by pid: start time. None of them
    /// belongs to a process that the keeper started, whatever its environment says.
    earlier: HashMap<i32, u64>,
    environs: ProcReader,
}

/// A child that the keeper has adopted.
struct Orphan {
    start: u64,
    owner: Owner,
}

/// Whose descendant an orphan is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    /// This process's.
    Process(u64),
    /// It was below the keeper before the keeper started anything.
    Earlier,
    /// It has ended, and has no environment any more. Its children are orphans themselves by now.
    Ended,
    /// It has been about to end since then: its environment is gone, but it has its children yet.
    Exiting(Instant),
    /// It is in a leaf that no held process has.
    UnknownLeaf,
    /// Its environment names no process that the keeper holds. It is searched once: an exec brings
    /// another.
    NotNamed(Searched),
    /// Its environment could not be read since then: it is in the middle of an exec, or whatever it
    /// lies in does not answer.
    Unreadable(Instant),
}

impl Owner {
    /// Another look may find another owner.
    fn may_change(&self) -> bool {
        !matches!(self, Owner::Process(_) | Owner::Earlier | Owner::Ended)
    }

    /// Since when nothing says who the owner is.
    fn unknown_since(&self) -> Option<Instant> {
        match self {
            Owner::Unreadable(since) | Owner::Exiting(since) => Some(*since),
            _ => None,
        }
    }
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
    killed_groups: KilledGroups,
}

/// The orphans that a pass places.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that came since the last pass, and those whose owner was unknown then.
    New,
    /// Also those that may have become known by another environment since.
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
        let (orphans, seen) = (HashMap::new(), HashMap::new());
        let (killed, earlier) = (HashMap::new(), HashMap::new());
        let environs = ProcReader::default();
        let keeper_group = group_of(keeper);
        let mut forest =
            Forest { keeper, keeper_group, list, orphans, seen, killed, earlier, environs };
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
        self.children().iter().all(|pid| {
            self.orphans.contains_key(pid) || known.is_own(*pid) || self.environs.owns(*pid)
        })
    }

    pub(super) fn begin_pass(&self, which: Which) -> Pass {
        Pass { children: self.children(), which, killed_groups: KilledGroups::default() }
    }

    /// Places orphans until the time is up. True: the pass is done.
    pub(super) fn advance(
        &mut self,
        pass: &mut Pass,
        known: &impl Known,
        until: Option<Instant>,
    ) -> bool {
        while let Some(pid) = pass.children.pop() {
            let done = |orphan: &Orphan| match pass.which {
                Which::New => orphan.owner.unknown_since().is_none(),
                Which::Unplaced => !orphan.owner.may_change(),
            };
            if known.is_own(pid) || self.environs.owns(pid) {
                // A child that is being started is listed a moment before its pid is known here.
                self.orphans.remove(&pid);
                continue;
            }
            if self.orphans.get(&pid).is_some_and(done) {
                continue;
            }
            self.place(pid, known, &mut pass.killed_groups);
            if until.is_some_and(|until| Instant::now() >= until) {
                return pass.children.is_empty();
            }
        }
        true
    }

    /// Finds out whose an orphan is, and kills it if its tree is being killed.
    fn place(&mut self, pid: i32, known: &impl Known, killed_groups: &mut KilledGroups) {
        // Listed a while ago, it may have been reaped, and its pid may be a stranger's by now.
        let stat = Stat::read(pid).filter(|stat| stat.parent == self.keeper);
        let Some(stat) = stat else { return };
        let owner = self.find_owner(pid, &stat, known);
        self.orphans.insert(pid, Orphan { start: stat.start, owner: owner.clone() });
        let Owner::Process(key) = owner else { return };
        if self.killed.contains_key(&key) {
            // Its group, too: it may have forked and exited by now, but it was not reaped.
            self.group(pid, &stat).iter().for_each(|group| killed_groups.kill(group));
            let killed = stat.alive.then(|| Member::new(pid, stat));
            let killed = killed.filter(|orphan| signal(orphan, libc::SIGKILL));
            self.killed.entry(key).or_default().extend(killed);
        }
    }

    /// The group of a root, which is a child of the keeper; none: it is the keeper's own.
    fn group(&self, root: i32, stat: &Stat) -> Option<Group> {
        let (number, root_start) = (stat.group, stat.start);
        (number != self.keeper_group).then_some(Group { number, root, root_start })
    }

    fn find_owner(&mut self, pid: i32, stat: &Stat, known: &impl Known) -> Owner {
        if self.is_earlier(pid, stat.start) {
            return Owner::Earlier;
        }
        let seen = self.seen.get(&pid).filter(|(start, _)| *start == stat.start);
        let seen = seen.map(|(_, key)| *key).filter(|key| known.holds(*key));
        // A session cannot be joined from outside.
        let led = known.led_by(stat.session).or_else(|| known.led_by(stat.group));
        if let Some(key) = led.or(seen) {
            return Owner::Process(key);
        }
        match known.leaf_owner(pid) {
            // A bomb leaves thousands of these.
            LeafOwner::NoLeaf if !stat.alive => Owner::Ended,
            LeafOwner::NoLeaf => self.find_named(pid, stat, known),
            LeafOwner::Unknown => Owner::UnknownLeaf,
            LeafOwner::Process(key) => Owner::Process(key),
        }
    }

    /// Finds out whose an orphan is by its environment, which can say anything.
    fn find_named(&mut self, pid: i32, stat: &Stat, known: &impl Known) -> Owner {
        let before = self.orphans.get(&pid).filter(|orphan| orphan.start == stat.start);
        let before = before.map(|orphan| orphan.owner.clone());
        let unknown_since = before.as_ref().and_then(Owner::unknown_since);
        let unknown_since = || unknown_since.unwrap_or_else(Instant::now);
        let searched = match before {
            Some(Owner::NotNamed(searched)) => Some(searched),
            _ => None,
        };
        let mut searched = searched.filter(|searched| searched.environ == stat.environ);
        let is_new = searched.is_none();
        if is_new {
            searched = self.search(pid, stat);
        }
        let id = searched.as_ref().and_then(|searched| searched.id.as_deref());
        if let Some(key) = id.and_then(|id| known.named(id, pid)) {
            return Owner::Process(key);
        }
        if is_new {
            // That it names no process counts if it had the same memory all the time.
            match Stat::read(pid) {
                Some(after) if after.is_exiting() => return Owner::Exiting(unknown_since()),
                Some(after) if after.environ == stat.environ => {}
                _ => searched = None,
            }
        }
        searched.map_or_else(|| Owner::Unreadable(unknown_since()), Owner::NotNamed)
    }

    /// Searches the environment of an orphan for the cookie. None: it is in the middle of an exec, and
    /// has none for a moment, or it cannot be read now. One that may not be read names no process, nor
    /// does one that the process has unmapped, or that went with its main thread.
    fn search(&mut self, pid: i32, stat: &Stat) -> Option<Searched> {
        let read = self.environs.environment((pid, stat.start))?;
        let denied =
            read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        let content = read.unwrap_or_default();
        let environ = stat.environ;
        let id = content.value(COOKIE).filter(|id| id.len() <= MAX_ID_REMEMBERED);
        let id: Option<Box<str>> = id.map(|id| String::from_utf8_lossy(id).into());
        let is_there = environ.1 != 0 || stat.is_zombie || id.is_some();
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

    /// Orphans that turn out to be of this process are killed at once from now on. Returns those that
    /// were killed since the last call.
    pub(super) fn kill_orphans(&mut self, key: u64) -> Vec<Member> {
        self.killed.insert(key, Vec::new()).unwrap_or_default()
    }

    /// Nothing is being killed any more.
    pub(super) fn forget_kills(&mut self) {
        self.seen = HashMap::new();
        self.killed = HashMap::new();
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
        let owned = |orphan: &&mut Orphan| orphan.owner == Owner::Process(from);
        for orphan in self.orphans.values_mut().filter(owned) {
            orphan.owner = Owner::Process(to);
        }
    }

    /// There are no orphans.
    pub(super) fn is_empty(&self) -> bool {
        self.orphans.is_empty()
    }

    /// Of every orphan it is known whose it is, or it has not said so for long.
    pub(super) fn all_judged(&self, now: Instant) -> bool {
        self.orphans.values().all(|orphan| match orphan.owner {
            Owner::Unreadable(since) => now.duration_since(since) >= UNKNOWN_OWNER_TIMEOUT,
            Owner::Exiting(_) => false,
            _ => true,
        })
    }

    /// Since when the owner is unknown of the orphan whose owner became unknown last.
    pub(super) fn unknown_since(&self) -> Option<Instant> {
        self.orphans.values().filter_map(|orphan| orphan.owner.unknown_since()).max()
    }

    /// The orphans that belong to a process.
    pub(super) fn roots(&self, key: u64) -> Vec<i32> {
        let is_owned = |orphan: &Orphan| orphan.owner == Owner::Process(key);
        let owned = self.orphans.iter().filter(|(_, orphan)| is_owned(orphan));
        owned.map(|(pid, _)| *pid).collect()
    }

    /// Every orphan and all below it, of any process, but for those that were there before the keeper.
    pub(super) fn everyone(&self) -> Vec<Member> {
        let orphans = self.orphans.iter();
        let adopted = orphans.filter(|(_, orphan)| orphan.owner != Owner::Earlier);
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

/// The process group of a process; 0: it has ended, or its group is of another PID namespace.
fn group_of(pid: i32) -> i32 {
    Stat::read(pid).map_or(0, |stat| stat.group)
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

/// CPU time of the main thread of a process; zero if the kernel does not count it.
pub(super) fn cpu_time(pid: i32) -> Duration {
    let counted = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    let nanos = counted.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Whether a process runs or waits for a CPU.
pub(super) fn is_runnable(pid: i32) -> bool {
    Stat::read(pid).is_some_and(|stat| stat.runnable)
}

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    command: String,
    alive: bool,
    /// Its main thread has ended.
    is_zombie: bool,
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

    /// It is about to end: its memory goes before its children do, and before it is a zombie.
    fn is_exiting(&self) -> bool {
        self.flags & PF_EXITING != 0 && !self.is_zombie
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
        let is_zombie = matches!(state, "Z" | "X" | "x");
        Some(Stat {
            command,
            alive: !is_zombie || threads > 1,
            is_zombie,
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
