//! The files in which programs leave a JSON value: `PROCYARD_OUTPUT`.
//!
//! Owns their directory. A process is told a path, and whether it writes there is its own affair:
//! nothing is made for it beforehand, but for another user or in a sandbox, who could make nothing
//! there. A file is
//! removed when what it held is recorded, so that nothing is lost if the server dies in between.
//! What a file holds is judged elsewhere (`process::structured`).

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::failpoint::{self, Point};
use crate::keeper_client::Adopted;
use crate::process::structured::{MAX_BYTES, read, unusable};
use crate::process::{Record, StructuredOutput, User};

/// Others may pass through to files that were made for them.
const MODE: u32 = 0o711;

/// The directory of all files.
pub(super) struct Outputs {
    directory: PathBuf,
}

impl Outputs {
    /// Makes the directory. Without it processes run as well; they only find no place to write to.
    pub(super) fn new(state_dir: &Path) -> Outputs {
        let directory = state_dir.join("outputs");
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        // Said apart: the umask may forbid it.
        let opened =
            made.and_then(|()| fs::set_permissions(&directory, fs::Permissions::from_mode(MODE)));
        if let Err(error) = opened {
            tracing::warn!(%error, path = %directory.display(), "no place for structured output");
        }
        Outputs { directory }
    }

    /// The file of a launch, which no other launch of any process ever had.
    pub(super) fn path(&self, record: &Record) -> PathBuf {
        self.directory.join(name(record.birth, record.launch))
    }

    /// Makes the file, empty, for whoever cannot: another user, or one who may make no files.
    /// Without it the process runs as well.
    pub(super) fn make_for(&self, record: &Record, user: Option<&User>) {
        let path = self.path(record);
        remove(&path);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let made = made.map(|_| {
            // Refused to whoever may not become that user either; the start will tell so.
            user.map(|user| std::os::unix::fs::chown(&path, Some(user.uid), Some(user.gid)))
        });
        if let Err(error) = made {
            tracing::warn!(%error, process = %record.id, "no file for structured output");
        }
    }

    /// Whether there is something at that place: one system call.
    pub(super) fn is_there(&self, record: &Record) -> bool {
        fs::symlink_metadata(self.path(record)).is_ok()
    }

    /// What a program that has exited wrote; none: nothing. The file stays.
    pub(super) fn read(&self, record: &Record) -> Option<StructuredOutput> {
        match bytes(&self.path(record)) {
            Ok(Some(bytes)) => read(bytes),
            Ok(None) => Some(unusable("it is not a regular file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(unusable(format!("it cannot be read: {error}"))),
        }
    }

    /// Removes the file, or whatever else was put there.
    pub(super) fn remove(&self, record: &Record) {
        remove(&self.path(record));
        failpoint::reach(Point::OutputRemoved);
    }

    /// Removes what the launch before may have left behind.
    pub(super) fn remove_previous(&self, record: &Record) {
        if record.launch > 1 {
            remove(&self.directory.join(name(record.birth, record.launch - 1)));
        }
    }

    /// Takes over what is there when a server begins: what those wrote that have exited without
    /// their record knowing, by the keeper's numbers. What belongs to no launch is removed.
    pub(super) fn take_over(
        &self,
        records: &[Record],
        held: &[Adopted],
    ) -> HashMap<u64, StructuredOutput> {
        let held: HashMap<_, _> = held.iter().map(|held| ((&*held.id, held.run), held)).collect();
        let live = records.iter().filter(|record| record.end().is_none());
        let launched =
            live.filter_map(|record| Some((record, held.get(&(&*record.id, record.launch))?)));
        let launched: Vec<_> = launched.collect();
        let names = launched.iter().map(|(record, _)| name(record.birth, record.launch));
        self.sweep(&names.collect());
        let exited = launched.iter().filter(|(_, held)| held.exit.is_some());
        exited.filter_map(|(record, held)| Some((held.key, self.read(record)?))).collect()
    }

    fn sweep(&self, kept: &HashSet<String>) {
        let Ok(found) = fs::read_dir(&self.directory) else { return };
        for found in found.flatten() {
            if !found.file_name().to_str().is_some_and(|name| kept.contains(name)) {
                remove(&found.path());
            }
        }
    }
}

/// What a launch is called in the state directory.
pub(super) fn name(birth: u64, launch: u32) -> String {
    format!("{birth}.{launch}")
}

/// The bytes of a file, one more than it may have at most; none: it is no regular file.
fn bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Looked at before it is opened: of a device, that alone may do something.
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(None);
    }
    // It may have become something else meanwhile, such as a FIFO that would be waited at.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = flags.bits().cast_signed();
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        let _ = fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::record::tests::record;

    fn outputs() -> (tempfile::TempDir, Outputs) {
        let place = tempfile::tempdir().unwrap();
        let outputs = Outputs::new(place.path());
        (place, outputs)
    }

    #[test]
    fn what_was_written_is_read_and_stays_until_it_is_removed() {
        let (_place, outputs) = outputs();
        let record = record("a", 7);
        assert!(outputs.path(&record).ends_with("outputs/7.1"));
        assert!(!outputs.is_there(&record));
        assert_eq!(outputs.read(&record), None);
        fs::write(outputs.path(&record), "[1]").unwrap();
        assert!(outputs.is_there(&record));
        assert_eq!(outputs.read(&record), Some(StructuredOutput::Value("[1]".into())));
        outputs.remove(&record);
        assert!(!outputs.is_there(&record));
    }

    #[test]
    fn what_is_no_regular_file_is_neither_followed_nor_waited_for() {
        let (_place, outputs) = outputs();
        let record = record("a", 7);
        let path = outputs.path(&record);
        let elsewhere = path.with_file_name("elsewhere");
        fs::write(&elsewhere, "1").unwrap();
        let fifo = |path: &Path| {
            use rustix::fs::{CWD, FileType, Mode, mknodat};
            mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        };
        let makes: [&dyn Fn(&Path); 4] = [
            &|path| std::os::unix::fs::symlink(&elsewhere, path).unwrap(),
            &|path| std::os::unix::fs::symlink("/nowhere", path).unwrap(),
            &|path| fs::create_dir(path).unwrap(),
            &fifo,
        ];
        for make in makes {
            make(&path);
            assert!(outputs.is_there(&record));
            assert_eq!(outputs.read(&record), Some(unusable("it is not a regular file")));
            outputs.remove(&record);
            assert!(!outputs.is_there(&record));
        }
        assert!(elsewhere.exists());
    }

    #[test]
    fn what_belongs_to_no_launch_is_swept() {
        let (_place, outputs) = outputs();
        let running = record("a", 1);
        let again = Record { launch: 3, ..record("b", 2) };
        for record in [&running, &again, &Record { launch: 2, ..again.clone() }] {
            fs::write(outputs.path(record), "1").unwrap();
        }
        outputs.sweep(&[name(1, 1), name(2, 3)].into());
        assert!(outputs.is_there(&running) && outputs.is_there(&again));
        assert!(!outputs.is_there(&Record { launch: 2, ..again.clone() }));
        outputs.sweep(&HashSet::new());
        assert!(!outputs.is_there(&running) && !outputs.is_there(&again));
    }
}
