//! The words that requests are made of.

use std::collections::HashMap;
use std::time::Duration;

use procyard::grpc::pb::{self, spec, wait_for};

use crate::promise::Promise;
use crate::world::{self, World};

/// A variable that everything has which is started here, and nothing else on the machine: the
/// directory of this run.
pub(crate) const MARK: &str = "TORTURE_LOAD";

/// A spec of a new process in a role, and its id.
pub(crate) fn new(
    world: &World,
    role: &'static str,
    promise: &Promise,
    program: spec::Program,
) -> (String, pb::Spec) {
    let number = world.number(role);
    let directory = world.directory().display().to_string();
    let set = HashMap::from([(MARK.to_owned(), directory.clone())]);
    let spec = pb::Spec {
        program: Some(program),
        cwd: directory,
        env: Some(pb::Environment { set, ..pb::Environment::default() }),
        owner: world::owner_of(number).into(),
        labels: promise.labels(),
        ..pb::Spec::default()
    };
    (format!("{role}-{number}"), spec)
}

pub(crate) fn shell(line: &str) -> spec::Program {
    spec::Program::Shell(line.into())
}

pub(crate) fn argv(args: Vec<String>) -> spec::Program {
    spec::Program::Argv(pb::Argv { args, raw_args: Vec::new() })
}

pub(crate) fn terminal() -> Option<spec::Io> {
    Some(spec::Io::Terminal(pb::Terminal::default()))
}

pub(crate) fn start(id: &str, spec: &pb::Spec, wait: Option<pb::WaitFor>) -> pb::StartRequest {
    pb::StartRequest { id: id.into(), spec: Some(spec.clone()), wait, view: None }
}

pub(crate) fn until_exit() -> pb::WaitFor {
    pb::WaitFor { until: Some(wait_for::Until::Exit(wait_for::Exit {})), timeout: None }
}

pub(crate) fn until_output(regex: &str) -> pb::WaitFor {
    let output = wait_for::Output { regex: regex.into() };
    pb::WaitFor { until: Some(wait_for::Until::Output(output)), timeout: None }
}

pub(crate) fn span(span: Duration) -> prost_types::Duration {
    // Of no use here beyond some seconds.
    prost_types::Duration {
        seconds: span.as_secs().cast_signed(),
        nanos: span.subsec_nanos().cast_signed(),
    }
}
