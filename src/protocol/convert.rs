//! Messages to domain words and back, side by side.
//!
//! Every conversion names every field, so that a new one is a compile error here and
//! nowhere else.

use super::pb;
use crate::process::{
    Descendant, Enforceable, Exit, Files, InputState, Io, KillDomain, Launch, Overflow, Parts,
    Refused, Sandbox, Size, Status, TreeLimits, TreeSignal, Unkillable, Usage, User,
};
use crate::transcript::ring::{MAX_CAPACITY, MIN_CAPACITY};

fn invalid(what: impl Into<String>) -> Refused {
    Refused::Invalid(what.into())
}

impl From<Launch> for pb::Spawn {
    fn from(launch: Launch) -> pb::Spawn {
        let Launch {
            id,
            run,
            args,
            env,
            cwd,
            io,
            user,
            rlimits,
            nice,
            oom_score_adj,
            ring_bytes,
            overflow,
            first_seq,
            continues,
            limits,
            roots,
            sandbox,
            beside,
        } = launch;
        let no_new_privileges = sandbox.no_new_privileges;
        let variable = |(name, value): (Vec<u8>, Vec<u8>)| pb::Variable {
            name: name.into(),
            value: value.into(),
        };
        pb::Spawn {
            id,
            run,
            args: args.into_iter().map(Into::into).collect(),
            env: env.into_iter().map(variable).collect(),
            cwd: cwd.into(),
            io: Some(io.into()),
            user: user.map(|User { uid, gid, groups }| pb::User { uid, gid, groups }),
            rlimits: rlimits
                .into_iter()
                .map(|(resource, value)| pb::Rlimit { resource, value })
                .collect(),
            nice,
            oom_score_adj,
            ring_bytes,
            overflow: pb::Overflow::from(overflow).into(),
            first_seq,
            continues,
            limits: (!limits.is_none()).then(|| limits.into()),
            roots: roots.into_iter().map(Into::into).collect(),
            sandbox: wire_sandbox(sandbox, beside),
            no_new_privileges,
        }
    }
}

impl TryFrom<pb::Spawn> for Launch {
    type Error = Refused;

    fn try_from(spawn: pb::Spawn) -> Result<Launch, Refused> {
        let overflow = spawn.overflow();
        let pb::Spawn {
            id,
            run,
            args,
            env,
            cwd,
            io,
            user,
            rlimits,
            nice,
            oom_score_adj,
            ring_bytes,
            overflow: _,
            first_seq,
            continues,
            limits,
            roots,
            sandbox,
            no_new_privileges,
        } = spawn;
        let (sandbox, beside) = domain_sandbox(sandbox.unwrap_or_default(), no_new_privileges)?;
        if !(MIN_CAPACITY..=MAX_CAPACITY).contains(&ring_bytes) {
            return Err(invalid(format!("a ring of {ring_bytes} bytes: 64 KiB to 1 GiB")));
        }
        if first_seq == 0 || first_seq > u64::MAX / 2 {
            return Err(invalid("sequence numbers begin with 1, and have far to go"));
        }
        Ok(Launch {
            id,
            run,
            args: args.into_iter().map(Into::into).collect(),
            env: env
                .into_iter()
                .map(|pb::Variable { name, value }| (name.into(), value.into()))
                .collect(),
            cwd: cwd.into(),
            io: io.ok_or_else(|| invalid("neither pipes nor terminal"))?.try_into()?,
            user: user.map(|pb::User { uid, gid, groups }| User { uid, gid, groups }),
            rlimits: rlimits
                .into_iter()
                .map(|pb::Rlimit { resource, value }| (resource, value))
                .collect(),
            nice,
            oom_score_adj,
            ring_bytes,
            overflow: overflow.into(),
            first_seq,
            continues,
            limits: limits.unwrap_or_default().into(),
            roots: roots.into_iter().map(Into::into).collect(),
            sandbox,
            beside,
        })
    }
}

/// Absent where it asks for nothing.
fn wire_sandbox(sandbox: Sandbox, beside: Option<u64>) -> Option<pb::Sandbox> {
    let Sandbox { files, writable, own_pids, own_mounts, own_network, no_new_privileges: _ } =
        sandbox;
    let files = match files {
        Files::Unrestricted => pb::sandbox::Files::Unspecified,
        Files::ReadOnly => pb::sandbox::Files::ReadOnly,
        Files::WorkspaceWrite => pb::sandbox::Files::WorkspaceWrite,
    };
    let wire = pb::Sandbox {
        files: files.into(),
        writable: writable.into_iter().map(|path| path.into_bytes().into()).collect(),
        own_pids,
        own_mounts,
        own_network,
        beside: beside.unwrap_or(0),
    };
    (wire != pb::Sandbox::default()).then_some(wire)
}

/// What is not known is refused: nobody runs with less of a fence than was asked for.
fn domain_sandbox(
    wire: pb::Sandbox,
    no_new_privileges: bool,
) -> Result<(Sandbox, Option<u64>), Refused> {
    use pb::sandbox::Files as Wire;
    let pb::Sandbox { files, writable, own_pids, own_mounts, own_network, beside } = wire;
    let files = match Wire::try_from(files) {
        Ok(Wire::Unspecified | Wire::Unrestricted) => Files::Unrestricted,
        Ok(Wire::ReadOnly) => Files::ReadOnly,
        Ok(Wire::WorkspaceWrite) => Files::WorkspaceWrite,
        Err(_) => return Err(invalid(format!("the files {files} of a sandbox: not known here"))),
    };
    let utf8 = |path: prost::bytes::Bytes| String::from_utf8(path.into());
    let writable: Result<_, _> = writable.into_iter().map(utf8).collect();
    let writable = writable.map_err(|_| invalid("a writable path that is not UTF-8"))?;
    let sandbox = Sandbox { files, writable, own_pids, own_mounts, own_network, no_new_privileges };
    Ok((sandbox, Some(beside).filter(|key| *key != 0)))
}

impl From<Parts> for pb::SandboxParts {
    fn from(Parts { files, own_pids, own_mounts, own_network }: Parts) -> pb::SandboxParts {
        pb::SandboxParts { files, own_pids, own_mounts, own_network }
    }
}

impl From<pb::SandboxParts> for Parts {
    fn from(parts: pb::SandboxParts) -> Parts {
        let pb::SandboxParts { files, own_pids, own_mounts, own_network } = parts;
        Parts { files, own_pids, own_mounts, own_network }
    }
}

impl From<Io> for pb::spawn::Io {
    fn from(io: Io) -> pb::spawn::Io {
        match io {
            Io::Pipes { stdin, merge_stderr } => {
                pb::spawn::Io::Pipes(pb::Pipes { stdin, merge_stderr })
            }
            Io::Terminal(Size { rows, cols }) => {
                pb::spawn::Io::Terminal(pb::Terminal { rows: rows.into(), cols: cols.into() })
            }
        }
    }
}

impl TryFrom<pb::spawn::Io> for Io {
    type Error = Refused;

    fn try_from(io: pb::spawn::Io) -> Result<Io, Refused> {
        match io {
            pb::spawn::Io::Pipes(pb::Pipes { stdin, merge_stderr }) => {
                Ok(Io::Pipes { stdin, merge_stderr })
            }
            pb::spawn::Io::Terminal(pb::Terminal { rows, cols }) => {
                size(rows, cols).map(Io::Terminal)
            }
        }
    }
}

/// A terminal's size as it came over the wire.
pub(crate) fn size(rows: u32, cols: u32) -> Result<Size, Refused> {
    Size::new(rows, cols).ok_or_else(|| {
        invalid(format!("a terminal of {rows} rows and {cols} columns: 1 to {} each", Size::MAX))
    })
}

impl From<Overflow> for pb::Overflow {
    fn from(overflow: Overflow) -> pb::Overflow {
        match overflow {
            Overflow::DropOldest => pb::Overflow::DropOldest,
            Overflow::Block => pb::Overflow::Block,
        }
    }
}

impl From<pb::Overflow> for Overflow {
    fn from(overflow: pb::Overflow) -> Overflow {
        match overflow {
            pb::Overflow::Unspecified | pb::Overflow::DropOldest => Overflow::DropOldest,
            pb::Overflow::Block => Overflow::Block,
        }
    }
}

impl From<Exit> for pb::Exit {
    fn from(exit: Exit) -> pb::Exit {
        let Exit {
            status,
            core_dumped,
            time,
            usage,
            final_seq,
            lingering,
            oom_kills,
            killed,
            own_cpu_micros,
        } = exit;
        pb::Exit {
            status: Some(match status {
                Status::Code(code) => pb::exit::Status::Code(code),
                Status::Signal(signal) => pb::exit::Status::Signal(signal),
            }),
            core_dumped,
            time,
            usage: Some(usage.into()),
            final_seq,
            lingering: lingering.into_iter().map(Into::into).collect(),
            oom_kills,
            out_of_memory: false,
            killed: Some(killed),
            own_cpu_micros,
        }
    }
}

impl TryFrom<pb::Exit> for Exit {
    type Error = Refused;

    fn try_from(exit: pb::Exit) -> Result<Exit, Refused> {
        let pb::Exit {
            status,
            core_dumped,
            time,
            usage,
            final_seq,
            lingering,
            oom_kills,
            out_of_memory,
            killed,
            own_cpu_micros,
        } = exit;
        // A keeper of before has judged already: by facts that lead to the same it is believed.
        let (killed, own_cpu_micros) = match killed {
            Some(killed) => (killed, own_cpu_micros),
            None => (oom_kills > 0 && !out_of_memory, Some(0)),
        };
        let status = match status.ok_or_else(|| invalid("an exit without a status"))? {
            pb::exit::Status::Code(code) => Status::Code(code),
            pb::exit::Status::Signal(signal) => Status::Signal(signal),
        };
        Ok(Exit {
            status,
            core_dumped,
            time,
            usage: usage.unwrap_or_default().into(),
            final_seq,
            lingering: lingering.into_iter().map(Into::into).collect(),
            oom_kills,
            killed,
            own_cpu_micros,
        })
    }
}

impl From<Unkillable> for pb::Unkillable {
    fn from(Unkillable { process, start_ticks, error }: Unkillable) -> pb::Unkillable {
        pb::Unkillable { process: Some(process.into()), start_ticks, error }
    }
}

impl TryFrom<pb::Unkillable> for Unkillable {
    type Error = Refused;

    fn try_from(unkillable: pb::Unkillable) -> Result<Unkillable, Refused> {
        let pb::Unkillable { process, start_ticks, error } = unkillable;
        let process = process.ok_or_else(|| invalid("an unkillable process without its pid"))?;
        Ok(Unkillable { process: process.into(), start_ticks, error })
    }
}

impl From<TreeSignal> for pb::Killed {
    fn from(outcome: TreeSignal) -> pb::Killed {
        let TreeSignal { members, unkillable, leader_remains, may_miss_some } = outcome;
        pb::Killed {
            may_miss_some,
            members: members.into_iter().map(Into::into).collect(),
            unkillable: unkillable.into_iter().map(Into::into).collect(),
            leader_remains,
        }
    }
}

impl TryFrom<pb::Killed> for TreeSignal {
    type Error = Refused;

    fn try_from(killed: pb::Killed) -> Result<TreeSignal, Refused> {
        let pb::Killed { members, unkillable, leader_remains, may_miss_some } = killed;
        Ok(TreeSignal {
            may_miss_some,
            members: members.into_iter().map(Into::into).collect(),
            unkillable: unkillable.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
            leader_remains,
        })
    }
}

/// Conversions both ways between structs whose fields are named and typed alike.
macro_rules! same_fields {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl From<$name> for pb::$name {
            fn from($name { $($field),* }: $name) -> pb::$name {
                pb::$name { $($field),* }
            }
        }
        impl From<pb::$name> for $name {
            fn from(pb::$name { $($field),* }: pb::$name) -> $name {
                $name { $($field),* }
            }
        }
    )*};
}

same_fields! {
    Usage {
        user_micros, system_micros, max_rss_bytes, minor_faults, major_faults,
        voluntary_switches, involuntary_switches
    }
    Descendant { pid, command }
    InputState { open, accepted, pending }
    TreeLimits { memory_bytes, processes, milli_cpus }
    Enforceable { memory, processes, cpus }
}

impl From<KillDomain> for pb::KillDomain {
    fn from(domain: KillDomain) -> pb::KillDomain {
        match domain {
            KillDomain::Cgroup => pb::KillDomain::Cgroup,
            KillDomain::Walk => pb::KillDomain::Walk,
        }
    }
}

impl From<pb::KillDomain> for KillDomain {
    fn from(domain: pb::KillDomain) -> KillDomain {
        match domain {
            pb::KillDomain::Cgroup => KillDomain::Cgroup,
            pb::KillDomain::Walk | pb::KillDomain::Unspecified => KillDomain::Walk,
        }
    }
}

impl From<Refused> for pb::Refusal {
    fn from(refused: Refused) -> pb::Refusal {
        let plain = |reason: pb::Reason| pb::Refusal {
            reason: reason.into(),
            message: refused.to_string(),
            ..Default::default()
        };
        match &refused {
            Refused::Invalid(_) => plain(pb::Reason::Invalid),
            Refused::UnknownProcess => plain(pb::Reason::UnknownProcess),
            Refused::SpawnFailed { step, errno, path } => pb::Refusal {
                message: step.clone(),
                errno: *errno,
                path: path.clone().into(),
                ..plain(pb::Reason::SpawnFailed)
            },
            Refused::TooMany => plain(pb::Reason::TooMany),
            Refused::NotRunning => plain(pb::Reason::NotRunning),
            Refused::StillRunning => plain(pb::Reason::StillRunning),
            Refused::NotATerminal => plain(pb::Reason::NotATerminal),
            Refused::StdinNotOpen => plain(pb::Reason::StdinNotOpen),
            Refused::StdinFull(input) => {
                pb::Refusal { input: Some((*input).into()), ..plain(pb::Reason::StdinFull) }
            }
            Refused::InputOffset(input) => {
                pb::Refusal { input: Some((*input).into()), ..plain(pb::Reason::InputOffset) }
            }
            Refused::SignalFailed(errno) => {
                pb::Refusal { errno: *errno, ..plain(pb::Reason::SignalFailed) }
            }
            Refused::Version(_) => plain(pb::Reason::Version),
        }
    }
}

impl From<pb::Refusal> for Refused {
    fn from(refusal: pb::Refusal) -> Refused {
        let reason = refusal.reason();
        let pb::Refusal { reason: _, message, errno, path, input } = refusal;
        let input = input.unwrap_or_default().into();
        match reason {
            pb::Reason::Unspecified | pb::Reason::Invalid => Refused::Invalid(message),
            pb::Reason::UnknownProcess => Refused::UnknownProcess,
            pb::Reason::SpawnFailed => {
                let path = String::from_utf8_lossy(&path).into_owned();
                Refused::SpawnFailed { step: message, errno, path }
            }
            pb::Reason::TooMany => Refused::TooMany,
            pb::Reason::NotRunning => Refused::NotRunning,
            pb::Reason::StillRunning => Refused::StillRunning,
            pb::Reason::NotATerminal => Refused::NotATerminal,
            pb::Reason::StdinNotOpen => Refused::StdinNotOpen,
            pb::Reason::StdinFull => Refused::StdinFull(input),
            pb::Reason::InputOffset => Refused::InputOffset(input),
            pb::Reason::SignalFailed => Refused::SignalFailed(errno),
            pb::Reason::Version => Refused::Version(message),
        }
    }
}

#[cfg(test)]
mod tests;
