//! Specs that are large or have many parts: what they can take of memory and of the disk.

use procyard::grpc::pb;
use prost::Message;
use tonic::Code;

use crate::support::callers::KnowingService;
use crate::support::service::*;
use crate::support::soon;

/// A program with so many empty arguments.
fn many_arguments(count: usize) -> pb::Spec {
    argv(&[&["true"][..], &vec![""; count]].concat())
}

fn ready_by(exec: &[String], spec: pb::Spec) -> pb::Spec {
    let readiness =
        pb::Readiness { exec: exec.to_vec(), keep_on_failure: true, ..Default::default() };
    pb::Spec { readiness: Some(readiness), ..spec }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_arguments_count_for_the_memory_that_they_take() {
    let service = TestService::start_with(|command| {
        command.args(["--keep-mib", "1"]);
    });
    let mut client = service.client().await;
    for id in ["first", "second", "third"] {
        finish(&mut client, id, many_arguments(10_000)).await;
    }
    let request = pb::GetRequest { id: "first".into() };
    let freed = soon(client.get(request)).await.unwrap_err();
    assert_eq!(freed.code(), Code::NotFound, "{freed:?}");
    get(&mut client, "third").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_long_fields_of_a_spec_are_refused_all_at_once() {
    let service = TestService::start();
    let mut client = service.client().await;
    let terminal = pb::Terminal { term: "x".repeat(65), ..Default::default() };
    let mut spec = ready_by(&["true".into(), "x".repeat(64 << 10)], shell("true"));
    spec.io = Some(pb::spec::Io::Terminal(terminal));
    spec.cwd = format!("/{}", "x".repeat(4095));
    let refused = soon(client.start(start("p", spec))).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    let fields = ["spec.terminal.term", "spec.cwd", "spec.readiness.exec"];
    assert_eq!(bad_fields(&refused), fields);
    let many = ready_by(&vec!["true".to_owned(); 1025], shell("true"));
    let refused = soon(client.start(start("p", many))).await.unwrap_err();
    assert_eq!(bad_fields(&refused), ["spec.readiness.exec"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_leave_out_what_is_large_of_a_spec() {
    let service = TestService::start();
    let mut client = service.client().await;
    let probe = ["true".to_owned(), "x".repeat(60_000)];
    finish(&mut client, "probe", ready_by(&probe, shell("true"))).await;
    finish(&mut client, "arguments", many_arguments(10_000)).await;
    let labels = [("color".to_owned(), "blue".to_owned())].into();
    let spec = pb::Spec { labels, owner: "ann".into(), ..ready_by(&probe, shell("true")) };
    finish(&mut client, "labels", spec).await;
    let events = events(&mut client).await;
    for event in &events {
        assert!(event.encoded_len() < 16 << 10, "an event of {} bytes", event.encoded_len());
    }
    let last = events.iter().rfind(|event| event.process_id == "labels").unwrap();
    let spec = last.process.as_ref().unwrap().spec.as_ref().unwrap();
    assert_eq!((&spec.labels["color"][..], &spec.owner[..]), ("blue", "ann"));
    assert_eq!(spec.program, shell("true").program);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caller_leaves_room_for_waiting_specs_of_others() {
    let callers = [("a", "operator,owner=a"), ("b", "operator,owner=b")];
    let known = KnowingService::start(&callers).await;
    let (mut a, mut b) = (known.caller("a").await, known.caller("b").await);
    let sleep = in_queue("q", argv(&["sleep", "600"]));
    soon(a.start(start("first", sleep))).await.unwrap();
    let large = in_queue("q", shell(&format!("true # {}", "x".repeat(4_000_000))));
    let mut waiting = 0;
    let refused = loop {
        match soon(a.start(start(&format!("a{waiting}"), large.clone()))).await {
            Ok(_) => waiting += 1,
            Err(refused) => break refused,
        }
        assert!(waiting < 20, "one caller has {waiting} specs of 4 MB in a queue");
    };
    assert_eq!(
        (refused.code(), reason(&refused)),
        (Code::ResourceExhausted, "TOO_MANY_PROCESSES".into())
    );
    let metadata = details(&refused).error_info().unwrap().metadata.clone();
    assert_eq!((&metadata["limit"][..], &metadata["of"][..]), ("queued_bytes", "caller"));
    soon(b.start(start("b", large))).await.unwrap();
}
