//! Execs that wait for a lease: what the keeper does meanwhile, and when the child is killed.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use procyard::process::{Launch, Refused, User};

use crate::support::*;

/// A program that another process has a lease on.
struct LeasedProgram {
    path: PathBuf,
    /// Open for writing, so that the program is busy when the lease is given back.
    file: File,
}

impl LeasedProgram {
    fn new(keeper: &TestKeeper, program: &str) -> LeasedProgram {
        let path = keeper.directory.path().join("leased");
        // Not copied by this process, whose other tests could have the file open for writing as well.
        assert!(Command::new("cp").arg(program).arg(&path).status().unwrap().success());
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        lease(&file);
        LeasedProgram { path, file }
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

/// Starts a process as a server that is gone when this is aborted.
async fn spawn_as(server: Server, launch: Launch) {
    let _ = server.keeper.spawn(launch).await;
}

#[tokio::test]
async fn slow_exec_of_a_lost_server_does_not_delay_the_next() {
    let keeper = TestKeeper::start();
    let program = LeasedProgram::new(&keeper, "/bin/true");
    let mut first = keeper.connect().await;
    let launch = program.launch(&mut first, "");
    let spawning = tokio::spawn(spawn_as(first, launch));
    let child = waiting_child(&keeper).await;
    spawning.abort();
    let _ = spawning.await;
    let begin = Instant::now();
    let mut second = keeper.connect().await;
    // An exec has 10 s.
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    assert!(second.adopted.is_empty());
    until("the child is gone", || stat(child).is_empty()).await;
    assert_eq!(second.output("echo served", PIPES).await.1, "served\n");
}

#[tokio::test]
async fn start_of_a_lost_server_is_not_made_again() {
    let keeper = TestKeeper::start();
    let program = LeasedProgram::new(&keeper, "/bin/touch");
    let made = keeper.directory.path().join("made");
    let mut first = keeper.connect().await;
    let launch = program.launch(&mut first, made.to_str().unwrap());
    let spawning = tokio::spawn(spawn_as(first, launch));
    waiting_child(&keeper).await;
    spawning.abort();
    let _ = spawning.await;
    // Now the exec fails because the program is open for writing: a start that would be made again.
    give_lease_back(&program.file);
    let mut second = keeper.connect().await;
    assert!(second.adopted.is_empty());
    drop(program);
    // Longer than the keeper waits until it tries again.
    tokio::time::sleep(Duration::from_millis(300)).await;
    second.output("true", PIPES).await;
    assert!(!made.exists(), "the program ran without a server that knows it");
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

/// Before Linux 5.16 a core dump of the child would kill the keeper, whose memory it shares.
#[tokio::test]
async fn child_of_another_user_handles_all_signals_that_dump_core() {
    if !is_root() {
        return skip("only root starts processes of other users");
    }
    let keeper = TestKeeper::start();
    std::fs::set_permissions(keeper.directory.path(), Permissions::from_mode(0o755)).unwrap();
    let program = LeasedProgram::new(&keeper, "/bin/true");
    let mut server = keeper.connect().await;
    let mut launch = program.launch(&mut server, "");
    launch.user = Some(User { uid: NOBODY, gid: NOBODY, groups: Vec::new() });
    let checking = async {
        let child = waiting_child(&keeper).await;
        let status = || std::fs::read_to_string(format!("/proc/{child}/status")).unwrap();
        let set = |name: &str| {
            let status = status();
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        until("its signals are not blocked", || set("SigBlk:") == 0).await;
        assert!(status().contains(&format!("Uid:\t{NOBODY}\t{NOBODY}")), "{}", status());
        let dumps = [
            libc::SIGQUIT,
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGABRT,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGSEGV,
            libc::SIGXCPU,
            libc::SIGXFSZ,
            libc::SIGSYS,
        ];
        let handled = set("SigCgt:");
        assert!(dumps.iter().all(|signal| handled >> (signal - 1) & 1 == 1), "{handled:x}");
        kill(child, libc::SIGABRT);
    };
    let (refused, ()) = tokio::join!(server.refusal(launch), checking);
    assert!(matches!(&refused, Refused::SpawnFailed { errno: libc::EINTR, .. }), "{refused:?}");
    assert_eq!(server.output("echo served", PIPES).await.1, "served\n");
}

fn kill(pid: u32, signal: i32) {
    // SAFETY: sends a signal; touches no memory. A helper that is not needed may have ended.
    let _ = unsafe { libc::kill(pid.cast_signed(), signal) };
}
