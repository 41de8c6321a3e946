//! What of a spec the events of its process carry. Pure.
//!
//! Every event is stored with a spec, so this is a list of what is kept, and of what is large as
//! much as fits. Every field is named here: a new one does not compile until it is decided on.

use std::sync::Arc;

use super::{Environment, Program, Readiness, Spec, Streams};
use crate::process::Sandbox;

/// Bytes of all parts together that events have only if they fit.
const MAX_LARGE_PARTS: usize = 8 << 10;
/// Bytes of a program among them.
const MAX_PROGRAM: usize = 4 << 10;
/// What each text counts besides its bytes: about what it takes in JSON.
const TEXT_OVERHEAD: usize = 4;

impl Spec {
    /// The same for events: without the environment and without parts that are too large.
    ///
    /// Selectors and scopes match events by names and labels, so these stay; `grpc::from_proto`
    /// bounds each of them.
    pub fn brief(self: &Arc<Spec>) -> Arc<Spec> {
        let Spec {
            program,
            streams,
            cwd,
            env: _,
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
            stop,
            limits,
            user,
            transcript_bytes,
            overflow,
            sandbox,
        } = &**self;
        let mut room = Room(MAX_LARGE_PARTS);
        let brief = Spec {
            streams: brief_streams(streams, &mut room),
            cwd: if room.take(cwd.len()) { cwd.clone() } else { String::new() },
            program: brief_program(program, &mut room),
            readiness: brief_readiness(readiness.as_ref(), &mut room),
            sandbox: brief_sandbox(sandbox, &mut room),
            env: Environment::default(),
            name: name.clone(),
            description: description.clone(),
            reference: reference.clone(),
            labels: labels.clone(),
            owner: owner.clone(),
            workspace: workspace.clone(),
            mode: *mode,
            service: service.clone(),
            queue: queue.clone(),
            timeout: *timeout,
            stop: *stop,
            limits: *limits,
            user: user.clone(),
            transcript_bytes: *transcript_bytes,
            overflow: *overflow,
        };
        if brief == **self { Arc::clone(self) } else { Arc::new(brief) }
    }
}

/// Bytes that are left for large parts.
struct Room(usize);

impl Room {
    /// Whether so many bytes fit; if so, they are taken.
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

fn brief_program(program: &Program, room: &mut Room) -> Program {
    let fits = program.size(0) <= MAX_PROGRAM && room.take(program.size(TEXT_OVERHEAD));
    if fits { program.clone() } else { Program::LeftOut }
}

fn brief_streams(streams: &Streams, room: &mut Room) -> Streams {
    match streams {
        Streams::Terminal { size, term: _ } if !room.take(streams.size(TEXT_OVERHEAD)) => {
            Streams::Terminal { size: *size, term: String::new() }
        }
        streams => streams.clone(),
    }
}

fn brief_readiness(readiness: Option<&Readiness>, room: &mut Room) -> Option<Readiness> {
    readiness.filter(|readiness| room.take(readiness.size(TEXT_OVERHEAD))).cloned()
}

fn brief_sandbox(sandbox: &Sandbox, room: &mut Room) -> Sandbox {
    let fits = room.take(sandbox.size(TEXT_OVERHEAD));
    let Sandbox { files, writable, own_pids, own_mounts, own_network, no_new_privileges } = sandbox;
    Sandbox {
        files: *files,
        writable: if fits { writable.clone() } else { Vec::new() },
        own_pids: *own_pids,
        own_mounts: *own_mounts,
        own_network: *own_network,
        no_new_privileges: *no_new_privileges,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::process::{Probe, Size};

    fn brief(change: impl FnOnce(&mut Spec)) -> Arc<Spec> {
        let mut spec = Spec { program: Program::Shell("true".into()), ..Spec::unknown() };
        change(&mut spec);
        Arc::new(spec).brief()
    }

    fn json_len(spec: &Spec) -> usize {
        serde_json::to_string(spec).unwrap().len()
    }

    fn ready_by(args: Vec<String>) -> Option<Readiness> {
        Some(Readiness { probe: Probe::Exec(args), timeout: Duration::ZERO, keep: false })
    }

    #[test]
    fn small_spec_is_whole_but_for_its_environment() {
        let spec = Arc::new(Spec { cwd: "/tmp".into(), ..Spec::unknown() });
        assert!(Arc::ptr_eq(&spec.brief(), &spec));
        let with_env = brief(|spec| spec.env.inherit_all = true);
        assert_eq!(*with_env, *brief(|_| {}));
    }

    #[test]
    fn large_parts_are_left_out() {
        let long = || "x".repeat(1 << 20);
        let many = || vec![String::new(); 1 << 20];
        let large: [fn(&mut Spec, String, Vec<String>); 7] = [
            |spec, long, _| spec.program = Program::Shell(long),
            |spec, _, many| spec.program = Program::Argv(many),
            |spec, long, _| spec.cwd = long,
            |spec, term, _| {
                spec.streams = Streams::Terminal { size: Size { rows: 1, cols: 1 }, term };
            },
            |spec, long, _| spec.readiness = ready_by(vec![long]),
            |spec, _, many| spec.readiness = ready_by(many),
            |spec, _, many| spec.sandbox.writable = many,
        ];
        for (at, change) in large.into_iter().enumerate() {
            let brief = brief(|spec| change(spec, long(), many()));
            assert!(json_len(&brief) < 2048, "part {at}: {} bytes", json_len(&brief));
        }
    }

    #[test]
    fn parts_that_fit_alone_are_bounded_together() {
        let brief = brief(|spec| {
            spec.program = Program::Shell("x".repeat(4 << 10));
            spec.cwd = format!("/{}", "x".repeat(4000));
            spec.readiness = ready_by(vec!["x".repeat(4000)]);
        });
        assert_eq!((brief.cwd.len(), brief.program.size(0)), (4001, 4 << 10));
        assert_eq!(brief.readiness, None);
    }

    #[test]
    fn what_selectors_and_scopes_match_stays() {
        let spec = brief(|spec| {
            spec.program = Program::Shell("x".repeat(1 << 20));
            spec.labels = (0..64).map(|n| (n.to_string(), "x".repeat(256))).collect();
            (spec.owner, spec.workspace) = ("ann".into(), "w".into());
        });
        assert_eq!((spec.labels.len(), &spec.owner[..], &spec.workspace[..]), (64, "ann", "w"));
    }
}
