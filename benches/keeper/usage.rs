//! What the kernel says a process uses.

use std::fs;
use std::time::Duration;

use crate::Result;

/// Memory in KiB, where pages that several processes map are shared out among them.
pub(crate) fn pss(pid: u32) -> Result<f64> {
    field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// Threads.
pub(crate) fn threads(pid: u32) -> Result<f64> {
    field(&format!("/proc/{pid}/status"), "Threads:")
}

/// How often its first thread went to sleep: once per wake-up.
pub(crate) fn sleeps(pid: u32) -> Result<f64> {
    field(&format!("/proc/{pid}/status"), "voluntary_ctxt_switches:")
}

/// CPU time of its first thread, to the nanosecond. The keeper has no other.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/schedstat");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let nanos = text.split_whitespace().next().and_then(|word| word.parse().ok());
    Ok(Duration::from_nanos(nanos.ok_or_else(|| format!("{path} reads {text:?}"))?))
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
