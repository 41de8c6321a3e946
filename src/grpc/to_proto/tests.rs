//! Records, events and output as clients see them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::events::Kind;
use crate::process::{Cause, Exit, Phase, Printed, Spec, Started};
use crate::transcript::{Ring, Stream};

const SECOND: u64 = 1_000_000_000;

fn spec() -> Arc<Spec> {
    let program = Some(pb::spec::Program::Shell("true".into()));
    let spec = Some(pb::Spec { program, ..Default::default() });
    let request = pb::StartRequest { spec, ..Default::default() };
    Arc::new(crate::grpc::from_proto::StartOrder::try_from(request).unwrap().spec)
}

fn record(phase: Phase) -> Record {
    Record {
        id: "a".into(),
        birth: 7,
        spec: spec(),
        by: String::new(),
        run: 1,
        launch: 1,
        printing: 1,
        first_seq: 1,
        archive: None,
        restarts: Default::default(),
        create_time: SECOND,
        unkillable: Vec::new(),
        keeper: None,
        unasked: false,
        phase,
    }
}

fn started() -> Started {
    Started { pid: 17, time: 2 * SECOND, moment: 1, ready: None }
}

fn end(cause: Cause, exit: Option<Exit>) -> End {
    End {
        cause,
        time: 5 * SECOND + 1,
        started: Some(started()),
        exit,
        printed: Printed { next_seq: 4, bytes: 100, last_time: 3 * SECOND },
        output_complete: false,
        detail: String::new(),
        output: None,
        size: None,
        typed: 0,
    }
}

fn exited(status: Status) -> Option<Exit> {
    Some(Exit {
        status,
        core_dumped: true,
        time: 5 * SECOND,
        usage: Usage { user_micros: 1_500_000, max_rss_bytes: 9, ..Usage::default() },
        final_seq: 4,
        lingering: vec![Descendant { pid: 18, command: "sleep".into() }],
        oom_kills: 0,
        killed: false,
        own_cpu_micros: None,
    })
}

/// As somebody sees it who may set its variables.
fn shown(record: &Record, progress: Option<&Progress>) -> pb::Process {
    process(record, progress, Secrets::Shown)
}

#[test]
fn of_variables_that_are_hidden_the_names_are_told() {
    let mut record = record(Phase::Starting);
    let set = [("TOKEN".to_owned(), "hunter2".to_owned())];
    Arc::make_mut(&mut record.spec).env.set = set.into();
    let value = |secrets| {
        let env = process(&record, None, secrets).spec.unwrap().env.unwrap();
        env.set["TOKEN"].clone()
    };
    assert_eq!(value(Secrets::Shown), "hunter2");
    assert_eq!(value(Secrets::Hidden), "[redacted]");
}

#[test]
fn a_live_process_that_printed_nothing_has_its_cursor() {
    let input = InputState { open: true, accepted: 5, pending: 2 };
    let progress = Progress { next_seq: 1, input, ..Progress::default() };
    let told = shown(&record(Phase::Running(started())), Some(&progress));
    assert_eq!((told.state(), told.pid, told.run), (pb::State::Running, 17, 1));
    assert_eq!(
        (told.create_time, told.start_time),
        (Some(timestamp(SECOND)), Some(timestamp(2 * SECOND)))
    );
    assert_eq!((told.exit_time, told.exit), (None, None));
    let transcript = told.transcript.unwrap();
    assert_eq!((transcript.first_seq, transcript.next_seq, transcript.ended), (1, 1, false));
    assert_eq!(transcript.last_output_time, None);
    let stdin = pb::Stdin { open: true, accepted_bytes: 5, pending_bytes: 2 };
    assert_eq!(told.stdin, Some(stdin));
}

#[test]
fn a_process_that_was_never_started_has_no_pid_and_no_start() {
    let told = shown(&record(Phase::Starting), None);
    assert_eq!((told.state(), told.pid, told.start_time), (pb::State::Starting, 0, None));
    assert_eq!((told.stdin, told.transcript), (None, None));
}

#[test]
fn an_end_tells_either_code_or_signal_or_neither() {
    let told = |cause, exit| {
        let process = shown(&record(Phase::Exited(end(cause, exit))), None);
        let exit = process.exit.unwrap();
        (exit.outcome(), exit.cause(), exit.code, exit.signal)
    };
    let zero = told(Cause::Exited, exited(Status::Code(0)));
    assert_eq!(zero, (pb::Outcome::Succeeded, pb::Cause::Exited, Some(0), None));
    let killed = told(Cause::Killed, exited(Status::Signal(15)));
    assert_eq!(killed, (pb::Outcome::Canceled, pb::Cause::Killed, None, Some(15)));
    let lost = told(Cause::Lost, None);
    assert_eq!(lost, (pb::Outcome::Failed, pb::Cause::Lost, None, None));
}

#[test]
fn an_end_has_what_the_kernel_told() {
    let told = shown(&record(Phase::Exited(end(Cause::Exited, exited(Status::Code(3))))), None);
    let exit = told.exit.unwrap();
    assert_eq!((exit.core_dumped, exit.final_seq, exit.output_complete), (true, 4, false));
    assert_eq!(exit.message, "exited with code 3");
    assert_eq!(exit.duration, Some(duration(Duration::new(3, 1))));
    let usage = exit.usage.unwrap();
    assert_eq!(usage.user_time, Some(duration(Duration::from_millis(1500))));
    assert_eq!(usage.max_rss_bytes, 9);
    assert_eq!(
        told.lingering,
        [pb::Descendant { pid: 18, command: "sleep".into(), error: String::new() }]
    );
}

#[test]
fn outputs_may_be_closed_after_the_end() {
    let record = record(Phase::Exited(end(Cause::Exited, exited(Status::Code(0)))));
    let progress = Progress { drained: true, ..Progress::default() };
    assert!(shown(&record, Some(&progress)).exit.unwrap().output_complete);
}

#[test]
fn without_its_ring_nothing_of_a_finished_process_is_kept() {
    let told = shown(&record(Phase::Exited(end(Cause::Lost, None))), None);
    let expected = pb::Transcript {
        first_seq: 4,
        next_seq: 4,
        total_bytes: 100,
        dropped_bytes: 100,
        last_output_time: Some(timestamp(3 * SECOND)),
        ended: true,
    };
    assert_eq!(told.transcript, Some(expected));
    assert_eq!(told.exit.unwrap().final_seq, 4);
}

#[test]
fn a_ring_knows_better_than_the_record() {
    let (ring, _fd) = Ring::create(1 << 16, 5).unwrap();
    let progress = Progress { ring: Some(Arc::new(ring)), next_seq: 4, ..Progress::default() };
    let record = record(Phase::Exited(end(Cause::Exited, exited(Status::Code(0)))));
    let transcript = shown(&record, Some(&progress)).transcript.unwrap();
    assert_eq!((transcript.first_seq, transcript.next_seq, transcript.ended), (5, 5, true));
    assert_eq!((transcript.total_bytes, transcript.dropped_bytes), (0, 0));
}

#[test]
fn an_event_does_not_say_how_much_was_kept() {
    let record = record(Phase::Exited(end(Cause::Exited, exited(Status::Code(0)))));
    let event = Event { seq: 9, time: SECOND, kind: Kind::Completed, record: Arc::new(record) };
    let told = super::event(&event);
    assert_eq!((told.seq, told.kind(), &*told.process_id), (9, pb::Kind::Completed, "a"));
    let transcript = told.process.unwrap().transcript.unwrap();
    assert_eq!((transcript.first_seq, transcript.dropped_bytes), (0, 0));
    assert_eq!((transcript.total_bytes, transcript.ended), (100, true));
}

#[test]
fn the_bytes_of_a_chunk_are_shared() {
    let data = Bytes::from(vec![0xff; 100]);
    let at = data.as_ptr();
    let told = chunk(Chunk { seq: 3, stream: Stream::Stderr, offset: 5, time: SECOND, data });
    assert_eq!(told.data.as_ptr(), at);
    assert_eq!((told.seq, told.stream(), told.offset), (3, pb::Stream::Stderr, 5));
    assert_eq!(told.time, Some(timestamp(SECOND)));
}

#[test]
fn a_cursor_says_where_to_go_on() {
    let there_is = Figures { first_seq: 3, next_seq: 9, ..Figures::default() };
    let expected = pb::Cursor { since_seq: 4, next_seq: 6, latest_seq: 8, first_seq: 3 };
    assert_eq!(cursor(4, 6, &there_is), expected);
    let nothing = Figures { first_seq: 1, next_seq: 1, ..Figures::default() };
    assert_eq!(cursor(1, 1, &nothing).latest_seq, 0);
}
