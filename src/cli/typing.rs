//! Types into a process from afar, and prints what comes of it: what `send` and `keys` share.
//!
//! A write is done once though it may be asked for twice: it is repeated, after an answer was lost,
//! with the place in the input at which it began, and the service skips what it has. The first time
//! it has none: others may type at the same time, and what comes after them is to come after them.
//! What was to be waited for may have been printed before the repeated write: it is looked for in
//! all that came since the process was found.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;

use super::client::{Attempts, Client, again, reason};
use super::print::{self, Printing};
use super::trouble::Trouble;
use super::words::{TIMED_OUT, read_span};
use crate::grpc::pb;
use crate::grpc::pb::wait_for::{Output, Quiet, Until};
use crate::grpc::to_proto::duration;

/// How long a process that does not read is waited for, between two looks.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// What to wait for afterwards.
#[derive(clap::Args)]
pub(super) struct Waiting {
    /// Waits until nothing was printed for so long, and prints what came.
    #[arg(long, value_name = "SPAN", value_parser = read_span, conflicts_with = "wait_output")]
    wait_quiet: Option<Duration>,
    /// Waits until something is printed that matches, and prints what came. On a terminal what is
    /// typed is printed, too.
    #[arg(long, value_name = "REGEX")]
    wait_output: Option<String>,
    /// How long to wait at most, for that, and before for a process that does not read what it has;
    /// exit code 124 if it was too long.
    #[arg(long, value_name = "SPAN", value_parser = read_span, default_value = "30s")]
    pub(super) timeout: Duration,
}

impl Waiting {
    /// The same for the service.
    pub(super) fn to_proto(&self) -> Option<pb::WaitFor> {
        let until = match (self.wait_quiet, &self.wait_output) {
            (Some(span), _) => Until::Quiet(Quiet { r#for: Some(duration(span)) }),
            (None, Some(regex)) => Until::Output(Output { regex: regex.clone() }),
            (None, None) => return None,
        };
        Some(pb::WaitFor { until: Some(until), timeout: Some(duration(self.timeout)) })
    }
}

/// Types into a process, which was found like this, when it has room. That and what is to be waited
/// for may take so long each.
pub(super) async fn write(
    client: &mut Client,
    process: &pb::Process,
    mut request: pb::WriteStdinRequest,
    timeout: Duration,
) -> Result<pb::WriteStdinResponse, Trouble> {
    let begin = process.stdin.unwrap_or_default().accepted_bytes;
    request.id.clone_from(&process.id);
    let (mut attempts, mut pause) = (Attempts::begin(), FIRST_PAUSE);
    let (until, mut lost) = (Instant::now() + timeout, None);
    loop {
        let status = match client.write_stdin(request.clone()).await {
            Ok(answer) => {
                let written = answer.into_inner();
                return match lost {
                    Some(wait) => wait_for(client, process, written, wait).await,
                    None => Ok(written),
                };
            }
            Err(status) => status,
        };
        if reason(&status).as_deref() == Some("STDIN_FULL") {
            if Instant::now() + pause > until {
                let line = format!("{} does not read what it has", process.id);
                return Err(Trouble::new(line).with_code(TIMED_OUT));
            }
            tokio::time::sleep(pause).await;
            (attempts, pause) = (Attempts::begin(), (2 * pause).min(LONGEST_PAUSE));
            continue;
        }
        if request.wait.is_some() {
            lost = Some((request.wait.take(), request.view.take()));
            // It may have waited for long.
            attempts = Attempts::begin();
        }
        attempts.pause_after(status).await?;
        request.offset = Some(begin);
    }
}

/// Waits for what a write would have waited for, had its answer not been lost.
async fn wait_for(
    client: &mut Client,
    process: &pb::Process,
    written: pb::WriteStdinResponse,
    (wait, view): (Option<pb::WaitFor>, Option<pb::View>),
) -> Result<pb::WriteStdinResponse, Trouble> {
    let since_seq = process.transcript.as_ref().map(|transcript| transcript.next_seq);
    let request = pb::WaitRequest { id: process.id.clone(), wait, since_seq, view };
    let answer = again(async || client.wait(request.clone()).await).await?;
    let pb::WaitResponse { process, wait, chunks, cursor, omitted, gap } = answer;
    let state = process.as_ref().map_or(written.state, |process| process.state);
    Ok(pb::WriteStdinResponse { process, wait, chunks, cursor, omitted, gap, state, ..written })
}

/// How an answer is to show what was printed. Only terminals have a use for escape sequences.
pub(super) fn view(waits: bool) -> Option<pb::View> {
    let strip_ansi = !io::stdout().is_terminal();
    waits.then(|| pb::View { strip_ansi, ..Default::default() })
}

/// Prints what came, and says what came of the waiting.
pub(super) fn show(
    answer: &pb::WriteStdinResponse,
    printing: Printing,
) -> Result<ExitCode, Trouble> {
    if printing.is_json() {
        print::line(print::json(answer))?;
    } else {
        for chunk in &answer.chunks {
            match chunk.stream() {
                pb::Stream::Stderr => print::to_stderr(&chunk.data)?,
                _ => print::to_stdout(&chunk.data)?,
            }
        }
    }
    let id = answer.process.as_ref().map(|process| process.id.as_str()).unwrap_or_default();
    match &answer.wait {
        Some(wait) if wait.timed_out => {
            Err(Trouble::new(format!("{id}: it was waited for in vain")).with_code(TIMED_OUT))
        }
        Some(wait) if !wait.met => Err(Trouble::new(format!("{id} has ended before"))),
        _ => Ok(ExitCode::SUCCESS),
    }
}
