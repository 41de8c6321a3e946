//! `procyard serve`: sockets, a server that comes back, and an orderly end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{SOON, binary};

/// `procyard serve` on a socket of its own, ended when dropped.
struct Serve {
    child: Child,
    log: BufReader<ChildStderr>,
    directory: tempfile::TempDir,
}

impl Serve {
    fn start() -> Serve {
        let directory = tempfile::tempdir().unwrap();
        let mut child = serve(&directory.path().join("new/p.sock")).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Serve { child, log, directory }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("new/p.sock")
    }

    /// Reads the log up to the next line that has these words.
    fn wait_for(&mut self, words: &str) -> String {
        let mut line = String::new();
        while self.log.read_line(&mut line).unwrap() > 0 {
            if line.contains(words) {
                return line;
            }
            line.clear();
        }
        panic!("the log ended without {words:?}");
    }

    /// The pid of the server, when it has said that it serves.
    fn wait_for_server(&mut self) -> i32 {
        let line = self.wait_for("server started");
        self.wait_for("serving");
        line.rsplit_once("pid=").unwrap().1.trim().parse().unwrap()
    }

    fn signal(&self, signal: i32) {
        kill(self.child.id().cast_signed(), signal);
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.signal(libc::SIGTERM);
            self.child.wait().unwrap();
        }
    }
}

fn serve(socket: &Path) -> Command {
    // Not in a directory that it is to make itself.
    let mut command = procyard(socket.ancestors().find(|place| place.is_dir()).unwrap());
    command.args(["--listen", &format!("unix://{}", socket.display())]);
    command.env("RUST_LOG", "info").stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// `procyard serve` with a state directory of its own, below or beside this one.
fn procyard(place: &Path) -> Command {
    static STATES: AtomicU32 = AtomicU32::new(0);
    let state = format!("state-{}", STATES.fetch_add(1, Ordering::Relaxed));
    let mut command = Command::new(binary());
    command.arg("serve").arg("--state-dir").arg(place.join(state));
    command
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: signals a process that this test started and nobody has waited for.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

#[test]
fn the_socket_is_its_owner_s_alone() {
    let mut serve = Serve::start();
    serve.wait_for("serving");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&serve.socket()), 0o600);
    assert_eq!(mode(serve.socket().parent().unwrap()), 0o700);
}

#[test]
fn a_server_that_dies_is_started_again_and_clients_wait_in_the_backlog() {
    let mut serve = Serve::start();
    for _ in 0..3 {
        let server = serve.wait_for_server();
        kill(server, libc::SIGKILL);
        UnixStream::connect(serve.socket()).expect("the keeper holds the socket");
        serve.wait_for("the server died");
    }
    serve.wait_for_server();
}

#[test]
fn both_end_in_order_on_sigterm_and_on_sigint() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut serve = Serve::start();
        let server = serve.wait_for_server();
        serve.signal(signal);
        assert!(serve.child.wait().unwrap().success());
        assert!(!Path::new(&format!("/proc/{server}")).exists(), "the server is left behind");
        assert!(!serve.socket().exists(), "the socket is left behind");
    }
}

#[test]
fn the_server_ends_when_its_keeper_is_killed() {
    let mut serve = Serve::start();
    let server = serve.wait_for_server();
    serve.signal(libc::SIGKILL);
    serve.child.wait().unwrap();
    let begin = std::time::Instant::now();
    while crate::support::alive(server.cast_unsigned()) {
        assert!(begin.elapsed() < SOON, "the server lives on without its keeper");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_second_instance_is_refused_and_a_stale_socket_is_replaced() {
    let mut first = Serve::start();
    first.wait_for("serving");
    let second = serve(&first.socket()).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("another instance listens there"), "{said}");

    let directory = tempfile::tempdir().unwrap();
    let stale = directory.path().join("p.sock");
    drop(UnixListener::bind(&stale).unwrap());
    let mut child = serve(&stale).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("serving")));
    kill(child.id().cast_signed(), libc::SIGTERM);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_bad_address_is_refused_with_the_reason() {
    let place = tempfile::tempdir().unwrap();
    let listen = |address: &str| {
        let output = procyard(place.path()).args(["--listen", address]).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(listen("tcp://0.0.0.0:1").contains("loopback only"));
    assert!(listen("http://x").contains("use unix:///path"));
}

#[test]
fn only_what_is_stale_and_its_own_is_removed() {
    let mut first = Serve::start();
    first.wait_for("serving");
    let address = format!("unix://{}", first.socket().display());
    let file = first.directory.path().join("file");
    fs::write(&file, "kept").unwrap();
    let with = |other: &str| {
        let other_socket = format!("unix://{}", first.directory.path().join("other").display());
        let mut command = procyard(first.directory.path());
        command.args(["--listen", &other_socket, "--listen", other]);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(with(&format!("unix://{}", file.display())).contains("exists and is no socket"));
    assert!(with(&address).contains("another instance listens there"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    assert!(!first.directory.path().join("other").exists(), "left by a start that failed");
    UnixStream::connect(first.socket()).expect("a start that failed took the socket away");

    // Another instance's by the time that the first one stops.
    fs::remove_file(first.socket()).unwrap();
    let _second = UnixListener::bind(first.socket()).unwrap();
    first.signal(libc::SIGTERM);
    assert!(first.child.wait().unwrap().success());
    assert!(first.socket().exists());
}
