//! The files in which transcripts outlive their rings, and the keeper.
//!
//! Owns when they are touched: one file for each run of a process. What a file holds is
//! `transcript::archive`'s; when one is written is the state's and the saver's to say. Every
//! function that touches the disk blocks, and is called where that holds nobody up.

mod writing;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::Keep;
use crate::failpoint::{self, Point};
use crate::keeper_client::Adopted;
use crate::process::{Archived, Record};
use crate::store::{DataDir, DataKind, FileKey, Inner, not_regular};
use crate::transcript::archive::{Archive, From, Place, Source};
use crate::transcript::{Figures, Ring};

pub(super) use writing::{Added, Written};

/// The directory of all files.
pub(super) struct Archives {
    files: DataDir,
    /// Whoever writes has its turn: a file is never written by two, nor the disk by many.
    writing: Arc<Mutex<()>>,
}

impl Archives {
    /// Makes the directory. Without it transcripts stay in memory.
    pub(super) fn new(state_dir: &Path) -> Archives {
        let files = DataDir::new(state_dir, DataKind::Transcripts);
        if let Err(error) = files.create() {
            tracing::warn!(%error, "no place for transcripts");
        }
        Archives { files, writing: Arc::default() }
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
        let key = key(record);
        let earlier = self.open(key).ok();
        let written = self.files.make_temporary(key);
        let written = written.and_then(|file| writing::write(file, earlier, record, ring, ended));
        failpoint::reach(Point::TranscriptWritten);
        let named = written.and_then(|written| self.files.publish(key).map(|()| written));
        failpoint::reach(Point::TranscriptNamed);
        // A disk that is full has no room for half a file either.
        named.inspect_err(|_| self.files.remove_temporary(key))
    }

    /// Adds to a file what a ring has gained since, as far as nothing is missing in between.
    pub(super) fn append(
        &self,
        record: &Record,
        ring: &Arc<Ring>,
        written: &mut Written,
    ) -> io::Result<Added> {
        let mut file = self.files.append(key(record))?;
        written.go_on(&mut file, record, ring)
    }

    /// What a file has around a chunk. Of the same file a place before it may be known already.
    /// What cannot be read is as empty as what is not there: the record tells how much is missing.
    /// From that chunk on so many bytes are read, or a little more.
    pub(super) fn load(
        &self,
        record: &Record,
        from_seq: u64,
        known: Option<Place>,
        ahead: usize,
    ) -> Archive {
        let id = &record.id;
        let file = self.open(key(record));
        let file = file.inspect_err(|error| tracing::warn!(%error, process = %id, "no transcript"));
        let read = |file| Archive::read_ahead(&file, From::Seq(from_seq), known, ahead);
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
        self.files.remove(FileKey { birth, number: run }, Inner::Nothing);
        failpoint::reach(Point::TranscriptRemoved);
    }

    /// Takes over what is there when a server begins: how much was saved of those that the keeper
    /// does not hold, by their births. What belongs to no run is removed.
    pub(super) async fn take_over(
        self: &Arc<Archives>,
        records: &[Record],
        held: &[Adopted],
    ) -> HashMap<u64, Archived> {
        let keys: HashSet<FileKey> = records.iter().map(key).collect();
        let held: HashSet<&str> = held.iter().map(|held| &*held.id).collect();
        let unsaid = |record: &&Record| !record.is_filed() && !held.contains(&*record.id);
        let unsaid = records.iter().filter(unsaid).map(|record| {
            let known = record.archive.map(|archived| archived.file_bytes);
            (key(record), known)
        });
        let (archives, unsaid) = (Arc::clone(self), unsaid.collect::<Vec<_>>());
        let saved = spawn_blocking(move || {
            archives.files.sweep(|key| keys.contains(&key), |_| Inner::Nothing);
            let saved = |(key, known): (FileKey, _)| Some((key.birth, archives.saved(key, known)?));
            unsaid.into_iter().filter_map(saved).collect()
        });
        saved.await.unwrap_or_default()
    }

    /// Removes the oldest transcripts of lost records, of which as many are kept as of finished
    /// ones.
    pub(super) async fn trim_lost(self: &Arc<Archives>, keep: Keep) {
        let trim = move |archives: &Archives| {
            archives.files.trim_lost(keep.count, keep.bytes);
            Ok(())
        };
        let _ = self.in_turn(trim).await;
    }

    /// What a file amounts to, unless it is as long as is known already.
    fn saved(&self, key: FileKey, known: Option<u64>) -> Option<Archived> {
        let file = self.open(key).ok()?;
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

    fn open(&self, key: FileKey) -> io::Result<File> {
        self.files.read(key)?.ok_or_else(not_regular)
    }
}

fn key(record: &Record) -> FileKey {
    FileKey { birth: record.birth, number: record.run }
}

impl Source for File {
    fn read_at(&self, place: u64, bytes: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, bytes, place)
    }
}
