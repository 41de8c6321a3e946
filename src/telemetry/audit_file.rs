//! The audit file: the lines of changes, apart from the log.
//!
//! Owns its size. The log may be rotated by what anybody causes, refusals among it; this file is rotated
//! by changes only, so that no refused call removes the line of a change. The server writes it, and
//! follows the file at the path as it does with the log.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::file::Log;

/// Size at which the file becomes `PATH.1` and a new one begins: some hundred thousand lines in both.
const MAX_BYTES: u64 = 32 << 20;

/// Where changes are recorded if only the log has a path.
pub fn beside(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".audit");
    name.into()
}

/// The file, opened when it is first written. What cannot be written is lost, as in the log.
pub struct AuditFile {
    log: Log,
    file: Option<File>,
}

impl AuditFile {
    /// The audit file at a path, which need not exist yet.
    pub fn new(path: &Path) -> io::Result<AuditFile> {
        AuditFile::with_max_bytes(path, MAX_BYTES)
    }

    /// Whether the file can be written.
    pub fn check(&self) -> io::Result<()> {
        self.log.open().map(drop)
    }

    fn with_max_bytes(path: &Path, max_bytes: u64) -> io::Result<AuditFile> {
        Ok(AuditFile { log: Log::new(path, max_bytes)?, file: None })
    }
}

impl Write for AuditFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let next = match &self.file {
            Some(file) => self.log.follow(file.as_fd()),
            None => self.log.open().ok(),
        };
        self.file = next.or(self.file.take());
        if let Some(file) = &mut self.file {
            let _ = file.write_all(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::telemetry::file::previous;

    #[test]
    fn audit_file_is_rotated_and_reopened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let mut audit = AuditFile::with_max_bytes(&path, 4).unwrap();
        audit.write_all(b"procyard: first\n").unwrap();
        audit.write_all(b"procyard: second\n").unwrap();
        assert_eq!(fs::read_to_string(previous(&path)).unwrap(), "procyard: first\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "procyard: second\n");
        fs::remove_file(&path).unwrap();
        audit.write_all(b"procyard: third\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "procyard: third\n");
    }

    #[test]
    fn missing_directory_is_reported_by_the_check_and_ignored_by_writes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("no/audit");
        let mut audit = AuditFile::new(&path).unwrap();
        assert!(audit.check().is_err());
        audit.write_all(b"procyard: lost\n").unwrap();
        fs::create_dir(directory.path().join("no")).unwrap();
        audit.write_all(b"procyard: kept\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "procyard: kept\n");
    }
}
