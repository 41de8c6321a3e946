//! `procyard stop`: the supervisor ends all that runs, and itself.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::timeout;

use super::client::Remote;
use super::local::{Keeper, Target};
use super::trouble::Trouble;
use super::{print, ps};
use crate::grpc::pb;

/// How long the supervisor may take to end: it gives itself 25 s, and some more if a server is just
/// being replaced.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the server may take to say what runs.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);
/// How many processes are named at most.
const MAX_NAMED: usize = 8;

/// Stops the supervisor that other commands talk to. Its processes end first, as their stop policies
/// say.
#[derive(clap::Args)]
#[command(after_help = "If its input is a terminal it asks before it ends processes.

Examples:
  procyard stop
  procyard stop --yes --state-dir /var/lib/procyard
  procyard stop --server unix:///run/user/1000/other.sock")]
pub(super) struct Stop {
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    target: Target,
}

impl Stop {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let keeper = self.target.keeper()?;
        let live = match self.target.remote(&keeper) {
            Some(remote) => Live::list(&remote).await,
            None => None,
        };
        let (pid, state_dir) = (keeper.pid, keeper.state_dir.display());
        let supervisor = format!("procyard (pid {pid}, {state_dir})");
        let ends = live.as_ref().map_or("all that it runs".into(), Live::to_string);
        let note = if live.is_some() { "" } else { " (its server cannot be asked what that is)" };
        let is_idle = live.is_some_and(|live| live.count == 0);
        if !self.yes
            && !is_idle
            && io::stdin().is_terminal()
            && !confirm(&format!("stop {supervisor} and {ends}{note}?"))?
        {
            return Err(Trouble::new("not stopped"));
        }
        keeper.signal(Signal::TERM)?;
        // A reader that has gone does not undo the stop.
        let _ = print::line(format!("stopping {supervisor} and {ends}"));
        wait(keeper).await?;
        let _ = print::line("stopped");
        Ok(ExitCode::SUCCESS)
    }
}

/// Waits for the end of a keeper, on another thread: the connection that listed its processes closes
/// meanwhile, and the server waits for that.
async fn wait(keeper: Keeper) -> Result<(), Trouble> {
    let pid = keeper.pid;
    let waited = tokio::task::spawn_blocking(move || keeper.ends_within(STOP_TIMEOUT)).await;
    let waited = waited.map_err(io::Error::from).and_then(|ended| ended);
    match waited.map_err(|error| Trouble::new(error.to_string()))? {
        true => Ok(()),
        false => Err(Trouble::new(format!(
            "procyard (pid {pid}) has not ended within {STOP_TIMEOUT:?}; its log tells why"
        ))),
    }
}

/// The live processes of a supervisor.
struct Live {
    count: u64,
    /// The newest of them.
    named: Vec<String>,
}

impl Live {
    /// Lists them; none if the server does not answer, which does not keep it from being stopped.
    async fn list(remote: &Remote) -> Option<Live> {
        timeout(LIST_TIMEOUT, Live::ask(remote)).await.ok()?.ok()
    }

    async fn ask(remote: &Remote) -> Result<Live, Trouble> {
        let mut client = remote.connect().await?;
        let info = client.get_server_info(pb::GetServerInfoRequest {}).await?.into_inner();
        let request =
            pb::ListRequest { live_only: true, page_size: MAX_NAMED as u32, ..Default::default() };
        let listed = client.list(request).await?.into_inner().processes;
        let count = info.counts.unwrap_or_default().live.max(listed.len() as u64);
        Ok(Live { count, named: listed.iter().map(name).collect() })
    }
}

impl std::fmt::Display for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let more = self.count.saturating_sub(self.named.len() as u64);
        let named = self.named.join(", ");
        match (self.count, more) {
            (0, _) => f.write_str("0 running processes"),
            (1, 0) => write!(f, "1 running process: {named}"),
            (count, 0) => write!(f, "{count} running processes: {named}"),
            (count, more) => write!(f, "{count} running processes: {named} and {more} more"),
        }
    }
}

fn name(process: &pb::Process) -> String {
    match ps::name(process) {
        "" => process.id.clone(),
        name => format!("{} ({})", process.id, print::harmless(name)),
    }
}

/// Asks on the terminal, also if stderr is not one; anything but yes is no.
fn confirm(question: &str) -> Result<bool, Trouble> {
    let line = format!("procyard: {question} [y/N] ");
    let asked = match io::stderr().is_terminal() {
        true => print::to_stderr(line.as_bytes()),
        false => File::options()
            .write(true)
            .open("/dev/tty")
            .and_then(|mut terminal| terminal.write_all(line.as_bytes())),
    };
    asked.map_err(|error| {
        Trouble::new(format!("cannot ask on the terminal: {error}; --yes stops without asking"))
    })?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
