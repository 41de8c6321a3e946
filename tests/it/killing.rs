//! Killing ends the whole tree, wherever its members went, and nobody else.

use std::time::Duration;

use procyard::keeper_client::{KeeperError, Spawned};
use procyard::process::{Descendant, Io, KillDomain, Launch, Refused, Status, User};
use procyard::protocol::pb;

use crate::support::*;

/// Runs a test with a keeper that has cgroups, where it can, and with one that has to walk.
async fn in_both_domains(test: impl AsyncFn(&TestKeeper, &mut Server)) {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    test(&keeper, &mut server).await;
    if server.welcome.kill_domain == KillDomain::Walk {
        return skip("no cgroup leaf can be made here: tried with a walk only");
    }
    let keeper = TestKeeper::start_without_cgroups();
    let mut server = keeper.connect().await;
    assert_eq!(server.welcome.kill_domain, KillDomain::Walk);
    test(&keeper, &mut server).await;
}

/// Starts a shell line in the keeper's directory and waits for this many `sleep`s there.
async fn plant(keeper: &TestKeeper, server: &mut Server, line: &str, sleepers: usize) -> Spawned {
    plant_on(keeper, server, line, PIPES, sleepers).await
}

async fn plant_on(
    keeper: &TestKeeper,
    server: &mut Server,
    line: &str,
    io: Io,
    sleepers: usize,
) -> Spawned {
    let before = sleeping(keeper).len();
    let mut launch = server.shell(line, io);
    launch.cwd = keeper.directory.path().to_str().unwrap().into();
    let spawned = server.spawn(launch).await;
    until("all sleep", || sleeping(keeper).len() == before + sleepers).await;
    spawned
}

/// The `sleep`s among the keeper's inhabitants.
fn sleeping(keeper: &TestKeeper) -> Vec<u32> {
    let command = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let sleeps = |pid: &u32| command(pid).is_ok_and(|command| command == "sleep\n");
    keeper.inhabitants().into_iter().filter(sleeps).collect()
}

fn pids_of(members: &[Descendant]) -> Vec<u32> {
    members.iter().map(|member| member.pid).collect()
}

async fn kill(server: &Server, key: u64) -> Vec<u32> {
    pids_of(&soon(server.keeper.kill_tree(key, libc::SIGKILL)).await.unwrap())
}

/// Plants a tree, kills it, and finds all of it in the answer and none of it in the machine.
async fn is_ended_whole(line: &str, io: Io, sleepers: usize) {
    in_both_domains(async |keeper, server| {
        let spawned = plant_on(keeper, server, line, io, sleepers).await;
        let expected = [sleeping(keeper), vec![spawned.pid]].concat();
        let ended = kill(server, spawned.key).await;
        let missing: Vec<_> = expected.iter().filter(|pid| !ended.contains(pid)).collect();
        assert!(missing.is_empty(), "{missing:?} of {expected:?} are not among {ended:?}");
        assert_eq!(keeper.inhabitants(), Vec::<u32>::new());
        assert_eq!(server.exit(spawned.key).await.status, Status::Signal(libc::SIGKILL));
    })
    .await;
}

#[tokio::test]
async fn descendants_in_sessions_of_their_own_are_ended() {
    if !have(&["setsid"]) {
        return;
    }
    let line = "setsid sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000 & wait' & wait";
    is_ended_whole(line, PIPES, 3).await;
}

#[tokio::test]
async fn double_forked_daemons_are_ended() {
    if !have(&["setsid"]) {
        return;
    }
    let line = "(sleep 1000 &); (setsid sh -c '(setsid sleep 1000 &)' &); wait; sleep 1000; :";
    is_ended_whole(line, PIPES, 3).await;
}

#[tokio::test]
async fn descendants_in_groups_of_their_own_are_ended() {
    let line = "set -m; sleep 1000 & sleep 1000 | sleep 1000 & (sleep 1000 & wait) & wait";
    is_ended_whole(line, PIPES, 4).await;
    is_ended_whole(line, TERMINAL, 4).await;
}

#[tokio::test]
async fn descendants_that_scrubbed_their_environment_are_ended_with_their_parent() {
    if !have(&["setsid"]) {
        return;
    }
    is_ended_whole("env -i setsid -w sleep 1000 & wait", PIPES, 1).await;
}

#[tokio::test]
async fn descendants_that_ignore_every_signal_are_ended() {
    let line = "trap '' HUP INT QUIT TERM; sleep 1000 & (sleep 1000 & wait) & wait";
    is_ended_whole(line, TERMINAL, 2).await;
}

#[tokio::test]
async fn stopped_descendants_are_ended() {
    let line = "stop() { until grep -q sleep /proc/$1/comm; do :; done; kill -STOP $1; }; \
                sleep 1000 & stop $!; (sleep 1000 & stop $!; wait) & kill -STOP $$";
    is_ended_whole(line, PIPES, 2).await;
}

#[tokio::test]
async fn disowned_jobs_of_an_interactive_shell_are_ended() {
    if !have(&["bash"]) {
        return;
    }
    in_both_domains(async |keeper, server| {
        let mut launch = server.launch(&["bash", "--norc", "-i"], TERMINAL);
        launch.cwd = keeper.directory.path().to_str().unwrap().into();
        let bash = server.spawn(launch).await;
        let line = "sleep 1000 & disown; (sleep 1000 &); nohup sleep 1000 >log & disown -h\n";
        soon(server.keeper.write(bash.key, typed(line))).await.unwrap();
        until("all sleep", || sleeping(keeper).len() == 3).await;
        let expected = sleeping(keeper);
        let ended = kill(server, bash.key).await;
        assert!(expected.iter().all(|pid| ended.contains(pid)), "{expected:?} {ended:?}");
        assert_eq!(keeper.inhabitants(), Vec::<u32>::new());
    })
    .await;
}

/// The main thread of a program may end before the program does; then it looks like a zombie.
#[tokio::test]
async fn a_program_whose_main_thread_has_ended_is_ended() {
    if !have(&["python3"]) {
        return;
    }
    let program = "import ctypes, threading, time\n\
                   threading.Thread(target=time.sleep, args=(1000,)).start()\n\
                   ctypes.CDLL(None).pthread_exit(None)";
    in_both_domains(async |_, server| {
        let launch = server.launch(&["python3", "-c", program], PIPES);
        let spawned = server.spawn(launch).await;
        until("the main thread has ended", || state(spawned.pid) == Some('Z')).await;
        assert_eq!(kill(server, spawned.key).await, [spawned.pid]);
        assert_eq!(server.exit(spawned.key).await.status, Status::Signal(libc::SIGKILL));
    })
    .await;
}

/// 400 processes, half of which start the other half again as soon as it is killed.
#[tokio::test]
async fn a_fork_bomb_is_ended() {
    let line = "i=0; while [ $i -lt 200 ]; do i=$((i+1)); \
                (trap '' TERM; while :; do sleep 1000; done) & done; wait";
    is_ended_whole(line, PIPES, 200).await;
}

/// Processes that are never there for long: each forks its successor and exits. They take a
/// little time for it, or they would take all pids of the machine.
#[tokio::test]
async fn a_bomb_that_never_stands_still_is_ended() {
    if !have(&["perl"]) {
        return;
    }
    // Should it escape, it ends by itself.
    let bomb = |escape: &str| {
        format!(
            "$end = time + 30; sub comet {{ while (time < $end) {{ exit if fork; \
             select(undef, undef, undef, 0.005) }} exit }} \
             for (1..20) {{ if (!fork) {{ {escape}; comet() }} }} \
             $| = 1; print 'gone off'; sleep 30"
        )
    };
    in_both_domains(async |keeper, server| {
        for program in [bomb(""), bomb("setpgrp")] {
            let mut launch = server.launch(&["perl", "-e", &program], PIPES);
            launch.cwd = keeper.directory.path().to_str().unwrap().into();
            let bomb = server.spawn(launch).await;
            read_until(&bomb, "gone off").await;
            assert!(kill(server, bomb.key).await.contains(&bomb.pid));
            for _ in 0..10 {
                assert_eq!(
                    keeper.inhabitants(),
                    Vec::<u32>::new(),
                    "{:?}",
                    server.welcome.kill_domain
                );
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn neighbours_and_their_descendants_are_spared() {
    in_both_domains(async |keeper, server| {
        let line = "(sleep 1000 &); sleep 1000 & wait";
        let neighbour = plant(keeper, server, line, 2).await;
        let spared = sleeping(keeper);
        let victim = plant(keeper, server, line, 2).await;
        let ended = kill(server, victim.key).await;
        assert!(spared.iter().all(|pid| !ended.contains(pid) && alive(*pid)));
        assert!(alive(neighbour.pid));
        assert_eq!(sleeping(keeper).len(), 2);
    })
    .await;
}

#[tokio::test]
async fn what_lingers_after_an_exit_is_told_and_ended_by_a_kill() {
    in_both_domains(async |keeper, server| {
        let line = "(sleep 1000 &); sleep 1000 & exit 7";
        let spawned = plant(keeper, server, line, 2).await;
        let exit = server.exit(spawned.key).await;
        assert_eq!(exit.status, Status::Code(7));
        let mut lingering = pids_of(&exit.lingering);
        let mut expected = sleeping(keeper);
        lingering.sort_unstable();
        expected.sort_unstable();
        assert_eq!(lingering, expected);
        assert!(!spawned.output.progress().drained);
        let mut ended = kill(server, spawned.key).await;
        ended.sort_unstable();
        assert_eq!(ended, expected);
        assert_eq!(keeper.inhabitants(), Vec::<u32>::new());
        let mut output = spawned.output.clone();
        soon(output.wait_until(|progress| progress.drained)).await.unwrap();
    })
    .await;
}

/// Nothing but its cgroup tells whose it is.
#[tokio::test]
async fn an_orphan_that_hides_in_every_other_way_is_ended_in_its_cgroup() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    if !have(&["setsid"]) {
        return;
    }
    if server.welcome.kill_domain == KillDomain::Walk {
        return skip("no cgroup leaf can be made here");
    }
    let line = "env -i setsid sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done";
    let spawned = plant(&keeper, &mut server, line, 1).await;
    server.exit(spawned.key).await;
    let orphan = sleeping(&keeper);
    assert_eq!(kill(&server, spawned.key).await, orphan);
    assert_eq!(keeper.inhabitants(), Vec::<u32>::new());
}

#[tokio::test]
async fn term_reaches_all_of_a_tree_and_tells_whom() {
    in_both_domains(async |keeper, server| {
        let spawned = plant(keeper, server, "(sleep 1000 &); sleep 1000 & wait", 2).await;
        let mut expected = [sleeping(keeper), vec![spawned.pid]].concat();
        let reached = soon(server.keeper.kill_tree(spawned.key, libc::SIGTERM)).await.unwrap();
        assert_eq!(reached[0].pid, spawned.pid, "the process itself comes first");
        let mut reached = pids_of(&reached);
        reached.sort_unstable();
        expected.sort_unstable();
        assert_eq!(reached, expected);
        assert_eq!(server.exit(spawned.key).await.status, Status::Signal(libc::SIGTERM));
        until("all are gone", || keeper.inhabitants().is_empty()).await;
    })
    .await;
}

#[tokio::test]
async fn a_process_that_ignores_term_is_ended_by_a_later_kill() {
    in_both_domains(async |keeper, server| {
        let line = "trap '' TERM; echo ready; while :; do sleep 1000; done";
        let spawned = plant(keeper, server, line, 1).await;
        let reached = soon(server.keeper.kill_tree(spawned.key, libc::SIGTERM)).await.unwrap();
        assert!(pids_of(&reached).contains(&spawned.pid));
        soon(server.keeper.signal(spawned.key, libc::SIGTERM, true)).await.unwrap();
        assert!(alive(spawned.pid));
        kill(server, spawned.key).await;
        assert_eq!(server.exit(spawned.key).await.status, Status::Signal(libc::SIGKILL));
        assert_eq!(keeper.inhabitants(), Vec::<u32>::new());
    })
    .await;
}

#[tokio::test]
async fn a_stopped_tree_takes_term_because_it_is_continued() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let line = "trap 'echo bye; exit 3' TERM; sleep 1000 & until grep -q sleep /proc/$!/comm; \
                do :; done; kill -STOP $! $$; wait";
    let spawned = plant(&keeper, &mut server, line, 1).await;
    let both = [spawned.pid, sleeping(&keeper)[0]];
    until("both are stopped", || both.map(state) == [Some('T'), Some('T')]).await;
    soon(server.keeper.kill_tree(spawned.key, libc::SIGTERM)).await.unwrap();
    assert_eq!(server.exit(spawned.key).await.status, Status::Code(3));
    assert_eq!(text(&read_all(&spawned).await), "bye\n");
    until("all are gone", || keeper.inhabitants().is_empty()).await;
}

#[tokio::test]
async fn kills_at_once_and_again_are_all_answered() {
    in_both_domains(async |keeper, server| {
        let spawned = plant(keeper, server, "sleep 1000 & sleep 1000 & wait", 2).await;
        let asked = server.keeper.clone();
        let kill = || asked.kill_tree(spawned.key, libc::SIGKILL);
        let (one, two, three) = soon(async { tokio::join!(kill(), kill(), kill()) }).await;
        assert!([one, two, three].iter().all(|answer| answer.as_ref().unwrap().len() <= 3));
        assert_eq!(keeper.inhabitants(), Vec::<u32>::new());
        for signal in [libc::SIGKILL, libc::SIGTERM] {
            assert_eq!(soon(asked.kill_tree(spawned.key, signal)).await, Ok(vec![]));
        }
        server.exit(spawned.key).await;
        soon(asked.release(spawned.key)).await.unwrap();
        let gone = Err(KeeperError::Refused(Refused::UnknownProcess));
        assert_eq!(soon(asked.kill_tree(spawned.key, libc::SIGKILL)).await, gone);
    })
    .await;
}

#[test]
fn a_kill_is_answered_after_the_exit_was_told() {
    let keeper = TestKeeper::start();
    let mut server = RawServer::connect(&keeper);
    let launch = Launch::new("sleeper", ["/bin/sleep", "1000"]);
    let pb::reply::Result::Spawned(spawned) = server.ask(pb::to_keeper::Body::Spawn(launch.into()))
    else {
        panic!("not spawned");
    };
    let kill = pb::KillTree { key: spawned.key, signal: libc::SIGKILL };
    server.ask(pb::to_keeper::Body::KillTree(kill));
    let tells_exit = |body: &pb::from_keeper::Body| match body {
        pb::from_keeper::Body::Reports(news) => news.reports.iter().any(|one| one.exit.is_some()),
        _ => false,
    };
    assert!(server.log.iter().any(tells_exit), "answered before the exit was told");
}

#[tokio::test]
async fn signals_that_do_not_exist_are_refused_and_reach_nobody() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let spawned = server.sh("sleep 1000", PIPES).await;
    for signal in [0, 65, -1, -9, i32::MAX, i32::MIN] {
        let expected = Refused::Invalid(format!("there is no signal {signal}"));
        for group in [false, true] {
            let answer = soon(server.keeper.signal(spawned.key, signal, group)).await;
            assert_eq!(refused(answer), expected);
        }
        // To a tree, 0 is a question.
        if signal != 0 {
            let answer = soon(server.keeper.kill_tree(spawned.key, signal)).await;
            assert_eq!(refused(answer), expected);
        }
    }
    for key in [0, spawned.key + 1, u64::MAX] {
        let answer = soon(server.keeper.signal(key, libc::SIGKILL, true)).await;
        assert_eq!(refused(answer), Refused::UnknownProcess);
    }
    assert!(alive(spawned.pid));
}

#[tokio::test]
async fn who_is_there_can_be_asked_without_a_signal() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let spawned = server.sh("sleep 1000 & echo up; wait", PIPES).await;
    read_until(&spawned, "up\n").await;
    let pids = |members: Vec<Descendant>| -> Vec<u32> {
        members.into_iter().map(|member| member.pid).collect()
    };
    let there = pids(soon(server.keeper.members(spawned.key)).await.unwrap());
    assert!(there[0] == spawned.pid && there.len() == 2, "{there:?}");
    soon(server.keeper.kill_tree(spawned.key, libc::SIGKILL)).await.unwrap();
    let left = pids(soon(server.keeper.members(spawned.key)).await.unwrap());
    assert_eq!(left, Vec::<u32>::new());
}

/// Starts strangers until some of them have these pids, but for one that a helper of the keeper may have.
async fn strangers_with(server: &mut Server, pids: &[u32]) -> Vec<Spawned> {
    let mut strangers: Vec<Spawned> = Vec::new();
    let is_free = |pid: &&u32, strangers: &[Spawned]| strangers.iter().all(|one| one.pid != **pid);
    while pids.iter().filter(|pid| is_free(pid, &strangers)).count() > 1 {
        assert!(strangers.len() < 100, "{pids:?} were not given out again");
        let launch = server.launch(&["sleep", "1000"], PIPES);
        strangers.push(server.spawn(launch).await);
    }
    strangers
}

#[tokio::test]
async fn a_stranger_who_was_given_the_pid_of_a_finished_process_is_never_signalled() {
    let Some(keeper) = TestKeeper::start_with_few_pids() else { return };
    let mut server = keeper.connect().await;
    let mut finished = Vec::new();
    for _ in 0..5 {
        let spawned = server.sh("exit 0", PIPES).await;
        server.exit(spawned.key).await;
        finished.push(spawned);
    }
    let reused: Vec<u32> = finished.iter().map(|spawned| spawned.pid).collect();
    let strangers = strangers_with(&mut server, &reused).await;
    for Spawned { key, .. } in finished {
        for group in [false, true] {
            let answer = soon(server.keeper.signal(key, libc::SIGKILL, group)).await;
            assert_eq!(refused(answer), Refused::NotRunning);
        }
        for signal in [libc::SIGTERM, libc::SIGKILL] {
            assert_eq!(soon(server.keeper.kill_tree(key, signal)).await, Ok(vec![]));
        }
    }
    all_live(&server, &strangers).await;
}

#[tokio::test]
async fn a_stranger_who_was_given_the_pid_of_a_descendant_is_never_signalled() {
    let Some(keeper) = TestKeeper::start_with_few_pids() else { return };
    let mut server = keeper.connect().await;
    let line = "sleep 1000 & (setsid sleep 1000 &); sleep 1000 & exit 0";
    let spawned = server.sh(line, PIPES).await;
    let lingering = pids_of(&server.exit(spawned.key).await.lingering);
    assert_eq!(lingering.len(), 3);
    let list = lingering.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let (status, _) = server.output(&format!("kill -9 {list}"), PIPES).await;
    assert_eq!(status, Status::Code(0));
    let mut output = spawned.output.clone();
    soon(output.wait_until(|progress| progress.drained)).await.unwrap();
    let strangers = strangers_with(&mut server, &lingering).await;
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        assert_eq!(soon(server.keeper.kill_tree(spawned.key, signal)).await, Ok(vec![]));
    }
    all_live(&server, &strangers).await;
}

/// They live, and can be signalled as themselves.
async fn all_live(server: &Server, strangers: &[Spawned]) {
    for stranger in strangers {
        assert_eq!(stranger.output.progress().final_seq, None, "{} has ended", stranger.pid);
        soon(server.keeper.signal(stranger.key, libc::SIGCONT, false)).await.unwrap();
    }
}

#[tokio::test]
async fn a_kill_names_the_process_itself_first_whatever_its_pid() {
    let Some(keeper) = TestKeeper::start_with_few_pids() else { return };
    let mut server = keeper.connect().await;
    for _ in 0..300 {
        let spawned = server.sh("sleep 1000 & sleep 1000 & echo ready; wait", PIPES).await;
        read_until(&spawned, "ready").await;
        let ended = kill(&server, spawned.key).await;
        assert_eq!(ended[0], spawned.pid);
        if ended[1..].iter().any(|pid| *pid < spawned.pid) {
            return;
        }
    }
    panic!("no descendant ever had a lower pid");
}

/// Leaves an orphan that names another process by its cookie, and kills that process.
async fn orphan_that_names_another_process_survives(server: &mut Server, users: Option<[u32; 2]>) {
    let as_user = |launch: Launch, n: usize| {
        let user = users.map(|uids| User { uid: uids[n], gid: NOBODY, groups: Vec::new() });
        Launch { user, ..launch }
    };
    let victim = server.shell("exec sleep 600", PIPES);
    let line = format!(
        "PROCYARD_ID={} setsid sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; echo $!",
        victim.id
    );
    let victim = server.spawn(as_user(victim, 0)).await;
    let launch = as_user(server.shell(&line, PIPES), 1);
    let other = server.spawn(launch).await;
    server.exit(other.key).await;
    let orphan: u32 = text(&read_all(&other).await).trim().parse().unwrap();
    let ended = kill(server, victim.key).await;
    assert_eq!(ended, [victim.pid], "the orphan is {orphan}");
    let exit = server.exit(victim.key).await;
    assert_eq!(exit.lingering, Vec::new());
    assert!(alive(orphan));
}

#[tokio::test]
async fn orphan_belongs_to_the_process_whose_leaf_it_is_in() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    if server.welcome.kill_domain == KillDomain::Walk || !have(&["setsid"]) {
        return skip("no cgroup leaf can be made here");
    }
    orphan_that_names_another_process_survives(&mut server, None).await;
}

#[tokio::test]
async fn orphan_of_another_user_cannot_name_a_process() {
    if !is_root() || !have(&["setsid"]) {
        return skip("only root starts processes of other users");
    }
    let keeper = TestKeeper::start_without_cgroups();
    let mut server = keeper.connect().await;
    let users = Some([1000, NOBODY]);
    orphan_that_names_another_process_survives(&mut server, users).await;
}
