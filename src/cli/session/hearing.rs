//! What a session hears from its process, and how it is told that nobody is there.

use std::io::{self, IsTerminal};

use tokio::time::Instant;
use tonic::Status;

use super::errands::reason;
use super::input::Count;
use super::line::{Call, Heard, Line};
use super::{Session, waits, window};
use crate::cli::client::is_lost;
use crate::cli::print::harmless;
use crate::cli::trouble::Trouble;
use crate::grpc::pb;
use crate::grpc::pb::attach_response::Message;

impl Session {
    /// Makes the connection, from where the last one ended.
    pub(super) fn call(&mut self) {
        let size = if self.sizable { window() } else { None };
        let start = pb::AttachStart {
            id: self.id.clone(),
            since_seq: self.next_seq,
            size,
            ..Default::default()
        };
        self.line = Line::call(self.client.clone(), start, self.calls_in_vain);
        self.runs = false;
    }

    fn called(&mut self, Call { attached, line }: Call) {
        self.line = line;
        self.alarms.lost(false);
        // Somebody is there again who can be told.
        self.asked_in_vain = false;
        self.telling.is_reachable(Instant::now());
        self.calls += 1;
        self.calls_in_vain += 1;
        let next = self.next_seq.unwrap_or(attached.next_seq);
        self.next_seq = Some(next);
        let acknowledging = self.acknowledging.as_mut().filter(|_| self.calls == 1);
        let passed = acknowledging.and_then(|acks| acks.pass_over(next.saturating_sub(1)));
        passed.into_iter().for_each(|seq| self.errands.acknowledge(seq));
        let process = attached.process.unwrap_or_default();
        self.waits = waits(&process);
        let is_open = process.stdin.is_some_and(|stdin| stdin.open);
        self.input.resume(Count::of(&process), is_open, self.manner.terminal);
        self.runs = false;
        self.show_queue(&process);
        if !self.waits {
            self.begun();
        } else if !std::mem::replace(&mut self.awaiting, true) {
            self.errands.await_turn();
        }
    }

    /// Shows once in which queue a process waits.
    fn show_queue(&mut self, process: &pb::Process) {
        let is_queued = process.state() == pb::State::Queued;
        if !is_queued || self.queue_shown || !io::stderr().is_terminal() {
            return;
        }
        self.queue_shown = true;
        let queue = process.spec.as_ref().map(|spec| spec.queue.as_str()).unwrap_or_default();
        let position = match process.queue_position {
            0 => String::new(),
            position => format!(" at position {position}"),
        };
        let cancel = if self.manner.owner { "; press ^C to cancel" } else { "" };
        self.say(&format!("waiting in queue \"{}\"{position}{cancel}", harmless(queue)));
    }

    /// It runs, and can be typed to.
    pub(super) fn begun(&mut self) {
        (self.runs, self.waits) = (true, false);
        if self.manner.follows_window && !std::mem::replace(&mut self.sizable, true) {
            self.resize();
        }
    }

    /// A terminal that waits for its turn, or its restart, has no size yet.
    fn not_called(&mut self, status: Status) -> Result<(), Trouble> {
        if !self.sizable || reason(&status) != "NOT_RUNNING" {
            return Err(status.into());
        }
        self.sizable = false;
        self.call();
        Ok(())
    }

    pub(super) fn heard(&mut self, heard: Heard) -> Result<(), Trouble> {
        match heard {
            Heard::Called(Ok(call)) => self.called(call),
            Heard::Called(Err(status)) => self.not_called(status)?,
            Heard::Sent => self.count(),
            Heard::Message(Ok(Some(heard))) => {
                self.calls_in_vain = 0;
                heard.message.into_iter().for_each(|message| self.told(message));
            }
            Heard::Message(Ok(None)) => self.call_again(),
            Heard::Message(Err(status)) => self.lost(status)?,
        }
        Ok(())
    }

    fn told(&mut self, message: Message) {
        match message {
            Message::Chunk(chunk) => {
                // What prints has begun, whether or not the answer that says so came first.
                self.waits = false;
                self.next_seq = Some(chunk.seq + 1);
                self.output.put(chunk);
            }
            Message::Gap(gap) => {
                self.next_seq = Some(gap.to_seq + 1);
                let how_much = match gap.dropped_bytes {
                    Some(bytes) => format!("{bytes} bytes"),
                    None => "some output".into(),
                };
                self.say(&format!("{how_much} could not be kept until they were read"));
            }
            Message::End(end) => self.ended = Some(Box::new(end.process.unwrap_or_default())),
            Message::Attached(_) | Message::Heartbeat(_) => {}
        }
    }

    /// The stream has broken: by a loss, or since something could not be obeyed.
    fn lost(&mut self, status: Status) -> Result<(), Trouble> {
        match reason(&status).as_str() {
            // It reads no more: whoever writes to us is told as a pipe would.
            "STDIN_NOT_OPEN" => {
                self.typing = None;
                self.input.give_up();
            }
            // Typed to one that waits for its restart.
            "NOT_RUNNING" => self.input.forget_sent(),
            _ if is_lost(&status) => {}
            _ => return Err(status.into()),
        }
        self.call_again();
        Ok(())
    }

    fn call_again(&mut self) {
        self.alarms.lost(true);
        self.call();
    }
}
