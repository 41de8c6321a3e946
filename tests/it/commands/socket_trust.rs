//! Which servers the command line trusts: none that another user could have put in its place.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use super::starting_by_itself::{Home, command};
use super::{Running, failed, finished};
use crate::support::callers::KnowingService;
use crate::support::service::TestService;
use crate::support::{NOBODY, SOON, is_root, skip};

/// A user who is neither root nor the one that runs the commands.
const OTHER: u32 = 1;

/// A command without XDG_RUNTIME_DIR.
fn without_runtime_dir(home: &Home, args: &[&str]) -> Command {
    let mut command = command(home.0.path(), args);
    command.env_remove("XDG_RUNTIME_DIR");
    command
}

/// A directory with a socket in it, both another user's.
fn planted(directory: &Path) -> UnixListener {
    fs::create_dir(directory).unwrap();
    let socket = directory.join("procyard.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    for path in [directory, &socket] {
        chown(path, Some(OTHER), Some(OTHER)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    listener.set_nonblocking(true).unwrap();
    listener
}

fn refused(command: Command) {
    refused_with(command, "cannot trust ");
}

fn refused_with(command: Command, words: &str) {
    let (code, said) = failed(command);
    assert!([1, 125].contains(&code), "{said}");
    assert!(said.contains(words) && !said.contains("remove"), "{said}");
}

#[test]
fn a_planted_socket_directory_is_not_used() {
    let Some(home) = Home::new() else { return skip("another user cannot run the program here") };
    if !is_root() {
        return skip("to give a directory to another user needs root");
    }
    let listener = planted(&home.0.path().join(".procyard"));
    for args in [&["ps"][..], &["run", "--", "true"], &["info"], &["stop"], &["upgrade"]] {
        refused(without_runtime_dir(&home, args));
    }
    assert!(listener.accept().is_err(), "a client has connected");
    refused(without_runtime_dir(&home, &["serve"]));
}

#[test]
fn a_planted_directory_for_temporary_files_is_not_used() {
    let Some(home) = Home::new() else { return skip("another user cannot run the program here") };
    if !is_root() {
        return skip("to give a directory to another user needs root");
    }
    let listener = planted(&home.0.path().join(format!("procyard-{NOBODY}")));
    let in_tmp = |args: &[&str]| {
        let mut command = without_runtime_dir(&home, args);
        command.env("HOME", "/nonexistent").env("TMPDIR", home.0.path());
        command
    };
    refused(in_tmp(&["ps"]));
    assert!(listener.accept().is_err(), "a client has connected");
    refused(in_tmp(&["serve"]));
}

#[test]
fn a_runtime_directory_of_another_user_is_not_used() {
    let Some(home) = Home::new() else { return skip("another user cannot run the program here") };
    for args in [&["ps"][..], &["serve"]] {
        let mut command = command(home.0.path(), args);
        command.env("XDG_RUNTIME_DIR", "/");
        let words = "XDG_RUNTIME_DIR is /, which belongs to uid 0: set it to a directory";
        refused_with(command, words);
    }
}

#[test]
fn without_a_runtime_directory_the_socket_is_in_a_private_one() {
    let Some(home) = Home::new() else { return skip("another user cannot run the program here") };
    let run = finished(without_runtime_dir(&home, &["run", "--", "echo", "hi"]));
    assert_eq!(run.stdout, b"hi\n", "{run:?}");
    let directory: PathBuf = home.0.path().join(".procyard");
    assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o7777, 0o700);
    assert_eq!(fs::metadata(directory.join("procyard.sock")).unwrap().mode() & 0o7777, 0o600);
    assert!(finished(without_runtime_dir(&home, &["stop"])).status.success());
}

#[test]
fn a_server_of_another_user_is_trusted_only_when_named() {
    let Some(home) = Home::new() else { return skip("another user cannot run the program here") };
    if !is_root() {
        return skip("a server of another user needs root");
    }
    assert!(home.run(&["run", "--", "true"]).status.success());
    let address = format!("unix://{}", home.0.path().join("run/procyard.sock").display());
    // Any service knows how to ask; this one is not asked.
    let service = TestService::start();
    let ps = |more: &[&str]| service.procyard(&[&["ps", "--server", &address], more].concat());
    let (_, said) = failed(ps(&[]));
    assert!(
        said.contains(&format!("run by uid {NOBODY}; if that is right, pass --server-uid")),
        "{said}"
    );
    refused(ps(&["--server-uid", "1"]));
    let named = finished(ps(&["--server-uid", &NOBODY.to_string()]));
    assert!(named.status.success(), "{named:?}");
}

#[test]
fn only_root_or_its_user_stops_a_server() {
    let Some(home) = Home::new() else { return skip("no other user can run the program") };
    if !is_root() {
        return skip("a server of another user needs root");
    }
    let server = TestService::start();
    // It serves before its files are opened to others.
    assert!(finished(server.procyard(&["info"])).status.success());
    let address = format!("unix://{}", server.socket().display());
    for (path, mode) in [(server.directory.path(), 0o711), (&server.socket(), 0o666)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let stop = command(home.0.path(), &["stop", "--server", &address, "--server-uid", "0"]);
    refused_with(stop, "it is run by uid 0; only that user or root can");
}

#[test]
fn root_upgrades_the_server_of_another_user() {
    let Some(home) = Home::new() else { return skip("no other user can run the program") };
    if !is_root() {
        return skip("a server of another user needs root");
    }
    assert!(home.run(&["run", "--", "true"]).status.success());
    let state = home.0.path().join("state/procyard");
    let mut upgrade = command(home.0.path(), &["upgrade", "--state-dir", state.to_str().unwrap()]);
    upgrade.uid(0).gid(0);
    let upgraded = finished(upgrade);
    assert!(upgraded.status.success(), "{upgraded:?}");
    assert!(upgraded.stdout.starts_with(b"upgraded: "), "{upgraded:?}");
}

/// Listens on loopback, accepts one connection as each of these users and sends what it first read
/// from each. Needs root.
fn record_connections(uids: Vec<u32>) -> (String, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let (sender, received) = channel();
    std::thread::spawn(move || {
        for uid in uids {
            // SAFETY: changes the file system uid of this thread alone.
            unsafe { libc::setfsuid(uid) };
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = vec![0; 4096];
            let read = stream.read(&mut bytes).unwrap_or(0);
            bytes.truncate(read);
            let _ = sender.send(bytes);
        }
    });
    (address, received)
}

#[test]
fn loopback_listener_of_another_user_sees_nothing() {
    let Some(home) = Home::new() else { return skip("no other user can run the program") };
    if !is_root() {
        return skip("a listener of another user needs root");
    }
    let state = home.0.path().join("state/procyard");
    fs::create_dir_all(&state).unwrap();
    let tokens = [None, Some(("in-the-file", None)), Some(("unused", Some("in-the-variable")))];
    for token in tokens {
        let variable = token.and_then(|(file, variable)| {
            fs::write(state.join("token"), file).unwrap();
            variable
        });
        let (address, received) = record_connections(vec![OTHER]);
        let mut ps = command(home.0.path(), &["ps", "--server", &address]);
        ps.envs(variable.map(|token| ("PROCYARD_TOKEN", token)));
        refused_with(ps, "it is run by uid 1; if that is right, pass --server-uid 1");
        assert_eq!(received.recv_timeout(SOON), Ok(Vec::new()), "the listener was sent something");
    }
    let (address, received) = record_connections(vec![OTHER]);
    let named = ["ps", "--server", &address, "--server-uid", "1"];
    let _calling = Running::start(command(home.0.path(), &named));
    assert!(!received.recv_timeout(SOON).unwrap().is_empty(), "a trusted server was sent nothing");
}

#[test]
fn loopback_reconnect_to_another_user_sends_no_token() {
    let Some(home) = Home::new() else { return skip("no other user can run the program") };
    if !is_root() {
        return skip("a listener of another user needs root");
    }
    let (address, received) = record_connections(vec![NOBODY, OTHER]);
    let mut ps = command(home.0.path(), &["ps", "--server", &address]);
    ps.env("PROCYARD_TOKEN", "secret");
    let _calling = Running::start(ps);
    assert!(!received.recv_timeout(SOON).unwrap().is_empty(), "the own user was sent nothing");
    assert_eq!(received.recv_timeout(SOON), Ok(Vec::new()), "another user was sent something");
}

#[tokio::test]
async fn own_server_on_loopback_is_shown_the_token() {
    let service = KnowingService::start(&[("boss", "admin")]).await;
    let address = format!("tcp://{}", service.tcp);
    let mut ps = service.service.procyard(&["ps", "--server", &address]);
    ps.env("PROCYARD_TOKEN", service.token("boss"));
    let listed = finished(ps);
    assert!(listed.status.success(), "{listed:?}");
}
