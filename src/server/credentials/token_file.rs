//! Changes files of tokens, and makes the token for this machine.
//!
//! Owns that two changes at once are both there afterwards, and that nobody else can read what is
//! written. A running server sees a change at the next call. A file that the user names may lie behind a
//! link, and keeps its mode and owner; those with default names in the state directory are private
//! (`private_file`).

mod private_file;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::tokens::{self, Tokens};
use crate::access::{Grant, Role};
use crate::config::{alone_in, random_suffix};
use private_file::PrivateFile;

/// Names in the state directory: of the file of tokens that counts unless another is named, and of
/// the token for this machine.
const FILE: &str = "tokens";
const LOCAL_FILE: &str = "token";

/// Both names.
pub const DEFAULT_NAMES: [&str; 2] = [FILE, LOCAL_FILE];

/// What the token for this machine is called.
const LOCAL: &str = "local";

/// The token for this machine, if its file has one.
pub fn token_of_this_machine(state_dir: &Path) -> Option<String> {
    let file = PrivateFile::read(&state_dir.join(LOCAL_FILE)).ok()??;
    tokens::only_token(&file.bytes).map(str::to_owned)
}

/// The files with default names that are recognisably procyard's: they may be in the state directory
/// before procyard has claimed it.
pub fn own_files(state_dir: &Path) -> Vec<PathBuf> {
    let is_own = |path: &PathBuf| {
        let Ok(Some(PrivateFile { bytes, .. })) = PrivateFile::read(path) else { return false };
        let has_tokens = match path.ends_with(LOCAL_FILE) {
            true => tokens::only_token(&bytes).is_some(),
            false => has_tokens(&bytes),
        };
        has_tokens || bytes.trim_ascii().is_empty()
    };
    DEFAULT_NAMES.map(|name| state_dir.join(name)).into_iter().filter(is_own).collect()
}

/// A file of tokens.
pub struct TokenFile {
    path: PathBuf,
    /// It is the state directory's, and thus private.
    is_default: bool,
}

impl TokenFile {
    /// A file that the user named.
    pub fn named(path: PathBuf) -> TokenFile {
        TokenFile { path, is_default: false }
    }

    /// The one in the state directory, which counts unless another is named.
    pub fn default_in(state_dir: &Path) -> TokenFile {
        TokenFile { path: state_dir.join(FILE), is_default: true }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a token and adds it to the file, which is made if it is missing. Returns
    /// what its holder shows.
    pub fn add(&self, name: &str, grant: &Grant) -> Result<String, String> {
        in_words(&self.path, || {
            let _alone = alone(&self.path)?;
            let text = self.read()?;
            if known(&text)?.has(name) {
                let taken =
                    format!("a token is named {name:?} already; revoke it, or take another name");
                return Err(io::Error::other(taken));
            }
            let tokens::New { token, line } = tokens::new(name, grant).map_err(io::Error::other)?;
            match self.is_default {
                true => private_file::replace(&self.path, &with_line(&text, &line))?,
                false => append(&self.path, &with_line(&text, &line)[text.len()..])?,
            }
            Ok(token)
        })
    }

    /// The names of all tokens, and what each may do.
    pub fn list(&self) -> Result<Vec<(String, Grant)>, String> {
        in_words(&self.path, || Ok(known(&self.read_existing()?)?.all()))
    }

    /// Takes a token out of the file.
    pub fn revoke(&self, name: &str) -> Result<(), String> {
        in_words(&self.path, || {
            let _alone = alone(&self.path)?;
            let text = self.read_existing()?;
            // What is wrong in other lines keeps no token valid.
            let others = without(&text, name);
            if others == text {
                return Err(io::Error::other(format!("no token is named {name:?}")));
            }
            match self.is_default {
                true => private_file::replace(&self.path, &others),
                false => replace(&self.path, &others),
            }
        })
    }

    /// Takes from others what they may do with the default file, if it has tokens. Refused: a link,
    /// and a file of another user.
    pub fn protect(&self) -> Result<(), String> {
        let is_wide = |file: &PrivateFile| !file.is_private && has_tokens(&file.bytes);
        in_use(&self.path, || {
            if !PrivateFile::read(&self.path)?.is_some_and(|file| is_wide(&file)) {
                return Ok(());
            }
            let _alone = alone(&self.path)?;
            let file = PrivateFile::read(&self.path)?.filter(is_wide);
            file.map_or(Ok(()), |file| private_file::replace(&self.path, &file.bytes))
        })
    }

    /// What is in the file, if it is there.
    fn read(&self) -> io::Result<Vec<u8>> {
        match self.read_existing() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            text => text,
        }
    }

    fn read_existing(&self) -> io::Result<Vec<u8>> {
        if self.is_default {
            let file = PrivateFile::read(&self.path)?;
            let problem = "there are no tokens yet; `procyard token new NAME` makes one";
            let missing = || io::Error::new(io::ErrorKind::NotFound, problem);
            return file.map(|file| file.bytes).ok_or_else(missing);
        }
        let mut bytes = Vec::new();
        open_regular(&self.path, OpenOptions::new().read(true))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Where the token for this machine is: the one that was made before, if it still counts, or a new
/// one, of an admin.
pub fn local(state_dir: &Path) -> Result<PathBuf, String> {
    let (file, path) = (TokenFile::default_in(state_dir), state_dir.join(LOCAL_FILE));
    let _alone = in_use(&file.path, || alone(&file.path))?;
    let had = in_use(&path, || own_token(&path))?;
    let new = in_use(&file.path, || {
        let text = file.read()?;
        let tokens = known(&text)?;
        let caller = had.as_deref().and_then(|token| tokens.find(token));
        if caller.is_some_and(|caller| caller.grant.role == Role::Admin) {
            return Ok(None);
        }
        let tokens::New { token, line } =
            tokens::new(LOCAL, &Grant::of(Role::Admin)).map_err(io::Error::other)?;
        private_file::replace(&file.path, &with_line(&without(&text, LOCAL), &line))?;
        Ok(Some(token))
    })?;
    if let Some(token) = new {
        in_use(&path, || private_file::replace(&path, format!("{token}\n").as_bytes()))?;
    }
    Ok(path)
}

/// The token in a file that holds nothing else. It is private from then on.
fn own_token(path: &Path) -> io::Result<Option<String>> {
    let Some(file) = PrivateFile::read(path)? else { return Ok(None) };
    if file.bytes.trim_ascii().is_empty() {
        return Ok(None);
    }
    let Some(token) = tokens::only_token(&file.bytes) else {
        let foreign =
            "procyard did not make this file; move it away, or choose another --state-dir";
        return Err(io::Error::other(foreign));
    };
    if !file.is_private {
        private_file::replace(path, &file.bytes)?;
    }
    Ok(Some(token.to_owned()))
}

fn in_words<T>(path: &Path, done: impl FnOnce() -> io::Result<T>) -> Result<T, String> {
    done().map_err(|error| format!("{}: {error}", path.display()))
}

/// Says of a file of the state directory why it cannot be used.
fn in_use<T>(path: &Path, done: impl FnOnce() -> io::Result<T>) -> Result<T, String> {
    in_words(path, done).map_err(|problem| format!("cannot use {problem}"))
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

fn known(text: &[u8]) -> io::Result<Tokens> {
    let (tokens, problems) = tokens::read(text);
    problems.into_iter().next().map_or(Ok(tokens), |problem| Err(io::Error::other(problem)))
}

fn has_tokens(text: &[u8]) -> bool {
    tokens::read(text).0.count() > 0
}

/// A text with one more line.
fn with_line(text: &[u8], line: &str) -> Vec<u8> {
    let is_unfinished = !text.is_empty() && !text.ends_with(b"\n");
    [text, if is_unfinished { b"\n" } else { b"" }, line.as_bytes()].concat()
}

/// Adds to a file at once, so that a reader sees all of it or nothing.
fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = open_regular(path, OpenOptions::new().append(true).create(true).mode(0o600))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// All lines but the tokens of a name.
fn without(text: &[u8], name: &str) -> Vec<u8> {
    let is_other = |line: &&[u8]| {
        let line = String::from_utf8_lossy(line);
        tokens::name_of(&line) != Some(name)
    };
    text.split_inclusive(|byte| *byte == b'\n').filter(is_other).collect::<Vec<_>>().concat()
}

/// Puts a file in the place of another, as a whole. It stays its owner's; a new one is nobody
/// else's.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // The file itself, where there is a link to it.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let former = fs::metadata(&path).ok();
    replace_as(&path, bytes, |file| match former {
        Some(former) => {
            fchown(file, Some(former.uid()), Some(former.gid()))?;
            file.set_permissions(Permissions::from_mode(former.mode() & 0o7755))
        }
        None => Ok(()),
    })
}

/// The same for a new file that is made like this before anything is in it.
fn replace_as(
    path: &Path,
    bytes: &[u8],
    prepare: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let new = path.with_extension(format!("new.{}", random_suffix()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = (|| {
        prepare(&file)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
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

    fn add(path: &Path, name: &str, grant: &Grant) -> Result<String, String> {
        TokenFile::named(path.into()).add(name, grant)
    }

    fn list(path: &Path) -> Result<Vec<(String, Grant)>, String> {
        TokenFile::named(path.into()).list()
    }

    fn revoke(path: &Path, name: &str) -> Result<(), String> {
        TokenFile::named(path.into()).revoke(name)
    }

    fn usual(state_dir: &Path) -> PathBuf {
        state_dir.join(FILE)
    }

    fn of_this_machine(state_dir: &Path) -> PathBuf {
        state_dir.join(LOCAL_FILE)
    }

    #[test]
    fn tokens_come_and_go_by_name_and_other_lines_stay() {
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
        assert!(revoke(&path, "b").unwrap_err().contains("no token is named \"b\""));
        assert_eq!(mode(&path), 0o640);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# mine\n") && text.ends_with("nonsense\n"));
        assert!(tokens::read(text.as_bytes()).0.find(&a).is_some());
    }

    #[test]
    fn only_lines_of_tokens_are_revoked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t");
        add(&path, "ci", &"viewer".parse().unwrap()).unwrap();
        let line = fs::read_to_string(&path).unwrap();
        let notes = b"# ci\nci server: 10.0.0.1\n\xff\nci viewer hmac-sha256:\nci a b:c:d:e\n";
        // What another version may allow is revoked as well.
        let other = line.replace("viewer", "unknown");
        let text = [notes, line.as_bytes(), other.as_bytes(), b"ci"].concat();
        fs::write(&path, text).unwrap();
        for name in ["#", "10.0.0.1", ""] {
            let refused = revoke(&path, name).unwrap_err();
            assert!(refused.contains("no token is named"), "{refused}");
        }
        revoke(&path, "ci").unwrap();
        assert!(revoke(&path, "ci").unwrap_err().contains("no token is named \"ci\""));
        assert_eq!(fs::read(&path).unwrap(), [&notes[..], b"ci"].concat());
    }

    #[test]
    fn default_file_behind_a_link_is_refused_and_a_named_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let (state, target) = (directory.path().join("state"), directory.path().join("t"));
        fs::create_dir(&state).unwrap();
        let viewer: Grant = "viewer".parse().unwrap();
        add(&target, "a", &viewer).unwrap();
        std::os::unix::fs::symlink(&target, usual(&state)).unwrap();
        let before = fs::read(&target).unwrap();
        let default = TokenFile::default_in(&state);
        for refused in [
            default.add("b", &viewer).map(drop),
            default.list().map(drop),
            default.revoke("a"),
            default.protect(),
            local(&state).map(drop),
        ] {
            let refused = refused.unwrap_err();
            assert!(refused.contains("/tokens: it is not a regular file"), "{refused}");
        }
        assert_eq!(fs::read(&target).unwrap(), before);
        add(&usual(&state), "b", &viewer).unwrap();
        revoke(&usual(&state), "a").unwrap();
        assert_eq!(names(&target), ["b"]);
        assert!(usual(&state).is_symlink());
    }

    #[test]
    fn missing_default_file_is_an_error_with_advice() {
        let directory = tempfile::tempdir().unwrap();
        let missing = TokenFile::default_in(directory.path()).list().unwrap_err();
        assert!(
            missing
                .ends_with("/tokens: there are no tokens yet; `procyard token new NAME` makes one")
        );
    }

    #[test]
    fn token_of_this_machine_is_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = local(directory.path()).unwrap();
        let token = fs::read_to_string(&path).unwrap();
        assert_eq!(token_of_this_machine(directory.path()).as_deref(), Some(token.trim()));
        for foreign in ["secret", &token[..20], &format!("{token}{token}")] {
            fs::write(&path, foreign).unwrap();
            assert_eq!(token_of_this_machine(directory.path()), None);
        }
    }

    #[test]
    fn own_files_have_tokens_or_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let own = || own_files(directory.path());
        assert!(own().is_empty());
        let token = local(directory.path()).unwrap();
        let file = usual(directory.path());
        assert_eq!(own(), [file.clone(), token.clone()]);
        fs::write(&file, "# mine\n").unwrap();
        fs::write(&token, "mine\n").unwrap();
        assert!(own().is_empty());
        fs::write(&file, "").unwrap();
        fs::write(&token, "\n").unwrap();
        assert_eq!(own(), [file, token]);
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
            let path = directory.path().join(file);
            let reason = format!("cannot use {}: it is not a regular file", path.display());
            assert!(refused.starts_with(&reason), "{refused}");
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
        assert!(known(&fs::read(&file).unwrap()).unwrap().find(first.trim()).is_none());
        revoke(&file, "local").unwrap();
        assert_ne!(make(), second);
        fs::write(&file, "nonsense").unwrap();
        assert!(local(directory.path()).unwrap_err().contains("tokens: line 1"));
    }
}
