//! What somebody types in a session: on its way to the process, counted there, and, by the keys
//! that leave it alone, the last of it.

use bytes::Bytes;
use tokio::time::Instant;

use super::Session;
use super::alarms::Due;
use super::detach::Lookout;
use super::input::Count;
use super::manner::Left;
use crate::grpc::pb;

/// The byte that ^C is in raw mode.
const CTRL_C: u8 = 3;

impl Session {
    /// Passes on what was typed; something: the session is over.
    pub(super) fn typed(&mut self, typed: Bytes) -> Option<Left> {
        let (passed, leave) = match &mut self.lookout {
            Some(lookout) => lookout.pass(typed),
            None => (typed, false),
        };
        let reads_keys = self.manner.raw.is_none() || !self.waits;
        if self.manner.owner && !reads_keys && !leave && passed.contains(&CTRL_C) {
            // Neither this terminal nor one of the process makes a signal of it, so the session
            // does. What was typed with it is dropped, as terminals do.
            return self.signalled(libc::SIGINT);
        }
        self.input.put(passed);
        self.alarms.held(self.lookout.as_ref().is_some_and(Lookout::holds));
        if leave {
            self.leaving = true;
            self.alarms.leave();
        }
        None
    }

    /// When we leave, and what was typed before has arrived or takes too long.
    pub(super) fn left(&self) -> Option<Left> {
        (self.leaving && self.input.is_empty()).then(|| self.detached())
    }

    fn detached(&self) -> Left {
        Left::Detached { reached: self.line.is_open(), waits: self.waits }
    }

    pub(super) fn time(&mut self) -> Option<Left> {
        for due in self.alarms.due(Instant::now()) {
            match due {
                Due::Release => {
                    let held = self.lookout.as_mut().map(Lookout::release);
                    held.into_iter().for_each(|held| self.input.put(held));
                }
                Due::Count => {
                    self.counting = true;
                    self.errands.count(self.calls);
                }
                Due::Away => self.away(),
                Due::Leave => return Some(self.detached()),
            }
        }
        None
    }

    /// Asks how far the input is when it may have arrived: one question at a time, or the answer to
    /// an earlier one could come last.
    pub(super) fn count(&mut self) {
        if !self.counting && self.input.is_unsettled() {
            self.alarms.count();
        }
    }

    /// How far the input is, as far as that is known, and by which connection it was asked for.
    pub(super) fn counted(&mut self, calls: u64, process: Option<&pb::Process>) {
        self.counting = false;
        // Of a connection that is lost, the next one tells.
        let counts = calls == self.calls && self.line.is_open();
        if let Some(process) = process.filter(|_| counts) {
            let much = self.input.is_much();
            self.input.settle(Count::of(process));
            if !self.input.is_unsettled() || much && !self.input.is_much() {
                self.alarms.arrived();
            }
        }
        self.count();
    }
}
