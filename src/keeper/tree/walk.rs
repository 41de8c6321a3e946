//! Walks through trees, in slices: a tree may have thousands of processes.

use std::collections::HashSet;
use std::time::Instant;

use super::{Forest, Member, Stat};
use crate::keeper::cgroup::{Cgroups, Leaf};

/// A walk through a tree, and what it has found so far.
pub(in crate::keeper) struct Walk {
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
        Walk { to_visit, leaf: None, found: HashSet::new(), members, groups, most: usize::MAX }
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

    /// Visits processes until the time is up. True: the walk is done.
    pub(in crate::keeper) fn advance_walk(
        &self,
        walk: &mut Walk,
        cgroups: Option<&Cgroups>,
        until: Option<Instant>,
    ) -> bool {
        while walk.members.len() < walk.most {
            if let Some((pid, parent)) = walk.to_visit.pop() {
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
        if stat.alive {
            walk.to_visit.extend(self.children(pid).into_iter().map(|child| (child, pid)));
        }
        if parent == self.keeper && stat.group != self.keeper {
            walk.groups.push(Group { number: stat.group, root: pid, root_start: stat.start });
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
