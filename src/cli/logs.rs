//! `procyard logs`: what a process printed, and prints.
//!
//! What was printed is read answer by answer (`reading`); what is being printed comes as a stream
//! that goes on where it was when the server is replaced (`following`). Both go out as they came
//! (`writing`).

mod following;
mod looking;
mod reading;
mod writing;

use std::process::ExitCode;

use following::{Following, Message};
use looking::Looking;
use reading::Reading;
use writing::Writing;

use super::client::{Client, Remote};
use super::print::Printing;
use super::session;
use super::trouble::Trouble;
use super::which;
use crate::grpc::pb;

/// Most bytes of an answer that has the first or the last lines: there is only one.
const LARGEST: u32 = 3 << 20;

/// Shows what a process printed: its stdout to stdout and its stderr to stderr, byte by byte.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard logs ID
  procyard logs --follow --tail 20 ID
  procyard logs --grep 'error|panic' --ignore-case --context 3 ID
  procyard logs --stderr --output json ID | jq -r '.data | @base64d'")]
pub(super) struct Logs {
    /// The process: its id, name or service.
    id: String,
    /// Goes on until it has ended.
    #[arg(long, short)]
    follow: bool,
    /// Only lines that match.
    #[arg(long, value_name = "REGEX")]
    grep: Option<String>,
    /// Upper and lower case match alike.
    #[arg(long, short, requires = "grep")]
    ignore_case: bool,
    /// So many lines before and after each match, too.
    #[arg(long, short = 'C', value_name = "LINES", requires = "grep", default_value_t = 0)]
    context: u32,
    /// Only the last lines; with --follow, begins with them.
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// Only the first lines.
    #[arg(long, value_name = "LINES", conflicts_with = "follow")]
    head: Option<u32>,
    /// From this chunk on, as JSON and `cursor` have its number.
    #[arg(long, value_name = "N")]
    since_seq: Option<u64>,
    /// Only what went to stdout, or to a terminal.
    #[arg(long)]
    stdout: bool,
    /// Only what went to stderr.
    #[arg(long)]
    stderr: bool,
    /// Leaves out colours and other escape sequences.
    #[arg(long)]
    strip_ansi: bool,
    /// Writes before each line when it was printed, in UTC.
    #[arg(long)]
    timestamps: bool,
    #[command(flatten)]
    printing: Printing,
    #[command(flatten)]
    remote: Remote,
}

impl Logs {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let mut client = self.remote.connect().await?;
        let process = which::find(&mut client, &self.id).await?;
        let mut writing = Writing::new(self.printing.is_json(), self.timestamps);
        let transcript = process.transcript.unwrap_or_default();
        if self.tail.is_none() && self.since_seq.is_none() && transcript.dropped_bytes > 0 {
            writing.dropped(transcript.dropped_bytes);
        }
        if self.follow {
            self.follow(client, &process, &mut writing).await?;
        } else if self.tail != Some(0) || self.head.is_some() {
            self.read(&mut client, &process.id).run(&mut writing).await?;
        }
        // What drew on a whole screen of its own may have ended there.
        session::leave_window();
        Ok(ExitCode::SUCCESS)
    }

    fn read<'a>(&self, client: &'a mut Client, id: &str) -> Reading<'a> {
        let request = pb::ReadRequest {
            id: id.to_owned(),
            since_seq: self.since_seq,
            streams: self.streams(),
            view: Some(self.view()),
            ..Default::default()
        };
        Reading { client, request }
    }

    async fn follow(
        &self,
        mut client: Client,
        process: &pb::Process,
        writing: &mut Writing,
    ) -> Result<(), Trouble> {
        let there = process.transcript.as_ref().map_or(1, |transcript| transcript.next_seq);
        let mut request = pb::FollowRequest {
            id: process.id.clone(),
            since_seq: self.since_seq,
            streams: self.streams(),
            view: Some(self.view()),
            ..Default::default()
        };
        if self.tail == Some(0) {
            request.since_seq = Some(there.max(self.since_seq.unwrap_or_default()));
        }
        if self.grep.is_some() {
            let looking = Looking::new(request.clone(), there)?;
            let everything = pb::FollowRequest { streams: Vec::new(), view: None, ..request };
            return looking.run(Following::new(client, everything), writing).await;
        }
        if self.tail.is_some_and(|lines| lines > 0) {
            request.since_seq = Some(self.read(&mut client, &process.id).run(writing).await?);
        }
        request.view = Some(pb::View { strip_ansi: self.strip_ansi, ..Default::default() });
        let mut following = Following::new(client, request);
        loop {
            match following.next().await? {
                Some(Message::Chunk(chunk)) => writing.chunk(&chunk)?,
                Some(Message::Gap(gap)) => writing.gap(&gap),
                Some(Message::Heartbeat(_)) => {}
                Some(Message::End(_)) | None => return Ok(()),
            }
        }
    }

    fn streams(&self) -> Vec<i32> {
        let mut streams = Vec::new();
        if self.stdout {
            streams.push(pb::Stream::Stdout.into());
            streams.push(pb::Stream::Terminal.into());
        }
        if self.stderr {
            streams.push(pb::Stream::Stderr.into());
        }
        streams
    }

    fn view(&self) -> pb::View {
        let (head, tail) = (self.head.unwrap_or_default(), self.tail.unwrap_or_default());
        pb::View {
            max_bytes: if head.max(tail) > 0 { LARGEST } else { 0 },
            strip_ansi: self.strip_ansi,
            head_lines: head,
            tail_lines: tail,
            grep: self.grep.clone().unwrap_or_default(),
            context: self.context,
            ignore_case: self.ignore_case,
        }
    }
}
