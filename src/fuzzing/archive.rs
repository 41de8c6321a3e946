//! Files of transcripts: what is before the first block that is not whole is read, and nothing
//! else; and there is an end of it.

use std::io;

use bytes::Bytes;

use super::input::Input;
use crate::transcript::archive::{Beginning, Encoder, From, Source, set_checksums};
use crate::transcript::{Archive, Chunk, Stream};

/// A file in memory.
struct Memory<'a>(&'a [u8]);

impl Source for Memory<'_> {
    fn read_at(&self, place: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(place).unwrap_or(usize::MAX).min(self.0.len());
        let count = bytes.len().min(self.0.len() - from);
        bytes[..count].copy_from_slice(&self.0[from..from + count]);
        Ok(count)
    }
}

/// Which of the three it is, where to read from, and the rest of it.
pub fn archive(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (which, seq, total) = (input.byte(), input.long(), input.long());
    match which % 3 {
        0 => is_read_to_an_end(input.0, seq, total),
        1 => {
            let mut file = input.0.to_vec();
            set_checksums(&mut file);
            is_read_to_an_end(&file, seq, total);
        }
        _ => what_is_altered_ends_the_file(input),
    }
}

/// Any bytes at all, from any place on.
fn is_read_to_an_end(file: &[u8], seq: u64, total: u64) {
    let source = Memory(file);
    if let Some(last) = Archive::read_last(&source) {
        assert!(!last.has_more());
    }
    for from in [From::Seq(seq), From::Total(total), From::Seq(u64::MAX)] {
        if let Some(archive) = Archive::read(&source, from, None) {
            looks_right(&archive, seq, total);
        }
    }
    let (mut from, mut known, mut windows) = (0, None, 0);
    while let Some(archive) = Archive::read(&source, From::Seq(from), known) {
        looks_right(&archive, from, total);
        if !archive.has_more() || archive.end().seq <= from {
            break;
        }
        (from, known) = (archive.end().seq, Some(archive.place()));
        windows += 1;
        assert!(windows <= file.len(), "more windows than bytes");
    }
}

/// A window has chunks whose numbers grow, and gives them as a ring's reader would.
fn looks_right(archive: &Archive, seq: u64, total: u64) {
    let numbers: Vec<u64> = archive.chunks().iter().map(|chunk| chunk.seq).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    archive.after(total);
    archive.total_before(seq);
    let mut next = seq;
    loop {
        let batch = archive.read_at(next, Some(total), 256);
        if let Some(gap) = batch.gap {
            assert!(gap.from_seq == next && gap.to_seq >= next, "{gap:?}");
        }
        let Some(last) = batch.chunks.last() else { return };
        assert!(last.seq >= next);
        if last.seq == u64::MAX {
            return;
        }
        next = last.seq + 1;
    }
}

/// A file that was written, in which one byte is another, or from which the end is missing.
fn what_is_altered_ends_the_file(mut input: Input<'_>) {
    let (at, by, first_seq) = (input.short() as usize, input.byte(), 1 + u64::from(input.byte()));
    let mut offsets = [0; 3];
    let chunks = (first_seq..).zip(input.pieces(by, 200)).map(|(seq, piece)| {
        let stream = [Stream::Stdout, Stream::Stderr, Stream::Terminal][piece.len() % 3];
        let offset = &mut offsets[stream as usize - 1];
        let data = Bytes::copy_from_slice(piece);
        *offset += piece.len() as u64;
        Chunk { seq, stream, offset: *offset - piece.len() as u64, time: seq, data }
    });
    let chunks: Vec<Chunk> = chunks.collect();
    let beginning = Beginning { first_ever: 1, first_seq, dropped_bytes: 0 };
    let mut encoder = Encoder::begin(beginning, [0; 3]);
    let mut file = Vec::new();
    for chunk in &chunks {
        encoder.push(chunk);
        if chunk.seq % 3 == 0 {
            file.extend(encoder.take().0);
        }
    }
    file.extend(encoder.end());
    let whole = Archive::read(&Memory(&file), From::Seq(0), None).expect("a whole file");
    assert!(whole.chunks() == chunks && !whole.has_more());
    let at = at % file.len();
    match by {
        0 => file.truncate(at),
        by => file[at] ^= by,
    }
    if let Some(archive) = Archive::read(&Memory(&file), From::Seq(0), None) {
        assert!(chunks.starts_with(archive.chunks()), "not what was written");
        assert!(archive.chunks().len() < chunks.len() || at + 64 > file.len());
    }
    is_read_to_an_end(&file, first_seq, 0);
}
