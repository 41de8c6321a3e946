//! `procyard install`: a copy of this program, wherever it is wanted.
//!
//! Needs nothing but itself, so that it does in an image that has nothing else.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use memchr::memmem;

use super::print;
use super::trouble::Trouble;
use crate::config::random_suffix;

/// Who may run it: everyone.
const MODE: u32 = 0o755;
/// This program, also if its file was replaced or removed since.
const OWN: &str = "/proc/self/exe";

/// How every program for Linux begins.
const ELF_MAGIC: &[u8] = b"\x7fELF";
/// What no program but procyard contains: an example of the help below, in all versions so far.
const OWN_TEXT: &str = "procyard install ~/.local/bin/";

/// Copies this program to a path; whoever runs what was there before runs on.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard install ~/.local/bin/
  procyard install /shared/procyard    # an init container, into a volume of the pod")]
pub(super) struct Install {
    /// Where to: a file, or a directory in which it becomes `procyard`. What ends with a slash is
    /// a directory, and made if it is not there.
    path: PathBuf,
}

impl Install {
    pub(super) fn run(self) -> Result<ExitCode, Trouble> {
        let directory = self.path.as_os_str().as_bytes().ends_with(b"/");
        if directory {
            let refused = |error| format!("cannot make {}: {error}", self.path.display());
            fs::create_dir_all(&self.path).map_err(|error| Trouble::new(refused(error)))?;
        }
        let target = if self.path.is_dir() { self.path.join("procyard") } else { self.path };
        let refused = |error| Trouble::new(format!("cannot install {}: {error}", target.display()));
        install(&target).map_err(refused)?;
        let version = env!("CARGO_PKG_VERSION");
        print::line(format!("procyard {version} is now {}", target.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Puts a copy in the place of the procyard that is there, all at once: no process ever sees half of
/// it, and the program may be running. Refused: any other file, and a link.
fn install(target: &Path) -> io::Result<()> {
    if !may_replace(target)? {
        let refused = "it is not a procyard program; remove it, or name another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, refused));
    }
    let name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let beside = format!(".{}.{}", name.to_string_lossy(), random_suffix());
    let beside = target.with_file_name(beside);
    // Removed below only if it was made here.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&beside)?;
    let done = copy(&mut file).and_then(|()| fs::rename(&beside, target));
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done
}

/// Whether a path is free, or has a procyard of whichever version.
fn may_replace(target: &Path) -> io::Result<bool> {
    let found = match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        found => found?,
    };
    if found.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !found.is_file() {
        return Ok(false);
    }
    let bytes = fs::read(target)?;
    Ok(bytes.starts_with(ELF_MAGIC) && memmem::find(&bytes, OWN_TEXT.as_bytes()).is_some())
}

fn copy(file: &mut File) -> io::Result<()> {
    io::copy(&mut File::open(OWN)?, file)?;
    // The mask would have taken some of it away.
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_procyard_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p");
        let script = format!("#!/bin/sh\n{OWN_TEXT}\n");
        for (content, mode) in [("mine", 0o644), ("", 0o755), (&script, 0o755), ("\x7fELF", 0o755)]
        {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let refused = install(&path).unwrap_err();
            assert!(refused.to_string().contains("it is not a procyard program"), "{refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        fs::remove_file(&path).unwrap();
        install(&path).unwrap();
        install(&path).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(install(&link).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(link.is_symlink());
    }

    #[test]
    fn foreign_file_beside_the_target_survives() {
        let directory = tempfile::tempdir().unwrap();
        let foreign = directory.path().join(format!(".p.{}", std::process::id()));
        fs::write(&foreign, "mine").unwrap();
        install(&directory.path().join("p")).unwrap();
        assert_eq!(fs::read_to_string(&foreign).unwrap(), "mine");
        // A directory is not replaced, and no copy stays beside it.
        fs::create_dir(directory.path().join("d")).unwrap();
        assert!(install(&directory.path().join("d")).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
    }
}
