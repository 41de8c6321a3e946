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
    after_help = "It returns when all of them are gone, and fails 5 s after the grace period if \
SIGKILL does not end all. `procyard signal` sends a signal and \
nothing else. If a word means no process, or several, nothing is ended.

Examples:
  procyard kill ID
  procyard kill --grace 2s ID OTHER
  procyard kill --label job=build --force
  procyard kill --service web"
)]
pub(super) struct Kill {
    /// The processes: ids, names or services.
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
            return self.show(&answer, false);
        }
        match self.resolve(&client).await {
            Ok(found) => self.end_each(&client, &found).await,
            Err(code) => Ok(code),
        }
    }

    /// The processes that the words mean, each once; if a word means none or several, an exit code,
    /// and every such word is reported.
    async fn resolve(&self, client: &Client) -> Result<Vec<pb::Process>, ExitCode> {
        let find = async |word: &String| which::find(&mut client.clone(), word).await;
        let (mut found, mut failure) = (Vec::<pb::Process>::new(), None);
        for resolved in join_all(self.ids.iter().map(find)).await {
            match resolved {
                Ok(process) if found.iter().any(|other| other.id == process.id) => {}
                Ok(process) => found.push(process),
                Err(trouble) => failure = Some(trouble.end()),
            }
        }
        failure.map_or(Ok(found), Err)
    }

    /// Ends processes side by side, as each has its own grace.
    async fn end_each(&self, client: &Client, found: &[pb::Process]) -> Result<ExitCode, Trouble> {
        let ends = found.iter().map(|process| self.end_one(client.clone(), process));
        let mut code = ExitCode::SUCCESS;
        for (before, ended) in found.iter().zip(join_all(ends).await) {
            match ended {
                Ok(answer) => {
                    let shown = self.show(&answer, had_ended(before))?;
                    code = if answer.unkillable.is_empty() { code } else { shown };
                }
                Err(trouble) => code = trouble.end(),
            }
        }
        Ok(code)
    }

    async fn end_one(
        &self,
        mut client: Client,
        process: &pb::Process,
    ) -> Result<pb::KillResponse, Trouble> {
        let request = self.request(Target::Id(process.id.clone()));
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

    /// Prints an answer, and fails if SIGKILL did not end all that it was sent to. `had_ended`: the
    /// kill came after the end.
    fn show(&self, answer: &pb::KillResponse, had_ended: bool) -> Result<ExitCode, Trouble> {
        match self.printing.is_json() {
            true => print::line(print::json(answer))?,
            false => show(answer, had_ended)?,
        }
        if answer.unkillable.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        Ok(unkillable(&answer.unkillable).end())
    }
}

fn had_ended(process: &pb::Process) -> bool {
    process.state() == pb::State::Exited
}

/// Prints an answer for people.
fn show(answer: &pb::KillResponse, had_ended: bool) -> Result<(), Trouble> {
    if answer.processes.is_empty() {
        print::line("nothing that lives matches")?;
    }
    for process in &answer.processes {
        let ended = process.exit.as_ref().map_or("still running".into(), words::end);
        let had_ended = if had_ended { " had already ended" } else { "" };
        print::line(format!("{}{had_ended}: {}", process.id, print::harmless(&ended)))?;
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

/// The failure to end processes, each with its reason.
fn unkillable(unkillable: &[pb::Descendant]) -> Trouble {
    let named = unkillable.iter().map(|one| {
        format!("{} ({}): {}", print::harmless(&one.command), one.pid, print::harmless(&one.error))
    });
    let named = named.collect::<Vec<_>>().join("; ");
    Trouble::new(format!("cannot kill {named}; it still runs"))
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
