//! The log in a file of bounded size, which several processes write.
//!
//! Owns which file stderr is. Keeper and server each open it for themselves and look at it before
//! each line: whoever finds it too large renames it, and whoever finds that its own is not the one
//! at the path any more opens it again. Nothing here waits for another process, and nothing fails
//! once it has begun: what cannot be written is lost. A file that has something else than procyard's
//! lines is neither written nor replaced, unless its name in a state directory is procyard's own.

mod own_lines;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use rustix::fs::{FileType, FlockOperation, OFlags, Stat};

use crate::store::StateDir;

/// Name in the state directory of the log of a supervisor that a command has started.
pub const DEFAULT_NAME: &str = "procyard.log";

/// Largest size of a log; with the one before it, it takes twice this much. Enough for weeks of
/// warnings, and for a day of a busy server's news.
const MOST_BYTES: u64 = 8 << 20;

/// The log of this process, if it has one.
static LOG: OnceLock<Log> = OnceLock::new();

/// Has stderr be this file from now on, for this process and for whom it starts. To be called
/// before any thread is started.
pub fn begin(path: &Path) -> io::Result<()> {
    let log = Log::new(path, MOST_BYTES)?;
    // What cannot be opened now may be later, when the next line is written.
    let log = LOG.get_or_init(|| log);
    Ok(rustix::stdio::dup2_stderr(open(&log.path)?)?)
}

/// Has the next line go to the file that is at the path.
pub(super) fn tend() {
    if let Some(log) = LOG.get() {
        log.tend();
    }
}

/// Opens a log to write to its end. It is made for its owner alone. Refused: a file that is not a
/// log of procyard.
pub fn open(path: &Path) -> io::Result<File> {
    // Whatever is there in place of a file is not waited for.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    let file =
        options.append(true).create(true).mode(0o600).custom_flags(nonblocking).open(path)?;
    if file.metadata()?.is_file() && !is_own(path, &file)? {
        let problem = "it is not a log of procyard; name another file, or move it away";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
    }
    Ok(file)
}

/// Whether the open regular file at a path is a log of procyard, by its lines or by its name.
fn is_own(path: &Path, file: &File) -> io::Result<bool> {
    Ok(own_lines::has_own_lines_or_none(file)? || has_own_name(path, file)?)
}

/// Whether a file has the name of the default log, or of the one before it, in a state directory: a
/// supervisor may have crashed there before its first line. The name is not the file's if it is a
/// link.
fn has_own_name(path: &Path, file: &File) -> io::Result<bool> {
    let name = Path::new(DEFAULT_NAME);
    let is_own = path.ends_with(name) || path.ends_with(previous(name));
    if !is_own || !path.parent().is_some_and(StateDir::is_marked) {
        return Ok(false);
    }
    let (named, open) = (fs::symlink_metadata(path)?, file.metadata()?);
    Ok((named.dev(), named.ino()) == (open.dev(), open.ino()))
}

/// Where a log goes when it is full.
pub fn previous(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// A file of bounded size at a path.
pub(super) struct Log {
    path: PathBuf,
    previous: PathBuf,
    most_bytes: u64,
    /// One thread at a time: a lock on the file does not tell threads apart.
    alone: Mutex<()>,
    /// It was said that another file is in the place of the previous log.
    is_stuck: AtomicBool,
}

impl Log {
    /// A log whose file becomes the previous one when it has `most_bytes`.
    pub(super) fn new(path: &Path, most_bytes: u64) -> io::Result<Log> {
        // The directory of this process may be another when the file is opened again.
        let path = std::path::absolute(path)?;
        let (previous, is_stuck) = (previous(&path), AtomicBool::new(false));
        Ok(Log { previous, path, most_bytes, alone: Mutex::new(()), is_stuck })
    }

    pub(super) fn open(&self) -> io::Result<File> {
        open(&self.path)
    }

    fn tend(&self) {
        // Whoever has it sees to it, and this line goes where the one before went.
        let Ok(_alone) = self.alone.try_lock() else { return };
        if let Some(file) = self.follow(rustix::stdio::stderr()) {
            let _ = rustix::stdio::dup2_stderr(file);
        }
    }

    /// The file to write to instead of this one, if it is to be another.
    pub(super) fn follow(&self, own: BorrowedFd<'_>) -> Option<File> {
        let found = rustix::fs::fstat(own).ok()?;
        if self.is_at_path(&found) {
            // Only a file can be too large, or put aside.
            let is_file = FileType::from_raw_mode(found.st_mode).is_file();
            if !is_file || found.st_size.cast_unsigned() < self.most_bytes {
                return None;
            }
            // Another process may be about to: two renames in a row would lose what was logged.
            rustix::fs::flock(own, FlockOperation::NonBlockingLockExclusive).ok()?;
            // The lock goes with the descriptor that is replaced, or here if it stays.
            if self.is_at_path(&found) && self.put_aside().is_err() {
                let _ = rustix::fs::flock(own, FlockOperation::Unlock);
                return None;
            }
        }
        open(&self.path).ok()
    }

    /// Makes the file the previous log, unless another file is in its place: that is said once.
    fn put_aside(&self) -> io::Result<()> {
        let is_free = match fs::symlink_metadata(&self.previous) {
            Err(error) => error.kind() == io::ErrorKind::NotFound,
            Ok(found) => found.is_file() && is_own(&self.previous, &File::open(&self.previous)?)?,
        };
        if is_free {
            return fs::rename(&self.path, &self.previous);
        }
        if !self.is_stuck.swap(true, Ordering::Relaxed) {
            let (path, previous) = (self.path.display(), self.previous.display());
            let line = format!(
                "procyard: cannot rotate {path}: {previous} is not a log of procyard; move it away\n"
            );
            // Not by an event: this one is being written.
            let _ = super::Unblocked.write(line.as_bytes());
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn is_at_path(&self, own: &Stat) -> bool {
        let there = rustix::fs::stat(&self.path);
        there.is_ok_and(|there| (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    fn log(directory: &Path, most_bytes: u64) -> Log {
        let path = directory.join("log");
        Log::new(&path, most_bytes).unwrap()
    }

    fn write(log: &Log, file: &mut File, line: &str) {
        if let Some(other) = log.follow(file.as_fd()) {
            *file = other;
        }
        file.write_all(line.as_bytes()).unwrap();
    }

    #[test]
    fn a_full_log_is_put_aside_by_one_and_followed_by_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let log = log(directory.path(), 10);
        let (mut keeper, mut server) = (open(&log.path).unwrap(), open(&log.path).unwrap());
        write(&log, &mut keeper, "procyard: 0123456789\n");
        // Both would find it too large.
        write(&log, &mut server, "procyard: server\n");
        write(&log, &mut keeper, "procyard: keeper\n");
        assert_eq!(fs::read_to_string(&log.previous).unwrap(), "procyard: 0123456789\n");
        assert_eq!(fs::read_to_string(&log.path).unwrap(), "procyard: server\nprocyard: keeper\n");
    }

    #[test]
    fn whoever_is_being_put_aside_is_left_to_who_does_it() {
        let directory = tempfile::tempdir().unwrap();
        let log = log(directory.path(), 1);
        let (keeper, mut server) = (open(&log.path).unwrap(), open(&log.path).unwrap());
        rustix::fs::flock(&keeper, FlockOperation::LockExclusive).unwrap();
        write(&log, &mut server, "procyard: first\n");
        write(&log, &mut server, "procyard: second\n");
        assert_eq!(fs::read_to_string(&log.path).unwrap(), "procyard: first\nprocyard: second\n");
        drop(keeper);
        write(&log, &mut server, "procyard: third\n");
        assert_eq!(fs::read_to_string(&log.path).unwrap(), "procyard: third\n");
    }

    #[test]
    fn a_log_that_somebody_took_away_is_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let log = log(directory.path(), 100);
        let mut file = open(&log.path).unwrap();
        write(&log, &mut file, "procyard: before\n");
        fs::remove_file(&log.path).unwrap();
        write(&log, &mut file, "procyard: after\n");
        assert_eq!(fs::read_to_string(&log.path).unwrap(), "procyard: after\n");
        assert!(!log.previous.exists());
    }

    #[test]
    fn what_cannot_be_put_aside_or_opened_again_is_written_on() {
        let directory = tempfile::tempdir().unwrap();
        let log = log(&directory.path().join("gone"), 1);
        fs::create_dir(directory.path().join("gone")).unwrap();
        let mut file = open(&log.path).unwrap();
        fs::create_dir(&log.previous).unwrap();
        write(&log, &mut file, "a\n");
        write(&log, &mut file, "b\n");
        assert_eq!(fs::read_to_string(&log.path).unwrap(), "a\nb\n");
        fs::remove_dir_all(directory.path().join("gone")).unwrap();
        write(&log, &mut file, "c\n");
        assert_eq!(file.metadata().unwrap().len(), 6);
    }

    #[test]
    fn what_is_no_file_is_never_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        let log = log(directory.path(), 0);
        std::os::unix::fs::symlink("/dev/null", &log.path).unwrap();
        assert!(log.follow(open(&log.path).unwrap().as_fd()).is_none());
    }

    #[test]
    fn own_name_in_a_state_directory_is_a_log_whatever_it_holds() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::new(&directory.path().join(DEFAULT_NAME), 1).unwrap();
        fs::write(&log.path, "memory allocation failed\n").unwrap();
        assert_eq!(open(&log.path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        StateDir::prepare(directory.path(), &[]).unwrap();
        let mut file = open(&log.path).unwrap();
        for line in ["first\n", "second\n"] {
            write(&log, &mut file, line);
        }
        assert_eq!(fs::read_to_string(&log.previous).unwrap(), "first\n");
        assert_eq!(fs::read_to_string(&log.path).unwrap(), "second\n");
        // Another name, and a link to another file, are not procyard's.
        let foreign = directory.path().join("other");
        fs::write(&foreign, "a,b\n").unwrap();
        fs::remove_file(&log.path).unwrap();
        std::os::unix::fs::symlink(&foreign, &log.path).unwrap();
        for path in [&foreign, &log.path] {
            assert_eq!(open(path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
    }

    #[test]
    fn foreign_file_is_neither_written_nor_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let log = log(directory.path(), 1);
        fs::write(&log.path, "a,b\n").unwrap();
        assert_eq!(open(&log.path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&log.path).unwrap(), "a,b\n");
        fs::remove_file(&log.path).unwrap();
        let mut file = open(&log.path).unwrap();
        write(&log, &mut file, "procyard: first\n");
        fs::write(&log.previous, "a,b\n").unwrap();
        write(&log, &mut file, "procyard: second\n");
        assert_eq!(fs::read_to_string(&log.previous).unwrap(), "a,b\n");
        fs::remove_file(&log.previous).unwrap();
        std::os::unix::fs::symlink("log", &log.previous).unwrap();
        write(&log, &mut file, "procyard: third\n");
        assert!(log.previous.is_symlink());
        fs::remove_file(&log.previous).unwrap();
        write(&log, &mut file, "procyard: fourth\n");
        let before = "procyard: first\nprocyard: second\nprocyard: third\n";
        assert_eq!(fs::read_to_string(&log.previous).unwrap(), before);
        assert_eq!(fs::read_to_string(&log.path).unwrap(), "procyard: fourth\n");
    }
}
