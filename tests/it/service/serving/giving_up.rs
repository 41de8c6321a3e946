//! How long a service that fails again and again is restarted.

use super::*;
use crate::support::cpu_ticks;

/// Restarts with short pauses; what bounds them is the caller's to set.
fn failing(change: impl FnOnce(&mut pb::Restart)) -> pb::Spec {
    let mut spec = restarted(Policy::Always, shell("exit 1"));
    let restart = spec.restart.as_mut().unwrap();
    restart.backoff_min = Some(millis(1));
    restart.backoff_max = Some(millis(20));
    change(restart);
    spec
}

async fn restarts_reach(client: &mut Client, count: u32) {
    let reached = async { while get(client, "a").await.restarts < count {} };
    soon(reached).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_service_is_never_given_up_by_default() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "a", failing(|_| {})).await;
    restarts_reach(&mut client, 10).await;
    let ticks = || cpu_ticks(service.server_pid().cast_unsigned()) + cpu_ticks(service.child.id());
    let (before, begin) = (ticks(), get(&mut client, "a").await.restarts);
    let mut watcher = Watcher::since(&mut client, 0).await;
    for _ in 0..begin + 50 {
        watcher.next(Kind::Restarting).await;
    }
    let spent = ticks() - before;
    assert_ne!(get(&mut client, "a").await.state(), State::Exited);
    // With pauses of a minute there are 1448 restarts a day. 0.1 % of a CPU leaves 60 ms to each;
    // a tick is 10 ms.
    assert!(spent < 50 * 6, "{spent} ticks for 50 restarts");
    let killed = soon(client.kill(kill("a"))).await.unwrap().into_inner();
    assert_eq!(exit(&killed.processes[0]).cause(), Cause::Killed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn max_restarts_is_honoured_exactly_and_ps_shows_it() {
    let service = TestService::start();
    let mut client = service.client().await;
    let spec = failing(|restart| restart.max_restarts = 7);
    let process = finish(&mut client, "a", spec).await.process.unwrap();
    assert_eq!(process.restarts, 7);
    let started = story(&mut client, "a").await.into_iter().filter(|kind| *kind == Kind::Started);
    assert_eq!(started.count(), 8);
    let last = exit(&process);
    assert_eq!(
        (last.cause(), last.outcome(), last.code),
        (Cause::GaveUp, Outcome::Failed, Some(1))
    );
    assert_eq!(last.message, "gave up after 7 restarts; the last launch exited with code 1");
    let shown = service.procyard(&["ps", "--all"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(" gave up 1 "), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_starts_in_a_given_time_end_a_service() {
    let service = TestService::start();
    let mut client = service.client().await;
    let within = Some(millis(3_600_000));
    let give_up = Some(pb::restart::GiveUp { starts: 3, within });
    let spec = failing(|restart| restart.give_up = give_up);
    let process = finish(&mut client, "a", spec).await.process.unwrap();
    let last = exit(&process);
    assert_eq!((last.cause(), process.restarts), (Cause::GaveUp, 2));
    assert_eq!(
        last.message,
        "gave up after 3 starts within 3600s; the last launch exited with code 1"
    );
    assert_eq!(process.spec.unwrap().restart.unwrap().give_up, give_up);
}

#[test]
fn run_waits_for_a_service_until_it_gave_up() {
    let service = TestService::start();
    let flags = ["run", "--service", "s", "--restart", "always", "--max-restarts", "1"];
    let command = ["--", "sh", "-c", "echo ran"];
    let done = service.procyard(&[&flags[..], &command].concat()).output().unwrap();
    assert_eq!(done.stdout, b"ran\nran\n");
    assert_eq!(done.status.code(), Some(125), "{done:?}");
}
