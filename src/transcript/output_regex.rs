//! Regular expressions that clients search output with. Pure.
//!
//! Owns the limits that bound what one costs: the time to compile it (`cost` before translation, the
//! size limit after it), the memory that it takes, and how much of the output one step of a search
//! covers. All figures were measured with an optimised build; none of them is a promise to clients.

mod cost;

use std::fmt;
use std::ops::Range;

use regex_automata::Input;
use regex_automata::meta::{BuildError, Config, Regex};
use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::util::syntax;

/// Bytes of each automaton of a compiled regex. Compiling up to here takes less than 4 ms.
const MAX_COMPILED_BYTES: usize = 512 << 10;

/// The same for a regex that an earlier version has accepted: what runs with it keeps its readiness.
const MAX_ACCEPTED_BYTES: usize = 10 << 20;

/// Bytes of the states that a search builds and drops again with its step.
const MAX_CACHE_BYTES: usize = 256 << 10;

/// Longest pattern in which the compiler looks for literals: that takes quadratic time.
const MAX_LITERAL_SEARCH: usize = 512;

/// Compiled bytes up to which a regex is cheap: it takes at most about 1 µs for a byte of output.
const CHEAP_COMPILED_BYTES: usize = 16 << 10;

/// Bytes of output for one step of a search, with a cheap regex and with any other.
const CHEAP_STEP: usize = 64 << 10;
const COSTLY_STEP: usize = 4 << 10;

/// A compiled regular expression on bytes.
#[derive(Clone, Debug)]
pub struct OutputRegex(Regex);

/// Why a pattern is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegexError {
    /// It cannot be parsed.
    Syntax {
        /// The byte of the pattern at which the parser stopped, if it says so.
        offset: Option<usize>,
        /// What the parser found.
        problem: String,
    },
    /// Its character classes take too long to translate.
    ClassesTooCostly,
    /// The compiled form is larger than this many bytes.
    TooLarge(usize),
}

impl fmt::Display for RegexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegexError::Syntax { problem, .. } => f.write_str(problem),
            RegexError::ClassesTooCostly => f.write_str(
                "takes too long to compile: use fewer or smaller character classes, \
                 or (?-i:…) around those that need no case folding",
            ),
            RegexError::TooLarge(most) => write!(
                f,
                "takes more than {most} bytes of memory: repeat less, \
                 or use (?-u:\\w) and the like for ASCII"
            ),
        }
    }
}

impl OutputRegex {
    /// Compiles a pattern of a client. Takes milliseconds at worst, so never on the main thread.
    pub fn new(pattern: &str, ignore_case: bool) -> Result<OutputRegex, RegexError> {
        if cost::is_too_high(pattern, ignore_case) {
            return Err(RegexError::ClassesTooCostly);
        }
        OutputRegex::build(pattern, ignore_case, MAX_COMPILED_BYTES)
    }

    /// Compiles a pattern that a server has accepted before, maybe with a larger limit.
    pub fn accepted(pattern: &str) -> Result<OutputRegex, RegexError> {
        OutputRegex::build(pattern, false, MAX_ACCEPTED_BYTES)
    }

    fn build(pattern: &str, ignore_case: bool, most: usize) -> Result<OutputRegex, RegexError> {
        let config = Config::new()
            .nfa_size_limit(Some(most))
            .hybrid_cache_capacity(MAX_CACHE_BYTES)
            .auto_prefilter(pattern.len() <= MAX_LITERAL_SEARCH)
            // Only where a match begins and ends matters here.
            .which_captures(WhichCaptures::Implicit)
            .utf8_empty(false);
        let syntax = syntax::Config::new().utf8(false).case_insensitive(ignore_case);
        let built = Regex::builder().configure(config).syntax(syntax).build(pattern);
        built.map(OutputRegex).map_err(|error| refusal(&error))
    }

    /// Whether some of these bytes match.
    pub fn is_match(&self, bytes: &[u8]) -> bool {
        self.0.is_match(bytes)
    }

    /// The leftmost match that begins at a byte or after it. What lies before is context.
    pub fn find_at(&self, bytes: &[u8], from: usize) -> Option<Range<usize>> {
        self.0.search(&Input::new(bytes).range(from..)).map(|found| found.range())
    }

    /// Bytes that the compiled form takes.
    pub fn compiled_bytes(&self) -> usize {
        self.0.memory_usage()
    }

    /// How long a search through so many bytes takes at worst, in bytes that are only read.
    pub fn search_cost(&self, bytes: usize) -> usize {
        bytes.saturating_mul(1 + self.compiled_bytes() / 1024)
    }

    /// Bytes of output for one step of a search, so that a step holds a thread for a short while.
    pub fn step_bytes(&self) -> usize {
        if self.compiled_bytes() <= CHEAP_COMPILED_BYTES { CHEAP_STEP } else { COSTLY_STEP }
    }

    /// Drops what searches have cached: hundreds of calls may wait for output at a time.
    pub(super) fn drop_cache(&mut self) {
        // A clone shares what is compiled, and begins with an empty cache.
        self.0 = self.0.clone();
    }
}

fn refusal(error: &BuildError) -> RegexError {
    if let Some(most) = error.size_limit() {
        return RegexError::TooLarge(most);
    }
    let (offset, problem) = match error.syntax_error() {
        Some(regex_syntax::Error::Parse(error)) => {
            (Some(error.span().start.offset), error.kind().to_string())
        }
        Some(regex_syntax::Error::Translate(error)) => {
            (Some(error.span().start.offset), error.kind().to_string())
        }
        _ => (None, error.to_string()),
    };
    RegexError::Syntax { offset, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regex_matches_bytes_that_are_not_utf8() {
        let regex = OutputRegex::new(r"(?-u:\xff)\d+", false).unwrap();
        assert!(regex.is_match(b"a\xff17"));
        assert_eq!(regex.find_at(b"\xff1 \xff23", 1), Some(3..6));
    }

    #[test]
    fn bytes_before_the_search_are_context() {
        let regex = OutputRegex::new("^b", false).unwrap();
        assert_eq!(regex.find_at(b"ab", 1), None);
        assert_eq!(regex.find_at(b"ba", 0), Some(0..1));
    }

    #[test]
    fn oversized_regex_is_refused() {
        for pattern in ["((((a{100}){100}){100}){100})", r"\pL{1000}", r"(?i)\pL{47}Z"] {
            let refused = OutputRegex::new(pattern, false).unwrap_err();
            assert_eq!(refused, RegexError::TooLarge(MAX_COMPILED_BYTES), "{pattern}");
        }
        assert!(OutputRegex::accepted(r"\w{40}").is_ok());
    }

    #[test]
    fn costly_regex_is_searched_in_small_steps() {
        let step = |pattern| OutputRegex::new(pattern, false).unwrap().step_bytes();
        assert_eq!(step("ready on [0-9]+"), CHEAP_STEP);
        assert_eq!(step("(?:a?){2000}"), COSTLY_STEP);
    }
}
