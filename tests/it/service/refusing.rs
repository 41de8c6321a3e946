//! Bad input: refused in words, all that is bad at once, and nothing is ever half done.

mod extremes;
mod fields;
mod garbage;

use std::fmt::Debug;

use procyard::grpc::pb::{self, write_stdin_request::Input};
use tonic::{Code, Response, Status};

use crate::support::service::*;
use crate::support::soon;

/// The fields that a call is refused for.
async fn refused<T: Debug>(call: impl Future<Output = Result<Response<T>, Status>>) -> Vec<String> {
    let status = soon(call).await.expect_err("it was taken");
    assert_eq!((status.code(), &reason(&status)[..]), (Code::InvalidArgument, "INVALID_FIELD"));
    fits_into_headers(&status);
    bad_fields(&status)
}

/// Many clients refuse more than 8 KiB of headers.
fn fits_into_headers(status: &Status) {
    let escaped = |byte: u8| if (b' '..=b'~').contains(&byte) && byte != b'%' { 1 } else { 3 };
    let message: usize = status.message().bytes().map(escaped).sum();
    let details = status.details().len().div_ceil(3) * 4;
    assert!(message + details < 8000, "{message} and {details} bytes");
}

/// The server is the one that it was, and nothing was started.
async fn is_untouched(service: &TestService, server: i32) {
    let mut client = service.client().await;
    assert_eq!(list(&mut client).await, []);
    assert_eq!(service.inmates(), [0; 0]);
    assert_eq!(service.server_pid(), server, "the server was replaced");
    assert_eq!(output_of(&mut client, shell("echo alive")).await, "alive\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_bad_fields_of_a_start_are_told_at_once() {
    let service = TestService::start();
    let mut client = service.client().await;
    let request = pb::StartRequest {
        id: "../x".into(),
        spec: Some(pb::Spec {
            cwd: "relative".into(),
            name: "x".repeat(257),
            labels: [("a b".into(), String::new())].into(),
            timeout: Some(millis(0)),
            stop: Some(pb::Stop { signal: "NOPE".into(), grace: Some(millis(3_600_001)) }),
            transcript_bytes: 1,
            overflow: 9,
            env: Some(pb::Environment {
                set: [("A=B".into(), String::new())].into(),
                inherit: vec![String::new()],
                inherit_all: false,
            }),
            ..shell("")
        }),
        wait: Some(until_output("(")),
        view: Some(pb::View { max_bytes: u32::MAX, ..Default::default() }),
    };
    assert_eq!(
        refused(client.start(request)).await,
        [
            "id",
            "spec.shell",
            "spec.cwd",
            "spec.env.set[\"A=B\"]",
            "spec.env.inherit[0]",
            "spec.name",
            "spec.labels[\"a b\"]",
            "spec.timeout",
            "spec.stop.grace",
            "spec.stop.signal",
            "spec.transcript_bytes",
            "spec.overflow",
            "wait.output.regex",
            "view.max_bytes",
        ]
    );
    is_untouched(&service, service.server_pid()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_bad_fields_fits_into_headers() {
    let service = TestService::start();
    let server = service.server_pid();
    let mut client = service.client().await;
    let name = |n| (format!("={n}{}", "\u{1}ä".repeat(500)), "\0".to_owned());
    let set = (0..500).map(name).collect();
    let env = pb::Environment { set, ..Default::default() };
    let labels = (0..500).map(name).collect();
    let spec = pb::Spec { env: Some(env), labels, name: "ä\n".repeat(10_000), ..shell("true") };
    let fields = refused(client.start(start(&"/".repeat(100_000), spec))).await;
    assert!(fields.len() > 10 && fields.last().unwrap() == "…", "{fields:?}");
    is_untouched(&service, server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_names_nothing_is_not_found_by_any_call() {
    let service = TestService::start();
    let server = service.server_pid();
    let mut client = service.client().await;
    let long = "x".repeat(100_000);
    for id in ["missing", "../../etc/passwd", "a\0b", "ä", " ", &long] {
        let id = || id.to_owned();
        let input = Some(Input::Text("x".into()));
        let wait = Some(until_exit());
        let target = Some(pb::kill_request::Target::Id(id()));
        let size = pb::ResizeRequest { id: id(), rows: 1, cols: 1 };
        let signal = pb::SignalRequest { id: id(), signal: "TERM".into(), group: false };
        let read = pb::ReadRequest { id: id(), ack_seq: 1, ..Default::default() };
        let follow = pb::FollowRequest { id: id(), ..Default::default() };
        let wait = pb::WaitRequest { id: id(), wait, ..Default::default() };
        let write = pb::WriteStdinRequest { id: id(), input, ..Default::default() };
        let kill = pb::KillRequest { target, ..Default::default() };
        let delete = pb::DeleteRequest { id: id(), force: true, allow_missing: false };
        let answers = [
            soon(client.get(pb::GetRequest { id: id() })).await.map(drop),
            soon(client.read(read)).await.map(drop),
            soon(client.follow(follow)).await.map(drop),
            soon(client.wait(wait)).await.map(drop),
            soon(client.write_stdin(write)).await.map(drop),
            soon(client.resize(size)).await.map(drop),
            soon(client.signal(signal)).await.map(drop),
            soon(client.kill(kill)).await.map(drop),
            soon(client.delete(delete)).await.map(drop),
        ];
        for answer in answers {
            let status = answer.unwrap_err();
            assert_eq!(status.code(), Code::NotFound, "{status:?}");
            assert_eq!(reason(&status), "PROCESS_NOT_FOUND");
            let details = details(&status);
            let resource = details.resource_info().unwrap();
            assert_eq!(resource.resource_type, "procyard.v1.Process");
            assert!(id().starts_with(resource.resource_name.trim_end_matches('…')));
            fits_into_headers(&status);
        }
    }
    is_untouched(&service, server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_could_leave_its_directory_is_refused() {
    let service = TestService::start();
    let server = service.server_pid();
    let mut client = service.client().await;
    let long = "x".repeat(65);
    for id in
        ["../x", "..", ".", "a/b", "/etc", ".hidden", "-x", "_x", "a b", "ä", "a\0", "a\n", &long]
    {
        assert_eq!(refused(client.start(start(id, shell("true")))).await, ["id"], "{id:?}");
    }
    is_untouched(&service, server).await;
    let right = ["a", "0", "A.b_c-d", "a..b", &"x".repeat(64)];
    for id in right {
        assert_eq!(finish(&mut client, id, shell("true")).await.process.unwrap().id, id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_regex_that_is_wrong_or_explodes_is_refused_and_its_place_is_named() {
    let service = TestService::start();
    let server = service.server_pid();
    let mut client = service.client().await;
    // A regex is looked at only for a process that is there.
    finish(&mut client, "a", shell("true")).await;
    for (regex, words) in [
        ("ab(cd", "at character 3: unclosed group"),
        ("äö[z-a]", "at character 4"),
        ("(?P<x>a)(?P<x>b)", "at character"),
        ("((((a{100}){100}){100}){100})", "bytes of memory"),
        (r"(\w{1,300}){1,300}", "bytes of memory"),
        (&"(".repeat(4096), "at character"),
        (&"a".repeat(4097), "4097 characters"),
        ("", "0 characters"),
    ] {
        let start =
            pb::StartRequest { wait: Some(until_output(regex)), ..start("", shell("true")) };
        let wait = pb::WaitRequest { wait: Some(until_output(regex)), ..wait_for_it("a") };
        let answers =
            [soon(client.start(start)).await.map(drop), soon(client.wait(wait)).await.map(drop)];
        for answer in answers {
            let status = answer.unwrap_err();
            assert_eq!(bad_fields(&status), ["wait.output.regex"]);
            let bad = details(&status).bad_request().unwrap().field_violations[0].clone();
            assert!(bad.description.contains(words), "{bad:?}");
        }
    }
    soon(client.delete(pb::DeleteRequest { id: "a".into(), ..Default::default() })).await.unwrap();
    is_untouched(&service, server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_five_megabytes_is_refused_in_words() {
    let service = TestService::start();
    let server = service.server_pid();
    let mut client = service.client().await;
    let large = "x".repeat(5 << 20);
    assert_eq!(refused(client.start(start("", shell(&large)))).await, ["request"]);
    let list = pb::ListRequest { page_token: large, ..Default::default() };
    assert_eq!(refused(client.list(list)).await, ["request"]);
    is_untouched(&service, server).await;
}
