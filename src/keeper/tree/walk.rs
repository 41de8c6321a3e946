//! Walks through trees, in slices: a tree may have thousands of processes.

use std::collections::HashSet;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{Mode, OFlags, RawDir};

use super::{Forest, Member, Stat, pids, read_from_start, search_children, signal_group};
use crate::keeper::cgroup::{Cgroups, Leaf};

/// Bytes of a directory of threads that are listed at a time: somewhat over a hundred entries.
const LIST_BYTES: usize = 4096;

/// A walk through a tree, and what it has found so far.
pub(in crate::keeper) struct Walk {
    /// Those of the process that was visited last, as far as their children are not known.
    threads: Option<Threads>,
    /// Processes, each with the parent that listed it.
    to_visit: Vec<(i32, i32)>,
    leaf: Option<LeafMembers>,
    found: HashSet<i32>,
    /// The living.
    pub(in crate::keeper) members: Vec<Member>,
    /// The groups of the roots, dead or alive.
    pub(in crate::keeper) groups: Vec<Group>,
    /// It ends when so many members were found.
    pub(in crate::keeper) most: usize,
}

/// The group of a root.
pub(in crate::keeper) struct Group {
    pub(in crate::keeper) number: i32,
    /// The root: the number means this group as long as the root was not reaped.
    pub(in crate::keeper) root: i32,
    pub(in crate::keeper) root_start: u64,
}

impl Group {
    /// The root still is in this group, so the number means no other.
    pub(in crate::keeper) fn has_its_root(&self) -> bool {
        let same = |stat: Stat| (stat.start, stat.group) == (self.root_start, self.number);
        Stat::read(self.root).is_some_and(same)
    }
}

/// The groups that were killed in a step of a look. The kernel lets no process fork away from a group
/// that is signalled, so once is enough; and it visits the zombies of the group, too, of which a bomb
/// leaves thousands.
#[derive(Default)]
pub(in crate::keeper) struct KilledGroups(HashSet<i32>);

impl KilledGroups {
    /// Kills a group whose root was not reaped, unless it was killed already.
    pub(in crate::keeper) fn kill(&mut self, group: &Group) {
        if !self.0.contains(&group.number) && group.has_its_root() {
            self.0.insert(group.number);
            let _ = signal_group(group.number, libc::SIGKILL);
        }
    }
}

/// The processes in the leaf of a tree, listed at one moment.
pub(in crate::keeper) struct LeafMembers {
    number: u64,
    pids: Vec<i32>,
}

impl LeafMembers {
    pub(in crate::keeper) fn list(cgroups: &Cgroups, leaf: &Leaf) -> LeafMembers {
        LeafMembers { number: leaf.number(), pids: cgroups.pids(leaf) }
    }
}

impl Default for Walk {
    fn default() -> Walk {
        let (to_visit, members, groups) = (Vec::new(), Vec::new(), Vec::new());
        let (threads, leaf, found) = (None, None, HashSet::new());
        Walk { threads, to_visit, leaf, found, members, groups, most: usize::MAX }
    }
}

/// The threads of a process. The kernel lists children by the thread that made them, and there may be
/// thousands of threads.
struct Threads {
    process: i32,
    /// Nothing is there when the process has ended, whatever process has its pid by then.
    directory: OwnedFd,
    /// The names of those that come next.
    listed: Vec<String>,
}

impl Threads {
    fn open(process: i32) -> Option<Threads> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(format!("/proc/{process}/task"), flags, Mode::empty());
        Some(Threads { process, directory: directory.ok()?, listed: Vec::new() })
    }

    /// The children of the next thread. None: there are no more threads.
    fn next_children(&mut self) -> Option<Vec<i32>> {
        if self.listed.is_empty() {
            self.list();
        }
        let path = format!("{}/children", self.listed.pop()?);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let list = rustix::fs::openat(&self.directory, path, flags, Mode::empty());
        Some(list.map(|list| pids(&read_from_start(&File::from(list)))).unwrap_or_default())
    }

    fn list(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); LIST_BYTES];
        let mut entries = RawDir::new(&self.directory, &mut buffer);
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name().to_string_lossy();
            if !name.starts_with('.') {
                self.listed.push(name.into_owned());
            }
            if entries.is_buffer_empty() && !self.listed.is_empty() {
                return;
            }
        }
    }
}

impl Walk {
    fn add(&mut self, pid: i32, stat: Stat) {
        self.found.insert(pid);
        self.members.push(Member::new(pid, stat));
    }
}

impl Forest {
    /// A walk to these children of the keeper, all that live below them, and all in the leaf.
    pub(in crate::keeper) fn walk(&self, roots: Vec<i32>, leaf: Option<LeafMembers>) -> Walk {
        let to_visit = roots.into_iter().map(|pid| (pid, self.keeper)).collect();
        Walk { to_visit, leaf, ..Walk::default() }
    }

    /// Visits processes and threads until the time is up. True: the walk is done.
    pub(in crate::keeper) fn advance_walk(
        &self,
        walk: &mut Walk,
        cgroups: Option<&Cgroups>,
        until: Option<Instant>,
    ) -> bool {
        while walk.members.len() < walk.most {
            if let Some(threads) = &mut walk.threads {
                let (children, process) = (threads.next_children(), threads.process);
                match children {
                    Some(children) => {
                        walk.to_visit.extend(children.into_iter().map(|child| (child, process)));
                    }
                    None => walk.threads = None,
                }
            } else if let Some((pid, parent)) = walk.to_visit.pop() {
                self.visit(walk, pid, parent);
            } else if let Some(pid) = walk.leaf.as_mut().and_then(|leaf| leaf.pids.pop()) {
                visit_leaf(walk, pid, cgroups);
            } else {
                return true;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return false;
            }
        }
        true
    }

    fn visit(&self, walk: &mut Walk, pid: i32, parent: i32) {
        // Listed a while ago, it may have ended, and its pid may be a stranger's by now.
        let Some(stat) = Stat::read(pid).filter(|stat| stat.parent == parent) else { return };
        // A zombie has no children: the kernel gave them to another parent.
        if stat.alive && self.list.is_some() {
            walk.threads = Threads::open(pid);
        } else if stat.alive {
            walk.to_visit.extend(search_children(pid).map(|child| (child, pid)));
        }
        if parent == self.keeper {
            walk.groups.extend(self.group(pid, &stat));
        }
        if stat.alive {
            walk.add(pid, stat);
        }
    }
}

/// Visits a process that was listed in the leaf.
fn visit_leaf(walk: &mut Walk, pid: i32, cgroups: Option<&Cgroups>) {
    let (Some(leaf), Some(cgroups)) = (&walk.leaf, cgroups) else { return };
    if walk.found.contains(&pid) {
        return;
    }
    // In this order: a process that has the pid afterwards has another start time.
    let stat = Stat::read(pid).filter(|stat| stat.alive);
    if let Some(stat) = stat.filter(|_| cgroups.holds(leaf.number, pid)) {
        walk.add(pid, stat);
    }
}
