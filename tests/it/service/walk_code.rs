//! A walk through code execution with a result, as job runners do it, step by step.

use procyard::grpc::pb::{self, Outcome, State, spec};
use prost_types::value::Kind;
use tonic::Code;

use crate::support::service::*;
use crate::support::{Gate, have, soon};

const CODE: &str = r#"
import json, os, sys
print("to stdout")
print("to stderr", file=sys.stderr)
with open(os.environ["PROCYARD_OUTPUT"], "w") as file:
    json.dump({"answer": 42, "parts": [6, 7]}, file)
"#;

fn python(code: &str) -> pb::Spec {
    let script = pb::Script {
        code: code.into(),
        interpreter: vec!["python3".into()],
        filename: "job.py".into(),
    };
    pb::Spec { program: Some(spec::Program::Script(script)), ..Default::default() }
}

/// One stream alone.
async fn stream(client: &mut Client, id: &str, stream: pb::Stream) -> String {
    let streams = vec![stream.into()];
    let request = pb::ReadRequest { id: id.into(), streams, ..Default::default() };
    let chunks = soon(client.read(request)).await.unwrap().into_inner().chunks;
    assert!(chunks.iter().all(|chunk| chunk.stream() == stream));
    text(&chunks, stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn code_is_queued_run_read_killed_run_again_and_deleted() {
    if !have(&["python3"]) {
        return;
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = Gate::new(service.directory.path());

    // Behind a sleeping one, in a queue of one.
    let sleeping = in_queue("jobs", shell(&format!("read x <{}", gate.path)));
    begin(&mut client, "sleeping", sleeping).await;
    let spec = pb::Spec { r#ref: "job-4711".into(), ..in_queue("jobs", python(CODE)) };
    let process = begin(&mut client, "", spec).await;
    assert_eq!((process.state(), process.queue_position), (State::Queued, 1));
    let id = process.id;

    // Poll until it has exited.
    let mut gate = gate;
    gate.open(1);
    let polled = async {
        loop {
            let process = get(&mut client, &id).await;
            if process.state() == State::Exited {
                return process;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let process = soon(polled).await;
    assert_eq!(exit(&process).outcome(), Outcome::Succeeded);

    // The result, stdout and stderr, each alone.
    let output = process.output.clone().unwrap();
    assert_eq!(output.error, "");
    let value = output.value.unwrap().to_value().unwrap();
    let Some(Kind::StructValue(value)) = value.kind else { panic!("no object") };
    assert_eq!(value.fields["answer"].kind, Some(Kind::NumberValue(42.0)));
    assert_eq!(value.fields.len(), 2);
    assert_eq!(stream(&mut client, &id, pb::Stream::Stdout).await, "to stdout\n");
    assert_eq!(stream(&mut client, &id, pb::Stream::Stderr).await, "to stderr\n");

    // By the client's own reference. List leaves out the code.
    let selector = Some(pb::Selector { r#ref: "job-4711".into(), ..Default::default() });
    let request = pb::ListRequest { selector, ..Default::default() };
    let listed = soon(client.list(request)).await.unwrap().into_inner().processes;
    assert_eq!(listed.iter().map(|listed| &listed.id).collect::<Vec<_>>(), [&id]);
    assert_eq!((&listed[0].exit, listed[0].spec_truncated), (&process.exit, true));

    // Another is killed while it runs; what it printed is kept.
    let endless = python("import time\nprint('so far', flush=True)\ntime.sleep(600)\n");
    let request = pb::StartRequest {
        wait: Some(until_output("so far")),
        ..start("endless", in_queue("jobs", endless))
    };
    assert!(soon(client.start(request)).await.unwrap().into_inner().wait.unwrap().met);
    let killed = soon(client.kill(kill("endless"))).await.unwrap().into_inner();
    assert_eq!(exit(&killed.processes[0]).outcome(), Outcome::Canceled);
    assert_eq!(printed(&mut client, "endless").await, "so far\n");

    // Again: refused because of its output, and with force without it.
    let answer = soon(client.run(run_again("endless"))).await;
    assert_eq!(refusal(answer), (Code::FailedPrecondition, "HAS_OUTPUT".into()));
    let again = soon(client.run(run_by_force("endless"))).await.unwrap().into_inner();
    assert_eq!(again.process.unwrap().run, 2);
    let wait = pb::WaitRequest { wait: Some(until_output("so far")), ..wait_for_it("endless") };
    assert!(soon(client.wait(wait)).await.unwrap().into_inner().wait.unwrap().met);
    assert_eq!(printed(&mut client, "endless").await, "so far\n", "of the second run alone");

    // Deleted only when it is over.
    let delete = pb::DeleteRequest { id: "endless".into(), ..Default::default() };
    let answer = soon(client.delete(delete.clone())).await;
    assert_eq!(refusal(answer), (Code::FailedPrecondition, "STILL_RUNNING".into()));
    soon(client.kill(kill("endless"))).await.unwrap();
    soon(client.delete(delete)).await.unwrap();
    let answer = soon(client.get(pb::GetRequest { id: "endless".into() })).await;
    assert_eq!(refusal(answer), (Code::NotFound, "PROCESS_NOT_FOUND".into()));
}
