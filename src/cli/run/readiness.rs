//! The options that say when a process counts as ready.

use std::time::Duration;

use crate::cli::words::read_span;
use crate::grpc::pb::{self, readiness::Probe};
use crate::grpc::to_proto::duration;

/// The heading of the options in the help.
const READINESS: &str = "Readiness";

/// When a process counts as ready. `wait --ready` waits for it.
#[derive(clap::Args)]
pub(super) struct ReadinessOptions {
    /// It is ready when it, or a descendant, listens on this TCP port.
    #[arg(long, help_heading = READINESS, value_name = "PORT", group = "readiness",
        value_parser = clap::value_parser!(u16).range(1..))]
    ready_port: Option<u16>,
    /// It is ready when it has printed something that matches.
    #[arg(long, help_heading = READINESS, value_name = "REGEX", group = "readiness")]
    ready_prints: Option<String>,
    /// It is ready when this line for sh exits with code 0; tried again until it does.
    #[arg(long, help_heading = READINESS, value_name = "COMMAND", group = "readiness")]
    ready_exec: Option<String>,
    /// How long it may take to be ready, else it is ended. The default is 10s.
    #[arg(long, help_heading = READINESS, value_name = "TIME", requires = "readiness", value_parser = read_span)]
    ready_timeout: Option<Duration>,
}

impl ReadinessOptions {
    /// As the API has it; none: no option was given.
    pub(super) fn to_proto(&self) -> Option<pb::Readiness> {
        let port = self.ready_port.map(|port| Probe::TcpPort(port.into()));
        let probe = port.or_else(|| self.ready_prints.clone().map(Probe::OutputRegex));
        let line = self.ready_exec.iter();
        let exec: Vec<_> =
            line.flat_map(|line| ["/bin/sh".into(), "-c".into(), line.clone()]).collect();
        (probe.is_some() || !exec.is_empty()).then(|| pb::Readiness {
            probe,
            exec,
            timeout: self.ready_timeout.map(duration),
            ..Default::default()
        })
    }
}
