//! SIGKILL of the keeper: its server kills every descendant, and no other process.

use std::path::Path;
use std::process::Command;

use procyard::grpc::pb;

use crate::support::service::*;
use crate::support::{alive, hide_cgroups, is_root, skip, soon, until};

/// Descendants that stay in the tree, leave it, ignore signals, or have no environment.
const DESCENDANTS: [(&str, &str); 6] = [
    ("child", "$SLEEPER &"),
    ("deaf", "(trap '' HUP INT TERM; $SLEEPER) &"),
    ("session", "setsid $SLEEPER &"),
    ("daemon", "(setsid sh -c '(setsid $SLEEPER &)' &)"),
    ("group", "(set -m; $SLEEPER & wait) &"),
    (WITHOUT_ENVIRONMENT, "(setsid env -i $SLEEPER &)"),
];
const WITHOUT_ENVIRONMENT: &str = "bare";

/// Kills what a failed test would leave behind.
struct Descendants(Vec<u32>);

impl Drop for Descendants {
    fn drop(&mut self) {
        for pid in self.0.iter().filter(|pid| alive(**pid)) {
            // SAFETY: a signal to one process, which this test has started.
            unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
        }
    }
}

/// Starts a process with all these descendants, and returns the pid of it and of each.
async fn start_tree(client: &mut Client, id: &str, directory: &Path, bare: bool) -> Descendants {
    let names = DESCENDANTS.iter().filter(|(name, _)| bare || *name != WITHOUT_ENVIRONMENT);
    let (mut script, mut files) = (String::new(), Vec::new());
    for (name, line) in names {
        let file = directory.join(format!("{id}-{name}"));
        let sleeper = directory.join(format!("{id}-{name}.sh"));
        let content = format!("echo $$ >{0}.new; mv {0}.new {0}; exec sleep 600", file.display());
        std::fs::write(&sleeper, content).unwrap();
        let run = format!("/bin/sh {}", sleeper.display());
        script += &format!("{}\n", line.replace("$SLEEPER", &run));
        files.push(file);
    }
    let spec = shell(&format!("{script}sleep 600"));
    let spec = if id == "terminal" { on_terminal(spec) } else { spec };
    let process = begin(client, id, spec).await;
    until("all descendants run", || files.iter().all(|file| file.exists())).await;
    let pid = |file: &std::path::PathBuf| {
        std::fs::read_to_string(file).unwrap().trim().parse().expect("a pid")
    };
    Descendants(files.iter().map(pid).chain([process.pid]).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_keeper_leaves_no_descendant() {
    kill_keeper(|_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_keeper_without_cgroups_leaves_no_descendant() {
    if !is_root() {
        return skip("needs root to hide cgroups");
    }
    kill_keeper(hide_cgroups).await;
}

async fn kill_keeper(change: fn(&mut Command)) {
    let mut service = TestService::start_with(change);
    let other = TestService::start_with(change);
    let (mut client, mut others_client) = (service.client().await, other.client().await);
    let info = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    let domain = info.into_inner().capabilities.unwrap().kill_domain();
    // Where there is no leaf, a descendant without its environment is not found.
    let bare = domain == pb::KillDomain::Cgroup;
    let mut ours = Vec::new();
    for id in ["pipes", "terminal"] {
        ours.push(start_tree(&mut client, id, service.directory.path(), bare).await);
    }
    // Of the same id, in another state directory.
    let theirs = start_tree(&mut others_client, "pipes", other.directory.path(), bare).await;
    let server = service.server_pid().cast_unsigned();

    service.signal(libc::SIGKILL);
    service.child.wait().unwrap();
    until("all descendants are killed", || {
        ours.iter().flat_map(|tree| &tree.0).all(|pid| !alive(*pid))
    })
    .await;
    until("the server ends", || !alive(server)).await;
    assert!(theirs.0.iter().all(|pid| alive(*pid)), "another keeper's process was killed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_that_kills_its_keeper_runs_once() {
    let mut service = TestService::start();
    let count = service.directory.path().join("count");
    // The keeper dies before or after the server has recorded that the command runs.
    for n in 1..=4 {
        let mut client = service.client().await;
        let line = format!("echo >>{}; kill -9 $PPID", count.display());
        let id = format!("p{n}");
        let _ = soon(client.start(run(&id, shell(&line)))).await;
        service.begin_anew(|_| {});
        let mut client = service.client().await;
        // Not recorded at all, if the keeper was faster than the first commit.
        if let Some(process) = list(&mut client).await.into_iter().find(|found| found.id == id) {
            assert_eq!(exit(&process).cause(), pb::Cause::Lost);
        }
        assert_eq!(std::fs::read_to_string(&count).unwrap().lines().count(), n);
    }
}
