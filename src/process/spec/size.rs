//! How much memory a spec takes. Pure.
//!
//! Owns what the bounds on specs in memory count. Every field is named here, so that a new one does
//! not compile until it is counted.

use super::{Environment, Probe, Program, Readiness, Script, Service, Spec, Streams};
use crate::process::{Sandbox, User};

/// Memory of a text besides its bytes: its header, and the smallest block of the allocator.
const TEXT_OVERHEAD: usize = size_of::<String>() + 32;

impl Spec {
    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        let Spec {
            program,
            streams,
            cwd,
            env: Environment { set, inherit, inherit_all: _ },
            name,
            description,
            reference,
            labels,
            owner,
            workspace,
            mode: _,
            service,
            readiness,
            queue,
            timeout: _,
            stop: _,
            limits: _,
            user,
            transcript_bytes: _,
            overflow: _,
            sandbox,
        } = self;
        let lines = [cwd, name, description, reference, owner, workspace, queue];
        let pairs = labels.iter().chain(set).flat_map(|(key, value)| [key, value]);
        size_of::<Spec>()
            + program.size(TEXT_OVERHEAD)
            + streams.size(TEXT_OVERHEAD)
            + texts(lines, TEXT_OVERHEAD)
            + texts(pairs, TEXT_OVERHEAD)
            + texts(inherit, TEXT_OVERHEAD)
            + texts(service.as_ref().map(|Service { name, restart: _ }| name), TEXT_OVERHEAD)
            + readiness.as_ref().map_or(0, |readiness| readiness.size(TEXT_OVERHEAD))
            + user.as_ref().map_or(0, |User { uid: _, gid: _, groups }| size_of_val(&groups[..]))
            + sandbox.size(TEXT_OVERHEAD)
    }
}

impl Program {
    /// Bytes of its texts, and an overhead for each.
    pub(super) fn size(&self, overhead: usize) -> usize {
        match self {
            Program::Shell(line) => texts([line], overhead),
            Program::Argv(args) => texts(args, overhead),
            Program::RawArgv(args) => texts(args, overhead),
            Program::Script(Script { code, interpreter, filename }) => {
                texts([code, filename], overhead) + texts(interpreter, overhead)
            }
            Program::LeftOut => 0,
        }
    }
}

impl Streams {
    /// Bytes of its texts, and an overhead for each.
    pub(super) fn size(&self, overhead: usize) -> usize {
        match self {
            Streams::Pipes { stdin: _, merge_stderr: _ } => 0,
            Streams::Terminal { size: _, term } => texts([term], overhead),
        }
    }
}

impl Readiness {
    /// Bytes of its texts, and an overhead for each.
    pub(super) fn size(&self, overhead: usize) -> usize {
        let Readiness { probe, timeout: _, keep: _ } = self;
        match probe {
            Probe::Output(regex) => texts([regex], overhead),
            Probe::Port(_) => 0,
            Probe::Exec(args) => texts(args, overhead),
        }
    }
}

impl Sandbox {
    /// Bytes of its texts, and an overhead for each.
    pub(super) fn size(&self, overhead: usize) -> usize {
        let Sandbox {
            files: _,
            writable,
            own_pids: _,
            own_mounts: _,
            own_network: _,
            no_new_privileges: _,
        } = self;
        texts(writable, overhead)
    }
}

/// Bytes of texts, and an overhead for each.
pub(super) fn texts<T: AsRef<[u8]>>(all: impl IntoIterator<Item = T>, overhead: usize) -> usize {
    all.into_iter().map(|text| overhead + text.as_ref().len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Size;

    /// How much more memory a spec takes by a change.
    fn grown(change: impl FnOnce(&mut Spec)) -> usize {
        let mut spec = Spec::unknown();
        change(&mut spec);
        spec.bytes() - Spec::unknown().bytes()
    }

    #[test]
    fn empty_elements_take_memory() {
        const COUNT: usize = 1000;
        let texts = || vec![String::new(); COUNT];
        let pairs = || (0..COUNT).map(|n| (n.to_string(), String::new())).collect();
        let raw = || Program::RawArgv(vec![Vec::new(); COUNT]);
        let script = || Script { code: String::new(), interpreter: texts(), filename: "s".into() };
        let exec = || Readiness { probe: Probe::Exec(texts()), ..ready_by_output("") };
        for grown in [
            grown(|spec| spec.program = Program::Argv(texts())),
            grown(|spec| spec.program = raw()),
            grown(|spec| spec.program = Program::Script(script())),
            grown(|spec| spec.env.inherit = texts()),
            grown(|spec| spec.env.set = pairs()),
            grown(|spec| spec.labels = pairs()),
            grown(|spec| spec.readiness = Some(exec())),
            grown(|spec| spec.sandbox.writable = texts()),
        ] {
            assert!(grown >= COUNT * 56, "{grown}");
        }
    }

    #[test]
    fn every_text_counts_with_its_length() {
        let long = || "x".repeat(5000);
        let terminal = || Streams::Terminal { size: Size { rows: 1, cols: 1 }, term: long() };
        let service = || Service { name: long(), restart: super::super::Restart::default() };
        for grown in [
            grown(|spec| spec.program = Program::Shell(long())),
            grown(|spec| spec.streams = terminal()),
            grown(|spec| spec.cwd = long()),
            grown(|spec| spec.name = long()),
            grown(|spec| spec.description = long()),
            grown(|spec| spec.reference = long()),
            grown(|spec| spec.owner = long()),
            grown(|spec| spec.workspace = long()),
            grown(|spec| spec.service = Some(service())),
            grown(|spec| spec.readiness = Some(ready_by_output(&long()))),
            grown(|spec| spec.queue = long()),
        ] {
            assert!(grown >= 5000, "{grown}");
        }
    }

    fn ready_by_output(regex: &str) -> Readiness {
        let probe = Probe::Output(regex.into());
        Readiness { probe, timeout: std::time::Duration::ZERO, keep: false }
    }
}
