//! `procyard info`: the supervisor itself.

use std::process::ExitCode;

use super::client::{Remote, again};
use super::print::{self, Colour, Printing};
use super::trouble::Trouble;
use super::words::{self, size};
use crate::grpc::pb;

/// The longest word before a line, and a space or two.
const WIDTH: usize = 11;

/// Shows the supervisor: its version, what it can do here, how much there is, who you are to it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard info
  procyard info --server tcp://build.example.org:7450 --tls-ca ca.pem
  procyard info --output json | jq .capabilities")]
pub(super) struct Info {
    #[command(flatten)]
    printing: Printing,
    #[command(flatten)]
    remote: Remote,
}

impl Info {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let mut client = self.remote.connect().await?;
        let info =
            again(async || client.get_server_info(pb::GetServerInfoRequest {}).await).await?;
        if self.printing.is_json() {
            print::line(print::json(&info))?;
            return Ok(ExitCode::SUCCESS);
        }
        print::line(format!("procyard {} at {}", info.version, self.remote.place()))?;
        for (word, text) in lines(&info) {
            let word = Colour::Dim.paint(&format!("{word:WIDTH$}"));
            print::line(format!("{word}{}", print::harmless(&text)))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What there is to say, line by line.
fn lines(info: &pb::GetServerInfoResponse) -> Vec<(&'static str, String)> {
    let capabilities = info.capabilities.clone().unwrap_or_default();
    let counts = info.counts.unwrap_or_default();
    let mut lines = vec![("instance", info.instance_id.clone()), ("up", up(info))];
    lines.extend(info.caller.as_ref().map(|caller| ("you", you(caller))));
    let running = match capabilities.max_running {
        0 => String::new(),
        most => format!("; at most {most} run at a time"),
    };
    lines.extend([
        (
            "processes",
            format!(
                "{} live, {} of them queued; {} finished; of those up to {} are kept{running}",
                counts.live, counts.queued, counts.finished, capabilities.max_finished
            ),
        ),
        (
            "events",
            format!("{}; the newest {} are kept", counts.latest_event, capabilities.max_events),
        ),
        ("trees", trees(capabilities.kill_domain()).into()),
        ("limits", listed(&capabilities.limits)),
        ("sandbox", listed(&capabilities.sandbox)),
        (
            "at most",
            format!(
                "{} of output, {} of pending input, {} in a message",
                size(capabilities.max_transcript_bytes),
                size(capabilities.max_pending_input_bytes),
                size(capabilities.max_message_bytes)
            ),
        ),
    ]);
    lines.extend(info.store.as_ref().and_then(repaired).map(|repaired| ("store", repaired)));
    lines
}

fn up(info: &pb::GetServerInfoResponse) -> String {
    let up = info.uptime.as_ref().and_then(words::from_proto).unwrap_or_default();
    let since = info.start_time.as_ref().map(words::time).unwrap_or_default();
    format!("{}, since {since}", words::span(up))
}

/// Who asks, and what it may do.
fn you(caller: &pb::Caller) -> String {
    let mut said = format!("{}, {}", caller.name, caller.role);
    for (what, patterns) in [("owners", &caller.owners), ("workspaces", &caller.workspaces)] {
        if !patterns.is_empty() {
            said.push_str(&format!("; {what} {}", patterns.join(", ")));
        }
    }
    if !caller.may.is_empty() {
        said.push_str(&format!("; may choose {}", caller.may.join(", ")));
    }
    said
}

fn trees(domain: pb::KillDomain) -> &'static str {
    match domain {
        pb::KillDomain::Cgroup => "a cgroup each, ended in one stroke",
        pb::KillDomain::Walk => "found and ended by a walk over descendants",
        pb::KillDomain::Unspecified => "unknown",
    }
}

fn listed(words: &[String]) -> String {
    if words.is_empty() { "none".into() } else { words.join(", ") }
}

/// What became of damaged records; none: none ever were.
fn repaired(store: &pb::Store) -> Option<String> {
    let time = words::time(store.repair_time.as_ref()?);
    let pb::Store { saved_records, saved_events, lost_records, lost_events, .. } = store;
    let file = match store.damaged_file.as_str() {
        "" => String::new(),
        file => format!("; the damaged file is {file}"),
    };
    Some(format!(
        "repaired {time}: {saved_records} records and {saved_events} events were saved; lost in \
         all: at least {lost_records} and {lost_events}{file}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repair_is_told_and_else_nothing_of_it() {
        let sound = pb::GetServerInfoResponse::default();
        assert!(lines(&sound).iter().all(|(word, _)| *word != "store"));
        let repair_time = Some(prost_types::Timestamp { seconds: 0, nanos: 0 });
        let damaged_file = "store.damaged".into();
        let store = pb::Store { repair_time, damaged_file, lost_records: 2, ..Default::default() };
        let damaged = pb::GetServerInfoResponse { store: Some(store), ..sound };
        let (_, said) = lines(&damaged).pop().unwrap();
        assert!(said.starts_with("repaired 1970-01-01T00:00:00.000Z"), "{said}");
        assert!(said.contains("at least 2 and 0; the damaged file is store.damaged"), "{said}");
    }
}
