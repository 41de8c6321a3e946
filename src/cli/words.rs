//! How commands speak of processes, times and sizes, and read spans of time.
//!
//! Words for people, the same in all commands. Programs read JSON.

mod code;
mod span;

use std::time::Duration;

pub(super) use code::{FAILED, NOT_EXECUTED, NOT_FOUND, TIMED_OUT, by_signal, exit_code};
pub(super) use span::{read_span, span};

use super::print::Colour;
use crate::grpc::pb::{self, spec::Program};
use crate::process::signal;

/// How a process ended, in a word or two: `exited 0`, `failed 3`, `killed SIGTERM`.
pub(super) fn ending(exit: &pb::Exit) -> (String, Colour) {
    let how = match (exit.code, exit.signal) {
        (Some(code), _) => format!(" {code}"),
        (None, Some(number)) => format!(" SIG{}", signal::name(number)),
        (None, None) => String::new(),
    };
    let well = exit.outcome() == pb::Outcome::Succeeded;
    match exit.cause() {
        pb::Cause::Exited if well => (format!("exited{how}"), Colour::Green),
        pb::Cause::Exited | pb::Cause::Signaled => (format!("failed{how}"), Colour::Red),
        pb::Cause::Killed => (format!("killed{how}"), Colour::Dim),
        pb::Cause::TimedOut => ("timed out".into(), Colour::Red),
        pb::Cause::OutOfMemory => ("out of memory".into(), Colour::Red),
        pb::Cause::ReadinessFailed => (format!("never ready{how}"), Colour::Red),
        pb::Cause::StartFailed => ("not started".into(), Colour::Red),
        pb::Cause::CanceledInQueue => ("canceled in queue".into(), Colour::Dim),
        pb::Cause::Shutdown => (format!("shut down{how}"), Colour::Dim),
        pb::Cause::Lost => ("lost".into(), Colour::Red),
        pb::Cause::GaveUp => (format!("gave up{how}"), Colour::Red),
        pb::Cause::Unspecified => (format!("ended{how}"), Colour::Plain),
    }
}

/// Where a process is in its life, or how it ended.
pub(super) fn state(process: &pb::Process) -> (String, Colour) {
    let probed = process.spec.as_ref().is_some_and(|spec| spec.readiness.is_some());
    match (process.state(), &process.exit) {
        (pb::State::Exited, Some(exit)) if !process.unkillable.is_empty() => {
            (format!("{}, {} unkillable", ending(exit).0, process.unkillable.len()), Colour::Red)
        }
        (pb::State::Exited, Some(exit)) => ending(exit),
        (pb::State::Exited, None) => ("ended".into(), Colour::Plain),
        (pb::State::Queued, _) => match process.queue_position {
            0 => ("queued".into(), Colour::Yellow),
            place => (format!("queued #{place}"), Colour::Yellow),
        },
        (pb::State::Running | pb::State::Stopping, _)
            if process.blocked() == pb::Blocked::Reader =>
        {
            ("blocked".into(), Colour::Yellow)
        }
        (pb::State::Running, _) if probed && process.ready => ("ready".into(), Colour::Green),
        (pb::State::Running, _) => ("running".into(), Colour::Green),
        (pb::State::Starting, _) => ("starting".into(), Colour::Yellow),
        (pb::State::Stopping, _) if !process.unkillable.is_empty() => {
            ("unkillable".into(), Colour::Red)
        }
        (pb::State::Stopping, _) => ("stopping".into(), Colour::Yellow),
        (pb::State::Backoff, _) => ("restarting".into(), Colour::Yellow),
        (pb::State::Unspecified, _) => ("unknown".into(), Colour::Plain),
    }
}

/// How a process ended, in a sentence without its full stop: `exited with code 3 after 3m12s`.
pub(super) fn end(exit: &pb::Exit) -> String {
    let message = if exit.message.is_empty() { ending(exit).0 } else { exit.message.clone() };
    match exit.duration.as_ref().and_then(from_proto) {
        Some(ran) => format!("{message} after {}", span(ran)),
        None => message,
    }
}

/// What is said of a process that was left alone.
pub(super) fn goes_on(reached: bool, waits: bool) -> &'static str {
    match (reached, waits) {
        (true, false) => "runs on",
        (true, true) => "still waits to start",
        (false, _) => "may run on, but the supervisor cannot be reached",
    }
}

/// What is said of an end that the process has not chosen itself; none: its code says it all.
pub(super) fn end_by_others(process: &pb::Process) -> Option<String> {
    let exit = process.exit.as_ref()?;
    let by_itself = matches!(exit.cause(), pb::Cause::Exited | pb::Cause::Signaled);
    (!by_itself).then(|| format!("{}: {}", process.id, exit.message))
}

/// What was asked to run, as one would type it. Empty if that is not told.
pub(super) fn command(spec: &pb::Spec) -> String {
    match &spec.program {
        Some(Program::Shell(line)) => line.clone(),
        Some(Program::Argv(argv)) if argv.raw_args.is_empty() => quoted(&argv.args),
        Some(Program::Argv(argv)) => {
            let args = argv.raw_args.iter().map(|arg| String::from_utf8_lossy(arg).into_owned());
            quoted(&args.collect::<Vec<_>>())
        }
        Some(Program::Script(script)) => {
            // Lists leave the code out.
            let mut lines = script.code.lines().chain([script.filename.as_str(), "script"]);
            let first = lines.find(|line| !line.trim().is_empty());
            let interpreter = match script.interpreter.is_empty() {
                true => "/bin/sh".into(),
                false => quoted(&script.interpreter),
            };
            format!("{interpreter}: {}", first.unwrap_or_default().trim())
        }
        None => String::new(),
    }
}

/// Arguments, with quotes around those that a shell would take apart.
fn quoted(args: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./=:,+@%^".contains(c);
    let quoted = |arg: &String| match !arg.is_empty() && arg.chars().all(plain) {
        true => arg.clone(),
        false => format!("'{}'", arg.replace('\'', r"'\''")),
    };
    args.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// A number of bytes: `512 B`, `1.2 MiB`.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // From where a value would be shown as 1024.0, the next unit says it.
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    format!("{value:.1} {unit}")
}

/// A time: RFC 3339 in UTC, to the millisecond.
pub(super) fn time(time: &prost_types::Timestamp) -> String {
    let millis = time.nanos / 1_000_000 * 1_000_000;
    let whole = prost_types::Timestamp { seconds: time.seconds, nanos: 0 }.to_string();
    let seconds = whole.trim_end_matches('Z');
    format!("{seconds}.{:03}Z", millis / 1_000_000)
}

/// A span of time as the API has it. None: it is negative.
pub(super) fn from_proto(span: &prost_types::Duration) -> Option<Duration> {
    Duration::try_from(*span).ok()
}

/// From one time to another; none if the other is before.
pub(super) fn between(
    from: &prost_types::Timestamp,
    to: &prost_types::Timestamp,
) -> Option<Duration> {
    let nanos = |time: &prost_types::Timestamp| {
        i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)
    };
    u64::try_from(nanos(to) - nanos(from)).ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(cause: pb::Cause, code: Option<i32>, signal: Option<i32>) -> pb::Exit {
        let outcome = match (cause, code) {
            (pb::Cause::Exited, Some(0)) => pb::Outcome::Succeeded,
            _ => pb::Outcome::Failed,
        };
        let (cause, outcome) = (cause.into(), outcome.into());
        pb::Exit { cause, outcome, code, signal, ..Default::default() }
    }

    #[test]
    fn an_end_is_told_in_a_word() {
        let told = |cause, code, signal| ending(&exit(cause, code, signal)).0;
        assert_eq!(told(pb::Cause::Exited, Some(0), None), "exited 0");
        assert_eq!(told(pb::Cause::Exited, Some(3), None), "failed 3");
        assert_eq!(told(pb::Cause::Signaled, None, Some(11)), "failed SIGSEGV");
        assert_eq!(told(pb::Cause::Killed, None, Some(15)), "killed SIGTERM");
        assert_eq!(told(pb::Cause::TimedOut, None, Some(9)), "timed out");
        assert_eq!(told(pb::Cause::Lost, None, None), "lost");
    }

    #[test]
    fn sizes_have_the_unit_that_fits() {
        let sizes = [0, 1023, 1024, 1_258_291, 1 << 40, u64::MAX, (1 << 20) - 1].map(size);
        assert_eq!(
            sizes,
            ["0 B", "1023 B", "1.0 KiB", "1.2 MiB", "1.0 TiB", "16.0 EiB", "1.0 MiB"]
        );
    }

    #[test]
    fn arguments_are_shown_as_one_would_type_them() {
        let args = ["echo", "a b", "it's", ""].map(str::to_owned);
        assert_eq!(quoted(&args), r"echo 'a b' 'it'\''s' ''");
    }

    #[test]
    fn times_are_told_to_the_millisecond() {
        let at = prost_types::Timestamp { seconds: 1, nanos: 20_900_000 };
        assert_eq!(time(&at), "1970-01-01T00:00:01.020Z");
        let later = prost_types::Timestamp { seconds: 3, nanos: 0 };
        assert_eq!(between(&at, &later), Some(Duration::from_nanos(1_979_100_000)));
        assert_eq!(between(&later, &at), None);
    }
}
