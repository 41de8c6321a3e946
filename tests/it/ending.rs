//! Ends: each is told once, as it was, after the last byte, and leaves nothing in the keeper.

use std::collections::HashMap;

use procyard::keeper_client::Spawned;
use procyard::process::{Io, Refused, Status};
use rustix::process::{Pid, Resource, getrlimit};

use crate::support::*;

/// Pipes for some, terminals for others.
fn either(n: usize) -> Io {
    [PIPES, TERMINAL, STDIN][n % 3]
}

#[tokio::test]
async fn every_exit_code_is_told_as_it_was() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut started = Vec::new();
    for code in 0..256 {
        let spawned = server.sh(&format!("exit {code}"), either(code as usize)).await;
        started.push((spawned.key, code));
    }
    for (key, code) in started {
        let exit = server.exit(key).await;
        assert_eq!((exit.status, exit.core_dumped), (Status::Code(code), false));
    }
}

#[tokio::test]
async fn whoever_follows_the_output_learns_the_status_with_the_end_and_so_does_the_next_server() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut ended = Vec::new();
    for (line, status) in [("cat; exit 7", Status::Code(7)), ("cat; kill -9 $$", Status::Signal(9))]
    {
        let spawned = server.sh(line, STDIN).await;
        assert_eq!(spawned.output.progress().status, None);
        soon(server.keeper.close(spawned.key)).await.unwrap();
        let mut output = spawned.output.clone();
        let over = soon(output.wait_until(|progress| progress.final_seq.is_some())).await.unwrap();
        assert_eq!(over.status, Some(status));
        ended.push((spawned.key, Some(status)));
    }
    drop(server);
    let server = keeper.connect().await;
    let adopted = server.adopted.iter().map(|held| (held.key, held.output.progress().status));
    assert_eq!(adopted.collect::<Vec<_>>(), ended);
}

#[tokio::test]
async fn every_signal_that_ends_is_told_as_it_was() {
    let harmless = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGURG,
        libc::SIGWINCH,
        libc::SIGSTOP,
        // These stop nobody whose parents are all in another session.
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ];
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut started = Vec::new();
    for signal in (1..=64).filter(|signal| !harmless.contains(signal)) {
        let io = either(signal as usize);
        let sent = server.sh("exec sleep 600", io).await;
        soon(server.keeper.signal(sent.key, signal, signal % 2 == 0)).await.unwrap();
        started.push((sent.key, signal));
        // libc keeps two for itself, and shells do not know them.
        if !matches!(signal, 32 | 33) {
            let own = server.sh(&format!("kill -{signal} $$; exit 1"), io).await;
            started.push((own.key, signal));
        }
    }
    for (key, signal) in started {
        assert_eq!(server.exit(key).await.status, Status::Signal(signal));
    }
}

#[tokio::test]
async fn a_stopped_process_has_not_exited() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for io in [PIPES, TERMINAL] {
        let stopped = server.sh("kill -STOP $$; exit 9", io).await;
        until("it has stopped", || stat(stopped.pid)[0] == "T").await;
        // The keeper sees an end that came after the stop, so it saw the stop.
        assert_eq!(server.output("exit 1", io).await.0, Status::Code(1));
        assert_eq!(stopped.output.progress().final_seq, None, "a stop was taken for an end");
        soon(server.keeper.signal(stopped.key, libc::SIGCONT, false)).await.unwrap();
        assert_eq!(server.exit(stopped.key).await.status, Status::Code(9));
    }
}

#[tokio::test]
async fn a_program_that_fails_is_not_one_that_never_started() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for io in [PIPES, TERMINAL] {
        for (line, code) in [("exit 127", 127), ("exec /no/such/program", 127), ("exit 126", 126)] {
            assert_eq!(server.output(&format!("{line} 2>&-"), io).await.0, Status::Code(code));
        }
        let launch = server.launch(&["/no/such/program"], io);
        assert!(matches!(server.refusal(launch).await, Refused::SpawnFailed { .. }));
    }
}

#[tokio::test]
async fn a_dumped_core_is_told() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if !pattern.starts_with("core") || pattern.contains('/') {
        return skip("cores do not go to the working directory here");
    }
    if !is_root() && getrlimit(Resource::Core).maximum.is_some() {
        return skip("cores are limited here");
    }
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for (most, dumps) in [(u64::MAX, true), (0, false)] {
        let directory = tempfile::tempdir().unwrap();
        let mut launch = server.shell("kill -SEGV $$", PIPES);
        launch.cwd = directory.path().to_str().unwrap().into();
        launch.rlimits = vec![(libc::RLIMIT_CORE, most)];
        let (exit, _) = server.run(launch).await;
        let written = std::fs::read_dir(directory.path()).unwrap().count() > 0;
        assert_eq!(exit.status, Status::Signal(libc::SIGSEGV));
        assert_eq!((exit.core_dumped, written), (dumps, dumps));
    }
}

#[tokio::test]
async fn usage_is_that_of_the_process_and_of_those_it_waited_for() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut usages = Vec::new();
    let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let large = "dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null; true";
    for line in ["exit 0", busy, large] {
        let launch = server.shell(line, PIPES);
        usages.push(server.run(launch).await.0.usage);
    }
    let [idle, busy, large] = usages[..] else { unreachable!() };
    assert!(busy.user_micros > 10_000 && busy.user_micros > idle.user_micros, "{busy:?}");
    assert!(busy.user_micros < 60_000_000, "{busy:?}");
    assert!((64 << 20..1 << 30).contains(&large.max_rss_bytes), "{large:?}");
    assert!((64 << 10..64 << 20).contains(&idle.max_rss_bytes), "{idle:?}");
    assert!(idle.minor_faults > 0 && large.minor_faults > idle.minor_faults);
}

#[tokio::test]
async fn five_hundred_that_end_at_once_are_five_hundred_exits() {
    const ALL: usize = 500;
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let before = keeper.descriptors();
    let mut gate = Gate::new(keeper.directory.path());
    let mut started: HashMap<u64, (Spawned, i32)> = HashMap::new();
    for n in 0..ALL {
        let line = format!("read x <{}; exit {}", gate.path, n % 256);
        let spawned = server.sh(&line, [PIPES, STDIN][n % 2]).await;
        started.insert(spawned.key, (spawned, n as i32 % 256));
    }
    gate.open(ALL);
    for (key, (spawned, code)) in &started {
        let exit = server.exit(*key).await;
        assert_eq!(exit.status, Status::Code(*code));
        assert!(exit.time >= spawned.start_time, "ended before it began");
        soon(server.keeper.release(*key)).await.unwrap();
    }
    assert_eq!(started.len(), ALL);
    assert_eq!(zombies(keeper.pid()), Vec::<u32>::new());
    keeper.has_closed_all_since(before).await;
    assert_eq!(children(keeper.pid()), Vec::<u32>::new());
    // Were an exit told twice, the second would have come before this one.
    assert_eq!(server.output("echo hi", PIPES).await, (Status::Code(0), "hi\n".into()));
}

#[tokio::test]
async fn what_ends_before_its_start_was_answered_is_told_too() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let before = keeper.descriptors();
    let mut starts = tokio::task::JoinSet::new();
    for n in 0..500 {
        let launch = server.launch(&["true"], either(n));
        let handle = server.keeper.clone();
        starts.spawn(async move { handle.spawn(launch).await.unwrap() });
    }
    while let Some(spawned) = soon(starts.join_next()).await {
        let spawned = spawned.unwrap();
        let exit = server.exit(spawned.key).await;
        assert_eq!((exit.status, exit.lingering), (Status::Code(0), vec![]));
        soon(server.keeper.release(spawned.key)).await.unwrap();
    }
    keeper.has_closed_all_since(before).await;
    assert_eq!(children(keeper.pid()), Vec::<u32>::new());
}

/// Has 200 orphans made: some end before their maker does, some after.
async fn adopts_and_reaps(keeper: &TestKeeper) {
    let mut server = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let line = format!(
        "n=0; while [ $n -lt 100 ]; do n=$((n+1)); \
         (true &); (setsid sh -c 'read x <{}' &); done",
        gate.path
    );
    let launch = server.shell(&line, PIPES);
    let maker = server.spawn(launch).await;
    let exit = server.exit(maker.key).await;
    assert_eq!(exit.status, Status::Code(0));
    until("all orphans are the keeper's", || children(keeper.pid()).len() == 100).await;
    assert!(exit.lingering.len() >= 100, "only {} linger", exit.lingering.len());
    gate.open(100);
    until("no orphan is left, not even dead", || children(keeper.pid()).is_empty()).await;
    soon(server.keeper.release(maker.key)).await.unwrap();
    assert_eq!(server.output("echo hi", TERMINAL).await, (Status::Code(0), "hi\r\n".into()));
}

#[tokio::test]
async fn orphans_are_adopted_and_reaped_by_a_subreaper() {
    adopts_and_reaps(&TestKeeper::start()).await;
}

#[tokio::test]
async fn orphans_are_adopted_and_reaped_by_pid_1() {
    let Some(keeper) = TestKeeper::start_as_init() else {
        return skip("a namespace of pids cannot be had");
    };
    assert_eq!(keeper.connect().await.welcome.pid, 1);
    adopts_and_reaps(&keeper).await;
}

#[tokio::test]
async fn the_last_output_before_an_exit_is_complete() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let file = keeper.directory.path().join("bytes");
    for size in [1, 4 << 10, 64 << 10, 1 << 20] {
        let mut state = 88_172_645_463_325_252_u64;
        let printed: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .take(size)
        .collect();
        std::fs::write(&file, &printed).unwrap();
        for run in 0..6 {
            for io in [PIPES, TERMINAL] {
                let end = ["exit 5", "kill -KILL $$"][run % 2];
                let launch = server.shell(&format!("cat {}; {end}", file.display()), io);
                let (exit, chunks) = server.run(launch).await;
                let expected = [Status::Code(5), Status::Signal(9)][run % 2];
                assert_eq!(exit.status, expected);
                let same = bytes(&chunks) == as_shown(&printed, io);
                assert!(same, "{} of {size} bytes on {io:?}", bytes(&chunks).len());
                let last = chunks.last().unwrap().seq;
                assert_eq!(exit.final_seq, last + 1);
            }
        }
    }
}

#[tokio::test]
async fn what_is_started_after_a_kill_does_not_die_of_it() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for io in [PIPES, TERMINAL].repeat(5) {
        let killed = server.sh("sleep 600 & exec sleep 600", io).await;
        let ended = soon(server.keeper.kill_tree(killed.key, libc::SIGKILL)).await.unwrap();
        assert_eq!(ended[0].pid, killed.pid);
        assert_eq!(server.exit(killed.key).await.status, Status::Signal(9));
        soon(server.keeper.release(killed.key)).await.unwrap();
        assert_eq!(server.output("exit 2", io).await.0, Status::Code(2));
    }
}

#[tokio::test]
async fn a_server_that_comes_after_the_end_is_told_of_it() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let spawned = server.sh("read x; echo bye; exit 3", STDIN).await;
    drop(server);
    let pid = Pid::from_raw(spawned.pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("it was reaped", || state(spawned.pid).is_none()).await;
    let server = keeper.connect().await;
    let [adopted] = &server.adopted[..] else { panic!("{:?}", server.adopted) };
    let status = adopted.exit.as_ref().map(|exit| exit.status);
    assert_eq!((adopted.pid, status), (spawned.pid, Some(Status::Signal(9))));
}
