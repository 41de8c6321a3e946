//! Files whose record was lost: renamed, so that no sweep removes them, and bounded.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::{self, AtFlags};

use super::{DataDir, FileKey, Inner, LOST, Own, remove};

impl DataDir {
    /// Renames every file whose key is not known, so that no sweep removes it. Of a run that is
    /// lost twice, the newer file stays.
    pub(in crate::store) fn set_aside(&self, known: &BTreeSet<FileKey>) {
        let Ok(directory) = self.open() else { return };
        for (name, own) in self.own_names(directory.as_fd()) {
            let Own::File(key) = own else { continue };
            if known.contains(&key) {
                continue;
            }
            let lost = name.clone() + LOST;
            let path = self.path.join(&lost);
            match fs::renameat(&directory, &name, &directory, &lost) {
                Ok(()) => tracing::warn!(path = %path.display(), "file of a lost record set aside"),
                Err(error) => tracing::warn!(path = %path.display(), %error, "cannot set aside"),
            }
        }
    }

    /// Removes the oldest files of lost records beyond a number of files and bytes. The newest one
    /// stays.
    pub fn trim_lost(&self, max_files: usize, max_bytes: u64) {
        let Ok(directory) = self.open() else { return };
        let names = self.own_names(directory.as_fd()).into_iter();
        let lost = names.filter(|(_, own)| matches!(own, Own::Lost(_)));
        let lost = lost.filter_map(|(name, _)| {
            let found = fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some((found.st_mtime, name, found.st_size.cast_unsigned()))
        });
        let mut lost: Vec<_> = lost.collect();
        lost.sort_by_key(|(modified, ..)| Reverse(*modified));
        let mut bytes = 0_u64;
        for (index, (_, name, size)) in lost.into_iter().enumerate() {
            bytes = bytes.saturating_add(size);
            if index == 0 || index < max_files && bytes <= max_bytes {
                continue;
            }
            if remove(directory.as_fd(), &self.path, OsStr::new(&name), Inner::Nothing) {
                let path = self.path.join(&name);
                tracing::info!(path = %path.display(), reason = "retention", "file removed");
            }
        }
    }
}
