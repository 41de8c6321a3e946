//! Requests of `wait.proto`: Wait, and what other calls wait for.

use std::time::Duration;

use super::pattern;
use super::problems::{Problems, Reported};
use super::transcript::first;
use super::values::{Span, duration, existing_id};
use super::view::view;
use crate::grpc::pb;
use crate::process::{Until, WaitFor};
use crate::supervisor::Error;
use crate::transcript::View;

/// How long to wait at most.
const TIMEOUT: Span = Span::new(Duration::ZERO, Duration::from_secs(86_400), "up to 24 h");
/// A pause in the output.
const QUIET: Span = Span::new(Duration::from_millis(1), Duration::from_secs(3600), "1 ms to 1 h");

/// Something to wait for.
#[derive(Clone, Debug)]
pub struct WaitOrder {
    /// The process.
    pub id: String,
    /// What to wait for.
    pub wait: WaitFor,
    /// First chunk to look at and to return; none: the oldest that is kept.
    pub since_seq: Option<u64>,
    /// How the answer shows the output; none: no output.
    pub view: Option<View>,
}

impl TryFrom<pb::WaitRequest> for WaitOrder {
    type Error = Error;

    fn try_from(request: pb::WaitRequest) -> Result<WaitOrder, Error> {
        let pb::WaitRequest { id, wait, since_seq, view: shown } = request;
        Problems::collect(|problems| {
            let id = existing_id(problems, id);
            let wait = match wait_for(problems, wait) {
                Ok(None) => Err(problems.add("wait", "required: what to wait for")),
                Ok(Some(wait)) => Ok(wait),
                Err(reported) => Err(reported),
            };
            let shown = view(problems, shown);
            let since_seq = since_seq.map(first);
            Ok(WaitOrder { id: id?, wait: wait?, since_seq, view: shown? })
        })
    }
}

/// The field `wait`.
pub(super) fn wait_for(
    problems: &mut Problems,
    wait: Option<pb::WaitFor>,
) -> Result<Option<WaitFor>, Reported> {
    let Some(pb::WaitFor { until, timeout }) = wait else {
        return Ok(None);
    };
    let until = self::until(problems, until);
    let timeout = duration(problems, "wait.timeout", timeout, &TIMEOUT);
    Ok(Some(WaitFor { until: until?, timeout: timeout? }))
}

fn until(problems: &mut Problems, until: Option<pb::wait_for::Until>) -> Result<Until, Reported> {
    match until {
        None => Err(problems.add("wait.until", "required: exit, ready, output or quiet")),
        Some(pb::wait_for::Until::Exit(pb::wait_for::Exit {})) => Ok(Until::Exit),
        Some(pb::wait_for::Until::Output(output)) => {
            pattern::output(problems, output).map(Until::Output)
        }
        Some(pb::wait_for::Until::Ready(pb::wait_for::Ready {})) => Ok(Until::Ready),
        Some(pb::wait_for::Until::Quiet(pb::wait_for::Quiet { r#for })) => {
            match duration(problems, "wait.quiet.for", r#for, &QUIET)? {
                Some(pause) => Ok(Until::Quiet(pause)),
                None => Err(problems.add("wait.quiet.for", "required: 1 ms to 1 h")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;
    use pb::wait_for::{Exit, Output, Quiet};

    fn read(until: Option<pb::wait_for::Until>, timeout: Option<i64>) -> Result<WaitOrder, Error> {
        let timeout = timeout.map(|seconds| prost_types::Duration { seconds, nanos: 0 });
        let wait = Some(pb::WaitFor { until, timeout });
        pb::WaitRequest { id: "a".into(), wait, ..Default::default() }.try_into()
    }

    #[test]
    fn a_wait_is_taken_as_it_is_meant() {
        let exit = read(Some(pb::wait_for::Until::Exit(Exit {})), Some(0)).unwrap();
        assert!(matches!(exit.wait.until, Until::Exit));
        assert_eq!((exit.wait.timeout, exit.view.is_none()), (Some(Duration::ZERO), true));
        let output = pb::wait_for::Until::Output(Output { regex: "ready|up".into() });
        let Until::Output(regex) = read(Some(output), None).unwrap().wait.until else {
            panic!("another wait");
        };
        assert!(regex.is_match(b"is ready"));
    }

    #[test]
    fn a_bad_wait_is_refused() {
        let quiet = |nanos: Option<i32>| {
            let pause = nanos.map(|nanos| prost_types::Duration { seconds: 0, nanos });
            Some(pb::wait_for::Until::Quiet(Quiet { r#for: pause }))
        };
        let output = Some(pb::wait_for::Until::Output(Output { regex: "a)".into() }));
        let refusals = [
            (read(None, Some(86_401)), "wait.until: required: exit, ready, output or quiet"),
            (read(quiet(None), None), "wait.quiet.for: required: 1 ms to 1 h"),
            (read(quiet(Some(999_999)), None), "wait.quiet.for: is 999.999µs: 1 ms to 1 h"),
            (read(output, None), "wait.output.regex: at character 2: unopened group"),
            (pb::WaitRequest { id: "a".into(), ..Default::default() }.try_into(), "wait: required"),
        ];
        for (read, text) in refusals {
            let told = refused(read);
            assert!(told[0].starts_with(text), "{told:?}");
        }
        let told = refused(read(None, Some(86_401)));
        assert_eq!(told[1], "wait.timeout: is 86401s: up to 24 h");
    }
}
