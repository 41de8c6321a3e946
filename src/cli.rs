//! The command line: one small file per command.

mod keeper;
mod options;
mod serve;
mod server;
mod token;
mod upgrade;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::telemetry::Format;

/// Runs other people's processes, and never loses one, nor a byte they print.
#[derive(Parser)]
#[command(name = "procyard", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the supervisor until SIGTERM or ^C.
    Serve(serve::Serve),
    /// Replaces the server of a running `serve` by the version that is now on disk.
    Upgrade(upgrade::Upgrade),
    /// Makes tokens, and takes them back.
    Token(token::Token),
    /// The server that `serve` starts and restarts; not to be run by hand.
    #[command(hide = true)]
    Server(server::Server),
    /// A keeper whose server connects by itself: for tests and debuggers.
    #[command(hide = true)]
    Keeper(keeper::Keeper),
}

/// Runs the command that was asked for.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let format = match &cli.command {
        Command::Serve(serve) => serve.options.log_format,
        Command::Server(server) => server.options.log_format,
        Command::Upgrade(_) | Command::Token(_) | Command::Keeper(_) => Format::Text,
    };
    crate::telemetry::init(format);
    let done = match cli.command {
        Command::Serve(serve) => serve.run(),
        Command::Upgrade(upgrade) => upgrade.run(),
        Command::Token(token) => token.run(),
        Command::Server(server) => server.run(),
        Command::Keeper(keeper) => keeper.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::telemetry::say(&format!("procyard: {error}\n"));
            ExitCode::FAILURE
        }
    }
}
