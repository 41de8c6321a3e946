//! Cgroup v2 leaves: a process and all it ever forks in one place, ended in one stroke.
//!
//! Owns one directory below the keeper's own cgroup and the leaves in it. Used where the kernel
//! has `cgroup.kill` and the keeper may write there; elsewhere there is no `Cgroups`.
//!
//! Making and removing a leaf takes longer than the rest of a start on the keeper's side, so an
//! empty one is used again.

mod remaining;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use uuid::Uuid;

use super::spawn::Spawner;
use super::turns::Keeper;
pub(super) use remaining::Remaining;

/// Empty leaves that are kept for the next processes.
const MAX_FREE: usize = 64;

/// How the name of a keeper's own directory begins; the rest is a UUID.
const PREFIX: &str = "procyard-";

/// Name of the leaf that the keeper itself moves to, with its server, where limits need that.
pub(super) const KEEPERS_LEAF: &str = "keeper";

/// A leaf.
#[derive(Debug)]
pub(super) struct Leaf {
    number: u64,
    /// It is not used again: it has limits and counts of its own, or was killed, and newer kernels
    /// (seen on 6.18) kill at birth whoever is cloned into a cgroup that was killed before.
    spent: bool,
}

impl Leaf {
    /// Its number, which names its directory.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

/// The keeper's own part of the cgroup tree.
pub(super) struct Cgroups {
    base: PathBuf,
    /// Locked as long as this keeper lives, so that the next one can tell what is left over.
    _lock: OwnedFd,
    made: u64,
    /// Empty leaves.
    free: Vec<Leaf>,
    /// Leaves of released processes whose descendants live on.
    pub(super) remaining: Remaining,
}

impl Cgroups {
    /// Finds out whether leaves can be made here and processes can begin in them, by trying. What
    /// a keeper that was killed left behind is ended and removed.
    pub(super) fn probe(spawner: &mut Spawner) -> Option<Cgroups> {
        let mut cgroups = Cgroups::below(&directory_of_keepers()?)?;
        let (leaf, fd) = cgroups.take(false).ok()?;
        let usable = cgroups.path(&leaf).join("cgroup.kill").exists() && spawner.can_begin_in(fd);
        cgroups.give_back(leaf, true);
        // Dropped, it takes its directory along.
        usable.then_some(cgroups)
    }

    fn below(own: &Path) -> Option<Cgroups> {
        let (base, _lock) = claim(own)?;
        let (free, remaining) = (Vec::new(), Remaining::default());
        Some(Cgroups { base, _lock, made: 0, free, remaining })
    }

    /// An empty leaf, and its descriptor for a process to begin in. One that is to be limited is
    /// made for that, and not used again.
    pub(super) fn take(&mut self, limited: bool) -> io::Result<(Leaf, OwnedFd)> {
        // Another process may have removed an empty leaf.
        while let Some(leaf) = self.free.pop_if(|_| !limited) {
            match self.open(&leaf) {
                Ok(fd) => return Ok((leaf, fd)),
                Err(_) => self.discard(leaf),
            }
        }
        self.made += 1;
        let leaf = Leaf { number: self.made, spent: limited };
        fs::create_dir(self.path(&leaf))?;
        match self.open(&leaf) {
            Ok(fd) => Ok((leaf, fd)),
            Err(error) => {
                self.discard(leaf);
                Err(error)
            }
        }
    }

    fn open(&self, leaf: &Leaf) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(self.path(leaf), flags, Mode::empty())?)
    }

    /// Whether another process has removed the keeper's directory.
    fn is_lost(&self) -> bool {
        !self.base.exists()
    }

    /// Makes another directory in the place of a lost one, in which no process was. Leaves keep
    /// their numbers, so those of the lost directory are not mistaken for new ones.
    fn make_again(&mut self) -> bool {
        let Some(mut again) = self.base.parent().and_then(Cgroups::below) else { return false };
        again.made = self.made;
        *self = again;
        true
    }

    /// Takes back the leaf of a process that has ended. `certain`: nobody can be in it; else the
    /// kernel is asked.
    pub(super) fn give_back(&mut self, leaf: Leaf, certain: bool) {
        let room = !leaf.spent && self.free.len() < MAX_FREE;
        if room && (certain || self.is_empty(&leaf)) {
            self.free.push(leaf);
        } else {
            self.remaining.remove(self.path(&leaf));
        }
    }

    /// Takes back a leaf that is not to be used again, such as one that nobody could begin in.
    pub(super) fn discard(&mut self, leaf: Leaf) {
        self.give_back(Leaf { spent: true, ..leaf }, false);
    }

    /// Removes the empty leaves that are kept: another process has changed some.
    pub(super) fn discard_free(&mut self) {
        for leaf in std::mem::take(&mut self.free) {
            self.discard(leaf);
        }
    }

    /// Whether processes in the leaf do not run because it is frozen. The keeper freezes none.
    pub(super) fn is_frozen(&self, leaf: &Leaf) -> bool {
        let has_line = |file: &str, wanted: &str| {
            let content = fs::read_to_string(self.path(leaf).join(file)).unwrap_or_default();
            content.lines().any(|line| line == wanted)
        };
        // The event waits until all have stopped, and a cgroup above may be the one that is frozen.
        has_line("cgroup.freeze", "1") || has_line("cgroup.events", "frozen 1")
    }

    /// Kills all that is in the leaf.
    pub(super) fn kill(&self, leaf: &mut Leaf) {
        leaf.spent = true;
        let _ = fs::write(self.path(leaf).join("cgroup.kill"), "1");
    }

    /// Who is in the leaf, or in a cgroup that was made below it.
    pub(super) fn pids(&self, leaf: &Leaf) -> Vec<i32> {
        let mut pids = Vec::new();
        visit(&self.path(leaf), &mut |directory| {
            let list = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            pids.extend(list.lines().filter_map(|pid| pid.parse::<i32>().ok()));
        });
        pids
    }

    /// Whether a process is in the leaf of this number, or in a cgroup below it.
    pub(super) fn holds(&self, leaf: u64, pid: i32) -> bool {
        self.leaf_of(pid) == Some(leaf)
    }

    /// The number of the leaf that a process is in, or in a cgroup below it.
    pub(super) fn leaf_of(&self, pid: i32) -> Option<u64> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
        leaf_number(own, self.base.file_name()?.to_str()?)
    }

    /// Whether a process lives in the leaf of this number, or below it.
    pub(super) fn has_members(&self, leaf: u64) -> bool {
        is_populated(&self.base.join(leaf.to_string()))
    }

    /// Whether nobody lives in the leaf, nor below it.
    pub(super) fn is_empty(&self, leaf: &Leaf) -> bool {
        let events = fs::read_to_string(self.path(leaf).join("cgroup.events"));
        events.is_ok_and(|events| events.lines().any(|line| line == "populated 0"))
    }

    /// The directory of all leaves, which is one below the keeper's own cgroup.
    pub(super) fn base(&self) -> &Path {
        &self.base
    }

    /// The directory of a leaf.
    pub(super) fn path(&self, leaf: &Leaf) -> PathBuf {
        self.base.join(leaf.number.to_string())
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        remove_base(&self.base);
    }
}

impl Keeper {
    /// An empty leaf for a process to begin in, where there are leaves. If the keeper's directory
    /// was removed, it is made again; if that fails, there are no leaves from then on.
    pub(super) fn take_leaf(&mut self, limited: bool) -> Option<(Leaf, OwnedFd)> {
        let cgroups = self.cgroups.as_mut()?;
        let taken = cgroups.take(limited);
        if taken.is_ok() || !cgroups.is_lost() {
            return taken.ok();
        }
        if cgroups.make_again() {
            tracing::warn!("the keeper's cgroup was removed by another process; it was made again");
            self.controllers.delegate_to(cgroups.base());
            return cgroups.take(limited).ok();
        }
        tracing::error!(
            "the keeper's cgroup was removed and cannot be made again; kills walk trees"
        );
        self.controllers.lose_leaves();
        self.cgroups = None;
        None
    }
}

/// The number of a leaf in the path of a cgroup, below the directory of this name.
fn leaf_number(path: &str, base: &str) -> Option<u64> {
    // So the kernel shows a cgroup that was removed.
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let mut names = path.split('/').skip_while(|name| *name != base);
    names.nth(1)?.parse().ok()
}

/// Makes a directory of this keeper's own in a cgroup, with its lock. What a keeper that was killed
/// left there is ended and removed.
pub(super) fn claim(own: &Path) -> Option<(PathBuf, OwnedFd)> {
    kill_abandoned(own);
    // Until it is locked, another keeper may take it for abandoned: then with another name.
    (0..3).find_map(|_| {
        let base = own.join(format!("{PREFIX}{}", Uuid::now_v7()));
        // Others may not open it: a process that waits for the lock would take it when the keeper
        // dies, and so pass for a living one.
        fs::DirBuilder::new().mode(0o700).create(&base).ok()?;
        lock(&base).map(|lock| (base, lock))
    })
}

/// Locks a directory, unless another living keeper has.
fn lock(directory: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    flock(&fd, FlockOperation::NonBlockingLockExclusive).ok().map(|()| fd)
}

/// Kills what is in the leaves of keepers that could not clean up, and removes their directories.
/// The lock tells that a keeper is gone, not the pid, which may be of another namespace. Returns
/// whether a process was left in one.
pub(super) fn kill_abandoned(own: &Path) -> bool {
    let mut populated = false;
    for entry in fs::read_dir(own).into_iter().flatten().flatten() {
        let Some(_lock) = is_a_keepers(&entry.file_name()).then(|| lock(&entry.path())).flatten()
        else {
            continue;
        };
        for leaf in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            // A server that still saves what was printed ends by itself.
            if leaf.file_name() != KEEPERS_LEAF {
                populated |= is_populated(&leaf.path());
                let _ = fs::write(leaf.path().join("cgroup.kill"), "1");
            }
        }
        // What was just killed may take a moment; then the next call removes it.
        remove_base(&entry.path());
    }
    populated
}

/// Whether a directory has the name of a keeper's own, and not only one that begins alike.
fn is_a_keepers(name: &OsStr) -> bool {
    let unique = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    unique.is_some_and(|unique| Uuid::try_parse(unique).is_ok())
}

/// Removes the directory of a keeper, as far as no process is in its leaves. The caller has locked it.
pub(super) fn remove_base(base: &Path) {
    for leaf in subdirectories(base) {
        remove(&leaf);
    }
    let _ = fs::remove_dir(base);
}

/// Removes a directory and all below it, unless a process is there or below. What another living
/// keeper has locked stays, also where the kernel does not tell whether a process is there (v1).
pub(super) fn remove(directory: &Path) {
    if !is_populated(directory) {
        remove_unlocked(directory);
    }
}

fn remove_unlocked(directory: &Path) {
    for below in subdirectories(directory) {
        let keepers = below.file_name().is_some_and(is_a_keepers);
        // Held until the directory is gone: a keeper that has made it and not locked it yet then
        // makes another.
        let lock = keepers.then(|| lock(&below));
        if !matches!(lock, Some(None)) {
            remove_unlocked(&below);
        }
    }
    let _ = fs::remove_dir(directory);
}

fn subdirectories(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path())
}

/// Calls `f` for every cgroup below a directory, deepest first, then for itself.
fn visit(directory: &Path, f: &mut dyn FnMut(&Path)) {
    for below in subdirectories(directory) {
        visit(&below, f);
    }
    f(directory);
}

/// Whether a process is in a cgroup, or below it.
fn is_populated(directory: &Path) -> bool {
    let events = fs::read_to_string(directory.join("cgroup.events"));
    events.is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
}

/// The cgroup below which a keeper that is started here makes its directory. The same for the
/// keeper and for its server, which may be in a leaf of that directory.
pub(super) fn directory_of_keepers() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    own_directory(&mounts, &groups).map(above_keepers_leaf)
}

fn above_keepers_leaf(own: PathBuf) -> PathBuf {
    let base = own.parent().filter(|_| own.ends_with(KEEPERS_LEAF));
    let base = base.filter(|base| base.file_name().is_some_and(is_a_keepers));
    base.and_then(Path::parent).map_or_else(|| own.clone(), Path::to_path_buf)
}

/// The directory of the keeper's own cgroup, from mountinfo and /proc/self/cgroup.
pub(super) fn own_directory(mounts: &str, groups: &str) -> Option<PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    below_mount(mount, own)
}

/// The directory of a cgroup, from the line of its hierarchy in mountinfo.
pub(super) fn below_mount(mount: &str, own: &str) -> Option<PathBuf> {
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let inside = Path::new(own).strip_prefix(root).ok()?;
    Some(Path::new(point).join(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaf_is_known_by_the_name_below_its_directory() {
        let number = |path| leaf_number(path, "procyard-a");
        assert_eq!(number("/x/procyard-a/12"), Some(12));
        assert_eq!(number("/procyard-a/12/made/procyard-b/3"), Some(12));
        assert_eq!(number("/procyard-a/12 (deleted)"), Some(12));
        for path in ["/", "/procyard-a", "/procyard-a/keeper", "/procyard-ab/1", "/procyard-b/1"] {
            assert_eq!(number(path), None, "{path}");
        }
    }

    #[test]
    fn a_leaf_that_nobody_could_begin_in_is_not_used_again() {
        let own = tempfile::tempdir().unwrap();
        let mut cgroups = Cgroups::below(own.path()).unwrap();
        let (leaf, _) = cgroups.take(false).unwrap();
        cgroups.give_back(leaf, true);
        let (again, _) = cgroups.take(false).unwrap();
        assert_eq!(again.number, 1);
        let path = cgroups.path(&again);
        cgroups.discard(again);
        assert!(!path.exists() && cgroups.remaining.is_empty());
        assert_eq!(cgroups.take(false).unwrap().0.number, 2);
    }

    #[test]
    fn locked_directory_of_another_keeper_is_not_removed() {
        let own = tempfile::tempdir().unwrap();
        let leaf = own.path().join("5");
        fs::create_dir_all(leaf.join("made/by/the/command")).unwrap();
        let (base, lock) = claim(&leaf).unwrap();
        fs::create_dir(base.join("1")).unwrap();
        remove(&leaf);
        assert!(base.join("1").exists(), "the leaf of a living keeper");
        assert!(!leaf.join("made").exists());
        // A keeper that was killed holds no lock.
        drop(lock);
        remove(&leaf);
        assert!(!base.exists() && !leaf.exists());
    }

    #[test]
    fn nothing_is_removed_below_a_populated_leaf() {
        let own = tempfile::tempdir().unwrap();
        let made = own.path().join("made");
        fs::create_dir(&made).unwrap();
        let events = own.path().join("cgroup.events");
        fs::write(&events, "populated 1\nfrozen 0\n").unwrap();
        remove(own.path());
        assert!(made.exists());
        fs::write(&events, "populated 0\nfrozen 0\n").unwrap();
        remove(own.path());
        assert!(!made.exists());
    }

    #[test]
    fn removed_leaves_and_directories_are_made_again() {
        let own = tempfile::tempdir().unwrap();
        let mut cgroups = Cgroups::below(own.path()).unwrap();
        let (free, _) = cgroups.take(false).unwrap();
        let first = free.number;
        fs::remove_dir(cgroups.path(&free)).unwrap();
        cgroups.give_back(free, true);
        let (leaf, _) = cgroups.take(false).unwrap();
        assert!(leaf.number > first && cgroups.path(&leaf).exists());
        let lost = cgroups.base.clone();
        fs::remove_dir_all(&lost).unwrap();
        cgroups.give_back(leaf, true);
        assert!(cgroups.take(false).is_err() && cgroups.is_lost());
        assert!(cgroups.make_again() && cgroups.base != lost);
        let (leaf, _) = cgroups.take(false).unwrap();
        assert!(cgroups.path(&leaf).exists() && lock(&cgroups.base).is_none());
    }

    #[test]
    fn only_what_a_keeper_named_is_taken_for_abandoned() {
        let own = tempfile::tempdir().unwrap();
        let abandoned = format!("{PREFIX}{}", Uuid::now_v7());
        for name in [&abandoned, "procyard-", "procyard-a", "procyard", "procyardy.slice"] {
            fs::create_dir(own.path().join(name)).unwrap();
        }
        let (_base, _lock) = claim(own.path()).unwrap();
        assert!(!own.path().join(abandoned).exists());
        assert_eq!(fs::read_dir(own.path()).unwrap().count(), 5, "four and the new one");
    }

    #[test]
    fn server_in_keepers_leaf_finds_the_cgroup_of_keepers() {
        let base = format!("/own/{PREFIX}{}", Uuid::now_v7());
        let above = |path: String| above_keepers_leaf(path.into());
        assert_eq!(above(format!("{base}/{KEEPERS_LEAF}")), Path::new("/own"));
        for other in ["/own".into(), format!("{base}/5"), format!("/own/{KEEPERS_LEAF}")] {
            assert_eq!(above(other.clone()), Path::new(&other));
        }
    }

    #[test]
    fn the_own_cgroup_is_found_in_unified_hybrid_and_bind_mounts() {
        let line = |root: &str, point: &str| {
            format!(
                "20 1 0:5 / /proc rw - proc proc rw\n35 26 0:30 {root} {point} rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
            )
        };
        let found = |root, point, groups| own_directory(&line(root, point), groups);
        let unified = found("/", "/sys/fs/cgroup", "0::/user.slice/a.scope\n");
        assert_eq!(unified, Some("/sys/fs/cgroup/user.slice/a.scope".into()));
        let hybrid = found("/", "/sys/fs/cgroup/unified", "4:memory:/x\n0::/\n");
        assert_eq!(hybrid, Some("/sys/fs/cgroup/unified/".into()));
        let bound = found("/pods/p1", "/sys/fs/cgroup", "0::/pods/p1/c\n");
        assert_eq!(bound, Some("/sys/fs/cgroup/c".into()));
        assert_eq!(found("/pods/p1", "/sys/fs/cgroup", "4:memory:/\n"), None);
    }
}
