//! Starts when something has run out: processes, descriptors, terminals. They are refused with
//! the kernel's word, harm nobody, leave nothing, and work again when there is room.

use std::os::unix::process::CommandExt;
use std::process::Command;

use procyard::keeper_client::{Spawned, Write};
use procyard::process::{Io, Refused, Status};
use rustix::process::{Pid, Resource, getrlimit};

use crate::support::*;

/// Someone who must not notice anything.
struct Neighbour {
    spawned: Spawned,
    said: u64,
}

impl Neighbour {
    async fn start(server: &mut Server) -> Neighbour {
        let spawned = server.sh("exec cat", STDIN).await;
        Neighbour { spawned, said: 0 }
    }

    /// Says something and hears it.
    async fn is_unharmed(&mut self, server: &Server) {
        self.said += 1;
        let word = format!("word {}\n", self.said);
        let write = Write { data: word.clone().into(), ..Write::default() };
        soon(server.keeper.write(self.spawned.key, write)).await.unwrap();
        read_until(&self.spawned, &word).await;
    }
}

/// Step and errno of a start that is refused.
async fn refused(server: &mut Server, io: Io) -> (String, i32) {
    let launch = server.launch(&["/bin/true"], io);
    match server.refusal(launch).await {
        Refused::SpawnFailed { step, errno, path } if path.is_empty() => (step, errno),
        other => panic!("{other:?}"),
    }
}

async fn works_again(server: &mut Server, io: Io) {
    let (status, said) = server.output("echo hi", io).await;
    assert_eq!((status, said.trim_end()), (Status::Code(0), "hi"));
}

/// Ends processes and lets the keeper forget them.
async fn let_go(server: &mut Server, spawned: &[Spawned]) {
    for Spawned { key, .. } in spawned {
        soon(server.keeper.kill_tree(*key, libc::SIGKILL)).await.unwrap();
        server.exit(*key).await;
        soon(server.keeper.release(*key)).await.unwrap();
    }
}

/// How many processes the keeper's user may have before the keeper can start none.
fn limit_processes(keeper: &TestKeeper, most: u64) {
    // A helper makes the processes, and has limits of its own.
    for pid in helpers(keeper.pid()).into_iter().chain([keeper.pid()]) {
        let mut command = Command::new("prlimit");
        command.arg(format!("--pid={pid}")).arg(format!("--nproc={most}:"));
        if is_root() {
            // Root may be without the capability to change another's limits.
            command.uid(NOBODY).gid(NOBODY);
        }
        let limited = command.status().unwrap().success();
        // A surplus helper may have ended.
        assert!(limited || !helpers(keeper.pid()).contains(&pid) && pid != keeper.pid());
    }
}

#[tokio::test]
async fn without_a_free_pid_a_start_is_refused_and_nobody_is_harmed() {
    let Some(keeper) = TestKeeper::start_unprivileged() else {
        return skip("the limit of processes does not bind root, and nobody can run the keeper");
    };
    if !possible(&["prlimit"]) {
        return skip("there is no prlimit");
    }
    let usual = getrlimit(Resource::Nproc).current.unwrap_or(1 << 20);
    let mut server = keeper.connect().await;
    let mut neighbour = Neighbour::start(&mut server).await;
    neighbour.is_unharmed(&server).await;
    let before = keeper.descriptors();
    limit_processes(&keeper, 0);

    for io in [PIPES, STDIN, TERMINAL].repeat(5) {
        let refused = refused(&mut server, io).await;
        assert_eq!(refused, ("cannot make a process".into(), libc::EAGAIN), "on {io:?}");
    }
    keeper.has_closed_all_since(before).await;
    assert_eq!(children(keeper.pid()), [neighbour.spawned.pid]);
    neighbour.is_unharmed(&server).await;

    limit_processes(&keeper, usual);
    works_again(&mut server, PIPES).await;
    works_again(&mut server, TERMINAL).await;
}

#[tokio::test]
async fn without_free_descriptors_a_start_is_refused_and_everyones_output_is_still_captured() {
    let keeper = TestKeeper::start_with(|command| limit(command, Resource::Nofile, 64));
    let mut server = keeper.connect().await;
    let before = keeper.descriptors();
    let mut gate = Gate::new(keeper.directory.path());
    let line = format!("read x <{}; echo hello; exec sleep 600", gate.path);
    let mut waiting = Vec::new();
    // After a refusal, helpers may still close ends of those before.
    let mut refusals = 0;
    while refusals < 3 {
        let launch = server.shell(&line, PIPES);
        match soon(server.keeper.spawn(launch)).await {
            Ok(spawned) => waiting.push(spawned),
            Err(_) => refusals += 1,
        }
    }
    assert!(waiting.len() > 4, "only {} fit", waiting.len());
    let held = keeper.descriptors();
    assert_eq!(refused(&mut server, PIPES).await, ("cannot open pipes".into(), libc::EMFILE));
    let terminal = refused(&mut server, TERMINAL).await;
    assert_eq!(terminal, ("cannot open a terminal".into(), libc::EMFILE));
    keeper.has_closed_all_since(held).await;
    assert_eq!(children(keeper.pid()).len(), waiting.len());

    // All print before the keeper looks again: a ring for each is made in one go.
    let pid = Pid::from_raw(keeper.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    gate.open(waiting.len());
    let printed = |spawned: &Spawned| {
        let command = std::fs::read_to_string(format!("/proc/{}/comm", spawned.pid));
        command.is_ok_and(|command| command == "sleep\n")
    };
    until("all have printed", || waiting.iter().all(printed)).await;
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    for spawned in &waiting {
        assert_eq!(read_until(spawned, "\n").await, "hello\n");
    }

    let_go(&mut server, &waiting).await;
    until("all descriptors are back", || keeper.descriptors() == before).await;
    works_again(&mut server, TERMINAL).await;
    works_again(&mut server, PIPES).await;
}

/// A keeper whose terminals are its own, and few.
fn keeper_with_terminals(most: usize) -> Option<TestKeeper> {
    let mount = format!(
        "mount -t devpts -o newinstance,mode=620,ptmxmode=666,max={most} devpts /dev/pts \
         && exec \"$@\""
    );
    let mut prefix = vec!["unshare", "--mount"];
    if !is_root() {
        prefix.push("--map-root-user");
    }
    prefix.extend(["sh", "-c", &mount, "sh"]);
    possible(&prefix).then(|| TestKeeper::start_under(&prefix))
}

#[tokio::test]
async fn without_a_free_terminal_a_start_is_refused_and_nobody_is_harmed() {
    const MOST: usize = 4;
    let Some(keeper) = keeper_with_terminals(MOST) else {
        return skip("terminals of its own need a mount namespace");
    };
    let mut server = keeper.connect().await;
    let mut neighbour = Neighbour::start(&mut server).await;
    neighbour.is_unharmed(&server).await;
    let mut held = Vec::new();
    for _ in 0..MOST {
        held.push(server.sh("exec sleep 600", TERMINAL).await);
    }
    let full = keeper.descriptors();
    for _ in 0..20 {
        let refused = refused(&mut server, TERMINAL).await;
        assert_eq!(refused, ("cannot open a terminal".into(), libc::ENOSPC));
    }
    keeper.has_closed_all_since(full).await;
    assert_eq!(children(keeper.pid()).len(), MOST + 1);
    neighbour.is_unharmed(&server).await;
    works_again(&mut server, PIPES).await;

    let_go(&mut server, &held.split_off(1)).await;
    works_again(&mut server, TERMINAL).await;
    let_go(&mut server, &held).await;
    assert!(held.iter().all(|spawned| !alive(spawned.pid)));
    neighbour.is_unharmed(&server).await;
    assert!(keeper.descriptors() < full);
}
