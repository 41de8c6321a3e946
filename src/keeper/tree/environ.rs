//! Environments of processes, and reading them without waiting for the process.
//!
//! An environment is memory of the process, and the process decides how long a look at that takes: it
//! may lie in a file of a file system that does not answer. So a helper reads it, for which the keeper
//! waits a moment.

use std::cell::UnsafeCell;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use crate::keeper::helper::{self, Helper, Job};
use crate::keeper::raw;

/// Most bytes of an environment that are searched for the keeper's variables, which come first in
/// the environment of every process that the keeper starts.
const MAX_ENVIRON_SEARCHED: usize = 128 << 10;

/// How long the keeper waits for a helper to read an environment. Most take a tenth of a millisecond.
const READ_TIMEOUT: Duration = Duration::from_millis(5);

/// Most helpers that read environments. Each but one is stuck: what they do not read is not known.
const MAX_READERS: usize = 8;

/// The beginning of the environment that a process began with.
#[derive(Debug, Default)]
pub(in crate::keeper) struct Environment(Vec<u8>);

impl Environment {
    /// Empty if it cannot be read. Blocks for as long as the process likes.
    pub(in crate::keeper) fn read(pid: i32) -> Environment {
        let mut content = Vec::new();
        if let Ok(file) = File::open(format!("/proc/{pid}/environ")) {
            let _ = file.take(MAX_ENVIRON_SEARCHED as u64).read_to_end(&mut content);
        }
        Environment(content)
    }

    /// The value of a variable.
    pub(in crate::keeper) fn value(&self, name: &[u8]) -> Option<&[u8]> {
        let mut entries = self.0.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name)?.strip_prefix(b"="))
    }
}

/// Reads environments in helpers.
#[derive(Default)]
pub(super) struct EnvironReader {
    readers: Vec<Helper<ReadFile>>,
    /// The processes that readers are stuck at: pid and start time, and the pid of the reader.
    stuck: Vec<((i32, u64), i32)>,
    done_event: Option<OwnedFd>,
}

impl EnvironReader {
    /// Whether a child of the keeper is one of them.
    pub(super) fn owns(&self, pid: i32) -> bool {
        self.readers.iter().any(|reader| reader.pid() == pid)
    }

    /// One of them was killed.
    pub(super) fn lose(&mut self, pid: i32) {
        self.readers.retain(|reader| reader.pid() != pid);
        self.stuck.retain(|(_, reader)| *reader != pid);
    }

    /// Reads the environment of a process, which its pid and start time name. None: it cannot be
    /// read now. Blocks for [`READ_TIMEOUT`] at most while the helper has a CPU, and only once for a
    /// process that does not answer.
    pub(super) fn read(&mut self, process: (i32, u64)) -> Option<io::Result<Environment>> {
        let path = CString::new(format!("/proc/{}/environ", process.0)).ok()?;
        self.read_file(process, path)
    }

    fn read_file(&mut self, process: (i32, u64), path: CString) -> Option<io::Result<Environment>> {
        self.free_readers();
        if self.stuck.iter().any(|(stuck, _)| *stuck == process) {
            return None;
        }
        let reader = self.idle_reader()?;
        if !reader.run(Rc::new(ReadFile::new(path)), READ_TIMEOUT) {
            let pid = reader.pid();
            self.stuck.push((process, pid));
            return None;
        }
        let read = Rc::into_inner(reader.take_done()?)?;
        Some(read.finish().map(Environment))
    }

    /// Takes back the readers that were stuck and are done.
    fn free_readers(&mut self) {
        let readers = &self.readers;
        self.stuck.retain(|(_, pid)| {
            let reader = readers.iter().find(|reader| reader.pid() == *pid);
            reader.is_some_and(|reader| reader.take_done().is_none())
        });
    }

    fn idle_reader(&mut self) -> Option<&Helper<ReadFile>> {
        let is_idle = |reader: &Helper<ReadFile>| reader.job().is_none();
        if !self.readers.iter().any(is_idle) {
            if self.readers.len() >= MAX_READERS {
                return None;
            }
            if self.done_event.is_none() {
                self.done_event = Some(helper::done_event().ok()?);
            }
            self.readers.push(Helper::new(self.done_event.as_ref()?.as_fd()).ok()?);
        }
        self.readers.iter().find(|reader| is_idle(reader))
    }
}

/// A file whose beginning a helper reads.
struct ReadFile {
    path: CString,
    /// Written by the helper, read by the keeper when it is done: the bytes, how many of them were
    /// read, and an errno.
    content: UnsafeCell<(Vec<u8>, usize, i32)>,
}

impl ReadFile {
    fn new(path: CString) -> ReadFile {
        ReadFile { path, content: UnsafeCell::new((vec![0; MAX_ENVIRON_SEARCHED], 0, 0)) }
    }

    fn finish(self) -> io::Result<Vec<u8>> {
        let (mut content, len, errno) = self.content.into_inner();
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        content.truncate(len);
        Ok(content)
    }
}

// SAFETY: it makes raw system calls only, and writes to nothing but the content, which the keeper reads
// when the helper is done.
unsafe impl Job for ReadFile {
    fn run(&self) {
        // SAFETY: the keeper does not touch it before the helper is done.
        let (content, len, errno) = unsafe { &mut *self.content.get() };
        let call = |number, args| {
            // SAFETY: the path and the content live until the job is done.
            unsafe { raw::syscall(number, args) }
        };
        let (at, flags) = (libc::AT_FDCWD as usize, (libc::O_RDONLY | libc::O_CLOEXEC) as usize);
        let file = match call(libc::SYS_openat, [at, self.path.as_ptr() as usize, flags, 0, 0]) {
            Ok(file) => file,
            Err(failed) => return *errno = failed,
        };
        while *len < MAX_ENVIRON_SEARCHED {
            let room = [content.as_mut_ptr() as usize + *len, MAX_ENVIRON_SEARCHED - *len];
            match call(libc::SYS_read, [file, room[0], room[1], 0, 0]) {
                Ok(0) => break,
                Ok(read) => *len += read,
                Err(failed) => {
                    *errno = failed;
                    break;
                }
            }
        }
        let _ = call(libc::SYS_close, [file, 0, 0, 0, 0]);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;
    use std::time::Instant;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// Reads again until the reader has answered: a busy machine may take longer than the keeper waits.
    fn read_in_the_end(reader: &mut EnvironReader, pid: i32) -> io::Result<Environment> {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < Duration::from_secs(60), "no reader answers");
            if let Some(read) = reader.read((pid, 0)) {
                return read;
            }
        }
    }

    #[test]
    fn environment_is_read_by_a_helper() {
        let mut reader = EnvironReader::default();
        let own = std::process::id().cast_signed();
        assert!(read_in_the_end(&mut reader, own).unwrap().value(b"PATH").is_some());
        let failed = read_in_the_end(&mut reader, i32::MAX).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn file_that_does_not_answer_holds_one_reader_and_delays_no_other() {
        let mut reader = EnvironReader::default();
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let path = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        for _ in 0..3 {
            assert!(reader.read_file((1, 1), path.clone()).is_none());
        }
        assert_eq!(reader.stuck.len(), 1);
        let own = std::process::id().cast_signed();
        assert!(read_in_the_end(&mut reader, own).is_ok());
        // The reader that waits is free again when the file answers.
        OpenOptions::new().write(true).open(&fifo).unwrap().write_all(b"A=1").unwrap();
        let begin = Instant::now();
        while reader.stuck.iter().any(|(process, _)| *process == (1, 1)) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the reader is stuck");
            reader.free_readers();
        }
    }
}
