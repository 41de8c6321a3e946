//! Views against a model that has all the time and memory in the world, and their bounds.

mod model;

use std::ops::Range;

use bytes::Bytes;
use proptest::prelude::*;

use self::model::Model;
use super::*;
use crate::transcript::{Chunk, OutputRegex, Stream};

/// Chunks as the keeper would number them.
fn transcript(pieces: impl IntoIterator<Item = (Stream, Vec<u8>)>) -> Vec<Chunk> {
    let mut offsets = [0; 4];
    let numbered = pieces.into_iter().zip(1..).map(|((stream, data), seq)| {
        let offset = offsets[stream as usize];
        offsets[stream as usize] += data.len() as u64;
        Chunk { seq, stream, offset, time: 100 + seq, data: data.into() }
    });
    numbered.collect()
}

fn stdout(pieces: &[&str]) -> Vec<Chunk> {
    transcript(pieces.iter().map(|piece| (Stream::Stdout, piece.as_bytes().to_vec())))
}

fn grep(pattern: &str, context: usize) -> Option<Grep> {
    Some(Grep { regex: OutputRegex::new(pattern, false).unwrap(), context })
}

/// The answer from `since` on, whose view was told of all before.
fn answer(view: &View, chunks: &[Chunk], since: u64, live: bool) -> Answer {
    let mut viewer = Viewer::new(view, since);
    for batch in chunks.chunks(3) {
        viewer.feed(batch);
        if since <= batch[0].seq && viewer.is_full() && view.grep.is_some() {
            break;
        }
    }
    viewer.finish(live)
}

fn text(chunks: &[Chunk]) -> Vec<u8> {
    chunks.iter().flat_map(|chunk| chunk.data.to_vec()).collect()
}

fn shown(view: &View, chunks: &[Chunk]) -> String {
    String::from_utf8(text(&answer(view, chunks, 1, false).chunks)).unwrap()
}

#[test]
fn lines_of_two_streams_do_not_mix_and_come_as_they_began() {
    let pieces = [
        (Stream::Stdout, "one "),
        (Stream::Stderr, "oops\nand "),
        (Stream::Stdout, "line\ntwo "),
        (Stream::Stderr, "more\n"),
        (Stream::Stdout, "lines\n"),
    ];
    let chunks = transcript(pieces.map(|(stream, text)| (stream, text.into())));
    let all = "one line\noops\nand more\ntwo lines\n";
    for view in [
        View { tail: 10, ..View::default() },
        View { head: 2, tail: 2, ..View::default() },
        View { grep: grep(".", 0), ..View::default() },
    ] {
        assert_eq!(shown(&view, &chunks), all, "{view:?}");
    }
    let view = View { grep: grep("line", 0), ..View::default() };
    let answer = answer(&view, &chunks, 1, false);
    let pieces = answer.chunks.iter().map(|chunk| (chunk.seq, chunk.offset, chunk.time));
    assert_eq!(pieces.collect::<Vec<_>>(), [(1, 0, 101), (3, 4, 103), (5, 13, 105)]);
    assert_eq!(text(&answer.chunks), b"one line\ntwo lines\n");
    assert_eq!(answer.omitted, Omitted { bytes: 14, lines: 2 });
}

#[test]
fn both_ends_are_shown_and_nothing_twice() {
    let lines: Vec<String> = (1..=10).map(|n| format!("{n}\n")).collect();
    let chunks = stdout(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let ends = |head, tail| shown(&View { head, tail, ..View::default() }, &chunks);
    assert_eq!(ends(8, 8), lines.concat());
    assert_eq!(ends(2, 1), "1\n2\n10\n");
    assert_eq!((ends(3, 0), ends(0, 3)), ("1\n2\n3\n".into(), "8\n9\n10\n".into()));
    let view = View { head: 1, tail: 1, grep: grep("[2468]", 1), ..View::default() };
    assert_eq!(shown(&view, &chunks), "1\n2\n3\n7\n8\n9\n");
}

#[test]
fn where_both_ends_do_not_fit_each_has_its_half() {
    let lines: Vec<String> = (10..60).map(|n| format!("line {n}\n")).collect();
    let chunks = stdout(&[&lines.concat()]);
    let view = View { max_bytes: 2 * (64 + 3 * 8), head: 50, tail: 0, ..View::default() };
    let first = answer(&View { head: 20, tail: 20, ..view.clone() }, &chunks, 1, false);
    let text = String::from_utf8(text(&first.chunks)).unwrap();
    assert_eq!(text, [&lines[..3], &lines[47..]].concat().concat());
    assert_eq!(first.omitted, Omitted { bytes: 44 * 8, lines: 44 });
    let first = answer(&view, &chunks, 1, false);
    assert_eq!(first.omitted, Omitted { bytes: 36 * 8, lines: 36 }, "the first has all");
}

#[test]
fn a_line_that_is_under_way_is_left_for_the_next_answer_unless_it_matches() {
    let view = View { grep: grep("error", 0), ..View::default() };
    let mut chunks = stdout(&["fine\n", "an err", "or\n", "error: "]);
    let first = answer(&view, &chunks[..2], 1, true);
    assert_eq!((first.end, first.omitted), (Some(2), Omitted { bytes: 5, lines: 1 }));
    let second = answer(&view, &chunks, 2, true);
    assert_eq!((text(&second.chunks), second.end), (b"an error\nerror: ".to_vec(), None));
    // Had it not been left, its rest would still come.
    let rest = answer(&view, &chunks[..3], 3, true);
    assert_eq!(text(&rest.chunks), b"or\n");
    chunks.truncate(2);
    let over = answer(&view, &chunks, 1, false);
    assert_eq!((over.end, over.omitted), (None, Omitted { bytes: 11, lines: 2 }));
}

#[test]
fn a_line_is_matched_by_its_beginning_and_without_its_end() {
    let long = |at: usize| {
        let mut line = vec![b'.'; 200 << 10];
        line[at] = b'x';
        line.push(b'\n');
        transcript(line.chunks(1000).map(|piece| (Stream::Stdout, piece.to_vec())))
    };
    let view = View { grep: grep("x", 0), ..View::default() };
    assert_eq!(text(&answer(&view, &long((64 << 10) - 1), 1, false).chunks).len(), 204_801);
    let left = answer(&view, &long(64 << 10), 1, false);
    assert_eq!((left.chunks.len(), left.omitted.lines), (0, 1));
    let ends = stdout(&["a\r\nb\nab\nc"]);
    assert_eq!(shown(&View { grep: grep("^.$", 0), ..View::default() }, &ends), "a\r\nb\nc");
}

/// Every kind of view.
fn views() -> Vec<View> {
    let some = [grep("x", 0), grep("x", 2), grep("never", 3), None];
    let ends = [(0, 0), (3, 0), (0, 3), (3, 3)];
    let views = some.into_iter().flat_map(|grep| {
        ends.map(|(head, tail)| View { head, tail, grep: grep.clone(), ..View::default() })
    });
    views.flat_map(|view| [View { strip_ansi: true, ..view.clone() }, view]).collect()
}

#[test]
fn nothing_grows_with_a_line_that_does_not_end() {
    let piece = Bytes::from(vec![b'x'; 64 << 10]);
    for view in views() {
        for following in [false, true] {
            let mut viewer =
                if following { Viewer::following(&view, 1) } else { Viewer::new(&view, 1) };
            let mut bytes = 0;
            for seq in 1..=60 {
                let (stream, offset) = (Stream::Stdout, bytes);
                let chunk = Chunk { seq, stream, offset, time: 0, data: piece.clone() };
                viewer.feed(&[chunk]);
                bytes += piece.len() as u64;
                if following {
                    viewer.take();
                } else if viewer.is_full() {
                    break;
                }
                assert!(viewer.pending() < 3 << 20, "{} in {view:?}", viewer.pending());
            }
            let kept = text(&viewer.finish(false).chunks).len();
            assert!(kept <= 1 << 20 || view.grep.is_none(), "{kept} in {view:?}");
        }
    }
}

#[test]
fn memory_of_short_lines_is_counted() {
    let view = View { tail: 100_000, ..View::default() };
    let mut viewer = Viewer::new(&view, 1);
    viewer.feed(&stdout(&["\n".repeat(60_000).as_str()]));
    assert!(viewer.memory() > 60_000 * 100, "{}", viewer.memory());
}

#[test]
fn many_small_pieces_of_one_line_take_no_time() {
    for view in views() {
        let mut viewer = Viewer::new(&view, 1);
        for seq in 1..=20_000 {
            let (stream, data) = (Stream::Stdout, Bytes::from_static(b"x"));
            viewer.feed(&[Chunk { seq, stream, offset: seq - 1, time: 0, data }]);
        }
        viewer.finish(false);
    }
}

fn pieces() -> impl Strategy<Value = Vec<(Stream, Vec<u8>)>> {
    let word = prop::sample::select(vec![
        "a",
        "b",
        "ab",
        "\n",
        "\n",
        "\r\n",
        "\r",
        "\t",
        "ä",
        "©",
        "\x1b[1m",
        "\x1b]0;a\n",
        "\x1b]0;a\x07",
        "\x1b",
        "\u{9b}1m",
        "\x07",
    ]);
    let stream = prop::sample::select(vec![Stream::Stdout, Stream::Stdout, Stream::Stderr]);
    let words = prop::collection::vec(word, 1..8);
    let cut = prop::collection::vec((stream, words, any::<prop::sample::Index>()), 0..20);
    cut.prop_map(|writes| {
        // Characters and sequences are cut anywhere.
        let cut = writes.into_iter().flat_map(|(stream, words, at)| {
            let mut first = words.concat().into_bytes();
            let rest = first.split_off(at.index(first.len() + 1));
            [(stream, first), (stream, rest)]
        });
        cut.filter(|(_, data)| !data.is_empty()).collect()
    })
}

fn any_view() -> impl Strategy<Value = View> {
    let pattern = prop::sample::select(vec!["a", "b+", "^$", "ab$", "^[^b]*$", "never"]);
    let grep = prop::option::of((pattern, 0..3_usize));
    (any::<bool>(), 0..4_usize, 0..4_usize, grep).prop_map(|(strip_ansi, head, tail, some)| {
        let grep = some.and_then(|(pattern, context)| grep_for(pattern, context));
        View { strip_ansi, head, tail, grep, ..View::default() }
    })
}

fn grep_for(pattern: &str, context: usize) -> Option<Grep> {
    grep(pattern, context)
}

/// Where the bytes of a stream are that an answer shows, as far as that can be told.
fn of_stream(chunks: &[Chunk], stream: Stream) -> Vec<u8> {
    let chunks = chunks.iter().filter(|chunk| chunk.stream == stream);
    chunks.flat_map(|chunk| chunk.data.to_vec()).collect()
}

fn is_subsequence(part: &[u8], of: &[u8]) -> bool {
    let mut of = of.iter();
    part.iter().all(|byte| of.any(|other| other == byte))
}

fn total(chunks: &[Chunk]) -> u64 {
    chunks.iter().map(|chunk| chunk.data.len() as u64).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn an_answer_with_room_is_what_the_model_says(
        view in any_view(), pieces in pieces(), since in 1..10_u64,
    ) {
        let chunks = transcript(pieces);
        let since = since.min(chunks.len() as u64 + 1);
        let model = Model::new(&view, &chunks, since);
        let view = View { max_bytes: 1 << 20, ..view };
        // Without lines to select an answer is one batch; here all are to be one.
        let mut viewer = Viewer::new(&view, since);
        chunks.chunks(3).for_each(|batch| viewer.feed(batch));
        let answer = viewer.finish(false);
        let text = text(&answer.chunks);
        prop_assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(&model.text));
        prop_assert_eq!(answer.omitted, model.omitted);
        prop_assert_eq!(answer.end, None);
        for chunk in &answer.chunks {
            let of = &chunks[chunk.seq as usize - 1];
            prop_assert!(chunk.seq >= since && (of.stream, of.time) == (chunk.stream, chunk.time));
            let within: Range<u64> = of.offset..of.offset + of.data.len() as u64;
            prop_assert!(within.contains(&chunk.offset) && !chunk.data.is_empty());
            prop_assert_eq!(chunk.data[0], of.data[(chunk.offset - of.offset) as usize]);
        }
    }

    #[test]
    fn answers_that_follow_each_other_lose_and_double_nothing(
        view in any_view(), pieces in pieces(), max_bytes in 1..400_usize,
    ) {
        let grep = view.grep.or(grep("b", 1));
        let view = View { max_bytes, head: 0, tail: 0, grep, ..view };
        let chunks = transcript(pieces);
        let model = Model::new(&view, &chunks, 1);
        let (mut since, mut omitted, mut got) = (1, Omitted::default(), Vec::new());
        loop {
            let page = answer(&view, &chunks, since, false);
            let end = page.end.unwrap_or(chunks.len() as u64 + 1);
            let taken = &chunks[since as usize - 1..end as usize - 1];
            prop_assert_eq!(total(&page.chunks) + page.omitted.bytes, total(taken));
            omitted.bytes += page.omitted.bytes;
            omitted.lines += page.omitted.lines;
            got.extend(page.chunks);
            if page.end.is_none() {
                break;
            }
            prop_assert!(end > since, "no way forward");
            since = end;
        }
        prop_assert_eq!(omitted, model.omitted);
        for stream in [Stream::Stdout, Stream::Stderr] {
            let (got, all) = (of_stream(&got, stream), model.of_stream(stream));
            prop_assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&all));
        }
    }

    #[test]
    fn little_room_takes_from_the_middle_and_is_counted(
        view in any_view(), pieces in pieces(), max_bytes in 1..400_usize,
    ) {
        let head = if view.tail == 0 { view.head.max(1) } else { view.head };
        let view = View { max_bytes, head, ..view };
        let chunks = transcript(pieces);
        let model = Model::new(&view, &chunks, 1);
        let answer = answer(&view, &chunks, 1, false);
        prop_assert_eq!(total(&answer.chunks) + answer.omitted.bytes, total(&chunks));
        prop_assert!(is_subsequence(&text(&answer.chunks), &model.text));
        prop_assert_eq!(answer.chunks.is_empty(), model.text.is_empty());
        let cost = total(&answer.chunks) as usize + 64 * answer.chunks.len();
        // Of each end a byte comes even where there is no room for it.
        prop_assert!(cost <= max_bytes.max(2 * 65), "{} of {}", cost, max_bytes);
    }

    #[test]
    fn one_who_follows_gets_what_the_model_says(view in any_view(), pieces in pieces()) {
        let view = View { head: 0, ..view };
        let chunks = transcript(pieces);
        let there = chunks.len() / 2;
        let mut viewer = Viewer::following(&view, 1);
        let mut got = Vec::new();
        for (at, chunk) in chunks.iter().enumerate() {
            if at == there {
                got.extend(viewer.go_on());
            }
            viewer.feed(std::slice::from_ref(chunk));
            got.extend(viewer.take());
            let next = at as u64 + 2;
            prop_assert!((1..=next).contains(&viewer.resumes_at(next)));
        }
        got.extend(viewer.go_on());
        viewer.close();
        got.extend(viewer.take());
        prop_assert_eq!(total(&got) + viewer.omitted().bytes, total(&chunks));
        if view.tail == 0 {
            let model = Model::new(&view, &chunks, 1);
            prop_assert_eq!(viewer.omitted(), model.omitted);
            for stream in [Stream::Stdout, Stream::Stderr] {
                prop_assert_eq!(of_stream(&got, stream), model.of_stream(stream));
            }
        }
    }
}
