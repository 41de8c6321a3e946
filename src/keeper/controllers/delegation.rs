//! Controllers of cgroup v2 for the keeper's leaves, where the keeper's own cgroup has them.
//!
//! A cgroup passes controllers on only while no process is in it. So where the keeper is alone in
//! its cgroup, as in a container or a unit with delegation, it moves to a leaf of its own, and back
//! when it ends. Where others are there, nothing is moved, and these controllers are not to be had.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::TRIAL;
use super::settings::{Controller, Generation};
use crate::keeper::cgroup::{Cgroups, KEEPERS_LEAF};

const ENABLED: &str = "cgroup.subtree_control";
const MEMBERS: &str = "cgroup.procs";

/// Controllers that were passed on to the leaves.
pub(super) struct Delegation {
    /// Those that can limit a leaf.
    pub(super) controllers: Vec<Controller>,
    /// The keeper's own cgroup.
    own: PathBuf,
    /// Where the leaves are.
    base: PathBuf,
    /// Those that the own cgroup passes on because of this keeper.
    passed: Vec<Controller>,
    /// The keeper is in its leaf.
    moved: bool,
}

impl Delegation {
    /// Passes on what there is, and tries it on a leaf. Whatever comes of it but limits is undone.
    pub(super) fn take(leaves: &mut Cgroups) -> Option<Delegation> {
        let mut delegation = Delegation::prepare(leaves.base())?;
        delegation.pass_on();
        let (leaf, _fd) = leaves.take(true).ok()?;
        let path = leaves.path(&leaf);
        let can = |controller: &Controller| controller.limit(Generation::V2, &path, &TRIAL).is_ok();
        delegation.controllers.retain(can);
        leaves.give_back(leaf, true);
        (!delegation.controllers.is_empty()).then_some(delegation)
    }

    /// Which controllers there are, with room made to pass them on; none: there are none, or
    /// somebody is in the way.
    fn prepare(base: &Path) -> Option<Delegation> {
        let own = base.parent()?.to_owned();
        let there = listed(&own.join("cgroup.controllers"));
        if there.is_empty() {
            return None;
        }
        let before = listed(&own.join(ENABLED));
        let passed = there.iter().filter(|controller| !before.contains(controller));
        let mut delegation = Delegation {
            passed: passed.copied().collect(),
            controllers: there,
            own,
            base: base.to_owned(),
            moved: false,
        };
        let room = delegation.passed.is_empty() || delegation.make_room();
        if !room {
            delegation.passed.clear();
        }
        room.then_some(delegation)
    }

    /// Leaves the own cgroup empty, unless it is the root of all, which may have processes.
    fn make_room(&mut self) -> bool {
        if !self.own.join("cgroup.type").exists() {
            return true;
        }
        // Asked first: some controllers could be passed on in spite of processes, and then no
        // process could be in a leaf.
        let others = |members: &str| members.lines().count() > 1;
        if fs::read_to_string(self.own.join(MEMBERS)).map_or(true, |members| others(&members)) {
            return false;
        }
        let leaf = self.base.join(KEEPERS_LEAF);
        let moved = fs::create_dir(&leaf).and_then(|()| fs::write(leaf.join(MEMBERS), "0"));
        self.moved = moved.is_ok();
        // Somebody may have come since.
        let members = fs::read_to_string(self.own.join(MEMBERS));
        self.moved && members.is_ok_and(|members| members.is_empty())
    }

    /// Passes on to leaves below another directory. The controllers stay those that were tried: a
    /// process that needs one that is not to be had there is not started.
    pub(super) fn move_to(&mut self, base: &Path) {
        base.clone_into(&mut self.base);
        for controller in &self.controllers {
            let _ = switch(&self.base, '+', *controller);
        }
    }

    /// Each by itself: one that cannot be had is not in the way of the others.
    fn pass_on(&mut self) {
        let switch = |place: &Path, controller: &Controller| switch(place, '+', *controller);
        self.passed.retain(|controller| switch(&self.own, controller).is_ok());
        self.controllers.retain(|controller| switch(&self.base, controller).is_ok());
    }
}

impl Drop for Delegation {
    fn drop(&mut self) {
        for controller in Controller::ALL {
            let _ = switch(&self.base, '-', controller);
        }
        // Where the keeper is not alone, as at the root of all, others may count on them by now.
        if self.moved {
            for controller in &self.passed {
                let _ = switch(&self.own, '-', *controller);
            }
            let _ = fs::write(self.own.join(MEMBERS), "0");
        }
        let _ = fs::remove_dir(self.base.join(KEEPERS_LEAF));
    }
}

/// Has a cgroup pass a controller on to those below it, or not.
fn switch(place: &Path, sign: char, controller: Controller) -> io::Result<()> {
    fs::write(place.join(ENABLED), format!("{sign}{}", controller.name()))
}

/// The controllers that a file lists.
fn listed(file: &Path) -> Vec<Controller> {
    let list = fs::read_to_string(file).unwrap_or_default();
    let listed =
        |controller: &Controller| list.split_whitespace().any(|name| name == controller.name());
    Controller::ALL.into_iter().filter(listed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_taken_back_only_where_the_keeper_was_alone() {
        for (moved, left) in [(false, "+memory"), (true, "-memory")] {
            let own = tempfile::tempdir().unwrap();
            fs::write(own.path().join(ENABLED), "+memory").unwrap();
            let (own_path, base) = (own.path().to_owned(), own.path().join("base"));
            let memory = vec![Controller::Memory];
            let controllers = memory.clone();
            drop(Delegation { controllers, own: own_path, base, passed: memory, moved });
            assert_eq!(fs::read_to_string(own.path().join(ENABLED)).unwrap(), left);
        }
    }
}
