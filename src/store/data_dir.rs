//! A subdirectory of the state directory: `outputs`, `scripts` or `transcripts`.
//!
//! Owns the names of procyard's files there and every access to them. Each access opens the
//! directory without following links, requires that this user owns it, and names the file relative
//! to that descriptor. Removal takes single files with procyard's own names, never a tree, and
//! logs. What is not a regular file is neither read nor waited for.

mod lost;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::StoreError;
use super::marker::Marker;
use super::state_dir::cannot;

/// Begins the name of every file.
const PREFIX: &str = "procyard-";

/// Ends the name of a file that is being written, and of one whose record was lost.
const TEMPORARY: &str = ".new";
const LOST: &str = ".lost";

/// The subdirectories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    /// Structured outputs: one file for each launch.
    Outputs,
    /// Scripts: one directory with one file for each launch.
    Scripts,
    /// Transcripts: one file for each run.
    Transcripts,
}

impl DataKind {
    /// All of them.
    pub(super) const ALL: [DataKind; 3] =
        [DataKind::Outputs, DataKind::Scripts, DataKind::Transcripts];

    /// The name of the subdirectory.
    pub(super) fn directory(self) -> &'static str {
        match self {
            DataKind::Outputs => "outputs",
            DataKind::Scripts => "scripts",
            DataKind::Transcripts => "transcripts",
        }
    }

    /// The last part of the names of its files.
    fn suffix(self) -> &'static str {
        match self {
            DataKind::Outputs => ".output",
            DataKind::Scripts => ".script",
            DataKind::Transcripts => ".transcript",
        }
    }

    /// Its permissions: other users pass through to outputs and scripts that are theirs.
    fn mode(self) -> Mode {
        match self {
            DataKind::Outputs | DataKind::Scripts => Mode::from_raw_mode(0o711),
            DataKind::Transcripts => Mode::from_raw_mode(0o700),
        }
    }
}

/// What a file belongs to: no two launches or runs of any process have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    /// Birth of the record.
    pub birth: u64,
    /// Number of the run or launch.
    pub number: u32,
}

/// One subdirectory.
pub struct DataDir {
    path: PathBuf,
    kind: DataKind,
    /// Whether files may have names of versions that wrote no marker.
    has_earlier_names: bool,
}

impl DataDir {
    /// The subdirectory of a claimed state directory. Nothing is made or opened yet.
    pub fn new(state_dir: &Path, kind: DataKind) -> DataDir {
        let path = state_dir.join(kind.directory());
        DataDir { path, kind, has_earlier_names: Marker::of(state_dir).has_earlier_names() }
    }

    /// The path of a file.
    pub fn path(&self, key: FileKey) -> PathBuf {
        self.path.join(self.name(key))
    }

    /// The name of a file.
    pub fn name(&self, FileKey { birth, number }: FileKey) -> String {
        format!("{PREFIX}{birth}.{number}{}", self.kind.suffix())
    }

    /// Opens the directory, which is made if it is missing.
    pub fn create(&self) -> io::Result<OwnedFd> {
        match fs::mkdir(&self.path, Mode::RWXU) {
            Err(Errno::EXIST) => {}
            made => made?,
        }
        let directory = self.open()?;
        // Set apart: the umask may have taken some of it.
        if fs::fstat(&directory)?.st_mode & 0o7777 != self.kind.mode().as_raw_mode() {
            fs::fchmod(&directory, self.kind.mode())?;
        }
        Ok(directory)
    }

    /// Opens the directory.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match fs::open(&self.path, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(io::Error::other("it is a symbolic link or not a directory"));
            }
            opened => opened?,
        };
        if fs::fstat(&directory)?.st_uid != geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        Ok(directory)
    }

    /// Names that a file may have, the newest format first.
    pub fn names(&self, key: FileKey) -> impl Iterator<Item = String> {
        let earlier = self.has_earlier_names.then(|| format!("{}.{}", key.birth, key.number));
        [self.name(key)].into_iter().chain(earlier)
    }

    /// Whether anything has the name of a file.
    pub fn contains(&self, key: FileKey) -> bool {
        let Ok(directory) = self.open() else { return false };
        self.names(key).any(|name| file_type(directory.as_fd(), OsStr::new(&name)).is_ok())
    }

    /// Opens a file to be read; none: it is not a regular file.
    pub fn read(&self, key: FileKey) -> io::Result<Option<File>> {
        self.open_file(key, OFlags::RDONLY)
    }

    /// Opens a file to be extended.
    pub fn append(&self, key: FileKey) -> io::Result<File> {
        self.open_file(key, OFlags::WRONLY | OFlags::APPEND)?.ok_or_else(not_regular)
    }

    fn open_file(&self, key: FileKey, access: OFlags) -> io::Result<Option<File>> {
        let directory = self.open()?;
        for name in self.names(key) {
            match open_regular(directory.as_fd(), OsStr::new(&name), access) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// Makes an empty file in the place of what a failed attempt may have left.
    pub fn make(&self, key: FileKey) -> io::Result<File> {
        self.make_named(&self.name(key))
    }

    /// Makes a file under a temporary name, which [`DataDir::publish`] replaces.
    pub fn make_temporary(&self, key: FileKey) -> io::Result<File> {
        self.make_named(&(self.name(key) + TEMPORARY))
    }

    fn make_named(&self, name: &str) -> io::Result<File> {
        let directory = self.create()?;
        remove(directory.as_fd(), &self.path, OsStr::new(name), Inner::Nothing);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(fs::openat(&directory, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Gives a file that was written under a temporary name its own.
    pub fn publish(&self, key: FileKey) -> io::Result<()> {
        let (directory, name) = (self.open()?, self.name(key));
        fs::renameat(&directory, name.clone() + TEMPORARY, &directory, &name)?;
        for earlier in self.names(key).filter(|earlier| *earlier != name) {
            remove(directory.as_fd(), &self.path, OsStr::new(&earlier), Inner::Nothing);
        }
        Ok(())
    }

    /// Removes a file that was not published.
    pub fn remove_temporary(&self, key: FileKey) {
        if let Ok(directory) = self.open() {
            let name = self.name(key) + TEMPORARY;
            remove(directory.as_fd(), &self.path, OsStr::new(&name), Inner::Nothing);
        }
    }

    /// Removes a file, or a directory with what procyard made in it, under whichever name it has.
    pub fn remove(&self, key: FileKey, inner: Inner<'_>) {
        let Ok(directory) = self.open() else { return };
        let temporary = self.name(key) + TEMPORARY;
        for name in self.names(key).chain([temporary]) {
            remove(directory.as_fd(), &self.path, OsStr::new(&name), inner);
        }
    }

    /// Removes what a server left that was killed: temporary files, and those whose keys are not
    /// kept.
    pub fn sweep<'a>(
        &self,
        is_kept: impl Fn(FileKey) -> bool,
        inner: impl Fn(FileKey) -> Inner<'a>,
    ) {
        let Ok(directory) = self.open() else { return };
        for (name, own) in self.own_names(directory.as_fd()) {
            let inner = match own {
                Own::File(key) if !is_kept(key) => inner(key),
                Own::Temporary(_) => Inner::Nothing,
                Own::File(_) | Own::Lost(_) => continue,
            };
            if remove(directory.as_fd(), &self.path, OsStr::new(&name), inner) {
                let path = self.path.join(&name);
                tracing::info!(path = %path.display(), reason = "no record", "file removed");
            }
        }
    }

    /// Births of all records that have, or had, a file here.
    pub(super) fn births(&self) -> Vec<u64> {
        self.all_names().into_iter().map(|own| own.key().birth).collect()
    }

    /// Keys of all files here that are neither temporary nor set aside.
    pub(super) fn keys(&self) -> Vec<FileKey> {
        let file = |own| if let Own::File(key) = own { Some(key) } else { None };
        self.all_names().into_iter().filter_map(file).collect()
    }

    /// What the names here say, those of an earlier format included.
    fn all_names(&self) -> Vec<Own> {
        let Ok(directory) = self.open() else { return Vec::new() };
        let earlier = |name: &str| {
            let (birth, number) = name.split_once('.').filter(|_| self.has_earlier_names)?;
            let key = FileKey { birth: birth.parse().ok()?, number: number.parse().ok()? };
            Some(Own::File(key))
        };
        let own = |name: String| self.parse(&name).or_else(|| earlier(&name));
        entries(directory.as_fd()).into_iter().filter_map(own).collect()
    }

    /// Names of procyard's own files, of the newest format only: an earlier one's are not
    /// unmistakable.
    fn own_names(&self, directory: BorrowedFd<'_>) -> Vec<(String, Own)> {
        let names = entries(directory).into_iter();
        names.filter_map(|name| self.parse(&name).map(|own| (name, own))).collect()
    }

    fn parse(&self, name: &str) -> Option<Own> {
        let (base, own): (&str, fn(FileKey) -> Own) = match name {
            _ if name.ends_with(TEMPORARY) => (name.strip_suffix(TEMPORARY)?, Own::Temporary),
            _ if name.ends_with(LOST) => (name.strip_suffix(LOST)?, Own::Lost),
            _ => (name, Own::File),
        };
        let numbers = base.strip_prefix(PREFIX)?.strip_suffix(self.kind.suffix())?;
        let (birth, number) = numbers.split_once('.')?;
        let key = FileKey { birth: birth.parse().ok()?, number: number.parse().ok()? };
        // No other spelling of the same numbers.
        (self.name(key) == base).then(|| own(key))
    }
}

/// What procyard made inside of a directory that it removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner<'a> {
    /// Nothing.
    Nothing,
    /// A file of this name.
    Named(&'a str),
    /// A file whose name is not known any more: the only entry, if it is a regular file.
    OnlyFile,
}

/// What a name of procyard's own says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    File(FileKey),
    Temporary(FileKey),
    Lost(FileKey),
}

impl Own {
    fn key(self) -> FileKey {
        let (Own::File(key) | Own::Temporary(key) | Own::Lost(key)) = self;
        key
    }
}

/// Refuses a state directory in which a subdirectory cannot be used: where it is a link, it may
/// lead to files of others.
pub(super) fn check_all(state_dir: &Path) -> Result<(), StoreError> {
    for kind in DataKind::ALL {
        let directory = DataDir::new(state_dir, kind);
        match directory.open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => drop(opened.map_err(cannot("use", &directory.path))?),
        }
    }
    Ok(())
}

/// Opens a regular file without following a link or waiting for anything; none: it is not one.
fn open_regular(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    access: OFlags,
) -> io::Result<Option<File>> {
    // Before it is opened: of a device, opening alone may do something.
    if file_type(directory, name)? != FileType::RegularFile {
        return Ok(None);
    }
    // It may have become something else meanwhile.
    let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file: File = fs::openat(directory, name, access | careful, Mode::empty())?.into();
    Ok(file.metadata()?.is_file().then_some(file))
}

/// The error about a file that is not one.
pub fn not_regular() -> io::Error {
    io::Error::other("it is not a regular file")
}

fn file_type(directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<FileType> {
    let found = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(found.st_mode))
}

/// Removes one file, or a directory that has nothing in it but what procyard made. True: it is
/// gone.
fn remove(directory: BorrowedFd<'_>, path: &Path, name: &OsStr, inner: Inner<'_>) -> bool {
    let removed = match fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => remove_directory(directory, name, inner),
        removed => removed,
    };
    let path = path.join(name);
    match removed {
        Ok(()) => tracing::debug!(path = %path.display(), "file removed"),
        Err(Errno::NOENT) => {}
        Err(error) => tracing::warn!(path = %path.display(), %error, "file kept: cannot remove it"),
    }
    removed.is_ok()
}

fn remove_directory(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    inner: Inner<'_>,
) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inside = fs::openat(directory, name, flags, Mode::empty())?;
    let inner = match inner {
        Inner::Nothing => None,
        Inner::Named(name) => Some(name.to_owned()),
        Inner::OnlyFile => only_file(inside.as_fd()),
    };
    match inner.map(|inner| fs::unlinkat(&inside, inner, AtFlags::empty())) {
        None | Some(Ok(()) | Err(Errno::NOENT)) => {}
        Some(Err(error)) => return Err(error),
    }
    fs::unlinkat(directory, name, AtFlags::REMOVEDIR)
}

fn only_file(directory: BorrowedFd<'_>) -> Option<String> {
    let mut found = entries(directory);
    let only = found.pop().filter(|_| found.is_empty())?;
    let found = file_type(directory, OsStr::new(&only)).ok()?;
    (found == FileType::RegularFile).then_some(only)
}

/// Names in a directory, but for those that are not UTF-8: none of procyard's own is among them.
fn entries(directory: BorrowedFd<'_>) -> Vec<String> {
    let Ok(found) = fs::Dir::read_from(directory) else { return Vec::new() };
    let names = found.flatten().filter_map(|entry| {
        OsStr::from_bytes(entry.file_name().to_bytes()).to_str().map(str::to_owned)
    });
    names.filter(|name| name != "." && name != "..").collect()
}

#[cfg(test)]
mod tests;
