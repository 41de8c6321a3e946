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
//! environment and is in no leaf is not found, nor is one that keeps its environment from being read.
//! What stands below the living keeper of another directory is that keeper's to kill.
//!
//! The server saves what it can of their output, and ends. One that hangs instead would keep the
//! state directory for ever, and is ended, too: known by the lock that it holds open.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cgroup;
use super::spawn::{COOKIE, OUTPUT};
use super::tree::{self, Environment, Member, ProcReader};
use crate::process::Descendant;
use crate::store::{StateDir, StoreError};

/// How long leftovers are searched for: one that forks while others are killed is found in the end.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a look at a process may take, and how many processes may not answer before no other is
/// looked at.
const LOOK_TIMEOUT: Duration = Duration::from_millis(20);
const MAX_READERS: usize = 64;
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
    let mut search = Search::new();
    if let Some(keeper) = leftovers.living_keeper(&mut search) {
        let pid = Some(keeper.cast_unsigned());
        return Err(StoreError::InUse { path: state_dir.into(), pid });
    }
    leftovers.kill_all(&mut search);
    end_server(state_dir, &mut search.reader);
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
        self.kill_all(&mut Search::new());
    }

    fn kill_all(&self, search: &mut Search) {
        let deadline = Instant::now() + KILL_TIMEOUT;
        let mut logged = false;
        while Instant::now() < deadline {
            // First: the kernel kills all of a leaf at once, whatever it forks.
            let populated = self.cgroup.as_deref().is_some_and(cgroup::kill_abandoned);
            if populated && !std::mem::replace(&mut logged, true) {
                tracing::warn!("processes left in cgroup leaves: killed");
            }
            if !self.kill_by_environment(search) && !populated && !search.reader.is_stuck() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        if search.reader.is_stuck() {
            tracing::warn!("some processes did not answer: they may be leftovers");
        }
    }

    /// A living keeper of this directory, found above its processes or its server.
    fn living_keeper(&self, search: &mut Search) -> Option<i32> {
        let lock = StateDir::server(&self.state_dir).ok().flatten();
        let mut keepers = tree::numbers("/proc").filter_map(|pid| {
            if self.is_spared(pid) {
                return None;
            }
            let reader = &mut search.reader;
            let is_server = lock.as_ref().is_some_and(|lock| is_server_of(pid, lock, reader));
            let is_own = is_server || self.leftover(pid, reader).is_some();
            is_own
                .then(|| self.keepers_above(pid, search))
                .into_iter()
                .flatten()
                .find_map(|(keeper, kind)| (kind == KeeperKind::Own).then_some(keeper))
        });
        keepers.next()
    }

    /// The living keepers that a process descends from.
    fn keepers_above(&self, pid: i32, search: &mut Search) -> Vec<(i32, KeeperKind)> {
        let own = std::process::id().cast_signed();
        let ancestors = lineage(pid).skip(1).take_while(|pid| *pid != own);
        let keepers = ancestors.filter_map(|pid| {
            let Search { reader, keepers } = &mut *search;
            let kind = keepers.entry(pid).or_insert_with(|| self.keeper_kind(pid, reader));
            kind.map(|kind| (pid, kind))
        });
        keepers.collect()
    }

    /// None: a process is no keeper, or a leftover itself, or it may pose as a keeper.
    fn keeper_kind(&self, pid: i32, reader: &mut ProcReader) -> Option<KeeperKind> {
        let directory = StateDir::claim_in(pid.cast_unsigned())?;
        let owner = fs::metadata(&self.state_dir).map(|found| found.uid()).ok();
        if !runs_as(pid, owner) || self.leftover(pid, reader).is_some() {
            return None;
        }
        // Its server knows the directory by the path that it had at first.
        let is_own = directory == self.state_dir || self.has_server(pid, owner, reader);
        Some(if is_own { KeeperKind::Own } else { KeeperKind::Other })
    }

    /// Whether a child of a keeper is a server that was started for this directory.
    fn has_server(&self, keeper: i32, owner: Option<u32>, reader: &mut ProcReader) -> bool {
        let mut children = tree::numbers("/proc").filter(|pid| tree::parent(*pid) == Some(keeper));
        children.any(|pid| {
            let arguments = runs_as(pid, owner).then(|| arguments(pid, reader)).flatten();
            let arguments = arguments.unwrap_or_default();
            let mut arguments = arguments.split(|byte| *byte == 0).skip(1);
            let state_dir = self.state_dir.as_os_str().as_bytes();
            arguments.next() == Some(b"server")
                && arguments.by_ref().any(|argument| argument == b"--state-dir")
                && arguments.next() == Some(state_dir)
        })
    }

    fn is_spared(&self, pid: i32) -> bool {
        self.spared.iter().any(|spared| spared.pid == pid)
    }

    /// Kills each leftover that is known by its environment as soon as it is found. True: some were
    /// found.
    fn kill_by_environment(&self, search: &mut Search) -> bool {
        let mut found = false;
        search.keepers.clear();
        for pid in tree::numbers("/proc") {
            let Some((member, environment)) = self.leftover(pid, &mut search.reader) else {
                continue;
            };
            if self.spared.iter().any(|spared| spared.is_same(&member)) {
                continue;
            }
            // A keeper above this process is no reason: a keeper below it has left them.
            if self.keepers_above(pid, search).iter().any(|(keeper, _)| !self.is_spared(*keeper)) {
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

    /// A process that descends from one that was started for this state directory, and its environment.
    fn leftover(&self, pid: i32, reader: &mut ProcReader) -> Option<(Member, Environment)> {
        let member = Member::find(pid, || true)?;
        let environment = reader.environment(member.identity())?.ok()?;
        is_of(&member, &environment, &self.state_dir, reader).then_some((member, environment))
    }
}

/// What a search has at hand.
struct Search {
    reader: ProcReader,
    /// What was found out about processes above others.
    keepers: HashMap<i32, Option<KeeperKind>>,
}

impl Search {
    fn new() -> Search {
        Search { reader: ProcReader::new(MAX_READERS, LOOK_TIMEOUT), keepers: HashMap::new() }
    }
}

/// Whose directory a living keeper has claimed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeeperKind {
    /// This one, or it was removed or moved and another one is in its place.
    Own,
    Other,
}

/// Waits until no server uses the state directory, and ends one that goes on doing so.
fn end_server(state_dir: &Path, reader: &mut ProcReader) {
    if is_free_within(SAVING, state_dir) {
        return;
    }
    let Ok(Some(lock)) = StateDir::server(state_dir) else { return };
    let found = tree::numbers("/proc");
    let mut servers =
        found.filter_map(|pid| Member::find(pid, || is_server_of(pid, &lock, reader)));
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

/// The arguments of a process, each of which ends with a NUL.
fn arguments(pid: i32, reader: &mut ProcReader) -> Option<Vec<u8>> {
    reader.arguments(Member::find(pid, || true)?.identity())?.ok()
}

/// Whether a process is a server that holds this lock.
fn is_server_of(pid: i32, lock: &File, reader: &mut ProcReader) -> bool {
    // Few processes have it open, and this look needs no answer of the process.
    StateDir::is_open_in(pid.cast_unsigned(), lock)
        && arguments(pid, reader)
            .is_some_and(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"server"))
}

/// Whether a process descends from one that was started for this state directory. The same path
/// may be another directory where another file system is mounted, as in a container.
fn is_of(
    process: &Member,
    environment: &Environment,
    state_dir: &Path,
    reader: &mut ProcReader,
) -> bool {
    let Some(output) = environment.value(OUTPUT) else { return false };
    let place = Path::new(std::ffi::OsStr::from_bytes(output)).parent();
    if place != Some(&state_dir.join("outputs")) || environment.value(COOKIE).is_none() {
        return false;
    }
    let ours = tree::identity(state_dir).ok();
    let theirs = reader.identity(process.identity(), state_dir).and_then(Result::ok);
    ours.is_some() && theirs == ours
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
            let mut reader = ProcReader::new(1, Duration::from_secs(60));
            let begin = Instant::now();
            let mut environment = || {
                let member = Member::find(pid, || true).unwrap();
                let environment = reader.environment(member.identity()).unwrap();
                (member, environment.unwrap_or_default())
            };
            let (member, environment) = loop {
                let (member, found) = environment();
                if found.value(OUTPUT) == Some(output.as_os_str().as_bytes()) {
                    break (member, found);
                }
                assert!(begin.elapsed() < Duration::from_secs(60), "it has no variables");
                std::thread::sleep(Duration::from_millis(1));
            };
            let found = is_of(&member, &environment, &state, &mut reader);
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found, expected, "{output:?}");
        }
    }
}
