//! The default state directory.
//!
//! All commands use the same function, so that they find the same directory. It never makes one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::process::getuid;

/// The directory for it in the home directory.
const BELOW_HOME: &str = ".local/state/procyard";

/// The default state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultStateDir {
    /// Its path.
    pub path: PathBuf,
    /// The home directory that it would be in, had this user the right to write there.
    pub unusable_home: Option<PathBuf>,
}

impl DefaultStateDir {
    /// The directory for this user and environment.
    pub fn find() -> DefaultStateDir {
        let uid = getuid();
        if uid.is_root() {
            return DefaultStateDir { path: "/var/lib/procyard".into(), unusable_home: None };
        }
        find_for(uid.as_raw(), |name| std::env::var_os(name).map(PathBuf::from))
    }

    /// Refuses a directory that another user may have made in its place.
    pub fn check_owner(&self) -> io::Result<()> {
        check_owner(&self.path, getuid().as_raw())
    }
}

fn check_owner(path: &Path, user: u32) -> io::Result<()> {
    // In the directory for temporary files any user may have made the parent, too.
    let is_in_tmp = |parent: &&Path| parent.parent() == Some(std::env::temp_dir().as_path());
    for path in path.parent().filter(is_in_tmp).into_iter().chain([path]) {
        let cause = match fs::symlink_metadata(path) {
            Ok(found) if !found.is_dir() => "it is no directory".to_owned(),
            Ok(found) if found.uid() != user => format!("it belongs to uid {}", found.uid()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => continue,
        };
        let message = format!(
            "cannot trust the state directory {}: {cause}; pass --state-dir",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(())
}

/// `$XDG_STATE_HOME/procyard`; without that variable a directory in the home directory; without a
/// home directory that can be used, one in the directory for temporary files, as for the socket.
fn find_for(uid: u32, variable: impl Fn(&str) -> Option<PathBuf>) -> DefaultStateDir {
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    if let Some(state) = absolute("XDG_STATE_HOME") {
        return DefaultStateDir { path: state.join("procyard"), unusable_home: None };
    }
    let unusable_home = match absolute("HOME") {
        Some(home) if can_be_below(&home) => {
            return DefaultStateDir { path: home.join(BELOW_HOME), unusable_home: None };
        }
        home => home,
    };
    let path = std::env::temp_dir().join(format!("procyard-{uid}")).join("state");
    DefaultStateDir { path, unusable_home }
}

/// Whether the state directory is in a home directory, or can be made there. One that exists is
/// used even if it cannot be written: another directory would hide its records.
fn can_be_below(home: &Path) -> bool {
    let state = home.join(BELOW_HOME);
    if fs::symlink_metadata(&state).is_ok() {
        return true;
    }
    let mut parents = state.ancestors().skip(1).take_while(|path| path.starts_with(home));
    let existing = parents.find(|path| fs::symlink_metadata(path).is_ok());
    let access = Access::WRITE_OK | Access::EXEC_OK;
    existing.is_some_and(|path| rustix::fs::access(path, access).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &Path)]) -> DefaultStateDir {
        find_for(7, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_path_buf())
        })
    }

    #[test]
    fn xdg_state_home_wins_over_home_and_home_over_tmp() {
        let home = tempfile::tempdir().unwrap();
        let in_home = home.path().join(BELOW_HOME);
        let in_tmp = std::env::temp_dir().join("procyard-7/state");
        let (xdg, missing) = (Path::new("/nonexistent/xdg"), home.path().join("missing"));
        let both = found(&[("XDG_STATE_HOME", xdg), ("HOME", home.path())]);
        assert_eq!((both.path, both.unusable_home), (xdg.join("procyard"), None));
        let usable = found(&[("XDG_STATE_HOME", Path::new("relative")), ("HOME", home.path())]);
        assert_eq!((usable.path, usable.unusable_home), (in_home, None));
        let unusable = found(&[("HOME", &missing)]);
        assert_eq!((unusable.path, unusable.unusable_home), (in_tmp.clone(), Some(missing)));
        assert_eq!(found(&[]), DefaultStateDir { path: in_tmp, unusable_home: None });
    }

    #[test]
    fn directory_of_another_user_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let (state, own) = (directory.path().join("state"), getuid().as_raw());
        assert!(check_owner(&state, own).is_ok());
        // Its parent is in the directory for temporary files.
        assert!(check_owner(&state, own + 1).is_err());
        std::os::unix::fs::symlink("/", &state).unwrap();
        assert!(check_owner(&state, own).is_err());
        fs::remove_file(&state).unwrap();
        fs::create_dir(&state).unwrap();
        assert!(check_owner(&state, own).is_ok());
    }

    #[test]
    fn existing_state_directory_is_kept_whatever_its_parents_permit() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join(BELOW_HOME);
        fs::create_dir_all(state.parent().unwrap()).unwrap();
        // Not a directory, so that no user may write below it.
        fs::write(&state, "").unwrap();
        assert_eq!(found(&[("HOME", home.path())]).path, state);
    }
}
