//! The command line: one small file per command.
//!
//! Those that are about processes reach the service as any client does (`client`), print what it
//! says (`print`), and say in one line what went wrong (`trouble`).

mod client;
mod filter;
mod print;
mod session;
mod trouble;
mod typing;
mod usage;
mod which;
mod words;

mod attach;
mod completions;
mod events;
mod healthcheck;
mod info;
mod install;
mod keys;
mod kill;
mod logs;
mod ps;
mod rerun;
mod rm;
mod run;
mod screen;
mod send;
mod signal;
mod wait;

pub mod daemon;
mod keeper;
mod local;
mod options;
mod serve;
mod server;
mod stop;
mod token;
mod upgrade;

use std::error::Error;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::telemetry::Format;
use crate::telemetry::audit_file::AuditFile;
use trouble::Trouble;

/// Runs other people's processes, and never loses one, nor a byte they print.
#[derive(Parser)]
#[command(
    name = "procyard",
    version,
    after_help = "Examples:
  procyard run -- make test
  procyard run -t -- bash
  procyard ps
  procyard logs --follow ID
  procyard kill ID

A process is meant by its id, its name or its service. Live processes win over finished ones, for
`rerun` and `rm` finished ones over live ones; an id wins over a name. If several are left, the
command lists them and does nothing; commands that only read take the newest finished one.

Commands find the supervisor at its usual socket, or where PROCYARD_SERVER says."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a command and follows it, like any other command, under the supervisor.
    Run(Box<run::Run>),
    /// Sits down at a process that runs.
    Attach(attach::Attach),
    /// Types text into a process.
    Send(send::Send),
    /// Presses keys of a process's terminal.
    Keys(keys::Keys),
    /// Shows what the terminal of a process shows.
    Screen(screen::Screen),
    /// Lists processes, newest first.
    Ps(ps::Ps),
    /// Shows what a process printed, and prints.
    Logs(logs::Logs),
    /// Waits until processes have ended, are ready, print something, or pause.
    Wait(wait::Wait),
    /// Ends processes with all their descendants.
    Kill(kill::Kill),
    /// Sends a signal to a process.
    Signal(signal::Signal),
    /// Runs a finished process again.
    Rerun(rerun::Rerun),
    /// Frees finished processes and what they printed.
    Rm(rm::Rm),
    /// Shows what happened to processes, and what happens.
    Events(events::Events),
    /// Shows the supervisor: its version, what it can do here, how much there is.
    Info(info::Info),
    /// Asks whether the service can be called, for probes.
    Healthcheck(healthcheck::Healthcheck),
    /// Copies this program to a path.
    Install(install::Install),
    /// Prints what a shell must know to complete commands and options.
    Completions(completions::Completions),
    /// Runs the supervisor until SIGTERM or ^C.
    Serve(serve::Serve),
    /// Replaces the server that other commands talk to by the version that is now on disk.
    Upgrade(upgrade::Upgrade),
    /// Stops the supervisor that other commands talk to, and all that it runs.
    Stop(stop::Stop),
    /// Makes tokens, and takes them back.
    Token(token::Token),
    /// The server that `serve` starts and restarts; not to be run by hand.
    #[command(hide = true)]
    Server(server::Server),
    /// A keeper whose server connects by itself: for tests and debuggers.
    #[command(hide = true)]
    Keeper(keeper::Keeper),
}

/// How a command ended: with an exit code of its own, or with trouble.
type Ended = Result<ExitCode, Box<dyn Error>>;

/// Runs the command that was asked for.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error, &Cli::command()),
    };
    let format = match &cli.command {
        Command::Serve(serve) => serve.options.log_format,
        Command::Server(server) => server.options.log_format,
        _ => Format::Text,
    };
    match cli.command.begin_log() {
        Ok(LogFiles { audit, problem }) => {
            crate::telemetry::init(format, audit);
            if let Some(problem) = problem {
                tracing::warn!("{problem}; changes are in the log only");
            }
        }
        Err(error) => return Trouble::new(error).end(),
    }
    match cli.command.run() {
        Ok(code) => code,
        Err(error) => match error.downcast::<Trouble>() {
            Ok(trouble) => trouble.end(),
            Err(error) => Trouble::new(error.to_string()).end(),
        },
    }
}

/// The files that logging begins with.
#[derive(Default)]
struct LogFiles {
    /// That of a server.
    audit: Option<AuditFile>,
    /// Why procyard cannot open the default audit file.
    problem: Option<String>,
}

impl Command {
    fn run(self) -> Ended {
        match self {
            Command::Run(run) => asking(run.run()),
            Command::Attach(attach) => asking(attach.run()),
            Command::Send(send) => asking(send.run()),
            Command::Keys(keys) => asking(keys.run()),
            Command::Screen(screen) => asking(screen.run()),
            Command::Ps(ps) => asking(ps.run()),
            Command::Logs(logs) => asking(logs.run()),
            Command::Wait(wait) => asking(wait.run()),
            Command::Kill(kill) => asking(kill.run()),
            Command::Signal(signal) => asking(signal.run()),
            Command::Rerun(rerun) => asking(rerun.run()),
            Command::Rm(rm) => asking(rm.run()),
            Command::Events(events) => asking(events.run()),
            Command::Info(info) => asking(info.run()),
            Command::Healthcheck(healthcheck) => asking(healthcheck.run()),
            Command::Install(install) => Ok(install.run()?),
            Command::Completions(completions) => Ok(completions.run()?),
            Command::Serve(serve) => done(serve.run()),
            Command::Upgrade(upgrade) => done(upgrade.run()),
            Command::Stop(stop) => asking(stop.run()),
            Command::Token(token) => done(token.run()),
            Command::Server(server) => done(server.run()),
            Command::Keeper(keeper) => done(keeper.run()),
        }
    }

    /// Has the log go to its file, if there is to be one, and opens the audit file of a server. A
    /// server that comes later than the one that could open them continues with what it was given.
    fn begin_log(&self) -> Result<LogFiles, String> {
        let (options, is_server) = match self {
            Command::Serve(serve) => (&serve.options, false),
            Command::Server(server) => (&server.options, true),
            _ => return Ok(LogFiles::default()),
        };
        if !is_server {
            options.check_logs()?;
        }
        let log = options.log_file.as_deref().map_or(Ok(()), |path| {
            let begun = crate::telemetry::file::begin(path);
            begun.map_err(|error| format!("--log-file {}: {error}", path.display()))
        });
        if !is_server {
            log?;
        }
        let audit = options.audit_file().map(|path| {
            let audit = AuditFile::new(&path).and_then(|audit| match is_server {
                true => Ok(audit),
                false => audit.check().map(|()| audit),
            });
            audit.map_err(|error| format!("cannot open --audit-file {}: {error}", path.display()))
        });
        if is_server {
            return Ok(LogFiles { audit: audit.and_then(Result::ok), problem: None });
        }
        // The keeper changes nothing for callers.
        match audit.and_then(Result::err) {
            Some(problem) if options.requires_audit_file() => Err(problem),
            problem => Ok(LogFiles { audit: None, problem }),
        }
    }
}

/// A command whose end is all there is to say.
fn done(ended: Result<(), Box<dyn Error>>) -> Ended {
    ended.map(|()| ExitCode::SUCCESS)
}

/// Runs a command that asks the service. One thread does for one client.
fn asking(command: impl Future<Output = Result<ExitCode, Trouble>>) -> Ended {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(command);
    // Whoever waits for stdin would be waited for.
    runtime.shutdown_background();
    Ok(ended?)
}
