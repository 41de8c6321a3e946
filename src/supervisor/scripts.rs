//! The files in which scripts are handed over: one for each launch, in a directory of its own.
//!
//! Only the user of a process can enter its directory. What a script leaves beside itself there is
//! not procyard's, and is kept.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, mkdirat, openat};

use crate::failpoint::{self, Point};
use crate::process::{Program, Record, Script, User};
use crate::store::{DataDir, DataKind, FileKey, Inner};

/// The directory of all scripts.
pub(super) struct Scripts {
    files: DataDir,
}

impl Scripts {
    pub(super) fn new(state_dir: &Path) -> Scripts {
        Scripts { files: DataDir::new(state_dir, DataKind::Scripts) }
    }

    /// Writes the script of a launch and returns where it is.
    pub(super) fn write(&self, record: &Record, script: &Script) -> io::Result<PathBuf> {
        self.remove(record);
        // The half of one that found no room takes up what little there is.
        self.write_new(record, script).inspect_err(|_| self.remove(record))
    }

    fn write_new(&self, record: &Record, script: &Script) -> io::Result<PathBuf> {
        let (scripts, name) = (self.files.create()?, self.files.name(key(record)));
        mkdirat(&scripts, &name, Mode::RWXU)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(&scripts, &name, flags, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let mut file = File::from(openat(&directory, &script.filename, flags, mode)?);
        file.write_all(script.code.as_bytes())?;
        if let Some(User { uid, gid, .. }) = record.spec.user {
            // A server that may not change owners cannot become that user either: the start fails.
            let _ = fchown(&file, Some(uid), Some(gid));
            let _ = fchown(&directory, Some(uid), Some(gid));
        }
        Ok(self.files.path(key(record)).join(&script.filename))
    }

    /// Removes the script of a launch, if there is one.
    pub(super) fn remove(&self, record: &Record) {
        if let Some(inner) = inner(record) {
            self.files.remove(key(record), inner);
        }
        failpoint::reach(Point::ScriptRemoved);
    }

    /// Removes the scripts of launches that do not run, unless their record has a birth before
    /// `lost_before` and may have been lost.
    pub(super) fn sweep(&self, records: &[Record], lost_before: u64) {
        let known: HashMap<_, _> = records.iter().map(|record| (key(record), record)).collect();
        let is_live = |key: FileKey| known.get(&key).is_some_and(|record| record.end().is_none());
        let inner = |key: FileKey| known.get(&key).and_then(|record| self::inner(record));
        self.files.sweep(
            |key| key.birth < lost_before || is_live(key),
            |key| inner(key).unwrap_or(Inner::OnlyFile),
        );
    }
}

fn key(record: &Record) -> FileKey {
    FileKey { birth: record.birth, number: record.launch }
}

/// The file of a record that is a script's.
fn inner(record: &Record) -> Option<Inner<'_>> {
    match &record.spec.program {
        Program::Script(script) => Some(Inner::Named(&script.filename)),
        _ => None,
    }
}
