//! `procyard events`: what happens to processes.
//!
//! Each event comes once, also when the server is replaced meanwhile (`watching`).

mod watching;

use std::collections::VecDeque;
use std::process::ExitCode;

use watching::Watching;

use super::client::Remote;
use super::filter::{Filter, constant, named};
use super::print::{self, Colour, Printing};
use super::trouble::Trouble;
use super::words;
use crate::grpc::pb::{self, watch_response::Message};

/// The longest word for a kind of event.
const KIND_WIDTH: usize = "restarting".len();

/// Shows what happened to processes, all that is kept, and what happens.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard events --tail 20
  procyard events --follow --kind completed --owner ci
  procyard events --follow --since 1234 --output json | jq -r .processId")]
pub(super) struct Events {
    /// Goes on with what happens.
    #[arg(long, short)]
    follow: bool,
    /// Only what came after this event.
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    since: u64,
    /// Only the last so many; with --follow, begins with them.
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// Only of this kind. Repeatable: one of them.
    #[arg(long, value_parser = named(
        &["queued", "started", "ready", "stopping", "completed", "restarting", "run-again", "deleted"],
        kind,
    ))]
    kind: Vec<pb::Kind>,
    #[command(flatten)]
    printing: Printing,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    remote: Remote,
}

impl Events {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let client = self.remote.connect().await?;
        let request = pb::WatchRequest {
            selector: Some(self.filter.selector()),
            since_event: Some(self.since),
            kinds: self.kind.iter().map(|kind| (*kind).into()).collect(),
            replay_only: true,
            heartbeat_interval: None,
        };
        let mut watching = Watching::new(client, request);
        let mut last = VecDeque::new();
        while let Some(message) = watching.next().await? {
            match self.tail {
                None => self.show(&message)?,
                Some(_) => last.push_back(message),
            }
            while self.tail.is_some_and(|tail| last.len() > tail) {
                last.pop_front();
            }
        }
        for message in &last {
            self.show(message)?;
        }
        if !self.follow {
            return Ok(ExitCode::SUCCESS);
        }
        watching.request.replay_only = false;
        loop {
            if let Some(message) = watching.next().await? {
                self.show(&message)?;
            }
        }
    }

    fn show(&self, message: &Message) -> Result<(), Trouble> {
        match message {
            Message::Event(event) if self.printing.is_json() => print::line(print::json(event))?,
            Message::Event(event) => print::line(line(event))?,
            Message::Gap(gap) => print::tell(missing(gap)),
            Message::Heartbeat(_) => {}
        }
        Ok(())
    }
}

/// An event as a line.
fn line(event: &pb::Event) -> String {
    let time = event.time.as_ref().map(words::time).unwrap_or_default();
    let process = event.process.clone().unwrap_or_default();
    let word = event.kind().as_str_name().trim_start_matches("KIND_").to_ascii_lowercase();
    let word = word.replace('_', " ");
    let (detail, colour) = match (event.kind(), &process.exit) {
        (pb::Kind::Completed | pb::Kind::Restarting, Some(exit)) => {
            (words::end(exit), words::ending(exit).1)
        }
        (pb::Kind::Queued | pb::Kind::Started | pb::Kind::RunAgain, _) => {
            let spec = process.spec.unwrap_or_default();
            (words::command(&spec), Colour::Plain)
        }
        _ => (String::new(), Colour::Plain),
    };
    let (id, detail) = (print::harmless(&event.process_id), print::harmless(&detail));
    let painted = colour.paint(&format!("{word:KIND_WIDTH$}"));
    let dim = Colour::Dim.paint(&format!("{time}  {:>6}", event.seq));
    format!("{dim}  {painted}  {id}  {detail}").trim_end().to_owned()
}

/// A gap as a line for stderr.
fn missing(gap: &pb::Gap) -> String {
    let pb::Gap { from_seq, to_seq, dropped_bytes: _ } = gap;
    format!("events {from_seq} to {to_seq} are missing here: not kept any more")
}

fn kind(word: &str) -> Option<pb::Kind> {
    pb::Kind::from_str_name(&constant("KIND", word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_told_by_its_numbers() {
        let gap = pb::Gap { from_seq: 2, to_seq: 7, dropped_bytes: None };
        assert!(missing(&gap).contains("events 2 to 7 are missing"));
    }

    #[test]
    fn each_kind_of_event_is_known_by_its_word() {
        for word in [
            "queued",
            "started",
            "ready",
            "stopping",
            "completed",
            "restarting",
            "run-again",
            "deleted",
        ] {
            assert!(kind(word).is_some(), "{word}");
            assert!(word.len() <= KIND_WIDTH);
        }
        let process = pb::Process { spec: None, ..Default::default() };
        let (process_id, process) = ("p\x1b".into(), Some(process));
        let kind = pb::Kind::RunAgain.into();
        let line = line(&pb::Event { seq: 7, time: None, process_id, kind, process });
        assert!(line.ends_with("     7  run again   p\\u{1b}"), "{line:?}");
    }
}
