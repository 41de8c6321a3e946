//! Writing a file: of an earlier one as much as there is room for, then what a ring has.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use crate::process::{Archived, Record};
use crate::transcript::archive::{Archive, Beginning, Encoder, From, Mark};
use crate::transcript::{Batch, Chunk, Figures, Reader, Ring};

/// Bytes that are taken from a ring in one go.
const PIECE: usize = 256 << 10;

/// How far a file was written.
pub(in crate::supervisor) struct Written {
    /// What is in it.
    pub(in crate::supervisor) archived: Archived,
    /// Where the next block goes on.
    mark: Mark,
}

/// What came of adding to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::supervisor) enum Added {
    /// All there is was added.
    All,
    /// The ring has overwritten what should come next: only a new file can have what is there.
    Lapped,
    /// The file has become too long, or is not as it was left: it must be written anew.
    Unfit,
}

impl Written {
    /// Adds what a ring has gained since.
    pub(super) fn go_on(
        &mut self,
        file: &mut File,
        record: &Record,
        ring: &Arc<Ring>,
    ) -> io::Result<Added> {
        if file.metadata()?.len() != self.archived.file_bytes {
            return Ok(Added::Unfit);
        }
        let most = 2 * record.spec.transcript_bytes;
        let encoder = Encoder::go_on(self.mark);
        let mut scribe = Scribe { archived: self.archived, encoder, file };
        let mut reader = Reader::new(Arc::clone(ring), self.mark.seq);
        let added = loop {
            let Batch { gap, chunks } = reader.read(PIECE);
            if gap.is_some() {
                break Added::Lapped;
            }
            if chunks.is_empty() {
                break Added::All;
            }
            if scribe.archived.file_bytes > most {
                break Added::Unfit;
            }
            scribe.take(chunks, &base(record))?;
        };
        *self = scribe.pause()?;
        Ok(added)
    }
}

/// Writes a file. As with commits, nothing waits for the disk: a loss of power may tear the newest
/// files, which readers are told.
pub(super) fn write(
    mut file: File,
    earlier: Option<File>,
    record: &Record,
    ring: &Arc<Ring>,
    ended: bool,
) -> io::Result<Written> {
    let mut rest = Rest::of(ring);
    // What was printed before a ring that has dropped something is older still.
    let earlier_counts = record.archive.filter(|_| rest.before == 0);
    let kept = earlier_counts.and_then(|archived| {
        let room = record.spec.transcript_bytes.saturating_sub(rest.takes);
        Kept::of(earlier?, archived, room)
    });
    let mut scribe = begin(kept.as_ref(), &rest, record, ring, &mut file);
    if let Some(kept) = kept {
        kept.copy(&mut scribe)?;
        let total = record.archive.map_or(0, |archived| archived.figures.total_bytes);
        scribe.encoder.skip(total + rest.before, base(record));
    }
    while !rest.batch.chunks.is_empty() {
        scribe.take(std::mem::take(&mut rest.batch.chunks), &base(record))?;
        rest.batch = rest.reader.read(PIECE);
        // What was overwritten under the reader's hands is the end of what can be had now.
        rest.batch.chunks.retain(|_| rest.batch.gap.is_none());
    }
    if ended { scribe.end() } else { scribe.pause() }
}

/// Begins a file with what was kept of an earlier one, or else with what a ring has.
fn begin<'a>(
    kept: Option<&Kept>,
    rest: &Rest,
    record: &Record,
    ring: &Ring,
    file: &'a mut File,
) -> Scribe<'a> {
    let first_ever = kept.map_or(ring.first_seq(), |kept| kept.window.beginning().first_ever);
    if let Some(Mark { seq, total_bytes, offsets, .. }) = kept.and_then(Kept::first) {
        let beginning = Beginning { first_ever, first_seq: seq, dropped_bytes: total_bytes };
        return Scribe::begin(beginning, offsets, file);
    }
    let first = rest.batch.chunks.first().map(|chunk| chunk.seq);
    let total = record.archive.map_or(0, |archived| archived.figures.total_bytes);
    let beginning = Beginning {
        first_ever,
        first_seq: first.unwrap_or(ring.figures().next_seq),
        dropped_bytes: total + rest.before,
    };
    Scribe::begin(beginning, base(record), file)
}

/// What a ring has.
struct Rest {
    reader: Reader,
    /// The first of it.
    batch: Batch,
    /// Bytes of output before that, and from there on.
    before: u64,
    takes: u64,
}

impl Rest {
    fn of(ring: &Arc<Ring>) -> Rest {
        let figures = ring.figures();
        let mut reader = Reader::new(Arc::clone(ring), figures.first_seq);
        let batch = reader.read(PIECE);
        let bytes: u64 = batch.chunks.iter().map(|chunk| chunk.data.len() as u64).sum();
        let before = reader.total().unwrap_or_default().saturating_sub(bytes);
        let takes = figures.total_bytes.saturating_sub(before);
        Rest { reader, batch, before, takes }
    }
}

/// What of an earlier file goes into the next one: the newest, before what a ring has.
struct Kept {
    file: File,
    /// Where it begins.
    window: Archive,
    mark: Mark,
    /// From here on chunks are the ring's, saved before.
    until: u64,
}

impl Kept {
    fn of(file: File, archived: Archived, room: u64) -> Option<Kept> {
        let dropped = archived.figures.total_bytes.saturating_sub(room);
        let window = Archive::read(&file, From::Total(dropped), None)?;
        let mark = window.after(dropped);
        Some(Kept { file, window, mark, until: archived.figures.next_seq })
    }

    /// What lies before the first chunk, if there is one.
    fn first(&self) -> Option<Mark> {
        let Kept { window, mark, until, .. } = self;
        let there = mark.seq < *until && (mark.seq < window.end().seq || window.has_more());
        there.then_some(*mark)
    }

    /// Copies it, a window at a time.
    fn copy(self, scribe: &mut Scribe) -> io::Result<()> {
        let Kept { file, mut window, mark, until } = self;
        let mut next = mark.seq;
        loop {
            let wanted = |chunk: &&Chunk| (next..until).contains(&chunk.seq);
            let chunks: Vec<_> = window.chunks().iter().filter(wanted).cloned().collect();
            scribe.take(chunks, &[0; 3])?;
            next = window.end().seq;
            if !window.has_more() || next >= until {
                return Ok(());
            }
            let known = Some(window.place());
            match Archive::read(&file, From::Seq(next), known) {
                Some(more) => window = more,
                None => return Ok(()),
            }
        }
    }
}

/// Where the streams of a ring begin, in a run that had another before.
fn base(record: &Record) -> [u64; 3] {
    record.archive.map(|archived| archived.offsets).unwrap_or_default()
}

/// Writes chunks, and counts them.
struct Scribe<'a> {
    archived: Archived,
    encoder: Encoder,
    file: &'a mut File,
}

impl Scribe<'_> {
    fn begin(beginning: Beginning, offsets: [u64; 3], file: &mut File) -> Scribe<'_> {
        let Beginning { first_seq, dropped_bytes, .. } = beginning;
        let figures = Figures { first_seq, dropped_bytes, ..Figures::default() };
        let archived = Archived { figures, offsets, file_bytes: 0 };
        Scribe { archived, encoder: Encoder::begin(beginning, offsets), file }
    }

    /// Takes chunks whose streams count from here on.
    fn take(&mut self, chunks: Vec<Chunk>, base: &[u64; 3]) -> io::Result<()> {
        for mut chunk in chunks {
            chunk.offset += base[chunk.stream as usize - 1];
            self.archived.figures.last_time = chunk.time;
            self.encoder.push(&chunk);
        }
        let whole = self.encoder.whole();
        self.put(&whole)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.archived.file_bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    fn settle(&mut self) -> io::Result<Mark> {
        let (bytes, mark) = self.encoder.take();
        self.put(&bytes)?;
        self.archived.figures.next_seq = mark.seq;
        self.archived.figures.total_bytes = mark.total_bytes;
        self.archived.offsets = mark.offsets;
        Ok(mark)
    }

    fn pause(mut self) -> io::Result<Written> {
        let mark = self.settle()?;
        Ok(Written { archived: self.archived, mark })
    }

    fn end(mut self) -> io::Result<Written> {
        let mark = self.settle()?;
        let end = Encoder::go_on(mark).end();
        self.put(&end)?;
        Ok(Written { archived: self.archived, mark })
    }
}
