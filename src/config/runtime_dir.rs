//! The usual socket, and whether another user could have put it there.
//!
//! The server and its clients use the same functions: they meet at the same path, and neither uses
//! a directory that another user has made first.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::process::getuid;

/// The name of the socket.
const SOCKET: &str = "procyard.sock";
/// The directory for it in the home directory.
const BELOW_HOME: &str = ".procyard";
/// Longest path of a Unix socket, bytes.
pub(super) const MAX_SOCKET_PATH: usize = 107;

/// The path of the usual socket.
pub(super) fn usual_socket() -> PathBuf {
    let uid = getuid();
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let directory = if uid.is_root() { "/run".into() } else { directory(uid.as_raw(), variable) };
    directory.join(SOCKET)
}

/// `$XDG_RUNTIME_DIR`; without it a directory in the home directory; without a home directory that
/// can be used, one in the directory for temporary files.
fn directory(uid: u32, variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    let below_home = || absolute("HOME").and_then(|home| below(&home));
    let temporary = || std::env::temp_dir().join(format!("procyard-{uid}"));
    absolute("XDG_RUNTIME_DIR").or_else(below_home).unwrap_or_else(temporary)
}

/// The directory in a home directory, if it is there or can be made, and the socket's path fits.
fn below(home: &Path) -> Option<PathBuf> {
    let directory = home.join(BELOW_HOME);
    let fits = directory.join(SOCKET).as_os_str().len() <= MAX_SOCKET_PATH;
    let can_write = || rustix::fs::access(home, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    (fits && (fs::symlink_metadata(&directory).is_ok() || can_write())).then_some(directory)
}

/// Refuses a directory that is not this user's own, or in which others could replace a socket.
pub(super) fn check_directory(directory: &Path) -> io::Result<()> {
    let named = !getuid().is_root() && is_runtime_dir(directory);
    check_directory_of(directory, getuid().as_raw(), named)
}

/// The same for a user's directory, which `XDG_RUNTIME_DIR` may have named.
fn check_directory_of(directory: &Path, user: u32, named: bool) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    let path = directory.display();
    let cause = match (found.is_dir(), found.uid()) {
        (false, _) => "is no directory".to_owned(),
        (true, owner) if owner != user => format!("belongs to uid {owner}"),
        (true, _) if can_others_replace_in(&found) => {
            let problem = "other users may write to it; run `chmod go-w";
            return Err(denied(format!("cannot trust {path}: {problem} {path}`")));
        }
        (true, _) => return Ok(()),
    };
    Err(match named {
        true => denied(format!(
            "XDG_RUNTIME_DIR is {path}, which {cause}: set it to a directory of your own"
        )),
        false => distrusted(directory, user, &format!("it {cause}")),
    })
}

/// Whether `XDG_RUNTIME_DIR` names a directory.
fn is_runtime_dir(directory: &Path) -> bool {
    std::env::var_os("XDG_RUNTIME_DIR").is_some_and(|named| Path::new(&named) == directory)
}

/// Refuses a usual socket that another user may have made. A missing one is an error of that kind.
pub(super) fn check_socket(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), check_directory)?;
    let found = fs::symlink_metadata(path)?;
    let own = getuid().as_raw();
    match (found.file_type().is_socket(), found.uid()) {
        (false, _) => Err(distrusted(path, own, "it is no socket")),
        (true, owner) if owner != own && owner != 0 => {
            Err(distrusted(path, own, &format!("it belongs to uid {owner}")))
        }
        (true, _) => Ok(()),
    }
}

fn distrusted(path: &Path, user: u32, cause: &str) -> io::Error {
    let path = path.display();
    // The directory of root's socket is fixed.
    let what_to_do = match user {
        0 => "use another socket: serve --listen, --server or PROCYARD_SERVER",
        _ => "set XDG_RUNTIME_DIR to a directory of your own",
    };
    denied(format!("cannot trust {path}: {cause}; {what_to_do}"))
}

fn denied(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

/// Whether users other than the owner may replace a file in a directory.
pub(super) fn can_others_replace_in(directory: &fs::Metadata) -> bool {
    let mode = directory.mode();
    mode & 0o022 != 0 && mode & 0o1000 == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn directory_with(variables: &[(&str, &Path)]) -> PathBuf {
        directory(7, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_path_buf())
        })
    }

    #[test]
    fn the_runtime_directory_wins_over_home_and_home_over_tmp() {
        let home = tempfile::tempdir().unwrap();
        let run = Path::new("/run/user/7");
        let (in_home, in_tmp) =
            (home.path().join(".procyard"), std::env::temp_dir().join("procyard-7"));
        assert_eq!(directory_with(&[("HOME", home.path()), ("XDG_RUNTIME_DIR", run)]), run);
        let relative = Path::new("run");
        assert_eq!(
            directory_with(&[("HOME", home.path()), ("XDG_RUNTIME_DIR", relative)]),
            in_home
        );
        assert_eq!(directory_with(&[("HOME", Path::new("/nonexistent"))]), in_tmp);
        assert_eq!(directory_with(&[]), in_tmp);
        let deep = home.path().join("d".repeat(100));
        fs::create_dir(&deep).unwrap();
        assert_eq!(directory_with(&[("HOME", &deep)]), in_tmp);
    }

    #[test]
    fn only_a_directory_of_ones_own_is_trusted() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("run");
        let cause = |path: &Path| check_directory(path).unwrap_err();
        assert_eq!(cause(&directory).kind(), io::ErrorKind::NotFound);
        fs::create_dir(&directory).unwrap();
        for (mode, trusted) in [(0o700, true), (0o711, true), (0o770, false), (0o703, false)] {
            fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(check_directory(&directory).is_ok(), trusted, "{mode:o}");
        }
        let link = place.path().join("link");
        symlink(place.path(), &link).unwrap();
        assert!(cause(&link).to_string().contains("it is no directory"));
    }

    #[test]
    fn refusal_names_what_to_do() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().display();
        let own = getuid().as_raw();
        let refused =
            |user, named| check_directory_of(place.path(), user, named).unwrap_err().to_string();
        assert_eq!(
            refused(own + 1, true),
            format!(
                "XDG_RUNTIME_DIR is {path}, which belongs to uid {own}: set it to a directory of \
                 your own"
            )
        );
        assert_eq!(
            refused(own + 1, false),
            format!(
                "cannot trust {path}: it belongs to uid {own}; set XDG_RUNTIME_DIR to a directory \
                 of your own"
            )
        );
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let writable =
            format!("cannot trust {path}: other users may write to it; run `chmod go-w {path}`");
        assert_eq!((refused(own, true), refused(own, false)), (writable.clone(), writable));
    }

    #[test]
    fn only_a_socket_is_trusted_as_a_socket() {
        let place = tempfile::tempdir().unwrap();
        let (path, link) = (place.path().join("s"), place.path().join("link"));
        assert_eq!(check_socket(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let _listener = UnixListener::bind(&path).unwrap();
        check_socket(&path).unwrap();
        symlink(&path, &link).unwrap();
        assert!(check_socket(&link).unwrap_err().to_string().contains("it is no socket"));
    }
}
