//! The file that servers are started from, held open.
//!
//! Owns the descriptor. Whatever becomes of the path, replaced or deleted, a server that dies is
//! replaced by the same version.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};

use super::spawn::Program;
use crate::process::Launch;

/// A version of the server: its program, and the file that it comes from.
pub(super) struct Edition {
    pub(super) program: Rc<Program>,
    _file: Option<OwnedFd>,
}

impl Edition {
    /// The version that this keeper is of. Without a way to its file, by its path.
    pub(super) fn own(launch: &Launch) -> io::Result<Edition> {
        Edition::new(launch, open(Path::new("/proc/self/exe")).ok())
    }

    /// The version that is now at the path.
    pub(super) fn on_disk(launch: &Launch) -> io::Result<Edition> {
        let path = launch.args.first().map(|path| OsStr::from_bytes(path)).unwrap_or_default();
        let because = |error| io::Error::other(format!("{}: {error}", Path::new(path).display()));
        Edition::new(launch, Some(open(Path::new(path)).map_err(because)?))
    }

    fn new(launch: &Launch, file: Option<OwnedFd>) -> io::Result<Edition> {
        let program = Program::new(launch).map_err(io::Error::other)?;
        let program = program.through(file.as_ref().and_then(way_to));
        Ok(Edition { program: Rc::new(program), _file: file })
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    // Not for reading: a file that may only be executed is enough, and one that is only open like
    // this can still be written to.
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// A path to a file that is open here. Not by way of "self": the interpreter of a script would be
/// another process. None where /proc is missing, or another namespace's.
fn way_to(file: &OwnedFd) -> Option<CString> {
    let way = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let (held, found) = (rustix::fs::fstat(file).ok()?, rustix::fs::stat(&way).ok()?);
    let same = (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino);
    CString::new(way).ok().filter(|_| same)
}
