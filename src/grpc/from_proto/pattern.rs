//! Regular expressions of clients: bounded in length, in memory and in the time they take to
//! compile, and refused with the position. What was compiled lately is kept.

mod cache;

use std::fmt::Display;

use super::problems::{Problems, Reported};
use crate::grpc::pb;
use crate::transcript::{OutputRegex, RegexError};
use cache::RegexCache;

/// Most characters of a pattern.
const LONGEST: usize = 4096;

/// What was compiled lately, for all callers: it holds nothing but what they sent.
static COMPILED: RegexCache = RegexCache::new();

/// A request that may have regular expressions, which take a while to compile.
pub trait MayHaveRegex {
    /// The process that it is about, if it has to exist.
    fn process_id(&self) -> Option<&str>;
    /// Whether it has one.
    fn has_regex(&self) -> bool;
}

impl MayHaveRegex for pb::WaitRequest {
    fn process_id(&self) -> Option<&str> {
        Some(&self.id)
    }

    fn has_regex(&self) -> bool {
        waits_for_output(self.wait.as_ref()) || has_grep(self.view.as_ref())
    }
}

impl MayHaveRegex for pb::WriteStdinRequest {
    fn process_id(&self) -> Option<&str> {
        Some(&self.id)
    }

    fn has_regex(&self) -> bool {
        waits_for_output(self.wait.as_ref()) || has_grep(self.view.as_ref())
    }
}

impl MayHaveRegex for pb::ReadRequest {
    fn process_id(&self) -> Option<&str> {
        Some(&self.id)
    }

    fn has_regex(&self) -> bool {
        has_grep(self.view.as_ref())
    }
}

impl MayHaveRegex for pb::FollowRequest {
    fn process_id(&self) -> Option<&str> {
        Some(&self.id)
    }

    fn has_regex(&self) -> bool {
        has_grep(self.view.as_ref())
    }
}

impl MayHaveRegex for pb::StartRequest {
    fn process_id(&self) -> Option<&str> {
        None
    }

    fn has_regex(&self) -> bool {
        let readiness = self.spec.as_ref().and_then(|spec| spec.readiness.as_ref());
        let probe = readiness.and_then(|readiness| readiness.probe.as_ref());
        matches!(probe, Some(pb::readiness::Probe::OutputRegex(_)))
            || waits_for_output(self.wait.as_ref())
            || has_grep(self.view.as_ref())
    }
}

fn waits_for_output(wait: Option<&pb::WaitFor>) -> bool {
    let until = wait.and_then(|wait| wait.until.as_ref());
    matches!(until, Some(pb::wait_for::Until::Output(_)))
}

fn has_grep(view: Option<&pb::View>) -> bool {
    view.is_some_and(|view| !view.grep.is_empty())
}

/// What `wait.output` asks for.
pub(super) fn output(
    problems: &mut Problems,
    output: pb::wait_for::Output,
) -> Result<OutputRegex, Reported> {
    let pb::wait_for::Output { regex } = output;
    compile(problems, "wait.output.regex", &regex)
}

/// A regular expression.
pub(super) fn compile(
    problems: &mut Problems,
    field: impl Display,
    pattern: &str,
) -> Result<OutputRegex, Reported> {
    compile_for(problems, field, pattern, false)
}

/// A regular expression for which upper and lower case may be the same.
pub(super) fn compile_for(
    problems: &mut Problems,
    field: impl Display,
    pattern: &str,
    ignore_case: bool,
) -> Result<OutputRegex, Reported> {
    let length = pattern.chars().count();
    if !(1..=LONGEST).contains(&length) {
        let problem = format_args!("has {length} characters: 1 to {LONGEST}");
        return Err(problems.add(field, problem));
    }
    let compiled = COMPILED.get_or_compile(pattern, ignore_case);
    compiled.map_err(|error| problems.add(field, explain(pattern, &error)))
}

/// What is wrong in a pattern, and where.
fn explain(pattern: &str, error: &RegexError) -> String {
    let RegexError::Syntax { offset: Some(offset), problem } = error else {
        return error.to_string();
    };
    let before = pattern.get(..*offset).unwrap_or_default();
    format!("at character {}: {problem}", before.chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pattern: &str) -> Result<OutputRegex, String> {
        Problems::collect(|problems| compile(problems, "r", pattern))
            .map_err(|error| error.to_string())
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
        let classes = "[\0-\u{10ffff}]".repeat(500);
        let told = read(&format!("(?i){classes}")).unwrap_err();
        assert!(told.starts_with("r: takes too long to compile"), "{told}");
        let ignoring = Problems::collect(|problems| compile_for(problems, "r", &classes, true));
        let told = ignoring.unwrap_err().to_string();
        assert!(told.starts_with("r: takes too long to compile"), "{told}");
    }

    #[test]
    fn a_pattern_that_explodes_is_refused() {
        for pattern in ["((((a{100}){100}){100}){100})", r"\pL{1000}", r"(\w{1,300}){1,300}"] {
            assert!(read(pattern).unwrap_err().contains("bytes of memory"), "{pattern}");
        }
    }
}
