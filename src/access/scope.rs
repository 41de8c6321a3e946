//! Whose processes a caller has to do with: patterns of owners and workspaces. Pure.

use std::fmt;
use std::str::FromStr;

/// Most bytes of a pattern: as many as an owner or a workspace may have.
const MOST_BYTES: usize = 256;

/// A name, in which each `*` stands for any characters, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

/// Why a pattern cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadPattern {
    /// It is empty, too long, or has characters that separate patterns.
    #[error("a pattern has 1 to 256 bytes, without spaces, commas and control characters")]
    Form,
}

impl FromStr for Pattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Pattern, BadPattern> {
        let separates = |c: char| c.is_whitespace() || c.is_control() || c == ',';
        if text.is_empty() || text.len() > MOST_BYTES || text.contains(separates) {
            return Err(BadPattern::Form);
        }
        Ok(Pattern(text.to_owned()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pattern {
    /// This name and no other.
    pub fn exactly(name: &str) -> Result<Pattern, BadPattern> {
        if name.contains('*') { Err(BadPattern::Form) } else { name.parse() }
    }

    /// The only name that it means, if there is but one.
    fn only(&self) -> Option<&str> {
        (!self.0.contains('*')).then_some(&self.0)
    }

    /// Whether it means every name that another pattern means. A `*` of the other is a character
    /// that only a `*` can stand for.
    fn covers(&self, other: &Pattern) -> bool {
        self.matches(&other.0)
    }

    /// Whether a name is meant.
    pub fn matches(&self, name: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else { return self.0 == name };
        let Some(mut name) = name.strip_prefix(first) else { return false };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        // Each part as early as it comes leaves the most for those after it.
        for part in middle.split('*') {
            let Some((_, after)) = name.split_once(part) else { return false };
            name = after;
        }
        name.ends_with(last)
    }
}

/// Whose processes a caller has to do with: all that match one of each. Without patterns: any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Owners.
    pub owners: Vec<Pattern>,
    /// Workspaces.
    pub workspaces: Vec<Pattern>,
}

/// What of a new process lies outside of a scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.words())]
pub struct Outside {
    /// The field: `owner` or `workspace`.
    pub field: &'static str,
    /// What it may be.
    pub allowed: String,
    /// It was given, and is none of these; else it was not, and there is no telling which is meant.
    pub given: bool,
}

impl Outside {
    fn words(&self) -> String {
        let Outside { field, allowed, given } = self;
        match (given, *field) {
            (true, field) => format!("{field} is outside of your scope; it may be: {allowed}"),
            (false, "owner") => format!("name an owner: {allowed}"),
            (false, field) => format!("name a {field}: {allowed}"),
        }
    }
}

impl Scope {
    /// Whether a process with this owner and workspace is in it.
    pub fn covers(&self, owner: &str, workspace: &str) -> bool {
        any_matches(&self.owners, owner) && any_matches(&self.workspaces, workspace)
    }

    /// What both scopes have in common; none: nothing.
    pub fn intersection(&self, other: &Scope) -> Option<Scope> {
        Some(Scope {
            owners: intersection(&self.owners, &other.owners)?,
            workspaces: intersection(&self.workspaces, &other.workspaces)?,
        })
    }

    /// The owner and workspace of a new process: what was given must lie within; what was not is
    /// filled in where the scope leaves no choice.
    pub fn settle(&self, owner: String, workspace: String) -> Result<(String, String), Outside> {
        let owner = settle("owner", &self.owners, owner)?;
        Ok((owner, settle("workspace", &self.workspaces, workspace)?))
    }
}

/// The narrower one of each pair of patterns. Two that overlap only in part, as `a*` and `*b`, have
/// nothing in common here: the result never means more than both do.
fn intersection(left: &[Pattern], right: &[Pattern]) -> Option<Vec<Pattern>> {
    if left.is_empty() || right.is_empty() {
        return Some([left, right].concat());
    }
    let mut common = Vec::new();
    for (one, other) in left.iter().flat_map(|one| right.iter().map(move |other| (one, other))) {
        let narrower =
            [(one, other), (other, one)].into_iter().find(|(wide, narrow)| wide.covers(narrow));
        if let Some((_, narrow)) = narrower.filter(|(_, narrow)| !common.contains(*narrow)) {
            common.push(narrow.clone());
        }
    }
    (!common.is_empty()).then_some(common)
}

fn any_matches(patterns: &[Pattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
}

fn settle(field: &'static str, patterns: &[Pattern], given: String) -> Result<String, Outside> {
    if any_matches(patterns, &given) {
        return Ok(given);
    }
    let is_given = !given.is_empty();
    match patterns {
        [one] if !is_given => one.only().map(str::to_owned),
        _ => None,
    }
    .ok_or_else(|| {
        let allowed: Vec<_> = patterns.iter().map(Pattern::to_string).collect();
        Outside { field, allowed: allowed.join(", "), given: is_given }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_pattern_matches_as_people_expect() {
        for (pattern, names, others) in [
            ("a", &["a"][..], &["", "aa", "b", "A"][..]),
            ("*", &["", "a", "a*b"], &[]),
            ("team-*", &["team-", "team-a"], &["team", "xteam-a"]),
            ("*-ci", &["-ci", "a-ci"], &["ci", "a-ci-b"]),
            ("a*b*c", &["abc", "a1b2c", "abbc"], &["ac", "acb", "abcd"]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("**", &["", "x"], &[]),
        ] {
            let parsed: Pattern = pattern.parse().unwrap();
            assert!(names.iter().all(|name| parsed.matches(name)), "{pattern} {names:?}");
            assert!(!others.iter().any(|name| parsed.matches(name)), "{pattern} {others:?}");
        }
    }

    #[test]
    fn what_separates_patterns_is_in_none() {
        for text in ["", "a b", "a,b", "a\n", &"a".repeat(257)] {
            assert_eq!(text.parse::<Pattern>(), Err(BadPattern::Form), "{text:?}");
        }
        assert_eq!(Pattern::exactly("a*"), Err(BadPattern::Form));
    }

    #[test]
    fn a_scope_covers_what_matches_both() {
        let scope = Scope { owners: patterns(&["a", "b"]), workspaces: patterns(&["w-*"]) };
        assert!(scope.covers("a", "w-1") && scope.covers("b", "w-"));
        assert!(!scope.covers("a", "") && !scope.covers("c", "w-1") && !scope.covers("", "w-1"));
        assert!(Scope::default().covers("", ""));
    }

    #[test]
    fn intersection_covers_what_both_scopes_cover() {
        let common = |left: &[&str], right: &[&str]| {
            let common = intersection(&patterns(left), &patterns(right))?;
            Some(common.iter().map(Pattern::to_string).collect::<Vec<_>>().join(" "))
        };
        for (left, right, expected) in [
            (&[][..], &[][..], Some("")),
            (&["a"], &[], Some("a")),
            (&["a-*", "b"], &["a-1", "b", "c"], Some("a-1 b")),
            (&["*"], &["a*", "a*"], Some("a*")),
            (&["a"], &["b"], None),
            (&["a*"], &["*b"], None),
        ] {
            assert_eq!(common(left, right).as_deref(), expected, "{left:?} {right:?}");
            assert_eq!(common(right, left).is_some(), expected.is_some());
        }
    }

    #[test]
    fn a_new_process_is_put_into_the_scope_or_refused() {
        let settle = |owners: &[&str], given: &str| {
            let scope = Scope { owners: patterns(owners), ..Scope::default() };
            scope.settle(given.into(), String::new()).map(|(owner, _)| owner)
        };
        assert_eq!(settle(&[], ""), Ok(String::new()));
        assert_eq!(settle(&["*"], ""), Ok(String::new()));
        assert_eq!(settle(&["a"], ""), Ok("a".into()));
        assert_eq!(settle(&["a", "b"], "b"), Ok("b".into()));
        let refused = |owners: &[&str], given| settle(owners, given).unwrap_err().to_string();
        assert_eq!(refused(&["a"], "b"), "owner is outside of your scope; it may be: a");
        assert_eq!(refused(&["a-*"], ""), "name an owner: a-*");
        assert_eq!(refused(&["a", "b"], ""), "name an owner: a, b");
    }
}
