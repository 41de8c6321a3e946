//! A file of the state directory that holds secrets: read only where it is, and only if it belongs to
//! the directory's owner; written only as a new file of mode 0600 that takes its place.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

/// What was found in such a file.
pub(super) struct PrivateFile {
    /// All of it.
    pub bytes: Vec<u8>,
    /// Its owner alone may do anything with it.
    pub is_private: bool,
}

impl PrivateFile {
    /// Reads a file; none: it is not there. Refused: a link, what is not a regular file, and a file
    /// of another user.
    pub(super) fn read(path: &Path) -> io::Result<Option<PrivateFile>> {
        let not_regular = || {
            let problem = "it is not a regular file; move it away";
            io::Error::new(io::ErrorKind::InvalidInput, problem)
        };
        let careful = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let mut file = match OpenOptions::new().read(true).custom_flags(careful).open(path) {
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => return Ok(None),
                // A link, or such as a socket.
                Some(libc::ELOOP | libc::ENXIO) => return Err(not_regular()),
                _ => return Err(error),
            },
            file => file?,
        };
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(not_regular());
        }
        let (owner, expected) = (found.uid(), directory_owner(path)?);
        if owner != expected {
            let problem = format!("it belongs to uid {owner} instead of {expected}; move it away");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Some(PrivateFile { bytes, is_private: found.mode() & 0o077 == 0 }))
    }
}

/// Puts a new file in the place of another. A descriptor of the one before leads nowhere any more.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let owner = directory_owner(path)?;
    super::replace_as(path, bytes, |file| {
        if owner != file.metadata()?.uid() {
            fchown(file, Some(owner), None)?;
        }
        // The umask may have taken some of it.
        file.set_permissions(Permissions::from_mode(0o600))
    })
}

/// The user of the state directory, who is the one of its server.
fn directory_owner(path: &Path) -> io::Result<u32> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    Ok(fs::metadata(directory.unwrap_or(Path::new(".")))?.uid())
}
