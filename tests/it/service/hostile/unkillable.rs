//! What SIGKILL does not end is named, with the reason; no record claims an end before it happened.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use procyard::grpc::pb::{self, Cause, State};
use tonic::Code;

use crate::support::service::*;
use crate::support::{NOBODY, alive, binary, have, is_root, skip, soon, until};

/// What an answer to Kill may take besides the grace period: five seconds, and as much as a busy machine needs.
const KILL_ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// The grace period of these tests.
const GRACE: Duration = Duration::from_millis(100);

/// A service of an unprivileged user, and a program that gives that user processes of root's.
struct Unprivileged {
    service: TestService,
    program: String,
}

impl Unprivileged {
    /// None: it cannot be had here, which was said.
    fn start() -> Option<Unprivileged> {
        if !is_root() {
            skip("only root can make a setuid-root program");
            return None;
        }
        if !have(&["setpriv"]) {
            return None;
        }
        let mut able = Command::new(binary());
        able.arg("--help").uid(NOBODY).stdout(Stdio::null());
        if !able.status().is_ok_and(|status| status.success()) {
            skip("another user cannot execute procyard here");
            return None;
        }
        let service = TestService::start_with(unprivileged);
        let program = service.directory.path().join("become-root");
        assert!(
            Command::new("cp").arg("/usr/bin/setpriv").arg(&program).status().unwrap().success()
        );
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
        let mut becomes_root = Command::new(&program);
        becomes_root.args(["--reuid", "0", "true"]).uid(NOBODY).stderr(Stdio::null());
        if !becomes_root.status().unwrap().success() {
            skip("setuid programs do not work here");
            return None;
        }
        let program = program.to_str().unwrap().to_owned();
        Some(Unprivileged { service, program })
    }

    /// The words of a process of root's.
    fn root_sleep(&self) -> [&str; 5] {
        [&self.program, "--reuid", "0", "sleep", "600"]
    }
}

/// Has a service run as an unprivileged user, whose directory it has.
fn unprivileged(command: &mut Command) {
    let state = command.get_args().last().map(Path::new);
    let directory = state.and_then(Path::parent).unwrap();
    chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
    command.uid(NOBODY).gid(NOBODY);
}

/// Ends a process of root's when dropped, also if the test fails.
struct RootProcess(u32);

impl RootProcess {
    fn end(&self) {
        if is_root_sleep(self.0) {
            kill_pid(self.0.cast_signed(), libc::SIGKILL);
        }
    }
}

impl Drop for RootProcess {
    fn drop(&mut self) {
        self.end();
    }
}

fn is_root_sleep(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("Name:\tsleep\n") && status.contains("\nUid:\t0\t0\t0\t0\n") && alive(pid)
}

/// Kills a process, and checks that the answer comes in time.
async fn killed(client: &mut Client, id: &str) -> pb::KillResponse {
    let begin = Instant::now();
    let answer = soon(client.kill(kill(id))).await.unwrap().into_inner();
    assert!(begin.elapsed() < GRACE + KILL_ANSWER_LIMIT, "{:?}", begin.elapsed());
    answer
}

fn not_permitted(pid: u32) -> Vec<pb::Descendant> {
    let (command, error) = ("sleep".into(), "operation not permitted".into());
    vec![pb::Descendant { pid, command, error }]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_names_a_descendant_that_it_may_not_signal() {
    let Some(unprivileged) = Unprivileged::start() else { return };
    let service = &unprivileged.service;
    let mut client = service.client().await;
    let line = format!("{} & echo $!; wait", unprivileged.root_sleep().join(" "));
    begin(&mut client, "a", stopped_by("TERM", 100, shell(&line))).await;
    let first_line =
        pb::WaitRequest { id: "a".into(), wait: Some(until_output("\n")), ..Default::default() };
    soon(client.wait(first_line)).await.unwrap();
    let descendant = RootProcess(printed(&mut client, "a").await.trim().parse().unwrap());
    until("it is root's", || is_root_sleep(descendant.0)).await;

    let answer = killed(&mut client, "a").await;
    assert_eq!(answer.unkillable, not_permitted(descendant.0));
    assert!(answer.killed.iter().all(|killed| killed.pid != descendant.0), "{answer:?}");
    let process = get(&mut client, "a").await;
    assert_eq!((process.state(), exit(&process).cause()), (State::Exited, Cause::Killed));
    assert_eq!(process.unkillable, not_permitted(descendant.0));
    assert_eq!(process.lingering[0].pid, descendant.0);
    let procyard = |args: &[&str]| {
        service.procyard(args).env("PROCYARD_SERVER_UID", NOBODY.to_string()).output().unwrap()
    };
    let shown = procyard(&["ps", "--all"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("1 unkillable"), "{shown:?}");
    let shown = procyard(&["kill", "a"]);
    let complaint = format!("cannot kill sleep ({}): operation not permitted", descendant.0);
    assert_eq!(shown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&shown.stderr).contains(&complaint), "{shown:?}");

    descendant.end();
    until("it has ended", || !is_root_sleep(descendant.0)).await;
    assert_eq!(killed(&mut client, "a").await.unkillable, []);
    assert_eq!(get(&mut client, "a").await.unkillable, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_that_may_not_be_signalled_stays_stopping() {
    let Some(unprivileged) = Unprivileged::start() else { return };
    let service = &unprivileged.service;
    let mut client = service.client().await;
    let spec = stopped_by("TERM", 100, argv(&unprivileged.root_sleep()));
    let leader = RootProcess(begin(&mut client, "a", spec).await.pid);
    until("it is root's", || is_root_sleep(leader.0)).await;
    let answer = killed(&mut client, "a").await;
    assert_eq!((&answer.unkillable, &answer.killed), (&not_permitted(leader.0), &vec![]));
    assert_eq!(answer.processes[0].state(), State::Stopping);
    let by_force = pb::DeleteRequest { id: "a".into(), force: true, allow_missing: false };
    let refused = refusal(soon(client.delete(by_force)).await);
    assert_eq!(refused, (Code::FailedPrecondition, "STILL_RUNNING".into()));

    service.kill_server();
    let mut client = service.client().await;
    let process = get(&mut client, "a").await;
    assert_eq!(process.unkillable, not_permitted(leader.0), "{:?}", process.state());
    assert_eq!(process.state(), State::Stopping);
    leader.end();
    let process = ended(&mut client, "a").await;
    assert_eq!((exit(&process).signal, exit(&process).cause()), (Some(9), Cause::Killed));
    assert_eq!((process.unkillable, process.lingering), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unkillable_leader_is_known_after_a_shutdown() {
    let Some(Unprivileged { mut service, program }) = Unprivileged::start() else { return };
    let mut client = service.client().await;
    let spec = argv(&[&program, "--reuid", "0", "sleep", "600"]);
    let leader = RootProcess(begin(&mut client, "a", stopped_by("TERM", 100, spec)).await.pid);
    until("it is root's", || is_root_sleep(leader.0)).await;
    let begin = Instant::now();
    service.stop();
    // Both the server and the keeper have sent SIGKILL for as long as they do.
    assert!(begin.elapsed() < GRACE + 3 * KILL_ANSWER_LIMIT, "{:?}", begin.elapsed());
    assert!(is_root_sleep(leader.0));

    service.begin_anew(unprivileged_again);
    let mut client = service.client().await;
    let process = get(&mut client, "a").await;
    assert_eq!((process.state(), process.pid), (State::Stopping, leader.0));
    assert_eq!(process.unkillable, not_permitted(leader.0));
    assert_eq!(killed(&mut client, "a").await.unkillable, not_permitted(leader.0));
    leader.end();
    until("it has ended", || !is_root_sleep(leader.0)).await;
    let answer = killed(&mut client, "a").await;
    assert_eq!((answer.unkillable.len(), answer.processes[0].state()), (0, State::Exited));
    assert_eq!(exit(&answer.processes[0]).cause(), Cause::Lost);
}

fn unprivileged_again(command: &mut Command) {
    command.uid(NOBODY).gid(NOBODY);
}

/// A thread that traces processes until its end is requested.
pub(super) struct Tracer {
    end: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Tracer {
    /// None: the kernel does not permit it.
    pub(super) fn seize(pids: Vec<u32>) -> Option<Tracer> {
        let (end, until_end) = mpsc::channel();
        let (told, seized) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let none = std::ptr::null_mut::<libc::c_void>();
            let seize = |pid: &u32| {
                // SAFETY: no pointer is passed but null.
                unsafe { libc::ptrace(libc::PTRACE_SEIZE, *pid, none, none) == 0 }
            };
            told.send(pids.iter().all(seize)).unwrap();
            // The kernel detaches what a thread traces when the thread ends.
            let _ = until_end.recv();
        });
        seized.recv().unwrap().then_some(Tracer { end, thread })
    }

    pub(super) fn end(self) {
        drop(self.end);
        self.thread.join().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traced_zombie_stays_stopping_until_its_tracer_ends() {
    let service = TestService::start();
    let mut client = service.client().await;
    let leader = begin(&mut client, "a", stopped_by("TERM", 100, argv(&["sleep", "600"]))).await;
    let Some(tracer) = Tracer::seize(vec![leader.pid]) else {
        return skip("the kernel does not permit to trace here");
    };
    let answer = killed(&mut client, "a").await;

    assert_eq!(answer.processes[0].state(), State::Stopping);
    let [zombie] = &answer.unkillable[..] else { panic!("{answer:?}") };
    assert_eq!((zombie.pid, zombie.command.as_str()), (leader.pid, "sleep"));
    assert!(zombie.error.starts_with("zombie held by its tracer, pid"), "{zombie:?}");
    tracer.end();
    let process = ended(&mut client, "a").await;
    assert_eq!(exit(&process).cause(), Cause::Killed);
    assert_eq!(process.unkillable, []);
}
