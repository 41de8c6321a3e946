//! The most that a process below the keeper may do, as `--grant-children` says it. Pure.
//!
//! ```text
//! viewer
//! operator,owner=agents
//! none
//! ```

use std::fmt;
use std::str::FromStr;

use crate::access::{BadGrant, Caller, Grant};

/// The ceiling for callers that are descendants of the keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildGrant(Option<Grant>);

/// The word that refuses all of them.
const NONE: &str = "none";

impl ChildGrant {
    /// The caller with at most this grant; none: it is refused.
    ///
    /// Its name says that it is a child, so that logs tell it from its user, and so that it uses up
    /// no quota of that user.
    pub(super) fn limit(&self, caller: &Caller) -> Option<Caller> {
        let grant = caller.grant.at_most(self.0.as_ref()?)?;
        Some(Caller { name: format!("child:{}", caller.name), grant })
    }
}

impl FromStr for ChildGrant {
    type Err = BadGrant;

    fn from_str(text: &str) -> Result<ChildGrant, BadGrant> {
        let refused = text == NONE;
        (!refused).then(|| text.parse()).transpose().map(ChildGrant)
    }
}

impl fmt::Display for ChildGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(grant) => grant.fmt(f),
            None => f.write_str(NONE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_grant_reads_as_it_is_written() {
        for text in ["none", "viewer", "operator,owner=a,workspace=w-*", "admin"] {
            assert_eq!(text.parse::<ChildGrant>().unwrap().to_string(), text);
        }
        assert_eq!("root".parse::<ChildGrant>(), Err(BadGrant::Role("root".into())));
    }

    #[test]
    fn child_gets_the_lower_role_and_both_scopes() {
        let limited = |own: &str, ceiling: &str| {
            let caller = Caller { name: "uid:1".into(), grant: own.parse().unwrap() };
            let limited = ceiling.parse::<ChildGrant>().unwrap().limit(&caller)?;
            Some(format!("{} {}", limited.name, limited.grant))
        };
        for (own, ceiling, expected) in [
            ("admin", "none", None),
            ("admin", "viewer", Some("child:uid:1 viewer")),
            ("admin", "operator,owner=a", Some("child:uid:1 operator,owner=a")),
            ("viewer", "admin", Some("child:uid:1 viewer")),
            ("operator,owner=a-*", "viewer,owner=a-1", Some("child:uid:1 viewer,owner=a-1")),
            (
                "operator,owner=a",
                "viewer,workspace=w",
                Some("child:uid:1 viewer,owner=a,workspace=w"),
            ),
            ("operator,owner=a", "operator,owner=b", None),
            ("operator,may=env", "operator,may=user", Some("child:uid:1 operator,may=none")),
        ] {
            assert_eq!(limited(own, ceiling).as_deref(), expected, "{own} {ceiling}");
        }
    }
}
