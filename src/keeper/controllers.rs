//! Limits of whole trees, by controllers of cgroups: memory, processes, CPUs.
//!
//! Owns which of them can limit here, found by trying, and the directories that do. A controller of
//! cgroup v2 limits the leaf that a process begins in anyway; one of v1 has a hierarchy of its own,
//! where the process joins a directory that was made for it. Nothing here is touched for a process
//! without such limits.
//!
//! What they mean to the kernel is in `settings`, how controllers of v2 are had in `delegation`.

mod delegation;
mod settings;

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::cgroup::{Cgroups, Remaining, claim, remove, remove_base};
use super::tree::{self, Member};
use crate::process::{Enforceable, TreeLimits};
use delegation::Delegation;
pub(super) use settings::memory_directory;
use settings::{Controller, Generation};

/// Looks for members of a tree that is ended at its beginning: enough for a few generations.
const MOST_LOOKS: usize = 8;

/// What is tried, to see whether it can be set.
const TRIAL: TreeLimits = TreeLimits { memory_bytes: 1 << 30, processes: 1000, milli_cpus: 100 };

/// What can limit trees here.
pub(super) struct Controllers {
    /// Those of v1.
    hierarchies: Vec<Hierarchy>,
    /// Those of v2.
    delegation: Option<Delegation>,
    made: u64,
    /// Directories of processes that have ended, whose descendants live on.
    pub(super) remaining: Remaining,
}

/// A hierarchy of cgroup v1.
struct Hierarchy {
    /// The keeper's directory in it.
    base: PathBuf,
    /// Locked as long as this keeper lives, so that the next one can tell what is left over.
    _lock: OwnedFd,
    controllers: Vec<Controller>,
}

/// What limits the tree of one process.
#[derive(Debug, Default)]
pub(super) struct Confined {
    /// Its directories in the hierarchies of v1.
    directories: Vec<PathBuf>,
    /// The file that counts who was killed for want of memory.
    counts: Option<PathBuf>,
    /// Where CPU time is limited once it has begun: whoever waits for its share before its exec
    /// would keep the keeper waiting.
    later: Option<(Generation, PathBuf)>,
}

impl Confined {
    /// How many were killed for want of memory so far.
    pub(super) fn oom_kills(&self) -> u64 {
        let counts = self.counts.as_ref().and_then(|file| fs::read_to_string(file).ok());
        counts.map_or(0, |counts| settings::oom_kills(&counts))
    }

    /// It has begun: sets the limits that had to wait for that.
    pub(super) fn tighten(&self, limits: &TreeLimits) -> io::Result<()> {
        let Some((generation, directory)) = &self.later else { return Ok(()) };
        Controller::Cpu.limit(*generation, directory, limits)
    }

    /// Ends all of a tree whose CPU time could not be limited. Who was born meanwhile is found by
    /// another look.
    pub(super) fn kill(&self) {
        let Some((_, directory)) = &self.later else { return };
        let file = directory.join("cgroup.procs");
        let pids = || tree::pids(&fs::read(&file).unwrap_or_default());
        for _ in 0..MOST_LOOKS {
            let found = pids().into_iter();
            let found = found.filter_map(|pid| Member::find(pid, || pids().contains(&pid)));
            if found.filter(|member| tree::signal(member, libc::SIGKILL)).count() == 0 {
                return;
            }
        }
    }

    /// The files by which a process joins. Not those of whole processes: by such a one the kernel
    /// would have all forks of the machine wait, and the suspended keeper with them for many
    /// milliseconds. A child before its exec has one thread, for which both mean the same.
    pub(super) fn joins(&self) -> Vec<CString> {
        let files = self.directories.iter().map(|directory| directory.join("tasks"));
        files.filter_map(|file| CString::new(file.as_os_str().as_bytes()).ok()).collect()
    }
}

impl Controllers {
    /// Finds out what can be limited here, by trying. What a keeper that was killed left behind is
    /// removed.
    pub(super) fn probe(leaves: Option<&mut Cgroups>) -> Controllers {
        let delegation = leaves.and_then(Delegation::take);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let places = settings::hierarchies(&mounts, &groups);
        let hierarchies = places.into_iter().filter_map(|(own, all)| Hierarchy::probe(&own, &all));
        let hierarchies = hierarchies.collect();
        Controllers { hierarchies, delegation, made: 0, remaining: Remaining::default() }
    }

    /// What can be limited.
    pub(super) fn enforceable(&self) -> Enforceable {
        let of_v1 = self.hierarchies.iter().flat_map(|hierarchy| &hierarchy.controllers);
        let all: Vec<_> = of_v1.chain(self.of_leaves()).copied().collect();
        let [memory, processes, cpus] = Controller::ALL.map(|controller| all.contains(&controller));
        Enforceable { memory, processes, cpus }
    }

    /// The leaves are below another directory from now on.
    pub(super) fn delegate_to(&mut self, base: &Path) {
        if let Some(delegation) = &mut self.delegation {
            delegation.move_to(base);
        }
    }

    /// There are no leaves any more, so none can be limited.
    pub(super) fn lose_leaves(&mut self) {
        self.delegation = None;
    }

    fn of_leaves(&self) -> &[Controller] {
        self.delegation.as_ref().map_or(&[], |delegation| &delegation.controllers)
    }

    /// Whether it takes a leaf to set these limits.
    pub(super) fn limit_leaves(&self, limits: &TreeLimits) -> bool {
        self.of_leaves().iter().any(|controller| controller.is_needed(limits))
    }

    /// Makes what limits a tree that is about to begin, in this leaf if there is one.
    pub(super) fn confine(
        &mut self,
        limits: &TreeLimits,
        leaf: Option<&Path>,
    ) -> io::Result<Confined> {
        let mut confined = Confined::default();
        match self.set(limits, leaf, &mut confined) {
            Ok(()) => Ok(confined),
            Err(error) => {
                self.give_back(confined);
                Err(error)
            }
        }
    }

    fn set(
        &mut self,
        limits: &TreeLimits,
        leaf: Option<&Path>,
        confined: &mut Confined,
    ) -> io::Result<()> {
        let mut needed: Vec<_> = Controller::ALL.into_iter().collect();
        needed.retain(|controller| controller.is_needed(limits));
        let mut limit = |generation: Generation, directory: &Path, controllers: &[Controller]| {
            for controller in controllers {
                let Some(at) = needed.iter().position(|needed| needed == controller) else {
                    continue;
                };
                needed.swap_remove(at);
                if *controller == Controller::Cpu {
                    confined.later = Some((generation, directory.to_owned()));
                } else {
                    controller.limit(generation, directory, limits)?;
                }
                if let Some(file) = controller.counts(generation) {
                    confined.counts = Some(directory.join(file));
                }
            }
            io::Result::Ok(())
        };
        if let Some(leaf) = leaf {
            limit(Generation::V2, leaf, self.of_leaves())?;
        }
        self.made += 1;
        let number = self.made.to_string();
        for Hierarchy { base, controllers, .. } in &self.hierarchies {
            if controllers.iter().any(|controller| controller.is_needed(limits)) {
                let directory = base.join(&number);
                fs::create_dir(&directory)?;
                confined.directories.push(directory.clone());
                limit(Generation::V1, &directory, controllers)?;
            }
        }
        let all = needed.is_empty();
        if all { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)) }
    }

    /// Takes back what limited the tree of a process that has ended. Whoever lives on stays limited.
    pub(super) fn give_back(&mut self, confined: Confined) {
        for directory in confined.directories {
            self.remaining.remove(directory);
        }
    }
}

impl Hierarchy {
    /// Tries which of the controllers of a hierarchy can limit, below the keeper's own cgroup in it.
    fn probe(own: &Path, controllers: &[Controller]) -> Option<Hierarchy> {
        let (base, _lock) = claim(own)?;
        let mut hierarchy = Hierarchy { base, _lock, controllers: Vec::new() };
        let trial = hierarchy.base.join("trial");
        fs::create_dir(&trial).ok()?;
        let can =
            |controller: &&Controller| controller.limit(Generation::V1, &trial, &TRIAL).is_ok();
        hierarchy.controllers = controllers.iter().filter(can).copied().collect();
        remove(&trial);
        // Dropped, it takes its directory along.
        (!hierarchy.controllers.is_empty()).then_some(hierarchy)
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        remove_base(&self.base);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn everyone_in_a_cgroup_that_cannot_be_limited_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let mut members = [(); 2].map(|()| Command::new("sleep").arg("600").spawn().unwrap());
        let list: String = members.iter().map(|member| format!("{}\n", member.id())).collect();
        fs::write(directory.path().join("cgroup.procs"), list).unwrap();
        let later = Some((Generation::V1, directory.path().to_owned()));
        let confined = Confined { later, ..Confined::default() };
        assert!(confined.tighten(&TRIAL).is_err(), "there is nothing to write to");
        confined.kill();
        for member in &mut members {
            assert_eq!(member.wait().unwrap().signal(), Some(libc::SIGKILL));
        }
    }

    #[test]
    fn one_thread_joins_without_holding_up_all_forks() {
        let confined = Confined { directories: vec!["/a/1".into()], ..Confined::default() };
        assert_eq!(confined.joins(), [c"/a/1/tasks".to_owned()]);
    }
}
