//! `procyard rm`: frees records of finished processes.

use std::process::ExitCode;

use super::client::{Client, Remote, again};
use super::print;
use super::trouble::Trouble;
use super::which;
use crate::grpc::pb;

/// Frees finished processes and what they printed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard rm ID
  procyard ps --quiet --outcome failed | xargs -r procyard rm --missing-ok")]
pub(super) struct Rm {
    /// The processes: ids, names or services.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Kills those that have not finished first.
    #[arg(long, short)]
    force: bool,
    /// Those that are not there are fine.
    #[arg(long)]
    missing_ok: bool,
    #[command(flatten)]
    remote: Remote,
}

impl Rm {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let mut client = self.remote.connect().await?;
        let mut code = ExitCode::SUCCESS;
        for id in &self.ids {
            match self.free(&mut client, id).await {
                Ok(Some(id)) => print::line(id)?,
                Ok(None) => {}
                Err(trouble) => code = trouble.end(),
            }
        }
        Ok(code)
    }

    /// The id that was freed; none if it was not there, which is fine.
    async fn free(&self, client: &mut Client, id: &str) -> Result<Option<String>, Trouble> {
        let id = match which::find_finished(client, id).await {
            Ok(process) => process.id,
            Err(trouble) if self.missing_ok && trouble.is_missing() => return Ok(None),
            Err(trouble) => return Err(trouble),
        };
        let (force, mut allow_missing) = (self.force, self.missing_ok);
        again(async || {
            let request = pb::DeleteRequest { id: id.clone(), force, allow_missing };
            // If the answer is lost, it may be gone by the next time.
            allow_missing = true;
            client.delete(request).await
        })
        .await?;
        Ok(Some(id))
    }
}
