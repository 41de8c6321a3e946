//! `procyard signal`: one signal, and nothing else.

use std::process::ExitCode;

use super::client::Remote;
use super::trouble::Trouble;
use super::which;
use crate::grpc::pb;

/// Sends a signal to a process, and leaves the rest to it.
#[derive(clap::Args)]
#[command(after_help = "To end it with all its descendants: `procyard kill`.

Examples:
  procyard signal web HUP
  procyard signal --group ID INT")]
pub(super) struct Signal {
    /// The process: its id, name or service.
    id: String,
    /// The signal, as TERM, SIGTERM or 15.
    signal: String,
    /// To its process group instead of the process alone.
    #[arg(long)]
    group: bool,
    #[command(flatten)]
    remote: Remote,
}

impl Signal {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let mut client = self.remote.connect().await?;
        let id = which::find(&mut client, &self.id).await?.id;
        // Once: nobody could tell a second one from the first.
        client.signal(pb::SignalRequest { id, signal: self.signal, group: self.group }).await?;
        Ok(ExitCode::SUCCESS)
    }
}
