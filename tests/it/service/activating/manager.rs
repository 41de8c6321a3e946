//! The units of a user, under a real systemd.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use procyard::grpc::pb::State;

use crate::support::service::*;
use crate::support::{binary, have, is_root, skip, soon};

/// A systemd of its own, ended when dropped.
struct Systemd {
    child: Child,
    lines: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
    ready: bool,
}

impl Systemd {
    /// One with the units, whose home and sockets are in a directory; none: it cannot run here.
    fn start(directory: &Path) -> Option<Systemd> {
        if !is_root() || !have(&["unshare", "systemctl", "timeout"]) {
            skip("a systemd of its own needs root, unshare and systemctl");
            return None;
        }
        install(directory);
        let script = directory.join("manager.sh");
        fs::write(&script, include_str!("manager.sh")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh"]).arg(script).arg(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (lines, says) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut systemd = Systemd { child, lines, says, ready: false };
        systemd.ready = systemd.line() == "ready\n";
        if !systemd.ready {
            skip("systemd does not run in namespaces here");
        }
        systemd.ready.then_some(systemd)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        line
    }

    /// What systemctl says, which must succeed.
    fn ctl(&mut self, line: &str) -> String {
        writeln!(self.lines.as_ref().unwrap(), "{line}").unwrap();
        let mut said = String::new();
        loop {
            match &*self.line() {
                "done 0\n" => return said,
                "" => panic!("systemd is gone"),
                done if done.starts_with("done ") => panic!("{line}: {done}{said}"),
                more => said += more,
            }
        }
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        self.lines = None;
        let ended = self.child.wait();
        let fine = std::thread::panicking() || !self.ready || ended.unwrap().success();
        assert!(fine, "its cgroup was left");
    }
}

/// Puts the units and the program where they are looked for.
fn install(directory: &Path) {
    let units = directory.join("home/.config/systemd/user");
    let [drop_in, bin] = [units.join("procyard.service.d"), directory.join("home/.local/bin")];
    for made in [&drop_in, &bin, &directory.join("run")] {
        fs::create_dir_all(made).unwrap();
    }
    let service = include_str!("../../../../deploy/systemd/user/procyard.service");
    let socket = include_str!("../../../../deploy/systemd/user/procyard.socket");
    fs::write(units.join("procyard.service"), service).unwrap();
    fs::write(units.join("procyard.socket"), socket).unwrap();
    // Root's is elsewhere.
    let state =
        format!("[Service]\nEnvironment=PROCYARD_STATE_DIR={}/state\n", directory.display());
    fs::write(drop_in.join("state.conf"), state).unwrap();
    std::os::unix::fs::symlink(binary(), bin.join("procyard")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn systemd_starts_reloads_and_stops_it_as_the_units_say() {
    let directory = tempfile::tempdir().unwrap();
    let systemd = tokio::task::block_in_place(|| Systemd::start(directory.path()));
    let Some(mut systemd) = systemd else { return };
    let mut ctl = |line: &str| tokio::task::block_in_place(|| systemd.ctl(line));
    ctl("start procyard.socket");
    let socket = directory.path().join("run/procyard.sock");
    // The first connection starts it.
    let client = || async { Client::new(soon(connect(socket.clone())).await.unwrap()) };
    assert_eq!(output_of(&mut client().await, shell("echo hi")).await, "hi\n");
    ctl("is-active procyard.service");
    let status = ctl("show --property=StatusText --value procyard.service");
    assert_eq!(status, format!("listening on unix://{}\n", socket.display()));
    begin_ready(&mut client().await, "a", shell("echo ready; exec sleep 600")).await;
    // It returns when another server serves.
    ctl("reload procyard.service");
    let process = get(&mut client().await, "a").await;
    assert_eq!(
        (process.state(), ctl("is-active procyard.service")),
        (State::Running, "active\n".into())
    );
    ctl("stop procyard.service");
    let ended = ctl("show --property=ActiveState,Result,NRestarts --value procyard.service");
    let mut ended: Vec<_> = ended.lines().collect();
    ended.sort_unstable();
    assert_eq!(ended, ["0", "inactive", "success"]);
    // The socket is still there, and starts it again.
    let process = get(&mut client().await, "a").await;
    assert_eq!(process.state(), State::Exited);
    ctl("stop procyard.service procyard.socket");
    assert!(!socket.exists());
}
