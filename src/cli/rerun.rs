//! `procyard rerun`: a finished process, once more.

use std::process::ExitCode;

use super::client::{Attempts, Remote};
use super::print::{self, Printing};
use super::trouble::Trouble;
use super::which;
use crate::grpc::pb;

/// Runs a finished process again, under its id and as it was.
#[derive(clap::Args)]
#[command(
    after_help = "The output of a process that `run` has started waits for no reader when it runs \
again: the oldest is dropped when the transcript is full.

Examples:
  procyard rerun --force ID && procyard wait ID
  procyard rerun --force ID && procyard logs --follow ID"
)]
pub(super) struct Rerun {
    /// The process: its id, name or service.
    id: String,
    /// Clears what it has printed, and its structured output.
    #[arg(long, short)]
    force: bool,
    #[command(flatten)]
    printing: Printing,
    #[command(flatten)]
    remote: Remote,
}

impl Rerun {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let mut client = self.remote.connect().await?;
        let before = which::find_finished(&mut client, &self.id).await?;
        let request = pb::RunRequest { id: before.id.clone(), force: self.force };
        let mut attempts = Attempts::begin();
        let process = loop {
            match client.run(request.clone()).await {
                Ok(answer) => break answer.into_inner().process.unwrap_or_default(),
                Err(status) => attempts.pause_after(status).await?,
            }
            // It may have been obeyed all the same, and once is enough.
            match which::get(&mut client, &before.id).await? {
                Some(now) if now.run > before.run => break now,
                _ => {}
            }
        };
        if self.printing.is_json() {
            print::line(print::json(&process))?;
        } else {
            print::line(format!("{}: run {}", process.id, process.run))?;
        }
        let spec = process.spec.unwrap_or_default();
        // One in the foreground drops its oldest output instead when it runs again.
        if spec.overflow() == pb::Overflow::Block && spec.mode() != pb::Mode::Foreground {
            print::tell(format!(
                "it waits when its transcript is full, until `procyard attach --acknowledge {}` reads it",
                process.id
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}
