//! The server process dies, or all of procyard is restarted: nothing that ran is forgotten.

use std::time::{Duration, Instant};

use procyard::grpc::pb::{self, Cause};

use crate::support::service::*;
use crate::support::{SOON, alive, soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_run_on_while_the_server_is_replaced() {
    let service = TestService::start();
    let mut client = service.client().await;
    let finished = finish(&mut client, "done", shell("echo said; exit 3")).await.process.unwrap();
    let spec = with_stdin(shell("while read x; do echo got $x; done; exit 7"));
    let running = begin(&mut client, "runs", spec.clone()).await;
    for turn in 0..5 {
        service.kill_server();
        let mut client = service.client().await;
        assert_eq!(get(&mut client, "done").await, finished);
        assert_eq!(printed(&mut client, "done").await, "said\n");
        let found = get(&mut client, "runs").await;
        assert_eq!((found.state(), found.pid), (pb::State::Running, running.pid));
        let input = pb::write_stdin_request::Input::Text(format!("{turn}\n"));
        let write = pb::WriteStdinRequest {
            id: "runs".into(),
            input: Some(input),
            offset: Some(2 * turn),
            wait: Some(until_output("got")),
            ..Default::default()
        };
        soon(client.write_stdin(write)).await.unwrap();
        // A start that is retried finds it.
        let again = soon(client.start(start("runs", spec.clone()))).await.unwrap().into_inner();
        assert!(again.existed);
    }
    let mut client = service.client().await;
    let eof = pb::WriteStdinRequest { id: "runs".into(), eof: true, ..Default::default() };
    soon(client.write_stdin(eof)).await.unwrap();
    assert_eq!(exit(&ended(&mut client, "runs").await).code, Some(7));
    assert_eq!(printed(&mut client, "runs").await, "got 0\ngot 1\ngot 2\ngot 3\ngot 4\n");
}

/// The keeper holds the listening sockets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_made_while_there_is_no_server_waits_for_the_next() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", shell("exec sleep 600")).await;
    let server = service.server_pid();
    // Stopped, the keeper starts no other.
    service.signal(libc::SIGSTOP);
    kill_pid(server, libc::SIGKILL);
    until("the server is dead", || !alive(server.cast_unsigned())).await;
    let socket = service.socket();
    let call = tokio::spawn(async move {
        let mut client = Client::new(connect(socket).await.unwrap());
        get(&mut client, "p").await
    });
    // It has been sent, as far as anyone can tell, and nobody is there to answer.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!call.is_finished());
    service.signal(libc::SIGCONT);
    assert_eq!(soon(call).await.unwrap().state(), pb::State::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_while_there_was_no_server_has_ended_as_it_did() {
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = crate::support::Gate::new(service.directory.path());
    begin(&mut client, "a", shell(&format!("read x <{}; echo last; exit 6", gate.path))).await;
    let server = service.server_pid();
    // Stopped, so that it cannot hear of the end before it is killed.
    kill_pid(server, libc::SIGSTOP);
    let mut gate = gate;
    gate.open(1);
    until("it has ended", || service.inmates().is_empty()).await;
    kill_pid(server, libc::SIGKILL);
    let mut client = service.client().await;
    let process = ended(&mut client, "a").await;
    assert_eq!((exit(&process).code, exit(&process).cause()), (Some(6), Cause::Exited));
    assert_eq!(printed(&mut client, "a").await, "last\n");
    let told = events(&mut client).await;
    assert_eq!(kinds(&told), [pb::Kind::Started, pb::Kind::Completed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_that_comes_while_there_is_no_server_stops_as_the_spec_says() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "trap 'echo asked; exit 9' USR1; echo ready; while :; do sleep 0.01; done";
    let spec = stopped_by("USR1", 60_000, shell(line));
    let spec = pb::Spec { timeout: Some(millis(5000)), ..spec };
    begin_ready(&mut client, "a", spec).await;
    let server = service.server_pid();
    kill_pid(server, libc::SIGSTOP);
    let begin = Instant::now();
    until("its time is over", || begin.elapsed() > Duration::from_millis(5100)).await;
    kill_pid(server, libc::SIGKILL);
    let mut client = service.client().await;
    let process = ended(&mut client, "a").await;
    assert_eq!((exit(&process).code, exit(&process).cause()), (Some(9), Cause::TimedOut));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_is_still_ahead_after_the_server_was_replaced() {
    let service = TestService::start();
    let mut client = service.client().await;
    let spec = pb::Spec { timeout: Some(millis(1500)), ..shell("exec sleep 600") };
    begin(&mut client, "a", spec).await;
    service.kill_server();
    let mut client = service.client().await;
    let process = ended(&mut client, "a").await;
    assert_eq!(exit(&process).cause(), Cause::TimedOut);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_under_way_is_finished_by_the_next_server() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin_ready(&mut client, "a", stubborn(5000)).await;
    let mut watcher = Watcher::since(&mut client, 0).await;
    let mut caller = service.client().await;
    let killing = tokio::spawn(async move { caller.kill(kill("a")).await.map(drop) });
    watcher.next(pb::Kind::Stopping).await;
    service.kill_server();
    assert!(soon(killing).await.unwrap().is_err(), "its server is gone");
    let mut client = service.client().await;
    // A retried kill is one more waiter.
    let answer = soon(client.kill(kill("a"))).await.unwrap().into_inner();
    let exit = exit(&answer.processes[0]);
    assert_eq!((exit.signal, exit.cause()), (Some(9), Cause::Killed));
    use pb::Kind::{Completed, Started, Stopping};
    assert_eq!(kinds(&events(&mut client).await), [Started, Stopping, Completed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_under_way_keeps_the_signal_and_the_grace_that_it_was_given() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "trap 'echo asked' USR1; trap 'echo told' TERM; echo ready; \
                while :; do sleep 0.01; done 2>/dev/null";
    begin_ready(&mut client, "a", stopped_by("TERM", 1, shell(line))).await;
    let asking =
        pb::KillRequest { signal: Some("USR1".into()), grace: Some(millis(600_000)), ..kill("a") };
    let mut caller = service.client().await;
    let killing = tokio::spawn(async move { caller.kill(asking).await.map(drop) });
    let asked =
        |times: &str| pb::WaitRequest { wait: Some(until_output(times)), ..wait_for_it("a") };
    assert!(soon(client.wait(asked("asked"))).await.unwrap().into_inner().wait.unwrap().met);
    service.kill_server();
    assert!(soon(killing).await.unwrap().is_err(), "its server is gone");
    let mut client = service.client().await;
    let again = soon(client.wait(asked("asked\nasked"))).await.unwrap().into_inner();
    assert!(again.wait.unwrap().met, "it was ended in another way");
    soon(client.kill(kill_at_once("a"))).await.unwrap();
    assert!(!printed(&mut client, "a").await.contains("told"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_that_the_server_dies_in_are_started_once_or_not_at_all() {
    let service = TestService::start();
    let log = service.directory.path().join("log");
    let line = format!("echo $PROCYARD_ID >>{}; exec sleep 600", log.display());
    for turn in 0..8 {
        let client = service.client().await;
        let starts: Vec<_> = (0..10)
            .map(|n| {
                let (mut client, line) = (client.clone(), line.clone());
                let id = format!("p{turn}-{n}");
                tokio::spawn(async move { client.start(start(&id, shell(&line))).await.is_ok() })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(turn)).await;
        service.kill_server();
        let mut client = service.client().await;
        for (n, started) in starts.into_iter().enumerate() {
            let id = format!("p{turn}-{n}");
            if soon(started).await.unwrap() {
                assert_eq!(get(&mut client, &id).await.state(), pb::State::Running, "{id}");
            }
            let process = begin(&mut client, &id, shell(&line)).await;
            assert!(alive(process.pid), "{id}");
        }
        // One whose record came too late for its server would be a stranger here.
        let records: Vec<_> = list(&mut client).await.iter().map(|process| process.pid).collect();
        until("the keeper has whom the records name", || {
            service.inmates().iter().all(|pid| records.contains(pid))
        })
        .await;
        assert_eq!(service.inmates().len(), 10 * (turn as usize + 1));
    }
    let lines = || std::fs::read_to_string(&log).unwrap().lines().count();
    until("all have said who they are", || lines() >= 80).await;
    assert_eq!(lines(), 80, "one was started twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_of_the_ended_vanish_and_those_of_the_living_stay() {
    let service = TestService::start();
    let mut client = service.client().await;
    let script = |code: &str| {
        let script = pb::Script { code: code.into(), ..Default::default() };
        let program = Some(pb::spec::Program::Script(script));
        pb::Spec { program, ..Default::default() }
    };
    let names = || -> Vec<_> {
        let scripts = std::fs::read_dir(service.directory.path().join("state/scripts")).unwrap();
        scripts.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    begin(&mut client, "lives", script("exec sleep 600")).await;
    let stays = names();
    begin(&mut client, "ends", script("exec sleep 600")).await;
    assert_eq!((stays.len(), names().len()), (1, 2));
    let pid = get(&mut client, "ends").await.pid;
    let server = service.server_pid();
    kill_pid(server, libc::SIGSTOP);
    kill_pid(pid.cast_signed(), libc::SIGKILL);
    until("it has ended", || !alive(pid)).await;
    kill_pid(server, libc::SIGKILL);
    let mut client = service.client().await;
    ended(&mut client, "ends").await;
    until("one script is left", || names() == stays).await;
    soon(client.kill(kill("lives"))).await.unwrap();
    until("no script is left", || names().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_ends_what_ran_and_says_so() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    let finished = finish(&mut client, "done", shell("echo hi; exit 3")).await.process.unwrap();
    let polite = "trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done";
    begin_ready(&mut client, "polite", shell(polite)).await;
    begin_ready(&mut client, "stubborn", stubborn(100)).await;
    let info = pb::GetServerInfoRequest {};
    let instance = soon(client.get_server_info(info)).await.unwrap().into_inner().instance_id;
    drop(client);
    service.restart();
    let mut client = service.client().await;
    assert_eq!(ids(&list(&mut client).await), ["stubborn", "polite", "done"]);
    let after = get(&mut client, "done").await;
    assert_eq!(exit(&after), exit(&finished));
    assert_eq!((&after.spec, after.pid), (&finished.spec, finished.pid));
    for (id, code, signal) in [("polite", Some(4), None), ("stubborn", None, Some(9))] {
        let exit = exit(&get(&mut client, id).await).clone();
        assert_eq!((exit.cause(), exit.outcome()), (Cause::Shutdown, pb::Outcome::Canceled));
        assert_eq!((exit.code, exit.signal), (code, signal), "{id}");
    }
    let info = soon(client.get_server_info(info)).await.unwrap().into_inner();
    assert_eq!(info.instance_id, instance, "it is the same installation");
    // New ones are newer, and a retried start finds its finished process.
    finish(&mut client, "new", shell("true")).await;
    assert_eq!(ids(&list(&mut client).await)[0], "new");
    assert!(finish(&mut client, "done", shell("echo hi; exit 3")).await.existed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ran_when_keeper_and_server_were_killed_is_lost_and_never_running() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "done", shell("exit 3")).await;
    let running = begin(&mut client, "ran", shell("exec sleep 600")).await;
    begin_ready(&mut client, "stopping", stubborn(600_000)).await;
    let mut watcher = Watcher::since(&mut client, 0).await;
    let mut caller = client.clone();
    let killing = tokio::spawn(async move { caller.kill(kill("stopping")).await.map(drop) });
    watcher.next(pb::Kind::Stopping).await;
    let left = service.inmates();
    let server = service.server_pid();
    service.signal(libc::SIGKILL);
    until("the server has followed its keeper", || !alive(server.cast_unsigned())).await;
    assert!(soon(killing).await.unwrap().is_err());
    service.begin_anew(|_| {});
    let mut client = service.client().await;
    assert_eq!(exit(&get(&mut client, "done").await).code, Some(3));
    for id in ["ran", "stopping"] {
        let process = get(&mut client, id).await;
        let exit = exit(&process);
        assert_eq!((exit.cause(), exit.outcome()), (Cause::Lost, pb::Outcome::Failed), "{id}");
        assert_eq!((exit.code, exit.signal), (None, None), "{id}");
        assert!(process.lingering.is_empty());
    }
    assert_eq!(get(&mut client, "ran").await.pid, running.pid);
    let told = events(&mut client).await;
    let lost = told.iter().filter(|event| event.kind() == pb::Kind::Completed).count();
    assert_eq!(lost, 3, "each has completed once");
    let request = pb::ListRequest { live_only: true, ..Default::default() };
    assert_eq!(soon(client.list(request)).await.unwrap().into_inner().processes, []);
    // Nobody may run on unseen.
    let begin = Instant::now();
    for pid in left {
        while alive(pid) {
            assert!(begin.elapsed() < SOON, "{pid} runs on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transcript_that_is_gone_is_told_as_a_gap() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "done", shell("echo hi")).await;
    service.stop();
    std::fs::remove_file(super::archiving::file(&service, "1.1")).unwrap();
    service.begin_anew(|_| {});
    let mut client = service.client().await;
    let read = pb::ReadRequest { id: "done".into(), ..Default::default() };
    let answer = soon(client.read(read)).await.unwrap().into_inner();
    let gap = answer.gap.expect("nobody is told that something is missing");
    assert_eq!((gap.from_seq, gap.to_seq, answer.ended), (1, 1, true));
    let transcript = get(&mut client, "done").await.transcript.unwrap();
    assert_eq!((transcript.total_bytes, transcript.next_seq), (3, 2));
}

/// The store refuses while another holds its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fails_for_a_while_refuses_starts_and_nothing_else() {
    let service = TestService::start();
    let mut client = service.client().await;
    let live = begin(&mut client, "live", shell("exec sleep 600")).await;
    let database = service.directory.path().join("state/procyard.db");
    let other = rusqlite::Connection::open(database).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    // The first is refused when the store has given up, the next at once.
    for id in ["a", "b"] {
        let refused = refusal(soon(client.start(start(id, shell("true")))).await);
        assert_eq!(refused, (tonic::Code::Unavailable, "STORE_FAILED".into()));
    }
    assert_eq!(get(&mut client, "live").await.pid, live.pid);
    let mut killer = service.client().await;
    let killing = tokio::spawn(async move { killer.kill(kill_at_once("live")).await });
    until("it is dead, recorded or not", || !alive(live.pid)).await;
    other.execute_batch("ROLLBACK").unwrap();
    soon(killing).await.unwrap().unwrap();
    until_ok(&mut client).await;
    assert_eq!(ids(&list(&mut client).await), ["c", "live"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_behind_one_that_could_not_be_recorded_has_its_turn_all_the_same() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "before", shell("true")).await;
    ended(&mut client, "before").await;
    let database = service.directory.path().join("state/procyard.db");
    let other = rusqlite::Connection::open(database).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Whichever comes first has the turn and cannot be recorded; the other waits behind it.
    let (mut first, mut second) = (client.clone(), client.clone());
    let (a, b) = (in_queue("q", shell("true")), in_queue("q", shell("true")));
    let (a, b) = (first.start(start("a", a)), second.start(start("b", b)));
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let either = async {
        tokio::select! {
            refused = &mut a => (refused, true),
            refused = &mut b => (refused, false),
        }
    };
    let (refused, a_was_first) = soon(either).await;
    assert_eq!(refusal(refused), (tonic::Code::Unavailable, "STORE_FAILED".into()));
    other.execute_batch("ROLLBACK").unwrap();
    let behind = if a_was_first { soon(b).await } else { soon(a).await };
    // Both may have come into one commit, which failed for both.
    let name = match behind {
        Ok(behind) => behind.into_inner().process.unwrap().id,
        Err(refused) => {
            assert_eq!(refusal::<()>(Err(refused)).1, "STORE_FAILED");
            until_ok(&mut client).await;
            "c".into()
        }
    };
    assert_eq!(exit(&ended(&mut client, &name).await).code, Some(0));
}

/// Starts again until it is not refused.
async fn until_ok(client: &mut Client) {
    let again = async {
        while client.start(start("c", shell("true"))).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    soon(again).await;
}
