//! A spec as it was accepted, with its defaults filled in: sent again, it makes an equal one, if
//! nothing of it was hidden.

use std::time::Duration;

use super::duration;
use crate::access::{Caller, Does};
use crate::grpc::clip::clip;
use crate::grpc::pb;
use crate::process::{
    Environment, Files, GiveUp, Limits, Policy, Probe, Program, Readiness, Restart, Sandbox,
    Script, Size, Spec, Stop, Streams, User, signal,
};

/// Bytes of a program in List.
const LISTED_PROGRAM: usize = 1 << 10;

/// What stands for a value that is not shown.
const REDACTED: &str = "[redacted]";

/// Whether the values of variables are shown, which may be secrets. Their names always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrets {
    /// To whom may set them.
    Shown,
    /// To whom only looks, and where many processes are shown at once.
    Hidden,
}

impl Secrets {
    /// What a caller is shown of one process.
    pub fn of(caller: &Caller) -> Secrets {
        if caller.grant.role < Does::Change.needs() { Secrets::Hidden } else { Secrets::Shown }
    }
}

/// A spec as it was accepted.
pub fn spec(spec: &Spec, secrets: Secrets) -> pb::Spec {
    pb::Spec { program: program(&spec.program), ..without_program(spec, secrets) }
}

/// A spec as List shows it, and whether its program was cut.
pub(super) fn listed_spec(spec: &Spec) -> (pb::Spec, bool) {
    let (program, is_cut) = listed_program(&spec.program);
    (pb::Spec { program, ..without_program(spec, Secrets::Hidden) }, is_cut)
}

fn without_program(spec: &Spec, secrets: Secrets) -> pb::Spec {
    let Spec {
        program: _,
        streams,
        cwd,
        env,
        name,
        description,
        reference,
        labels,
        owner,
        workspace,
        mode,
        service,
        readiness,
        queue,
        timeout,
        stop: ending,
        limits: bounds,
        user,
        transcript_bytes,
        overflow,
        sandbox: fence,
    } = spec;
    pb::Spec {
        program: None,
        io: Some(io(streams)),
        cwd: cwd.clone(),
        env: environment(env, secrets),
        name: name.clone(),
        description: description.clone(),
        r#ref: reference.clone(),
        labels: labels.clone().into_iter().collect(),
        owner: owner.clone(),
        workspace: workspace.clone(),
        mode: pb::Mode::from(*mode).into(),
        service: service.as_ref().map(|service| service.name.clone()).unwrap_or_default(),
        readiness: readiness.as_ref().map(self::readiness),
        restart: service.as_ref().map(|service| restart(&service.restart)),
        queue: queue.clone(),
        timeout: timeout.map(duration),
        stop: Some(stop(ending)),
        limits: limits(bounds),
        user: user.clone().map(|User { uid, gid, groups }| pb::User {
            uid,
            gid: Some(gid),
            groups,
        }),
        transcript_bytes: *transcript_bytes,
        overflow: pb::Overflow::from(*overflow).into(),
        sandbox: sandbox(fence),
    }
}

fn program(program: &Program) -> Option<pb::spec::Program> {
    Some(match program {
        Program::Shell(line) => pb::spec::Program::Shell(line.clone()),
        Program::Argv(args) => {
            pb::spec::Program::Argv(pb::Argv { args: args.clone(), raw_args: Vec::new() })
        }
        Program::RawArgv(args) => {
            let raw_args = args.iter().map(|arg| arg.clone().into()).collect();
            pb::spec::Program::Argv(pb::Argv { args: Vec::new(), raw_args })
        }
        Program::Script(script) => {
            let Script { code, interpreter, filename } = script.clone();
            pb::spec::Program::Script(pb::Script { code, interpreter, filename })
        }
        Program::LeftOut => return None,
    })
}

/// At most [`LISTED_PROGRAM`] bytes of a program, copied without the rest, and whether that is cut.
fn listed_program(what: &Program) -> (Option<pb::spec::Program>, bool) {
    match what {
        Program::Shell(line) => {
            let shown = pb::spec::Program::Shell(clip(line, LISTED_PROGRAM));
            (Some(shown), line.len() > LISTED_PROGRAM)
        }
        Program::Argv(args) => {
            let (args, is_cut) = listed_args(args, |arg, most| clip(arg, most));
            let argv = pb::Argv { args, raw_args: Vec::new() };
            (Some(pb::spec::Program::Argv(argv)), is_cut)
        }
        Program::RawArgv(args) => {
            let (args, is_cut) = listed_args(args, |arg, most| arg[..most].to_vec());
            let raw_args = args.into_iter().map(Into::into).collect();
            let argv = pb::Argv { args: Vec::new(), raw_args };
            (Some(pb::spec::Program::Argv(argv)), is_cut)
        }
        Program::Script(Script { code, interpreter, filename }) => {
            let (interpreter, is_cut) = listed_args(interpreter, |arg, most| clip(arg, most));
            let (code_left_out, code) = (!code.is_empty(), String::new());
            let script = pb::Script { code, interpreter, filename: filename.clone() };
            (Some(pb::spec::Program::Script(script)), is_cut || code_left_out)
        }
        Program::LeftOut => (None, true),
    }
}

/// As many arguments as [`LISTED_PROGRAM`] has room for, the last of them cut if it must be.
fn listed_args<A: AsRef<[u8]> + Clone>(args: &[A], cut: impl Fn(&A, usize) -> A) -> (Vec<A>, bool) {
    let mut room = LISTED_PROGRAM;
    let mut shown = Vec::new();
    for arg in args {
        let length = arg.as_ref().len();
        if room == 0 || length > room {
            shown.extend((room > 0).then(|| cut(arg, room)));
            return (shown, true);
        }
        shown.push(arg.clone());
        // With the space before the next one, so that the number of short ones is bounded, too.
        room = room.saturating_sub(length + 1);
    }
    (shown, false)
}

fn io(streams: &Streams) -> pb::spec::Io {
    match streams {
        Streams::Pipes { stdin, merge_stderr } => {
            pb::spec::Io::Pipes(pb::Pipes { stdin: *stdin, merge_stderr: *merge_stderr })
        }
        Streams::Terminal { size: Size { rows, cols }, term } => {
            let (rows, cols, term) = ((*rows).into(), (*cols).into(), term.clone());
            pb::spec::Io::Terminal(pb::Terminal { rows, cols, term })
        }
    }
}

/// Absent when nothing was asked for; in events it is left out anyway.
fn environment(env: &Environment, secrets: Secrets) -> Option<pb::Environment> {
    let Environment { set, inherit, inherit_all } = env;
    let value = |value: &String| match secrets {
        Secrets::Shown => value.clone(),
        Secrets::Hidden => REDACTED.to_owned(),
    };
    (*env != Environment::default()).then(|| pb::Environment {
        set: set.iter().map(|(name, text)| (name.clone(), value(text))).collect(),
        inherit: inherit.clone(),
        inherit_all: *inherit_all,
    })
}

fn readiness(readiness: &Readiness) -> pb::Readiness {
    use pb::readiness::Probe as Wire;
    let Readiness { probe, timeout, keep } = readiness;
    let (probe, exec) = match probe {
        Probe::Output(regex) => (Some(Wire::OutputRegex(regex.clone())), Vec::new()),
        Probe::Port(port) => (Some(Wire::TcpPort((*port).into())), Vec::new()),
        Probe::Exec(args) => (None, args.clone()),
    };
    pb::Readiness { probe, exec, timeout: Some(duration(*timeout)), keep_on_failure: *keep }
}

fn restart(restart: &Restart) -> pb::Restart {
    use pb::restart::Policy as Wire;
    let Restart { policy, most, backoff_min, backoff_max, give_up } = restart;
    let policy = match policy {
        Policy::Never => Wire::Never,
        Policy::OnFailure => Wire::OnFailure,
        Policy::Always => Wire::Always,
    };
    pb::Restart {
        policy: policy.into(),
        max_restarts: most.unwrap_or_default(),
        backoff_min: Some(duration(*backoff_min)),
        backoff_max: Some(duration(*backoff_max)),
        give_up: give_up.map(|GiveUp { starts, within }| pb::restart::GiveUp {
            starts,
            within: Some(duration(within)),
        }),
    }
}

/// Absent when nothing was asked for.
fn limits(limits: &Limits) -> Option<pb::Limits> {
    let Limits { memory_bytes, processes, open_files, file_bytes, cpu_seconds, milli_cpus, nice } =
        *limits;
    let cpu_time = (cpu_seconds > 0).then(|| duration(Duration::from_secs(cpu_seconds)));
    (*limits != Limits::default()).then(|| pb::Limits {
        memory_bytes,
        processes,
        open_files,
        file_bytes,
        cpu_time,
        cpus: milli_cpus as f64 / 1000.0,
        nice,
    })
}

/// Absent when nothing was asked for.
fn sandbox(sandbox: &Sandbox) -> Option<pb::Sandbox> {
    use pb::sandbox::Files as Wire;
    let Sandbox { files, writable, own_pids, own_mounts, own_network, no_new_privileges } = sandbox;
    let files = match files {
        Files::Unrestricted => Wire::Unrestricted,
        Files::ReadOnly => Wire::ReadOnly,
        Files::WorkspaceWrite => Wire::WorkspaceWrite,
    };
    (*sandbox != Sandbox::default()).then(|| pb::Sandbox {
        files: files.into(),
        writable: writable.clone(),
        own_pids: *own_pids,
        own_mounts: *own_mounts,
        own_network: *own_network,
        no_new_privileges: *no_new_privileges,
    })
}

fn stop(Stop { signal: number, grace }: &Stop) -> pb::Stop {
    pb::Stop { signal: signal::name(*number), grace: Some(duration(*grace)) }
}
