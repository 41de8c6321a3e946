//! The files in which transcripts outlive their rings, and the keeper.
//!
//! Owns their directory: one file for each run of a process, `birth.run`. What a file holds is
//! `transcript::archive`'s; when one is written is the state's and the saver's to say. Every
//! function that touches the disk blocks, and is called where that holds nobody up.

mod writing;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;

use super::outputs::name;
use crate::failpoint::{self, Point};
use crate::keeper_client::Adopted;
use crate::process::{Archived, Record};
use crate::telemetry::request::carried;
use crate::transcript::archive::{Archive, From, Place, Source};
use crate::transcript::{Figures, Ring};

pub(super) use writing::{Added, Written};

/// Files that are read at a time: the disk is no faster for many.
const READERS: usize = 2;

/// The directory of all files.
pub(super) struct Archives {
    directory: PathBuf,
    readers: Arc<Semaphore>,
    /// Whoever writes has its turn: a file is never written by two, nor the disk by many.
    writing: Arc<Mutex<()>>,
}

impl Archives {
    /// Makes the directory. Without it transcripts stay in memory.
    pub(super) fn new(state_dir: &Path) -> Archives {
        let directory = state_dir.join("transcripts");
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        if let Err(error) = made {
            tracing::warn!(%error, path = %directory.display(), "no place for transcripts");
        }
        let readers = Arc::new(Semaphore::new(READERS));
        Archives { directory, readers, writing: Arc::default() }
    }

    fn path(&self, record: &Record) -> PathBuf {
        self.directory.join(name(record.birth, record.run))
    }

    /// Does something to files when its turn comes, on a thread that it may hold up. It is done
    /// even if whoever asked leaves.
    pub(super) async fn in_turn<T: Send + 'static>(
        self: &Arc<Archives>,
        work: impl FnOnce(&Archives) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let turn = Arc::clone(&self.writing).lock_owned().await;
        let archives = Arc::clone(self);
        let worked = spawn_blocking(move || {
            let _turn = turn;
            work(&archives)
        });
        worked.await.map_err(io::Error::other).flatten()
    }

    /// Writes all of a transcript, with what an earlier file has of it; `ended`: nothing will
    /// follow. The file takes its place when it is whole.
    pub(super) fn write(
        &self,
        record: &Record,
        ring: &Arc<Ring>,
        ended: bool,
    ) -> io::Result<Written> {
        let path = self.path(record);
        let unnamed = unnamed(&path);
        let written = writing::write(&unnamed, &path, record, ring, ended);
        failpoint::reach(Point::TranscriptWritten);
        let named = written.and_then(|written| fs::rename(&unnamed, &path).map(|()| written));
        failpoint::reach(Point::TranscriptNamed);
        // A disk that is full has no room for half a file either.
        named.inspect_err(|_| drop(fs::remove_file(&unnamed)))
    }

    /// Adds to a file what a ring has gained since, as far as nothing is missing in between.
    pub(super) fn append(
        &self,
        record: &Record,
        ring: &Arc<Ring>,
        written: &mut Written,
    ) -> io::Result<Added> {
        let path = self.path(record);
        let mut file = OpenOptions::new().append(true).custom_flags(no_link()).open(path)?;
        written.go_on(&mut file, record, ring)
    }

    /// What a file has around a chunk. Of the same file a place before it may be known already.
    pub(super) async fn load(
        self: &Arc<Archives>,
        record: &Arc<Record>,
        from_seq: u64,
        known: Option<Place>,
    ) -> Archive {
        let permit = Arc::clone(&self.readers).acquire_owned().await;
        let (archives, record) = (Arc::clone(self), Arc::clone(record));
        let loaded = spawn_blocking(carried(move || {
            let _permit = permit;
            archives.load_here(&record, from_seq, known)
        }));
        loaded.await.unwrap_or_else(|_| Archive::empty())
    }

    /// The same on a thread that may wait for the disk. What cannot be read is as empty as what is
    /// not there: the record tells how much is missing.
    pub(super) fn load_here(
        &self,
        record: &Record,
        from_seq: u64,
        known: Option<Place>,
    ) -> Archive {
        let id = &record.id;
        let file = open(&self.path(record));
        let file = file.inspect_err(|error| tracing::warn!(%error, process = %id, "no transcript"));
        let read = |file| Archive::read(&file, From::Seq(from_seq), known);
        let archive = file.ok().and_then(read).unwrap_or_else(Archive::empty);
        let should = record.archive.map_or(0, |archived| archived.figures.next_seq);
        let from = archive.end().seq;
        if !archive.has_more() && from < should {
            tracing::warn!(process = %id, from, "a transcript in a file is torn: the rest is missing");
        }
        archive
    }

    /// Removes the file of a run.
    pub(super) fn remove(&self, birth: u64, run: u32) {
        let path = self.directory.join(name(birth, run));
        let _ = fs::remove_file(unnamed(&path));
        let _ = fs::remove_file(path);
        failpoint::reach(Point::TranscriptRemoved);
    }

    /// Takes over what is there when a server begins: how much was saved of those that the keeper
    /// does not hold, by their births. What belongs to no run is removed.
    pub(super) async fn take_over(
        self: &Arc<Archives>,
        records: &[Record],
        held: &[Adopted],
    ) -> HashMap<u64, Archived> {
        let run = |record: &Record| name(record.birth, record.run);
        let names: HashSet<_> = records.iter().map(run).collect();
        let held: HashSet<&str> = held.iter().map(|held| &*held.id).collect();
        let unsaid = |record: &&Record| !record.is_filed() && !held.contains(&*record.id);
        let unsaid = records.iter().filter(unsaid).map(|record| {
            let known = record.archive.map(|archived| archived.file_bytes);
            (record.birth, self.path(record), known)
        });
        let (archives, unsaid) = (Arc::clone(self), unsaid.collect::<Vec<_>>());
        let saved = spawn_blocking(move || {
            archives.sweep(&names);
            let saved =
                |(birth, path, known): (u64, PathBuf, _)| Some((birth, saved(&path, known)?));
            unsaid.into_iter().filter_map(saved).collect()
        });
        saved.await.unwrap_or_default()
    }

    fn sweep(&self, names: &HashSet<String>) {
        for found in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if found.file_name().to_str().is_none_or(|name| !names.contains(name)) {
                let _ = fs::remove_file(found.path());
            }
        }
    }
}

impl Source for File {
    fn read_at(&self, place: u64, bytes: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, bytes, place)
    }
}

/// What a file amounts to, unless it is as long as is known already.
fn saved(path: &Path, known: Option<u64>) -> Option<Archived> {
    let file = open(path).ok()?;
    let file_bytes = file.metadata().ok()?.len();
    if known == Some(file_bytes) {
        return None;
    }
    let last = Archive::read_last(&file)?;
    let (beginning, end) = (last.beginning(), last.end());
    let figures = Figures {
        first_seq: beginning.first_seq,
        next_seq: end.seq,
        total_bytes: end.total_bytes,
        dropped_bytes: beginning.dropped_bytes,
        last_time: last.chunks().last().map_or(0, |chunk| chunk.time),
    };
    Some(Archived { figures, offsets: end.offsets, file_bytes })
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(no_link()).open(path)
}

/// What a file is called until it is whole.
fn unnamed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn no_link() -> i32 {
    OFlags::NOFOLLOW.bits().cast_signed()
}
