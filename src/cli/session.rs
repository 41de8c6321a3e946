//! A session: somebody at one end, a process at the other.
//!
//! Owns what `run` and `attach` share: output to stdout and stderr, input from stdin, signals, the
//! size of the window, and the connection, which is made anew when it is lost. Not a byte is lost
//! or doubled by that, in either direction: output goes on from the next chunk, and the process
//! counts what it was given (`input`).
//!
//! ```text
//!          stdin ──▶ input ──▶ ┌──────┐
//!        signals ──▶ errands ▶ │ line │ ◀──▶ the service
//! stdout, stderr ◀── output ◀─ └──────┘
//! ```

mod acknowledging;
mod alarms;
mod detach;
mod errands;
mod hearing;
mod input;
mod line;
mod manner;
mod modes;
mod output;
mod raw_mode;
mod signals;
mod stdin;
mod telling;
mod tidying;
mod typed;

use std::io::{self, IsTerminal};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};

pub(super) use detach::DetachKeys;
pub(super) use manner::{Left, Manner, waits};
pub(super) use modes::{leave as leave_window, print};
pub(super) use raw_mode::{RawMode, window};
pub(super) use signals::{Signals, end_by};
pub(super) use stdin::{is_open as stdin_is_open, read as read_stdin};
pub(super) use tidying::tidy;

use self::acknowledging::Acknowledging;
use self::alarms::Alarms;
use self::detach::Lookout;
use self::errands::{Done, Errands};
use self::input::Input;
use self::line::{Heard, Line};
use self::output::{Output, Written};
use self::telling::Telling;
use super::client::{Client, UNREACHABLE};
use super::trouble::Trouble;
use crate::grpc::pb;

/// A session.
pub(super) struct Session {
    client: Client,
    id: String,
    manner: Manner,
    signals: Signals,
    line: Line,
    errands: Errands,
    output: Output,
    /// What is typed; none: nothing more will be.
    typing: Option<mpsc::Receiver<Bytes>>,
    lookout: Option<Lookout>,
    input: Input,
    acknowledging: Option<Acknowledging>,
    /// How far the input is was asked for.
    counting: bool,
    /// The keys that leave it alone were typed.
    leaving: bool,
    telling: Telling,
    /// How often a connection was made.
    calls: u64,
    /// How many were since something came by one.
    calls_in_vain: u32,
    /// A turn is waited for.
    awaiting: bool,
    /// The process waits in a queue or for its restart.
    waits: bool,
    /// The notice of its place in the queue was shown.
    queue_shown: bool,
    /// The next chunk that is wanted.
    next_seq: Option<u64>,
    /// It runs, so that it can be typed to.
    runs: bool,
    alarms: Alarms,
    /// The terminal may be given its size: it has one by then.
    sizable: bool,
    resizing: bool,
    /// The window's size is not that of the terminal any more.
    resized: bool,
    /// The process has ended.
    ended: Option<Box<pb::Process>>,
    unwritable: Option<io::Error>,
    /// We were asked to end though nobody can be told.
    asked_in_vain: bool,
    /// By this we were asked to end, and so it was ended, as it did not run.
    canceled: Option<i32>,
}

/// What a session hears of.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, for each chunk")]
enum Event {
    Signal(i32),
    Done(Done),
    Written(Written),
    Line(Heard),
    Typed(Option<Bytes>),
    Time,
}

impl Session {
    /// With a process that is there.
    pub(super) fn begin(client: Client, id: String, manner: Manner, signals: Signals) -> Session {
        let mut session = Session {
            errands: Errands::new(client.clone(), id.clone()),
            line: Line::Calling(Box::pin(std::future::pending())),
            output: Output::begin(manner.terminal),
            typing: manner.stdin.then(stdin::read),
            lookout: manner.detach.clone().map(Lookout::new),
            input: Input::default(),
            acknowledging: manner.acknowledge.map(Acknowledging::of),
            counting: false,
            leaving: false,
            telling: Telling::default(),
            calls: 0,
            calls_in_vain: 0,
            awaiting: false,
            waits: manner.waits,
            queue_shown: false,
            next_seq: manner.since_seq,
            runs: false,
            alarms: Alarms::new(),
            sizable: manner.follows_window,
            resizing: false,
            resized: false,
            ended: None,
            unwritable: None,
            asked_in_vain: false,
            canceled: None,
            client,
            id,
            manner,
            signals,
        };
        session.call();
        session
    }

    /// Until it is over. The terminal is as it was by then.
    pub(super) async fn run(mut self) -> Result<Left, Trouble> {
        let session = async {
            loop {
                let event = self.next().await;
                if let Some(left) = self.apply(event)? {
                    return Ok(left);
                }
            }
        };
        LocalSet::new().run_until(session).await
    }

    async fn next(&mut self) -> Event {
        let Session { signals, errands, output, typing, input, line, .. } = self;
        let time = self.alarms.next();
        let listens = self.ended.is_none() && output.has_room();
        let types = typing.is_some() && input.has_room() && !self.leaving;
        let typed = async {
            match typing {
                Some(typing) => typing.recv().await,
                None => None,
            }
        };
        let input = (self.runs && input.has_unsent()).then_some(input);
        tokio::select! {
            biased;
            Some(done) = errands.done() => Event::Done(done),
            number = signals.next() => Event::Signal(number),
            Some(written) = output.written() => Event::Written(written),
            typed = typed, if types => Event::Typed(typed),
            () = sleep_until(time.unwrap_or_else(Instant::now)), if time.is_some() => Event::Time,
            heard = line.next(input, listens) => Event::Line(heard),
        }
    }

    /// What an event changes; something: the session is over.
    fn apply(&mut self, event: Event) -> Result<Option<Left>, Trouble> {
        match event {
            Event::Signal(number) => return Ok(self.signalled(number)),
            Event::Done(done) => self.done(done),
            Event::Written(written) => {
                if let Some(left) = self.written(written) {
                    return Ok(Some(left));
                }
            }
            Event::Line(heard) => self.heard(heard)?,
            Event::Typed(Some(typed)) => {
                if let Some(left) = self.typed(typed) {
                    return Ok(Some(left));
                }
            }
            Event::Typed(None) => {
                self.typing = None;
                if self.manner.ends_input {
                    self.input.end();
                }
            }
            Event::Time => {
                if let Some(left) = self.time() {
                    return Ok(Some(left));
                }
            }
        }
        Ok(self.over().or_else(|| self.left()))
    }

    /// When all that it printed is written.
    fn over(&mut self) -> Option<Left> {
        if !self.output.is_empty() {
            return None;
        }
        let process = self.ended.take()?;
        Some(match (self.unwritable.take(), self.canceled) {
            (Some(error), _) => Left::Unwritable(error),
            (None, Some(number)) => Left::Canceled(number),
            (None, None) => Left::Ended(process),
        })
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Counted(calls, process) => self.counted(calls, process.as_deref()),
            Done::Acknowledged => {
                let next = self.acknowledging.as_mut().and_then(Acknowledging::done);
                next.into_iter().for_each(|seq| self.errands.acknowledge(seq));
            }
            Done::Resized => {
                self.resizing = false;
                if std::mem::take(&mut self.resized) {
                    self.resize();
                }
            }
            Done::Canceling(number) => self.canceled = Some(number),
            Done::Signalled { gone } => {
                self.asked_in_vain = gone;
                let next = self.telling.done(Instant::now());
                next.into_iter().for_each(|number| self.errands.signal(number));
            }
            Done::Begun => {
                self.awaiting = false;
                self.begun();
            }
        }
    }

    fn written(&mut self, written: Written) -> Option<Left> {
        let Written { seq, chunks, bytes, failed } = written;
        let acknowledging = self.acknowledging.as_mut();
        if let Some(seq) = acknowledging.and_then(|acks| acks.written(seq, chunks, bytes as u64)) {
            self.errands.acknowledge(seq);
        }
        let error = failed?;
        if !self.manner.owner {
            return Some(Left::Unwritable(error));
        }
        if self.unwritable.is_none() {
            // A terminal that is gone hangs up on it; whoever reads no more is told as by a pipe.
            let hung_up = error.raw_os_error() == Some(libc::EIO);
            self.errands.close(if hung_up { libc::SIGHUP } else { libc::SIGPIPE });
            self.unwritable = Some(error);
        }
        None
    }

    pub(super) fn signalled(&mut self, number: i32) -> Option<Left> {
        match number {
            // The window is nobody's business on pipes.
            libc::SIGWINCH => {
                if self.manner.follows_window {
                    self.resize();
                }
            }
            libc::SIGCONT => {
                if let Some(raw) = &self.manner.raw {
                    raw.again();
                }
            }
            _ if !self.manner.owner => return signals::ends(number).then_some(Left::Asked(number)),
            _ if signals::ends(number) => {
                // Nobody is left who could be told, or can be reached, or answers.
                let in_vain = self.asked_in_vain || self.telling.is_in_vain(Instant::now());
                if self.ended.is_some() || in_vain {
                    return Some(Left::Asked(number));
                }
                // The first connection is only being made.
                self.asked_in_vain = self.calls > 0 && !self.line.is_open();
                self.tell(number);
            }
            _ => self.tell(number),
        }
        None
    }

    /// Sends a signal to the process.
    fn tell(&mut self, number: i32) {
        let now = self.telling.tell(number, Instant::now());
        now.into_iter().for_each(|number| self.errands.signal(number));
    }

    /// Gives the terminal the window's size: one after the other, so that the last one stays.
    fn resize(&mut self) {
        match window() {
            Some(_) if self.resizing => self.resized = true,
            Some(size) => {
                self.resizing = true;
                self.errands.resize(size);
            }
            None => {}
        }
    }

    /// Tells whoever looks that nobody can be reached.
    fn away(&mut self) {
        if io::stderr().is_terminal() {
            self.say(UNREACHABLE);
        }
    }

    /// Says something that is not the process's own, between what the process prints.
    fn say(&mut self, line: &str) {
        // In raw mode nobody returns the cursor to the left.
        let end = if self.manner.raw.is_some() { "\r\n" } else { "\n" };
        self.output.say(format!("procyard: {line}{end}"));
    }
}
