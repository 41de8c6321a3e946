//! `procyard screen`: what the terminal of a process shows.

use std::process::ExitCode;

use super::client::{Remote, again};
use super::print::{self, Printing};
use super::trouble::Trouble;
use super::which;
use crate::grpc::pb;

/// Shows what the terminal of a process shows now, or showed at its end, as text.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard screen editor
  procyard screen --ansi top
  procyard screen -o json editor | jq '.cursorRow'")]
pub(super) struct Screen {
    /// With colours, as bytes that draw it on an empty terminal.
    #[arg(long)]
    ansi: bool,
    #[command(flatten)]
    printing: Printing,
    /// The process: its id, name or service.
    #[arg(value_name = "ID")]
    which: String,
    #[command(flatten)]
    remote: Remote,
}

impl Screen {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let mut client = self.remote.connect().await?;
        let id = which::find(&mut client, &self.which).await?.id;
        let request = pb::ScreenRequest { id };
        let screen = again(async || client.screen(request.clone()).await).await?;
        if self.printing.is_json() {
            print::line(print::json(&screen))?;
        } else if self.ansi {
            print::to_stdout(&screen.ansi)?;
        } else {
            // What is below all that is shown says nothing.
            let used = screen.rows.iter().rposition(|row| !row.is_empty()).map_or(0, |row| row + 1);
            for row in &screen.rows[..used] {
                print::line(row)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
