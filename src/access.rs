//! Who may do what: callers, their roles and scopes, and the table of all calls. Pure.
//!
//! Owns the words of authorisation and every decision that needs nothing but them. How a caller is
//! known is the server's (`server::credentials`); what a decision means for a call is said where the
//! call is served (`grpc`) and, where state decides, by the supervisor.

mod choice;
mod grant;
mod scope;
mod table;

pub use choice::Choice;
pub use grant::{BadGrant, Freedoms, Grant, Role};
pub use scope::{BadPattern, Outside, Pattern, Scope};
pub use table::{
    Call, Does, MAX_FIELDS, MAX_LARGE_REQUEST, MAX_PROGRAM_FIELDS, MAX_REQUEST, Shape,
};

use crate::process::{Record, Selector};

/// Somebody who is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who it is, with how that is known: `uid:1000`, `token:ci`, `cert:build.example.org`. Logs
    /// and counts go by it.
    pub name: String,
    /// What it may do.
    pub grant: Grant,
}

impl Caller {
    /// One who may do everything.
    pub fn admin(name: impl Into<String>) -> Caller {
        Caller { name: name.into(), grant: Grant::of(Role::Admin) }
    }

    /// Whether a process is there for it.
    pub fn sees(&self, record: &Record) -> bool {
        self.grant.scope.covers(&record.spec.owner, &record.spec.workspace)
    }

    /// Whether it is, and is meant by a selector.
    pub fn means(&self, selector: &Selector, record: &Record) -> bool {
        self.sees(record) && selector.matches(record)
    }
}
