//! The marker file: it claims a directory as procyard's and names the format of its files.
//!
//! Owns the decision whether a directory may become a state directory. Never changes or removes
//! what it finds there.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use uuid::Uuid;

use super::data_dir::DataKind;
use super::state_dir::{self, CLAIM, LOCK, cannot};
use super::{DATABASE, StoreError, version};

/// Name of the marker file.
const MARKER: &str = "procyard-state";

/// The first line, up to the number of the format.
const TITLE: &str = "procyard state directory, format ";

/// The second line: from the first database on, one that is missing was lost.
const DATABASE_MADE: &str = "database made";

/// The third line, up to the generation of the database.
const GENERATION: &str = "database generation ";

/// Bytes of a marker that are read.
const MAX_MARKER_BYTES: u64 = 256;

/// Foreign names that an error lists.
const MAX_LISTED_NAMES: usize = 3;

/// Files in subdirectories are named `procyard-BIRTH.NUMBER.KIND`. In the format before, of
/// versions that wrote no marker, their names were `BIRTH.NUMBER`.
const FORMAT: u32 = 2;
const EARLIER_FORMAT: u32 = 1;

/// What a marker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    format: u32,
    has_database: bool,
    /// None: the versions before generations have used the database.
    generation: Option<Uuid>,
}

impl Marker {
    const FRESH: Marker = Marker { format: FORMAT, has_database: false, generation: None };
    const EARLIER: Marker = Marker { format: EARLIER_FORMAT, has_database: true, generation: None };

    /// The marker of a directory, or what it would say.
    pub(super) fn of(directory: &Path) -> Marker {
        match read(directory) {
            Ok(Some(marker)) => marker,
            _ if is_of_earlier_version(directory) => Marker::EARLIER,
            _ => Marker::FRESH,
        }
    }

    /// Whether subdirectories may hold files with names of the format before.
    pub(super) fn has_earlier_names(self) -> bool {
        self.format == EARLIER_FORMAT
    }

    /// Whether a database was made in the directory.
    pub(super) fn has_database(self) -> bool {
        self.has_database
    }

    /// The generation of the database that was last used in the directory.
    pub(super) fn generation(self) -> Option<Uuid> {
        self.generation
    }

    fn text(self) -> String {
        let made = if self.has_database { format!("{DATABASE_MADE}\n") } else { String::new() };
        let generation = self.generation.map(|generation| format!("{GENERATION}{generation}\n"));
        format!("{TITLE}{}\n{made}{}", self.format, generation.unwrap_or_default())
    }

    /// The marker that a text says; none: the text is not procyard's.
    fn parse(text: &str) -> Option<Marker> {
        let mut lines = text.lines();
        let format = lines.next()?.strip_prefix(TITLE)?.parse().ok()?;
        let has_database = lines.clone().any(|line| line == DATABASE_MADE);
        let generation = lines.find_map(|line| line.strip_prefix(GENERATION)?.parse().ok());
        Some(Marker { format, has_database, generation })
    }
}

/// Marks a directory as procyard's. It must be marked already, an earlier version's, or empty but
/// for `expected` files, which the user has named or procyard makes before it claims a directory.
pub(super) fn claim(directory: &Path, expected: &[PathBuf]) -> Result<(), StoreError> {
    if read(directory)?.is_some() {
        return Ok(());
    }
    let foreign = foreign_names(directory, expected)?;
    // The marker is the first file of all: of another instance that has begun meanwhile, it is
    // there if any other file was seen.
    if read(directory)?.is_some() {
        return Ok(());
    }
    let is_earlier = is_of_earlier_version(directory);
    if !is_earlier && !foreign.is_empty() {
        return Err(StoreError::Foreign { path: directory.into(), names: listed(&foreign) });
    }
    let marker = if is_earlier { Marker::EARLIER } else { Marker::FRESH };
    match write(directory, marker) {
        // What makes the directory recognisable is still there: the next start marks it.
        Err(error) if is_earlier => {
            tracing::warn!(%error, "cannot mark the state directory");
            Ok(())
        }
        written => written,
    }
}

/// Records that a directory has a database, and which: another one in its place, such as an earlier
/// copy, has another generation.
pub(super) fn record_database(directory: &Path, generation: Option<Uuid>) {
    let before = Marker::of(directory);
    let marker = Marker { has_database: true, generation, ..before };
    if marker == before {
        return;
    }
    if let Err(error) = write(directory, marker) {
        tracing::warn!(%error, "cannot mark the state directory");
    }
}

/// Whether a directory has a marker that this user owns.
pub(super) fn is_marked(directory: &Path) -> bool {
    read(directory).is_ok_and(|marker| marker.is_some())
}

/// The marker of a directory, if it has one.
fn read(directory: &Path) -> Result<Option<Marker>, StoreError> {
    let path = directory.join(MARKER);
    let file = match state_dir::open_regular(&path) {
        Err(StoreError::Directory { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(None);
        }
        file => file?,
    };
    let mut text = String::new();
    if file.take(MAX_MARKER_BYTES).read_to_string(&mut text).is_err() {
        return Ok(None);
    }
    match Marker::parse(&text) {
        Some(Marker { format, .. }) if format > FORMAT => {
            let reason = Box::new(StoreError::Newer { found: format, known: FORMAT });
            Err(StoreError::Open { path, reason })
        }
        marker => Ok(marker),
    }
}

/// Replaces the marker as a whole.
fn write(directory: &Path, marker: Marker) -> Result<(), StoreError> {
    let path = directory.join(MARKER);
    // Several threads and processes may claim a directory at once.
    let temporary = directory.join(format!("{MARKER}.{}", Uuid::now_v7()));
    let written = (|| {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(marker.text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    })();
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        cannot("write", &path)(error)
    })
}

/// Whether a version that wrote no marker has used the directory: a keeper's pid is in its lock
/// file, or its database has procyard's tables.
fn is_of_earlier_version(directory: &Path) -> bool {
    state_dir::lock_text(&directory.join(CLAIM)).is_some_and(|text| !text.is_empty())
        || has_own_tables(&directory.join(DATABASE)).unwrap_or(false)
}

/// Whether a database has procyard's tables. Opened as one that does not change, so that SQLite
/// makes no file beside one that may be foreign.
fn has_own_tables(path: &Path) -> Option<bool> {
    version::standing(path)?;
    let uri = format!("file:{}?immutable=1", escaped(path.to_str()?));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri, flags).ok()?;
    let own = "SELECT count(*) FROM sqlite_schema \
               WHERE type = 'table' AND name IN ('process', 'spec', 'event', 'meta')";
    let found: i64 = connection.query_row(own, [], |row| row.get(0)).ok()?;
    Some(found == 4)
}

/// A path as a part of a URI.
fn escaped(path: &str) -> String {
    path.replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}

/// Names in a directory that neither procyard nor its options account for.
fn foreign_names(directory: &Path, expected: &[PathBuf]) -> Result<Vec<String>, StoreError> {
    let failed = cannot("read", directory);
    let expected: Vec<PathBuf> = expected.iter().filter_map(|path| resolve(path)).collect();
    let mut foreign = Vec::new();
    for entry in fs::read_dir(directory).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        let is_expected = expected.iter().any(|path| path.starts_with(entry.path()));
        if !is_expected && !is_harmless(&entry) {
            foreign.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    foreign.sort_unstable();
    Ok(foreign)
}

/// Where an existing file is, with the links of its directory followed.
fn resolve(path: &Path) -> Option<PathBuf> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = fs::canonicalize(parent.unwrap_or(Path::new("."))).ok()?;
    Some(parent.join(path.file_name()?))
}

/// Whether a name in a state directory is that of a file or subdirectory of the store.
pub(super) fn is_own_name(name: &str) -> bool {
    [LOCK, CLAIM].contains(&name)
        || [DATABASE, MARKER].iter().any(|prefix| name.starts_with(prefix))
        || DataKind::ALL.iter().any(|kind| kind.directory() == name)
}

/// Whether an entry is procyard's by its name, or nothing that could be lost.
fn is_harmless(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let Some(name) = name.to_str() else { return false };
    let Ok(found) = entry.file_type() else { return false };
    let is_empty = || fs::read_dir(entry.path()).is_ok_and(|mut found| found.next().is_none());
    match name {
        "lost+found" => true,
        LOCK | CLAIM => found.is_file() && state_dir::lock_text(&entry.path()).is_some(),
        _ if DataKind::ALL.iter().any(|kind| kind.directory() == name) => {
            found.is_dir() && is_empty()
        }
        _ => {
            let is_own_name = ["procyard.", MARKER].iter().any(|prefix| name.starts_with(prefix));
            found.is_socket() || is_own_name && name != DATABASE && found.is_file()
        }
    }
}

fn listed(names: &[String]) -> String {
    let mut listed = names.iter().take(MAX_LISTED_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > MAX_LISTED_NAMES {
        listed.push_str(", …");
    }
    listed
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn refusal(directory: &Path) -> String {
        claim(directory, &[]).unwrap_err().to_string()
    }

    #[test]
    fn empty_directory_is_claimed_and_stays_claimed() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("lost+found")).unwrap();
        fs::create_dir(place.path().join("outputs")).unwrap();
        claim(place.path(), &[]).unwrap();
        assert_eq!(read(place.path()).unwrap(), Some(Marker::FRESH));
        fs::write(place.path().join("notes.txt"), "mine").unwrap();
        claim(place.path(), &[]).unwrap();
    }

    #[test]
    fn directory_with_foreign_files_is_refused_and_unchanged() {
        for name in
            ["b", "notes.txt", "outputs/report", "transcripts/1.1", "lock", ".profile", DATABASE]
        {
            let place = tempfile::tempdir().unwrap();
            let file = place.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "mine").unwrap();
            let said = refusal(place.path());
            let path = place.path().display();
            assert!(said.starts_with(&format!("cannot use {path} as state directory: ")), "{said}");
            assert!(said.contains(name.split('/').next().unwrap()), "{said}");
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "{name}");
        }
    }

    #[test]
    fn refusal_lists_the_first_names() {
        let place = tempfile::tempdir().unwrap();
        for name in ["d", "a", "c", "b"] {
            fs::write(place.path().join(name), "").unwrap();
        }
        assert!(refusal(place.path()).contains("(a, b, c, …)"), "{}", refusal(place.path()));
    }

    #[test]
    fn linked_subdirectory_is_foreign() {
        let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(other.path(), place.path().join("outputs")).unwrap();
        assert!(refusal(place.path()).contains("(outputs)"));
    }

    #[test]
    fn files_that_options_name_are_expected() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("tls")).unwrap();
        let named = ["log", "tls/key"].map(|name| place.path().join(name));
        named.iter().for_each(|path| fs::write(path, "").unwrap());
        let _socket = std::os::unix::net::UnixListener::bind(place.path().join("s")).unwrap();
        claim(place.path(), &named).unwrap();
    }

    #[test]
    fn directory_of_an_earlier_version_is_recognised() {
        let own_tables = "CREATE TABLE process (a); CREATE TABLE spec (a); \
                          CREATE TABLE event (a); CREATE TABLE meta (a)";
        for name in [DATABASE, CLAIM] {
            let place = tempfile::tempdir().unwrap();
            match name {
                DATABASE => make_database(place.path(), own_tables),
                _ => fs::write(place.path().join(CLAIM), b"4711      \n").unwrap(),
            }
            fs::create_dir(place.path().join("transcripts")).unwrap();
            fs::write(place.path().join("transcripts/1.1"), "").unwrap();
            claim(place.path(), &[]).unwrap();
            assert_eq!(read(place.path()).unwrap(), Some(Marker::EARLIER), "{name}");
        }
    }

    fn make_database(directory: &Path, tables: &str) {
        Connection::open(directory.join(DATABASE)).unwrap().execute_batch(tables).unwrap();
    }

    #[test]
    fn database_of_another_program_is_foreign() {
        let place = tempfile::tempdir().unwrap();
        make_database(place.path(), "PRAGMA user_version = 1; CREATE TABLE recipes (a)");
        assert!(refusal(place.path()).contains("(procyard.db)"));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn made_database_is_recorded() {
        let place = tempfile::tempdir().unwrap();
        claim(place.path(), &[]).unwrap();
        for generation in [None, Some(Uuid::now_v7())] {
            record_database(place.path(), generation);
            let expected = Marker { has_database: true, generation, ..Marker::FRESH };
            assert_eq!(read(place.path()).unwrap(), Some(expected));
        }
    }

    #[test]
    fn newer_format_is_refused() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(MARKER), format!("{TITLE}3\n")).unwrap();
        assert!(refusal(place.path()).contains("version 3"));
    }
}
