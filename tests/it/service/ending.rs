//! Ends: each has its cause, its outcome and its figures, and comes after the last byte.

use procyard::grpc::pb::{self, Cause, Outcome};
use tokio::task::JoinSet;

use crate::support::service::*;
use crate::support::{Gate, full_volume, soon};

/// Cause, outcome, code and signal.
fn facts(process: &pb::Process) -> (Cause, Outcome, Option<i32>, Option<i32>) {
    let exit = exit(process);
    (exit.cause(), exit.outcome(), exit.code, exit.signal)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_has_its_cause_and_outcome_and_either_a_code_or_a_signal() {
    let service = TestService::start();
    let mut client = service.client().await;
    for (line, wanted, message) in [
        ("exit 0", (Cause::Exited, Outcome::Succeeded, Some(0), None), "exited with code 0"),
        ("exit 255", (Cause::Exited, Outcome::Failed, Some(255), None), "exited with code 255"),
        ("kill -9 $$", (Cause::Signaled, Outcome::Failed, None, Some(9)), "ended by SIGKILL"),
        ("kill -TERM $$", (Cause::Signaled, Outcome::Failed, None, Some(15)), "ended by SIGTERM"),
    ] {
        let process = finish(&mut client, "", shell(line)).await.process.unwrap();
        assert_eq!((facts(&process), &exit(&process).message[..]), (wanted, message));
        assert_eq!(get(&mut client, &process.id).await, process);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_says_so_however_it_took_the_signal() {
    let service = TestService::start();
    let mut client = service.client().await;
    let polite = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    begin_ready(&mut client, "polite", shell(polite)).await;
    begin_ready(&mut client, "usual", shell("echo ready; exec sleep 600")).await;
    begin_ready(&mut client, "stubborn", stubborn(50)).await;
    for (id, code, signal) in
        [("polite", Some(0), None), ("usual", None, Some(15)), ("stubborn", None, Some(9))]
    {
        let answer = soon(client.kill(kill(id))).await.unwrap().into_inner();
        let wanted = (Cause::Killed, Outcome::Canceled, code, signal);
        assert_eq!(facts(&answer.processes[0]), wanted, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_time_is_over_is_stopped_as_its_spec_says() {
    let service = TestService::start();
    let mut client = service.client().await;
    // Time for a shell to set its trap before.
    let limited = |spec| pb::Spec { timeout: Some(millis(8000)), ..spec };
    let line = "trap 'echo asked; exit 9' USR1; while :; do sleep 0.01; done";
    let polite = limited(stopped_by("USR1", 60_000, shell(line)));
    let mut other = client.clone();
    let (answer, killed) = tokio::join!(
        finish(&mut client, "", polite),
        finish(&mut other, "", limited(stubborn(50)))
    );
    let wanted = (Cause::TimedOut, Outcome::TimedOut, Some(9), None);
    assert_eq!(facts(answer.process.as_ref().unwrap()), wanted);
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "asked\n");
    let wanted = (Cause::TimedOut, Outcome::TimedOut, None, Some(9));
    assert_eq!(facts(killed.process.as_ref().unwrap()), wanted);
    // One that ends in time is not touched.
    let spec = pb::Spec { timeout: Some(millis(60_000)), ..shell("exit 0") };
    let process = finish(&mut client, "", spec).await.process.unwrap();
    assert_eq!(facts(&process), (Cause::Exited, Outcome::Succeeded, Some(0), None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_has_usage_and_duration() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 0.2";
    let process = finish(&mut client, "", shell(line)).await.process.unwrap();
    let exit = exit(&process).clone();
    let usage = exit.usage.unwrap();
    let nanos = |span: prost_types::Duration| span.seconds * 1_000_000_000 + i64::from(span.nanos);
    assert!(nanos(usage.user_time.unwrap()) > 0 && usage.max_rss_bytes > 100_000);
    assert!(nanos(exit.duration.unwrap()) >= 200_000_000);
    let (start, end) = (process.start_time.unwrap(), process.exit_time.unwrap());
    let (seconds, nanos_part) = (end.seconds - start.seconds, i64::from(end.nanos - start.nanos));
    assert_eq!(seconds * 1_000_000_000 + nanos_part, nanos(exit.duration.unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lingers_is_named_and_may_still_print_until_the_output_is_complete() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let line = format!("(read x <{}; echo late) & echo early", gate.path);
    let answer = finish(&mut client, "a", shell(&line)).await;
    let process = answer.process.unwrap();
    let first = exit(&process).clone();
    assert_eq!(facts(&process), (Cause::Exited, Outcome::Succeeded, Some(0), None));
    assert_eq!((process.lingering.len(), first.output_complete), (1, false));
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "early\n");
    gate.open(1);
    let complete = async {
        loop {
            let process = get(&mut client, "a").await;
            if exit(&process).output_complete {
                return process;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let process = soon(complete).await;
    assert_eq!(exit(&process).final_seq, first.final_seq);
    let read = pb::ReadRequest { id: "a".into(), ..Default::default() };
    let read = soon(client.read(read)).await.unwrap().into_inner();
    assert_eq!(text(&read.chunks, pb::Stream::Stdout), "early\nlate\n");
    assert!(read.ended);
    let completions = events(&mut client).await;
    assert_eq!(kinds(&completions), [pb::Kind::Started, pb::Kind::Completed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_completion_is_told_everything_can_be_read() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut watcher = Watcher::since(&mut client, 0).await;
    let count = if full_volume() { 5000 } else { 300 };
    let mut starter = service.client().await;
    let starting = tokio::spawn(async move {
        for n in 0..count {
            let spec = argv(&["printf", &format!("%0{}d", 1 + n * 97 % 5000), &n.to_string()]);
            let spec = if n % 2 == 0 { spec } else { on_terminal(spec) };
            begin(&mut starter, &format!("p{n}"), spec).await;
        }
    });
    let mut completed = std::collections::HashSet::new();
    while completed.len() < count {
        let event = watcher.next(pb::Kind::Completed).await;
        let told = event.process.unwrap();
        let n: usize = told.id[1..].parse().unwrap();
        assert!(completed.insert(n), "completed twice");
        assert_eq!(exit(&told).code, Some(0));
        let read = pb::ReadRequest { id: told.id, ..Default::default() };
        let read = soon(client.read(read)).await.unwrap().into_inner();
        assert!(read.ended, "{read:?}");
        let printed: usize = read.chunks.iter().map(|chunk| chunk.data.len()).sum();
        assert_eq!(printed, (1 + n * 97 % 5000).max(n.to_string().len()));
        assert_eq!(exit(&get(&mut client, &event.process_id).await).final_seq, {
            read.cursor.unwrap().next_seq
        });
    }
    starting.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_end_at_once_are_each_told_once() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let count = 100;
    let mut starts = JoinSet::new();
    for n in 0..count {
        let line = shell(&format!("read x <{}; exit {n}", gate.path));
        let mut client = client.clone();
        starts.spawn(async move { begin(&mut client, &format!("p{n}"), line).await });
    }
    starts.join_all().await;
    gate.open(count);
    for n in 0..count {
        let process = ended(&mut client, &format!("p{n}")).await;
        assert_eq!(exit(&process).code, Some(i32::try_from(n).unwrap()));
    }
    let events = events(&mut client).await;
    let of = |kind| events.iter().filter(|event| event.kind() == kind).count();
    assert_eq!((of(pb::Kind::Started), of(pb::Kind::Completed)), (count, count));
    let seqs: Vec<_> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=2 * count as u64).collect::<Vec<_>>());
}
