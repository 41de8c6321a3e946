//! What is to be run: validated, and with its defaults filled in, so that equal requests make
//! equal specs.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::environment::environment;
use super::limits::limits;
use super::problems::{Problems, Reported};
use super::program::program;
use super::sandbox::sandbox;
use super::values::{LINE, MAX_PATH_BYTES, Span, duration, line, short, signal};
use super::work::{mode, readiness, service};
use crate::grpc::clip::quoted;
use crate::grpc::pb;
use crate::grpc::words::Word;
use crate::process::{
    DEFAULT_RING, Overflow, Probe, Readiness, Sandbox, Size, Spec, Stop, Streams, User,
};
use crate::transcript::ring::{MAX_CAPACITY, MIN_CAPACITY};

/// Most characters of a description.
const DESCRIPTION: usize = 80;
/// Most labels.
const LABELS: usize = 64;
/// Most characters of a label's key.
const KEY: usize = 63;
/// Most supplementary groups.
const GROUPS: usize = 64;
/// Most bytes of the kind of a terminal.
const MAX_TERM_BYTES: usize = 64;

/// How long a process may run.
const TIMEOUT: Span =
    Span::new(Duration::from_millis(1), Duration::from_secs(365 * 86_400), "1 ms to 365 days");
/// Time until SIGKILL.
pub(super) const GRACE: Span = Span::new(Duration::ZERO, Duration::from_secs(3600), "0 to 1 h");

/// The field `spec`.
pub(super) fn spec(problems: &mut Problems, spec: Option<pb::Spec>) -> Result<Spec, Reported> {
    let Some(spec) = spec else {
        return Err(problems.add("spec", "required: what to run"));
    };
    let pb::Spec {
        program: asked,
        io,
        cwd: directory,
        env,
        name,
        description: text,
        r#ref,
        labels: pairs,
        owner,
        workspace,
        mode: kind,
        service: service_name,
        readiness: ready,
        restart,
        queue,
        timeout,
        stop: ending,
        limits: bounds,
        user: other,
        transcript_bytes,
        overflow: full,
        sandbox: fence,
    } = spec;
    let asked = program(problems, asked);
    let streams = streams(problems, io);
    let cwd = cwd(problems, directory);
    let env = environment(problems, env);
    let name = line(problems, "spec.name", name);
    let description = description(problems, "spec.description", text);
    let reference = line(problems, "spec.ref", r#ref);
    let labels = labels(problems, "spec.labels", pairs);
    let owner = line(problems, "spec.owner", owner);
    let workspace = line(problems, "spec.workspace", workspace);
    let mode = mode(problems, kind);
    let service = service(problems, mode, service_name, restart);
    let readiness = readiness(problems, ready);
    let queue = line(problems, "spec.queue", queue);
    let timeout = duration(problems, "spec.timeout", timeout, &TIMEOUT);
    let stop = stop(problems, ending);
    let limits = limits(problems, bounds);
    let user = user(problems, other);
    let transcript_bytes = ring_size(problems, transcript_bytes);
    let overflow = overflow(problems, full);
    let sandbox = sandbox(problems, fence);
    let readiness = kept_in(problems, readiness, &sandbox);
    Ok(Spec {
        program: asked?,
        streams: streams?,
        cwd: cwd?,
        env,
        name: name?,
        description: description?,
        reference: reference?,
        labels,
        owner: owner?,
        workspace: workspace?,
        mode: mode?,
        service: service?,
        readiness: readiness?,
        queue: queue?,
        timeout: timeout?,
        stop: stop?,
        limits: limits?,
        user: user?,
        transcript_bytes: transcript_bytes?,
        overflow: overflow?,
        sandbox: sandbox?,
    })
}

/// A command cannot be started in the PID namespace of another process, and outside of it it would
/// not be kept in.
fn kept_in(
    problems: &mut Problems,
    readiness: Result<Option<Readiness>, Reported>,
    sandbox: &Result<Sandbox, Reported>,
) -> Result<Option<Readiness>, Reported> {
    let by_command = matches!(&readiness, Ok(Some(Readiness { probe: Probe::Exec(_), .. })));
    if by_command && sandbox.as_ref().is_ok_and(|sandbox| sandbox.own_pids) {
        let problem =
            "cannot be had with spec.sandbox.own_pids: no command can be started in there";
        return Err(problems.add("spec.readiness.exec", problem));
    }
    readiness
}

fn streams(problems: &mut Problems, io: Option<pb::spec::Io>) -> Result<Streams, Reported> {
    match io {
        None => Ok(Streams::Pipes { stdin: false, merge_stderr: false }),
        Some(pb::spec::Io::Pipes(pb::Pipes { stdin, merge_stderr })) => {
            Ok(Streams::Pipes { stdin, merge_stderr })
        }
        Some(pb::spec::Io::Terminal(terminal)) => self::terminal(problems, terminal),
    }
}

fn terminal(problems: &mut Problems, terminal: pb::Terminal) -> Result<Streams, Reported> {
    let pb::Terminal { rows, cols, term } = terminal;
    let or = |given: u32, default: u32| if given == 0 { default } else { given };
    let rows = side(problems, "spec.terminal.rows", or(rows, 24));
    let cols = side(problems, "spec.terminal.cols", or(cols, 80));
    let term = if term.is_empty() { "xterm-256color".to_owned() } else { term };
    let checked = short(problems, "spec.terminal.term", &term, MAX_TERM_BYTES);
    checked?;
    Ok(Streams::Terminal { size: Size { rows: rows?, cols: cols? }, term })
}

/// Rows or columns of a terminal.
pub(super) fn side(problems: &mut Problems, field: &str, given: u32) -> Result<u16, Reported> {
    let most = Size::MAX;
    let side = u16::try_from(given).ok().filter(|side| (1..=most).contains(side));
    side.ok_or_else(|| problems.add(field, format_args!("is {given}: 1 to {most}")))
}

fn cwd(problems: &mut Problems, cwd: String) -> Result<String, Reported> {
    short(problems, "spec.cwd", &cwd, MAX_PATH_BYTES)?;
    if !cwd.is_empty() && !cwd.starts_with('/') {
        let problem = format_args!("is {}: an absolute path", quoted(&cwd));
        return Err(problems.add("spec.cwd", problem));
    }
    Ok(cwd)
}

/// What something is for: of several lines the first.
pub(super) fn description(
    problems: &mut Problems,
    field: &str,
    text: String,
) -> Result<String, Reported> {
    let first = text.lines().next().unwrap_or_default();
    let length = first.chars().count();
    if length > DESCRIPTION {
        let problem = format_args!("has {length} characters in its line: at most {DESCRIPTION}");
        return Err(problems.add(field, problem));
    }
    Ok(first.to_owned())
}

/// Labels of a spec or a selector. Of too many none is looked at.
pub(super) fn labels(
    problems: &mut Problems,
    field: &str,
    labels: HashMap<String, String>,
) -> BTreeMap<String, String> {
    if labels.len() > LABELS {
        let problem = format_args!("has {} labels: at most {LABELS}", labels.len());
        problems.add(field, problem);
        return BTreeMap::new();
    }
    // Sorted before they are looked at: the same request is refused with the same words.
    let labels: BTreeMap<_, _> = labels.into_iter().collect();
    for (key, value) in &labels {
        label(problems, field, key, value);
    }
    labels
}

fn label(problems: &mut Problems, field: &str, key: &str, value: &str) {
    let allowed = |char: char| char.is_ascii_alphanumeric() || "._/-".contains(char);
    let begins = key.starts_with(|char: char| char.is_ascii_alphanumeric());
    let problem = if !begins || key.len() > KEY || !key.chars().all(allowed) {
        let right = "1 to 63 letters, digits and ._/- that begin with a letter or digit";
        format!("is no key: {right}")
    } else if value.chars().count() > LINE {
        format!("has a value of more than {LINE} characters")
    } else if value.chars().any(char::is_control) {
        "has a control character in its value: none allowed".into()
    } else {
        return;
    };
    // A request has many labels, and to quote each of them takes longer than to look at it.
    problems.add(format_args!("{field}[{}]", quoted(key)), problem);
}

fn stop(problems: &mut Problems, stop: Option<pb::Stop>) -> Result<Stop, Reported> {
    let default = Stop::default();
    let Some(pb::Stop { signal: text, grace }) = stop else {
        return Ok(default);
    };
    let grace = duration(problems, "spec.stop.grace", grace, &GRACE);
    let signal = match text.as_str() {
        "" => Ok(default.signal),
        text => signal(problems, "spec.stop.signal", text),
    };
    Ok(Stop { signal: signal?, grace: grace?.unwrap_or(default.grace) })
}

fn user(problems: &mut Problems, user: Option<pb::User>) -> Result<Option<User>, Reported> {
    let Some(pb::User { uid, gid, groups }) = user else {
        return Ok(None);
    };
    let uid = user_number(problems, "spec.user.uid", uid);
    let gid = match gid {
        Some(gid) => user_number(problems, "spec.user.gid", gid),
        // Never root's group by leaving it out.
        None => Ok(uid.as_ref().copied().unwrap_or_default()),
    };
    if groups.len() > GROUPS {
        let problem = format_args!("has {} groups: at most {GROUPS}", groups.len());
        return Err(problems.add("spec.user.groups", problem));
    }
    for (at, group) in groups.iter().enumerate() {
        let _ = user_number(problems, &format!("spec.user.groups[{at}]"), *group);
    }
    Ok(Some(User { uid: uid?, gid: gid?, groups }))
}

/// The id of a user or group. To the kernel the largest number means "leave it as it is".
fn user_number(problems: &mut Problems, field: &str, number: u32) -> Result<u32, Reported> {
    if number == u32::MAX {
        return Err(problems.add(field, "is 4294967295, which is nobody's: 0 to 4294967294"));
    }
    Ok(number)
}

fn ring_size(problems: &mut Problems, bytes: u64) -> Result<u64, Reported> {
    match bytes {
        0 => Ok(DEFAULT_RING),
        MIN_CAPACITY..=MAX_CAPACITY => Ok(bytes),
        _ => {
            let problem = format_args!("is {bytes}: 65536 (64 KiB) to 1073741824 (1 GiB)");
            Err(problems.add("spec.transcript_bytes", problem))
        }
    }
}

fn overflow(problems: &mut Problems, number: i32) -> Result<Overflow, Reported> {
    if number == pb::Overflow::Unspecified as i32 {
        return Ok(Overflow::DropOldest);
    }
    Overflow::known(number).ok_or_else(|| {
        let problem = format_args!("is {number}: one of {}", Overflow::choices());
        problems.add("spec.overflow", problem)
    })
}

#[cfg(test)]
mod tests;
