//! A supervisor that the first command has started.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{Running, failed, finished};
use crate::support::tty::Tty;
use crate::support::{NOBODY, binary, is_root, skip};

/// A command of somebody whose directories are all in this one.
pub(super) fn command(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(args).stdin(Stdio::null()).current_dir(home).env("HOME", home);
    command.env("XDG_RUNTIME_DIR", home.join("run")).env("XDG_STATE_HOME", home.join("state"));
    let ours = |name: &OsString| name.as_encoded_bytes().starts_with(b"PROCYARD_");
    let ours = std::env::vars_os().map(|(name, _)| name).filter(ours);
    for name in ours.chain(["RUST_LOG".into(), "NO_COLOR".into()]) {
        command.env_remove(name);
    }
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// Stops what was started when dropped.
pub(super) struct Home(pub(super) tempfile::TempDir);

impl Home {
    /// None: nobody else can run the program from where it is.
    pub(super) fn new() -> Option<Home> {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        std::fs::create_dir(&run).unwrap();
        if is_root() {
            for path in [place.path(), &run] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        let possible = command(place.path(), &["--version"]).output();
        // Only a home in which commands run has a supervisor to stop.
        possible.is_ok_and(|output| output.status.success()).then(|| Home(place))
    }

    pub(super) fn run(&self, args: &[&str]) -> Output {
        finished(command(self.0.path(), args))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let stopped = self.run(&["stop"]);
        let said = String::from_utf8_lossy(&stopped.stderr);
        let gone = stopped.status.success() || said.contains("no procyard serves");
        assert!(gone || std::thread::panicking(), "{stopped:?}");
    }
}

#[test]
fn the_first_command_starts_it_and_the_next_ones_find_it() {
    let Some(home) = Home::new() else { return skip("another user cannot run the program here") };
    let mut tty = Tty::start(command(home.0.path(), &["run", "--", "echo", "hi"]));
    tty.expect("a supervisor now serves at unix://");
    tty.expect("hi");
    assert_eq!(tty.ended(), 0);
    let next = home.run(&["run", "--", "sh", "-c", "echo hi; exit 3"]);
    assert_eq!((next.status.code(), next.stdout.as_slice()), (Some(3), &b"hi\n"[..]));
    assert!(next.stderr.is_empty(), "{next:?}");
    let stopped = home.run(&["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(!home.run(&["info"]).status.success());
}

#[test]
fn of_several_first_commands_all_reach_one() {
    let Some(home) = Home::new() else { return skip("another user cannot run the program here") };
    let begin = || Running::start(command(home.0.path(), &["run", "--", "echo", "hi"]));
    let all: Vec<_> = (0..4).map(|_| begin()).collect();
    for child in all {
        let output = child.finished();
        assert_eq!(output.stdout, b"hi\n", "{output:?}");
    }
}

#[test]
fn a_server_variable_with_the_usual_socket_starts_it_too() {
    let Some(home) = Home::new() else { return skip("another user cannot run the program here") };
    let usual = format!("unix://{}", home.0.path().join("run/procyard.sock").display());
    let mut run = command(home.0.path(), &["run", "--", "echo", "hi"]);
    run.env("PROCYARD_SERVER", &usual);
    let output = finished(run);
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), &b"hi\n"[..]),
        "{output:?}"
    );
    // Another address is a server of the user's own, which must be there.
    let mut run = command(home.0.path(), &["run", "--", "echo", "hi"]);
    run.env("PROCYARD_SERVER", format!("{usual}.other"));
    assert_eq!(finished(run).status.code(), Some(125));
}

#[test]
fn supervisor_starts_though_its_log_begins_with_foreign_words() {
    let Some(home) = Home::new() else { return skip("no other user can run the program") };
    let ran = || home.run(&["run", "--", "echo", "hi"]);
    assert!(ran().status.success() && home.run(&["stop"]).status.success());
    let log = home.0.path().join("state/procyard/procyard.log");
    let crash = "memory allocation of 8 bytes failed\n";
    fs::write(&log, crash).unwrap();
    let output = ran();
    assert_eq!(output.stdout, b"hi\n", "{output:?}");
    assert!(fs::read_to_string(&log).unwrap().starts_with(crash));
    assert!(home.run(&["stop"]).status.success());
    // A link leads to a file that is another's.
    let foreign = home.0.path().join("foreign");
    fs::write(&foreign, crash).unwrap();
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o666)).unwrap();
    fs::remove_file(&log).unwrap();
    symlink(&foreign, &log).unwrap();
    let output = ran();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("cannot open its log {}: ", log.display())), "{said}");
    assert_eq!(fs::read_to_string(&foreign).unwrap(), crash);
}

#[test]
fn run_fails_at_once_when_its_supervisor_listens_elsewhere() {
    let Some(home) = Home::new() else { return skip("no other user can run the program") };
    assert!(home.run(&["run", "--", "true"]).status.success());
    let mut run = command(home.0.path(), &["run", "--", "true"]);
    run.env_remove("XDG_RUNTIME_DIR");
    let begin = Instant::now();
    let output = finished(run);
    // Far below the 30 s that a supervisor may take to start.
    assert!(begin.elapsed() < Duration::from_secs(15), "{output:?}");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let address = format!("unix://{}", home.0.path().join("run/procyard.sock").display());
    assert!(said.contains(&format!("set PROCYARD_SERVER to {address}")), "{said}");
}

/// A user who is neither root nor the one that runs the commands.
const OTHER: u32 = 1;

/// The uid that commands of a [`Home`] have.
fn uid() -> u32 {
    if is_root() { NOBODY } else { rustix::process::getuid().as_raw() }
}

/// A command without XDG directories whose HOME is this one, or unset.
fn with_home(home: &Home, user_home: Option<&Path>, args: &[&str]) -> Command {
    let mut command = command(home.0.path(), args);
    command.env_remove("XDG_RUNTIME_DIR").env_remove("XDG_STATE_HOME").env_remove("HOME");
    command.envs(user_home.map(|path| ("HOME", path))).env("TMPDIR", home.0.path());
    command
}

#[test]
fn unusable_home_directory_is_replaced_by_a_temporary_one() {
    let Some(home) = Home::new() else { return skip("no other user can run the program") };
    let read_only = home.0.path().join("read-only");
    fs::create_dir(&read_only).unwrap();
    fs::set_permissions(&read_only, fs::Permissions::from_mode(0o555)).unwrap();
    let temporary = home.0.path().join(format!("procyard-{}", uid()));
    for user_home in [Some(Path::new("/nonexistent")), Some(&read_only), None] {
        let mut tty = Tty::start(with_home(&home, user_home, &["run", "--", "echo", "hi"]));
        let socket = temporary.join("procyard.sock");
        tty.expect(&format!("a supervisor now serves at unix://{}", socket.display()));
        if user_home.is_some() {
            let state = temporary.join("state");
            tty.expect("cannot write to the home directory ");
            tty.expect(&format!(": records are in {}; set XDG_STATE_HOME", state.display()));
        }
        tty.expect("hi");
        assert_eq!(tty.ended(), 0);
        assert!(temporary.join("state/procyard.log").exists());
        assert_eq!(fs::metadata(&temporary).unwrap().mode() & 0o7777, 0o700);
        assert!(finished(with_home(&home, user_home, &["stop"])).status.success());
        fs::remove_dir_all(&temporary).unwrap();
    }
}

#[test]
fn planted_temporary_directory_is_not_used_for_state() {
    let Some(home) = Home::new() else { return skip("no other user can run the program") };
    if !is_root() {
        return skip("to give a directory to another user needs root");
    }
    let planted = home.0.path().join(format!("procyard-{NOBODY}"));
    fs::create_dir(&planted).unwrap();
    fs::set_permissions(&planted, fs::Permissions::from_mode(0o777)).unwrap();
    chown(&planted, Some(OTHER), Some(OTHER)).unwrap();
    for args in [&["run", "--", "true"][..], &["serve"]] {
        let mut command = with_home(&home, None, args);
        command.env("XDG_RUNTIME_DIR", home.0.path().join("run"));
        let (_, said) = failed(command);
        let cause = format!("{} belongs to another user (uid {OTHER})", planted.display());
        assert!(said.contains(&cause), "{said}");
        assert!(said.contains("XDG_STATE_HOME") && said.contains("--state-dir"), "{said}");
    }
    assert_eq!(fs::read_dir(&planted).unwrap().count(), 0);
}

#[test]
fn unwritable_state_directory_is_named_with_what_to_do() {
    let Some(home) = Home::new() else { return skip("no other user can run the program") };
    for args in [&["run", "--", "true"][..], &["serve"]] {
        let mut command = command(home.0.path(), args);
        command.env("XDG_STATE_HOME", "/nonexistent/state");
        let mut tty = Tty::start(command);
        tty.expect("cannot make /nonexistent");
        tty.expect("Permission denied");
        tty.expect("set XDG_STATE_HOME to a directory that you can write to");
        tty.expect("--state-dir");
        assert!([1, 125].contains(&tty.ended()));
    }
}
