//! The regexes that were compiled last: clients that poll send the same ones again and again.

use std::sync::{Mutex, PoisonError};

use crate::transcript::{OutputRegex, RegexError};

/// Most regexes that are kept, and most bytes that they take together.
const MAX_ENTRIES: usize = 64;
const MAX_BYTES: usize = 8 << 20;

/// Compiled regexes by their pattern, the one used last at the end.
pub(super) struct RegexCache(Mutex<Vec<Entry>>);

struct Entry {
    pattern: Box<str>,
    ignore_case: bool,
    regex: OutputRegex,
}

impl RegexCache {
    pub(super) const fn new() -> RegexCache {
        RegexCache(Mutex::new(Vec::new()))
    }

    /// The regex for a pattern. A pattern that is refused is compiled again each time.
    pub(super) fn get_or_compile(
        &self,
        pattern: &str,
        ignore_case: bool,
    ) -> Result<OutputRegex, RegexError> {
        if let Some(regex) = self.get(pattern, ignore_case) {
            return Ok(regex);
        }
        let regex = OutputRegex::new(pattern, ignore_case)?;
        self.put(Entry { pattern: pattern.into(), ignore_case, regex: regex.clone() });
        Ok(regex)
    }

    fn get(&self, pattern: &str, ignore_case: bool) -> Option<OutputRegex> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |entry: &Entry| entry.ignore_case == ignore_case && *entry.pattern == *pattern;
        let at = entries.iter().position(same)?;
        entries[at..].rotate_left(1);
        entries.last().map(|entry| entry.regex.clone())
    }

    fn put(&self, entry: Entry) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(entry);
        let bytes = |entry: &Entry| entry.pattern.len() + entry.regex.compiled_bytes();
        let mut taken: usize = entries.iter().map(bytes).sum();
        while entries.len() > MAX_ENTRIES || taken > MAX_BYTES {
            taken -= bytes(&entries.remove(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(cache: &RegexCache) -> Vec<String> {
        cache.0.lock().unwrap().iter().map(|entry| entry.pattern.to_string()).collect()
    }

    #[test]
    fn least_recently_used_regex_is_dropped_first() {
        let cache = RegexCache::new();
        for n in 0..MAX_ENTRIES {
            cache.get_or_compile(&n.to_string(), false).unwrap();
        }
        cache.get_or_compile("0", false).unwrap();
        cache.get_or_compile("more", false).unwrap();
        let kept = patterns(&cache);
        assert_eq!(kept.len(), MAX_ENTRIES);
        assert!(kept.contains(&"0".into()) && !kept.contains(&"1".into()));
    }

    #[test]
    fn second_call_gets_the_cached_regex() {
        let cache = RegexCache::new();
        cache.get_or_compile("a", false).unwrap();
        // A regex that the pattern does not compile to.
        cache.0.lock().unwrap()[0].regex = OutputRegex::new("b", false).unwrap();
        assert!(cache.get_or_compile("a", false).unwrap().is_match(b"b"));
        assert_eq!(patterns(&cache), ["a"]);
    }

    #[test]
    fn cached_regexes_stay_within_their_bytes() {
        let cache = RegexCache::new();
        for n in 0..24 {
            cache.get_or_compile(&format!(r"(?:a?){{4000}}{n}"), false).unwrap();
        }
        assert!((1..24).contains(&patterns(&cache).len()));
    }

    #[test]
    fn case_makes_another_regex() {
        let cache = RegexCache::new();
        assert!(!cache.get_or_compile("a", false).unwrap().is_match(b"A"));
        assert!(cache.get_or_compile("a", true).unwrap().is_match(b"A"));
        assert!(cache.get_or_compile("(", true).is_err());
        assert_eq!(patterns(&cache), ["a", "a"]);
    }
}
