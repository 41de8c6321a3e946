//! What an earlier keeper of the same state directory left when it was killed: processes, a server.
//!
//! The kernel ends a keeper's children with it, but not their descendants, nor whoever refused
//! that. They are nobody's, and their records are lost: the next keeper ends them before it
//! begins. They are known by their environment, which names a file in the state directory; since
//! that is claimed by then, no living keeper has any of them. Whoever threw that environment away
//! is not found, where there are no cgroups.
//!
//! Its server saves what it can of their output, and ends. One that hangs instead would keep the
//! state directory for ever, and is ended, too: known by the lock that it holds open.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::spawn::{COOKIE, OUTPUT};
use super::tree::{self, Member};
use crate::process::Descendant;
use crate::store::StateDir;

/// How long they are looked for again: who forks while others are killed is found in the end.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long those that were killed are given to be gone.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a server may take to save what was printed and to end. It takes a moment, or seconds
/// if some gigabytes are to be written.
const SAVING: Duration = Duration::from_secs(10);
/// How long the kernel may take to free what a killed one held.
const FREEING: Duration = Duration::from_secs(5);

/// Ends them all. To be called by whoever has claimed the state directory.
pub fn end_what_was_left(state_dir: &Path) {
    end_processes(state_dir);
    end_server(state_dir);
}

/// Waits until no server uses the state directory, and ends one that goes on doing so.
fn end_server(state_dir: &Path) {
    if is_free_within(SAVING, state_dir) {
        return;
    }
    let Ok(Some(lock)) = StateDir::server(state_dir) else { return };
    let found = tree::numbers("/proc");
    let mut servers = found.filter_map(|pid| Member::find(pid, || is_server_of(pid, &lock)));
    match servers.find(|server| tree::signal(server, libc::SIGKILL)) {
        Some(server) => {
            tracing::warn!(pid = server.pid, "the server of an earlier keeper hangs: killed");
            is_free_within(FREEING, state_dir);
        }
        // Whoever wants the lock next says so.
        None => tracing::warn!("a server that cannot be found uses the state directory"),
    }
}

fn is_free_within(patience: Duration, state_dir: &Path) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        // What cannot be looked at is for whoever uses it to complain about.
        if !StateDir::server(state_dir).is_ok_and(|lock| lock.is_some()) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a process is a server that holds this lock.
fn is_server_of(pid: i32, lock: &File) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_server = line.split(|byte| *byte == 0).nth(1) == Some(b"server");
    is_server && StateDir::is_open_in(pid.cast_unsigned(), lock)
}

fn end_processes(state_dir: &Path) {
    let own = ancestors();
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        // A keeper may be started by what an earlier one started: that is not left behind.
        let found = tree::numbers("/proc").filter(|pid| !own.contains(pid));
        let left: Vec<Member> =
            found.filter_map(|pid| Member::find(pid, || is_of(pid, state_dir))).collect();
        if left.is_empty() {
            return;
        }
        for member in &left {
            // While it has an environment.
            let process = tree::cookie(member.pid);
            if tree::signal(member, libc::SIGKILL) {
                let Descendant { pid, command } = member.describe();
                tracing::warn!(process, pid, command, "left running: killed");
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a process descends from one that was started for this state directory. The same path
/// may be another directory where another file system is mounted, as in a container.
fn is_of(pid: i32, state_dir: &Path) -> bool {
    let Some(output) = tree::variable(pid, OUTPUT) else { return false };
    let place = Path::new(std::ffi::OsStr::from_bytes(&output)).parent();
    if place != Some(&state_dir.join("outputs")) || tree::variable(pid, COOKIE).is_none() {
        return false;
    }
    let theirs = Path::new("/proc").join(pid.to_string()).join("root");
    let theirs = theirs.join(state_dir.strip_prefix("/").unwrap_or(state_dir));
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let ours = identity(state_dir);
    ours.is_some() && identity(&theirs) == ours
}

/// This process, and all that it descends from.
fn ancestors() -> Vec<i32> {
    let own = std::process::id().cast_signed();
    std::iter::successors(Some(own), |pid| tree::parent(*pid).filter(|parent| *parent > 0))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_does_not_end_itself_nor_whom_it_descends_from() {
        let own = ancestors();
        assert_eq!(own[0], std::process::id().cast_signed());
        assert_eq!(own.get(1).copied(), Some(std::os::unix::process::parent_id().cast_signed()));
    }

    #[test]
    fn who_names_another_directory_is_another_s() {
        let variables = |output: &str| {
            let mut command = std::process::Command::new("sleep");
            command.arg("600").env_clear().env("PATH", "/usr/bin:/bin");
            command.env("PROCYARD_ID", "a").env("PROCYARD_OUTPUT", output);
            command.spawn().unwrap()
        };
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state");
        for below in ["state/outputs", "state2/outputs", "state/two/outputs"] {
            std::fs::create_dir_all(place.path().join(below)).unwrap();
        }
        for (output, expected) in [
            ("state/outputs/1", true),
            ("state2/outputs/1", false),
            ("state/two/outputs/1", false),
            ("other/1", false),
        ] {
            let output = place.path().join(output);
            let mut child = variables(output.to_str().unwrap());
            let pid = child.id().cast_signed();
            // It has its variables when it executes its program.
            let begin = Instant::now();
            while tree::variable(pid, OUTPUT).as_deref() != Some(output.as_os_str().as_bytes()) {
                assert!(begin.elapsed() < Duration::from_secs(60), "it has no variables");
                std::thread::sleep(Duration::from_millis(1));
            }
            let found = is_of(pid, &state);
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found, expected, "{output:?}");
        }
    }
}
