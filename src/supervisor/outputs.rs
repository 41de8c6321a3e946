//! The files in which programs leave a JSON value: `PROCYARD_OUTPUT`.
//!
//! A process receives a path, and may write there or not: nothing is made for it
//! beforehand, but for another user or in a sandbox, who could make nothing there. A file is
//! removed when what it held is recorded, so that nothing is lost if the server dies in between.
//! What a file holds is judged elsewhere (`process::structured`).

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};

use crate::failpoint::{self, Point};
use crate::keeper_client::Adopted;
use crate::process::structured::{MAX_BYTES, read, unusable};
use crate::process::{Record, StructuredOutput, User};
use crate::store::{DataDir, DataKind, FileKey, Inner};

/// The directory of all files.
pub(super) struct Outputs {
    files: DataDir,
}

impl Outputs {
    /// Makes the directory. Without it processes run as well; they only find no place to write to.
    pub(super) fn new(state_dir: &Path) -> Outputs {
        let files = DataDir::new(state_dir, DataKind::Outputs);
        if let Err(error) = files.create() {
            tracing::warn!(%error, "no place for structured output");
        }
        Outputs { files }
    }

    /// The file of a launch, which no other launch of any process ever had.
    pub(super) fn path(&self, record: &Record) -> PathBuf {
        self.files.path(key(record))
    }

    /// Makes the file, empty, for whoever cannot: another user, or one who may make no files.
    /// Without it the process runs as well.
    pub(super) fn make_for(&self, record: &Record, user: Option<&User>) {
        let made = self.files.make(key(record)).map(|file| {
            // Refused to whoever may not become that user either; the start will tell so.
            user.map(|user| fchown(&file, Some(user.uid), Some(user.gid)))
        });
        if let Err(error) = made {
            tracing::warn!(%error, process = %record.id, "no file for structured output");
        }
    }

    /// Whether there is something at that place: few system calls.
    pub(super) fn is_there(&self, record: &Record) -> bool {
        self.files.contains(key(record))
    }

    /// What a program that has exited wrote; none: nothing. The file stays.
    pub(super) fn read(&self, record: &Record) -> Option<StructuredOutput> {
        let bytes = self.files.read(key(record)).and_then(|file| {
            // One byte more than it may have at most.
            let mut bytes = Vec::new();
            let Some(file) = file else { return Ok(None) };
            file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
            Ok(Some(bytes))
        });
        match bytes {
            Ok(Some(bytes)) => read(bytes),
            Ok(None) => Some(unusable("it is not a regular file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(unusable(format!("it cannot be read: {error}"))),
        }
    }

    /// Removes the file, or what else was put there, unless that is a directory with something
    /// in it.
    pub(super) fn remove(&self, record: &Record) {
        self.files.remove(key(record), Inner::Nothing);
        failpoint::reach(Point::OutputRemoved);
    }

    /// Removes what the launch before may have left behind.
    pub(super) fn remove_previous(&self, record: &Record) {
        if record.launch > 1 {
            let previous = FileKey { number: record.launch - 1, ..key(record) };
            self.files.remove(previous, Inner::Nothing);
        }
    }

    /// Takes over what is there when a server begins: what those wrote that have exited without
    /// their record knowing, by the keeper's numbers. What belongs to no launch is removed, unless
    /// its record has a birth before `lost_before` and may have been lost.
    pub(super) fn take_over(
        &self,
        records: &[Record],
        held: &[Adopted],
        lost_before: u64,
    ) -> HashMap<u64, StructuredOutput> {
        let held: HashMap<_, _> = held.iter().map(|held| ((&*held.id, held.run), held)).collect();
        let live = records.iter().filter(|record| record.end().is_none());
        let launched = live.filter_map(|record| {
            Some((key(record), (record, held.get(&(&*record.id, record.launch))?)))
        });
        let launched: HashMap<_, _> = launched.collect();
        let is_kept = |key: FileKey| key.birth < lost_before || launched.contains_key(&key);
        self.files.sweep(is_kept, |_| Inner::Nothing);
        let exited = launched.values().filter(|(_, held)| held.exit.is_some());
        exited.filter_map(|(record, held)| Some((held.key, self.read(record)?))).collect()
    }
}

fn key(record: &Record) -> FileKey {
    FileKey { birth: record.birth, number: record.launch }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        assert!(outputs.path(&record).ends_with("outputs/procyard-7.1.output"));
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
    fn files_without_a_launch_are_swept() {
        let (_place, outputs) = outputs();
        let (running, later) = (record("a", 1), record("b", 2));
        for record in [&running, &later] {
            fs::write(outputs.path(record), "1").unwrap();
        }
        assert!(outputs.take_over(&[], &[], 2).is_empty());
        assert!(outputs.is_there(&running), "its record may be lost");
        assert!(!outputs.is_there(&later));
        outputs.take_over(&[], &[], 0);
        assert!(!outputs.is_there(&running));
    }
}
