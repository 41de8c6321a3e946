//! Domain words to answers: records, events, output.
//!
//! Every conversion names every field of what it reads, so that none is forgotten on the wire.
//! Knows only what it is given: the keeper is not asked here.

mod json;
mod spec;
mod times;

use spec::listed_spec;
pub use spec::{Secrets, spec};
pub use times::{duration, timestamp};

use std::time::{Duration, SystemTime};

use super::pb;
use crate::events::Event;
use crate::keeper_client::Progress;
use crate::process::{
    Descendant, End, InputState, Record, State, Status, StructuredOutput, Unkillable, Usage,
};
use crate::supervisor::{Seen, Waited, figures};
use crate::transcript::{Chunk, Figures, Gap, Match, Omitted};

/// A process as it is now. Without `progress` nothing is known of its input, and of its output
/// only what its record has.
pub fn process(record: &Record, progress: Option<&Progress>, secrets: Secrets) -> pb::Process {
    let spec = self::spec(&record.spec, secrets);
    let spec_truncated = spec.program.is_none();
    pb::Process { spec: Some(spec), spec_truncated, ..without_spec(record, progress) }
}

/// A process as List shows it: its program is cut.
pub fn listed(seen: &Seen) -> pb::Process {
    let (spec, spec_truncated) = listed_spec(&seen.record.spec);
    let queue_position = seen.queue_position();
    let process = without_spec(&seen.record, seen.progress().as_ref());
    pb::Process { spec: Some(spec), spec_truncated, queue_position, ..process }
}

fn without_spec(record: &Record, progress: Option<&Progress>) -> pb::Process {
    let Record {
        id,
        birth: _,
        spec: _,
        by: _,
        run,
        launch: _,
        printing: _,
        first_seq: _,
        archive: _,
        restarts,
        create_time,
        unkillable,
        keeper: _,
        unasked: _,
        phase: _,
    } = record;
    let started = record.started();
    let end = record.end();
    let ended = end.is_some();
    let last = record.last_end();
    let lingering = last.and_then(|end| end.exit.as_ref()).map(|exit| &exit.lingering);
    pb::Process {
        id: id.to_string(),
        spec: None,
        state: pb::State::from(record.state()).into(),
        ready: record.is_ready(),
        run: *run,
        pid: started.map_or(0, |started| started.pid),
        create_time: Some(timestamp(*create_time)),
        start_time: started.map(|started| timestamp(started.time)),
        ready_time: started.and_then(|started| started.ready).map(timestamp),
        exit_time: last.map(|end| timestamp(end.time)),
        exit: last.map(|end| exit(end, progress)),
        transcript: figures(record, progress).map(|figures| transcript(figures, ended)),
        stdin: progress.map(|progress| progress.input).or(last.map(typed)).map(stdin),
        queue_position: 0,
        restarts: restarts.count,
        output: end.and_then(|end| end.output.as_ref()).map(structured),
        lingering: lingering.into_iter().flatten().map(descendant).collect(),
        unkillable: unkillable.iter().map(self::unkillable).collect(),
        spec_truncated: false,
        blocked: blocked(record, progress).into(),
    }
}

/// What a process that runs waits for with its output.
fn blocked(record: &Record, progress: Option<&Progress>) -> pb::Blocked {
    let runs = matches!(record.state(), State::Running | State::Stopping);
    match progress.is_some_and(|progress| runs && progress.awaits_reader) {
        true => pb::Blocked::Reader,
        false => pb::Blocked::Unspecified,
    }
}

fn transcript(figures: Figures, ended: bool) -> pb::Transcript {
    let last_output_time = last_output(&figures);
    let Figures { first_seq, next_seq, total_bytes, dropped_bytes, last_time: _ } = figures;
    pb::Transcript { first_seq, next_seq, total_bytes, dropped_bytes, last_output_time, ended }
}

/// The input of one that the keeper does not hold any more.
fn typed(end: &End) -> InputState {
    InputState { accepted: end.typed, ..InputState::default() }
}

fn stdin(input: InputState) -> pb::Stdin {
    let InputState { open, accepted, pending } = input;
    pb::Stdin { open, accepted_bytes: accepted, pending_bytes: pending }
}

fn exit(end: &End, progress: Option<&Progress>) -> pb::Exit {
    let End {
        cause,
        time: _,
        started: _,
        exit,
        printed,
        output_complete,
        detail: _,
        output: _,
        size: _,
        typed: _,
    } = end;
    let exit = exit.as_ref();
    let (code, signal) = match exit.map(|exit| exit.status) {
        Some(Status::Code(code)) => (Some(code), None),
        Some(Status::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    // The keeper may say it only after the record was made.
    let drained = progress.is_some_and(|progress| progress.drained);
    pb::Exit {
        outcome: pb::Outcome::from(end.outcome()).into(),
        cause: pb::Cause::from(*cause).into(),
        code,
        signal,
        core_dumped: exit.is_some_and(|exit| exit.core_dumped),
        message: end.message(),
        usage: exit.map(|exit| usage(exit.usage)),
        duration: end.duration().map(duration),
        final_seq: exit.map_or(printed.next_seq, |exit| exit.final_seq),
        output_complete: *output_complete || drained,
    }
}

/// What a program set.
fn structured(output: &StructuredOutput) -> pb::StructuredOutput {
    let value = match output {
        // It was checked before it was kept.
        StructuredOutput::Value(text) => json::value(text).map_err(|error| error.to_string()),
        StructuredOutput::Unusable(why) => Err(why.clone()),
    };
    match value {
        Ok(value) => pb::StructuredOutput { value: Some(value), error: String::new() },
        Err(error) => pb::StructuredOutput { value: None, error },
    }
}

fn usage(usage: Usage) -> pb::Usage {
    let Usage {
        user_micros,
        system_micros,
        max_rss_bytes,
        minor_faults,
        major_faults,
        voluntary_switches,
        involuntary_switches,
    } = usage;
    let micros = |micros| duration(Duration::from_micros(micros));
    pb::Usage {
        user_time: Some(micros(user_micros)),
        system_time: Some(micros(system_micros)),
        max_rss_bytes,
        minor_faults,
        major_faults,
        voluntary_switches,
        involuntary_switches,
    }
}

/// A process of someone's tree.
pub fn descendant(descendant: &Descendant) -> pb::Descendant {
    let Descendant { pid, command } = descendant;
    pb::Descendant { pid: *pid, command: command.clone(), error: String::new() }
}

/// A process of someone's tree that SIGKILL has not ended.
fn unkillable(unkillable: &Unkillable) -> pb::Descendant {
    let Unkillable { process, start_ticks: _, error } = unkillable;
    pb::Descendant { error: error.clone(), ..descendant(process) }
}

/// Something that happened, without its environment. How much output was kept then is not known any
/// more.
pub fn event(event: &Event) -> pb::Event {
    let Event { seq, time, kind, record } = event;
    let mut process = process(record, None, Secrets::Hidden);
    if let Some(transcript) = &mut process.transcript {
        (transcript.first_seq, transcript.dropped_bytes) = (0, 0);
    }
    pb::Event {
        seq: *seq,
        time: Some(timestamp(*time)),
        process_id: record.id.to_string(),
        kind: pb::Kind::from(*kind).into(),
        process: Some(process),
    }
}

/// A piece of output. The bytes are shared, not copied.
pub fn chunk(chunk: Chunk) -> pb::Chunk {
    let Chunk { seq, stream, offset, time, data } = chunk;
    let stream = pb::Stream::from(stream).into();
    pb::Chunk { seq, stream, offset, time: Some(timestamp(time)), data }
}

/// Chunks that are missing.
pub fn gap(gap: Gap) -> pb::Gap {
    let Gap { from_seq, to_seq, dropped_bytes } = gap;
    pb::Gap { from_seq, to_seq, dropped_bytes }
}

/// A process as it was last committed, with what the keeper reports of it.
pub fn seen(seen: &Seen, secrets: Secrets) -> pb::Process {
    let process = process(&seen.record, seen.progress().as_ref(), secrets);
    pb::Process { queue_position: seen.queue_position(), ..process }
}

/// What came of waiting.
pub fn waited(waited: Waited) -> pb::WaitResult {
    let Waited { met, timed_out, found } = waited;
    let found = found.map(|Match { seq, text }| pb::wait_result::Match { seq, text });
    pb::WaitResult { met, timed_out, r#match: found }
}

/// A sign of life of a stream that is this far.
pub fn heartbeat(seq: u64) -> pb::Heartbeat {
    pb::Heartbeat { time: Some(timestamp(now())), seq }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// How long a process has run, or ran the last time; none: it never did.
pub fn uptime(record: &Record) -> Option<prost_types::Duration> {
    let until = record.last_end().map_or_else(now, |end| end.time);
    let started = record.started()?;
    Some(duration(Duration::from_nanos(until.saturating_sub(started.time))))
}

/// When a process last printed; none: it never did.
pub fn last_output(there_is: &Figures) -> Option<prost_types::Timestamp> {
    (there_is.last_time > 0).then(|| timestamp(there_is.last_time))
}

/// What a view left out.
pub fn omitted(omitted: Omitted) -> pb::Omitted {
    let Omitted { bytes, lines } = omitted;
    pb::Omitted { bytes, lines }
}

/// A place in a transcript: what was read, from `since_seq` up to `next_seq`, and what there is.
pub fn cursor(since_seq: u64, next_seq: u64, there_is: &Figures) -> pb::Cursor {
    let latest_seq = there_is.next_seq.saturating_sub(1);
    pb::Cursor { since_seq, next_seq, latest_seq, first_seq: there_is.first_seq }
}

#[cfg(test)]
mod tests;
