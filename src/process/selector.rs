//! Which processes are meant. Pure.

use std::collections::BTreeMap;

use super::{Mode, Outcome, Record, State};

/// Which processes are meant: all that is given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// One of these states; none: any.
    pub states: Vec<State>,
    /// One of these outcomes; none: any, finished or not.
    pub outcomes: Vec<Outcome>,
    /// This reference; empty: any.
    pub reference: String,
    /// This name; empty: any.
    pub name: String,
    /// This service; empty: any process, service or not.
    pub service: String,
    /// This owner; empty: any.
    pub owner: String,
    /// This workspace; empty: any.
    pub workspace: String,
    /// All of these labels.
    pub labels: BTreeMap<String, String>,
    /// This mode; none: any.
    pub mode: Option<Mode>,
    /// This queue; empty: any process, in a queue or not.
    pub queue: String,
}

impl Selector {
    /// Whether it asks for services.
    pub fn asks_for_services(&self) -> bool {
        self.mode == Some(Mode::Service) || !self.service.is_empty()
    }

    /// Whether a process is meant.
    pub fn matches(&self, record: &Record) -> bool {
        let spec = &record.spec;
        let same = |asked: &str, has: &str| asked.is_empty() || asked == has;
        let outcome = || record.end().is_some_and(|end| self.outcomes.contains(&end.outcome()));
        (self.states.is_empty() || self.states.contains(&record.state()))
            && (self.outcomes.is_empty() || outcome())
            && same(&self.reference, &spec.reference)
            && same(&self.name, &spec.name)
            && same(&self.service, spec.service.as_ref().map_or("", |service| &service.name))
            && self.mode.is_none_or(|mode| mode == spec.mode)
            && same(&self.queue, &spec.queue)
            && same(&self.owner, &spec.owner)
            && same(&self.workspace, &spec.workspace)
            && self.labels.iter().all(|(name, value)| spec.labels.get(name) == Some(value))
    }
}

/// Some words of one kind, as a filter: without any of them, everything passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnyOf<T>(Vec<T>);

impl<T: Copy + PartialEq> AnyOf<T> {
    /// Whether a word passes.
    pub fn contains(&self, word: T) -> bool {
        self.0.is_empty() || self.0.contains(&word)
    }
}

impl<T> Default for AnyOf<T> {
    fn default() -> AnyOf<T> {
        AnyOf(Vec::new())
    }
}

impl<T> From<Vec<T>> for AnyOf<T> {
    fn from(words: Vec<T>) -> AnyOf<T> {
        AnyOf(words)
    }
}
