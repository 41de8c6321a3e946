//! Memory that runs out: how much there is, and which process the kernel kills for it.
//!
//! Rings are memory of the keeper as the kernel sees it, so that a keeper with full rings is the
//! largest process of its cgroup, and killed first. Three things prevent that. The server bounds
//! the rings by the limit that is found here. Where it is permitted, keeper and server lower their
//! OOM score. Where it is not and memory is limited, processes get a higher one than the keeper,
//! and the keeper maps little of its rings at a time (`ring`): memory that is in no page table
//! counts for no process. Both are needed: a pod may have the highest score already.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::path::Path;
use std::rc::Rc;

use super::cgroup;
use super::controllers::memory_directory;

/// What a keeper, without which everything is lost, lowers its OOM score to.
pub(super) const KEEPER_OOM_SCORE: i32 = -900;

/// How much higher the OOM score of processes is than that of a keeper that cannot lower its own:
/// in thousandths of the limit, more than keeper and server take beside rings.
const OOM_SCORE_DISTANCE: i32 = 200;
const MAX_OOM_SCORE: i32 = 1000;

/// What a cgroup v1 without a limit has is about the largest number of pages, in bytes.
const V1_UNLIMITED: u64 = 1 << 60;

const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// Lowers the OOM score of this process, unless it is as low already. Without CAP_SYS_RESOURCE the
/// kernel refuses, unless a privileged process has set it as low before.
pub fn lower_oom_score(score: i32) -> io::Result<()> {
    let own = fs::read_to_string(OOM_SCORE)?;
    if own.trim().parse().is_ok_and(|own: i32| own <= score) {
        return Ok(());
    }
    fs::write(OOM_SCORE, score.to_string())
}

/// The OOM scores of the keeper's children, where they differ from its own.
pub(super) struct OomScores {
    pub(super) process: Option<Rc<CStr>>,
    pub(super) server: Option<Rc<CStr>>,
}

impl OomScores {
    /// The usual ones, or, if the keeper is exposed, a higher one for processes.
    pub(super) fn of_children(exposed: bool) -> OomScores {
        let own = fs::read_to_string(OOM_SCORE).ok().and_then(|own| own.trim().parse().ok());
        OomScores::beside(own.unwrap_or(0), exposed)
    }

    fn beside(own: i32, exposed: bool) -> OomScores {
        let higher = (own + OOM_SCORE_DISTANCE).clamp(0, MAX_OOM_SCORE);
        let unless_own = |score: i32| {
            let score = Some(score).filter(|score| *score != own)?;
            CString::new(score.to_string()).ok().map(Rc::from)
        };
        OomScores { process: unless_own(if exposed { higher } else { 0 }), server: unless_own(0) }
    }
}

/// The closest limit of the memory of this process by its cgroups, v1 and v2, in bytes.
pub fn cgroup_memory_limit() -> Option<u64> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let v1 = memory_directory(&mounts, &groups).and_then(|own| v1_limit(&own));
    let v2 = cgroup::own_directory(&mounts, &groups).and_then(|own| v2_limit(&own));
    v1.into_iter().chain(v2).min()
}

/// The limit of a cgroup v1 and of all above it.
fn v1_limit(own: &Path) -> Option<u64> {
    let stat = fs::read_to_string(own.join("memory.stat")).ok()?;
    let limit = stat.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "))?;
    limit.trim().parse().ok().filter(|limit| *limit < V1_UNLIMITED)
}

/// The same of a cgroup v2, as far up as cgroups can be seen.
fn v2_limit(own: &Path) -> Option<u64> {
    let limits = own.ancestors().filter_map(|cgroup| {
        let limit = fs::read_to_string(cgroup.join("memory.max")).ok()?;
        // "max" if there is none.
        limit.trim().parse().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_v2_limit_of_all_cgroups_above_counts() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("pod/container");
        fs::create_dir_all(&own).unwrap();
        assert_eq!(v2_limit(&own), None);
        fs::write(own.join("memory.max"), "max\n").unwrap();
        assert_eq!(v2_limit(&own), None);
        fs::write(root.path().join("pod/memory.max"), "2000\n").unwrap();
        assert_eq!(v2_limit(&own), Some(2000));
        fs::write(own.join("memory.max"), "1000\n").unwrap();
        assert_eq!(v2_limit(&own), Some(1000));
    }

    #[test]
    fn processes_of_an_exposed_keeper_get_a_higher_oom_score() {
        let process = |own, exposed| {
            let score = OomScores::beside(own, exposed).process;
            score.map(|score| score.to_str().unwrap().parse::<i32>().unwrap())
        };
        assert_eq!(
            [process(0, false), process(-900, false), process(500, false)],
            [None, Some(0), Some(0)]
        );
        assert_eq!([process(0, true), process(500, true)], [Some(200), Some(700)]);
        assert_eq!([process(999, true), process(1000, true)], [Some(1000), None]);
        assert_eq!(process(-500, true), Some(0));
        assert!(OomScores::beside(0, true).server.is_none());
    }

    #[test]
    fn v1_limit_is_that_of_the_hierarchy() {
        let own = tempfile::tempdir().unwrap();
        let limit = |stat: &str| {
            fs::write(own.path().join("memory.stat"), stat).unwrap();
            v1_limit(own.path())
        };
        assert_eq!(limit("cache 7\nhierarchical_memory_limit 4096\n"), Some(4096));
        assert_eq!(limit("hierarchical_memory_limit 9223372036854771712\n"), None);
    }
}
