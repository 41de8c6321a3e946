//! Cgroups that are to be removed, and cannot be as long as somebody lives in them.
//!
//! Owns their directories, and how many are looked at in a turn. Ends nobody.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use super::remove;

/// Directories that are looked at in one sweep, to see whether they have become empty.
const MOST_SWEPT: usize = 4;

/// The directories.
#[derive(Default)]
pub(in crate::keeper) struct Remaining(VecDeque<PathBuf>);

impl Remaining {
    /// Removes a directory, or remembers it if somebody is in it.
    pub(in crate::keeper) fn remove(&mut self, directory: PathBuf) {
        if !gone(&directory) {
            self.0.push_back(directory);
        }
    }

    /// Removes those that have become empty, looking at a few.
    pub(in crate::keeper) fn sweep(&mut self) {
        for _ in 0..self.0.len().min(MOST_SWEPT) {
            let Some(directory) = self.0.pop_front() else { return };
            self.remove(directory);
        }
    }

    /// None could not be removed.
    pub(in crate::keeper) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Removes a directory if nobody is in it, and tells whether that was so.
fn gone(directory: &Path) -> bool {
    remove(directory);
    !directory.exists()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_occupied_is_removed_once_it_is_not_each_in_its_turn() {
        let base = tempfile::tempdir().unwrap();
        let mut remaining = Remaining::default();
        let directories = (0..6).map(|number| base.path().join(number.to_string()));
        let directories: Vec<PathBuf> = directories.collect();
        for directory in &directories {
            // A file keeps an ordinary directory, as a member does a cgroup.
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("member"), "").unwrap();
            remaining.remove(directory.clone());
        }
        remaining.sweep();
        assert!(directories.iter().all(|directory| directory.exists()));
        for directory in &directories {
            fs::remove_file(directory.join("member")).unwrap();
        }
        // The first were just looked at: it begins with the others.
        remaining.sweep();
        let left = directories.iter().map(|directory| directory.exists());
        assert_eq!(left.collect::<Vec<_>>(), [false, false, true, true, false, false]);
        remaining.sweep();
        assert!(remaining.is_empty() && fs::read_dir(base.path()).unwrap().next().is_none());
        fs::create_dir(&directories[0]).unwrap();
        remaining.remove(directories[0].clone());
        assert!(remaining.is_empty() && !directories[0].exists(), "nobody was in it");
    }
}
