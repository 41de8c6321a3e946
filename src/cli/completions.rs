//! `procyard completions`: what a shell must know to complete commands and options.

use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::print;
use super::trouble::Trouble;

/// Prints what a shell must know to complete commands and options.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  source <(procyard completions bash)
  procyard completions zsh > ~/.zfunc/_procyard
  procyard completions fish > ~/.config/fish/completions/procyard.fish")]
pub(super) struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<ExitCode, Trouble> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut offered(), "procyard", &mut script);
        print::to_stdout(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The commands without those that are not to be run by hand.
fn offered() -> Command {
    let all = Cli::command();
    let offered = all.get_subcommands().filter(|command| !command.is_hide_set());
    Command::new("procyard").version(env!("CARGO_PKG_VERSION")).subcommands(offered.cloned())
}
