//! `procyard run`: a command that runs under the supervisor, and looks like any other from here.

mod friendly;
mod options;
mod reach;
mod readiness;

use std::io::IsTerminal;
use std::process::ExitCode;

use tonic::Status;
use tonic_types::StatusExt;

use super::client::{Attempts, Client, Remote, again};
use super::session::{self, DetachKeys, Left, Manner, RawMode, Session, Signals};
use super::trouble::Trouble;
use super::{print, words};
use crate::grpc::pb;
use options::SpecOptions;

/// Runs a command and follows it like any other: its output, its exit code, your input, your
/// signals. The supervisor has it: it is listed by `ps`, survives this terminal's connection, and
/// can be attached to. Without a supervisor on the usual socket, one is started. Closing the
/// terminal hangs up on it, too, unless it was left alone before, by -d or the detach keys.
#[derive(clap::Args)]
#[command(
    after_help = "Exit code: that of COMMAND; 128+N if signal N ended it; 124 if its --timeout \
did; 125 if procyard failed; 126 if COMMAND cannot be executed; 127 if it is not found.

Examples:
  procyard run -- make -j8
  sort words | procyard run -- uniq -c > counts
  procyard run -t -- bash
  id=$(procyard run -d --name web -e PORT=8080 -- ./server); procyard logs -f $id
  procyard run -d --service web --restart on-failure --ready-port 8080 -- ./server
  procyard run --timeout 30s -e URL --shell 'curl -s \"$URL\" | jq .'"
)]
pub(super) struct Run {
    /// Gives it a terminal: for shells, editors and whatever else one looks at.
    #[arg(long, short)]
    tty: bool,
    /// Prints its id and leaves it alone.
    #[arg(long, short)]
    detach: bool,
    /// Keeps its stdin open with -d, for `send` and `attach`.
    #[arg(long = "stdin", short = 'i', conflicts_with = "no_stdin")]
    keep_stdin: bool,
    /// Forgets it when it has ended.
    #[arg(long, conflicts_with = "detach")]
    rm: bool,
    /// Leaves stdin to whoever reads it next, as in `while read`.
    #[arg(long, short = 'n')]
    no_stdin: bool,
    /// Keys that leave it alone while you look at it, with -t, each within a second of the one before;
    /// `none`: there are no such keys.
    #[arg(long, value_name = "KEYS", default_value = DetachKeys::USUAL)]
    detach_keys: DetachKeys,
    #[command(flatten)]
    spec: SpecOptions,
    #[command(flatten)]
    remote: Remote,
}

impl Run {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        self.begin().await.map_err(|(trouble, code)| trouble.with_code(code))
    }

    async fn begin(mut self) -> Result<ExitCode, (Trouble, u8)> {
        let failed = |trouble: Trouble| (trouble, words::FAILED);
        let spec = self.spec(self.remote.place().is_local()).map_err(failed)?;
        let id = self.spec.id.clone().unwrap_or_else(|| friendly::id(&self.spec.program()));
        // Nothing is there yet that a signal could be for: it ends this program.
        let client = reach::reach(&self.remote).await.map_err(failed)?;
        let signals = Signals::begin().map_err(|error| failed(error.into()))?;
        let request = pb::StartRequest { id, spec: Some(spec), ..Default::default() };
        let (signals, process) = match start(&self.remote, client.clone(), request, signals).await {
            Started::Process { signals, process, existed } => {
                // A process of an earlier call is not this one's to delete.
                self.rm &= !existed;
                (signals, *process)
            }
            Started::Asked(number) => return Ok(words::by_signal(number).into()),
            Started::Failed(trouble, code) => return Err((trouble, code)),
        };
        if self.detach {
            print::line(&process.id).map_err(|error| failed(error.into()))?;
            return Ok(ExitCode::SUCCESS);
        }
        self.follow(client, process, signals).await.map_err(failed)
    }

    /// What is to be run.
    fn spec(&self, local: bool) -> Result<pb::Spec, Trouble> {
        let mut spec = self.spec.spec(local, self.tty)?;
        let watched = !self.detach;
        if watched && !self.tty {
            // Who reads it may be slow: it waits as it would for a pipe, and nothing is lost.
            spec.overflow = pb::Overflow::Block.into();
        }
        if spec.service.is_empty() {
            let mode = if watched { pb::Mode::Foreground } else { pb::Mode::Background };
            spec.mode = mode.into();
        }
        spec.io = Some(match self.tty {
            true => pb::spec::Io::Terminal(terminal()),
            false => {
                let stdin = self.reads_stdin() || self.detach && self.keep_stdin;
                pb::spec::Io::Pipes(pb::Pipes { stdin, merge_stderr: false })
            }
        });
        if let Some(env) = spec.env.as_mut().filter(|_| local) {
            // A procyard that it runs finds the same supervisor.
            let here = self.remote.place().to_string();
            env.set.entry("PROCYARD_SERVER".into()).or_insert(here);
        }
        Ok(spec)
    }

    /// Whether what comes from stdin is for it. One that is run again has no use for the rest.
    fn reads_stdin(&self) -> bool {
        if self.no_stdin || self.detach {
            return false;
        }
        // A terminal is told of the end of an empty input, too: it has no other way to learn of it.
        self.tty || self.spec.service.is_none() && session::stdin_is_open()
    }

    async fn follow(
        &self,
        client: Client,
        process: pb::Process,
        signals: Signals,
    ) -> Result<ExitCode, Trouble> {
        let stdin = self.reads_stdin();
        let raw = match self.tty && stdin && std::io::stdin().is_terminal() {
            true => Some(RawMode::begin()?),
            false => None,
        };
        let manner = Manner {
            since_seq: Some(0),
            stdin,
            ends_input: true,
            detach: raw.is_some().then(|| self.detach_keys.clone()),
            raw,
            terminal: self.tty,
            follows_window: self.tty,
            acknowledge: (!self.tty).then_some(self.spec.transcript_bytes()),
            owner: true,
            waits: session::waits(&process),
        };
        let id = process.id;
        let left = Session::begin(client.clone(), id.clone(), manner, signals).run().await;
        session::tidy(client.clone(), &id, self.tty, &left).await;
        match left {
            Ok(Left::Ended(process)) => {
                words::end_by_others(&process).into_iter().for_each(print::tell);
                self.forget(client, id).await;
                if let Some(number) = process.exit.as_ref().and_then(|exit| exit.signal) {
                    session::end_by(number);
                }
                Ok(words::exit_code(&process).into())
            }
            Ok(Left::Detached { reached, waits }) => {
                let goes_on = words::goes_on(reached, waits);
                print::tell(format!("{id} {goes_on}; `procyard attach {id}` comes back"));
                Ok(ExitCode::SUCCESS)
            }
            Ok(Left::Unwritable(error)) => {
                self.forget(client, id).await;
                Err(error.into())
            }
            Ok(Left::Canceled(number)) => {
                self.forget(client, id).await;
                session::end_by(number);
                Ok(words::by_signal(number).into())
            }
            Ok(Left::Asked(number)) => {
                // Anybody else may be who does not read what was to be written.
                if std::io::stderr().is_terminal() {
                    print::tell(format!("{id} may run on; `procyard kill {id}` ends it"));
                }
                session::end_by(number);
                Ok(words::by_signal(number).into())
            }
            Err(trouble) if trouble.is_missing() || trouble.is_supervisor_end() => Err(trouble),
            Err(trouble) => Err(Trouble::new(format!("{trouble}; {id} may run on"))),
        }
    }

    /// Frees it when it has ended, if it is to be. Its code is passed on all the same.
    async fn forget(&self, mut client: Client, id: String) {
        if !self.rm {
            return;
        }
        let request = pb::DeleteRequest { id: id.clone(), force: false, allow_missing: true };
        if let Err(status) = again(async || client.delete(request.clone()).await).await {
            print::tell(format!("{id} is kept: {}", Trouble::from(status)));
        }
    }
}

/// What came of a start.
enum Started {
    Process {
        signals: Signals,
        process: Box<pb::Process>,
        existed: bool,
    },
    /// We were asked to end, twice, before anybody had answered.
    Asked(i32),
    /// It was not, and what to exit with.
    Failed(Trouble, u8),
}

/// Starts it, unless we are asked to end before.
async fn start(
    remote: &Remote,
    client: Client,
    request: pb::StartRequest,
    mut signals: Signals,
) -> Started {
    let mut first = None;
    let answer = tokio::select! {
        answer = start_once(remote, client, request) => answer,
        number = signals.second(&mut first) => return Started::Asked(number),
    };
    // It is the process that this was meant for.
    first.into_iter().for_each(|number| signals.put_back(number));
    match answer {
        Ok(started) => {
            let process = started.process.unwrap_or_default();
            if started.existed && process.state() == pb::State::Exited {
                let id = &process.id;
                print::tell(format!("{id} has run already; `procyard rerun {id}` runs it again"));
            }
            Started::Process { signals, process: Box::new(process), existed: started.existed }
        }
        Err((trouble, code)) => Started::Failed(trouble, code),
    }
}

/// Asks again if the answer was lost: the id is ours, so it is started once.
async fn start_once(
    remote: &Remote,
    mut client: Client,
    request: pb::StartRequest,
) -> Result<pb::StartResponse, (Trouble, u8)> {
    let (mut attempts, mut asked) = (Attempts::begin(), false);
    loop {
        let status = match client.start(request.clone()).await {
            Ok(started) => {
                let started = started.into_inner();
                // It may be us who started it.
                return Ok(pb::StartResponse { existed: started.existed && !asked, ..started });
            }
            Err(status) => status,
        };
        asked = true;
        let code = code_of(&status);
        attempts.pause_after(status).await.map_err(|status| (status.into(), code))?;
        // The supervisor may have been stopped meanwhile. Another one has the same records.
        reach::found(remote).await.map_err(|trouble| (trouble, words::FAILED))?;
    }
}

/// As shells tell of a command that could not be begun.
fn code_of(refused: &Status) -> u8 {
    let details = refused.get_error_details();
    let Some(info) = details.error_info().filter(|info| info.reason == "SPAWN_FAILED") else {
        return words::FAILED;
    };
    let told = |key: &str| info.metadata.get(key).map(String::as_str).unwrap_or_default();
    // The directory or the user may be at fault instead.
    match (told("step"), told("errno").parse()) {
        ("cannot execute", Ok(libc::ENOENT)) => words::NOT_FOUND,
        ("cannot execute", _) => words::NOT_EXECUTED,
        _ => words::FAILED,
    }
}

/// A terminal like ours.
fn terminal() -> pb::Terminal {
    let size = session::window().unwrap_or_default();
    let term = std::env::var("TERM").unwrap_or_default();
    pb::Terminal { rows: size.rows, cols: size.cols, term }
}
