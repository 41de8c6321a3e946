//! Requests of `lifecycle.proto`: Start, Kill, Run, Delete.

use std::time::Duration;

use super::problems::{Problems, Reported};
use super::records::selector;
use super::spec::{GRACE, spec};
use super::values::{duration, existing_id, signal};
use super::view::view;
use super::wait::wait_for;
use crate::grpc::clip::quoted;
use crate::grpc::pb;
use crate::process::{Selector, Spec, WaitFor};
use crate::supervisor::Error;
use crate::transcript::View;

/// Most characters of an id.
const ID: usize = 64;

/// A process to start.
#[derive(Clone, Debug)]
pub struct StartOrder {
    /// The client's id for it; none: a new one.
    pub id: Option<String>,
    /// What to run.
    pub spec: Spec,
    /// What to wait for before answering; none: only that it was started.
    pub wait: Option<WaitFor>,
    /// How the answer shows the output; none: no output unless it is waited for.
    pub view: Option<View>,
}

/// Processes to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillOrder {
    /// Which.
    pub target: KillTarget,
    /// Signal to ask with; none: as its spec says.
    pub signal: Option<i32>,
    /// Time until SIGKILL; none: as its spec says.
    pub grace: Option<Duration>,
    /// SIGKILL at once.
    pub force: bool,
}

/// Which processes to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KillTarget {
    /// This one.
    Id(String),
    /// All live ones that it matches.
    Selector(Selector),
}

/// A process to run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOrder {
    /// The process.
    pub id: String,
    /// Clears what it left.
    pub force: bool,
}

/// A record to free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteOrder {
    /// The process.
    pub id: String,
    /// Kills it first if it has not finished.
    pub force: bool,
    /// That there is no such process is no error.
    pub allow_missing: bool,
}

impl TryFrom<pb::StartRequest> for StartOrder {
    type Error = Error;

    fn try_from(request: pb::StartRequest) -> Result<StartOrder, Error> {
        let pb::StartRequest { id, spec: what, wait, view: shown } = request;
        Problems::collect(|problems| {
            let id = new_id(problems, id);
            let what = spec(problems, what);
            let wait = wait_for(problems, wait);
            let shown = view(problems, shown);
            Ok(StartOrder { id: id?, spec: what?, wait: wait?, view: shown? })
        })
    }
}

impl TryFrom<pb::KillRequest> for KillOrder {
    type Error = Error;

    fn try_from(request: pb::KillRequest) -> Result<KillOrder, Error> {
        let pb::KillRequest { target, signal: text, grace, force } = request;
        Problems::collect(|problems| {
            let target = match target {
                Some(pb::kill_request::Target::Id(id)) => {
                    existing_id(problems, id).map(KillTarget::Id)
                }
                Some(pb::kill_request::Target::Selector(chosen)) => {
                    if chosen == pb::Selector::default() {
                        problems.add("selector", "is empty: at least one field of it");
                    }
                    selector(problems, Some(chosen)).map(KillTarget::Selector)
                }
                None => Err(problems.add("target", "required: id or selector")),
            };
            let signal = text.map(|text| signal(problems, "signal", &text)).transpose();
            let grace = duration(problems, "grace", grace, &GRACE);
            Ok(KillOrder { target: target?, signal: signal?, grace: grace?, force })
        })
    }
}

impl TryFrom<pb::RunRequest> for RunOrder {
    type Error = Error;

    fn try_from(pb::RunRequest { id, force }: pb::RunRequest) -> Result<RunOrder, Error> {
        Problems::collect(|problems| Ok(RunOrder { id: existing_id(problems, id)?, force }))
    }
}

impl TryFrom<pb::DeleteRequest> for DeleteOrder {
    type Error = Error;

    fn try_from(request: pb::DeleteRequest) -> Result<DeleteOrder, Error> {
        let pb::DeleteRequest { id, force, allow_missing } = request;
        Problems::collect(|problems| {
            Ok(DeleteOrder { id: existing_id(problems, id)?, force, allow_missing })
        })
    }
}

/// The id of a process that is yet to be.
fn new_id(problems: &mut Problems, id: String) -> Result<Option<String>, Reported> {
    if id.is_empty() {
        return Ok(None);
    }
    let allowed = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    let begins = id.starts_with(|char: char| char.is_ascii_alphanumeric());
    if !begins || id.len() > ID || !id.chars().all(allowed) {
        let right = "a letter or digit, then up to 63 letters, digits and ._-";
        return Err(problems.add("id", format_args!("is {}: {right}", quoted(&id))));
    }
    Ok(Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;
    use pb::kill_request::Target;

    #[test]
    fn an_id_is_checked_when_it_is_given() {
        let read = |id: &str| Problems::collect(|problems| new_id(problems, id.into()));
        assert_eq!(read(""), Ok(None));
        for id in ["a", "0", "build.1_x-Y", &"a".repeat(64)] {
            assert_eq!(read(id), Ok(Some(id.to_owned())));
        }
        for id in [".a", "-a", "a b", "a/b", "ä", "a\n", &"a".repeat(65), &"a".repeat(1 << 20)] {
            let told = refused(read(id));
            assert!(told[0].starts_with("id: is \"") && told[0].len() < 200, "{told:?}");
        }
    }

    #[test]
    fn a_start_needs_a_spec_and_tells_of_all_else() {
        let request = pb::StartRequest {
            id: "?".into(),
            spec: None,
            wait: Some(pb::WaitFor::default()),
            view: Some(pb::View { max_bytes: u32::MAX, ..Default::default() }),
        };
        let told = refused(StartOrder::try_from(request));
        let paths: Vec<_> = told.iter().map(|told| told.split(": ").next().unwrap()).collect();
        assert_eq!(paths, ["id", "spec", "wait.until", "view.max_bytes"]);
    }

    #[test]
    fn a_kill_says_only_what_differs_from_the_spec() {
        let target = Some(Target::Id("a".into()));
        let order = KillOrder::try_from(pb::KillRequest { target, ..Default::default() }).unwrap();
        let plain = KillOrder {
            target: KillTarget::Id("a".into()),
            signal: None,
            grace: None,
            force: false,
        };
        assert_eq!(order, plain);
        let request = pb::KillRequest {
            target: Some(Target::Id("a".into())),
            signal: Some("SIGINT".into()),
            grace: Some(prost_types::Duration::default()),
            force: true,
        };
        let order = KillOrder::try_from(request).unwrap();
        assert_eq!((order.signal, order.grace), (Some(2), Some(Duration::ZERO)));
    }

    #[test]
    fn a_bad_kill_is_refused() {
        let request = pb::KillRequest {
            target: None,
            signal: Some(String::new()),
            grace: Some(prost_types::Duration { seconds: 3601, nanos: 0 }),
            force: false,
        };
        let told = refused(KillOrder::try_from(request));
        assert_eq!(
            told,
            [
                "target: required: id or selector",
                "signal: is \"\": a name as \"TERM\" or \"SIGTERM\", or a number from 1 to 64",
                "grace: is 3601s: 0 to 1 h",
            ]
        );
        let request = pb::DeleteRequest::default();
        assert_eq!(refused(DeleteOrder::try_from(request)), ["id: required: the id of a process"]);
    }
}
