//! Orphans with large environments do not make the keeper read them again and again.

use crate::support::*;

/// Orphans, each with an environment of a megabyte that does not say whose it is.
const ORPHANS: usize = 100;
/// What the keeper reads at least to judge each of them.
const MIN_READ_ONCE: u64 = ORPHANS as u64 * (100 << 10);
/// What the keeper may read to judge each of them once: less than their environments.
const MAX_READ_ONCE: u64 = ORPHANS as u64 * (512 << 10);
/// What the keeper may read in a kill when all of them were judged.
const MAX_READ_AGAIN: u64 = 4 << 20;

/// Bytes that a keeper and its helpers have read from files, pipes and sockets.
fn bytes_read(keeper: u32) -> u64 {
    let read = |pid| {
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        let bytes = io.lines().find_map(|line| line.strip_prefix("rchar: "));
        bytes.unwrap().parse::<u64>().unwrap()
    };
    helpers(keeper).into_iter().chain([keeper]).map(read).sum()
}

#[tokio::test]
async fn kill_reads_the_environments_of_strangers_once() {
    if !have(&["setsid"]) {
        return;
    }
    if !is_root() {
        return skip("needs root to hide cgroups, with which no environment is read");
    }
    let keeper = TestKeeper::start_without_cgroups();
    let mut server = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let line = format!(
        "unset PROCYARD_ID; v=$(head -c 100000 /dev/zero | tr '\\0' x); \
         export A=$v B=$v C=$v D=$v E=$v F=$v G=$v H=$v I=$v J=$v; i=0; \
         while [ $i -lt {ORPHANS} ]; do i=$((i+1)); setsid sleep 600 & done; \
         read x <{}",
        gate.path
    );
    let mut launch = server.shell(&line, PIPES);
    launch.cwd = keeper.directory.path().to_str().unwrap().into();
    let parent = server.spawn(launch).await;
    let command = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let sleeps = |pid: &u32| command(pid).is_ok_and(|command| command == "sleep\n");
    let sleeping = || keeper.inhabitants().into_iter().filter(sleeps).count();
    // Each has its own environment when it becomes an orphan.
    until("all sleep", || sleeping() == ORPHANS).await;
    let before = bytes_read(keeper.pid());
    gate.open(1);
    server.exit(parent.key).await;

    let kill = async |server: &mut Server| {
        let victim = server.sh("sleep 600 & wait", PIPES).await;
        let before = bytes_read(keeper.pid());
        for signal in [libc::SIGTERM, libc::SIGKILL] {
            soon(server.keeper.kill_tree(victim.key, signal)).await.unwrap();
        }
        bytes_read(keeper.pid()) - before
    };
    kill(&mut server).await;
    let once = bytes_read(keeper.pid()) - before;
    assert!((MIN_READ_ONCE..MAX_READ_ONCE).contains(&once), "{once} bytes");
    let again = kill(&mut server).await;
    assert!(again < MAX_READ_AGAIN, "{again} bytes");
    assert_eq!(sleeping(), ORPHANS, "they are not those of the processes that were killed");
}

#[tokio::test]
async fn exit_lists_a_descendant_in_the_middle_of_an_exec() {
    if !have(&["setsid"]) {
        return;
    }
    // With cgroups no environment is read.
    let keeper = if is_root() { TestKeeper::start_without_cgroups() } else { TestKeeper::start() };
    let mut server = keeper.connect().await;
    let script = keeper.directory.path().join("again");
    executable(&script, "#!/bin/sh\nexec \"$0\"\n");
    // While it executes a program it has no environment for a moment.
    let line = format!("setsid {} </dev/null >/dev/null 2>&1 & exit 0", script.display());
    for attempt in 0..300 {
        let parent = server.sh(&line, PIPES).await;
        let lingering = server.exit(parent.key).await.lingering;
        assert_eq!(lingering.len(), 1, "attempt {attempt}");
        soon(server.keeper.kill_tree(parent.key, libc::SIGKILL)).await.unwrap();
    }
}
