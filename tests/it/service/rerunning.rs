//! Run: a finished process again, under its id.

use procyard::grpc::pb::{self, Cause, Kind, Outcome, State};
use tonic::Code;

use crate::support::service::*;
use crate::support::{alive, soon};

async fn again(client: &mut Client, request: pb::RunRequest) -> pb::Process {
    soon(client.run(request)).await.unwrap().into_inner().process.unwrap()
}

async fn read(client: &mut Client, id: &str, since: u64) -> pb::ReadResponse {
    let request = pb::ReadRequest { id: id.into(), since_seq: Some(since), ..Default::default() };
    soon(client.read(request)).await.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_left_nothing_behind_runs_again_and_is_counted() {
    let service = TestService::start();
    let mut client = service.client().await;
    let first = finish(&mut client, "a", shell("exit 3")).await.process.unwrap();
    let second = again(&mut client, run_again("a")).await;
    assert_eq!((second.run, second.restarts), (2, 0));
    assert_eq!((&second.spec, &second.create_time), (&first.spec, &first.create_time));
    assert_ne!(second.pid, first.pid);
    assert_eq!(exit(&ended(&mut client, "a").await).code, Some(3));
    let told = events(&mut client).await;
    let all = [Kind::Started, Kind::Completed, Kind::RunAgain, Kind::Started, Kind::Completed];
    assert_eq!(kinds(&told), all);
    let runs: Vec<u32> = told.iter().map(|event| event.process.as_ref().unwrap().run).collect();
    assert_eq!(runs, [1, 1, 2, 2, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_cleared_only_by_force_and_its_numbers_go_on() {
    let service = TestService::start();
    let mut client = service.client().await;
    let first = finish(&mut client, "a", shell("echo run $PROCYARD_RUN")).await;
    let next = first.cursor.unwrap().next_seq;
    assert_eq!(next, 2);
    let answer = soon(client.run(run_again("a"))).await;
    assert_eq!(refusal(answer), (Code::FailedPrecondition, "HAS_OUTPUT".into()));
    let kept = get(&mut client, "a").await;
    assert_eq!((kept.run, kept.state()), (1, State::Exited));
    again(&mut client, run_by_force("a")).await;
    let process = ended(&mut client, "a").await;
    let transcript = process.transcript.unwrap();
    assert_eq!((transcript.first_seq, transcript.next_seq, transcript.total_bytes), (2, 3, 6));
    assert_eq!(exit(&process).final_seq, 3);
    // A reader from before goes on where it was.
    let rest = read(&mut client, "a", next).await;
    assert_eq!((rest.gap, rest.chunks[0].seq, rest.chunks[0].offset), (None, 2, 0));
    assert_eq!(text(&rest.chunks, pb::Stream::Stdout), "run 2\n");
    // One that has not read what was cleared is told so.
    let all = read(&mut client, "a", 1).await;
    assert_eq!(all.gap.map(|gap| (gap.from_seq, gap.to_seq)), Some((1, 1)));
    assert_eq!(text(&all.chunks, pb::Stream::Stdout), "run 2\n");
    let ahead = pb::ReadRequest { id: "a".into(), since_seq: Some(4), ..Default::default() };
    let answer = soon(client.read(ahead)).await;
    assert_eq!(refusal(answer), (Code::OutOfRange, "CURSOR_AHEAD".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_and_what_is_missing_is_refused() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "a", shell("sleep 600")).await;
    for request in [run_again("a"), run_by_force("a")] {
        let answer = soon(client.run(request)).await;
        assert_eq!(refusal(answer), (Code::FailedPrecondition, "STILL_RUNNING".into()));
    }
    let answer = soon(client.run(run_again("b"))).await;
    assert_eq!(refusal(answer), (Code::NotFound, "PROCESS_NOT_FOUND".into()));
    let answer = soon(client.run(pb::RunRequest::default())).await.unwrap_err();
    assert_eq!(bad_fields(&answer), ["id"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descendants_of_the_run_before_are_ended_first() {
    let service = TestService::start();
    let mut client = service.client().await;
    let answer = finish(&mut client, "a", shell("sleep 600 & echo $!")).await;
    let pid: u32 = text(&answer.chunks, pb::Stream::Stdout).trim().parse().unwrap();
    assert!(alive(pid));
    again(&mut client, run_by_force("a")).await;
    assert!(!alive(pid));
    ended(&mut client, "a").await;
    let second: u32 = printed(&mut client, "a").await.trim().parse().unwrap();
    assert!(second != pid && alive(second));
    soon(client.kill(kill("a"))).await.unwrap();
    assert_eq!(service.inmates(), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_with_a_queue_waits_its_turn_again_and_one_with_input_has_new_input() {
    let service = TestService::start();
    let mut client = service.client().await;
    let spec = in_queue("q", with_stdin(shell("cat")));
    begin(&mut client, "a", spec.clone()).await;
    let write = |text: &str| pb::WriteStdinRequest {
        id: "a".into(),
        input: Some(pb::write_stdin_request::Input::Text(text.into())),
        offset: Some(0),
        eof: true,
        ..Default::default()
    };
    soon(client.write_stdin(write("one"))).await.unwrap();
    ended(&mut client, "a").await;
    begin(&mut client, "b", in_queue("q", shell("sleep 600"))).await;
    let process = again(&mut client, run_by_force("a")).await;
    assert_eq!((process.state(), process.queue_position, process.run), (State::Queued, 1, 2));
    assert_eq!(process.exit, None);
    assert_eq!(printed(&mut client, "a").await, "");
    soon(client.kill(kill_at_once("b"))).await.unwrap();
    let answer = soon(client.write_stdin(write("two!"))).await.unwrap().into_inner();
    assert_eq!((answer.bytes_written, answer.accepted_bytes), (4, 4));
    ended(&mut client, "a").await;
    assert_eq!(printed(&mut client, "a").await, "two!");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_is_gone_by_then_is_an_error_and_the_record_tells_it() {
    let service = TestService::start();
    let mut client = service.client().await;
    let program = service.directory.path().join("program");
    std::fs::copy("/bin/true", &program).unwrap();
    finish(&mut client, "a", argv(&[program.to_str().unwrap()])).await;
    std::fs::remove_file(&program).unwrap();
    let answer = soon(client.run(run_again("a"))).await;
    assert_eq!(refusal(answer), (Code::FailedPrecondition, "SPAWN_FAILED".into()));
    let process = get(&mut client, "a").await;
    assert_eq!((process.run, exit(&process).cause()), (2, Cause::StartFailed));
    std::fs::copy("/bin/true", &program).unwrap();
    assert_eq!(again(&mut client, run_again("a")).await.run, 3);
    assert_eq!(exit(&ended(&mut client, "a").await).outcome(), Outcome::Succeeded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_survive_the_server() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "a", shell("echo run $PROCYARD_RUN; test $PROCYARD_RUN = 1 || sleep 600"))
        .await;
    again(&mut client, run_by_force("a")).await;
    let wait = pb::WaitRequest { wait: Some(until_output("run 2")), ..wait_for_it("a") };
    assert!(soon(client.wait(wait)).await.unwrap().into_inner().wait.unwrap().met);
    service.kill_server();
    let mut client = service.client().await;
    let process = get(&mut client, "a").await;
    assert_eq!((process.run, process.state()), (2, State::Running));
    assert_eq!(read(&mut client, "a", 2).await.chunks[0].seq, 2);
    soon(client.kill(kill_at_once("a"))).await.unwrap();
    let process = again(&mut client, run_by_force("a")).await;
    assert_eq!(process.run, 3);
    soon(client.kill(kill_at_once("a"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_descendants_printed_after_the_end_is_output_as_well() {
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = crate::support::Gate::new(service.directory.path());
    let line = format!("(read x <{}; echo late; sleep 600) & exit 0", gate.path);
    finish(&mut client, "a", shell(&line)).await;
    let mut gate = gate;
    gate.open(1);
    let wait = pb::WaitRequest { wait: Some(until_output("late")), ..wait_for_it("a") };
    // The end wakes first; what comes after it is read.
    soon(client.wait(wait)).await.unwrap();
    let late = async {
        while printed(&mut client, "a").await != "late\n" {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon(late).await;
    let answer = soon(client.run(run_again("a"))).await;
    assert_eq!(refusal(answer), (Code::FailedPrecondition, "HAS_OUTPUT".into()));
    again(&mut client, run_by_force("a")).await;
    gate.open(1);
    let fresh = async {
        loop {
            let answer = read(&mut client, "a", 2).await;
            if !answer.chunks.is_empty() {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let answer = soon(fresh).await;
    assert_eq!((answer.gap, answer.chunks[0].seq), (None, 2));
    soon(client.kill(kill("a"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stands_in_what_was_cleared_hears_the_end_of_a_run_that_prints_nothing() {
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = crate::support::Gate::new(service.directory.path());
    let line = format!("if [ $PROCYARD_RUN = 1 ]; then echo said; else read x <{}; fi", gate.path);
    finish(&mut client, "a", shell(&line)).await;
    again(&mut client, run_by_force("a")).await;
    let request = pb::FollowRequest { id: "a".into(), since_seq: Some(1), ..Default::default() };
    let mut stream = soon(client.follow(request)).await.unwrap().into_inner();
    let first = soon(stream.message()).await.unwrap().unwrap().message.unwrap();
    let pb::follow_response::Message::Gap(gap) = first else { panic!("{first:?}") };
    assert_eq!((gap.from_seq, gap.to_seq), (1, 1));
    let mut gate = gate;
    gate.open(1);
    let last = soon(stream.message()).await.unwrap().unwrap().message.unwrap();
    assert!(matches!(last, pb::follow_response::Message::End(_)), "{last:?}");
}
