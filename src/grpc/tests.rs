//! Properties of the edge as a whole: what is sent comes back as it was meant, and whatever is
//! sent is answered with something a client can read.

use std::collections::HashMap;

use proptest::collection::{hash_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use tonic::Status;

use super::from_proto::{
    AttachMessage, DeleteOrder, FollowOrder, GetOrder, KillOrder, ListOrder, ReadOrder,
    ResizeOrder, RunOrder, ScreenOrder, SignalOrder, StartOrder, WaitOrder, WatchOrder, WriteOrder,
    refused,
};
use super::status::tests::header_bytes;
use super::{pb, to_proto};
use crate::process::Spec;
use crate::supervisor::Error;

/// Well below the 8 KiB that every client takes, for what else stands in the headers.
const HEADERS: usize = 7500;

fn read(spec: pb::Spec) -> Result<Spec, Error> {
    let request = pb::StartRequest { spec: Some(spec), ..Default::default() };
    StartOrder::try_from(request).map(|order| order.spec)
}

/// Programs that are taken.
fn program() -> impl Strategy<Value = pb::spec::Program> {
    let text = "[^\0]{1,20}";
    prop_oneof![
        text.prop_map(pb::spec::Program::Shell),
        vec(text, 1..4)
            .prop_map(|args| pb::spec::Program::Argv(pb::Argv { args, raw_args: Vec::new() })),
        vec(vec(1u8.., 1..8), 1..4).prop_map(|args| {
            let raw_args = args.into_iter().map(Into::into).collect();
            pb::spec::Program::Argv(pb::Argv { args: Vec::new(), raw_args })
        }),
        (text, vec(text, 0..3), "[a-z]{0,9}").prop_map(|(code, interpreter, filename)| {
            pb::spec::Program::Script(pb::Script { code, interpreter, filename })
        }),
    ]
}

/// Streams that are taken.
fn io() -> impl Strategy<Value = pb::spec::Io> {
    prop_oneof![
        any::<(bool, bool)>().prop_map(|(stdin, merge_stderr)| {
            pb::spec::Io::Pipes(pb::Pipes { stdin, merge_stderr })
        }),
        (0..=1000u32, 0..=1000u32, "[a-z]{0,9}").prop_map(|(rows, cols, term)| {
            pb::spec::Io::Terminal(pb::Terminal { rows, cols, term })
        }),
    ]
}

fn span(most: i64) -> impl Strategy<Value = prost_types::Duration> {
    (1..most, 0..1_000_000_000)
        .prop_map(|(seconds, nanos)| prost_types::Duration { seconds, nanos })
}

fn pairs(most: usize) -> impl Strategy<Value = HashMap<String, String>> {
    hash_map("[A-Za-z0-9][A-Za-z0-9._/-]{0,62}", "[a-zä ]{0,20}", 0..most)
}

/// Specs that are taken.
fn taken() -> impl Strategy<Value = pb::Spec> {
    let environment = (pairs(3), vec("[A-Z]{1,5}[*]?", 0..3), any::<bool>())
        .prop_map(|(set, inherit, inherit_all)| pb::Environment { set, inherit, inherit_all });
    let stop = ("(SIG)?(TERM|HUP|USR1)|[1-5][0-9]|", option::of(span(3600)))
        .prop_map(|(signal, grace)| pb::Stop { signal, grace });
    let user = (0..9u32, 0..9u32, vec(0..9u32, 0..3)).prop_map(|(uid, gid, groups)| pb::User {
        uid,
        gid: Some(gid),
        groups,
    });
    let texts = ("(/[a-z]{1,9})?", "[a-zä ]{0,9}", "[^\r\n]{0,80}(\n.*)?", "[a-z]{0,9}");
    let parts = (program(), option::of(io()), texts, option::of(environment), pairs(64));
    let rest =
        (option::of(span(86_400)), option::of(stop), option::of(user), 65_536..1u64 << 30, 0..3);
    let work = (0..4, option::of(readiness()), option::of(restart()));
    let work = (work.0, work.1, work.2, option::of(limits()), option::of(sandbox()));
    (parts, rest, work).prop_map(|((program, io, texts, env, labels), rest, work)| {
        let (cwd, name, description, word) = texts;
        let (timeout, stop, user, transcript_bytes, overflow) = rest;
        // No command can be started among processes that are a process's own.
        let commands = work.1.as_ref().is_some_and(|readiness| !readiness.exec.is_empty());
        pb::Spec {
            program: Some(program),
            io,
            cwd,
            env,
            name,
            description,
            r#ref: word.clone(),
            labels,
            owner: word.clone(),
            workspace: word.clone(),
            mode: work.0,
            service: if work.0 == 2 { "web".into() } else { String::new() },
            readiness: work.1,
            restart: if work.0 == 2 { work.2 } else { None },
            queue: word,
            timeout,
            stop,
            limits: work.3,
            user,
            transcript_bytes,
            overflow,
            sandbox: work
                .4
                .map(|sandbox| pb::Sandbox { own_pids: sandbox.own_pids && !commands, ..sandbox }),
        }
    })
}

fn sandbox() -> impl Strategy<Value = pb::Sandbox> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (0..4, vec("(/[a-z]{1,9}){1,3}", 0..4), flags).prop_map(|(files, paths, flags)| {
        let (own_pids, own_mounts, own_network, no_new_privileges) = flags;
        let writable = if files == 3 { paths } else { Vec::new() };
        pb::Sandbox { files, writable, own_pids, own_mounts, own_network, no_new_privileges }
    })
}

fn readiness() -> impl Strategy<Value = pb::Readiness> {
    use pb::readiness::Probe;
    let probe = prop_oneof![
        "[a-z]{1,9}".prop_map(|regex| (Some(Probe::OutputRegex(regex)), Vec::new())),
        (1..65_536u32).prop_map(|port| (Some(Probe::TcpPort(port)), Vec::new())),
        vec("[a-z]{1,9}", 1..4).prop_map(|args| (None, args)),
    ];
    (probe, option::of(span(86_400)), any::<bool>()).prop_map(|((probe, exec), timeout, keep)| {
        pb::Readiness { probe, exec, timeout, keep_on_failure: keep }
    })
}

fn restart() -> impl Strategy<Value = pb::Restart> {
    (0..4, any::<u32>(), option::of(span(3600))).prop_map(|(policy, max_restarts, backoff_min)| {
        pb::Restart { policy, max_restarts, backoff_min, ..Default::default() }
    })
}

fn limits() -> impl Strategy<Value = pb::Limits> {
    (any::<u64>(), any::<u32>(), 0..4096u32, option::of(-20..20)).prop_map(
        |(bytes, number, cpus, nice)| pb::Limits {
            memory_bytes: bytes,
            processes: number,
            open_files: bytes,
            file_bytes: bytes,
            cpu_time: Some(prost_types::Duration { seconds: 1, nanos: 5 }),
            cpus: f64::from(cpus) / 2.0,
            nice,
        },
    )
}

/// Reads a request of every kind from the same bytes.
fn read_all(bytes: &[u8]) -> Vec<Error> {
    macro_rules! read {
        ($($request:ident => $order:ident),*) => {
            [$(pb::$request::decode(bytes).ok().and_then(|request| $order::try_from(request).err())),*]
        };
    }
    let refusals = read! {
        StartRequest => StartOrder, KillRequest => KillOrder, DeleteRequest => DeleteOrder,
        GetRequest => GetOrder, ListRequest => ListOrder, ReadRequest => ReadOrder,
        FollowRequest => FollowOrder, WaitRequest => WaitOrder, WriteStdinRequest => WriteOrder,
        ResizeRequest => ResizeOrder, SignalRequest => SignalOrder, WatchRequest => WatchOrder,
        RunRequest => RunOrder, AttachRequest => AttachMessage, ScreenRequest => ScreenOrder
    };
    refusals.into_iter().flatten().collect()
}

proptest! {
    #[test]
    fn a_spec_that_was_accepted_can_be_sent_again(wire in taken()) {
        let first = read(wire).unwrap();
        prop_assert_eq!(read(to_proto::spec(&first, to_proto::Secrets::Shown)), Ok(first));
    }

    #[test]
    fn whatever_is_sent_is_answered(
        spec in taken(),
        id in ".{0,9}",
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
    ) {
        let mut bytes = pb::StartRequest { id, spec: Some(spec), ..Default::default() }.encode_to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for error in read_all(&bytes) {
            prop_assert!(header_bytes(Status::from(error)) < HEADERS);
        }
    }

    #[test]
    fn noise_is_answered(bytes in vec(any::<u8>(), 0..64)) {
        for error in read_all(&bytes) {
            prop_assert!(header_bytes(Status::from(error)) < HEADERS);
        }
    }

    #[test]
    fn a_duration_of_any_make_is_answered(seconds: i64, nanos: i32) {
        let given = Some(prost_types::Duration { seconds, nanos });
        let _ = read(pb::Spec { timeout: given, ..Default::default() });
        let request = pb::ReadRequest { id: "a".into(), wait: given, ..Default::default() };
        let _ = ReadOrder::try_from(request);
    }
}

#[test]
fn a_refusal_of_everything_fits_into_the_headers() {
    let long = |n: u32, char: &str| format!("{n}{}", char.repeat(1 << 14));
    for char in [" ", "ä", "\0", "\u{10ffff}", "\"", "\n"] {
        let spec = pb::Spec {
            labels: (0..64).map(|n| (long(n, char), String::new())).collect(),
            env: Some(pb::Environment {
                set: (0..64).map(|n| (long(n, char) + "=", String::new())).collect(),
                inherit: vec![long(0, "*"); 64],
                inherit_all: false,
            }),
            cwd: long(0, char),
            name: long(0, char),
            ..Default::default()
        };
        let request =
            pb::StartRequest { id: long(0, char), spec: Some(spec), ..Default::default() };
        let error = StartOrder::try_from(request).unwrap_err();
        let bytes = header_bytes(Status::from(error.clone()));
        assert!(bytes < HEADERS, "{bytes} bytes");
        let told = refused(Err::<(), _>(error));
        assert!(told.len() > 15, "only {} are told", told.len());
        assert!(told.last().unwrap().starts_with("…: and "));
    }
}
