//! Views: what is shown and what is left out are together what was printed, in every kind of
//! answer; and where an answer has room, it is the same however the output was cut.

use std::sync::LazyLock;

use bytes::Bytes;

use super::input::Input;
use crate::transcript::{Answer, Chunk, Grep, Omitted, OutputRegex, Stream, View, Viewer};

/// What lines are looked for.
static PATTERNS: LazyLock<Vec<OutputRegex>> = LazyLock::new(|| {
    let patterns = ["a", "b+", "^$", "ab$", "^[^b]*$", ".", r"(?-u:\xff)"];
    patterns.iter().filter_map(|pattern| OutputRegex::new(pattern, false).ok()).collect()
});
/// Room for everything that is fed here.
const ROOM: usize = View::MAX_BYTES;
/// What a chunk takes of an answer besides its bytes.
const COST: usize = 64;

/// The view, how the output is cut in one way and in another, the output.
pub fn views(bytes: &[u8]) {
    let mut input = Input(bytes);
    let view = view(&mut input);
    let (seed, other, longest) = (input.byte(), input.byte(), 1 + input.below(64));
    let printed = chunks(&input.pieces(seed, longest), true);
    nothing_is_lost_on_one_page(&view, &printed);
    nothing_is_lost_on_the_way_through(&view, &printed);
    nothing_is_lost_by_one_who_follows(&view, &printed);
    let view = View { max_bytes: ROOM, ..view };
    let [one, another] = [seed, other].map(|seed| {
        let (chunks, omitted) = all(&view, &chunks(&input.pieces(seed, longest), false));
        (chunks.iter().flat_map(|chunk| chunk.data.to_vec()).collect::<Vec<_>>(), omitted)
    });
    assert_eq!(one, another, "in {view:?}");
}

fn view(input: &mut Input<'_>) -> View {
    let (strip_ansi, which) = (input.byte() & 1 == 1, input.below(2 * PATTERNS.len()));
    let (head, tail, context) = (input.below(6), input.below(6), input.below(4));
    let max_bytes = 1 + input.short() as usize;
    let grep = PATTERNS.get(which).map(|regex| Grep { regex: regex.clone(), context });
    View { max_bytes, strip_ansi, head, tail, grep }
}

/// Chunks as the keeper would number them, of one stream or of two.
fn chunks(pieces: &[&[u8]], mixed: bool) -> Vec<Chunk> {
    let mut offsets = [0; 4];
    let numbered = (1..).zip(pieces).map(|(seq, piece)| {
        let other = mixed && (seq + piece.len() as u64).is_multiple_of(3);
        let stream = if other { Stream::Stderr } else { Stream::Stdout };
        let offset = offsets[stream as usize];
        offsets[stream as usize] += piece.len() as u64;
        Chunk { seq, stream, offset, time: seq, data: Bytes::copy_from_slice(piece) }
    });
    numbered.collect()
}

/// The answer from a chunk on.
fn answer(view: &View, printed: &[Chunk], since: u64) -> Answer {
    let mut viewer = Viewer::new(view, since);
    for batch in printed.chunks(3) {
        viewer.feed(batch);
        if since <= batch[0].seq && viewer.is_full() && view.grep.is_some() {
            break;
        }
    }
    viewer.finish(false)
}

fn length(chunks: &[Chunk]) -> u64 {
    chunks.iter().map(|chunk| chunk.data.len() as u64).sum()
}

/// Pieces stand where they say they do: to the byte, unless something was taken out of a line of
/// which only the end fits.
fn are_from(shown: &[Chunk], printed: &[Chunk], view: &View) {
    for piece in shown {
        let of = &printed[piece.seq as usize - 1];
        let there = of.data.get((piece.offset - of.offset) as usize);
        let exact = there == piece.data.first() || view.strip_ansi && view.has_ends();
        assert!(of.stream == piece.stream && there.is_some() && exact, "{piece:?}");
    }
}

fn nothing_is_lost_on_one_page(view: &View, printed: &[Chunk]) {
    if !view.has_ends() {
        return;
    }
    let Answer { chunks, omitted, end } = answer(view, printed, 1);
    are_from(&chunks, printed, view);
    assert_eq!((length(&chunks) + omitted.bytes, end), (length(printed), None));
    let cost = length(&chunks) as usize + COST * chunks.len();
    // Of each end a byte comes even where there is no room for it.
    assert!(cost <= view.max_bytes.max(2 * (COST + 1)), "{cost} of {}", view.max_bytes);
}

fn nothing_is_lost_on_the_way_through(view: &View, printed: &[Chunk]) {
    if view.has_ends() {
        return;
    }
    let (shown, omitted) = all(view, printed);
    let (in_one, left_in_one) = all(&View { max_bytes: ROOM, ..view.clone() }, printed);
    assert_eq!(omitted, left_in_one);
    for stream in [Stream::Stdout, Stream::Stderr] {
        let of = |chunks: &[Chunk]| -> Vec<u8> {
            let chunks = chunks.iter().filter(|chunk| chunk.stream == stream);
            chunks.flat_map(|chunk| chunk.data.to_vec()).collect()
        };
        assert_eq!(of(&shown), of(&in_one), "in {view:?}");
    }
}

/// All answers, each from where the one before ended.
fn all(view: &View, printed: &[Chunk]) -> (Vec<Chunk>, Omitted) {
    let (mut since, mut shown, mut omitted) = (1, Vec::new(), Omitted::default());
    loop {
        let page = answer(view, printed, since);
        are_from(&page.chunks, printed, view);
        let end = page.end.unwrap_or(printed.len() as u64 + 1);
        let taken = &printed[since as usize - 1..end as usize - 1];
        assert_eq!(length(&page.chunks) + page.omitted.bytes, length(taken));
        omitted.bytes += page.omitted.bytes;
        omitted.lines += page.omitted.lines;
        shown.extend(page.chunks);
        if page.end.is_none() {
            return (shown, omitted);
        }
        assert!(end > since, "no way forward from {since}");
        since = end;
    }
}

fn nothing_is_lost_by_one_who_follows(view: &View, printed: &[Chunk]) {
    let view = View { head: 0, ..view.clone() };
    let mut viewer = Viewer::following(&view, 1);
    let mut shown = Vec::new();
    for (at, chunk) in (0..).zip(printed) {
        if at == printed.len() / 2 {
            shown.extend(viewer.go_on());
        }
        viewer.feed(std::slice::from_ref(chunk));
        shown.extend(viewer.take());
        let next = chunk.seq + 1;
        assert!((1..=next).contains(&viewer.resumes_at(next)));
    }
    shown.extend(viewer.go_on());
    viewer.close();
    shown.extend(viewer.take());
    are_from(&shown, printed, &view);
    assert_eq!(length(&shown) + viewer.omitted().bytes, length(printed));
}
