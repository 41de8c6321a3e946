//! Changes a file of tokens, and makes the one that is for this machine.
//!
//! Owns that two changes at once are both there afterwards, and that nobody else can read what is
//! written. Whoever serves sees a change at the next call.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::tokens::{self, Tokens};
use crate::access::{Grant, Role};
use crate::config::{alone_in, random_suffix};

/// Names in the state directory: of the file of tokens that counts unless another is named, and of
/// the token for this machine.
const FILE: &str = "tokens";
const LOCAL_FILE: &str = "token";

/// What the token for this machine is called.
const LOCAL: &str = "local";

/// The file of tokens that counts unless another is named.
pub fn usual(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

/// The file of the token for this machine.
pub fn of_this_machine(state_dir: &Path) -> PathBuf {
    state_dir.join(LOCAL_FILE)
}

/// The token for this machine, if its file can be read.
pub fn token_of_this_machine(state_dir: &Path) -> Option<String> {
    read_existing(&of_this_machine(state_dir)).ok()
}

/// Makes a token for somebody and adds it to a file, which is made if it is missing. Returns what
/// its holder shows.
pub fn add(path: &Path, name: &str, grant: &Grant) -> Result<String, String> {
    in_words(path, || {
        let _alone = alone(path)?;
        let text = read(path)?;
        if known(&text)?.has(name) {
            let taken =
                format!("a token is named {name:?} already; revoke it, or take another name");
            return Err(io::Error::other(taken));
        }
        append(path, &text, name, grant)
    })
}

/// The names of all tokens of a file, and what each may do.
pub fn list(path: &Path) -> Result<Vec<(String, Grant)>, String> {
    in_words(path, || Ok(known(&read_existing(path)?)?.all()))
}

/// Takes a token out of a file.
pub fn revoke(path: &Path, name: &str) -> Result<(), String> {
    in_words(path, || {
        let _alone = alone(path)?;
        let text = read_existing(path)?;
        // By its words alone: what is wrong in other lines keeps nobody in.
        let others = without(&text, name);
        if others == text {
            return Err(io::Error::other(format!("no token is named {name:?}")));
        }
        replace(path, &others)
    })
}

/// Where the token for this machine is: the one that was made before, if it still counts, or a new
/// one, of an admin.
pub fn local(state_dir: &Path) -> Result<PathBuf, String> {
    let (path, token) = (usual(state_dir), of_this_machine(state_dir));
    let _alone = in_words(&path, || alone(&path))?;
    let had = in_words(&token, || match open_regular(&token, OpenOptions::new().read(true)) {
        Ok(file) => Ok(io::read_to_string(file).unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(error),
        // It is replaced.
        Err(_) => Ok(String::new()),
    })?;
    in_words(&path, || {
        let text = read(&path)?;
        let tokens = known(&text)?;
        let had = tokens.find(had.trim());
        if had.is_some_and(|caller| caller.grant.role == Role::Admin) {
            // Whatever became of them: they are its owner's alone.
            let own = Permissions::from_mode(0o600);
            fs::set_permissions(&token, own.clone()).and(fs::set_permissions(&path, own))?;
            return Ok(token.clone());
        }
        let text = without(&text, LOCAL);
        replace(&path, &text)?;
        let new = append(&path, &text, LOCAL, &Grant::of(Role::Admin))?;
        replace(&token, &format!("{new}\n"))?;
        Ok(token.clone())
    })
}

fn in_words<T>(path: &Path, done: impl FnOnce() -> io::Result<T>) -> Result<T, String> {
    done().map_err(|error| format!("{}: {error}", path.display()))
}

/// Keeps others from changing files of the same directory. The directory, and not the file: that
/// may be replaced by another.
fn alone(path: &Path) -> io::Result<File> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    alone_in(directory.unwrap_or(Path::new("."))).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("its directory is missing"),
        _ => error,
    })
}

/// What is in a file, if it is there.
fn read(path: &Path) -> io::Result<String> {
    match read_existing(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text,
    }
}

fn read_existing(path: &Path) -> io::Result<String> {
    io::read_to_string(open_regular(path, OpenOptions::new().read(true))?)
}

/// Opens a file, also behind a link, without waiting for a FIFO or a device in its place.
fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let not_regular = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
    let opened = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        // Such as a socket, or a FIFO that no process reads.
        Some(libc::ENXIO) => not_regular(),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

fn known(text: &str) -> io::Result<Tokens> {
    let (tokens, problems) = tokens::read(text.as_bytes());
    problems.into_iter().next().map_or(Ok(tokens), |problem| Err(io::Error::other(problem)))
}

/// Adds a line at once, so that whoever reads meanwhile sees all of it or nothing.
fn append(path: &Path, text: &str, name: &str, grant: &Grant) -> io::Result<String> {
    let tokens::New { token, line } = tokens::new(name, grant).map_err(io::Error::other)?;
    let mut file = open_regular(path, OpenOptions::new().append(true).create(true).mode(0o600))?;
    let unfinished = !text.is_empty() && !text.ends_with('\n');
    let line = if unfinished { format!("\n{line}") } else { line };
    file.write_all(line.as_bytes())?;
    file.sync_all()?;
    Ok(token)
}

/// All lines but those of a name.
fn without(text: &str, name: &str) -> String {
    let others = text.split_inclusive('\n');
    others.filter(|line| line.split_whitespace().next() != Some(name)).collect()
}

/// Puts a file in the place of another, as a whole. It stays its owner's; a new one is nobody
/// else's.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // The file itself, where there is a link to it.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let new = path.with_extension(format!("new.{}", random_suffix()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = (|| {
        if let Ok(former) = fs::metadata(&path) {
            fchown(&file, Some(former.uid()), Some(former.gid()))?;
            file.set_permissions(Permissions::from_mode(former.mode() & 0o7755))?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)
    })();
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn names(path: &Path) -> Vec<String> {
        list(path).unwrap().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn tokens_come_and_go_by_name_and_what_people_wrote_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        assert!(list(&path).unwrap_err().contains("/t: "));
        let viewer: Grant = "viewer".parse().unwrap();
        let a = add(&path, "a", &viewer).unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::write(&path, format!("# mine\n{}", fs::read_to_string(&path).unwrap().trim_end()))
            .unwrap();
        add(&path, "b", &viewer).unwrap();
        assert_eq!(names(&path), ["a", "b"]);
        assert!(add(&path, "a", &viewer).unwrap_err().contains("named \"a\" already"));
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}nonsense\n")).unwrap();
        assert!(list(&path).unwrap_err().contains("line 4: "));
        revoke(&path, "b").unwrap();
        revoke(&path, "nonsense").unwrap();
        assert!(revoke(&path, "b").unwrap_err().contains("no token is named \"b\""));
        assert_eq!((names(&path), mode(&path)), (vec!["a".to_owned()], 0o640));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# mine\n"));
        assert!(known(&text).unwrap().find(&a).is_some());
    }

    #[test]
    fn special_file_in_place_of_tokens_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let make = |path: &Path| {
            rustix::fs::mknodat(
                rustix::fs::CWD,
                path,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::from_raw_mode(0o600),
                0,
            )
            .unwrap();
        };
        let refused = |file: &str| {
            let refused = local(directory.path()).unwrap_err();
            assert!(refused.ends_with(&format!("/{file}: it is not a regular file")), "{refused}");
        };
        let (file, token) = (usual(directory.path()), of_this_machine(directory.path()));
        make(&token);
        refused("token");
        fs::remove_file(&token).unwrap();
        make(&file);
        refused("tokens");
        assert!(list(&file).is_err() && revoke(&file, "a").is_err());
        assert!(add(&file, "a", &"viewer".parse().unwrap()).is_err());
        fs::remove_file(&file).unwrap();
        fs::create_dir(&token).unwrap();
        refused("token");
    }

    #[test]
    fn files_with_the_names_of_earlier_versions_survive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        let foreign = directory.path().join(format!("t.new.{}", std::process::id()));
        fs::write(&foreign, "mine").unwrap();
        add(&path, "a", &"viewer".parse().unwrap()).unwrap();
        revoke(&path, "a").unwrap();
        assert_eq!(fs::read_to_string(&foreign).unwrap(), "mine");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn two_who_add_at_once_are_both_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        let viewer: Grant = "viewer".parse().unwrap();
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (path, viewer) = (&path, &viewer);
                scope.spawn(move || add(path, &format!("n{n}"), viewer).unwrap());
            }
        });
        assert_eq!(names(&path).len(), 8);
    }

    #[test]
    fn who_holds_the_lock_for_ever_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let _held = alone_in(directory.path()).unwrap();
        let refused = add(&directory.path().join("t"), "a", &"viewer".parse().unwrap());
        assert!(refused.unwrap_err().contains("another process holds the directory's lock"));
    }

    #[test]
    fn the_token_of_this_machine_is_made_once_and_anew_when_it_does_not_fit() {
        let directory = tempfile::tempdir().unwrap();
        let make = || fs::read_to_string(local(directory.path()).unwrap()).unwrap();
        let (file, token) = (usual(directory.path()), directory.path().join("token"));
        let first = make();
        assert_eq!((mode(&file), mode(&token)), (0o600, 0o600));
        add(&file, "other", &"viewer".parse().unwrap()).unwrap();
        assert_eq!(make(), first);
        fs::remove_file(&token).unwrap();
        let second = make();
        assert_ne!(second, first);
        assert_eq!(names(&file), ["local", "other"]);
        assert!(known(&fs::read_to_string(&file).unwrap()).unwrap().find(first.trim()).is_none());
        revoke(&file, "local").unwrap();
        assert_ne!(make(), second);
        fs::write(&file, "nonsense").unwrap();
        assert!(local(directory.path()).unwrap_err().contains("tokens: line 1"));
    }
}
