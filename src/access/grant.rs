//! What somebody may do: a role, a scope and freedoms, as people write them. Pure.
//!
//! ```text
//! operator,owner=ci,workspace=build-*,may=env
//! ```

use std::fmt;
use std::str::FromStr;

use super::scope::{BadPattern, Scope};

/// What a caller may do at all, from least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Looks at what is in its scope.
    Viewer,
    /// Does everything with what is in its scope.
    Operator,
    /// Does everything with everything.
    Admin,
}

/// Roles by their names.
const ROLES: [(&str, Role); 3] =
    [("viewer", Role::Viewer), ("operator", Role::Operator), ("admin", Role::Admin)];

/// What a caller may choose of how its processes run, beyond what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freedoms {
    /// Another user to run as.
    pub user: bool,
    /// Variables of the server's environment.
    pub environment: bool,
    /// The interpreter of a script.
    pub interpreter: bool,
}

impl Freedoms {
    const NONE: Freedoms = Freedoms { user: false, environment: false, interpreter: false };

    /// What a role has unless something else is said. An interpreter is no more than a program that
    /// could be started as well; the server's variables and other users are not the caller's.
    fn of(role: Role) -> Freedoms {
        match role {
            Role::Admin => Freedoms { user: true, environment: true, interpreter: true },
            Role::Operator => Freedoms { interpreter: true, ..Freedoms::NONE },
            Role::Viewer => Freedoms::NONE,
        }
    }
}

/// What somebody may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// At all.
    pub role: Role,
    /// With whose processes.
    pub scope: Scope,
    /// Of how they run.
    pub may: Freedoms,
}

/// Why words are no grant.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadGrant {
    /// The first word is no role.
    #[error("{0:?} is no role: use viewer, operator or admin")]
    Role(String),
    /// A word is not known.
    #[error("{0:?}: use owner=PATTERN, workspace=PATTERN or may=user|env|interpreter|none")]
    Word(String),
    /// A pattern cannot be used.
    #[error(transparent)]
    Pattern(#[from] BadPattern),
    /// An admin is restricted.
    #[error("an admin has no owner, workspace or may: use operator to restrict someone")]
    Admin,
}

impl Grant {
    /// What this grant and a ceiling both allow; none: their scopes have nothing in common.
    pub fn at_most(&self, ceiling: &Grant) -> Option<Grant> {
        Some(Grant {
            role: self.role.min(ceiling.role),
            scope: self.scope.intersection(&ceiling.scope)?,
            may: Freedoms {
                user: self.may.user && ceiling.may.user,
                environment: self.may.environment && ceiling.may.environment,
                interpreter: self.may.interpreter && ceiling.may.interpreter,
            },
        })
    }

    /// All that a role may do.
    pub fn of(role: Role) -> Grant {
        Grant { role, scope: Scope::default(), may: Freedoms::of(role) }
    }
}

impl FromStr for Grant {
    type Err = BadGrant;

    fn from_str(text: &str) -> Result<Grant, BadGrant> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default();
        let role = ROLES.iter().find(|(known, _)| *known == name);
        let (_, role) = role.ok_or_else(|| BadGrant::Role(name.to_owned()))?;
        let mut grant = Grant::of(*role);
        let mut chosen = None;
        for word in words {
            let unknown = || BadGrant::Word(word.to_owned());
            if *role == Role::Admin {
                return Err(BadGrant::Admin);
            }
            match word.split_once('=').ok_or_else(unknown)? {
                ("owner", pattern) => grant.scope.owners.push(pattern.parse()?),
                ("workspace", pattern) => grant.scope.workspaces.push(pattern.parse()?),
                ("may", freedom) => {
                    let may = chosen.get_or_insert(Freedoms::NONE);
                    match freedom {
                        "user" => may.user = true,
                        "env" => may.environment = true,
                        "interpreter" => may.interpreter = true,
                        "none" => {}
                        _ => return Err(unknown()),
                    }
                }
                _ => return Err(unknown()),
            }
        }
        grant.may = chosen.unwrap_or(grant.may);
        Ok(grant)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ROLES.iter().find(|(_, role)| role == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Grant { role, scope, may } = self;
        write!(f, "{role}")?;
        for owner in &scope.owners {
            write!(f, ",owner={owner}")?;
        }
        for workspace in &scope.workspaces {
            write!(f, ",workspace={workspace}")?;
        }
        if *may == Freedoms::of(*role) {
            return Ok(());
        }
        let Freedoms { user, environment, interpreter } = *may;
        let all = [("user", user), ("env", environment), ("interpreter", interpreter)];
        let none = *may == Freedoms::NONE;
        for (freedom, _) in all.iter().chain([&("none", none)]).filter(|(_, has)| *has) {
            write!(f, ",may={freedom}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_reads_as_it_is_written() {
        for text in [
            "admin",
            "viewer",
            "operator,owner=ci",
            "operator,owner=a,owner=b-*,workspace=*,may=env",
            "operator,may=user,may=interpreter",
            "operator,may=none",
        ] {
            assert_eq!(text.parse::<Grant>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_grant_is_refused_with_the_reason() {
        let refused = |text: &str| text.parse::<Grant>().unwrap_err();
        assert_eq!(refused("root"), BadGrant::Role("root".into()));
        assert_eq!(refused(""), BadGrant::Role(String::new()));
        assert_eq!(refused("viewer,x"), BadGrant::Word("x".into()));
        assert_eq!(refused("viewer,may=fly"), BadGrant::Word("may=fly".into()));
        assert_eq!(refused("viewer,owner="), BadGrant::Pattern(BadPattern::Form));
        assert_eq!(refused("admin,owner=a"), BadGrant::Admin);
    }

    #[test]
    fn without_a_word_only_an_admin_may_take_what_is_not_its_own() {
        let may = |text: &str| text.parse::<Grant>().unwrap().may;
        assert!(may("admin").user && may("admin").environment);
        assert!(!may("operator").user && !may("operator").environment);
        assert!(may("operator").interpreter && !may("operator,may=env").interpreter);
    }
}
