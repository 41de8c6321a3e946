//! Files in blocks: read from every place, cut and altered anywhere, against what was written.

use std::io;

use super::*;
use crate::transcript::Gap;
use crate::transcript::reader::{Batch, COST};

const BEGINNING: Beginning = Beginning { first_ever: 1, first_seq: 5, dropped_bytes: 40 };

impl Source for Vec<u8> {
    fn read_at(&self, place: u64, mut bytes: &mut [u8]) -> io::Result<usize> {
        // In pieces, as a file may be read.
        let rest = self.get(place as usize..).unwrap_or_default();
        io::Write::write(&mut bytes, &rest[..rest.len().min(100_000)])
    }
}

fn chunk(seq: u64, data: &[u8]) -> Chunk {
    let stream = if seq.is_multiple_of(2) { Stream::Stdout } else { Stream::Stderr };
    Chunk { seq, stream, offset: seq * 10, time: seq * 100, data: Bytes::copy_from_slice(data) }
}

fn sized(sizes: impl IntoIterator<Item = usize>) -> Vec<Chunk> {
    (5..).zip(sizes).map(|(seq, size)| chunk(seq, &vec![seq as u8; size])).collect()
}

/// Some chunks, of which some fill a block.
fn chunks() -> Vec<Chunk> {
    sized([3, 0, 65_536, 1, 64_000, 2_000, 9])
}

/// More than a window has, in blocks of very different sizes.
fn many() -> Vec<Chunk> {
    sized((0..100).map(|number| [0, 7, 65_536, 300, 30_000, 1][number % 6]))
}

fn begun() -> Encoder {
    Encoder::begin(BEGINNING, [1, 2, 3])
}

fn file(chunks: &[Chunk]) -> Vec<u8> {
    let mut encoder = begun();
    chunks.iter().for_each(|chunk| encoder.push(chunk));
    encoder.end()
}

fn window(file: &Vec<u8>, seq: u64) -> Archive {
    Archive::read(file, From::Seq(seq), None).unwrap()
}

/// All that is whole, window by window.
fn whole(file: &Vec<u8>) -> Option<Vec<Chunk>> {
    let mut archive = Archive::read(file, From::Seq(0), None)?;
    let mut chunks: Vec<Chunk> = archive.chunks().to_vec();
    while archive.has_more() {
        let next = archive.end().seq;
        archive = Archive::read(file, From::Seq(next), Some(archive.place()))?;
        chunks.extend(archive.chunks().iter().filter(|chunk| chunk.seq >= next).cloned());
    }
    Some(chunks)
}

#[test]
fn what_was_written_is_read_and_its_end_tells_how_much_it_is() {
    for chunks in [chunks(), many(), Vec::new()] {
        let file = file(&chunks);
        assert_eq!(whole(&file).unwrap(), chunks);
        let last = Archive::read_last(&file).unwrap();
        let Mark { seq, total_bytes, offsets, .. } = last.end();
        let bytes: usize = chunks.iter().map(|chunk| chunk.data.len()).sum();
        assert_eq!((seq, total_bytes), (5 + chunks.len() as u64, 40 + bytes as u64));
        assert_eq!(last.chunks().last(), chunks.last());
        let of = |stream| chunks.iter().rfind(|chunk| chunk.stream == stream);
        let end = |chunk: &Chunk| chunk.offset + chunk.data.len() as u64;
        let streams = [Stream::Stdout, Stream::Stderr, Stream::Terminal];
        let ends = streams.map(|stream| of(stream).map_or(stream as u64, end));
        // What no block tells is where the streams of an empty file go on.
        assert_eq!(offsets, ends);
    }
}

#[test]
fn a_file_that_is_written_in_parts_is_the_same() {
    for chunks in [chunks(), many()] {
        let mut encoder = begun();
        let (mut written, mut mark) = encoder.take();
        for chunk in &chunks {
            encoder = Encoder::go_on(mark);
            encoder.push(chunk);
            let part;
            (part, mark) = encoder.take();
            written.extend(part);
        }
        assert_eq!(whole(&written).unwrap(), chunks);
        let end = Archive::read_last(&written).unwrap().end();
        assert_eq!(end, mark);
        written.extend(Encoder::go_on(mark).end());
        assert_eq!(whole(&written).unwrap(), chunks);
    }
}

#[test]
fn a_file_that_is_cut_anywhere_gives_what_is_whole() {
    let (chunks, file) = (chunks(), file(&chunks()));
    let cuts = (0..200).chain((200..file.len()).step_by(9_997)).chain(file.len() - 60..file.len());
    for cut in cuts {
        let cut_off = file[..cut].to_vec();
        let Some(left) = whole(&cut_off) else {
            assert!(cut < HEAD);
            continue;
        };
        assert!(chunks.starts_with(&left), "{cut}");
        assert!(left.len() == chunks.len() || cut < file.len() - HEADER, "{cut}");
        let last = Archive::read_last(&cut_off).unwrap();
        assert_eq!(last.end().seq, 5 + left.len() as u64, "{cut}");
        assert!(last.covers(u64::MAX) && !last.has_more());
    }
}

#[test]
fn a_byte_that_was_altered_ends_what_is_whole() {
    for (chunks, near, step) in [(chunks(), 120, 30_011), (many(), 0, 500_021)] {
        let file = file(&chunks);
        // The end has no chunks.
        let end = file.len() - HEADER;
        for at in (0..near).step_by(3).chain((near..end).step_by(step)) {
            let mut altered = file.clone();
            altered[at] ^= 0x10;
            let Some(left) = whole(&altered) else {
                assert!(at < HEAD);
                continue;
            };
            assert!(chunks.starts_with(&left) && left.len() < chunks.len(), "{at}");
            assert!(Archive::read_last(&altered).is_some());
            for seq in [5, 60, 104].into_iter().filter(|_| near == 0) {
                let here = window(&altered, seq);
                let all = |chunk: &Chunk| chunks.contains(chunk);
                assert!(here.covers(seq) && here.chunks().iter().all(all), "{at}");
            }
        }
    }
}

#[test]
fn a_block_that_is_missing_is_noticed() {
    let file = file(&chunks());
    let first = u32::from_le_bytes(*file[HEAD..].first_chunk().unwrap()) as usize;
    let without = [&file[..HEAD], &file[HEAD + HEADER + first..]].concat();
    assert_eq!(whole(&without).unwrap(), []);
}

#[test]
fn a_place_in_another_file_is_not_trusted() {
    let chunks = many();
    let (one, other) = (file(&chunks), file(&chunks[1..]));
    let place = window(&one, 80).place();
    let archive = Archive::read(&other, From::Seq(95), Some(place)).unwrap();
    assert_eq!(archive, window(&other, 95));
    assert_eq!(archive.read_at(95, None, 1).chunks, chunks[90..91]);
}

#[test]
fn what_is_left_out_is_counted() {
    let mut encoder = begun();
    encoder.push(&chunk(5, b"abc"));
    encoder.skip(100, [7, 8, 9]);
    encoder.push(&chunk(8, b"d"));
    let file = encoder.end();
    let archive = window(&file, 5);
    assert_eq!((archive.total_before(6), archive.total_before(8)), (Some(100), Some(100)));
    let Mark { seq, total_bytes, offsets, .. } = archive.end();
    assert_eq!((seq, total_bytes, offsets), (9, 101, [81, 8, 9]));
}

#[test]
fn a_window_is_found_by_what_was_printed_before_it() {
    let chunks = many();
    let file = file(&chunks);
    let mut before = 40;
    for chunk in chunks {
        if chunk.seq % 11 == 0 {
            let archive = Archive::read(&file, From::Total(before), None).unwrap();
            let mark = archive.after(before);
            assert!(mark.total_bytes == before && mark.seq <= chunk.seq, "{}", chunk.seq);
        }
        before += chunk.data.len() as u64;
    }
}

#[test]
fn reading_goes_as_in_a_ring() {
    let archive = window(&file(&chunks()), 1);
    let seqs = |batch: &Batch| batch.chunks.iter().map(|chunk| chunk.seq).collect::<Vec<_>>();
    let all = archive.read_at(1, None, 1 << 20);
    assert_eq!(all.gap, Some(Gap { from_seq: 1, to_seq: 4, dropped_bytes: Some(40) }));
    assert_eq!(seqs(&all), [5, 6, 7, 8, 9, 10, 11]);
    let gap = |seq, total| archive.read_at(seq, total, 1).gap.and_then(|gap| gap.dropped_bytes);
    assert_eq!((gap(3, None), gap(3, Some(30))), (None, Some(10)));
    // At least one chunk, and no more than fit with what each costs.
    assert_eq!(seqs(&archive.read_at(7, None, 1)), [7]);
    assert_eq!(seqs(&archive.read_at(5, None, 2 * COST as usize + 3)), [5, 6]);
    assert_eq!(archive.read_at(12, None, 100), Batch::default());
    assert_eq!(archive.read_at(99, None, 100), Batch::default());
    assert_eq!((archive.total_before(6), archive.total_before(12)), (Some(43), Some(131_589)));
}

#[test]
fn numbers_that_are_missing_in_the_middle_are_told() {
    let archive = window(&file(&[chunk(5, b"a"), chunk(9, b"b")]), 6);
    assert_eq!(archive.read_at(5, None, 100), Batch { gap: None, chunks: vec![chunk(5, b"a")] });
    let gap = Gap { from_seq: 6, to_seq: 8, dropped_bytes: None };
    let after = Batch { gap: Some(gap), chunks: vec![chunk(9, b"b")] };
    assert_eq!(archive.read_at(6, None, 100), after);
    assert_eq!((archive.end().seq, archive.total_before(9)), (10, Some(41)));
}

#[test]
fn the_end_is_sought_once_where_every_block_says_that_it_is_the_first() {
    let mut file = file(&[]);
    file.truncate(HEAD);
    for _ in 0..10 {
        file.extend(60_000_u32.to_le_bytes());
        file.resize(file.len() + HEADER - 4 + 60_000, 0);
    }
    file[MAGIC.len()..HEAD].fill(0);
    set_checksums(&mut file);
    assert_eq!(Archive::read_last(&file).unwrap().chunks(), []);
}

#[test]
fn numbers_that_fall_end_what_is_whole() {
    let blocks = |numbers: [u64; 2]| {
        let mut encoder = begun();
        let mut file = Vec::new();
        for seq in numbers {
            encoder.push(&Chunk { seq, ..chunk(5, b"x") });
            file.extend(encoder.take().0);
        }
        file.extend(encoder.end());
        whole(&file).unwrap().len()
    };
    assert_eq!((blocks([5, 7]), blocks([7, 5]), blocks([5, u64::MAX])), (2, 1, 1));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]

    #[test]
    fn no_bytes_are_too_strange(bytes: Vec<u8>) {
        let mut file = file(&chunks()[..2]);
        let at = bytes.len().min(file.len());
        file.truncate(file.len() - at);
        file.extend(&bytes);
        whole(&file);
        Archive::read_last(&file);
        whole(&bytes);
    }

    #[test]
    fn a_window_from_every_place_reads_as_all_would(
        sizes in proptest::collection::vec((0..3usize, 0..65_536usize), 1..120),
        holes: u64,
        parts in 1..20usize,
        seq in 0..250u64,
        max_bytes in 1..2_000_000usize,
    ) {
        let sizes = sizes.into_iter().map(|(kind, size)| [size % 5, size % 3_000, size][kind]);
        let mut chunks = sized(sizes);
        let holes = |number: u64| (0..number).filter(|at| holes >> (at % 64) & 3 == 3).count();
        chunks.iter_mut().for_each(|chunk| chunk.seq += holes(chunk.seq) as u64);
        let mut encoder = Encoder::begin(Beginning { first_seq: chunks[0].seq, ..BEGINNING }, [0; 3]);
        let mut file = Vec::new();
        for part in chunks.chunks(parts) {
            part.iter().for_each(|chunk| encoder.push(chunk));
            file.extend(encoder.take().0);
        }
        file.extend(encoder.end());
        // As much as can be had without a limit, and without holes.
        let begin = chunks.partition_point(|chunk| chunk.seq < seq);
        let run = chunks[begin..].chunk_by(|one, next| one.seq + 1 == next.seq).next();
        let run = run.unwrap_or_default();
        let archive = window(&file, seq);
        let Batch { gap, chunks: read } = archive.read_at(seq, None, max_bytes);
        proptest::prop_assert!(run.starts_with(&read));
        proptest::prop_assert!(run.is_empty() || !read.is_empty());
        let first = run.first().map_or(archive.end().seq, |chunk| chunk.seq);
        proptest::prop_assert_eq!(gap.is_some(), seq < first);
        // Short of what was asked for only where the window ends.
        let cost = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.data.len() + COST as usize).sum::<usize>();
        let full = run.get(..read.len() + 1).is_none_or(|more| cost(more) > max_bytes);
        let ends = archive.has_more() && read.last().is_some_and(|last| last.seq + 1 == archive.end().seq);
        proptest::prop_assert!(full || ends);
        proptest::prop_assert!(!ends || cost(&read) > 900_000);
        let before: usize = chunks[..begin].iter().map(|chunk| chunk.data.len()).sum();
        if let Some(total) = archive.total_before(first) {
            let total = total as usize;
            proptest::prop_assert!(total == 40 + before || first == BEGINNING.first_ever);
        }
    }
}

#[test]
fn checksums_are_crc_32c() {
    assert_eq!(crc32c_append(0, b"123456789"), 0xe306_9283);
}

#[test]
fn chunk_keeps_nothing_else_of_its_window() {
    let archive = window(&file(&chunks()), 5);
    assert!(archive.chunks().iter().all(|chunk| chunk.data.is_empty() || chunk.data.is_unique()));
}
