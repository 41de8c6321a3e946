//! What limits are to the kernel: which files take them, in which form, and where they are. Pure,
//! but for [`Controller::limit`], which writes them.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::keeper::cgroup::below_mount;
use crate::process::TreeLimits;

/// The usual period of CPU time, microseconds.
const PERIOD: u64 = 100_000;
/// The longest, for shares of which a usual period would have less than [`LEAST_QUOTA`].
const LONGEST_PERIOD: u64 = 1_000_000;
/// The kernel takes no quota that is shorter, microseconds.
const LEAST_QUOTA: u64 = 1_000;
/// No kernel has more pids, nor takes a higher limit of them.
const MOST_PIDS: u32 = 1 << 22;

/// A controller that limits trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Memory,
    Pids,
    Cpu,
}

/// Which interface a controller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    V1,
    V2,
}

/// What is written into one file.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    file: &'static str,
    value: String,
    /// An error that means that the limit holds all the same.
    tolerated: Option<i32>,
}

impl Controller {
    pub(super) const ALL: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

    /// Its name among the kernel's controllers.
    pub(super) fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Cpu => "cpu",
        }
    }

    /// Whether these limits need it.
    pub(super) fn is_needed(self, limits: &TreeLimits) -> bool {
        match self {
            Controller::Memory => limits.memory_bytes > 0,
            Controller::Pids => limits.processes > 0,
            Controller::Cpu => limits.milli_cpus > 0,
        }
    }

    /// The file that counts who was killed by it.
    pub(super) fn counts(self, generation: Generation) -> Option<&'static str> {
        match (self, generation) {
            (Controller::Memory, Generation::V1) => Some("memory.oom_control"),
            (Controller::Memory, Generation::V2) => Some("memory.events"),
            (Controller::Pids | Controller::Cpu, _) => None,
        }
    }

    /// Sets its part of the limits of the cgroup in a directory.
    pub(super) fn limit(
        self,
        generation: Generation,
        directory: &Path,
        limits: &TreeLimits,
    ) -> io::Result<()> {
        for Setting { file, value, tolerated } in self.settings(generation, limits) {
            // Not made where it is missing, of which the kernel would say something else.
            let file = OpenOptions::new().write(true).open(directory.join(file));
            match file.and_then(|mut file| file.write_all(value.as_bytes())) {
                Err(error) if error.raw_os_error() == tolerated && tolerated.is_some() => {}
                written => written?,
            }
        }
        Ok(())
    }

    /// What is written where, in this order.
    fn settings(self, generation: Generation, limits: &TreeLimits) -> Vec<Setting> {
        let set = |file, value: u64| Setting { file, value: value.to_string(), tolerated: None };
        let TreeLimits { memory_bytes, processes, milli_cpus } = *limits;
        // Where the kernel does not count swap, there is no such file.
        let swap = |file, value| Setting { tolerated: Some(libc::ENOENT), ..set(file, value) };
        match (self, generation) {
            // The second is of memory and swap together, and must not be less than the first.
            (Controller::Memory, Generation::V1) => vec![
                set("memory.limit_in_bytes", memory_bytes),
                swap("memory.memsw.limit_in_bytes", memory_bytes),
            ],
            (Controller::Memory, Generation::V2) => {
                vec![set("memory.max", memory_bytes), swap("memory.swap.max", 0)]
            }
            (Controller::Pids, _) => vec![set("pids.max", processes.min(MOST_PIDS).into())],
            (Controller::Cpu, Generation::V1) => {
                let (quota, period) = bandwidth(milli_cpus);
                // More than a cgroup above has is refused, and then that one's limit is the closer.
                let quota = set("cpu.cfs_quota_us", quota);
                let quota = Setting { tolerated: Some(libc::EINVAL), ..quota };
                vec![set("cpu.cfs_period_us", period), quota]
            }
            (Controller::Cpu, Generation::V2) => {
                let (quota, period) = bandwidth(milli_cpus);
                let value = format!("{quota} {period}");
                vec![Setting { file: "cpu.max", value, tolerated: None }]
            }
        }
    }
}

/// How many microseconds of CPU time there are in a period of how many.
fn bandwidth(milli_cpus: u64) -> (u64, u64) {
    let quota = |period: u64| milli_cpus.saturating_mul(period / 1000);
    let period = if quota(PERIOD) < LEAST_QUOTA { LONGEST_PERIOD } else { PERIOD };
    (quota(period), period)
}

/// How many were killed for want of memory, from a file that counts them. Kernels before 4.13 do
/// not.
pub(super) fn oom_kills(counts: &str) -> u64 {
    let count = counts.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// The hierarchies of v1 that have controllers of these: the directory of the keeper's own cgroup,
/// and which. Two may share one, where a process is in one place for both.
pub(super) fn hierarchies(mounts: &str, groups: &str) -> Vec<(PathBuf, Vec<Controller>)> {
    let mut found: Vec<(PathBuf, Vec<Controller>)> = Vec::new();
    for controller in Controller::ALL {
        let Some(own) = own_directory(controller, mounts, groups) else { continue };
        match found.iter_mut().find(|(directory, _)| *directory == own) {
            Some((_, controllers)) => controllers.push(controller),
            None => found.push((own, vec![controller])),
        }
    }
    found
}

/// The directory of this process's cgroup in the v1 hierarchy of memory.
pub(in crate::keeper) fn memory_directory(mounts: &str, groups: &str) -> Option<PathBuf> {
    own_directory(Controller::Memory, mounts, groups)
}

/// The directory of the keeper's own cgroup in the hierarchy of a controller.
fn own_directory(controller: Controller, mounts: &str, groups: &str) -> Option<PathBuf> {
    let named = |list: &str| list.split(',').any(|name| name == controller.name());
    // As in "4:cpu,cpuacct:/own/path".
    let own = groups.lines().find_map(|line| {
        let (list, own) = line.split_once(':')?.1.split_once(':')?;
        named(list).then_some(own)
    })?;
    let mount = mounts.lines().find(|line| {
        let (kind, options) = line.split_once(" - ").map_or(("", ""), |(_, after)| {
            let options = after.rsplit(' ').next().unwrap_or_default();
            (after.split(' ').next().unwrap_or_default(), options)
        });
        kind == "cgroup" && named(options)
    })?;
    below_mount(mount, own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(controller: Controller, generation: Generation, limits: TreeLimits) -> Vec<String> {
        let settings = controller.settings(generation, &limits);
        settings.into_iter().map(|setting| format!("{}={}", setting.file, setting.value)).collect()
    }

    #[test]
    fn limits_are_written_as_each_interface_takes_them() {
        let limits = TreeLimits { memory_bytes: 1 << 33, processes: 7, milli_cpus: 1500 };
        let both = [Generation::V1, Generation::V2];
        let [v1, v2] = both.map(|generation| written(Controller::Memory, generation, limits));
        assert_eq!(
            v1,
            ["memory.limit_in_bytes=8589934592", "memory.memsw.limit_in_bytes=8589934592"]
        );
        assert_eq!(v2, ["memory.max=8589934592", "memory.swap.max=0"]);
        for generation in both {
            assert_eq!(written(Controller::Pids, generation, limits), ["pids.max=7"]);
        }
        let [v1, v2] = both.map(|generation| written(Controller::Cpu, generation, limits));
        assert_eq!(v1, ["cpu.cfs_period_us=100000", "cpu.cfs_quota_us=150000"]);
        assert_eq!(v2, ["cpu.max=150000 100000"]);
    }

    #[test]
    fn the_smallest_and_the_largest_are_within_what_the_kernel_takes() {
        for milli_cpus in [1, 9, 10, 11, 1000, 4_096_000] {
            let (quota, period) = bandwidth(milli_cpus);
            assert!(quota >= LEAST_QUOTA && period <= LONGEST_PERIOD, "{milli_cpus}");
            assert_eq!(quota * 1000 / period, milli_cpus);
        }
        let most = TreeLimits { processes: u32::MAX, ..TreeLimits::default() };
        assert_eq!(written(Controller::Pids, Generation::V2, most), ["pids.max=4194304"]);
    }

    #[test]
    fn kills_are_read_from_the_files_of_both_interfaces() {
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        let events = "low 0\nhigh 0\nmax 9\noom 4\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(oom_kills(events), 2);
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\n"), 0, "an old kernel");
    }

    #[test]
    fn the_own_cgroup_is_found_in_each_hierarchy_also_in_shared_and_bind_mounts() {
        let mounts = "\
            30 25 0:26 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755\n\
            31 30 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup rw\n\
            33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:12 - cgroup cgroup rw,cpu,cpuacct\n\
            34 30 0:30 /pods/p1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            35 30 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";
        let groups = "9:pids:/x\n4:memory:/pods/p1/c\n2:cpu,cpuacct:/a:b\n1:cpuset:/\n0::/\n";
        let found = hierarchies(mounts, groups);
        let memory = ("/sys/fs/cgroup/memory/c".into(), vec![Controller::Memory]);
        let cpu = ("/sys/fs/cgroup/cpu,cpuacct/a:b".into(), vec![Controller::Cpu]);
        assert_eq!(found, [memory, cpu], "pids are mounted nowhere");
        let together = "33 30 0:29 / /c rw - cgroup cgroup rw,cpu,memory,pids\n";
        let found = hierarchies(together, "2:pids,cpu,memory:/a\n0::/\n");
        assert_eq!(found, [("/c/a".into(), Controller::ALL.to_vec())]);
        assert_eq!(hierarchies(mounts, "0::/\n"), []);
    }
}
