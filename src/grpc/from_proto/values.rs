//! Values that many requests have: ids, lines of text, spans of time, enums, signals.

use std::fmt::Display;
use std::time::Duration;

use super::problems::{Problems, Reported};
use crate::grpc::clip::quoted;
use crate::grpc::words::Word;
use crate::process::signal;

/// Most characters of a name, a reference and the like.
pub(super) const LINE: usize = 256;

/// Most bytes of a path: the kernel's limit.
pub(super) const MAX_PATH_BYTES: usize = 4095;

/// Most values of a repeated enum: more than any has words.
const MAX_WORDS: usize = 16;

/// A span of time that a field may have.
pub(super) struct Span {
    least: Duration,
    most: Duration,
    words: &'static str,
}

impl Span {
    pub(super) const fn new(least: Duration, most: Duration, words: &'static str) -> Span {
        Span { least, most, words }
    }
}

/// Time without news until a heartbeat.
const HEARTBEAT: Span =
    Span::new(Duration::from_secs(1), Duration::from_secs(600), "1 s to 10 min");
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(15);

/// The id of an existing process. An ill-formed one names none, and is simply not found.
pub(super) fn existing_id(problems: &mut Problems, id: String) -> Result<String, Reported> {
    if id.is_empty() {
        return Err(problems.add("id", "required: the id of a process"));
    }
    Ok(id)
}

/// One line of up to [`LINE`] characters.
pub(super) fn line(
    problems: &mut Problems,
    field: impl Display,
    text: String,
) -> Result<String, Reported> {
    let length = text.chars().count();
    if length > LINE {
        return Err(problems.add(field, format_args!("has {length} characters: at most {LINE}")));
    }
    if let Some(found) = text.chars().find(|char| char.is_control()) {
        let found = found.escape_debug();
        return Err(problems.add(field, format_args!("has the control character {found}")));
    }
    Ok(text)
}

/// A text that the kernel takes: one without NUL.
pub(super) fn without_nul(
    problems: &mut Problems,
    field: impl Display,
    text: impl AsRef<[u8]>,
) -> Result<(), Reported> {
    match text.as_ref().iter().position(|byte| *byte == 0) {
        Some(at) => Err(problems.add(field, format_args!("has a NUL as byte {at}: none allowed"))),
        None => Ok(()),
    }
}

/// A text that the kernel takes, of at most so many bytes.
pub(super) fn short(
    problems: &mut Problems,
    field: impl Display,
    text: &str,
    max_bytes: usize,
) -> Result<(), Reported> {
    if text.len() > max_bytes {
        let problem = format_args!("has {} bytes: at most {max_bytes}", text.len());
        return Err(problems.add(field, problem));
    }
    without_nul(problems, field, text)
}

/// A span of time, if it is given.
pub(super) fn duration(
    problems: &mut Problems,
    field: impl Display,
    given: Option<prost_types::Duration>,
    span: &Span,
) -> Result<Option<Duration>, Reported> {
    let Some(prost_types::Duration { seconds, nanos }) = given else {
        return Ok(None);
    };
    let words = span.words;
    if !(-999_999_999..=999_999_999).contains(&nanos) {
        let problem = format_args!("has {nanos} nanos: 0 to 999999999, and in all {words}");
        return Err(problems.add(field, problem));
    }
    let (Ok(seconds), Ok(nanos)) = (u64::try_from(seconds), u32::try_from(nanos)) else {
        return Err(problems.add(field, format_args!("is negative: {words}")));
    };
    let given = Duration::new(seconds, nanos);
    if !(span.least..=span.most).contains(&given) {
        return Err(problems.add(field, format_args!("is {given:?}: {words}")));
    }
    Ok(Some(given))
}

/// The field `heartbeat_interval`.
pub(super) fn heartbeat(
    problems: &mut Problems,
    given: Option<prost_types::Duration>,
) -> Result<Duration, Reported> {
    let interval = duration(problems, "heartbeat_interval", given, &HEARTBEAT)?;
    Ok(interval.unwrap_or(DEFAULT_HEARTBEAT))
}

/// Words of an enum, each once.
pub(super) fn words<T: Word>(problems: &mut Problems, field: &str, numbers: Vec<i32>) -> Vec<T> {
    if numbers.len() > MAX_WORDS {
        let problem = format_args!("has {} values: at most {MAX_WORDS}", numbers.len());
        problems.add(field, problem);
        return Vec::new();
    }
    let mut words = Vec::new();
    for (at, number) in numbers.into_iter().enumerate() {
        match T::known(number) {
            Some(word) if words.contains(&word) => {}
            Some(word) => words.push(word),
            None => {
                let problem = format_args!("is {number}: one of {}", T::choices());
                problems.add(format_args!("{field}[{at}]"), problem);
            }
        }
    }
    words
}

/// A signal that was given.
pub(super) fn signal(
    problems: &mut Problems,
    field: impl Display,
    text: &str,
) -> Result<i32, Reported> {
    signal::parse(text).ok_or_else(|| {
        let given = quoted(text);
        let right = "a name as \"TERM\" or \"SIGTERM\", or a number from 1 to 64";
        problems.add(field, format_args!("is {given}: {right}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::problems::refused;
    use crate::transcript::Stream;

    const SPAN: Span = Span::new(Duration::from_millis(1), Duration::from_secs(10), "1 ms to 10 s");

    fn read(seconds: i64, nanos: i32) -> Result<Option<Duration>, String> {
        let given = Some(prost_types::Duration { seconds, nanos });
        Problems::collect(|problems| duration(problems, "f", given, &SPAN))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_duration_in_its_range_is_taken() {
        assert_eq!(read(0, 1_000_000), Ok(Some(SPAN.least)));
        assert_eq!(read(10, 0), Ok(Some(SPAN.most)));
    }

    #[test]
    fn a_duration_that_is_none_is_refused_with_the_range() {
        let refused = [
            (0, 0, "f: is 0ns: 1 ms to 10 s"),
            (10, 1, "f: is 10.000000001s: 1 ms to 10 s"),
            (-1, 0, "f: is negative: 1 ms to 10 s"),
            (0, -1, "f: is negative: 1 ms to 10 s"),
            (1, -1, "f: is negative: 1 ms to 10 s"),
            (1, i32::MAX, "f: has 2147483647 nanos: 0 to 999999999, and in all 1 ms to 10 s"),
            (1, i32::MIN, "f: has -2147483648 nanos: 0 to 999999999, and in all 1 ms to 10 s"),
            (i64::MAX, 999_999_999, "f: is 9223372036854775807.999999999s: 1 ms to 10 s"),
            (i64::MIN, 0, "f: is negative: 1 ms to 10 s"),
        ];
        for (seconds, nanos, text) in refused {
            assert_eq!(read(seconds, nanos), Err(text.to_owned()));
        }
    }

    #[test]
    fn words_that_are_none_are_refused_each_by_its_place() {
        let known = Problems::collect(|problems| Ok(words(problems, "streams", vec![1, 1, 3])));
        assert_eq!(known, Ok(vec![Stream::Stdout, Stream::Terminal]));
        let told = refused(Problems::collect(|problems| {
            Ok(words::<Stream>(problems, "streams", vec![0, 1, 7]))
        }));
        assert_eq!(
            told,
            [
                "streams[0]: is 0: one of STREAM_STDOUT, STREAM_STDERR, STREAM_TERMINAL",
                "streams[2]: is 7: one of STREAM_STDOUT, STREAM_STDERR, STREAM_TERMINAL",
            ]
        );
        let told = refused(Problems::collect(|problems| {
            Ok(words::<Stream>(problems, "streams", vec![1; 17]))
        }));
        assert_eq!(told, ["streams: has 17 values: at most 16"]);
    }

    #[test]
    fn a_line_is_printable_and_short() {
        let read = |text: &str| {
            Problems::collect(|problems| line(problems, "name", text.into()))
                .map_err(|error| error.to_string())
        };
        assert!(read(&"ä".repeat(256)).is_ok());
        assert_eq!(read(&"ä".repeat(257)), Err("name: has 257 characters: at most 256".into()));
        assert_eq!(read("a\tb"), Err("name: has the control character \\t".into()));
    }
}
