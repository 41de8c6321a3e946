//! Every field at its limits, where it is taken, and one beyond, where it is refused.

use procyard::grpc::pb::{self, spec, wait_for, write_stdin_request::Input};
use prost_types::Duration;

use super::{is_untouched, refused};
use crate::support::service::*;
use crate::support::soon;

/// Another spec each time.
type Change = Box<dyn Fn(&mut pb::Spec)>;

fn change(change: impl Fn(&mut pb::Spec) + 'static) -> Change {
    Box::new(change)
}

fn span(seconds: i64, nanos: i32) -> Option<Duration> {
    Some(Duration { seconds, nanos })
}

fn terminal(rows: u32, cols: u32) -> Change {
    let terminal = pb::Terminal { rows, cols, term: String::new() };
    change(move |spec| spec.io = Some(spec::Io::Terminal(terminal.clone())))
}

fn stop(signal: &'static str, grace: Option<Duration>) -> Change {
    change(move |spec| spec.stop = Some(pb::Stop { signal: signal.into(), grace }))
}

fn label(key: String, value: String) -> Change {
    change(move |spec| drop(spec.labels.insert(key.clone(), value.clone())))
}

fn labels(count: usize) -> Change {
    change(move |spec| spec.labels = (0..count).map(|n| (format!("k{n}"), "v".into())).collect())
}

fn script(code: usize, filename: usize) -> Change {
    change(move |spec| {
        let (code, filename) = ("#".repeat(code), "f".repeat(filename));
        let script = pb::Script { code, filename, interpreter: vec!["true".into()] };
        spec.program = Some(spec::Program::Script(script));
    })
}

fn variable(name: &'static str, value: &'static str) -> Change {
    change(move |spec| {
        let set = [(name.to_owned(), value.to_owned())].into();
        spec.env = Some(pb::Environment { set, ..Default::default() });
    })
}

fn inherit(pattern: &'static str) -> Change {
    change(move |spec| {
        let inherit = vec![pattern.into()];
        spec.env = Some(pb::Environment { inherit, ..Default::default() });
    })
}

fn argv_of(args: &'static [&'static str], raw: &'static [&'static [u8]]) -> Change {
    change(move |spec| {
        let args = args.iter().map(|arg| (*arg).into()).collect();
        let raw_args = raw.iter().map(|arg| (*arg).into()).collect();
        spec.program = Some(spec::Program::Argv(pb::Argv { args, raw_args }));
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spec_at_its_limits_is_taken() {
    let service = TestService::start();
    let mut client = service.client().await;
    let year = 365 * 86_400;
    for change in [
        change(|spec| spec.name = "ä".repeat(256)),
        change(|spec| spec.r#ref = "ä".repeat(256)),
        change(|spec| spec.owner = "ä".repeat(256)),
        change(|spec| spec.workspace = "ä".repeat(256)),
        change(|spec| spec.description = "ä".repeat(80) + "\n" + &"x".repeat(1000)),
        labels(64),
        label("k".repeat(63), "ä".repeat(256)),
        terminal(1000, 1000),
        terminal(1, 1),
        change(move |spec| spec.timeout = span(year, 0)),
        stop("64", span(3600, 0)),
        stop("SIGWINCH", span(0, 0)),
        change(|spec| spec.transcript_bytes = 64 << 10),
        change(|spec| spec.transcript_bytes = 1 << 30),
        change(|spec| spec.overflow = 2),
        script(1 << 20, 255),
        variable("A", ""),
        inherit("*"),
        argv_of(&["true", ""], &[]),
    ] {
        let mut spec = shell("true");
        change(&mut spec);
        finish(&mut client, "", spec).await;
    }
    // Over before it has begun, almost.
    let spec = pb::Spec { timeout: span(0, 1_000_000), ..shell("exec sleep 600") };
    finish(&mut client, "", spec).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spec_one_beyond_its_limits_is_refused_by_field() {
    let service = TestService::start();
    let server = service.server_pid();
    let mut client = service.client().await;
    let year = 365 * 86_400;
    for (field, change) in [
        ("spec.program", change(|spec| spec.program = None)),
        ("spec.shell", change(|spec| *spec = shell(""))),
        ("spec.shell", change(|spec| *spec = shell("a\0b"))),
        ("spec.argv.args", argv_of(&[], &[])),
        ("spec.argv.args[0]", argv_of(&[""], &[])),
        ("spec.argv.args[1]", argv_of(&["true", "a\0"], &[])),
        ("spec.argv.raw_args", argv_of(&["true"], &[b"true"])),
        ("spec.argv.raw_args[1]", argv_of(&[], &[b"true", b"\xff\0"])),
        ("spec.script.code", script(0, 1)),
        ("spec.script.code", script((1 << 20) + 1, 1)),
        ("spec.script.filename", script(1, 256)),
        ("spec.cwd", change(|spec| spec.cwd = "tmp".into())),
        ("spec.cwd", change(|spec| spec.cwd = "/tmp\0".into())),
        ("spec.name", change(|spec| spec.name = "ä".repeat(257))),
        ("spec.name", change(|spec| spec.name = "a\nb".into())),
        ("spec.ref", change(|spec| spec.r#ref = "ä".repeat(257))),
        ("spec.owner", change(|spec| spec.owner = "ä".repeat(257))),
        ("spec.workspace", change(|spec| spec.workspace = "ä".repeat(257))),
        ("spec.description", change(|spec| spec.description = "ä".repeat(81))),
        ("spec.labels", labels(65)),
        ("spec.labels[\"k\"]", label("k".into(), "ä".repeat(257))),
        ("spec.labels[\"\"]", label(String::new(), String::new())),
        ("spec.labels[\"-k\"]", label("-k".into(), String::new())),
        ("spec.terminal.rows", terminal(1001, 1)),
        ("spec.terminal.cols", terminal(1, 65_536)),
        ("spec.timeout", change(|spec| spec.timeout = span(0, 999_999))),
        ("spec.timeout", change(move |spec| spec.timeout = span(year, 1))),
        ("spec.timeout", change(|spec| spec.timeout = span(-1, 0))),
        ("spec.timeout", change(|spec| spec.timeout = span(1, -1))),
        ("spec.timeout", change(|spec| spec.timeout = span(1, 1_000_000_000))),
        ("spec.timeout", change(|spec| spec.timeout = span(i64::MAX, i32::MAX))),
        ("spec.stop.grace", stop("TERM", span(3600, 1))),
        ("spec.stop.grace", stop("TERM", span(0, -1))),
        ("spec.stop.signal", stop("65", None)),
        ("spec.stop.signal", stop("0", None)),
        ("spec.stop.signal", stop("SIGNOPE", None)),
        ("spec.transcript_bytes", change(|spec| spec.transcript_bytes = (64 << 10) - 1)),
        ("spec.transcript_bytes", change(|spec| spec.transcript_bytes = (1 << 30) + 1)),
        ("spec.transcript_bytes", change(|spec| spec.transcript_bytes = u64::MAX)),
        ("spec.overflow", change(|spec| spec.overflow = 3)),
        ("spec.overflow", change(|spec| spec.overflow = -1)),
        ("spec.env.set[\"\"]", variable("", "v")),
        ("spec.env.set[\"A\"]", variable("A", "\0")),
        ("spec.env.set[\"PROCYARD_ID\"]", variable("PROCYARD_ID", "v")),
        ("spec.env.inherit[0]", inherit("A*B")),
        ("spec.env.inherit[0]", inherit("A=")),
        (
            "spec.user.uid",
            change(|spec| spec.user = Some(pb::User { uid: u32::MAX, ..Default::default() })),
        ),
        (
            "spec.user.groups",
            change(|spec| {
                spec.user = Some(pb::User { groups: vec![1; 65], ..Default::default() });
            }),
        ),
    ] {
        let mut spec = shell("true");
        change(&mut spec);
        assert_eq!(refused(client.start(start("", spec.clone()))).await, [field], "{spec:?}");
    }
    let nothing = pb::StartRequest { spec: None, ..start("", shell("true")) };
    assert_eq!(refused(client.start(nothing)).await, ["spec"]);
    is_untouched(&service, server).await;
}

fn quiet(pause: Option<Duration>) -> pb::WaitFor {
    let quiet = wait_for::Quiet { r#for: pause };
    pb::WaitFor { until: Some(wait_for::Until::Quiet(quiet)), timeout: None }
}

fn patient(timeout: Option<Duration>) -> pb::WaitFor {
    pb::WaitFor { timeout, ..until_exit() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_beyond_its_limits_is_refused_by_every_call_that_waits() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "a", shell("true")).await;
    for wait in [
        patient(span(86_400, 0)),
        patient(span(0, 0)),
        quiet(span(3600, 0)),
        quiet(span(0, 1_000_000)),
    ] {
        let request = pb::WaitRequest { wait: Some(wait), ..wait_for_it("a") };
        soon(client.wait(request)).await.unwrap();
    }
    for (field, wait) in [
        ("wait.until", pb::WaitFor { until: None, timeout: None }),
        ("wait.timeout", patient(span(86_400, 1))),
        ("wait.timeout", patient(span(-1, 0))),
        ("wait.quiet.for", quiet(None)),
        ("wait.quiet.for", quiet(span(0, 999_999))),
        ("wait.quiet.for", quiet(span(3600, 1))),
        ("wait.output.regex", until_output("[")),
    ] {
        let wait = Some(wait);
        let request = pb::StartRequest { wait: wait.clone(), ..start("b", shell("true")) };
        assert_eq!(refused(client.start(request)).await, [field]);
        let request = pb::WaitRequest { wait: wait.clone(), ..wait_for_it("a") };
        assert_eq!(refused(client.wait(request)).await, [field]);
        let request = pb::WriteStdinRequest { id: "a".into(), wait, ..Default::default() };
        assert_eq!(refused(client.write_stdin(request)).await, [field]);
    }
    assert_eq!(refused(client.wait(wait_for_it("a"))).await, ["wait"]);
    assert_eq!(ids(&list(&mut client).await), ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_requests_have_limits_too() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "a", shell("true")).await;
    let id = || "a".to_owned();

    let read = || pb::ReadRequest { id: id(), ..Default::default() };
    let view = |max_bytes| Some(pb::View { max_bytes, ..Default::default() });
    let request = pb::ReadRequest { wait: span(600, 0), view: view(3 << 20), ..read() };
    soon(client.read(request)).await.unwrap();
    let request = pb::ReadRequest {
        id: String::new(),
        streams: vec![1, 0, 4],
        view: view((3 << 20) + 1),
        wait: span(600, 1),
        ..read()
    };
    let bad = refused(client.read(request)).await;
    assert_eq!(bad, ["id", "streams[1]", "streams[2]", "view.max_bytes", "wait"]);

    let follow = |interval| pb::FollowRequest {
        id: id(),
        heartbeat_interval: interval,
        ..Default::default()
    };
    let watch = |interval| pb::WatchRequest { heartbeat_interval: interval, ..Default::default() };
    for interval in [span(1, 0), span(600, 0)] {
        soon(client.follow(follow(interval))).await.unwrap();
        soon(client.watch(watch(interval))).await.unwrap();
    }
    for interval in [span(0, 999_999_999), span(600, 1), span(-1, 0)] {
        let bad = refused(client.follow(follow(interval))).await;
        assert_eq!(bad, ["heartbeat_interval"]);
        assert_eq!(refused(client.watch(watch(interval))).await, ["heartbeat_interval"]);
    }
    let selector = Some(pb::Selector { states: vec![0], outcomes: vec![9], ..Default::default() });
    let request = pb::WatchRequest { selector, kinds: vec![0, 9], ..Default::default() };
    let bad = refused(client.watch(request.clone())).await;
    assert_eq!(bad, ["selector.states[0]", "selector.outcomes[0]", "kinds[0]", "kinds[1]"]);
    let request =
        pb::ListRequest { selector: request.selector, page_size: 1001, ..Default::default() };
    let bad = refused(client.list(request)).await;
    assert_eq!(bad, ["selector.states[0]", "selector.outcomes[0]", "page_size"]);

    let write = |input| pb::WriteStdinRequest { input: Some(input), ..Default::default() };
    let bad = refused(client.write_stdin(write(Input::Text("x".repeat((1 << 20) + 1))))).await;
    assert_eq!(bad, ["id", "text"]);
    let bad = refused(client.write_stdin(write(Input::Data(vec![0; (1 << 20) + 1].into())))).await;
    assert_eq!(bad, ["id", "data"]);

    for (rows, cols, wanted) in
        [(0, 1, &["rows"][..]), (1, 1001, &["cols"]), (u32::MAX, 0, &["rows", "cols"])]
    {
        let request = pb::ResizeRequest { id: id(), rows, cols };
        assert_eq!(refused(client.resize(request)).await, wanted);
    }
    for signal in ["", "0", "65", "-9", "SIGNOPE", "TERM ", "9999999999999"] {
        let request = pb::SignalRequest { id: id(), signal: signal.into(), group: true };
        assert_eq!(refused(client.signal(request)).await, ["signal"]);
    }
    let request = pb::KillRequest {
        target: None,
        signal: Some(String::new()),
        grace: span(3600, 1),
        force: false,
    };
    assert_eq!(refused(client.kill(request)).await, ["target", "signal", "grace"]);
    assert_eq!(refused(client.kill(kill(""))).await, ["id"]);
    assert_eq!(refused(client.get(pb::GetRequest::default())).await, ["id"]);
    let delete = pb::DeleteRequest { allow_missing: true, ..Default::default() };
    assert_eq!(refused(client.delete(delete)).await, ["id"]);
}
