//! What a process may use: which limits can be enforced here, and how. Pure.
//!
//! Those of single processes are the kernel's resource limits, which the keeper sets before the
//! exec. Those of whole trees need controllers of cgroups, which nothing here has: they are
//! refused, never ignored.

use super::error::Error;
use crate::process::Limits;

/// Fields of the API's limits that can be enforced.
pub const ENFORCEABLE: [&str; 4] = ["open_files", "file_bytes", "cpu_time", "nice"];

/// Refuses limits that cannot be enforced, all of them at once.
pub(super) fn check(limits: &Limits) -> Result<(), Error> {
    let Limits {
        memory_bytes,
        processes,
        open_files: _,
        file_bytes: _,
        cpu_seconds: _,
        milli_cpus,
        nice: _,
    } = limits;
    let asked = [
        ("memory_bytes", *memory_bytes > 0),
        ("processes", *processes > 0),
        ("cpus", *milli_cpus > 0),
    ];
    let unsupported: Vec<_> =
        asked.into_iter().filter_map(|(field, asked)| asked.then_some(field)).collect();
    if unsupported.is_empty() { Ok(()) } else { Err(Error::LimitUnsupported(unsupported)) }
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
        let enforceable = Limits {
            open_files: 1,
            file_bytes: 1,
            cpu_seconds: 1,
            nice: Some(1),
            ..Limits::default()
        };
        assert_eq!(check(&Limits::default()), Ok(()));
        assert_eq!(check(&enforceable), Ok(()));
        let all = Limits { memory_bytes: 1, processes: 1, milli_cpus: 1, ..enforceable };
        let fields = vec!["memory_bytes", "processes", "cpus"];
        assert_eq!(check(&all), Err(Error::LimitUnsupported(fields)));
        let one = Limits { processes: 1, ..enforceable };
        assert_eq!(check(&one), Err(Error::LimitUnsupported(vec!["processes"])));
    }

    #[test]
    fn only_what_was_asked_for_is_limited() {
        assert_eq!(rlimits(&Limits::default()), []);
        let some = Limits { open_files: 64, cpu_seconds: 2, ..Limits::default() };
        assert_eq!(rlimits(&some), [(libc::RLIMIT_NOFILE, 64), (libc::RLIMIT_CPU, 2)]);
    }
}
