//! A disk of its own for a service, and what must be possible whatever becomes of it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use procyard::grpc::pb;
use tempfile::TempDir;

use crate::support::service::*;
use crate::support::{Gate, alive, is_root, skip, soon, until};

/// A file system of its own, gone when dropped.
pub(super) struct Disk(TempDir);

impl Disk {
    pub(super) fn mount(options: &str) -> Disk {
        let place = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(place.path());
        assert!(mount.status().unwrap().success());
        Disk(place)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Whether it could be made read-only, or to be written again.
    pub(super) fn remount(&self, access: &str) -> bool {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{access}")]).arg(self.path());
        mount.stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// A service whose state directory is a disk of 1 MB.
pub(super) struct SmallDisk {
    // First: it ends before its disk goes.
    pub(super) service: TestService,
    disk: Disk,
}

impl SmallDisk {
    /// None, and a word about it, if this test may not mount.
    pub(super) fn start() -> Option<SmallDisk> {
        if !is_root() {
            skip("mounting needs root");
            return None;
        }
        let disk = Disk::mount("size=1m");
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(disk.path(), directory.path().join("state")).unwrap();
        let child = TestService::command(directory.path(), |_| {}).spawn().unwrap();
        Some(SmallDisk { service: TestService { child, directory }, disk })
    }

    /// Leaves no byte free.
    pub(super) fn fill(&self) -> Filler {
        self.fill_but(0)
    }

    /// Leaves about so many bytes free.
    pub(super) fn fill_but(&self, left: u64) -> Filler {
        let path = self.disk.path().join("filler");
        let mut file = File::create(&path).unwrap();
        let mut length = 0;
        while let Ok(written) = file.write(&[7; 4096]) {
            length += written as u64;
        }
        file.set_len(length.saturating_sub(left)).unwrap();
        Filler(path)
    }

    pub(super) fn remount(&self, access: &str) -> bool {
        self.disk.remount(access)
    }

    /// The store is whole after all that.
    pub(super) fn check(&mut self) {
        self.service.stop();
        let database = rusqlite::Connection::open(self.disk.path().join("procyard.db")).unwrap();
        let check = "PRAGMA integrity_check";
        let found: String = database.query_row(check, [], |row| row.get(0)).unwrap();
        assert_eq!(found, "ok");
        let aside = fs::read_dir(self.disk.path()).unwrap().flatten();
        let aside = aside.filter(|entry| entry.file_name().to_string_lossy().contains("damaged"));
        assert_eq!(aside.count(), 0, "it was taken for damaged");
    }
}

/// What takes up the room.
pub(super) struct Filler(PathBuf);

impl Filler {
    pub(super) fn free(self) {
        fs::remove_file(self.0).unwrap();
    }
}

/// Processes that live while the disk does not.
pub(super) struct Lives {
    gate: std::sync::Mutex<Gate>,
    pub(super) doomed: u32,
    ends: u32,
}

impl Lives {
    /// "typed" answers what is typed, "ends" ends when it is let, "doomed" is to be killed, "done"
    /// has ended.
    pub(super) async fn begin(service: &TestService, client: &mut Client) -> Lives {
        let gate = Gate::new(service.directory.path());
        let line = format!("read x <{}; echo last; exit 6", gate.path);
        let ends = begin(client, "ends", shell(&line)).await.pid;
        let doomed = begin(client, "doomed", shell("exec sleep 600")).await.pid;
        finish(client, "done", shell("true")).await;
        begin(client, "typed", with_stdin(shell("while read x; do echo got $x; done"))).await;
        Lives { gate: std::sync::Mutex::new(gate), doomed, ends }
    }

    /// Typing, following, reading, listing and watching go on.
    pub(super) async fn can_be_used(&self, client: &mut Client, word: &str) {
        let follow = pb::FollowRequest { id: "typed".into(), ..Default::default() };
        let mut following = soon(client.follow(follow)).await.unwrap().into_inner();
        let input = pb::write_stdin_request::Input::Text(format!("{word}\n"));
        let write = pb::WriteStdinRequest {
            id: "typed".into(),
            input: Some(input),
            wait: Some(until_output(&format!("got {word}"))),
            ..Default::default()
        };
        let written = soon(client.write_stdin(write)).await.unwrap().into_inner();
        assert!(written.wait.unwrap().met);
        let mut seen = String::new();
        while !seen.contains(&format!("got {word}")) {
            let message = soon(following.message()).await.unwrap().unwrap();
            seen.push_str(&format!("{message:?}"));
        }
        assert!(printed(client, "typed").await.ends_with(&format!("got {word}\n")));
        assert_eq!(get(client, "typed").await.state(), pb::State::Running);
        assert!(list(client).await.len() >= 4);
        assert!(story(client, "done").await.ends_with(&[pb::Kind::Completed]));
    }

    /// Lets "ends" end.
    pub(super) async fn end(&self) {
        self.gate.lock().unwrap().open(1);
        let ends = self.ends;
        until("it has ended", || !alive(ends)).await;
    }

    /// What ended meanwhile is recorded and told, once.
    pub(super) async fn is_told_once(&self, client: &mut Client) {
        assert_eq!(exit(&ended(client, "ends").await).code, Some(6));
        assert_eq!(printed(client, "ends").await, "last\n");
        assert_eq!(story(client, "ends").await, [pb::Kind::Started, pb::Kind::Completed]);
        let doomed = exit(&ended(client, "doomed").await).clone();
        assert_eq!((doomed.cause(), doomed.signal), (pb::Cause::Killed, Some(9)));
        let told = story(client, "doomed").await;
        assert_eq!(told.iter().filter(|kind| **kind == pb::Kind::Completed).count(), 1);
        assert_eq!(told.last(), Some(&pb::Kind::Completed));
    }
}

/// Starts until one is refused: what room there was is used up then.
pub(super) async fn until_refused(client: &mut Client, prefix: &str) -> tonic::Status {
    for n in 0..500 {
        let long = pb::Spec { description: "x".repeat(60), ..shell("true") };
        let long = pb::Spec { cwd: "/".repeat(3000), ..long };
        if let Err(refused) = soon(client.start(start(&format!("{prefix}{n}"), long))).await {
            assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
            assert_eq!(reason(&refused), "STORE_FAILED");
            return refused;
        }
    }
    panic!("none of so many was refused");
}

/// Whatever would begin is refused, and is not there.
pub(super) async fn refuses_all(client: &mut Client) {
    let refused = (tonic::Code::Unavailable, "STORE_FAILED".to_owned());
    let begins = start("never", shell("true"));
    assert_eq!(refusal(soon(client.start(begins)).await), refused);
    // The first is live, or would be: the second would wait.
    for id in ["never-1", "never-2"] {
        let waits = start(id, in_queue("q", shell("true")));
        assert_eq!(refusal(soon(client.start(waits)).await), refused);
    }
    let before = get(client, "done").await;
    assert_eq!(refusal(soon(client.run(run_again("done"))).await), refused);
    assert_eq!(get(client, "done").await, before);
    for id in ["never", "never-1", "never-2"] {
        let gone = soon(client.get(pb::GetRequest { id: id.into() })).await;
        assert_eq!(refusal(gone), (tonic::Code::NotFound, "PROCESS_NOT_FOUND".into()));
    }
}

/// Starts again until it is not refused.
pub(super) async fn until_ok(client: &mut Client) {
    let again = async {
        while client.start(start("again", shell("true"))).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    soon(again).await;
    ended(client, "again").await;
}

/// How far files of a process may grow.
pub(super) fn limit_files(pid: i32, bytes: Option<u64>) {
    let most = bytes.unwrap_or(libc::RLIM_INFINITY);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads a limit that lives long enough.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0);
}

/// Runs `procyard serve` where it cannot: the line that it says.
pub(super) fn serve_fails(directory: &Path) -> String {
    let output = TestService::command(directory, |_| {}).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    said
}
