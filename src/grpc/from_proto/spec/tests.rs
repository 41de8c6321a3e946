//! A spec: what is filled in, what comes back, and what is refused.

use super::*;
use crate::grpc::from_proto::refused;
use crate::process::{Environment, Limits, Mode, Program};
use crate::supervisor::Error;

fn read(change: impl FnOnce(&mut pb::Spec)) -> Result<Spec, Error> {
    let program = Some(pb::spec::Program::Shell("true".into()));
    let mut wire = pb::Spec { program, ..Default::default() };
    change(&mut wire);
    Problems::collect(|problems| spec(problems, Some(wire)))
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

#[test]
fn a_plain_spec_is_filled_in() {
    let filled = Spec {
        program: Program::Shell("true".into()),
        streams: Streams::Pipes { stdin: false, merge_stderr: false },
        cwd: String::new(),
        env: Environment::default(),
        name: String::new(),
        description: String::new(),
        reference: String::new(),
        labels: BTreeMap::new(),
        owner: String::new(),
        workspace: String::new(),
        mode: Mode::Background,
        service: None,
        readiness: None,
        queue: String::new(),
        timeout: None,
        stop: Stop { signal: 15, grace: Duration::from_secs(10) },
        limits: Limits::default(),
        user: None,
        transcript_bytes: 8 << 20,
        overflow: Overflow::DropOldest,
        sandbox: Sandbox::default(),
    };
    assert_eq!(read(|_| {}), Ok(filled));
}

#[test]
fn a_default_that_is_spelled_out_makes_an_equal_spec() {
    let spelled = read(|spec| {
        spec.io = Some(pb::spec::Io::Pipes(pb::Pipes::default()));
        spec.env = Some(pb::Environment::default());
        spec.stop = Some(pb::Stop { signal: "SIGTERM".into(), grace: seconds(10) });
        spec.transcript_bytes = 8 << 20;
        spec.overflow = pb::Overflow::DropOldest.into();
    });
    assert_eq!(spelled, read(|_| {}));
    let terminal = |rows, cols, term: &str| {
        let terminal = pb::Terminal { rows, cols, term: term.into() };
        read(|spec| spec.io = Some(pb::spec::Io::Terminal(terminal)))
    };
    assert_eq!(terminal(0, 0, ""), terminal(24, 80, "xterm-256color"));
}

#[test]
fn of_a_description_the_first_line_is_kept() {
    let kept = |text: &str| read(|spec| spec.description = text.into()).unwrap().description;
    assert_eq!(kept("build it\r\nand more"), "build it");
    assert_eq!(kept(&format!("{}\n{}", "ä".repeat(80), "x".repeat(200))), "ä".repeat(80));
    let told = refused(read(|spec| spec.description = "ä".repeat(81)));
    assert_eq!(told, ["spec.description: has 81 characters in its line: at most 80"]);
}

#[test]
fn a_grace_of_nothing_is_not_the_default() {
    let stop = pb::Stop { signal: String::new(), grace: seconds(0) };
    let read = read(|spec| spec.stop = Some(stop)).unwrap();
    assert_eq!(read.stop, Stop { signal: 15, grace: Duration::ZERO });
}

#[test]
fn labels_have_a_form() {
    let label = |key: &str, value: &str| {
        let pair = (key.to_owned(), value.to_owned());
        read(|spec| spec.labels = [pair].into())
    };
    for key in ["a", "0", "team/app.kubernetes-x_y", &"k".repeat(63)] {
        assert!(label(key, &"ä".repeat(256)).is_ok(), "{key}");
    }
    for key in ["", "a b", "/a", "ä", &"k".repeat(64)] {
        let told = refused(label(key, ""));
        assert!(told[0].contains("]: is no key: 1 to 63 letters"), "{told:?}");
    }
    assert_eq!(
        refused(label("a", &"x".repeat(257))),
        ["spec.labels[\"a\"]: has a value of more than 256 characters"]
    );
    assert!(refused(label("a", "\u{7f}"))[0].contains("control character"));
    let many = (0..65).map(|n| (n.to_string(), String::new())).collect();
    let told = refused(read(|spec| spec.labels = many));
    assert_eq!(told, ["spec.labels: has 65 labels: at most 64"]);
}

#[test]
fn every_bad_field_is_told_at_once() {
    let told = refused(read(|spec| {
        spec.program = None;
        spec.io = Some(pb::spec::Io::Terminal(pb::Terminal {
            rows: 1001,
            cols: u32::MAX,
            term: "\0".into(),
        }));
        spec.cwd = "here".into();
        (spec.name, spec.r#ref) = ("\n".into(), "x".repeat(257));
        (spec.owner, spec.workspace) = ("\u{1b}".into(), "\0".into());
        spec.timeout = seconds(0);
        spec.stop = Some(pb::Stop { signal: "NOPE".into(), grace: seconds(3601) });
        let groups = vec![0, u32::MAX];
        spec.user = Some(pb::User { uid: u32::MAX, gid: Some(u32::MAX), groups });
        spec.transcript_bytes = 1;
        spec.overflow = 3;
    }));
    let paths: Vec<_> = told.iter().map(|told| told.split(": ").next().unwrap()).collect();
    let expected = [
        "spec.program",
        "spec.terminal.rows",
        "spec.terminal.cols",
        "spec.terminal.term",
        "spec.cwd",
        "spec.name",
        "spec.ref",
        "spec.owner",
        "spec.workspace",
        "spec.timeout",
        "spec.stop.grace",
        "spec.stop.signal",
        "spec.user.uid",
        "spec.user.gid",
        "spec.user.groups[1]",
        "spec.transcript_bytes",
        "spec.overflow",
    ];
    assert_eq!(paths, expected, "{told:#?}");
}

#[test]
fn a_command_for_readiness_cannot_be_had_with_processes_of_ones_own() {
    let with = |exec: &[&str], own_pids| {
        read(|spec| {
            let exec: Vec<_> = exec.iter().map(|arg| (*arg).to_owned()).collect();
            let port = pb::readiness::Probe::TcpPort(1);
            let probe = exec.is_empty().then_some(port);
            spec.readiness = Some(pb::Readiness { probe, exec, ..Default::default() });
            spec.sandbox = Some(pb::Sandbox { own_pids, own_mounts: true, ..Default::default() });
        })
    };
    assert!(with(&["true"], false).is_ok() && with(&[], true).is_ok());
    let told = "spec.readiness.exec: cannot be had with spec.sandbox.own_pids: no command can be \
                started in there";
    assert_eq!(refused(with(&["true"], true)), [told]);
}

#[test]
fn limits_are_where_the_proto_says() {
    let day = 86_400;
    assert!(read(|spec| spec.timeout = seconds(365 * day)).is_ok());
    assert!(read(|spec| spec.timeout = seconds(365 * day + 1)).is_err());
    for (bytes, taken) in [(65_535, false), (65_536, true), (1 << 30, true), (1 << 31, false)] {
        assert_eq!(read(|spec| spec.transcript_bytes = bytes).is_ok(), taken, "{bytes}");
    }
    let groups = |count| pb::User { groups: vec![1; count], ..Default::default() };
    assert!(read(|spec| spec.user = Some(groups(64))).is_ok());
    assert!(read(|spec| spec.user = Some(groups(65))).is_err());
}
