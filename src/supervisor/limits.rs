//! What a process may use: which limits can be enforced here, and how. Pure.
//!
//! Those of single processes are the kernel's resource limits, which the keeper sets before the
//! exec. Those of whole trees need controllers of cgroups, and the keeper has said which of them it
//! has; the others are refused, never ignored.

use super::error::Error;
use crate::process::{Cause, Enforceable, Exit, Limits, TreeLimits};

/// Fields of the API's limits that can be enforced anywhere.
const ALWAYS: [&str; 4] = ["open_files", "file_bytes", "cpu_time", "nice"];

/// Fields of the API's limits that can be enforced here.
pub fn enforceable(of_trees: Enforceable) -> Vec<&'static str> {
    let Enforceable { memory, processes, cpus } = of_trees;
    let of_trees = [("memory_bytes", memory), ("processes", processes), ("cpus", cpus)];
    let of_trees = of_trees.into_iter().filter_map(|(field, can)| can.then_some(field));
    of_trees.chain(ALWAYS).collect()
}

/// Refuses limits that cannot be enforced, all of them at once.
pub(super) fn check(limits: &Limits, of_trees: Enforceable) -> Result<(), Error> {
    let Limits {
        memory_bytes,
        processes,
        open_files: _,
        file_bytes: _,
        cpu_seconds: _,
        milli_cpus,
        nice: _,
    } = limits;
    let lacking = [
        ("memory_bytes", *memory_bytes > 0 && !of_trees.memory),
        ("processes", *processes > 0 && !of_trees.processes),
        ("cpus", *milli_cpus > 0 && !of_trees.cpus),
    ];
    let unsupported: Vec<_> =
        lacking.into_iter().filter_map(|(field, lacking)| lacking.then_some(field)).collect();
    if unsupported.is_empty() {
        return Ok(());
    }
    Err(Error::LimitUnsupported { unsupported, enforceable: enforceable(of_trees) })
}

/// The limits of the whole tree.
pub(super) fn of_tree(limits: &Limits) -> TreeLimits {
    let Limits { memory_bytes, processes, milli_cpus, .. } = *limits;
    TreeLimits { memory_bytes, processes, milli_cpus }
}

/// What there is to say of an end at which some had been killed for want of memory.
pub(super) fn want_of_memory(limits: &Limits, cause: Cause, exit: &Exit) -> Option<String> {
    let limit = limits.memory_bytes;
    match exit.oom_kills {
        0 => None,
        _ if cause == Cause::OutOfMemory => Some(format!("its limit is {limit} bytes")),
        1 => Some(format!("one of its tree was killed for want of memory, of {limit} bytes")),
        many => {
            Some(format!("{many} of its tree were killed for want of memory, of {limit} bytes"))
        }
    }
}

/// The kernel's numbers of the resource limits that were asked for, with their values.
pub(super) fn rlimits(limits: &Limits) -> Vec<(u32, u64)> {
    let Limits { open_files, file_bytes, cpu_seconds, .. } = *limits;
    let all = [
        (libc::RLIMIT_NOFILE, open_files),
        (libc::RLIMIT_FSIZE, file_bytes),
        // Soft and hard alike, at which the kernel sends SIGKILL and not first SIGXCPU.
        (libc::RLIMIT_CPU, cpu_seconds),
    ];
    all.into_iter().filter(|(_, value)| *value > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_enforced_is_named_all_of_it() {
        let always = Limits {
            open_files: 1,
            file_bytes: 1,
            cpu_seconds: 1,
            nice: Some(1),
            ..Limits::default()
        };
        let refused = |limits: &Limits, of_trees| match check(limits, of_trees) {
            Ok(()) => Vec::new(),
            Err(Error::LimitUnsupported { unsupported, .. }) => unsupported,
            Err(other) => panic!("{other:?}"),
        };
        let none = Enforceable::default();
        assert_eq!(check(&Limits::default(), none), Ok(()));
        assert_eq!(check(&always, none), Ok(()));
        let all = Limits { memory_bytes: 1, processes: 1, milli_cpus: 1, ..always };
        assert_eq!(refused(&all, none), ["memory_bytes", "processes", "cpus"]);
        let one = Limits { processes: 1, ..always };
        assert_eq!(refused(&one, none), ["processes"]);
        let memory = Enforceable { memory: true, ..none };
        assert_eq!(refused(&all, memory), ["processes", "cpus"]);
        assert_eq!(enforceable(memory)[..2], ["memory_bytes", "open_files"]);
        let every = Enforceable { memory: true, processes: true, cpus: true };
        assert_eq!(check(&all, every), Ok(()));
    }

    #[test]
    fn only_what_was_asked_for_is_limited() {
        assert_eq!(rlimits(&Limits::default()), []);
        let some = Limits { open_files: 64, cpu_seconds: 2, ..Limits::default() };
        assert_eq!(rlimits(&some), [(libc::RLIMIT_NOFILE, 64), (libc::RLIMIT_CPU, 2)]);
    }
}
