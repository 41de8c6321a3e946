//! A supervisor that starts by itself, its log, and how it is stopped.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use procyard::cli::daemon::Daemon;
use procyard::store::StateDir;
use tempfile::TempDir;

use crate::support::service::*;
use crate::support::{alive, binary, children, until};

/// A supervisor that may be started, and is stopped when dropped.
struct Unattended {
    daemon: Daemon,
    directory: TempDir,
}

impl Unattended {
    fn new() -> Unattended {
        let directory = tempfile::tempdir().unwrap();
        let (socket, state_dir) = (directory.path().join("s"), directory.path().join("state"));
        Unattended { daemon: Daemon { program: binary().into(), socket, state_dir }, directory }
    }

    fn keeper(&self) -> Option<u32> {
        StateDir::keeper(&self.daemon.state_dir).unwrap()
    }
}

impl Drop for Unattended {
    fn drop(&mut self) {
        stop(&self.daemon.state_dir);
    }
}

/// `procyard stop`.
fn stop(state_dir: &Path) -> Output {
    Command::new(binary()).arg("stop").arg("--state-dir").arg(state_dir).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap()
}

/// The session of a process: the fourth number after its name.
fn session(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, after) = stat.rsplit_once(") ").unwrap();
    after.split(' ').nth(3).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_that_starts_by_itself_has_nothing_of_whoever_started_it() {
    let unattended = Unattended::new();
    // Descriptors that anybody would inherit.
    let file = fs::File::create(unattended.directory.path().join("open")).unwrap();
    let inherited = rustix::io::dup(&file).unwrap();
    unattended.daemon.start().unwrap();
    let channel = connect(unattended.daemon.socket.clone()).await.unwrap();
    assert_eq!(output_of(&mut Client::new(channel), shell("echo hi")).await, "hi\n");
    let keeper = unattended.keeper().unwrap();
    assert_eq!(session(keeper), keeper);
    let link = |name: &str| fs::read_link(format!("/proc/{keeper}/{name}")).unwrap();
    assert_eq!(link("fd/0"), Path::new("/dev/null"));
    assert_eq!(link("fd/1"), Path::new("/dev/null"));
    let log = fs::canonicalize(unattended.daemon.log()).unwrap();
    assert_eq!(link("fd/2"), log);
    assert_eq!(fs::metadata(&log).unwrap().mode() & 0o777, 0o600);
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_dir());
    assert_eq!(link("cwd"), fs::canonicalize(home.unwrap_or("/".into())).unwrap());
    let open = fs::read_dir(format!("/proc/{keeper}/fd")).unwrap();
    let open = open.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    let own = fs::canonicalize(unattended.directory.path().join("open")).unwrap();
    assert!(open.into_iter().all(|path| path != own));
    drop((file, inherited));
    let environ = fs::read(format!("/proc/{keeper}/environ")).unwrap();
    let mut variables = environ.split(|byte| *byte == 0);
    assert!(variables.any(|variable| variable.starts_with(b"RUST_LOG=")));
    let mode = fs::metadata(&unattended.daemon.socket).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_start_at_once_one_stays_and_all_reach_it() {
    let unattended = Unattended::new();
    thread::scope(|scope| {
        let starting = [(); 4].map(|()| scope.spawn(|| unattended.daemon.start()));
        for started in starting {
            assert_eq!(started.join().unwrap(), Ok(()));
        }
    });
    // Whoever was not the first is gone already, and does not come back when that one is stopped.
    assert!(stop(&unattended.daemon.state_dir).status.success());
    assert_eq!(unattended.keeper(), None);
    let socket = unattended.daemon.socket.display().to_string();
    let own = |pid: &u32| cmdline(*pid).iter().any(|arg| arg.ends_with(&socket));
    assert_eq!(children(std::process::id()).iter().filter(|pid| own(pid)).count(), 0);
    assert_eq!(unattended.daemon.start(), Ok(()), "another can be started then");
    assert_eq!(unattended.daemon.start(), Ok(()), "and one that serves is one that was started");
}

#[test]
fn why_it_cannot_start_is_one_line() {
    let unattended = Unattended::new();
    let open = unattended.directory.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let daemon = Daemon { socket: open.join("s"), ..unattended.daemon.clone() };
    let why = daemon.start().unwrap_err();
    assert!(why.contains("others may write to the directory"), "{why}");
    assert!(why.ends_with(&format!("its log is {}", daemon.log().display())), "{why}");
    assert!(!why.contains('\n') && why.matches("procyard: ").count() == 0, "{why}");
    // What was logged before is not the reason.
    fs::write(daemon.log(), "procyard: another day\n").unwrap();
    let daemon = Daemon { program: "/bin/true".into(), ..daemon };
    let why = daemon.start().unwrap_err();
    assert!(why.contains("it does not listen on ") && !why.contains("another day"), "{why}");
    let daemon = Daemon { program: "/nonexistent".into(), ..daemon };
    let why = daemon.start().unwrap_err();
    assert!(why.starts_with("a supervisor cannot be started: "), "{why}");
    let file = unattended.directory.path().join("file");
    fs::write(&file, "").unwrap();
    let why = Daemon { state_dir: file, ..daemon }.start().unwrap_err();
    assert!(why.starts_with("a supervisor cannot be started: cannot use "), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeper_and_server_write_one_log_and_put_it_aside_when_it_is_full() {
    let mut log = PathBuf::new();
    let service = TestService::start_with(|command| {
        let state_dir = PathBuf::from(command.get_args().last().unwrap());
        log = state_dir.parent().unwrap().join("log");
        command.env("RUST_LOG", "info").arg("--log-file").arg(&log);
    });
    service.client().await;
    let text = || fs::read_to_string(&log).unwrap_or_default();
    let has = |lines: [&str; 2]| lines.iter().all(|line| text().contains(line));
    until("both have written", || {
        has(["INFO procyard::keeper: keeping", "procyard::server: serv"])
    })
    .await;
    // Larger than it may be; it takes no room on the disk.
    let full = fs::File::options().append(true).open(&log).unwrap();
    full.set_len(9 << 20).unwrap();
    service.kill_server();
    until("both have gone on", || has(["the server died", "procyard::server: serving"])).await;
    let before = fs::metadata(log.with_file_name("log.1")).unwrap();
    assert!(before.len() >= 9 << 20 && text().len() < 1 << 20);
    // Whoever moves it by hand does not have to tell anybody.
    fs::rename(&log, log.with_file_name("log.2")).unwrap();
    service.kill_server();
    until("both have seen it", || has(["the server died", "procyard::server: serving"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_on_a_full_disk_fails_nobody() {
    let service = TestService::start_with(|command| {
        command.env("RUST_LOG", "info").arg("--log-file").arg("/dev/full");
    });
    let mut client = service.client().await;
    assert_eq!(output_of(&mut client, shell("echo hi")).await, "hi\n");
    service.kill_server();
    let mut client = service.client().await;
    assert_eq!(output_of(&mut client, shell("echo hi")).await, "hi\n");
}

#[test]
fn a_log_that_cannot_be_opened_is_no_way_to_begin() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("missing/log");
    let refused = TestService::command(directory.path(), |command| {
        command.arg("--log-file").arg(&log);
    });
    let refused = { refused }.output().unwrap();
    let line = format!("procyard: --log-file {}: ", log.display());
    assert!(!refused.status.success() && said(&refused).starts_with(&line), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_returns_when_all_has_ended_and_says_what_it_does() {
    let mut service = TestService::start();
    let mut client = service.client().await;
    let process = begin_ready(&mut client, "a", shell("echo ready; exec sleep 600")).await;
    let state_dir = service.directory.path().join("state");
    let stopped = stop(&state_dir);
    assert!(!alive(process.pid));
    assert_eq!(StateDir::keeper(&state_dir).unwrap(), None);
    let pid = service.child.id();
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(
        said(&stopped),
        format!(
            "stopping procyard (pid {pid}, {}) and all that it runs\nstopped\n",
            state_dir.display()
        )
    );
    assert!(service.child.wait().unwrap().success());
    let again = stop(&state_dir);
    assert_eq!(again.status.code(), Some(1));
    let nobody = format!("procyard: no procyard serves with {}\n", state_dir.display());
    assert_eq!(said(&again), nobody);
}
