//! What somebody is given by name, as people write it. Pure.
//!
//! ```text
//! uid:1000=operator,owner=ci
//! cert:*.build.example.org=viewer
//! ```

use std::fmt;
use std::str::FromStr;

use crate::access::{BadGrant, BadPattern, Grant, Pattern};

/// Somebody, by how it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// A user on a Unix socket.
    User(u32),
    /// Those whose certificates have such a name.
    Certificate(Pattern),
}

/// What somebody may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Who.
    pub who: Who,
    /// What.
    pub grant: Grant,
}

/// Why words give nothing to nobody.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadGiven {
    /// They are not of the form.
    #[error("use uid:1000=viewer or cert:NAME=viewer")]
    Form,
    /// The name of a certificate cannot be used.
    #[error(transparent)]
    Name(#[from] BadPattern),
    /// What is given cannot be.
    #[error(transparent)]
    Grant(#[from] BadGrant),
}

impl FromStr for Given {
    type Err = BadGiven;

    fn from_str(text: &str) -> Result<Given, BadGiven> {
        let (who, what) = text.split_once('=').ok_or(BadGiven::Form)?;
        let who = match who.split_once(':').ok_or(BadGiven::Form)? {
            ("uid", uid) => Who::User(uid.parse().map_err(|_| BadGiven::Form)?),
            ("cert", name) => Who::Certificate(name.parse()?),
            _ => return Err(BadGiven::Form),
        };
        Ok(Given { who, grant: what.parse()? })
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            Who::User(uid) => write!(f, "uid:{uid}={}", self.grant),
            Who::Certificate(name) => write!(f, "cert:{name}={}", self.grant),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_reads_as_it_is_written() {
        for text in ["uid:0=admin", "uid:1000=operator,owner=a", "cert:spiffe://x/*=viewer"] {
            assert_eq!(text.parse::<Given>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_gives_nothing_is_refused_with_the_reason() {
        let refused = |text: &str| text.parse::<Given>().unwrap_err();
        for text in ["", "uid:1", "uid:-1=admin", "uid:x=admin", "1=admin", "token:a=admin"] {
            assert_eq!(refused(text), BadGiven::Form, "{text}");
        }
        assert_eq!(refused("cert:=admin"), BadGiven::Name(BadPattern::Form));
        assert_eq!(refused("uid:1=root"), BadGiven::Grant(BadGrant::Role("root".into())));
    }
}
