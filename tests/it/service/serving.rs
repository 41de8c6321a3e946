//! Services: one of a name at a time, started again as their policy says, ended when asked.

mod giving_up;

use procyard::grpc::pb::restart::Policy;
use procyard::grpc::pb::{self, Cause, Kind, Mode, Outcome, State};
use tonic::Code;

use crate::support::service::*;
use crate::support::{Gate, alive, soon};

fn owned(owner: &str, spec: pb::Spec) -> pb::Spec {
    pb::Spec { owner: owner.into(), ..spec }
}

fn select(selector: pb::Selector) -> pb::KillRequest {
    let target = Some(pb::kill_request::Target::Selector(selector));
    pb::KillRequest { target, force: true, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_a_name_is_live_at_a_time_per_owner_and_workspace() {
    let service = TestService::start();
    let mut client = service.client().await;
    let web = || as_service("web", shell("sleep 600"));
    begin(&mut client, "first", owned("ann", web())).await;
    let refused = soon(client.start(start("second", owned("ann", web())))).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused)), (Code::AlreadyExists, "SERVICE_RUNNING".into()));
    let metadata = details(&refused).error_info().unwrap().metadata.clone();
    assert_eq!((&metadata["id"][..], &metadata["service"][..]), ("first", "web"));
    assert!(refused.message().contains("first"), "{}", refused.message());
    // The same start is no second one.
    let again = soon(client.start(start("first", owned("ann", web())))).await.unwrap();
    assert!(again.into_inner().existed);
    begin(&mut client, "bobs", owned("bob", web())).await;
    let elsewhere = pb::Spec { workspace: "w".into(), ..owned("ann", web()) };
    begin(&mut client, "elsewhere", elsewhere).await;
    begin(&mut client, "db", owned("ann", as_service("db", shell("sleep 600")))).await;
    // When it has ended its name is free, and its record does not stand in the way.
    soon(client.kill(kill_at_once("first"))).await.unwrap();
    begin(&mut client, "third", owned("ann", web())).await;
    let answer = soon(client.run(run_again("first"))).await;
    assert_eq!(refusal(answer), (Code::AlreadyExists, "SERVICE_RUNNING".into()));
    // Also after the server was replaced.
    service.kill_server();
    let mut client = service.client().await;
    let answer = soon(client.start(start("fourth", owned("ann", web())))).await;
    assert_eq!(refusal(answer), (Code::AlreadyExists, "SERVICE_RUNNING".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_starts_of_one_service_at_once_start_one() {
    let service = TestService::start();
    let client = service.client().await;
    let starts = (0..16).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move {
            soon(client.start(start("", as_service("web", shell("sleep 600"))))).await
        })
    });
    let mut started = 0;
    for start in starts.collect::<Vec<_>>() {
        match start.await.unwrap() {
            Ok(_) => started += 1,
            Err(status) => assert_eq!(reason(&status), "SERVICE_RUNNING"),
        }
    }
    assert_eq!((started, service.inmates().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_fails_is_started_again_and_its_transcript_goes_on() {
    let service = TestService::start();
    let mut client = service.client().await;
    let counter = service.directory.path().join("n");
    let line = format!(
        "echo x >>{0}; n=$(wc -l <{0}); echo launch $n of run $PROCYARD_RUN; test $n -ge 3",
        counter.display()
    );
    let spec = restarted(Policy::OnFailure, shell(&line));
    let answer = finish(&mut client, "a", spec).await;
    let process = answer.process.unwrap();
    assert_eq!((process.restarts, process.run), (2, 1));
    assert_eq!(exit(&process).outcome(), Outcome::Succeeded);
    let lines = "launch 1 of run 1\nlaunch 2 of run 1\nlaunch 3 of run 1\n";
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), lines);
    let seqs: Vec<u64> = answer.chunks.iter().map(|chunk| chunk.seq).collect();
    assert_eq!(seqs, [1, 2, 3]);
    assert_eq!(answer.chunks[2].offset, 36);
    let expected = [
        Kind::Started,
        Kind::Restarting,
        Kind::Started,
        Kind::Restarting,
        Kind::Started,
        Kind::Completed,
    ];
    assert_eq!(story(&mut client, "a").await, expected);
    let told = events(&mut client).await;
    let pausing = told[1].process.as_ref().unwrap();
    assert_eq!(pausing.state(), State::Backoff);
    assert_eq!(pausing.exit.as_ref().unwrap().code, Some(1), "how it ended is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_follower_follows_over_all_restarts() {
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = Gate::new(service.directory.path());
    let line = format!("echo up; read x <{}; echo down; exit 1", gate.path);
    let restart = pb::Restart {
        policy: Policy::Always.into(),
        max_restarts: 2,
        backoff_min: Some(millis(10)),
        ..Default::default()
    };
    let spec = pb::Spec { restart: Some(restart), ..as_service("s", shell(&line)) };
    begin(&mut client, "a", spec).await;
    let request = pb::FollowRequest { id: "a".into(), ..Default::default() };
    let mut stream = soon(client.follow(request)).await.unwrap().into_inner();
    let mut gate = gate;
    let (mut all, mut last) = (String::new(), 0);
    while let Some(answer) = soon(stream.message()).await.unwrap() {
        match answer.message.unwrap() {
            pb::follow_response::Message::Chunk(chunk) => {
                assert_eq!(chunk.seq, last + 1);
                last = chunk.seq;
                let text = String::from_utf8_lossy(&chunk.data).into_owned();
                if text.contains("up") {
                    gate.open(1);
                }
                all.push_str(&text);
            }
            pb::follow_response::Message::End(end) => {
                let process = end.process.unwrap();
                let message = &exit(&process).message;
                assert_eq!(message, "gave up after 2 restarts; the last launch exited with code 1");
            }
            pb::follow_response::Message::Gap(gap) => panic!("{gap:?}"),
            pb::follow_response::Message::Heartbeat(_) => {}
        }
    }
    assert_eq!(all, "up\ndown\n".repeat(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_ends_a_service_that_waits_for_its_restart() {
    let service = TestService::start();
    let mut client = service.client().await;
    let restart = pb::Restart {
        policy: Policy::OnFailure.into(),
        backoff_min: Some(millis(3_600_000)),
        ..Default::default()
    };
    let spec = pb::Spec { restart: Some(restart), ..as_service("s", shell("echo said; exit 7")) };
    begin(&mut client, "a", spec).await;
    let mut watcher = Watcher::since(&mut client, 0).await;
    watcher.next(Kind::Restarting).await;
    let pausing = get(&mut client, "a").await;
    assert_eq!((pausing.state(), pausing.restarts), (State::Backoff, 1));
    let answer = soon(client.run(run_by_force("a"))).await;
    assert_eq!(refusal(answer), (Code::FailedPrecondition, "STILL_RUNNING".into()));
    // It waits on when the server is replaced.
    service.kill_server();
    let mut client = service.client().await;
    assert_eq!(get(&mut client, "a").await.state(), State::Backoff);
    let killed = soon(client.kill(kill("a"))).await.unwrap().into_inner();
    let exit = exit(&killed.processes[0]);
    assert_eq!(
        (exit.cause(), exit.outcome(), exit.code),
        (Cause::Killed, Outcome::Canceled, Some(7))
    );
    assert_eq!(printed(&mut client, "a").await, "said\n");
    let expected = [Kind::Started, Kind::Restarting, Kind::Completed];
    assert_eq!(story(&mut client, "a").await, expected);
    soon(client.kill(kill("a"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_service_stays_ended_whatever_its_policy() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "a", restarted(Policy::Always, shell("sleep 600"))).await;
    let killed = soon(client.kill(kill("a"))).await.unwrap().into_inner();
    assert_eq!(exit(&killed.processes[0]).cause(), Cause::Killed);
    assert_eq!(story(&mut client, "a").await, [Kind::Started, Kind::Stopping, Kind::Completed]);
    // A signal that is not procyard's is a failure.
    let process =
        begin(&mut client, "b", restarted(Policy::OnFailure, shell("exec sleep 600"))).await;
    kill_pid(process.pid.cast_signed(), libc::SIGKILL);
    let mut watcher = Watcher::since(&mut client, 0).await;
    let event = watcher.next(Kind::Restarting).await;
    assert_eq!(event.process.unwrap().exit.unwrap().signal, Some(9));
    soon(client.kill(kill_at_once("b"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn descendants_of_a_launch_are_ended_before_the_next() {
    let service = TestService::start();
    let mut client = service.client().await;
    let first = service.directory.path().join("first");
    let line = format!(
        "if mkdir {0}; then setsid sleep 600 & echo $! >{0}/pid; exit 1; fi; echo ready; sleep 600",
        first.display()
    );
    begin_ready(&mut client, "a", restarted(Policy::OnFailure, shell(&line))).await;
    let pid: u32 = std::fs::read_to_string(first.join("pid")).unwrap().trim().parse().unwrap();
    assert!(!alive(pid));
    soon(client.kill(kill_at_once("a"))).await.unwrap();
    assert_eq!(service.inmates(), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_by_selector_ends_all_that_match_and_services_only_when_asked() {
    let service = TestService::start();
    let mut client = service.client().await;
    let sleep = || argv(&["sleep", "600"]);
    begin(&mut client, "a", owned("ann", sleep())).await;
    begin(&mut client, "b", owned("ann", sleep())).await;
    begin(&mut client, "waits", owned("ann", in_queue("q", sleep()))).await;
    begin(&mut client, "waits-too", owned("ann", in_queue("q", sleep()))).await;
    begin(&mut client, "web", owned("ann", as_service("web", sleep()))).await;
    begin(&mut client, "bobs", owned("bob", sleep())).await;
    finish(&mut client, "done", owned("ann", shell("true"))).await;
    let empty = soon(client.kill(select(pb::Selector::default()))).await.unwrap_err();
    assert_eq!(
        (empty.code(), bad_fields(&empty)),
        (Code::InvalidArgument, vec!["selector".into()])
    );
    let ann = || pb::Selector { owner: "ann".into(), ..Default::default() };
    let killed = soon(client.kill(select(ann()))).await.unwrap().into_inner();
    assert_eq!(ids(&killed.processes), ["a", "b", "waits", "waits-too"]);
    assert_eq!(killed.killed.len(), 3);
    for process in &killed.processes {
        assert_eq!(exit(process).outcome(), Outcome::Canceled);
    }
    assert_eq!(get(&mut client, "web").await.state(), State::Running);
    assert_eq!(get(&mut client, "bobs").await.state(), State::Running);
    assert_eq!(soon(client.kill(select(ann()))).await.unwrap().into_inner().processes, []);
    let services = pb::Selector { mode: Mode::Service.into(), ..ann() };
    let killed = soon(client.kill(select(services))).await.unwrap().into_inner();
    assert_eq!(ids(&killed.processes), ["web"]);
    begin(&mut client, "web2", owned("ann", as_service("web", sleep()))).await;
    let named = pb::Selector { service: "web".into(), ..Default::default() };
    let killed = soon(client.kill(select(named))).await.unwrap().into_inner();
    assert_eq!(ids(&killed.processes), ["web2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_watches_go_by_mode_and_service() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "web", as_service("web", shell("sleep 600"))).await;
    let foreground = pb::Spec { mode: Mode::Foreground.into(), ..shell("true") };
    finish(&mut client, "front", foreground).await;
    finish(&mut client, "back", shell("true")).await;
    let by = |selector| pb::ListRequest { selector: Some(selector), ..Default::default() };
    let mode = |mode: Mode| pb::Selector { mode: mode.into(), ..Default::default() };
    let named = pb::Selector { service: "web".into(), ..Default::default() };
    for (selector, expected) in [
        (mode(Mode::Service), "web"),
        (mode(Mode::Foreground), "front"),
        (mode(Mode::Background), "back"),
        (named.clone(), "web"),
    ] {
        let page = soon(client.list(by(selector))).await.unwrap().into_inner();
        assert_eq!(ids(&page.processes), [expected]);
    }
    let request = pb::WatchRequest {
        selector: Some(named),
        since_event: Some(0),
        replay_only: true,
        ..Default::default()
    };
    let mut watcher = Watcher::open(&mut client, request).await;
    assert_eq!(watcher.event().await.unwrap().process_id, "web");
    assert_eq!(watcher.event().await, None);
}

/// A service that is not restarted before a kill can come.
fn pausing(line: &str) -> pb::Spec {
    let restart = pb::Restart {
        policy: Policy::OnFailure.into(),
        backoff_min: Some(millis(3_600_000)),
        ..Default::default()
    };
    pb::Spec { restart: Some(restart), ..as_service("s", shell(line)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_while_a_service_is_stopped_for_another_reason_ends_it_for_good() {
    let service = TestService::start();
    let mut client = service.client().await;
    for (id, kill_the_server) in [("a", false), ("b", true)] {
        // Its time is over soon, and it takes no notice: it has set its trap before.
        let spec = restarted(Policy::Always, stubborn(3_600_000));
        let spec = pb::Spec { timeout: Some(millis(8000)), service: id.into(), ..spec };
        let mut client = service.client().await;
        begin(&mut client, id, spec).await;
        let mut watcher = Watcher::since(&mut client, 0).await;
        while watcher.next(Kind::Stopping).await.process_id != id {}
        let mut killing = client.clone();
        // Long enough for the server to be killed meanwhile.
        let grace = Some(millis(if kill_the_server { 10_000 } else { 100 }));
        let kill_it = pb::KillRequest { grace, ..kill(id) };
        let mut killed = std::pin::pin!(soon(killing.kill(kill_it)));
        if kill_the_server {
            // Sent after it, and answered when both are recorded.
            tokio::select! {
                biased;
                answer = &mut killed => panic!("{answer:?}"),
                _ = begin(&mut client, "after", shell("true")) => {}
            }
            service.kill_server();
            assert!(killed.await.is_err());
        } else {
            let answer = killed.await.unwrap().into_inner();
            assert_eq!(exit(&answer.processes[0]).cause(), Cause::TimedOut);
        }
        let mut client = service.client().await;
        assert_eq!(exit(&ended(&mut client, id).await).outcome(), Outcome::TimedOut);
        let told = [Kind::Started, Kind::Stopping, Kind::Completed];
        assert_eq!(story(&mut client, id).await, told);
    }
    assert_eq!(list(&mut client).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_the_pause_ends_descendants_too_and_so_does_a_delete_by_force() {
    let service = TestService::start();
    let mut client = service.client().await;
    for by_delete in [false, true] {
        begin(&mut client, "a", pausing("setsid sleep 600 & echo $!; exit 1")).await;
        let latest = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
        let since = latest.into_inner().counts.unwrap().latest_event.saturating_sub(2);
        Watcher::since(&mut client, since).await.next(Kind::Restarting).await;
        let pid: u32 = printed(&mut client, "a").await.trim().parse().unwrap();
        assert!(alive(pid));
        assert_eq!(get(&mut client, "a").await.lingering[0].pid, pid);
        let delete = pb::DeleteRequest { id: "a".into(), force: true, ..Default::default() };
        if by_delete {
            soon(client.delete(delete)).await.unwrap();
            assert!(!alive(pid));
        } else {
            let killed = soon(client.kill(kill("a"))).await.unwrap().into_inner();
            assert!(!alive(pid));
            assert_eq!(killed.killed[0].pid, pid);
            soon(client.delete(delete)).await.unwrap();
        }
    }
    assert_eq!(service.inmates(), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_cannot_be_started_any_more_is_given_up_and_keeps_its_transcript() {
    let service = TestService::start();
    let mut client = service.client().await;
    let program = service.directory.path().join("program");
    let write = |text: &str| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    write("#!/bin/sh\necho said; rm $0; exit 1\n");
    let mut spec = restarted(Policy::Always, argv(&[program.to_str().unwrap()]));
    let give_up = pb::restart::GiveUp { starts: 5, within: Some(millis(3_600_000)) };
    spec.restart.as_mut().unwrap().give_up = Some(give_up);
    let process = finish(&mut client, "a", spec.clone()).await.process.unwrap();
    let failed = exit(&process);
    assert_eq!((failed.cause(), process.restarts), (Cause::GaveUp, 4));
    let said = "gave up after 5 starts within 3600s; the last launch: could not be started: ";
    assert!(failed.message.starts_with(said), "{failed:?}");
    assert_eq!(printed(&mut client, "a").await, "said\n");
    service.kill_server();
    let mut client = service.client().await;
    assert_eq!(printed(&mut client, "a").await, "said\n");
    // Of a new run the first start must succeed.
    let answer = soon(client.run(run_by_force("a"))).await;
    assert_eq!(refusal(answer), (Code::FailedPrecondition, "SPAWN_FAILED".into()));
    assert_eq!(get(&mut client, "a").await.state(), State::Exited);
    let again = soon(client.start(start("a", spec))).await.unwrap().into_inner();
    assert!(again.existed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_of_many_answers_within_what_clients_take() {
    let service = TestService::start();
    let mut client = service.client().await;
    for n in 0..6 {
        let script = pb::Script {
            code: format!("sleep 600 # {}", "x".repeat(1_000_000)),
            ..Default::default()
        };
        let program = Some(pb::spec::Program::Script(script));
        let spec = pb::Spec { program, ..Default::default() };
        begin(&mut client, &format!("p{n}"), owned("ann", spec)).await;
    }
    let mut usual = Client::new(service.channel().await);
    let ann = pb::Selector { owner: "ann".into(), ..Default::default() };
    let killed = soon(usual.kill(select(ann))).await.unwrap().into_inner();
    assert_eq!((killed.processes.len(), killed.not_listed), (6, 0));
    assert_eq!(killed.processes[0].spec.as_ref().unwrap().program, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_terminal_is_empty_and_of_its_first_size_and_a_new_size_survives_the_server() {
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = Gate::new(service.directory.path());
    let first = service.directory.path().join("first");
    let line = format!(
        "if mkdir {} 2>/dev/null; then echo one; read x <{}; exit 1; fi; echo two; exec sleep 600",
        first.display(),
        gate.path
    );
    let spec = restarted(Policy::OnFailure, on_terminal(shell(&line)));
    let request = pb::StartRequest { wait: Some(until_output("one")), ..start("a", spec) };
    soon(client.start(request)).await.unwrap();
    let resize = pb::ResizeRequest { id: "a".into(), rows: 5, cols: 40 };
    soon(client.resize(resize.clone())).await.unwrap();
    let shown = screen(&mut client, "a").await;
    assert_eq!((shown.rows.len(), &shown.rows[0][..]), (5, "one"));
    service.kill_server();
    let mut client = service.client().await;
    let shown = screen(&mut client, "a").await;
    assert_eq!((shown.rows.len(), &shown.rows[0][..]), (5, "one"));
    let mut gate = gate;
    gate.open(1);
    let wait = pb::WaitRequest { wait: Some(until_output("two\r\n")), ..wait_for_it("a") };
    assert!(soon(client.wait(wait)).await.unwrap().into_inner().wait.unwrap().met);
    let shown = screen(&mut client, "a").await;
    assert_eq!((shown.rows.len(), &shown.rows[0][..]), (24, "two"));
    let request = pb::ReadRequest { id: "a".into(), ..Default::default() };
    let all = soon(client.read(request)).await.unwrap().into_inner().chunks;
    assert_eq!(text(&all, pb::Stream::Terminal), "one\r\ntwo\r\n", "all of it is kept");
    // The last size of one that has ended is known to the next server, too.
    soon(client.resize(resize)).await.unwrap();
    soon(client.kill(kill_at_once("a"))).await.unwrap();
    service.kill_server();
    let mut client = service.client().await;
    assert_eq!(screen(&mut client, "a").await.rows.len(), 5);
}
