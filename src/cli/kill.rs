//! `procyard kill`: ends processes, with all their descendants.

use std::process::ExitCode;
use std::time::Duration;

use futures_util::future::join_all;
use tonic::Status;

use super::client::{Client, Remote, again, is_lost};
use super::filter::Filter;
use super::print::{self, Printing};
use super::trouble::Trouble;
use super::which;
use super::words::{self, read_span};
use crate::grpc::pb::{self, kill_request::Target};
use crate::grpc::to_proto;

/// Ends processes with all their descendants: a signal, and SIGKILL when the grace is over.
#[derive(clap::Args)]
#[command(
    after_help = "It returns when all of them are gone. `procyard signal` sends a signal and \
nothing else.

Examples:
  procyard kill ID
  procyard kill --grace 2s ID OTHER
  procyard kill --label job=build --force
  procyard kill --service web"
)]
pub(super) struct Kill {
    /// The processes: their ids, or names.
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// The signal to ask with. The default is as each was started with, or TERM.
    #[arg(long, short, value_name = "SIGNAL", conflicts_with = "force")]
    signal: Option<String>,
    /// The time until SIGKILL. The default is as each was started with, or 10s.
    #[arg(long, value_name = "TIME", value_parser = read_span, conflicts_with = "force")]
    grace: Option<Duration>,
    /// SIGKILL at once.
    #[arg(long, short)]
    force: bool,
    #[command(flatten)]
    printing: Printing,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    remote: Remote,
}

impl Kill {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        if self.ids.is_empty() == self.filter.is_empty() {
            let both = "give ids, or filters such as --name or --label: one of the two";
            return Err(Trouble::new(both).with_code(2));
        }
        let mut client = self.remote.connect().await?;
        if self.ids.is_empty() {
            // Asked once: what has begun since would be meant by the same words. And not one by
            // one, by ids: what waits in a queue would begin only to be ended.
            let all = self.request(Target::Selector(self.filter.selector()));
            let answer = client.kill(all).await.map_err(unsure)?.into_inner();
            self.show(&answer)?;
            return Ok(ExitCode::SUCCESS);
        }
        // Each has its own grace, so they are ended side by side.
        let ends = self.ids.iter().map(|id| self.end_one(client.clone(), id));
        let mut code = ExitCode::SUCCESS;
        for ended in join_all(ends).await {
            match ended {
                Ok(answer) => self.show(&answer)?,
                Err(trouble) => code = trouble.end(),
            }
        }
        Ok(code)
    }

    async fn end_one(&self, mut client: Client, id: &str) -> Result<pb::KillResponse, Trouble> {
        let id = which::find(&mut client, id).await?.id;
        let request = self.request(Target::Id(id));
        Ok(again(async || client.kill(request.clone()).await).await?)
    }

    fn request(&self, target: Target) -> pb::KillRequest {
        pb::KillRequest {
            target: Some(target),
            signal: self.signal.clone(),
            grace: self.grace.map(to_proto::duration),
            force: self.force,
        }
    }

    fn show(&self, answer: &pb::KillResponse) -> Result<(), Trouble> {
        if self.printing.is_json() {
            return Ok(print::line(print::json(answer))?);
        }
        if answer.processes.is_empty() {
            print::line("nothing that lives matches")?;
        }
        for process in &answer.processes {
            let ended = process.exit.as_ref().map(words::end).unwrap_or_default();
            print::line(format!("{}: {}", process.id, print::harmless(&ended)))?;
        }
        if answer.not_listed > 0 {
            print::line(format!("and {} more processes", answer.not_listed))?;
        }
        let own: Vec<_> = answer.processes.iter().map(|process| process.pid).collect();
        let others = answer.killed.iter().filter(|killed| !own.contains(&killed.pid));
        let others: Vec<_> = others
            .map(|other| format!("{} ({})", print::harmless(&other.command), other.pid))
            .collect();
        if !others.is_empty() {
            print::line(format!("and with them {}", others.join(", ")))?;
        }
        Ok(())
    }
}

/// Trouble with an order of which nobody may know whether it was obeyed.
fn unsure(status: Status) -> Trouble {
    let lost = is_lost(&status);
    let trouble = Trouble::from(status);
    match lost {
        true => Trouble::new(format!("{trouble}; `procyard ps` shows what still lives")),
        false => trouble,
    }
}
