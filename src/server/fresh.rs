//! Files whose contents are used, and read again when they have changed.
//!
//! Looking whether they have costs a system call for each, so it is done at each use: there is no
//! watcher that could miss something, and files that are swapped as a whole, as Kubernetes does, are
//! seen. A server that begins while they are wrong serves those who do not need them; it is
//! [`Fresh::check`] by which a start is refused.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Largest file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// How old, in seconds, a file's time must be before the same time means the same contents: two changes within
/// one tick of the kernel's clock have one time.
const SETTLED: i64 = 1;

/// How long a file must look the same, where its time lies in the future, before it is read for the last time.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// What is made of the files' contents, or why nothing can be.
type Parse<T> = fn(&[Content]) -> Result<Meaning<T>, String>;

/// What files mean.
#[derive(Debug, Default)]
pub(super) struct Meaning<T> {
    /// It.
    pub value: T,
    /// The same in words, for the log.
    pub words: String,
    /// What of the files means nothing, and why.
    pub problems: Vec<String>,
}

/// A file that was read.
pub(super) struct Content {
    path: PathBuf,
    /// All of it.
    pub bytes: Vec<u8>,
    /// Whose it is, and who may read it.
    pub file: fs::Metadata,
}

impl Content {
    /// Whether its time was long enough ago to tell it from the next.
    fn is_settled(&self) -> bool {
        let changed = self.file.mtime().max(self.file.ctime());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.is_ok_and(|now| now.as_secs().cast_signed() > changed.saturating_add(SETTLED))
    }

    /// The file's name.
    pub(super) fn name(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// A problem, with the file's name.
    pub(super) fn wrong(&self, problem: impl fmt::Display) -> String {
        wrong(&self.path, problem)
    }
}

fn wrong(path: &Path, problem: impl fmt::Display) -> String {
    format!("{}: {problem}", path.display())
}

/// What files mean now.
pub(super) struct Fresh<T> {
    paths: Vec<PathBuf>,
    parse: Parse<T>,
    forgets: bool,
    known: Mutex<Known<T>>,
}

struct Known<T> {
    /// What the files looked like when they were read, be it in vain; none: they could not be.
    stamps: Option<Vec<Stamp>>,
    /// Whether the same looks mean the same contents.
    settled: bool,
    /// When the files first looked like this.
    since: Instant,
    value: Arc<T>,
    /// What was wrong with them, which is logged once.
    problems: Vec<String>,
}

/// What tells one state of a file from another.
#[derive(PartialEq)]
struct Stamp([i64; 7]);

impl<T: Default> Fresh<T> {
    /// Files that mean nothing until they can be used.
    pub(super) fn new(paths: Vec<PathBuf>, parse: Parse<T>) -> Fresh<T> {
        let (since, value) = (Instant::now(), Arc::default());
        let known = Known { stamps: None, settled: false, since, value, problems: Vec::new() };
        Fresh { paths, parse, forgets: false, known: Mutex::new(known) }
    }

    /// The same, which mean nothing any more when one is gone. Else they mean what they meant.
    pub(super) fn forgetting(self) -> Fresh<T> {
        Fresh { forgets: true, ..self }
    }

    /// Why they cannot be used in whole, with the name of the file.
    pub(super) fn check(&self) -> Result<(), String> {
        let contents = read(&self.paths)?;
        let problem = (self.parse)(&contents)?.problems.into_iter().next();
        problem.map_or(Ok(()), Err)
    }

    /// What they mean now. What cannot be read or understood means what it meant before, which is
    /// logged.
    pub(super) fn get(&self) -> Arc<T> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let files = self.paths.iter().map(fs::metadata);
        let now: io::Result<Vec<_>> = files.map(|file| Ok(Stamp::of(&file?))).collect();
        if known.settled && now.as_ref().ok() == known.stamps.as_ref() {
            return Arc::clone(&known.value);
        }
        let gone = now.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if gone && self.forgets {
            known.value = Arc::default();
        }
        known.learn(read(&self.paths), self.parse);
        Arc::clone(&known.value)
    }
}

impl<T> Known<T> {
    /// Takes in what was read, and tells what is new.
    fn learn(&mut self, contents: Result<Vec<Content>, String>, parse: Parse<T>) {
        let files = contents.as_deref().unwrap_or_default();
        let stamps: Vec<_> = files.iter().map(|content| Stamp::of(&content.file)).collect();
        let stamps = contents.is_ok().then_some(stamps);
        let is_new = stamps.is_some() && stamps != self.stamps;
        if stamps != self.stamps {
            self.since = Instant::now();
        }
        let is_settled = self.since.elapsed() > SETTLE_TIMEOUT;
        self.settled = stamps.is_some() && (is_settled || files.iter().all(Content::is_settled));
        self.stamps = stamps;
        let problems = match contents.and_then(|contents| parse(&contents)) {
            Ok(Meaning { value, words, problems }) => {
                self.value = Arc::new(value);
                if is_new || problems != self.problems {
                    tracing::info!("{words}");
                }
                problems
            }
            Err(problem) => vec![problem],
        };
        if is_new || problems != self.problems {
            for error in &problems {
                tracing::error!(error, "a file cannot be used, or not all of it");
            }
        }
        self.problems = problems;
    }
}

fn read(paths: &[PathBuf]) -> Result<Vec<Content>, String> {
    paths.iter().map(|path| read_one(path).map_err(|error| wrong(path, error))).collect()
}

fn read_one(path: &Path) -> Result<Content, String> {
    let words = |error: io::Error| error.to_string();
    // Whatever else is there in place of a file is not waited for.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let open = fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path);
    let open = open.map_err(words)?;
    // Of what was opened, and before its contents: a change in between is then seen as one.
    let file = open.metadata().map_err(words)?;
    if !file.is_file() {
        return Err("it is no file".into());
    }
    if ![0, rustix::process::geteuid().as_raw()].contains(&file.uid()) {
        return Err(format!("it is the user {}'s, who could change it; use chown", file.uid()));
    }
    if file.mode() & 0o022 != 0 {
        return Err("others may write to it; use chmod go-w".into());
    }
    let mut bytes = Vec::new();
    open.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(words)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("it has more than {MOST_BYTES} bytes"));
    }
    Ok(Content { path: path.into(), bytes, file })
}

impl Stamp {
    fn of(file: &fs::Metadata) -> Stamp {
        let (device, inode) = (file.dev().cast_signed(), file.ino().cast_signed());
        let size = file.len().cast_signed();
        let (modified, changed) =
            ([file.mtime(), file.mtime_nsec()], [file.ctime(), file.ctime_nsec()]);
        Stamp([device, inode, size, modified[0], modified[1], changed[0], changed[1]])
    }
}

impl<T> fmt::Debug for Fresh<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fresh").field("paths", &self.paths).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The sum of all files. There is a problem with 13.
    fn sum(files: &[Content]) -> Result<Meaning<u32>, String> {
        let number = |file: &Content| {
            let text = String::from_utf8_lossy(&file.bytes);
            text.parse::<u32>().map_err(|_| file.wrong("no number"))
        };
        let value = files.iter().map(number).sum::<Result<u32, String>>()?;
        let problems = if value == 13 { vec!["not that".into()] } else { Vec::new() };
        Ok(Meaning { value, words: value.to_string(), problems })
    }

    #[test]
    fn a_change_counts_at_once_and_nonsense_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let fresh = Fresh::new(vec![path.clone()], sum).forgetting();
        assert!(fresh.check().unwrap_err().starts_with(path.to_str().unwrap()));
        for (text, means) in [("1", 1), ("2", 2), ("x", 2)] {
            fs::write(&path, text).unwrap();
            assert_eq!(*fresh.get(), means);
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(*fresh.get(), 0);
        fs::write(&path, "3").unwrap();
        assert_eq!(*fresh.get(), 3);
    }

    #[test]
    fn what_is_wrong_in_part_counts_as_far_as_it_goes_and_is_no_way_to_begin() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let fresh = Fresh::new(vec![path.clone()], sum);
        fs::write(&path, "13").unwrap();
        assert_eq!((*fresh.get(), fresh.check()), (13, Err("not that".into())));
        assert_eq!(fresh.known.lock().unwrap().problems, ["not that"]);
        fs::write(&path, "12").unwrap();
        assert_eq!((*fresh.get(), fresh.check()), (12, Ok(())));
        assert!(fresh.known.lock().unwrap().problems.is_empty());
    }

    #[test]
    fn nonsense_that_does_not_change_is_looked_at_once() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        fn look(_: &[Content]) -> Result<Meaning<u32>, String> {
            LOOKS.fetch_add(1, Ordering::Relaxed);
            Err("nonsense".into())
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, "x").unwrap();
        let fresh = Fresh::new(vec![path], look);
        // It is as old as it has to be after a while.
        while !fresh.known.lock().unwrap().settled {
            fresh.get();
            std::thread::yield_now();
        }
        let looks = LOOKS.load(Ordering::Relaxed);
        fresh.get();
        assert_eq!(LOOKS.load(Ordering::Relaxed), looks);
    }

    #[test]
    fn file_with_a_future_time_is_settled_after_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, "1").unwrap();
        let future = SystemTime::now() + Duration::from_secs(1_000_000);
        fs::File::options().write(true).open(&path).unwrap().set_modified(future).unwrap();
        let fresh = Fresh::new(vec![path.clone()], sum);
        let begin = Instant::now();
        while !fresh.known.lock().unwrap().settled {
            assert_eq!(*fresh.get(), 1);
            assert!(begin.elapsed() < Duration::from_secs(30), "it is read at each look");
            std::thread::sleep(Duration::from_millis(10));
        }
        fs::write(&path, "2").unwrap();
        assert_eq!(*fresh.get(), 2);
    }

    #[test]
    fn what_is_no_file_or_too_large_is_not_used_nor_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let refused = |path: &Path| Fresh::new(vec![path.into()], sum).check().unwrap_err();
        fs::write(&path, vec![b'1'; MOST_BYTES as usize + 1]).unwrap();
        assert!(refused(&path).contains("more than"));
        assert!(refused(directory.path()).contains("no file"));
        assert!(refused(Path::new("/dev/zero")).contains("no file"));
        if rustix::process::geteuid().is_root() {
            fs::write(&path, "1").unwrap();
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            assert!(refused(&path).contains("the user 65534's"));
        }
    }

    #[test]
    fn several_files_are_one_and_may_keep_their_meaning_when_one_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| directory.path().join(name));
        let fresh = Fresh::new(paths.to_vec(), sum);
        fs::write(&paths[0], "1").unwrap();
        assert_eq!(*fresh.get(), 0);
        fs::write(&paths[1], "2").unwrap();
        assert_eq!(*fresh.get(), 3);
        fs::remove_file(&paths[0]).unwrap();
        assert_eq!(*fresh.get(), 3);
        fs::write(&paths[1], "x").unwrap();
        fs::write(&paths[0], "5").unwrap();
        assert!(fresh.check().unwrap_err().contains("/b: no number"));
        fs::write(&paths[1], "5").unwrap();
        assert_eq!(*fresh.get(), 10);
    }

    #[test]
    fn a_file_that_others_may_write_to_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, "1").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(Fresh::new(vec![path], sum).check().unwrap_err().contains("others may write"));
    }
}
