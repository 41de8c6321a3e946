//! `procyard keys`: presses keys of a process's terminal.

use std::process::ExitCode;

use super::client::Remote;
use super::print::Printing;
use super::trouble::Trouble;
use super::typing::{self, Waiting};
use super::which;
use crate::grpc::pb;
use crate::grpc::pb::write_stdin_request::Input;

/// Presses keys by name: enter tab esc space backspace delete up down left right home end pageup
/// pagedown insert f1 to f12, any single character, and ctrl+c, alt+x, shift+tab. tmux' spellings
/// are known, too: C-c, M-x, BSpace. Options come before ID.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard keys shell up enter
  procyard keys shell C-c
  procyard keys --wait-quiet 200ms editor esc : w q enter; procyard screen editor")]
pub(super) struct Keys {
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    printing: Printing,
    /// The process: its id, name or service.
    #[arg(value_name = "ID")]
    which: String,
    /// The keys, one after the other.
    #[arg(
        value_name = "KEY",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    keys: Vec<String>,
    #[command(flatten)]
    remote: Remote,
}

impl Keys {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let mut client = self.remote.connect().await?;
        let process = which::find(&mut client, &self.which).await?;
        let wait = self.waiting.to_proto();
        let request = pb::WriteStdinRequest {
            input: Some(Input::Keys(pb::Keys { names: self.keys })),
            view: typing::view(wait.is_some()),
            wait,
            ..Default::default()
        };
        let answer = typing::write(&mut client, &process, request, self.waiting.timeout).await?;
        typing::show(&answer, self.printing)
    }
}
