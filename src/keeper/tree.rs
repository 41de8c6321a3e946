//! Who belongs to whom: the descendants of a process, wherever they went.
//!
//! The keeper is a subreaper, so all descendants stay below it: each is reached from the process
//! itself, or from an orphan that became the keeper's child. Orphans belong to a process by
//! session, by group or by the cookie `PROCYARD_ID` in their environment. Whatever is not below
//! the keeper is never looked at, let alone signalled.
//!
//! An orphan is the keeper's child, so its pid stays its own until the keeper reaps it, and
//! what was found out about it can be kept under its pid.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::spawn::COOKIE;
use crate::process::Descendant;

/// Ticks of a second in what the kernel tells of used time, whatever it counts with itself.
const TICKS: u64 = 100;

/// Finds descendants.
pub(super) struct Forest {
    keeper: i32,
    /// The kernel's list of the keeper's children; without one, as some kernels are, all of
    /// `/proc` is searched for children.
    list: Option<File>,
    /// The keeper's adopted children, and whose they are.
    orphans: HashMap<i32, Option<u64>>,
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
    /// The process with this id.
    fn named(&self, id: &str) -> Option<u64>;
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

    pub(super) fn describe(&self) -> Descendant {
        Descendant { pid: self.pid.cast_unsigned(), command: self.command.clone() }
    }
}

impl Forest {
    pub(super) fn new(keeper: i32) -> Forest {
        let list = File::open(format!("/proc/{keeper}/task/{keeper}/children")).ok();
        Forest { keeper, list, orphans: HashMap::new() }
    }

    /// Looks for orphans that came since; `again`: also at those that could not be placed, since
    /// a process in the middle of an exec shows no environment.
    pub(super) fn refresh(&mut self, known: &impl Known, again: bool) {
        let children = self.children(self.keeper);
        if !again && children.len() == known.own() + self.orphans.len() {
            // All are known: nobody leaves this list but by being reaped here.
            return;
        }
        for pid in children {
            let placed = self.orphans.get(&pid);
            if known.is_own(pid) || placed.is_some_and(|owner| owner.is_some() || !again) {
                continue;
            }
            let Some(stat) = Stat::read(pid) else { continue };
            // A session cannot be joined from outside; an environment can say anything.
            let led = known.led_by(stat.session).or_else(|| known.led_by(stat.group));
            let owner = led.or_else(|| known.named(&cookie(pid)?));
            self.orphans.insert(pid, owner);
        }
    }

    /// An orphan was reaped.
    pub(super) fn forget(&mut self, pid: i32) {
        self.orphans.remove(&pid);
    }

    /// The orphans of one process belong to another from now on.
    pub(super) fn inherit(&mut self, from: u64, to: u64) {
        for owner in self.orphans.values_mut().filter(|owner| **owner == Some(from)) {
            *owner = Some(to);
        }
    }

    /// There are no orphans.
    pub(super) fn is_empty(&self) -> bool {
        self.orphans.is_empty()
    }

    /// It is known of every orphan whose it is.
    pub(super) fn all_placed(&self) -> bool {
        self.orphans.values().all(Option::is_some)
    }

    /// The orphans that belong to a process.
    pub(super) fn roots(&self, key: u64) -> Vec<i32> {
        self.orphans.iter().filter(|(_, owner)| **owner == Some(key)).map(|(pid, _)| *pid).collect()
    }

    /// The groups of these orphans.
    pub(super) fn groups(&self, key: u64) -> BTreeSet<i32> {
        let stats = self.roots(key).into_iter().filter_map(Stat::read);
        stats.map(|stat| stat.group).filter(|group| *group != self.keeper).collect()
    }

    /// Every orphan, whosever it is.
    pub(super) fn everyone(&self) -> Vec<Member> {
        self.below(self.orphans.keys().copied().collect())
    }

    /// These children of the keeper and all that live below them.
    pub(super) fn below(&self, roots: Vec<i32>) -> Vec<Member> {
        let mut members: Vec<Member> = Vec::new();
        let mut to_visit: Vec<(i32, i32)> =
            roots.into_iter().map(|pid| (pid, self.keeper)).collect();
        while let Some((pid, parent)) = to_visit.pop() {
            // Listed a moment ago, it may have ended, and its pid may be a stranger's by now.
            let Some(stat) = Stat::read(pid).filter(|stat| stat.parent == parent) else { continue };
            to_visit.extend(self.children(pid).into_iter().map(|child| (child, pid)));
            if stat.alive {
                members.push(Member::new(pid, stat));
            }
        }
        members
    }

    fn children(&self, parent: i32) -> Vec<i32> {
        let Some(own) = &self.list else {
            let is_child = |pid: &i32| Stat::read(*pid).is_some_and(|stat| stat.parent == parent);
            return numbers("/proc").filter(is_child).collect();
        };
        if parent == self.keeper {
            return pids(&read_from_start(own));
        }
        let tasks = format!("/proc/{parent}/task");
        let lists =
            numbers(&tasks).filter_map(|task| fs::read(format!("{tasks}/{task}/children")).ok());
        lists.flat_map(|list| pids(&list)).collect()
    }
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
    let Some(pid) = Pid::from_raw(member.pid).filter(|_| member.pid > 1) else { return false };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // The descriptor pins whoever has the pid now; only then is it known to be the same one.
    let same = Stat::read(member.pid).is_some_and(|stat| stat.start == member.start);
    same && send(&pidfd, signal).is_ok()
}

/// Sends a signal to a group that someone unreaped belongs to, so that it cannot be another's.
pub(super) fn signal_group(group: i32, signal: i32) -> std::io::Result<()> {
    if group <= 1 {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: sends a signal; touches no memory.
    match unsafe { libc::kill(-group, signal) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Sends a signal through a pidfd.
pub(super) fn send(pidfd: &impl AsRawFd, signal: i32) -> std::io::Result<()> {
    let (fd, none) = (pidfd.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: no pointer is passed but null, which asks for an ordinary siginfo.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, none, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The entries of a directory that are numbers.
pub(super) fn numbers(directory: &str) -> impl Iterator<Item = i32> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The value of `PROCYARD_ID` in the environment that a process began with.
pub(super) fn cookie(pid: i32) -> Option<String> {
    let value = variable(pid, COOKIE)?;
    Some(String::from_utf8_lossy(&value).into_owned())
}

/// The value of a variable in the environment that a process began with.
pub(super) fn variable(pid: i32, name: &[u8]) -> Option<Vec<u8>> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut entries = environ.split(|byte| *byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(name)?.strip_prefix(b"="))?;
    Some(value.to_vec())
}

/// The parent of a process.
pub(super) fn parent(pid: i32) -> Option<i32> {
    Stat::read(pid).map(|stat| stat.parent)
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
    parent: i32,
    group: i32,
    session: i32,
    /// User and system time, of which a second has [`TICKS`].
    ticks: u64,
    start: u64,
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
        Some(Stat {
            command,
            alive: !matches!(*fields.first()?, "Z" | "X" | "x") || threads > 1,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            ticks: [11, 12]
                .map(|n| fields.get(n)?.parse::<u64>().ok())
                .into_iter()
                .sum::<Option<_>>()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_and_spaces_is_read_right() {
        let line = "42 (a) b (c) R 1 2 3 0 -1 4194304 0 0 0 0 7 8 99 99 20 0 1 0 12345 0 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.command.as_str(), stat.alive), ("a) b (c", true));
        assert_eq!(stat.ticks, 7 + 8, "of itself alone");
        assert_eq!((stat.parent, stat.group, stat.session, stat.start), (1, 2, 3, 12345));
    }

    #[test]
    fn a_pid_that_is_another_s_now_is_not_signalled() {
        let me = std::process::id().cast_signed();
        let impostor = Member { pid: me, start: 1, command: String::new() };
        assert!(!signal(&impostor, libc::SIGKILL));
        assert!(!signal(&Member { pid: 1, ..impostor.clone() }, 0));
        assert!(!signal(&Member { pid: 0, ..impostor }, 0));
    }
}
