//! What the kernel says a process uses.

use std::fs;
use std::time::Duration;

use super::Result;

/// Memory in KiB, where pages that several processes map are shared out among them.
pub(crate) fn pss(pid: u32) -> Result<f64> {
    field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// Threads.
pub(crate) fn threads(pid: u32) -> Result<f64> {
    field(&format!("/proc/{pid}/status"), "Threads:")
}

/// How often its threads went to sleep: once per wake-up.
pub(crate) fn sleeps(pid: u32) -> Result<f64> {
    tasks(pid)?
        .iter()
        .map(|task| field(&format!("{task}/status"), "voluntary_ctxt_switches:"))
        .sum()
}

/// CPU time of its threads, to the nanosecond.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    tasks(pid)?.iter().map(|task| cpu_of(&format!("{task}/schedstat"))).sum()
}

fn cpu_of(path: &str) -> Result<Duration> {
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let nanos = text.split_whitespace().next().and_then(|word| word.parse().ok());
    Ok(Duration::from_nanos(nanos.ok_or_else(|| format!("{path} reads {text:?}"))?))
}

/// Where its threads are told of.
fn tasks(pid: u32) -> Result<Vec<String>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
    tasks.map(|task| Ok(task?.path().display().to_string())).collect()
}

/// Memory that can be had without swapping, in bytes.
pub(crate) fn available() -> Result<u64> {
    Ok(field("/proc/meminfo", "MemAvailable:")? as u64 * 1024)
}

fn field(path: &str, name: &str) -> Result<f64> {
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    let number = value.and_then(|value| value.split_whitespace().next()?.parse().ok());
    Ok(number.ok_or_else(|| format!("{path} has no {name}"))?)
}
