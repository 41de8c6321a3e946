//! `procyard ps`: processes, newest first.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::client::{Client, Remote, again};
use super::filter::Filter;
use super::print::{self, Colour, Printing, Table};
use super::trouble::Trouble;
use super::words;
use crate::grpc::pb;

/// Most processes that one answer has.
const PAGE: usize = 1000;

/// Lists processes, newest first: those that have not finished, or all.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard ps                              # what has not finished
  procyard ps --all --limit 20             # the newest 20, finished or not
  procyard ps --outcome failed --label job=build
  procyard ps --output json | jq -r .spec.name")]
pub(super) struct Ps {
    /// Finished ones, too.
    #[arg(long, short)]
    all: bool,
    /// At most so many.
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
    /// Only their ids, one per line.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    printing: Printing,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    remote: Remote,
}

impl Ps {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let mut client = self.remote.connect().await?;
        let mut found = Vec::new();
        self.list(&mut client, |process| {
            // A table is as wide as its widest row; all else goes out as it comes.
            match (self.quiet, self.printing.is_json()) {
                (true, _) => print::line(&process.id)?,
                (false, true) => print::line(print::json(&process))?,
                (false, false) => found.push(process),
            }
            Ok(())
        })
        .await?;
        if !self.quiet && !self.printing.is_json() {
            table(&found, now()).print_to_fit()?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// All that are asked for, page by page.
    async fn list(
        &self,
        client: &mut Client,
        mut each: impl FnMut(pb::Process) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let mut left = self.limit.unwrap_or(usize::MAX);
        let mut request = pb::ListRequest {
            selector: Some(self.filter.selector()),
            live_only: !self.all && !self.filter.asks_for_finished(),
            ..Default::default()
        };
        while left > 0 {
            // Never more than a page, so that it fits.
            request.page_size = left.min(PAGE) as u32;
            let page = again(async || client.list(request.clone()).await).await?;
            for process in page.processes.into_iter().take(left) {
                left -= 1;
                each(process)?;
            }
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// The processes as a table. Names and restarts have a column if there are any.
fn table(processes: &[pb::Process], now: prost_types::Timestamp) -> Table {
    let has_names = processes.iter().any(|process| !name(process).is_empty());
    let has_restarts = processes.iter().any(|process| process.restarts > 0);
    let columns = [
        ("ID", true),
        ("NAME", has_names),
        ("STATE", true),
        ("RESTARTS", has_restarts),
        ("RAN", true),
        ("OUTPUT", true),
        ("COMMAND", true),
    ];
    let shown = columns.iter().filter(|(_, is_shown)| *is_shown);
    let mut table = Table::new(&shown.map(|(heading, _)| *heading).collect::<Vec<_>>());
    for process in processes {
        let spec = process.spec.clone().unwrap_or_default();
        let printed = process.transcript.as_ref().map_or(0, |transcript| transcript.total_bytes);
        let ran = ran(process, &now).map_or("-".into(), words::span);
        let cells = [
            (process.id.clone(), Colour::Plain),
            (name(process).to_owned(), Colour::Plain),
            words::state(process),
            (process.restarts.to_string(), Colour::Plain),
            (ran, Colour::Plain),
            (words::size(printed), Colour::Plain),
            (words::command(&spec), Colour::Plain),
        ];
        let shown = cells.into_iter().zip(&columns).filter(|(_, (_, is_shown))| *is_shown);
        table.row(shown.map(|(cell, _)| cell).collect());
    }
    table
}

/// The name by which commands find a process: its own, else that of its service.
pub(super) fn name(process: &pb::Process) -> &str {
    let Some(spec) = &process.spec else { return "" };
    if spec.name.is_empty() { &spec.service } else { &spec.name }
}

/// How long it has run, or ran.
fn ran(process: &pb::Process, now: &prost_types::Timestamp) -> Option<Duration> {
    let begun = process.start_time.as_ref()?;
    match process.state() {
        pb::State::Exited | pb::State::Backoff => {
            process.exit.as_ref()?.duration.as_ref().and_then(words::from_proto)
        }
        // Other machines have other clocks.
        _ => Some(words::between(begun, now).unwrap_or_default()),
    }
}

fn now() -> prost_types::Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    prost_types::Timestamp { seconds, nanos: now.subsec_nanos().cast_signed() }
}
