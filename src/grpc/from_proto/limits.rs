//! What a process may use.

use std::time::Duration;

use super::problems::{Problems, Reported};
use super::values::{Span, duration};
use crate::grpc::pb;
use crate::process::Limits;

/// CPU time.
const CPU_TIME: Span =
    Span::new(Duration::from_secs(1), Duration::from_secs(365 * 86_400), "1 s to 365 days");
/// Most CPUs.
const CPUS: f64 = 4096.0;

/// The field `spec.limits`.
pub(super) fn limits(
    problems: &mut Problems,
    limits: Option<pb::Limits>,
) -> Result<Limits, Reported> {
    let pb::Limits { memory_bytes, processes, open_files, file_bytes, cpu_time, cpus, nice } =
        limits.unwrap_or_default();
    let cpu_time = duration(problems, "spec.limits.cpu_time", cpu_time, &CPU_TIME);
    let milli_cpus = self::milli_cpus(problems, cpus);
    let nice = self::nice(problems, nice);
    let cpu_time = cpu_time?.unwrap_or_default();
    Ok(Limits {
        memory_bytes,
        processes,
        open_files,
        file_bytes,
        cpu_seconds: cpu_time.as_secs() + u64::from(cpu_time.subsec_nanos() > 0),
        milli_cpus: milli_cpus?,
        nice: nice?,
    })
}

fn milli_cpus(problems: &mut Problems, cpus: f64) -> Result<u64, Reported> {
    if cpus == 0.0 {
        return Ok(0);
    }
    if !(0.001..=CPUS).contains(&cpus) {
        return Err(problems.add("spec.limits.cpus", format_args!("is {cpus}: 0.001 to {CPUS}")));
    }
    Ok((cpus * 1000.0).round() as u64)
}

fn nice(problems: &mut Problems, nice: Option<i32>) -> Result<Option<i32>, Reported> {
    match nice {
        Some(value) if !(-20..=19).contains(&value) => {
            Err(problems.add("spec.limits.nice", format_args!("is {value}: -20 to 19")))
        }
        nice => Ok(nice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;

    #[test]
    fn nothing_asked_for_limits_nothing() {
        for wire in [None, Some(pb::Limits::default())] {
            let read = Problems::collect(|problems| limits(problems, wire));
            assert_eq!(read, Ok(Limits::default()));
        }
    }

    #[test]
    fn spans_become_whole_seconds_and_cpus_thousandths() {
        let cpu_time = Some(prost_types::Duration { seconds: 1, nanos: 1 });
        let wire = pb::Limits { cpu_time, cpus: 1.5, nice: Some(-20), ..Default::default() };
        let read = Problems::collect(|problems| limits(problems, Some(wire))).unwrap();
        assert_eq!((read.cpu_seconds, read.milli_cpus, read.nice), (2, 1500, Some(-20)));
    }

    #[test]
    fn bad_limits_are_all_told() {
        let cpu_time = Some(prost_types::Duration { seconds: 0, nanos: 1 });
        let wire = pb::Limits { cpu_time, cpus: f64::NAN, nice: Some(20), ..Default::default() };
        assert_eq!(
            refused(Problems::collect(|problems| limits(problems, Some(wire)))),
            [
                "spec.limits.cpu_time: is 1ns: 1 s to 365 days",
                "spec.limits.cpus: is NaN: 0.001 to 4096",
                "spec.limits.nice: is 20: -20 to 19",
            ]
        );
    }
}
