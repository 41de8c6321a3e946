//! What kind of work a process is: its mode, service, restarts, readiness and queue.

use std::time::Duration;

use super::pattern;
use super::problems::{Problems, Reported};
use super::program::arguments;
use super::values::{Span, duration, line};
use crate::grpc::pb;
use crate::grpc::words::Word;
use crate::process::{GiveUp, Mode, Policy, Probe, Readiness, Restart, Service};

/// How long it may take to become ready.
const READY: Span =
    Span::new(Duration::from_millis(1), Duration::from_secs(86_400), "1 ms to 24 h");
const DEFAULT_READY: Duration = Duration::from_secs(10);
/// Most arguments of a readiness command, and most bytes of all of them together.
const MAX_EXEC_ARGUMENTS: usize = 1024;
const MAX_EXEC_BYTES: usize = 64 << 10;
/// First pause before a restart.
const BACKOFF_MIN: Span =
    Span::new(Duration::from_millis(1), Duration::from_secs(3600), "1 ms to 1 h");
/// Longest pause before a restart.
const BACKOFF_MAX: Span =
    Span::new(Duration::from_millis(1), Duration::from_secs(86_400), "1 ms to 24 h");

/// Starts that may be counted before a service is given up: each is a time in its record.
const MAX_COUNTED_STARTS: u32 = 100;
/// The span in which they are counted.
const GIVE_UP_WITHIN: Span =
    Span::new(Duration::from_millis(1), Duration::from_secs(86_400), "1 ms to 24 h");

/// The field `spec.mode`.
pub(super) fn mode(problems: &mut Problems, number: i32) -> Result<Mode, Reported> {
    if number == pb::Mode::Unspecified as i32 {
        return Ok(Mode::default());
    }
    Mode::known(number).ok_or_else(|| {
        let problem = format_args!("is {number}: one of {}", Mode::choices());
        problems.add("spec.mode", problem)
    })
}

/// The fields `spec.service` and `spec.restart`: what only a service has, and a service must have.
pub(super) fn service(
    problems: &mut Problems,
    mode: Result<Mode, Reported>,
    name: String,
    restart: Option<pb::Restart>,
) -> Result<Option<Service>, Reported> {
    let name = line(problems, "spec.service", name);
    if mode? != Mode::Service {
        if !name?.is_empty() {
            problems.add("spec.service", "is given: only in MODE_SERVICE");
        }
        if restart.is_some() {
            problems.add("spec.restart", "is given: only in MODE_SERVICE");
        }
        return Ok(None);
    }
    let restart = self::restart(problems, restart);
    let name = name?;
    if name.is_empty() {
        return Err(problems.add("spec.service", "required in MODE_SERVICE: its name"));
    }
    Ok(Some(Service { name, restart: restart? }))
}

fn restart(problems: &mut Problems, restart: Option<pb::Restart>) -> Result<Restart, Reported> {
    let default = Restart::default();
    let Some(restart) = restart else {
        return Ok(default);
    };
    let pb::Restart { policy, max_restarts, backoff_min, backoff_max, give_up } = restart;
    let policy = self::policy(problems, policy);
    let min = duration(problems, "spec.restart.backoff_min", backoff_min, &BACKOFF_MIN);
    let max = duration(problems, "spec.restart.backoff_max", backoff_max, &BACKOFF_MAX);
    let give_up = give_up.map(|given| self::give_up(problems, given)).transpose();
    let backoff_min = min?.unwrap_or(default.backoff_min);
    let backoff_max = max?.unwrap_or(default.backoff_max.max(backoff_min));
    if backoff_max < backoff_min {
        let problem = format_args!("is {backoff_max:?}: at least backoff_min, {backoff_min:?}");
        return Err(problems.add("spec.restart.backoff_max", problem));
    }
    let most = (max_restarts > 0).then_some(max_restarts);
    Ok(Restart { policy: policy?, most, backoff_min, backoff_max, give_up: give_up? })
}

fn give_up(problems: &mut Problems, given: pb::restart::GiveUp) -> Result<GiveUp, Reported> {
    let pb::restart::GiveUp { starts, within } = given;
    let field = "spec.restart.give_up.within";
    let span = duration(problems, field, within, &GIVE_UP_WITHIN);
    if !(1..=MAX_COUNTED_STARTS).contains(&starts) {
        let problem = format_args!("is {starts}: 1 to {MAX_COUNTED_STARTS}");
        problems.add("spec.restart.give_up.starts", problem);
    }
    match span? {
        Some(within) => Ok(GiveUp { starts, within }),
        None => Err(problems.add(field, "required: 1 ms to 24 h")),
    }
}

fn policy(problems: &mut Problems, number: i32) -> Result<Policy, Reported> {
    use pb::restart::Policy as Wire;
    match Wire::try_from(number) {
        Ok(Wire::Unspecified | Wire::Never) => Ok(Policy::Never),
        Ok(Wire::OnFailure) => Ok(Policy::OnFailure),
        Ok(Wire::Always) => Ok(Policy::Always),
        Err(_) => {
            let right = "one of POLICY_NEVER, POLICY_ON_FAILURE, POLICY_ALWAYS";
            Err(problems.add("spec.restart.policy", format_args!("is {number}: {right}")))
        }
    }
}

/// The field `spec.readiness`.
pub(super) fn readiness(
    problems: &mut Problems,
    readiness: Option<pb::Readiness>,
) -> Result<Option<Readiness>, Reported> {
    let Some(pb::Readiness { probe, exec, timeout, keep_on_failure }) = readiness else {
        return Ok(None);
    };
    let probe = self::probe(problems, probe, exec);
    let timeout = duration(problems, "spec.readiness.timeout", timeout, &READY);
    let timeout = timeout?.unwrap_or(DEFAULT_READY);
    Ok(Some(Readiness { probe: probe?, timeout, keep: keep_on_failure }))
}

fn probe(
    problems: &mut Problems,
    probe: Option<pb::readiness::Probe>,
    exec: Vec<String>,
) -> Result<Probe, Reported> {
    use pb::readiness::Probe as Wire;
    match (probe, exec) {
        (None, exec) if exec.is_empty() => {
            Err(problems.add("spec.readiness", "has no probe: output_regex, tcp_port or exec"))
        }
        (None, exec) => self::exec(problems, exec),
        (Some(_), exec) if !exec.is_empty() => {
            Err(problems.add("spec.readiness.exec", "stands beside another probe: only one"))
        }
        (Some(Wire::OutputRegex(regex)), _) => {
            pattern::compile(problems, "spec.readiness.output_regex", &regex)?;
            Ok(Probe::Output(regex))
        }
        (Some(Wire::TcpPort(port)), _) => match u16::try_from(port) {
            Ok(port) if port > 0 => Ok(Probe::Port(port)),
            _ => {
                let problem = format_args!("is {port}: 1 to 65535");
                Err(problems.add("spec.readiness.tcp_port", problem))
            }
        },
    }
}

fn exec(problems: &mut Problems, exec: Vec<String>) -> Result<Probe, Reported> {
    const FIELD: &str = "spec.readiness.exec";
    let bytes: usize = exec.iter().map(String::len).sum();
    if exec.len() > MAX_EXEC_ARGUMENTS {
        let problem = format_args!("has {} arguments: at most {MAX_EXEC_ARGUMENTS}", exec.len());
        return Err(problems.add(FIELD, problem));
    }
    if bytes > MAX_EXEC_BYTES {
        let problem = format_args!("has {bytes} bytes in all: at most {MAX_EXEC_BYTES} (64 KiB)");
        return Err(problems.add(FIELD, problem));
    }
    arguments(problems, FIELD, &exec)?;
    Ok(Probe::Exec(exec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;
    use crate::supervisor::Error;

    fn asked(
        mode: Mode,
        name: &str,
        restart: Option<pb::Restart>,
    ) -> Result<Option<Service>, Error> {
        Problems::collect(|problems| service(problems, Ok(mode), name.into(), restart))
    }

    fn ready(change: impl FnOnce(&mut pb::Readiness)) -> Result<Option<Readiness>, Error> {
        let mut wire = pb::Readiness::default();
        change(&mut wire);
        Problems::collect(|problems| readiness(problems, Some(wire)))
    }

    fn millis(millis: i32) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds: 0, nanos: millis * 1_000_000 })
    }

    #[test]
    fn a_service_has_a_name_and_nothing_else_has() {
        assert_eq!(asked(Mode::Background, "", None), Ok(None));
        let plain = Service { name: "web".into(), restart: Restart::default() };
        assert_eq!(asked(Mode::Service, "web", None), Ok(Some(plain)));
        let told = refused(asked(Mode::Service, "", None));
        assert_eq!(told, ["spec.service: required in MODE_SERVICE: its name"]);
        let told = refused(asked(Mode::Foreground, "web", Some(pb::Restart::default())));
        assert_eq!(
            told,
            [
                "spec.service: is given: only in MODE_SERVICE",
                "spec.restart: is given: only in MODE_SERVICE"
            ]
        );
    }

    #[test]
    fn pauses_have_an_order() {
        let restart = |min, max| {
            let (backoff_min, backoff_max) = (millis(min), max);
            let restart = pb::Restart { backoff_min, backoff_max, ..Default::default() };
            asked(Mode::Service, "web", Some(restart))
        };
        assert!(restart(5, millis(5)).is_ok());
        let told = refused(restart(6, millis(5)));
        assert_eq!(told, ["spec.restart.backoff_max: is 5ms: at least backoff_min, 6ms"]);
    }

    #[test]
    fn a_bad_restart_tells_all_that_is_bad() {
        let restart = pb::Restart {
            policy: 9,
            backoff_min: millis(0),
            backoff_max: millis(0),
            max_restarts: 1,
            give_up: Some(pb::restart::GiveUp::default()),
        };
        let told = refused(asked(Mode::Service, "web", Some(restart)));
        let fields: Vec<_> = told.iter().map(|told| told.split(": ").next().unwrap()).collect();
        assert_eq!(
            fields,
            [
                "spec.restart.policy",
                "spec.restart.backoff_min",
                "spec.restart.backoff_max",
                "spec.restart.give_up.starts",
                "spec.restart.give_up.within"
            ]
        );
    }

    #[test]
    fn there_is_exactly_one_probe() {
        use pb::readiness::Probe as Wire;
        let read = ready(|wire| wire.probe = Some(Wire::TcpPort(80))).unwrap().unwrap();
        let expected = Readiness { probe: Probe::Port(80), timeout: DEFAULT_READY, keep: false };
        assert_eq!(read, expected);
        assert!(ready(|wire| wire.exec = vec!["true".into()]).is_ok());
        let refusals = [
            (ready(|_| {}), "spec.readiness: has no probe: output_regex, tcp_port or exec"),
            (
                ready(|wire| wire.probe = Some(Wire::TcpPort(65_536))),
                "spec.readiness.tcp_port: is 65536: 1 to 65535",
            ),
            (
                ready(|wire| wire.probe = Some(Wire::OutputRegex("a)".into()))),
                "spec.readiness.output_regex: at character 2: unopened group",
            ),
            (
                ready(|wire| {
                    wire.probe = Some(Wire::TcpPort(1));
                    wire.exec = vec!["true".into()];
                }),
                "spec.readiness.exec: stands beside another probe: only one",
            ),
        ];
        for (read, text) in refusals {
            assert_eq!(refused(read), [text]);
        }
    }
}
