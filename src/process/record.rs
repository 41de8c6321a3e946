//! The record of a process: what is committed, listed and told in events. Pure data.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::lifecycle::Ending;
use super::restart::Restarts;
use super::structured::max_wire_len;
use super::{Exit, KeeperId, Moment, Size, Spec, Status, Unkillable, signal};
use crate::transcript::Figures;

/// Largest structured output that an event repeats, and that is kept while a service waits for its restart.
const BRIEF_OUTPUT: usize = 4 << 10;

/// About how much memory a process of a tree takes in a record, with its command and an error.
const PROCESS_BYTES: usize = 128;

/// The record of a process. Each change makes a new one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its public id.
    pub id: Arc<str>,
    /// Counts the records that were ever made: the order of listing.
    pub birth: u64,
    /// What was asked for. Kept apart in the store: it never changes.
    #[serde(skip, default = "missing_spec")]
    pub spec: Arc<Spec>,
    /// Who started it, or ran it last; empty: that is not known.
    #[serde(default)]
    pub by: String,
    /// Which run of the id this is, from 1.
    pub run: u32,
    /// Counts the launches of this record over all its runs and restarts, from 1: what the keeper
    /// tells them apart by.
    #[serde(default = "one_launch")]
    pub launch: u32,
    /// The launch whose transcript there is: that of one that could not be started is that of the
    /// one before. 0: none, or that of the first.
    #[serde(default)]
    pub printing: u32,
    /// Number of the first chunk of this launch.
    #[serde(default = "first_seq")]
    pub first_seq: u64,
    /// What of this run's transcript lies in a file: all of it once it is over, and what was saved
    /// of earlier launches if it was started again after the keeper was lost.
    #[serde(default)]
    pub archive: Option<Archived>,
    /// How often it was started again in this run.
    #[serde(default)]
    pub restarts: Restarts,
    /// When it was accepted, nanoseconds since 1970.
    pub create_time: u64,
    /// The processes of its tree that the last SIGKILL has not ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unkillable: Vec<Unkillable>,
    /// The keeper that was asked for the launch, while that is being started. None: an earlier version
    /// has recorded it, or the keeper's identity is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<KeeperId>,
    /// No keeper was asked for the launch yet: it waits behind other launches of its caller.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unasked: bool,
    /// Where it is in its life.
    pub phase: Phase,
}

/// Where a process is in its life, and what is known there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Accepted, and waiting for its turn.
    Queued {
        /// Its place among all that wait: smaller ones came before.
        ticket: u64,
    },
    /// Accepted, being started.
    Starting,
    /// Running.
    Running(Started),
    /// Told to end.
    Stopping {
        /// Its start.
        started: Started,
        /// How.
        #[serde(flatten)]
        ending: Ending,
    },
    /// Ended, and to be started again.
    Backoff {
        /// How it ended.
        last: End,
        /// When it is started again.
        until: Moment,
    },
    /// Over.
    Exited(End),
}

/// What is known of a process since it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Its pid: information, never identity.
    pub pid: u32,
    /// When it was started, nanoseconds since 1970.
    pub time: u64,
    /// The same on the clock that timeouts are counted by.
    pub moment: Moment,
    /// When it became ready, nanoseconds since 1970.
    #[serde(default)]
    pub ready: Option<u64>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Why.
    pub cause: Cause,
    /// When, nanoseconds since 1970.
    pub time: u64,
    /// Its start; none: it never ran.
    pub started: Option<Started>,
    /// What the kernel told; none: it never ran, or was lost.
    pub exit: Option<Exit>,
    /// What it printed in all.
    pub printed: Printed,
    /// Nothing can print to its outputs any more.
    pub output_complete: bool,
    /// More to be said of it; may be empty.
    pub detail: String,
    /// What the program set, if it did.
    #[serde(default)]
    pub output: Option<StructuredOutput>,
    /// The last size of its terminal, if it had one.
    #[serde(default)]
    pub size: Option<Size>,
    /// Bytes of input that were taken for it.
    #[serde(default)]
    pub typed: u64,
}

/// What of a transcript lies in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archived {
    /// How much there is, and was.
    #[serde(flatten)]
    pub figures: Figures,
    /// Bytes of each stream, in the order of their numbers: where the next launch goes on.
    pub offsets: [u64; 3],
    /// Size of the file.
    pub file_bytes: u64,
}

/// What a program wrote to the file that it was given for that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StructuredOutput {
    /// A JSON value, as text.
    Value(String),
    /// Why there is none.
    Unusable(String),
}

impl End {
    /// Drops a large structured output, of a service that is about to be restarted: any number of them
    /// may wait for that.
    pub fn drop_large_output(&mut self) {
        if let Some(output) = self.output.as_mut().filter(|output| output.bytes() > BRIEF_OUTPUT) {
            let why = "it has more than 4 KiB, which are not kept for a service that is restarted";
            *output = StructuredOutput::Unusable(why.into());
        }
    }
}

impl StructuredOutput {
    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        match self {
            StructuredOutput::Value(text) | StructuredOutput::Unusable(text) => text.len(),
        }
    }
}

/// How much a process printed, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    /// Sequence number after its last chunk.
    pub next_seq: u64,
    /// Bytes.
    pub bytes: u64,
    /// When it last printed, nanoseconds since 1970; 0: never.
    pub last_time: u64,
}

/// Where a process is in its life, without what is known there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Accepted, and waiting for its turn.
    Queued,
    /// Accepted, being started.
    Starting,
    /// Running.
    Running,
    /// Told to end.
    Stopping,
    /// Ended, and to be started again.
    Backoff,
    /// Over.
    Exited,
}

/// Why a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// It exited by itself.
    Exited,
    /// A signal that was not the supervisor's.
    Signaled,
    /// It was killed on request.
    Killed,
    /// Its time was over.
    TimedOut,
    /// It ran out of the memory that it may use.
    OutOfMemory,
    /// It was not ready in time, or ended before it was.
    ReadinessFailed,
    /// It could not be started.
    StartFailed,
    /// It was killed before its turn came.
    CanceledInQueue,
    /// The supervisor was told to stop.
    Shutdown,
    /// It was running when the supervisor itself was ended.
    Lost,
    /// A service ended once more than its restart policy allows.
    GaveUp,
}

/// What an end means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It exited by itself with code 0.
    Succeeded,
    /// It ended in any other way by itself, or was lost.
    Failed,
    /// It was ended on request.
    Canceled,
    /// Its time was over.
    TimedOut,
}

impl Cause {
    /// Somebody wanted it to be over.
    pub fn is_wanted(self) -> bool {
        matches!(self, Cause::Killed | Cause::CanceledInQueue | Cause::Shutdown)
    }
}

impl Record {
    /// Where it is in its life.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Queued { .. } => State::Queued,
            Phase::Starting => State::Starting,
            Phase::Running(_) => State::Running,
            Phase::Stopping { .. } => State::Stopping,
            Phase::Backoff { .. } => State::Backoff,
            Phase::Exited(_) => State::Exited,
        }
    }

    /// How it ended, if it has.
    pub fn end(&self) -> Option<&End> {
        match &self.phase {
            Phase::Exited(end) => Some(end),
            _ => None,
        }
    }

    /// How it ended, or how it did the last time if it will be started again.
    pub fn last_end(&self) -> Option<&End> {
        match &self.phase {
            Phase::Exited(end) | Phase::Backoff { last: end, .. } => Some(end),
            _ => None,
        }
    }

    /// Its start, if there was one.
    pub fn started(&self) -> Option<Started> {
        match &self.phase {
            Phase::Queued { .. } | Phase::Starting => None,
            Phase::Running(started) | Phase::Stopping { started, .. } => Some(*started),
            Phase::Exited(end) | Phase::Backoff { last: end, .. } => end.started,
        }
    }

    /// The same for events, with a spec that was made for them: without a large output.
    pub fn brief(self: &Arc<Record>, spec: &Arc<Spec>) -> Arc<Record> {
        let large = self.output_bytes() > BRIEF_OUTPUT;
        if Arc::ptr_eq(spec, &self.spec) && !large {
            return Arc::clone(self);
        }
        let mut brief = Record { spec: Arc::clone(spec), ..Record::clone(self) };
        if let Phase::Exited(end) | Phase::Backoff { last: end, .. } = &mut brief.phase {
            end.output.take_if(|_| large);
        }
        Arc::new(brief)
    }

    /// About how much memory it takes, with its spec.
    pub fn bytes(&self) -> usize {
        let exit = self.last_end().and_then(|end| end.exit.as_ref());
        let processes = exit.map_or(0, |exit| exit.lingering.len()) + self.unkillable.len();
        size_of::<Record>()
            + self.spec.bytes()
            + self.output_bytes()
            + self.last_end().map_or(0, |end| end.detail.len())
            + processes * PROCESS_BYTES
    }

    /// Bytes of what the program set.
    pub fn output_bytes(&self) -> usize {
        let output = self.last_end().and_then(|end| end.output.as_ref());
        output.map_or(0, StructuredOutput::bytes)
    }

    /// Most bytes of what the program set in an answer.
    pub fn max_output_wire_bytes(&self) -> usize {
        match self.last_end().and_then(|end| end.output.as_ref()) {
            Some(StructuredOutput::Value(text)) => max_wire_len(text.len()),
            Some(StructuredOutput::Unusable(why)) => why.len(),
            None => 0,
        }
    }

    /// It is over, nothing can be added to its transcript any more, and nobody is left whom the
    /// keeper could be asked to end: a file may take the place of what the keeper holds.
    pub fn may_be_filed(&self) -> bool {
        let alone = |end: &End| end.exit.as_ref().is_none_or(|exit| exit.lingering.is_empty());
        self.end().is_some_and(|end| end.output_complete && alone(end))
    }

    /// So much of its transcript was saved, and the keeper has nothing of it any more. Descendants
    /// may have printed since its end.
    pub fn was_saved(&mut self, saved: Archived) {
        self.archive = Some(saved);
        if let Phase::Exited(End { printed, .. }) = &mut self.phase
            && printed.next_seq < saved.figures.next_seq
        {
            let Figures { next_seq, total_bytes: bytes, last_time, .. } = saved.figures;
            *printed = Printed { next_seq, bytes, last_time };
        }
    }

    /// How much its last launch printed is known for good, even if the keeper has nothing of it.
    pub fn is_end_known(&self) -> bool {
        self.last_end().is_none_or(|end| end.exit.is_some() && end.output_complete)
    }

    /// It is over, and all of its transcript lies in a file.
    pub fn is_filed(&self) -> bool {
        let end = self.end().map(|end| end.printed.next_seq);
        self.archive.zip(end).is_some_and(|(archived, end)| archived.figures.next_seq >= end)
    }

    /// It runs, and its probe was met if it has one.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Running(Started { ready: Some(_), .. }))
    }
}

impl End {
    /// What it means.
    pub fn outcome(&self) -> Outcome {
        match (self.cause, self.exit.as_ref().map(|exit| exit.status)) {
            (Cause::Exited, Some(Status::Code(0))) => Outcome::Succeeded,
            (Cause::Killed | Cause::CanceledInQueue | Cause::Shutdown, _) => Outcome::Canceled,
            (Cause::TimedOut, _) => Outcome::TimedOut,
            (
                Cause::Exited
                | Cause::Signaled
                | Cause::OutOfMemory
                | Cause::ReadinessFailed
                | Cause::StartFailed
                | Cause::Lost
                | Cause::GaveUp,
                _,
            ) => Outcome::Failed,
        }
    }

    /// Makes it an end after which its policy would have started it again.
    pub fn give_up(&mut self, why: &str) {
        let colon = match self.cause {
            Cause::Exited | Cause::Signaled => "",
            // Its message begins with the cause.
            _ => ":",
        };
        self.detail = format!("{why}; the last launch{colon} {}", self.message());
        self.cause = Cause::GaveUp;
    }

    /// From start to exit.
    pub fn duration(&self) -> Option<Duration> {
        let started = self.started?;
        Some(Duration::from_nanos(self.time.saturating_sub(started.time)))
    }

    /// The same for people, as "killed on request: ended by SIGTERM".
    pub fn message(&self) -> String {
        let why = match self.cause {
            // Its detail is the whole message.
            Cause::GaveUp => return self.detail.clone(),
            Cause::Exited | Cause::Signaled => None,
            Cause::Killed => Some("killed on request"),
            Cause::TimedOut => Some("its time was over"),
            Cause::OutOfMemory => Some("out of memory"),
            Cause::ReadinessFailed => Some("not ready"),
            Cause::CanceledInQueue => Some("killed on request while it waited in its queue"),
            Cause::StartFailed => Some("could not be started"),
            Cause::Shutdown => Some("the supervisor was told to stop"),
            Cause::Lost => Some("lost: it ran when the supervisor was ended"),
        };
        let how = self.exit.as_ref().map(|exit| match exit.status {
            Status::Code(code) => format!("exited with code {code}"),
            Status::Signal(number) => format!("ended by SIG{}", signal::name(number)),
        });
        let detail = (!self.detail.is_empty()).then(|| self.detail.clone());
        let parts = [why.map(str::to_owned), how, detail];
        parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
    }
}

fn one_launch() -> u32 {
    1
}

fn first_seq() -> u64 {
    1
}

/// What a record has until the store has given it its own spec.
fn missing_spec() -> Arc<Spec> {
    Arc::new(Spec::unknown())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::process::Usage;

    /// A record of a process that is being started.
    pub(crate) fn record(id: &str, birth: u64) -> Record {
        let (spec, phase) = (missing_spec(), Phase::Starting);
        let restarts = Restarts::default();
        Record {
            id: id.into(),
            birth,
            spec,
            by: String::new(),
            run: 1,
            launch: 1,
            printing: 1,
            first_seq: 1,
            archive: None,
            restarts,
            create_time: 1,
            unkillable: Vec::new(),
            keeper: None,
            unasked: false,
            phase,
        }
    }

    /// A record of a process that is over.
    pub(crate) fn finished() -> Record {
        let started = Started { pid: 7, time: 1_000, moment: 1, ready: None };
        let exit = Exit {
            status: Status::Code(0),
            core_dumped: false,
            time: 2_000,
            usage: Usage::default(),
            final_seq: 1,
            lingering: Vec::new(),
            oom_kills: 0,
            killed: false,
            own_cpu_micros: None,
        };
        let end = End {
            cause: Cause::Exited,
            time: 2_000,
            started: Some(started),
            exit: Some(exit),
            printed: Printed::default(),
            output_complete: true,
            detail: String::new(),
            output: None,
            size: None,
            typed: 0,
        };
        Record { phase: Phase::Exited(end), ..record("a", 1) }
    }

    fn ended(cause: Cause, status: Option<Status>) -> End {
        let record = finished();
        let end = record.end().unwrap();
        let exit = end.exit.clone().unwrap();
        End { cause, exit: status.map(|status| Exit { status, ..exit }), ..end.clone() }
    }

    #[test]
    fn an_end_has_an_outcome_and_words() {
        let exited = |code| ended(Cause::Exited, Some(Status::Code(code)));
        assert_eq!(exited(0).outcome(), Outcome::Succeeded);
        assert_eq!(
            (exited(3).outcome(), exited(3).message()),
            (Outcome::Failed, "exited with code 3".into())
        );
        let killed = ended(Cause::Killed, Some(Status::Signal(15)));
        assert_eq!(killed.outcome(), Outcome::Canceled);
        assert_eq!(killed.message(), "killed on request: ended by SIGTERM");
        assert_eq!(ended(Cause::TimedOut, Some(Status::Code(0))).outcome(), Outcome::TimedOut);
        assert_eq!(ended(Cause::Lost, None).outcome(), Outcome::Failed);
        let mut given_up = ended(Cause::ReadinessFailed, Some(Status::Code(0)));
        given_up.give_up("gave up after 2 restarts");
        assert_eq!((given_up.cause, given_up.outcome()), (Cause::GaveUp, Outcome::Failed));
        let message = "gave up after 2 restarts; the last launch: not ready: exited with code 0";
        assert_eq!(given_up.message(), message);
        let mut given_up = exited(7);
        given_up.give_up("gave up after 1 restart");
        let message = "gave up after 1 restart; the last launch exited with code 7";
        assert_eq!(given_up.message(), message);
    }
}
