//! The state directory: whose it is, who may see into it, and that one server uses it at a time.
//!
//! A directory is used only if it is claimed (`marker`); what others keep in it is never touched.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{StoreError, data_dir, marker};

/// Others may pass through to files that were made for them; only the owner lists.
const MODE: u32 = 0o711;

/// Names of the files that are locked, by a server and by a keeper.
pub(super) const LOCK: &str = "lock";
pub(super) const CLAIM: &str = "keeper.lock";

/// Bytes that a lock file holds: a pid, padded, and a newline.
const LOCK_BYTES: usize = 11;

/// How files are opened whose place another file may have taken: no link is followed, and a FIFO or
/// a device is not waited for.
const CAREFUL: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// How long the lock is waited for: the kernel frees it some time after the server that held it
/// was killed, when its memory is gone.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often the lock is tried meanwhile.
const RETRY: Duration = Duration::from_millis(10);

/// A state directory that is ours alone, as long as a clone of this is there.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
    /// The lock goes with the last descriptor, thus also when the process is killed.
    _lock: Arc<File>,
}

impl StateDir {
    /// Makes the directory if it is missing, claims it, and takes from others what they may not do
    /// there. Refused: one that holds other files than procyard's and those `expected`. Returns
    /// where it is.
    pub fn prepare(path: &Path, expected: &[PathBuf]) -> Result<PathBuf, StoreError> {
        make(path)?;
        let path = fs::canonicalize(path).map_err(cannot("find", path))?;
        let found = fs::metadata(&path).map_err(cannot("look at", &path))?;
        if !found.is_dir() {
            return Err(cannot("use", &path)(io::ErrorKind::NotADirectory.into()));
        }
        ours(&path, &found)?;
        marker::claim(&path, expected)?;
        narrow(&path, &found)?;
        Ok(path)
    }

    /// Whether a directory is marked as procyard's, by this user.
    pub fn is_marked(path: &Path) -> bool {
        marker::is_marked(path)
    }

    /// Makes the directory if it is missing and locks it for a server. Blocks for up to two
    /// seconds.
    pub fn lock(path: &Path) -> Result<StateDir, StoreError> {
        StateDir::lock_within(path, LOCK, PATIENCE)
    }

    /// The same for a keeper, whose servers come and go. The directory may hold files that are
    /// `expected`, and subdirectories only that procyard can use.
    pub fn claim(path: &Path, expected: &[PathBuf]) -> Result<StateDir, StoreError> {
        let path = StateDir::prepare(path, expected)?;
        data_dir::check_all(&path)?;
        StateDir::lock_within(&path, CLAIM, PATIENCE)
    }

    /// The pid of the keeper that has claimed a directory; none: nobody has.
    pub fn keeper(path: &Path) -> Result<Option<u32>, StoreError> {
        let claim = held(&path.join(CLAIM))?;
        // The number alone proves nothing: it may be out of date, or of another pid namespace.
        let found = claim.and_then(|file| Some((holder(&file)?, file)));
        Ok(found.filter(|(pid, file)| StateDir::is_open_in(*pid, file)).map(|(pid, _)| pid))
    }

    /// The directory that a keeper has claimed; none: the process is no keeper, or may not be
    /// looked at.
    pub fn claimed_by(pid: u32) -> Option<PathBuf> {
        // A link alone proves nothing: the directory may have been moved, or be another process's.
        open_claims(pid)
            .find(|path| matches!(StateDir::keeper(path), Ok(Some(keeper)) if keeper == pid))
    }

    /// The directory whose claim a process has open, though the claim may have been removed since.
    pub fn claim_in(pid: u32) -> Option<PathBuf> {
        open_claims(pid).next()
    }

    /// Whether a process has a file open.
    pub fn is_open_in(pid: u32, file: &File) -> bool {
        // What is not up to date is enough: a file system that does not answer is not asked.
        let identity = |at: BorrowedFd<'_>, path: &Path, flags| {
            let found = statx(at, path, flags | AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
            Some((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
        };
        let Some(file) = identity(file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH) else {
            return false;
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut found = descriptors.map(|fd| identity(CWD, &fd.path(), AtFlags::empty()));
        found.any(|found| found == Some(file))
    }

    /// The lock of the server that uses a directory; none: none does.
    pub fn server(path: &Path) -> Result<Option<File>, StoreError> {
        held(&path.join(LOCK))
    }

    /// Whether a file is in the place of one of procyard's own in a directory, which need not be there
    /// yet, or below one of its subdirectories. `others` are names of files that the store does not
    /// know.
    pub fn is_reserved(directory: &Path, file: &Path, others: &[&str]) -> bool {
        let real = |path: &Path| fs::canonicalize(path).or_else(|_| std::path::absolute(path));
        let in_real_parent = || {
            let file = std::path::absolute(file)?;
            let parent = file.parent().map_or(Ok(PathBuf::from("/")), real)?;
            io::Result::Ok(parent.join(file.file_name().unwrap_or_default()))
        };
        let Ok(directory) = real(directory) else { return false };
        [fs::canonicalize(file), in_real_parent()].into_iter().flatten().any(|file| {
            let name = file.strip_prefix(&directory).ok().and_then(|path| path.iter().next());
            let Some(name) = name.and_then(|name| name.to_str()) else { return false };
            others.contains(&name) || marker::is_own_name(name)
        })
    }

    /// Where it is: absolute, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn lock_within(
        path: &Path,
        name: &str,
        patience: Duration,
    ) -> Result<StateDir, StoreError> {
        let path = StateDir::prepare(path, &[])?;
        let name = path.join(name);
        let mut file = lock_file(&name)?;
        let mut read_only = true;
        let deadline = Instant::now() + patience;
        while let Err(errno) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if errno == Errno::BADF && std::mem::take(&mut read_only) {
                // NFS locks for one alone only what can be written.
                file = private_file(&name)?;
                continue;
            }
            if errno != Errno::WOULDBLOCK && errno != Errno::INTR {
                return Err(cannot("lock", &path)(errno.into()));
            }
            if Instant::now() >= deadline {
                return Err(StoreError::InUse { path, pid: holder(&file) });
            }
            thread::sleep(RETRY);
        }
        // Only for the message to whoever comes second: a full disk is no reason to fail here.
        let pid = format!("{:<10}\n", std::process::id());
        let _ = private_file(&name).map(|file| file.write_all_at(pid.as_bytes(), 0));
        Ok(StateDir { path, _lock: Arc::new(file) })
    }
}

/// The directories of the claims that a process has open.
fn open_claims(pid: u32) -> impl Iterator<Item = PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|fd| {
        let path = fs::read_link(fd.path()).ok()?;
        let name = path.file_name()?.to_str()?;
        // So the kernel shows a file that was removed.
        let is_claim = name.strip_suffix(" (deleted)").unwrap_or(name) == CLAIM;
        is_claim.then(|| path.parent().map(Path::to_owned)).flatten()
    })
}

/// A file that somebody has locked; none: nobody has.
fn held(path: &Path) -> Result<Option<File>, StoreError> {
    let file = match regular_file(path) {
        Err(StoreError::Directory { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(None);
        }
        file => file?.0,
    };
    // What stands there may be of one that was killed. Who wants it right now waits for longer
    // than this takes.
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Ok(Some(file)),
        locked => locked.map(|()| None).map_err(|errno| cannot("lock", path)(errno.into())),
    }
}

/// A file of the state directory that only its owner can read, made if it is missing.
pub(super) fn private_file(path: &Path) -> Result<File, StoreError> {
    let careful = CAREFUL.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(careful);
    let file = options.open(path).map_err(cannot("open", path))?;
    let found = own_file(path, &file)?;
    if found.mode() & 0o177 != 0 {
        file.set_permissions(Permissions::from_mode(0o600)).map_err(cannot("protect", path))?;
    }
    Ok(file)
}

/// A file to be locked, made if it is missing. Held open to be read only: nothing of a keeper then
/// stands against a file system that is made read-only, and a server can begin on one that is.
fn lock_file(path: &Path) -> Result<File, StoreError> {
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC | CAREFUL;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600));
    let file = File::from(file.map_err(|errno| cannot("open", path)(errno.into()))?);
    own_file(path, &file)?;
    Ok(file)
}

/// Opens a regular file of ours to be read.
pub(super) fn open_regular(path: &Path) -> Result<File, StoreError> {
    let (file, found) = regular_file(path)?;
    ours(path, &found)?;
    Ok(file)
}

/// Opens a regular file of any user to be read.
fn regular_file(path: &Path) -> Result<(File, fs::Metadata), StoreError> {
    let careful = CAREFUL.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(careful).open(path);
    let file = file.map_err(cannot("open", path))?;
    let found = expect_regular(path, &file)?;
    Ok((file, found))
}

/// Refuses an open file that is not regular, or another user's.
fn own_file(path: &Path, file: &File) -> Result<fs::Metadata, StoreError> {
    let found = expect_regular(path, file)?;
    ours(path, &found)?;
    Ok(found)
}

fn expect_regular(path: &Path, file: &File) -> Result<fs::Metadata, StoreError> {
    let found = file.metadata().map_err(cannot("look at", path))?;
    if found.is_file() { Ok(found) } else { Err(cannot("use", path)(data_dir::not_regular())) }
}

/// What a lock file says, a pid or nothing; none: it is not a lock file.
pub(super) fn lock_text(path: &Path) -> Option<String> {
    let file = open_regular(path).ok()?;
    let mut text = String::new();
    file.take(LOCK_BYTES as u64 + 1).read_to_string(&mut text).ok()?;
    let pid = text.trim();
    let is_lock = text.is_empty() || text.len() == LOCK_BYTES && pid.parse::<u32>().is_ok();
    is_lock.then(|| pid.to_owned())
}

fn make(path: &Path) -> Result<(), StoreError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700).create(parent).map_err(cannot("make", parent))?;
        // Whoever owns the parent can put another directory in the place of this one.
        let found = fs::metadata(parent).map_err(cannot("look at", parent))?;
        if found.uid() != 0 {
            ours(parent, &found)?;
        }
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        // Said again: the umask may have taken some of it.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(MODE))
            .map_err(cannot("open the way through", path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(cannot("make", path)(error)),
    }
}

/// Takes away what others may do beyond passing through. What its owner forbade stays forbidden.
fn narrow(path: &Path, found: &fs::Metadata) -> Result<(), StoreError> {
    let mode = found.mode() & 0o7777;
    if mode & !MODE != 0 {
        fs::set_permissions(path, Permissions::from_mode(mode & MODE))
            .map_err(cannot("protect", path))?;
    }
    Ok(())
}

fn ours(path: &Path, found: &fs::Metadata) -> Result<(), StoreError> {
    let owner = found.uid();
    if owner == geteuid().as_raw() {
        Ok(())
    } else {
        Err(StoreError::NotOurs { path: path.into(), owner })
    }
}

fn holder(file: &File) -> Option<u32> {
    let mut text = [0; LOCK_BYTES];
    let read = file.read_at(&mut text, 0).ok()?;
    str::from_utf8(&text[..read]).ok()?.trim().parse().ok()
}

pub(super) fn cannot(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError::Directory { doing, path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use rustix::fs::FileType;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_missing_directory_is_made_and_protected() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b");
        let directory = StateDir::lock(&path).unwrap();
        assert_eq!(mode(directory.path()), 0o711);
        assert_eq!(mode(&path.join(LOCK)), 0o600);
    }

    #[test]
    fn too_wide_permissions_are_narrowed_and_narrow_ones_stay() {
        let place = tempfile::tempdir().unwrap();
        for (before, after) in [(0o777, 0o711), (0o755, 0o711), (0o700, 0o700)] {
            fs::set_permissions(place.path(), Permissions::from_mode(before)).unwrap();
            StateDir::lock(place.path()).unwrap();
            assert_eq!(mode(place.path()), after);
        }
    }

    #[test]
    fn a_second_instance_is_refused_with_the_reason() {
        let place = tempfile::tempdir().unwrap();
        let first = StateDir::lock(place.path()).unwrap();
        let refused = StateDir::lock_within(place.path(), LOCK, Duration::ZERO).unwrap_err();
        let path = first.path().display();
        let pid = std::process::id();
        assert_eq!(refused.to_string(), format!("{path} is used by another procyard (pid {pid})"));
    }

    #[test]
    fn a_keeper_is_found_as_long_as_it_lives() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(StateDir::keeper(place.path()).unwrap(), None);
        let claimed = StateDir::claim(place.path(), &[]).unwrap();
        assert_eq!(StateDir::keeper(place.path()).unwrap(), Some(std::process::id()));
        drop(claimed);
        assert_eq!(StateDir::keeper(place.path()).unwrap(), None);
        assert_eq!(StateDir::claimed_by(1), None);
    }

    #[test]
    fn a_lock_that_is_freed_meanwhile_is_taken() {
        let place = tempfile::tempdir().unwrap();
        let first = StateDir::lock(place.path()).unwrap();
        let path = place.path().to_owned();
        let second = thread::spawn(move || StateDir::lock(&path));
        drop(first);
        second.join().unwrap().unwrap();
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let theirs = if geteuid().is_root() {
            let place = tempfile::tempdir().unwrap();
            std::os::unix::fs::chown(place.path(), Some(65534), None).unwrap();
            place.keep()
        } else {
            PathBuf::from("/")
        };
        let refused = StateDir::lock(&theirs).unwrap_err();
        assert!(matches!(refused, StoreError::NotOurs { .. }), "{refused}");
        assert!(!theirs.join(LOCK).exists());
        if geteuid().is_root() {
            fs::remove_dir(theirs).unwrap();
        }
    }

    #[test]
    fn a_lock_file_that_is_a_link_is_refused() {
        let place = tempfile::tempdir().unwrap();
        StateDir::prepare(place.path(), &[]).unwrap();
        std::os::unix::fs::symlink("/dev/null", place.path().join(LOCK)).unwrap();
        let refused = StateDir::lock(place.path()).unwrap_err();
        assert!(matches!(refused, StoreError::Directory { doing: "open", .. }), "{refused}");
    }

    #[test]
    fn lock_file_that_is_a_fifo_is_refused() {
        let place = tempfile::tempdir().unwrap();
        StateDir::prepare(place.path(), &[]).unwrap();
        let (path, mode) = (place.path().join(LOCK), Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0).unwrap();
        let refused = StateDir::lock(place.path()).unwrap_err().to_string();
        assert!(refused.ends_with("it is not a regular file"), "{refused}");
        let refused = StateDir::server(place.path()).unwrap_err().to_string();
        assert!(refused.ends_with("it is not a regular file"), "{refused}");
    }

    #[test]
    fn foreign_directory_keeps_its_permissions() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("notes.txt"), "mine").unwrap();
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        let refused = StateDir::claim(place.path(), &[]).unwrap_err();
        assert!(matches!(refused, StoreError::Foreign { .. }), "{refused}");
        assert_eq!(mode(place.path()), 0o755);
    }

    #[test]
    fn linked_subdirectory_of_a_claimed_directory_is_refused() {
        let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        StateDir::prepare(place.path(), &[]).unwrap();
        std::os::unix::fs::symlink(other.path(), place.path().join("outputs")).unwrap();
        let refused = StateDir::claim(place.path(), &[]).unwrap_err().to_string();
        assert!(refused.contains("/outputs: "), "{refused}");
    }

    #[test]
    fn a_file_in_its_place_is_refused() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let refused = StateDir::lock(place.path()).unwrap_err();
        assert!(refused.to_string().starts_with("cannot use "), "{refused}");
    }
}
