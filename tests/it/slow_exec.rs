//! Execs that wait for a lease: what the keeper does meanwhile, and when the child is killed.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::Command;

use procyard::process::{Launch, Refused};

use crate::support::*;

/// A program that another process has a lease on.
struct LeasedProgram {
    path: PathBuf,
    /// The lease ends when it is closed.
    _file: File,
}

impl LeasedProgram {
    fn new(keeper: &TestKeeper, program: &str) -> LeasedProgram {
        let path = keeper.directory.path().join("leased");
        // Not copied by this process, whose other tests could have the file open for writing as well.
        assert!(Command::new("cp").arg(program).arg(&path).status().unwrap().success());
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        lease(&file);
        LeasedProgram { path, _file: file }
    }

    fn launch(&self, server: &mut Server, arg: &str) -> Launch {
        server.launch(&[self.path.to_str().unwrap(), arg], PIPES)
    }
}

/// The child that waits for its exec: of the tasks of a keeper, the one that sleeps in a session of its
/// own. What the keeper tried before it began may still be a zombie.
async fn waiting_child(keeper: &TestKeeper) -> u32 {
    let is_waiting = |pid: &u32| {
        let stat = stat(*pid);
        stat.len() > 3 && stat[0] == "S" && stat[3] == pid.to_string()
    };
    let mut found = None;
    until("a child waits for its exec", || {
        found = helpers(keeper.pid()).into_iter().find(is_waiting);
        found.is_some()
    })
    .await;
    found.unwrap()
}

#[tokio::test]
async fn child_killed_before_its_exec_is_a_failed_start() {
    let keeper = TestKeeper::start();
    let program = LeasedProgram::new(&keeper, "/bin/true");
    let mut server = keeper.connect().await;
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGABRT] {
        let launch = program.launch(&mut server, "");
        let killing = async {
            let child = waiting_child(&keeper).await;
            kill(child, signal);
        };
        let (refused, ()) = tokio::join!(server.refusal(launch), killing);
        assert!(
            matches!(&refused, Refused::SpawnFailed { errno: libc::EINTR, .. }),
            "{signal}: {refused:?}"
        );
    }
    assert_eq!(server.output("echo served", PIPES).await.1, "served\n");
}

#[tokio::test]
async fn stopped_helper_does_not_hide_the_exits_of_others() {
    let keeper = TestKeeper::start();
    let program = LeasedProgram::new(&keeper, "/bin/true");
    let mut server = keeper.connect().await;
    let launch = program.launch(&mut server, "");
    let stopping = async {
        let child = waiting_child(&keeper).await;
        let waiting = helpers(keeper.pid()).into_iter().filter(|pid| *pid != child);
        waiting.for_each(|pid| kill(pid, libc::SIGSTOP));
        kill(child, libc::SIGKILL);
    };
    let (refused, ()) = tokio::join!(server.refusal(launch), stopping);
    assert!(matches!(&refused, Refused::SpawnFailed { errno: libc::EINTR, .. }), "{refused:?}");
    assert_eq!(server.output("echo served", PIPES).await.1, "served\n");
}

fn kill(pid: u32, signal: i32) {
    // SAFETY: sends a signal; touches no memory.
    assert_eq!(unsafe { libc::kill(pid.cast_signed(), signal) }, 0);
}
