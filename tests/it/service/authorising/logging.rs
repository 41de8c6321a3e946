//! The audit log has a line for each change; no log and no list has a secret.

use procyard::grpc::pb::{self, attach_request, kill_request, spec, watch_response};

use super::calls::delete;
use crate::support::callers::*;
use crate::support::service::*;
use crate::support::soon;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_has_its_line_with_who_what_and_the_result() {
    let known = KnowingService::start(&[("ci", "operator,owner=ci"), ("eye", "viewer")]).await;
    let mut ci = known.caller("ci").await;
    for _ in 0..2 {
        let labels = [("job".to_owned(), "7".to_owned())].into();
        let spec = pb::Spec { labels, ..on_terminal(shell("exec sleep 600")) };
        soon(ci.start(start("a", spec))).await.unwrap();
    }
    let made = soon(ci.start(run("", shell("true")))).await.unwrap().into_inner();
    let made = made.process.unwrap().id;
    let text = Some(pb::write_stdin_request::Input::Text("hunter2".into()));
    let typed = pb::WriteStdinRequest { id: "a".into(), input: text, ..Default::default() };
    soon(ci.write_stdin(typed)).await.unwrap();
    soon(ci.resize(pb::ResizeRequest { id: "a".into(), rows: 9, cols: 9 })).await.unwrap();
    let signal = pb::SignalRequest { id: "a".into(), signal: "CONT".into(), group: false };
    soon(ci.signal(signal)).await.unwrap();
    let read = pb::ReadRequest { id: "a".into(), ..Default::default() };
    soon(ci.read(pb::ReadRequest { ack_seq: 1, ..read.clone() })).await.unwrap();
    soon(ci.read(read)).await.unwrap();
    soon(ci.run(run_again("a"))).await.unwrap_err();
    let labels = [("job".to_owned(), "7".to_owned())].into();
    let selector = pb::Selector { owner: "ci".into(), labels, ..Default::default() };
    let target = Some(kill_request::Target::Selector(selector));
    let request = pb::KillRequest { target, force: true, ..Default::default() };
    soon(ci.kill(request)).await.unwrap();
    soon(ci.delete(delete("a", false))).await.unwrap();
    soon(ci.delete(delete("a", false))).await.unwrap_err();
    soon(ci.delete(pb::DeleteRequest { id: "x\ny".repeat(99), ..Default::default() }))
        .await
        .unwrap_err();
    // Of what no id can be, the beginning is told, in one line.
    let long = format!("{}…", "x\\ny".repeat(21) + "x");
    let expected = [
        r#"call="Start" process="a" result="ok""#,
        r#"call="Start" process="a" result="existed""#,
        &format!(r#"call="Start" process="{made}" result="ok""#),
        r#"call="WriteStdin" process="a" result="ok""#,
        r#"call="Resize" process="a" result="ok""#,
        r#"call="Signal" process="a" result="ok""#,
        r#"call="Read" process="a" result="ok""#,
        r#"call="Run" process="a" result="FailedPrecondition STILL_RUNNING""#,
        r#"call="Kill" process="a" result="ok" selector="owner=ci label=job=7" count=1"#,
        r#"call="Delete" process="a" result="ok""#,
        r#"call="Delete" process="a" result="NotFound PROCESS_NOT_FOUND""#,
        &format!(r#"call="Delete" process="{long}" result="NotFound PROCESS_NOT_FOUND""#),
    ];
    let expected = expected.map(|line| format!(r#"caller="token:ci" {line}"#));
    assert_eq!(known.audit("token:ci", expected.len()).await, expected);
    let mut eye = known.caller("eye").await;
    soon(eye.kill(kill("a"))).await.unwrap_err();
    let acknowledged = pb::ReadRequest { id: "a".into(), ack_seq: 1, ..Default::default() };
    soon(eye.read(acknowledged)).await.unwrap_err();
    let expected = [
        r#"refused caller="token:eye" call="Kill" result="PermissionDenied ROLE""#,
        r#"caller="token:eye" call="Read" process="a" result="PermissionDenied ROLE""#,
    ];
    assert_eq!(known.audit("token:eye", 2).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attachment_has_a_line_when_it_begins_and_one_when_it_ends() {
    let known = KnowingService::start(&[("ci", "operator")]).await;
    let mut ci = known.caller("ci").await;
    soon(ci.start(start("a", on_terminal(shell("exec sleep 600"))))).await.unwrap();
    let attach = |id: &str| {
        let start = pb::AttachStart { id: id.into(), ..Default::default() };
        let message = Some(attach_request::Message::Start(start));
        tokio_stream::iter([pb::AttachRequest { message }])
    };
    let mut refused = soon(ci.attach(attach("b"))).await.unwrap().into_inner();
    soon(refused.message()).await.unwrap_err();
    let mut stream = soon(ci.attach(attach("a"))).await.unwrap().into_inner();
    soon(stream.message()).await.unwrap().unwrap();
    let line = |process: &str, result: &str| {
        format!(r#"caller="token:ci" call="Attach" process="{process}" result="{result}""#)
    };
    let mut expected = vec![line("b", "NotFound PROCESS_NOT_FOUND"), line("a", "ok")];
    assert_eq!(known.audit("Attach", 2).await, expected);
    drop(stream);
    expected.push(line("a", "ended"));
    assert_eq!(known.audit("Attach", 3).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_has_its_line_before_what_its_caller_waits_for() {
    let known = KnowingService::start(&[("ci", "operator")]).await;
    let mut ci = known.caller("ci").await;
    let asking = tokio::spawn(async move { ci.start(run("a", shell("exec sleep 600"))).await });
    let line = r#"caller="token:ci" call="Start" process="a" result="ok""#;
    assert_eq!(known.audit("Start", 1).await, [line]);
    // Nor has it another when its wait is over.
    soon(known.service.client().await.kill(kill_at_once("a"))).await.unwrap();
    soon(asking).await.unwrap().unwrap();
    soon(known.caller("ci").await.delete(delete("a", false))).await.unwrap();
    known.audit("Delete", 1).await;
    assert_eq!(known.audit("Start", 1).await, [line]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_for_by_who_has_left_has_its_line_as_well() {
    let known = KnowingService::start(&[("ci", "operator")]).await;
    let mut ci = known.caller("ci").await;
    let mut yard = known.service.client().await;
    begin_ready(&mut yard, "a", stubborn(600_000)).await;
    let mut watcher = Watcher::since(&mut yard, 0).await;
    let asking = tokio::spawn(async move { ci.kill(kill("a")).await });
    watcher.next(pb::Kind::Stopping).await;
    asking.abort();
    let lines = known.audit("token:ci", 1).await;
    assert_eq!(lines, [r#"caller="token:ci" call="Kill" process="a" result="unanswered""#]);
    soon(yard.kill(kill_at_once("a"))).await.unwrap();
}

const SECRET: &str = "hunter2-variable";

/// A spec with a secret.
fn secretive(spec: pb::Spec) -> pb::Spec {
    let set = [("PASSWORD".to_owned(), SECRET.to_owned())].into();
    pb::Spec { env: Some(pb::Environment { set, ..Default::default() }), ..spec }
}

fn value(process: Option<pb::Process>) -> String {
    process.unwrap().spec.unwrap().env.unwrap().set["PASSWORD"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_variable_is_shown_to_who_may_set_it_and_never_in_a_list() {
    let known = KnowingService::start(&[("operator", "operator"), ("viewer", "viewer")]).await;
    let mut yard = known.service.client().await;
    let spec = secretive(shell("echo ready; exec sleep 600"));
    assert_eq!(value(Some(begin_ready(&mut yard, "a", spec).await)), SECRET);
    for (caller, shown) in [("operator", SECRET), ("viewer", "[redacted]")] {
        let mut client = known.caller(caller).await;
        let got = soon(client.get(pb::GetRequest { id: "a".into() })).await.unwrap().into_inner();
        assert_eq!(value(got.process), shown);
        let request = pb::WaitRequest { wait: Some(until_output("ready")), ..wait_for_it("a") };
        assert_eq!(value(soon(client.wait(request)).await.unwrap().into_inner().process), shown);
        let listed = soon(client.list(pb::ListRequest::default())).await.unwrap().into_inner();
        assert_eq!(value(listed.processes.into_iter().next()), "[redacted]");
        let request =
            pb::WatchRequest { since_event: Some(0), replay_only: true, ..Default::default() };
        let mut stream = soon(client.watch(request)).await.unwrap().into_inner();
        while let Some(answer) = soon(stream.message()).await.unwrap() {
            if let Some(watch_response::Message::Event(event)) = answer.message {
                assert_eq!(event.process.unwrap().spec.unwrap().env, None);
            }
        }
    }
    let mut viewer = known.caller("viewer").await;
    let request = pb::FollowRequest { id: "a".into(), ..Default::default() };
    let mut stream = soon(viewer.follow(request)).await.unwrap().into_inner();
    soon(yard.kill(kill_at_once("a"))).await.unwrap();
    let end = loop {
        match soon(stream.message()).await.unwrap().unwrap().message.unwrap() {
            pb::follow_response::Message::End(end) => break end,
            other => drop(other),
        }
    };
    assert_eq!(value(end.process), "[redacted]");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_in_the_log_however_much_is_logged() {
    let (input, code) = ("hunter2-input", "hunter2-code");
    let known = KnowingService::start_logging("trace", &[("ci", "operator,owner=ci")]).await;
    let mut ci = known.caller("ci").await;
    let script = pb::Script { code: format!("cat #{code}"), ..Default::default() };
    let program = Some(spec::Program::Script(script));
    let spec = secretive(on_terminal(pb::Spec { program, ..Default::default() }));
    soon(ci.start(start("a", spec.clone()))).await.unwrap();
    soon(ci.start(start("a", secretive(shell("true"))))).await.unwrap_err();
    let text = Some(pb::write_stdin_request::Input::Text(input.into()));
    let typed = pb::WriteStdinRequest {
        id: "a".into(),
        input: text,
        enter: true,
        wait: Some(until_output(input)),
        ..Default::default()
    };
    soon(ci.write_stdin(typed.clone())).await.unwrap();
    soon(ci.write_stdin(pb::WriteStdinRequest { offset: Some(9999), ..typed })).await.unwrap_err();
    let messages = [
        attach_request::Message::Start(pb::AttachStart { id: "a".into(), ..Default::default() }),
        attach_request::Message::Text(input.into()),
        attach_request::Message::Eof(pb::EndOfInput {}),
    ];
    let messages = messages.map(|message| pb::AttachRequest { message: Some(message) });
    let mut stream = soon(ci.attach(tokio_stream::iter(messages))).await.unwrap().into_inner();
    soon(stream.message()).await.unwrap().unwrap();
    soon(ci.get(pb::GetRequest { id: "a".into() })).await.unwrap();
    soon(ci.kill(kill_at_once("a"))).await.unwrap();
    soon(ci.run(run_by_force("a"))).await.unwrap();
    let bad = secretive(pb::Spec { cwd: "relative".into(), ..spec.clone() });
    soon(ci.start(start("b", bad))).await.unwrap_err();
    let nowhere = pb::Spec { cwd: "/nowhere/at/all".into(), ..spec };
    soon(ci.start(start("b", nowhere))).await.unwrap_err();
    // Another server takes over what there is, secrets and all.
    known.service.kill_server();
    let mut ci = known.caller("ci").await;
    soon(ci.delete(delete("a", false))).await.unwrap();
    known.audit("Delete", 1).await;
    let log = known.log();
    assert!(log.contains("TRACE"), "it was told to log more");
    let token = known.token("ci");
    for secret in [SECRET, input, code, &token, &token[30..]] {
        let line = log.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "{secret}");
    }
}
