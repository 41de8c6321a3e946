//! What a keeper left when it was killed: descendants of its processes, a server.
//!
//! The kernel kills a keeper's children with it, but not their descendants, nor a child that is
//! setuid. Two processes kill those. The keeper's server notices first and still lives; the next
//! keeper of the state directory does it again before it begins, for a server that was killed as
//! well. Both must have locked the state directory, so that no living keeper has such a process: the
//! next keeper does not rely on that, as a person may have removed the lock or the whole directory.
//!
//! Leftovers are known by their environment, which names a file in the state directory, and by the
//! leaves of a keeper's directory that no keeper has locked. A descendant that changed its
//! environment and is in no leaf is not found.
//!
//! The server saves what it can of their output, and ends. One that hangs instead would keep the
//! state directory for ever, and is ended, too: known by the lock that it holds open.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cgroup;
use super::spawn::{COOKIE, OUTPUT};
use super::tree::{self, Environment, Member};
use crate::process::Descendant;
use crate::store::{StateDir, StoreError};

/// How long leftovers are searched for: one that forks while others are killed is found in the end.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long those that were killed are given to be gone.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a server may take to save what was printed and to end. It takes a moment, or seconds
/// if some gigabytes are to be written.
const SAVING: Duration = Duration::from_secs(10);
/// How long the kernel may take to free what a killed one held.
const FREEING: Duration = Duration::from_secs(5);

/// Kills them all. Called by the keeper that has claimed the state directory. Refused, with nothing
/// killed: another keeper runs whose lock was removed, and what was found is its own.
pub fn end_what_was_left(state_dir: &Path) -> Result<(), StoreError> {
    let leftovers = Leftovers::new(state_dir);
    if let Some(keeper) = leftovers.living_keeper() {
        let pid = Some(keeper.cast_unsigned());
        return Err(StoreError::InUse { path: state_dir.into(), pid });
    }
    leftovers.kill();
    end_server(state_dir);
    Ok(())
}

/// Finds and kills the descendants that a keeper of one state directory left.
#[derive(Debug)]
pub struct Leftovers {
    state_dir: PathBuf,
    /// This process and its ancestors: a keeper may be started by what an earlier one started.
    spared: Vec<Member>,
    /// The cgroup in which keepers that were started like this one make their directories.
    cgroup: Option<PathBuf>,
}

impl Leftovers {
    /// Remembers which processes are spared, so a server calls this while its keeper lives.
    pub fn new(state_dir: &Path) -> Leftovers {
        let (spared, cgroup) = (ancestors(), cgroup::directory_of_keepers());
        Leftovers { state_dir: state_dir.into(), spared, cgroup }
    }

    /// Kills all leftovers, and those that they fork meanwhile. Blocks for a second at most, or as
    /// long as one search of `/proc` takes. To be called by the server or the keeper that has
    /// locked the state directory.
    pub fn kill(&self) {
        let deadline = Instant::now() + KILL_TIMEOUT;
        let mut logged = false;
        while Instant::now() < deadline {
            // First: the kernel kills all of a leaf at once, whatever it forks.
            let populated = self.cgroup.as_deref().is_some_and(cgroup::kill_abandoned);
            if populated && !std::mem::replace(&mut logged, true) {
                tracing::warn!("processes left in cgroup leaves: killed");
            }
            if !self.kill_by_environment() && !populated {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// A living keeper of this directory, found above its processes or its server.
    fn living_keeper(&self) -> Option<i32> {
        let lock = StateDir::server(&self.state_dir).ok().flatten();
        let is_own = |pid: i32| {
            is_of(pid, &Environment::read(pid), &self.state_dir)
                || lock.as_ref().is_some_and(|lock| is_server_of(pid, lock))
        };
        let is_spared = |pid: i32| self.spared.iter().any(|spared| spared.pid == pid);
        let owner = fs::metadata(&self.state_dir).map(|found| found.uid()).ok();
        // A keeper above both this process and a leftover may be that of another directory, to which
        // a killed keeper below it left its descendants; one that is a leftover itself is another's.
        let is_keeper = |pid: i32| match StateDir::claim_in(pid.cast_unsigned()) {
            Some(directory) => {
                runs_as(pid, owner)
                    && !is_own(pid)
                    && (directory == self.state_dir || !is_spared(pid))
            }
            None => false,
        };
        let own = std::process::id().cast_signed();
        let mut pids = tree::numbers("/proc").filter(|pid| !is_spared(*pid) && is_own(*pid));
        pids.find_map(|pid| {
            lineage(pid).skip(1).take_while(|pid| *pid != own).find(|pid| is_keeper(*pid))
        })
    }

    /// Kills each leftover that is known by its environment as soon as it is found. True: some were
    /// found.
    fn kill_by_environment(&self) -> bool {
        let mut found = false;
        for pid in tree::numbers("/proc") {
            let mut environment = Environment::default();
            let belongs = || {
                environment = Environment::read(pid);
                is_of(pid, &environment, &self.state_dir)
            };
            let Some(member) = Member::find(pid, belongs) else { continue };
            if self.spared.iter().any(|spared| spared.is_same(&member)) {
                continue;
            }
            found = true;
            if tree::signal(&member, libc::SIGKILL) {
                let process = environment.value(COOKIE).map(String::from_utf8_lossy);
                let Descendant { pid, command } = member.describe();
                tracing::warn!(process = process.as_deref(), pid, command, "left running: killed");
            }
        }
        found
    }
}

/// Waits until no server uses the state directory, and ends one that goes on doing so.
fn end_server(state_dir: &Path) {
    if is_free_within(SAVING, state_dir) {
        return;
    }
    let Ok(Some(lock)) = StateDir::server(state_dir) else { return };
    let found = tree::numbers("/proc");
    let mut servers = found.filter_map(|pid| Member::find(pid, || is_server_of(pid, &lock)));
    match servers.find(|server| tree::signal(server, libc::SIGKILL)) {
        Some(server) => {
            tracing::warn!(pid = server.pid, "the server of an earlier keeper hangs: killed");
            is_free_within(FREEING, state_dir);
        }
        // Whoever wants the lock next says so.
        None => tracing::warn!("a server that cannot be found uses the state directory"),
    }
}

fn is_free_within(patience: Duration, state_dir: &Path) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        // What cannot be looked at is for whoever uses it to complain about.
        if !StateDir::server(state_dir).is_ok_and(|lock| lock.is_some()) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a process runs as the owner of a state directory or as root, and not by a setuid program:
/// any user can have a file open that is called like the claim of a keeper.
fn runs_as(pid: i32, owner: Option<u32>) -> bool {
    let is_trusted = |uid: &u32| *uid == 0 || Some(*uid) == owner;
    tree::uids(pid).is_some_and(|uids| uids.iter().all(is_trusted))
}

/// Whether a process is a server that holds this lock.
fn is_server_of(pid: i32, lock: &File) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_server = line.split(|byte| *byte == 0).nth(1) == Some(b"server");
    is_server && StateDir::is_open_in(pid.cast_unsigned(), lock)
}

/// Whether a process descends from one that was started for this state directory. The same path
/// may be another directory where another file system is mounted, as in a container.
fn is_of(pid: i32, environment: &Environment, state_dir: &Path) -> bool {
    let Some(output) = environment.value(OUTPUT) else { return false };
    let place = Path::new(std::ffi::OsStr::from_bytes(output)).parent();
    if place != Some(&state_dir.join("outputs")) || environment.value(COOKIE).is_none() {
        return false;
    }
    let theirs = Path::new("/proc").join(pid.to_string()).join("root");
    let theirs = theirs.join(state_dir.strip_prefix("/").unwrap_or(state_dir));
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let ours = identity(state_dir);
    ours.is_some() && identity(&theirs) == ours
}

/// This process, and all that it descends from.
fn ancestors() -> Vec<Member> {
    lineage(std::process::id().cast_signed()).filter_map(|pid| Member::find(pid, || true)).collect()
}

/// A process, its parent, and so on.
fn lineage(pid: i32) -> impl Iterator<Item = i32> {
    std::iter::successors(Some(pid), |pid| tree::parent(*pid).filter(|pid| *pid > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_does_not_end_itself_nor_whom_it_descends_from() {
        let own: Vec<i32> = ancestors().iter().map(|member| member.pid).collect();
        assert_eq!(own[0], std::process::id().cast_signed());
        assert_eq!(own.get(1).copied(), Some(std::os::unix::process::parent_id().cast_signed()));
    }

    #[test]
    fn who_names_another_directory_is_another_s() {
        let variables = |output: &str| {
            let mut command = std::process::Command::new("sleep");
            command.arg("600").env_clear().env("PATH", "/usr/bin:/bin");
            command.env("PROCYARD_ID", "a").env("PROCYARD_OUTPUT", output);
            command.spawn().unwrap()
        };
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state");
        for below in ["state/outputs", "state2/outputs", "state/two/outputs"] {
            std::fs::create_dir_all(place.path().join(below)).unwrap();
        }
        for (output, expected) in [
            ("state/outputs/1", true),
            ("state2/outputs/1", false),
            ("state/two/outputs/1", false),
            ("other/1", false),
        ] {
            let output = place.path().join(output);
            let mut child = variables(output.to_str().unwrap());
            let pid = child.id().cast_signed();
            // It has its variables when it executes its program.
            let begin = Instant::now();
            let is_executed = || {
                let environment = Environment::read(pid);
                environment.value(OUTPUT) == Some(output.as_os_str().as_bytes())
            };
            while !is_executed() {
                assert!(begin.elapsed() < Duration::from_secs(60), "it has no variables");
                std::thread::sleep(Duration::from_millis(1));
            }
            let found = is_of(pid, &Environment::read(pid), &state);
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found, expected, "{output:?}");
        }
    }
}
