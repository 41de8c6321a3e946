//! Clients that leave: a process never notices, and what was asked for is done all the same.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use procyard::grpc::pb;
use tokio::task::JoinSet;

use crate::support::service::*;
use crate::support::{alive, full_volume, soon};

/// Waits for a moment that is shorter than the runtime's timers can tell.
async fn moment(span: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < span {
        tokio::task::yield_now().await;
    }
}

/// A different moment each time, within the few milliseconds that a start takes.
fn random_moment(random: &mut u64) -> Duration {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    Duration::from_micros((*random >> 33) % 4000)
}

/// Calls, and leaves when the moment has come. True: the answer came before.
async fn call_and_leave<T>(call: impl Future<Output = T>, span: Duration) -> bool {
    tokio::select! {
        _ = call => true,
        () = moment(span) => false,
    }
}

/// Processes by the records, when they have settled: none is being started any more, and the
/// keeper has exactly those that the records name.
async fn settled(service: &TestService, client: &mut Client) -> Vec<pb::Process> {
    let settling = async {
        loop {
            let records = list(client).await;
            let live = records.iter().filter(|record| record.exit.is_none());
            let mut pids: Vec<_> = live.map(|record| record.pid).collect();
            pids.sort_unstable();
            if !pids.contains(&0) && service.inmates() == pids {
                return records;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(settling).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_cancelled_at_any_moment_leaves_a_record_and_a_process_or_neither() {
    let service = TestService::start();
    let mut client = service.client().await;
    // An answer, and not a connection alone, means that the keeper has begun all that it has.
    assert_eq!(list(&mut client).await, []);
    let before = keeper_descriptors(&service);
    let log = service.directory.path().join("log");
    let line = format!("echo $PROCYARD_ID >>{}; echo ready; exec sleep 600", log.display());
    let count = if full_volume() { 1000 } else { 100 };
    let mut random = 0x9e37_79b9;
    let (mut answered, mut left) = (0, 0);
    for n in 0..count {
        let id = format!("p{n}");
        let span = random_moment(&mut random);
        let call = client.clone();
        let call = async { { call }.start(start(&id, shell(&line))).await.unwrap() };
        if call_and_leave(call, span).await { answered += 1 } else { left += 1 }
    }
    assert!(left > 0, "all of them were answered before they were cancelled");
    let records = settled(&service, &mut client).await;
    assert!(records.len() >= answered);
    assert!(records.iter().all(|record| record.state() == pb::State::Running));

    // Whoever comes back finds the same process, or starts it only now.
    let known: BTreeMap<_, _> = records.into_iter().map(|record| (record.id, record.pid)).collect();
    for n in 0..count {
        let id = format!("p{n}");
        let process = begin_ready(&mut client, &id, shell(&line)).await;
        assert!(known.get(&id).is_none_or(|pid| *pid == process.pid));
    }
    let mut ran: Vec<_> =
        std::fs::read_to_string(&log).unwrap().lines().map(String::from).collect();
    ran.sort();
    let mut wanted: Vec<_> = (0..count).map(|n| format!("p{n}")).collect();
    wanted.sort();
    assert_eq!(ran, wanted, "each ran once");

    for id in &wanted {
        let request = pb::DeleteRequest { id: id.clone(), force: true, allow_missing: false };
        soon(client.delete(request)).await.unwrap();
    }
    assert_eq!(service.inmates(), [0; 0]);
    crate::support::until("descriptors are closed", || keeper_descriptors(&service) <= before)
        .await;
}

/// How many descriptors the keeper has.
fn keeper_descriptors(service: &TestService) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", service.child.id())).unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_whose_connection_breaks_at_any_moment_is_retried_as_one_process() {
    let service = TestService::start();
    let log = service.directory.path().join("log");
    let line = format!("echo $PROCYARD_ID >>{}", log.display());
    let mut random = 7;
    let mut starts = JoinSet::new();
    for n in 0..50 {
        // A connection of its own, gone with the call.
        let mut lost = service.client().await;
        let mut other = service.client().await;
        let (id, line, span) = (format!("p{n}"), line.clone(), random_moment(&mut random));
        starts.spawn(async move {
            call_and_leave(lost.start(start(&id, shell(&line))), span).await;
            drop(lost);
            finish(&mut other, &id, shell(&line)).await
        });
    }
    for answer in starts.join_all().await {
        assert_eq!(exit(&answer.process.unwrap()).code, Some(0));
    }
    let ran = std::fs::read_to_string(&log).unwrap().lines().count();
    assert_eq!(ran, 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observers_that_leave_do_not_touch_the_process() {
    let service = TestService::start();
    let mut client = service.client().await;
    let process =
        begin(&mut client, "a", with_stdin(shell("while read x; do echo $x; done"))).await;
    let wait = |wait| pb::WaitRequest { wait: Some(wait), ..wait_for_it("a") };
    let write = pb::WriteStdinRequest {
        id: "a".into(),
        wait: Some(until_output("never")),
        ..Default::default()
    };
    let read = pb::ReadRequest { id: "a".into(), wait: Some(millis(60_000)), ..Default::default() };
    let follow = pb::FollowRequest { id: "a".into(), ..Default::default() };
    let mut random = 3;
    for _ in 0..20 {
        let span = random_moment(&mut random);
        let mut clients: [Client; 6] = std::array::from_fn(|_| client.clone());
        let [a, b, c, d, e, f] = &mut clients;
        let (w, r, fo) = (write.clone(), read.clone(), follow.clone());
        let followed = async {
            let mut stream = e.follow(fo).await.unwrap().into_inner();
            stream.message().await.unwrap()
        };
        let answered = tokio::join!(
            call_and_leave(a.wait(wait(until_exit())), span),
            call_and_leave(b.wait(wait(until_output("never"))), span),
            call_and_leave(c.write_stdin(w), span),
            call_and_leave(d.read(r), span),
            call_and_leave(followed, span),
            call_and_leave(f.start(run("a", process.spec.clone().unwrap())), span),
        );
        assert_eq!(answered, (false, false, false, false, false, false));
    }
    assert_eq!(get(&mut client, "a").await.state(), pb::State::Running);
    assert!(alive(process.pid));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_is_taken_once_or_not_at_all_when_its_writer_leaves() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "a", with_stdin(shell("exec cat"))).await;
    let mut random = 5;
    let mut sent = 0_u64;
    for n in 0..40 {
        let line = format!("{n}\n");
        let request = pb::WriteStdinRequest {
            id: "a".into(),
            input: Some(pb::write_stdin_request::Input::Text(line.clone())),
            offset: Some(sent),
            ..Default::default()
        };
        let mut other = client.clone();
        let span = random_moment(&mut random) / 4;
        call_and_leave(other.write_stdin(request.clone()), span).await;
        let answer = soon(client.write_stdin(request)).await.unwrap().into_inner();
        sent += line.len() as u64;
        assert_eq!(answer.accepted_bytes, sent);
    }
    let eof = pb::WriteStdinRequest { id: "a".into(), eof: true, ..Default::default() };
    soon(client.write_stdin(eof)).await.unwrap();
    ended(&mut client, "a").await;
    let read = pb::ReadRequest { id: "a".into(), ..Default::default() };
    let read = soon(client.read(read)).await.unwrap().into_inner();
    let wanted: String = (0..40).map(|n| format!("{n}\n")).collect();
    assert_eq!(text(&read.chunks, pb::Stream::Stdout), wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_whose_caller_leaves_still_kills() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin_ready(&mut client, "a", stubborn(200)).await;
    {
        let mut caller = service.client().await;
        let mut watcher = Watcher::since(&mut client, 0).await;
        let killing = tokio::spawn(async move { caller.kill(kill("a")).await });
        watcher.next(pb::Kind::Stopping).await;
        killing.abort();
    }
    let process = ended(&mut client, "a").await;
    assert_eq!(exit(&process).cause(), pb::Cause::Killed);
    assert_eq!(exit(&process).signal, Some(libc::SIGKILL));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calls_deadline_a_waits_timeout_and_a_processs_timeout_are_three_things() {
    let service = TestService::start();
    let mut client = service.client().await;
    let spec = shell("exec sleep 600");

    let mut request = tonic::Request::new(run("deadline", spec.clone()));
    // Time for it to be started before.
    request.set_timeout(Duration::from_secs(3));
    let status = soon(client.start(request)).await.unwrap_err();
    assert!(
        matches!(status.code(), tonic::Code::Cancelled | tonic::Code::DeadlineExceeded),
        "{status:?}"
    );
    assert_eq!(get(&mut client, "deadline").await.state(), pb::State::Running);

    let request =
        pb::StartRequest { wait: Some(within(300, until_exit())), ..start("wait", spec.clone()) };
    let answer = soon(client.start(request)).await.unwrap().into_inner();
    assert!(answer.wait.unwrap().timed_out);
    assert_eq!(answer.process.unwrap().state(), pb::State::Running);

    let spec = pb::Spec { timeout: Some(millis(300)), ..spec };
    let answer = finish(&mut client, "process", spec).await;
    assert!(answer.wait.unwrap().met);
    assert_eq!(exit(&answer.process.unwrap()).cause(), pb::Cause::TimedOut);
    assert_eq!(get(&mut client, "deadline").await.state(), pb::State::Running);
    assert_eq!(get(&mut client, "wait").await.state(), pb::State::Running);
}
