//! Environments of processes, and other looks at them that they can keep from ending.
//!
//! An environment is memory of the process, and the process decides how long a look at that takes: it
//! may lie in a file of a file system that does not answer, or another thread may have locked it. A
//! path below the root of a process may lead to such a file system, too. So a helper looks, for which
//! the keeper waits a moment.

use std::cell::UnsafeCell;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::keeper::helper::{self, Helper, Job};
use crate::keeper::raw;

/// Most bytes of an environment that are searched for the keeper's variables, which come first in
/// the environment of every process that the keeper starts.
const MAX_ENVIRON_SEARCHED: usize = 128 << 10;

/// How long the keeper waits for a helper to look at a process. Most take a tenth of a millisecond.
const LOOK_TIMEOUT: Duration = Duration::from_millis(5);

/// Most helpers that look at processes. Each but one is stuck: what they do not see is not known.
const MAX_READERS: usize = 8;

/// The beginning of the environment that a process began with.
#[derive(Debug, Default)]
pub(in crate::keeper) struct Environment(Vec<u8>);

impl Environment {
    /// The value of a variable.
    pub(in crate::keeper) fn value(&self, name: &[u8]) -> Option<&[u8]> {
        let mut entries = self.0.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name)?.strip_prefix(b"="))
    }
}

/// Looks at processes in helpers.
pub(in crate::keeper) struct ProcReader {
    readers: Vec<Helper<Look>>,
    max_readers: usize,
    timeout: Duration,
    /// The processes that readers are stuck at: pid and start time, and the pid of the reader.
    stuck: Vec<((i32, u64), i32)>,
    done_event: Option<OwnedFd>,
}

impl Default for ProcReader {
    fn default() -> ProcReader {
        ProcReader::new(MAX_READERS, LOOK_TIMEOUT)
    }
}

impl Drop for ProcReader {
    fn drop(&mut self) {
        // Those that are stuck would be waited for.
        self.readers.drain(..).for_each(Helper::kill_without_waiting);
    }
}

impl ProcReader {
    /// `max_readers` may be stuck before no process can be looked at; each look may take so long.
    pub(in crate::keeper) fn new(max_readers: usize, timeout: Duration) -> ProcReader {
        let (readers, stuck) = (Vec::new(), Vec::new());
        // Made at once, so that a look leaves no more descriptors open than there were before.
        let done_event = helper::done_event().ok();
        ProcReader { readers, max_readers, timeout, stuck, done_event }
    }

    /// Whether a child of the keeper is one of them.
    pub(super) fn owns(&self, pid: i32) -> bool {
        self.readers.iter().any(|reader| reader.pid() == pid)
    }

    /// One of them was killed.
    pub(super) fn lose(&mut self, pid: i32) {
        self.readers.retain(|reader| reader.pid() != pid);
        self.stuck.retain(|(_, reader)| *reader != pid);
    }

    /// Reads the environment of a process, which its pid and start time name. None: it cannot be read
    /// now. Blocks for the timeout at most while the helper has a CPU, and only once for a process that
    /// does not answer. The same holds for the other looks.
    pub(in crate::keeper) fn environment(
        &mut self,
        process: (i32, u64),
    ) -> Option<io::Result<Environment>> {
        Some(self.content(process, "environ")?.map(Environment))
    }

    /// Reads the arguments of a process, each of which ends with a NUL.
    pub(in crate::keeper) fn arguments(
        &mut self,
        process: (i32, u64),
    ) -> Option<io::Result<Vec<u8>>> {
        self.content(process, "cmdline")
    }

    /// Which file or directory a path is for a process: device and inode.
    pub(in crate::keeper) fn identity(
        &mut self,
        process: (i32, u64),
        path: &Path,
    ) -> Option<io::Result<Identity>> {
        let root = Path::new("/proc").join(process.0.to_string()).join("root");
        let path = root.join(path.strip_prefix("/").unwrap_or(path));
        let path = CString::new(path.into_os_string().as_bytes()).ok()?;
        Some(self.look(process, path, Wanted::Identity)?.identity())
    }

    /// Whether a process did not answer in time.
    pub(in crate::keeper) fn is_stuck(&mut self) -> bool {
        self.free_readers();
        !self.stuck.is_empty()
    }

    fn content(&mut self, process: (i32, u64), file: &str) -> Option<io::Result<Vec<u8>>> {
        let path = CString::new(format!("/proc/{}/{file}", process.0)).ok()?;
        Some(self.look(process, path, Wanted::Content)?.content())
    }

    fn look(&mut self, process: (i32, u64), path: CString, wanted: Wanted) -> Option<Look> {
        self.free_readers();
        if self.stuck.iter().any(|(stuck, _)| *stuck == process) {
            return None;
        }
        let timeout = self.timeout;
        let reader = self.idle_reader()?;
        if !reader.run(Rc::new(Look::new(path, wanted)), timeout) {
            let pid = reader.pid();
            self.stuck.push((process, pid));
            return None;
        }
        Rc::into_inner(reader.take_done()?)
    }

    /// Takes back the readers that were stuck and are done.
    fn free_readers(&mut self) {
        let readers = &self.readers;
        self.stuck.retain(|(_, pid)| {
            let reader = readers.iter().find(|reader| reader.pid() == *pid);
            reader.is_some_and(|reader| reader.take_done().is_none())
        });
    }

    fn idle_reader(&mut self) -> Option<&Helper<Look>> {
        let is_idle = |reader: &Helper<Look>| reader.job().is_none();
        if !self.readers.iter().any(is_idle) {
            if self.readers.len() >= self.max_readers {
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

/// Device (major and minor number) and inode.
pub(in crate::keeper) type Identity = (u32, u32, u64);

/// Which file or directory a path is.
pub(in crate::keeper) fn identity(path: &Path) -> io::Result<Identity> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let look = Look::new(path, Wanted::Identity);
    look.run();
    look.identity()
}

/// What is wanted to be known of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The beginning of the file.
    Content,
    Identity,
}

/// A look at a file or directory.
struct Look {
    path: CString,
    wanted: Wanted,
    /// Written by the helper, read by the keeper when it is done.
    found: UnsafeCell<Found>,
}

struct Found {
    content: Vec<u8>,
    /// Bytes that were read.
    len: usize,
    identity: libc::statx,
    errno: i32,
}

impl Look {
    fn new(path: CString, wanted: Wanted) -> Look {
        let room = if wanted == Wanted::Content { MAX_ENVIRON_SEARCHED } else { 0 };
        // SAFETY: numbers may be zero.
        let identity = unsafe { std::mem::zeroed() };
        let found = Found { content: vec![0; room], len: 0, identity, errno: 0 };
        Look { path, wanted, found: UnsafeCell::new(found) }
    }

    fn content(self) -> io::Result<Vec<u8>> {
        let Found { mut content, len, errno, .. } = self.found.into_inner();
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        content.truncate(len);
        Ok(content)
    }

    fn identity(self) -> io::Result<Identity> {
        match self.found.into_inner() {
            Found { errno: 0, identity, .. } => {
                Ok((identity.stx_dev_major, identity.stx_dev_minor, identity.stx_ino))
            }
            Found { errno, .. } => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn read(&self, found: &mut Found) -> Result<(), i32> {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let file = call(libc::SYS_openat, [AT_FDCWD, self.path.as_ptr() as usize, flags, 0, 0])?;
        let result = loop {
            let room = &mut found.content[found.len..];
            match call(libc::SYS_read, [file, room.as_mut_ptr() as usize, room.len(), 0, 0]) {
                Ok(0) => break Ok(()),
                Ok(read) => found.len += read,
                Err(errno) => break Err(errno),
            }
        };
        let _ = call(libc::SYS_close, [file, 0, 0, 0, 0]);
        result
    }

    fn identify(&self, found: &mut Found) -> Result<(), i32> {
        let (path, room) = (self.path.as_ptr() as usize, (&raw mut found.identity) as usize);
        let (flags, mask) = (libc::AT_STATX_DONT_SYNC as usize, libc::STATX_INO as usize);
        call(libc::SYS_statx, [AT_FDCWD, path, flags, mask, room]).map(drop)
    }
}

const AT_FDCWD: usize = libc::AT_FDCWD as usize;

fn call(number: libc::c_long, args: [usize; 5]) -> Result<usize, i32> {
    // SAFETY: the paths and rooms that are passed live until the call has returned.
    unsafe { raw::syscall(number, args) }
}

// SAFETY: it makes raw system calls only, and writes to nothing but what was found, which the keeper
// reads when the helper is done. No slice is taken beyond its end: nothing panics.
unsafe impl Job for Look {
    fn run(&self) {
        // SAFETY: the keeper does not touch it before the helper is done.
        let found = unsafe { &mut *self.found.get() };
        let looked = match self.wanted {
            Wanted::Content => self.read(found),
            Wanted::Identity => self.identify(found),
        };
        found.errno = looked.err().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::time::Instant;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// Reads again until the reader has answered: a busy machine may take longer than the keeper waits.
    fn read_in_the_end(reader: &mut ProcReader, pid: i32) -> io::Result<Environment> {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < Duration::from_secs(60), "no reader answers");
            if let Some(read) = reader.environment((pid, 0)) {
                return read;
            }
        }
    }

    #[test]
    fn environment_is_read_by_a_helper() {
        let mut reader = ProcReader::default();
        let own = std::process::id().cast_signed();
        assert!(read_in_the_end(&mut reader, own).unwrap().value(b"PATH").is_some());
        let failed = read_in_the_end(&mut reader, i32::MAX).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn file_that_does_not_answer_holds_one_reader_and_delays_no_other() {
        let mut reader = ProcReader::default();
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let path = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        for _ in 0..3 {
            assert!(reader.look((1, 1), path.clone(), Wanted::Content).is_none());
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
