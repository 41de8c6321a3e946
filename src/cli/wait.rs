//! `procyard wait`: until processes have ended, are ready, print something, or pause.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::client::{Client, Remote, again};
use super::print::{self, Printing};
use super::trouble::Trouble;
use super::which;
use super::words::{self, read_span};
use crate::grpc::pb::{self, wait_for, wait_for::Until};
use crate::grpc::to_proto;

/// It ended before what was awaited happened.
const ENDED_BEFORE: u8 = 1;

/// Waits until processes have ended, and exits with their code.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: that of the process, or 128 and the number of the signal that \
ended it; 124 if its --timeout did, or the one given here was over; 125 if nobody knows how it \
ended, or procyard failed; with several, the first in their order that is not 0. With --ready, --prints or --quiet: 0 when that was met, 1 if it ended before.

Examples:
  procyard wait ID
  procyard run -d --name web --ready-port 8080 --ready-timeout 1m -- python3 -u -m http.server 8080
  procyard wait --ready --timeout 1m web && curl -s localhost:8080
  procyard wait --prints 'Serving HTTP' web"
)]
pub(super) struct Wait {
    /// The processes: ids, names or services. All are waited for.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Until it is ready.
    #[arg(long, group = "until")]
    ready: bool,
    /// Until it has printed something that matches, since the oldest output that is kept.
    #[arg(long, value_name = "REGEX", group = "until")]
    prints: Option<String>,
    /// Until it has printed nothing for so long.
    #[arg(long, value_name = "TIME", group = "until", value_parser = read_span)]
    quiet: Option<Duration>,
    /// For so long at most.
    #[arg(long, value_name = "TIME", value_parser = read_span)]
    timeout: Option<Duration>,
    #[command(flatten)]
    printing: Printing,
    #[command(flatten)]
    remote: Remote,
}

impl Wait {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        // Not to be taken for the code of a process.
        self.wait_for_all().await.map_err(|trouble| trouble.with_code(words::FAILED))
    }

    async fn wait_for_all(self) -> Result<ExitCode, Trouble> {
        let client = self.remote.connect().await?;
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let waits = self.ids.iter().map(|id| self.wait(client.clone(), id, deadline));
        let codes = try_join_all(waits).await?;
        Ok(codes.into_iter().find(|code| *code != 0).unwrap_or_default().into())
    }

    async fn wait(
        &self,
        mut client: Client,
        id: &str,
        deadline: Option<Instant>,
    ) -> Result<u8, Trouble> {
        let id = which::find(&mut client, id).await?.id;
        let answer = again(async || {
            // Made again, it has only what is left of the time.
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.map(to_proto::duration);
            let wait = Some(pb::WaitFor { until: Some(self.until()), timeout });
            client.wait(pb::WaitRequest { id: id.clone(), wait, ..Default::default() }).await
        })
        .await?;
        if self.printing.is_json() {
            print::line(print::json(&answer))?;
        } else {
            print::line(format!("{id}: {}", self.told(&answer)))?;
        }
        Ok(self.code(&answer))
    }

    fn until(&self) -> Until {
        if self.ready {
            return Until::Ready(wait_for::Ready {});
        }
        if let Some(regex) = &self.prints {
            return Until::Output(wait_for::Output { regex: regex.clone() });
        }
        match self.quiet.map(to_proto::duration) {
            Some(span) => Until::Quiet(wait_for::Quiet { r#for: Some(span) }),
            None => Until::Exit(wait_for::Exit {}),
        }
    }

    fn code(&self, answer: &pb::WaitResponse) -> u8 {
        let result = answer.wait.clone().unwrap_or_default();
        match (result.met, result.timed_out, self.until(), &answer.process) {
            (_, true, _, _) => words::TIMED_OUT,
            (true, _, Until::Exit(_), Some(process)) => words::exit_code(process),
            (true, _, _, _) => 0,
            (false, ..) => ENDED_BEFORE,
        }
    }

    /// What came of it, in a line.
    fn told(&self, answer: &pb::WaitResponse) -> String {
        let result = answer.wait.clone().unwrap_or_default();
        let process = answer.process.clone().unwrap_or_default();
        match (result.r#match, process.exit) {
            (Some(matching), _) => {
                format!("printed {} in chunk {}", print::harmless(&matching.text), matching.seq)
            }
            (None, _) if result.timed_out => "the time is over".into(),
            (None, Some(exit)) if process.state == i32::from(pb::State::Exited) => {
                words::end(&exit)
            }
            (None, _) if self.ready => "ready".into(),
            (None, _) => "quiet".into(),
        }
    }
}
