//! `procyard send`: types text into a process.

use std::process::ExitCode;

use super::client::Remote;
use super::print::Printing;
use super::session;
use super::trouble::Trouble;
use super::typing::{self, Waiting};
use super::which;
use crate::grpc::pb;
use crate::grpc::pb::write_stdin_request::Input;

/// Types text into a process: its terminal, or its stdin if `run` has given it one. Options come before
/// ID: what follows it is typed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard send --enter shell 'ls -l'
  procyard send --enter --wait-quiet 300ms shell make test
  procyard send --enter --wait-output '>>> $' python 'print(6*7)'
  procyard send --stdin --eof sorter < words")]
pub(super) struct Send {
    /// Presses Enter afterwards.
    #[arg(long, short)]
    enter: bool,
    /// Ends its input afterwards: closes a pipe, types the EOF character of a terminal.
    #[arg(long)]
    eof: bool,
    /// Sends what comes from stdin.
    #[arg(long, conflicts_with = "text")]
    stdin: bool,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    printing: Printing,
    /// The process: its id, name or service.
    #[arg(value_name = "ID")]
    which: String,
    /// What to type; words are joined by spaces.
    #[arg(required_unless_present_any = ["stdin", "eof", "enter"], trailing_var_arg = true, allow_hyphen_values = true)]
    text: Vec<String>,
    #[command(flatten)]
    remote: Remote,
}

impl Send {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let mut client = self.remote.connect().await?;
        let mut process = which::find(&mut client, &self.which).await?;
        let mut last = Input::Text(self.text.join(" "));
        if self.stdin {
            let mut stdin = session::read_stdin();
            let mut piece = stdin.recv().await.unwrap_or_default();
            // The last one goes with all the rest.
            while let Some(next) = stdin.recv().await {
                let input = Some(Input::Data(std::mem::replace(&mut piece, next)));
                let request = pb::WriteStdinRequest { input, ..Default::default() };
                let answer =
                    typing::write(&mut client, &process, request, self.waiting.timeout).await?;
                process = answer.process.unwrap_or(process);
            }
            last = Input::Data(piece);
        }
        let wait = self.waiting.to_proto();
        let request = pb::WriteStdinRequest {
            input: Some(last),
            enter: self.enter,
            eof: self.eof,
            view: typing::view(wait.is_some()),
            wait,
            ..Default::default()
        };
        let answer = typing::write(&mut client, &process, request, self.waiting.timeout).await?;
        typing::show(&answer, self.printing)
    }
}
