//! Regular expressions of clients: bounded in length, in memory and in the time they take to
//! compile, and refused with the position.

mod folding;

use std::fmt::Display;

use regex::bytes::{Regex, RegexBuilder};

use super::problems::{Problems, Reported};
use crate::grpc::pb::wait_for;

/// Most characters of a pattern.
const LONGEST: usize = 4096;
/// Bytes that a compiled pattern may take. The default, 10 MiB, is much for something that any
/// client may ask for as often as it likes.
const COMPILED: usize = 2 << 20;
/// Bytes that the states which are built while matching may take.
const CACHED: usize = 1 << 20;

/// What `wait.output` asks for.
pub(super) fn output(problems: &mut Problems, output: wait_for::Output) -> Result<Regex, Reported> {
    let wait_for::Output { regex } = output;
    compile(problems, "wait.output.regex", &regex)
}

/// A regular expression.
pub(super) fn compile(
    problems: &mut Problems,
    field: impl Display,
    pattern: &str,
) -> Result<Regex, Reported> {
    compile_for(problems, field, pattern, false)
}

/// A regular expression for which upper and lower case may be the same.
pub(super) fn compile_for(
    problems: &mut Problems,
    field: impl Display,
    pattern: &str,
    ignore_case: bool,
) -> Result<Regex, Reported> {
    let length = pattern.chars().count();
    if !(1..=LONGEST).contains(&length) {
        let problem = format_args!("has {length} characters: 1 to {LONGEST}");
        return Err(problems.add(field, problem));
    }
    if let Some(problem) = folding::too_much(pattern, ignore_case) {
        return Err(problems.add(field, problem));
    }
    let mut builder = RegexBuilder::new(pattern);
    builder.case_insensitive(ignore_case).size_limit(COMPILED).dfa_size_limit(CACHED);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(most) => {
            let problem = format_args!("takes more than {most} bytes of memory: repeat less");
            problems.add(field, problem)
        }
        other => problems.add(field, syntax(pattern).unwrap_or_else(|| other.to_string())),
    })
}

/// What is wrong in a pattern, and where. The error of `regex` has both only within a drawing of
/// the whole pattern; its parser, asked again, has them one by one.
fn syntax(pattern: &str) -> Option<String> {
    let parsed = regex_syntax::ParserBuilder::new().utf8(false).build().parse(pattern);
    let (offset, problem) = match parsed.err()? {
        regex_syntax::Error::Parse(error) => (error.span().start.offset, error.kind().to_string()),
        regex_syntax::Error::Translate(error) => {
            (error.span().start.offset, error.kind().to_string())
        }
        _ => return None,
    };
    let character = pattern.get(..offset)?.chars().count() + 1;
    Some(format!("at character {character}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pattern: &str) -> Result<Regex, String> {
        Problems::collect(|problems| compile(problems, "r", pattern))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_pattern_matches_bytes() {
        let regex = read(r"(?-u:\xff)\d+").unwrap();
        assert!(regex.is_match(b"a\xff17"));
    }

    #[test]
    fn a_bad_pattern_is_refused_with_the_position() {
        let refused = [
            ("ab(cd", "r: at character 3: unclosed group"),
            ("äö[z-a]", "r: at character 4: invalid character class range"),
            (r"a\p{Nope}", "r: at character 2: Unicode property not found"),
            ("a\n\n*)", "r: at character 5: unopened group"),
            ("", "r: has 0 characters: 1 to 4096"),
        ];
        for (pattern, text) in refused {
            let told = read(pattern).unwrap_err();
            assert!(told.starts_with(text), "{told}");
        }
        assert!(read(&"(".repeat(4096)).unwrap_err().starts_with("r: at character "));
        assert!(read(&"a".repeat(4097)).is_err());
    }

    #[test]
    fn a_pattern_that_takes_long_to_compile_is_refused() {
        let told = read(&format!("(?i){}", "[\0-\u{10ffff}]".repeat(500))).unwrap_err();
        assert!(told.starts_with("r: has 500 character classes"), "{told}");
        let ignoring = Problems::collect(|problems| {
            compile_for(problems, "r", &"[\0-\u{10ffff}]".repeat(500), true)
        });
        let told = ignoring.unwrap_err().to_string();
        assert!(told.starts_with("r: has 500 character classes"), "{told}");
    }

    #[test]
    fn a_pattern_that_explodes_is_refused() {
        for pattern in ["((((a{100}){100}){100}){100})", r"\pL{1000}", r"(\w{1,300}){1,300}"] {
            assert!(read(pattern).unwrap_err().contains("bytes of memory"), "{pattern}");
        }
    }
}
