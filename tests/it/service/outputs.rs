//! Structured output: what a program writes to `PROCYARD_OUTPUT`, exactly that, and apart from
//! what it prints.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use procyard::grpc::pb::{self, Cause};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use tokio::task::JoinSet;

use crate::support::service::*;
use crate::support::{Gate, NOBODY, alive, have, is_root, skip, soon, until};

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn number(number: f64) -> Value {
    value(Kind::NumberValue(number))
}

fn list(values: Vec<Value>) -> Value {
    value(Kind::ListValue(ListValue { values }))
}

fn object(fields: &[(&str, Value)]) -> Value {
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    value(Kind::StructValue(Struct { fields: fields.collect() }))
}

/// A shell line that sets an output, as printf prints it.
fn sets(json: &str) -> String {
    format!("printf '%s' '{json}' >$PROCYARD_OUTPUT")
}

/// What a process has set.
fn set(process: &pb::Process) -> Value {
    let output = process.output.clone().expect("it has set nothing");
    assert_eq!(output.error, "");
    output.value.expect("neither value nor error").to_value().unwrap()
}

/// Why what a process has set cannot be used.
fn error(process: &pb::Process) -> String {
    let output = process.output.clone().expect("it has set nothing");
    assert_eq!(output.value, None);
    output.error
}

async fn run_line(client: &mut Client, line: &str) -> pb::Process {
    finish(client, "", shell(line)).await.process.unwrap()
}

fn outputs(service: &TestService) -> PathBuf {
    service.directory.path().join("state/outputs")
}

fn left(service: &TestService) -> usize {
    std::fs::read_dir(outputs(service)).unwrap().count()
}

async fn nothing_is_left(service: &TestService) {
    until("no output is left", || left(service) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_value_comes_back_exactly_and_apart_from_what_is_printed() {
    let service = TestService::start();
    let mut client = service.client().await;
    let values = [
        ("null", value(Kind::NullValue(0))),
        ("true", value(Kind::BoolValue(true))),
        (" -1.5e3 ", number(-1500.0)),
        ("\"ä \\u0041\\n\"", value(Kind::StringValue("ä A\n".into()))),
        ("[]", list(Vec::new())),
        (
            "[1, [2, \"x\"]]",
            list(vec![number(1.0), list(vec![number(2.0), value(Kind::StringValue("x".into()))])]),
        ),
        ("{}", object(&[])),
        (
            "{\"a\": {\"b\": false}, \"\": 0}",
            object(&[("a", object(&[("b", value(Kind::BoolValue(false)))])), ("", number(0.0))]),
        ),
    ];
    for (json, expected) in values {
        let line = format!("echo out; echo err >&2; {}; exit 3", sets(json));
        let answer = finish(&mut client, "", shell(&line)).await;
        let process = answer.process.unwrap();
        assert_eq!(set(&process), expected, "{json}");
        assert_eq!((exit(&process).code, exit(&process).cause()), (Some(3), Cause::Exited));
        assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "out\n");
        assert_eq!(text(&answer.chunks, pb::Stream::Stderr), "err\n");
        assert_eq!(get(&mut client, &process.id).await.output, process.output);
    }
    nothing_is_left(&service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_writes_nothing_has_set_nothing_and_no_file_is_made() {
    let service = TestService::start();
    let mut client = service.client().await;
    let answer =
        finish(&mut client, "", shell("echo $PROCYARD_OUTPUT; ls -A ${PROCYARD_OUTPUT%/*}"));
    let answer = answer.await;
    assert_eq!(answer.process.unwrap().output, None);
    let path = text(&answer.chunks, pb::Stream::Stdout);
    assert_eq!(PathBuf::from(path.trim_end()).parent(), Some(&*outputs(&service)), "{path}");
    for line in [": >$PROCYARD_OUTPUT", "printf ' \\n' >$PROCYARD_OUTPUT"] {
        assert_eq!(run_line(&mut client, line).await.output, None, "{line}");
    }
    nothing_is_left(&service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_value_is_told_and_the_exit_is_as_it_was() {
    let service = TestService::start();
    let mut client = service.client().await;
    let deep = sets(&("[".repeat(33) + &"]".repeat(33)));
    let numbers = "{ printf '[0'; yes ',0' | head -n 300000 | tr -d '\\n'; printf ']'; }";
    let cases = [
        (sets("{\"a\": x}"), "it is not JSON: expected value at line 1 column 7"),
        (sets("1 2"), "it is not JSON: trailing characters at line 1 column 3"),
        ("printf '\"\\377\"' >$PROCYARD_OUTPUT".into(), "it is not JSON: byte 1 is not UTF-8"),
        (deep, "its lists and objects are more than 32 deep"),
        ("head -c 1048577 /dev/zero >$PROCYARD_OUTPUT".into(), "it holds more than 1 MiB"),
        (format!("{numbers} >$PROCYARD_OUTPUT"), "it takes more than 2.5 MiB in protobuf's form"),
        ("ln -s /etc/hostname $PROCYARD_OUTPUT".into(), "it is not a regular file"),
        ("mkfifo $PROCYARD_OUTPUT".into(), "it is not a regular file"),
        ("mkdir $PROCYARD_OUTPUT".into(), "it is not a regular file"),
    ];
    for (line, why) in cases {
        let process = run_line(&mut client, &format!("{line}; exit 4")).await;
        assert_eq!(error(&process), why, "{line}");
        assert_eq!((exit(&process).code, exit(&process).cause()), (Some(4), Cause::Exited));
        assert_eq!(exit(&process).message, "exited with code 4");
    }
    nothing_is_left(&service).await;
    assert!(std::path::Path::new("/etc/hostname").exists(), "a link was followed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_has_it_unless_it_is_large_and_the_record_has_it_always() {
    let service = TestService::start();
    let mut client = service.client().await;
    let small = finish(&mut client, "small", shell(&sets("{\"x\": 1}"))).await.process.unwrap();
    let line =
        "{ printf '\"'; head -c 1048574 /dev/zero | tr '\\0' x; printf '\"'; } >$PROCYARD_OUTPUT";
    let large = finish(&mut client, "large", shell(line)).await.process.unwrap();
    assert_eq!(set(&large), value(Kind::StringValue("x".repeat((1 << 20) - 2))));
    let told = events(&mut client).await;
    let completed = |id: &str| {
        let mut of_it = told.iter().filter(|event| event.process_id == id);
        let event = of_it.find(|event| event.kind() == pb::Kind::Completed).unwrap();
        event.process.clone().unwrap()
    };
    assert_eq!(set(&completed("small")), set(&small));
    assert_eq!(completed("large").output, None);
    assert_eq!(exit(&completed("large")).code, Some(0));
    assert_eq!(get(&mut client, "large").await.output, large.output);
    nothing_is_left(&service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_script_sets_it() {
    if !have(&["python3"]) {
        return;
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let code = "import json, os\n\
                with open(os.environ['PROCYARD_OUTPUT'], 'w') as file:\n    \
                    json.dump({'lines': list(range(3)), 'none': None}, file)\n";
    let script =
        pb::Script { code: code.into(), interpreter: vec!["python3".into()], ..Default::default() };
    let program = Some(pb::spec::Program::Script(script));
    let spec = pb::Spec { program, ..Default::default() };
    let process = finish(&mut client, "", spec).await.process.unwrap();
    let lines = list((0..3).map(f64::from).map(number).collect());
    let expected = object(&[("lines", lines), ("none", value(Kind::NullValue(0)))]);
    assert_eq!(set(&process), expected);
    nothing_is_left(&service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_killed_keeps_what_it_had_set_and_late_writers_are_ignored() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = format!("{}; echo ready; exec sleep 600", sets("7"));
    begin_ready(&mut client, "killed", shell(&line)).await;
    soon(client.kill(kill("killed"))).await.unwrap();
    let process = get(&mut client, "killed").await;
    assert_eq!((set(&process), exit(&process).cause()), (number(7.0), Cause::Killed));

    let mut gate = Gate::new(service.directory.path());
    let late = format!("(read x <{}; {}) &", gate.path, sets("2"));
    let line = format!("{}; {late}", sets("1"));
    let process = finish(&mut client, "late", shell(&line)).await.process.unwrap();
    assert_eq!(set(&process), number(1.0));
    nothing_is_left(&service).await;
    gate.open(1);
    until("it was written once more", || left(&service) == 1).await;
    assert_eq!(set(&get(&mut client, "late").await), number(1.0));
    soon(client.delete(pb::DeleteRequest { id: "late".into(), ..Default::default() }))
        .await
        .unwrap();
    nothing_is_left(&service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_end_at_once_each_keep_their_own() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut runs = JoinSet::new();
    for n in 0..100 {
        let mut client = client.clone();
        runs.spawn(async move {
            // Some end before the keeper's answer to their start is known.
            let line = if n % 2 == 0 { sets(&n.to_string()) } else { "true".into() };
            let process =
                finish(&mut client, &format!("p{n}"), shell(&line)).await.process.unwrap();
            let expected = (n % 2 == 0).then(|| number(f64::from(n)));
            assert_eq!(
                process.output.map(|output| output.value.unwrap().to_value().unwrap()),
                expected
            );
        });
    }
    for run in runs.join_all().await {
        run
    }
    assert_eq!(events(&mut client).await.len(), 200);
    nothing_is_left(&service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_set_while_there_was_no_server_is_not_lost() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let line = format!("read x <{}; {}", gate.path, sets("[\"kept\"]"));
    begin(&mut client, "ends", shell(&line)).await;
    let line = format!("{}; echo ready; read x <{}", sets("1"), gate.path);
    let lives = begin_ready(&mut client, "lives", shell(&line)).await;
    let server = service.server_pid();
    kill_pid(server, libc::SIGSTOP);
    // Of a launch that no record knows.
    std::fs::write(outputs(&service).join("procyard-99.1.output"), "1").unwrap();
    // Either may pass the gate.
    gate.open(1);
    until("one has ended", || service.inmates().len() == 1).await;
    kill_pid(server, libc::SIGKILL);
    let mut client = service.client().await;
    get(&mut client, "lives").await;
    assert!(left(&service) <= 2, "what is nobody's was not swept");
    gate.open(1);
    let process = ended(&mut client, "ends").await;
    assert_eq!(set(&process), list(vec![value(Kind::StringValue("kept".into()))]));
    assert_eq!(set(&ended(&mut client, "lives").await), number(1.0));
    assert!(!alive(lives.pid));
    let told = events(&mut client).await;
    let told = told.iter().filter(|event| event.kind() == pb::Kind::Completed);
    assert!(told.map(|event| event.process.as_ref().unwrap()).all(|end| end.output.is_some()));
    nothing_is_left(&service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_the_server_dies_what_was_set_is_kept() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let count = 60;
    for n in 0..count {
        let line = format!("read x <{}; {}", gate.path, sets(&n.to_string()));
        begin(&mut client, &format!("p{n}"), shell(&line)).await;
    }
    for turn in 0..6 {
        gate.open(count / 6);
        // Another moment each time, while they end.
        tokio::time::sleep(std::time::Duration::from_millis(2 * turn)).await;
        service.kill_server();
        client = service.client().await;
    }
    for n in 0..count {
        let process = ended(&mut client, &format!("p{n}")).await;
        assert_eq!(set(&process), number(n as f64), "{process:?}");
    }
    nothing_is_left(&service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_user_can_set_it_and_leaves_no_file() {
    if !is_root() {
        return skip("running as another user needs root");
    }
    let service = TestService::start();
    let mut client = service.client().await;
    // The directory of a test is closed to others; that of a state directory's parent is not.
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(service.directory.path(), open).unwrap();
    let user = Some(pb::User { uid: NOBODY, gid: Some(NOBODY), groups: Vec::new() });
    let as_nobody = |line: &str| pb::Spec { user: user.clone(), cwd: "/".into(), ..shell(line) };
    let line = format!("stat -c '%u %a' $PROCYARD_OUTPUT; {}", sets("5"));
    let answer = finish(&mut client, "", as_nobody(&line)).await;
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "65534 600\n");
    assert_eq!(set(&answer.process.unwrap()), number(5.0));
    let silent = finish(&mut client, "", as_nobody("true")).await.process.unwrap();
    assert_eq!(silent.output, None);
    let impossible = pb::Spec { user: user.clone(), ..argv(&["/no/such/program"]) };
    soon(client.start(start("", impossible))).await.unwrap_err();
    nothing_is_left(&service).await;
}
