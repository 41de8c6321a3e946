//! Started by a service manager: sockets are passed, and it is told what becomes of it.

mod manager;
mod units;

use std::fs;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use procyard::config::inherited::VARIABLES;
use procyard::grpc::pb;
use procyard::store::StateDir;
use rustix::fs::FlockOperation;
use tempfile::TempDir;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::support::service::*;
use crate::support::{SOON, binary, have, soon, until};

/// A service with sockets that were passed to it from descriptor 3 on, as systemd does it.
struct Activated {
    command: Command,
    directory: TempDir,
}

impl Activated {
    fn new() -> Activated {
        Activated::of(Path::new(&binary()), tempfile::tempdir().unwrap())
    }

    fn of(program: &Path, directory: TempDir) -> Activated {
        let mut command = Command::new("/bin/sh");
        // The pid is known only there, and stays the same.
        command.args(["-c", "LISTEN_PID=${LISTEN_PID:-$$}; export LISTEN_PID; exec \"$@\"", "sh"]);
        command.arg(program).args(["serve", "--state-dir"]).arg(directory.path().join("state"));
        command.env("RUST_LOG", "warn").env_remove("LISTEN_PID").stdin(Stdio::null());
        Activated { command, directory }
    }

    /// Passes what is open here.
    fn pass(mut self, sockets: &[&dyn AsFd]) -> Activated {
        let above = 3 + i32::try_from(sockets.len()).unwrap();
        let copy = |socket: &&dyn AsFd| {
            rustix::io::fcntl_dupfd_cloexec(socket.as_fd(), above.max(20)).unwrap()
        };
        let copies: Vec<OwnedFd> = sockets.iter().map(copy).collect();
        self.command.env("LISTEN_FDS", copies.len().to_string());
        self.command.env("LISTEN_FDNAMES", "procyard");
        let pass = move || {
            for (copy, target) in copies.iter().zip(3..) {
                // SAFETY: a system call; what was at the target in this process is not used again.
                if unsafe { libc::dup2(copy.as_raw_fd(), target) } == -1 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: only system calls, and memory that was allocated before the fork.
        unsafe { self.command.pre_exec(pass) };
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Command, &Path)) -> Activated {
        change(&mut self.command, self.directory.path());
        self
    }

    /// A socket where a service is looked for.
    fn socket(&self) -> UnixListener {
        UnixListener::bind(self.directory.path().join("s.sock")).unwrap()
    }

    fn start(mut self) -> TestService {
        TestService { child: self.command.spawn().unwrap(), directory: self.directory }
    }

    /// Starts what cannot start: what it says.
    fn refused(mut self) -> String {
        let Output { status, stderr, .. } = self.command.output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{said}");
        said
    }
}

/// The service manager's end of the notifications.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Manager(socket)
    }

    /// The next message.
    fn next(&self) -> String {
        let mut buffer = [0; 4096];
        let len = self.0.recv(&mut buffer).expect("nothing was told in time");
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    fn has_nothing(&self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let nothing = self.0.recv(&mut [0]).is_err();
        self.0.set_nonblocking(false).unwrap();
        nothing
    }
}

/// Whether one of these processes has the socket with this inode open.
fn holds(pid: u32, socket: &impl AsFd) -> bool {
    let inode = rustix::fs::fstat(socket).unwrap().st_ino;
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let link = format!("socket:[{inode}]");
    open.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok()).any(|to| to.as_os_str() == &*link)
}

fn info() -> pb::GetServerInfoRequest {
    pb::GetServerInfoRequest {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_connected_before_the_service_was_there_is_served_on_the_socket_that_was_passed() {
    let activated = Activated::new();
    let (unix, tcp) = (activated.socket(), TcpListener::bind("127.0.0.1:0").unwrap());
    let early = connect(activated.directory.path().join("s.sock"));
    let early = Client::new(soon(early).await.unwrap());
    let waiting = tokio::spawn({
        let mut early = early.clone();
        async move { soon(early.get_server_info(info())).await }
    });
    let mut service = activated.pass(&[&unix, &tcp]).start();
    waiting.await.unwrap().unwrap();
    // Over TCP it is another's turn to show who they are.
    let address = format!("http://{}", tcp.local_addr().unwrap());
    let far = Endpoint::from_shared(address).unwrap();
    let mut far = Client::new(soon(far.connect()).await.unwrap());
    assert_eq!(refusal(soon(far.get_server_info(info())).await).0, Code::Unauthenticated);
    // Another server serves on them as well.
    service.kill_server();
    let mut client = service.client().await;
    assert_eq!(output_of(&mut client, shell("echo hi")).await, "hi\n");
    service.stop();
    assert!(service.socket().exists(), "it is the manager's file");
    assert!(UnixStream::connect(service.socket()).is_ok(), "and so is the socket");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_to_the_supervisor_is_said_to_nobody_else() {
    let activated = Activated::new();
    let (unix, notify) = (activated.socket(), activated.directory.path().join("notify"));
    let _manager = Manager::at(&notify);
    let activated = activated.pass(&[&unix]).with(|command, _| {
        command.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "1").env("WATCHDOG_PID", "1");
        command.env("LISTEN_PIDFDID", "1").env("SOMETHING_ELSE", "1");
    });
    let service = activated.start();
    let mut client = service.client().await;
    let env = pb::Environment { inherit_all: true, ..Default::default() };
    let inherited =
        output_of(&mut client, pb::Spec { env: Some(env), ..argv(&["/usr/bin/env"]) }).await;
    let environ = fs::read_to_string(format!("/proc/{}/environ", service.server_pid())).unwrap();
    assert!(inherited.contains("SOMETHING_ELSE=1") && environ.contains("SOMETHING_ELSE=1"));
    for name in VARIABLES {
        assert!(!inherited.contains(name), "{inherited}");
        assert!(!environ.contains(name), "{environ}");
    }
    let descriptors = output_of(&mut client, shell("ls /proc/self/fd | wc -l")).await;
    assert!(descriptors.trim().parse::<u32>().unwrap() <= 4, "{descriptors}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_that_were_passed_to_another_are_not_taken() {
    let activated = Activated::new();
    let other = UnixListener::bind(activated.directory.path().join("other")).unwrap();
    let activated = activated.pass(&[&other]).with(|command, directory| {
        let socket = directory.join("s.sock");
        command.env("LISTEN_PID", "1");
        command.arg("--listen").arg(format!("unix://{}", socket.display()));
    });
    let service = activated.start();
    let mut client = service.client().await;
    soon(client.get_server_info(info())).await.unwrap();
    assert!(holds(std::process::id(), &other));
    assert!(!holds(service.child.id(), &other));
    assert!(!holds(service.server_pid().cast_unsigned(), &other));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_listens_where_it_is_asked_to_as_well() {
    let activated = Activated::new();
    let passed = UnixListener::bind(activated.directory.path().join("passed")).unwrap();
    let activated = activated.pass(&[&passed]).with(|command, directory| {
        command.arg("--listen").arg(format!("unix://{}/s.sock", directory.display()));
    });
    let mut service = activated.start();
    for name in ["passed", "s.sock"] {
        // Until it listens there is none.
        service.client().await;
        let channel = soon(connect(service.directory.path().join(name))).await.unwrap();
        soon(Client::new(channel).get_server_info(info())).await.unwrap();
    }
    service.stop();
    assert!(!service.socket().exists(), "this one is its own");
}

#[test]
fn the_rules_for_addresses_hold_for_what_is_passed() {
    let far = TcpListener::bind("0.0.0.0:0").unwrap();
    let said = Activated::new().pass(&[&far]).refused();
    assert!(said.contains(": without credentials procyard listens on loopback only"), "{said}");
    let near = TcpListener::bind("127.0.0.1:0").unwrap();
    let said = Activated::new().pass(&[&near, &fs::File::open("/").unwrap()]).refused();
    assert!(said.contains("descriptor 4 is no socket that listens for streams"), "{said}");
    let more = Activated::new().pass(&[&near]).with(|command, _| {
        command.env("LISTEN_FDS", "40");
    });
    let said = more.refused();
    // Whether it is not open or something else is a matter of who runs the tests.
    assert!(said.contains("LISTEN_FDS: descriptor 4 is no"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manager_is_told_when_it_serves_and_not_before_and_when_it_stops() {
    let directory = tempfile::tempdir().unwrap();
    let [copy, log, notify, own] =
        ["copy", "log", "notify", "own"].map(|name| directory.path().join(name));
    assert!(Command::new("cp").arg(binary()).arg(&copy).status().unwrap().success());
    let executable = |mode| fs::set_permissions(&copy, fs::Permissions::from_mode(mode)).unwrap();
    let manager = Manager::at(&notify);
    // Until it is let into this directory, it starts no server.
    fs::create_dir(&own).unwrap();
    let locked = fs::File::open(&own).unwrap();
    rustix::fs::flock(&locked, FlockOperation::LockExclusive).unwrap();
    let activated = Activated::of(&copy, directory);
    let unix = activated.socket();
    let activated = activated.pass(&[&unix]).with(|command, directory| {
        command.env("NOTIFY_SOCKET", &notify).arg("--log-file").arg(&log);
        command.arg("--listen").arg(format!("unix://{}/own/s", directory.display()));
    });
    let mut service = activated.start();
    let state_dir = service.directory.path().join("state");
    until("it is there", || StateDir::keeper(&state_dir).is_ok_and(|pid| pid.is_some())).await;
    executable(0o600);
    drop(locked);
    let log = || fs::read_to_string(&log).unwrap_or_default();
    until("a server was to be started", || log().contains("the server cannot be started")).await;
    assert!(manager.has_nothing());
    executable(0o700);
    let told = tokio::task::block_in_place(|| manager.next());
    let place = service.directory.path().display();
    let listening = format!("listening on unix://{place}/s.sock, unix://{place}/own/s");
    assert_eq!(told, format!("READY=1\nSTATUS={listening}"));
    soon(service.client().await.get_server_info(info())).await.unwrap();
    tokio::task::block_in_place(|| service.stop());
    assert!(manager.next().starts_with("STOPPING=1\n"));
    assert!(manager.has_nothing());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manager_is_told_of_an_upgrade_and_when_it_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let [copy, broken] = ["copy", "broken"].map(|name| directory.path().join(name));
    assert!(Command::new("cp").arg(binary()).arg(&copy).status().unwrap().success());
    let activated = Activated::of(&copy, directory);
    let (unix, notify) = (activated.socket(), activated.directory.path().join("notify"));
    let manager = Manager::at(&notify);
    let activated = activated.pass(&[&unix]).with(|command, _| {
        command.env("NOTIFY_SOCKET", &notify);
    });
    let service = activated.start();
    tokio::task::block_in_place(|| {
        assert!(manager.next().starts_with("READY=1\n"));
        service.signal(libc::SIGHUP);
        let told = manager.next();
        let (reloading, time) = told.split_once("\nMONOTONIC_USEC=").unwrap();
        let time: u64 = time.lines().next().unwrap().parse().unwrap();
        assert_eq!(reloading, "RELOADING=1");
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.cast_unsigned(), 0) + Duration::from_secs(1);
        assert!(Duration::from_micros(time) <= now);
        assert!(manager.next().starts_with("READY=1\n"));
        // One that is refused is over as well.
        fs::write(&broken, "#!/bin/sh\nexit 1\n").unwrap();
        fs::set_permissions(&broken, fs::Permissions::from_mode(0o700)).unwrap();
        fs::rename(&broken, &copy).unwrap();
        service.signal(libc::SIGHUP);
        // That the last one is over may be told by two who know it.
        while !manager.next().starts_with("RELOADING=1\n") {}
        assert!(manager.next().starts_with("READY=1\n"));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn systemd_itself_starts_it_at_the_first_connection() {
    if !have(&["systemd-socket-activate"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("systemd-socket-activate");
    command.arg("--listen").arg(directory.path().join("s.sock"));
    command.args([&binary(), "serve", "--state-dir"]).arg(directory.path().join("state"));
    command.env("RUST_LOG", "warn").stdin(Stdio::null()).stderr(Stdio::null());
    let service = TestService { child: command.spawn().unwrap(), directory };
    let mut client = service.client().await;
    assert_eq!(output_of(&mut client, shell("echo hi")).await, "hi\n");
    assert_eq!(cmdline(service.child.id())[1], "serve");
}

#[test]
fn upgrade_finds_the_keeper_behind_a_passed_socket() {
    let activated = Activated::new();
    let socket = activated.socket();
    let service = activated.pass(&[&socket]).start();
    let other = TestService::start();
    let upgrade = |state_of: &TestService| {
        let mut command = service.procyard(&["upgrade"]);
        command.env("PROCYARD_STATE_DIR", state_of.directory.path().join("state"));
        command.output().unwrap()
    };
    for service in [&service, &other] {
        assert!(service.procyard(&["info"]).output().unwrap().status.success());
    }
    let before = service.server_pid();
    let refused = upgrade(&other);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("does not listen there"),
        "{refused:?}"
    );
    let upgraded = upgrade(&service);
    assert!(upgraded.status.success(), "{upgraded:?}");
    assert_ne!(service.server_pid(), before);
}
