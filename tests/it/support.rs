//! A keeper of its own for each test, and the words to speak to it.

pub mod callers;
pub mod certificates;
pub mod http2;
pub mod service;
pub mod transcript;
pub mod tty;

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use procyard::keeper_client::{
    Keeper, KeeperError, Output, Report, Reports, Spawned, Welcome, Write,
};
use procyard::process::{Exit, Io, Launch, Refused, Size, Status};
use procyard::protocol::{self, pb};
use procyard::transcript::{Chunk, Stream};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

/// The program under test; `PROCYARD_BINARY` names a copy that another user can execute.
pub fn binary() -> String {
    std::env::var("PROCYARD_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_procyard").into())
}

/// For what must happen soon; generous, because the machine may be busy.
pub const SOON: Duration = Duration::from_secs(60);
/// A user without privileges, for tests that root runs.
pub const NOBODY: u32 = 65534;
pub const PIPES: Io = Io::Pipes { stdin: false, merge_stderr: false };
pub const STDIN: Io = Io::Pipes { stdin: true, merge_stderr: false };
pub const TERMINAL: Io = Io::Terminal(Size { rows: 24, cols: 80 });

/// Awaits something that must happen; panics if it does not.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("it did not happen in time")
}

/// Waits until `condition` holds.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < SOON, "in vain waited until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Signals mean the usual to a command: whoever runs the tests in the background, or by nohup, has
/// some of them ignored, and that is handed down.
pub fn with_usual_signals(command: &mut Command) {
    let usual = || {
        for number in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: gives a signal its usual meaning.
            unsafe { libc::signal(number, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: only system calls.
    unsafe { command.pre_exec(usual) };
}

pub fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Says that a test cannot run here; to be followed by a return.
pub fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

/// Whether all these programs can be found; says so if not.
pub fn have(programs: &[&str]) -> bool {
    let bins = ["/usr/local/bin", "/usr/bin", "/bin"];
    let found = |program: &str| bins.iter().any(|bin| Path::new(bin).join(program).exists());
    let missing = programs.iter().find(|program| !found(program));
    missing.inspect(|program| skip(&format!("no {program} here"))).is_none()
}

/// More of everything that is a matter of volume.
pub fn full_volume() -> bool {
    std::env::var_os("PROCYARD_VOLUME").is_some_and(|volume| volume == "full")
}

/// A keeper process, stopped when dropped.
pub struct TestKeeper {
    pub child: Child,
    pub directory: TempDir,
    /// The child is not the keeper but its parent.
    forked: bool,
}

impl TestKeeper {
    pub fn start() -> TestKeeper {
        TestKeeper::start_with(|_| {})
    }

    /// A keeper whose command was changed, such as to run under a limit.
    pub fn start_with(change: impl FnOnce(&mut Command)) -> TestKeeper {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(binary());
        command.arg("keeper").arg("--control").arg(directory.path().join("control"));
        command.env("RUST_LOG", "warn").stdin(Stdio::null());
        change(&mut command);
        TestKeeper { child: command.spawn().unwrap(), directory, forked: false }
    }

    /// A keeper under a prefix of other commands, such as `unshare`, that execs its arguments.
    pub fn start_under(prefix: &[&str]) -> TestKeeper {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).args([&binary(), "keeper", "--control"]);
        command.arg(directory.path().join("control"));
        command.env("RUST_LOG", "warn").stdin(Stdio::null());
        TestKeeper { child: command.spawn().unwrap(), directory, forked: false }
    }

    /// A keeper as PID 1 of a namespace, if namespaces can be had.
    pub fn start_as_init() -> Option<TestKeeper> {
        let mut prefix = vec!["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"];
        if !is_root() {
            prefix.push("--map-root-user");
        }
        possible(&prefix).then(|| {
            let mut keeper = TestKeeper::start_under(&prefix);
            keeper.forked = true;
            keeper
        })
    }

    /// A keeper as PID 1 of a namespace that has about a hundred pids to give out, if namespaces
    /// have a `pid_max` of their own.
    pub fn start_with_few_pids() -> Option<TestKeeper> {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let prefix = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"];
        if !is_root() || version < (6, 14) || !possible(&prefix) {
            skip("a pid_max of its own for a namespace needs root, Linux 6.14 and unshare");
            return None;
        }
        // The kernel gives those below 300 out only once.
        let script = "echo 400 > /proc/sys/kernel/pid_max && \
                      while [ \"$(sh -c 'echo $$')\" -lt 300 ]; do :; done; exec \"$@\"";
        let mut keeper =
            TestKeeper::start_under(&[&prefix[..], &["sh", "-c", script, "sh"]].concat());
        keeper.forked = true;
        Some(keeper)
    }

    /// A keeper that is not root's: of another user if the test is root, if that user can.
    pub fn start_unprivileged() -> Option<TestKeeper> {
        if !is_root() {
            return Some(TestKeeper::start());
        }
        let able = Command::new(binary()).arg("--help").uid(NOBODY).stdout(Stdio::null()).status();
        able.is_ok_and(|status| status.success()).then(|| {
            TestKeeper::start_with(|command| {
                let control = command.get_args().last().map(Path::new);
                let directory = control.and_then(Path::parent).unwrap();
                std::os::unix::fs::chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
                command.uid(NOBODY).gid(NOBODY);
            })
        })
    }

    /// A keeper that sees no cgroup v2, and so has to walk to find descendants. Needs root.
    pub fn start_without_cgroups() -> TestKeeper {
        TestKeeper::start_with(hide_cgroups)
    }

    pub fn pid(&self) -> u32 {
        let forked = self.forked.then(|| children(self.child.id()).first().copied()).flatten();
        forked.unwrap_or(self.child.id())
    }

    /// Connects as the keeper's server, and adopts.
    pub async fn connect(&self) -> Server {
        let control = self.directory.path().join("control");
        let begin = Instant::now();
        let link = loop {
            match UnixStream::connect(&control) {
                Ok(link) => break link,
                Err(error) => assert!(begin.elapsed() < SOON, "the keeper is not there: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        let (keeper, reports, welcome) = soon(Keeper::connect(link)).await.unwrap();
        let adopted = soon(keeper.adopt()).await.unwrap();
        Server { keeper, reports, welcome, adopted, exits: HashMap::new() }
    }

    /// Living processes that work in the keeper's directory: whatever a launch with it as `cwd`
    /// has left, however it hides.
    pub fn inhabitants(&self) -> Vec<u32> {
        let here = std::fs::canonicalize(self.directory.path()).unwrap();
        let lives_here =
            |pid: &u32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == here);
        pids().filter(lives_here).collect()
    }

    /// Descriptors that the keeper has open.
    pub fn descriptors(&self) -> usize {
        self.open_files().count()
    }

    /// How many rings it has.
    pub fn rings(&self) -> usize {
        let is_ring = |path: &PathBuf| path.to_string_lossy().contains("procyard-ring");
        self.open_files().filter(is_ring).count()
    }

    /// Waits until it has no more descriptors than before: helpers close some later.
    pub async fn has_closed_all_since(&self, before: usize) {
        until("no descriptor is left", || self.descriptors() <= before).await;
    }

    fn open_files(&self) -> impl Iterator<Item = PathBuf> {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        descriptors.map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap_or_default())
    }
}

impl Drop for TestKeeper {
    fn drop(&mut self) {
        // Through a pidfd: one in a namespace is waited for by its parent, not by us.
        let pid = Pid::from_raw(self.pid().cast_signed()).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(40) {
            // Twice and more: the test, in the server's place, ends nothing, so the keeper should
            // not wait for it.
            let _ = pidfd.as_ref().map(|pidfd| pidfd_send_signal(pidfd, Signal::TERM));
            std::thread::sleep(Duration::from_millis(2));
            if self.child.try_wait().unwrap().is_some() {
                return;
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        assert!(std::thread::panicking(), "the keeper did not stop");
    }
}

/// Has a command see no cgroup v2. Needs root.
pub fn hide_cgroups(command: &mut Command) {
    hide_mounts(command, " - cgroup2 ");
}

/// Has a command see no mounts whose line in mountinfo has these words. Needs root.
pub fn hide_mounts(command: &mut Command, words: &str) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(words));
    let points: Vec<CString> =
        mounts.map(|line| CString::new(line.split(' ').nth(4).unwrap()).unwrap()).collect();
    let check = |result| match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    let hide = move || {
        let (private, none) = (libc::MS_REC | libc::MS_PRIVATE, std::ptr::null());
        // SAFETY: system calls that change this process's own mounts, seen by no other.
        unsafe {
            check(libc::unshare(libc::CLONE_NEWNS))?;
            check(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))?;
            let mut points = points.iter();
            points.try_for_each(|at| check(libc::umount2(at.as_ptr(), libc::MNT_DETACH)))
        }
    };
    // SAFETY: only system calls, and memory that was allocated before the fork.
    unsafe { command.pre_exec(hide) };
}

/// The test in the server's place.
pub struct Server {
    pub keeper: Keeper,
    pub reports: Reports,
    pub welcome: Welcome,
    pub adopted: Vec<procyard::keeper_client::Adopted>,
    exits: HashMap<u64, Exit>,
}

/// So that no two processes of a test run have the same id.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Server {
    /// A launch of a shell line with the usual environment.
    pub fn shell(&mut self, line: &str, io: Io) -> Launch {
        self.launch(&["/bin/sh", "-c", line], io)
    }

    /// A launch of a program with the usual environment and an id of its own.
    pub fn launch<A: AsRef<[u8]>>(&mut self, args: &[A], io: Io) -> Launch {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("test-{}-{next}", std::process::id());
        let mut launch = Launch::new(id.clone(), args);
        launch.io = io;
        for (name, value) in [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("PROCYARD_ID", &id)] {
            launch.env.push((name.into(), value.into()));
        }
        if let Io::Terminal(_) = io {
            launch.env.push((b"TERM".to_vec(), b"xterm-256color".to_vec()));
        }
        launch
    }

    pub async fn spawn(&self, launch: Launch) -> Spawned {
        soon(self.keeper.spawn(launch)).await.unwrap()
    }

    /// Starts a shell line.
    pub async fn sh(&mut self, line: &str, io: Io) -> Spawned {
        let launch = self.shell(line, io);
        self.spawn(launch).await
    }

    /// Waits for the exit of a process. Exits of others are kept for their turn.
    pub async fn exit(&mut self, key: u64) -> Exit {
        soon(async {
            while !self.exits.contains_key(&key) {
                match self.reports.next().await.expect("the keeper is gone") {
                    Report::Exited { key, exit } => {
                        let again = self.exits.insert(key, exit);
                        assert_eq!(again, None, "an exit was told twice");
                    }
                    Report::Drained { .. } | Report::Shutdown | Report::Retire => {}
                }
            }
        })
        .await;
        self.exits[&key].clone()
    }

    /// Runs a launch to its end: how it ended, and all it printed.
    pub async fn run(&mut self, launch: Launch) -> (Exit, Vec<Chunk>) {
        let spawned = self.spawn(launch).await;
        let exit = self.exit(spawned.key).await;
        (exit, read_all(&spawned).await)
    }

    /// Runs a shell line to its end: code or signal, and what it printed to stdout or terminal.
    pub async fn output(&mut self, line: &str, io: Io) -> (Status, String) {
        let launch = self.shell(line, io);
        let (exit, chunks) = self.run(launch).await;
        (exit.status, text(&chunks))
    }

    /// The refusal of a launch that cannot be.
    pub async fn refusal(&self, launch: Launch) -> Refused {
        refused(soon(self.keeper.spawn(launch)).await)
    }
}

/// The refusal of a request that cannot be done.
pub fn refused<T: std::fmt::Debug>(answer: Result<T, KeeperError>) -> Refused {
    match answer {
        Err(KeeperError::Refused(refused)) => refused,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// A write at the end of the input.
pub fn typed(data: impl AsRef<[u8]>) -> Write {
    Write { data: bytes::Bytes::copy_from_slice(data.as_ref()), ..Write::default() }
}

/// A write at a place in the input.
pub fn typed_at(offset: u64, data: impl AsRef<[u8]>) -> Write {
    Write { offset: Some(offset), ..typed(data) }
}

/// A server that speaks the bare protocol, for what the client would not say or not tell.
pub struct RawServer {
    stream: UnixStream,
    inbox: bytes::BytesMut,
    last_request: u64,
    /// Everything that came, in order.
    pub log: Vec<pb::from_keeper::Body>,
}

impl RawServer {
    /// Connects to a keeper that has no server.
    pub fn connect(keeper: &TestKeeper) -> RawServer {
        let control = keeper.directory.path().join("control");
        let begin = Instant::now();
        let stream = loop {
            match UnixStream::connect(&control) {
                Ok(stream) => break stream,
                Err(error) => assert!(begin.elapsed() < SOON, "the keeper is not there: {error}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        stream.set_read_timeout(Some(SOON)).unwrap();
        let inbox = bytes::BytesMut::new();
        let mut server = RawServer { stream, inbox, last_request: 0, log: Vec::new() };
        server.hello(protocol::VERSION);
        server.ask(pb::to_keeper::Body::Adopt(pb::Adopt {}));
        server
    }

    /// Says hello in a version.
    pub fn hello(&mut self, version: u32) -> pb::reply::Result {
        self.ask(pb::to_keeper::Body::Hello(pb::Hello { version, release: "test".into() }))
    }

    /// Sends a request and waits for its answer; what comes before it is in the log.
    pub fn ask(&mut self, body: pb::to_keeper::Body) -> pb::reply::Result {
        use std::io::{Read, Write};
        self.last_request += 1;
        let mut bytes = Vec::new();
        let message = pb::ToKeeper { request: self.last_request, body: Some(body) };
        protocol::encode(&message, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
        loop {
            while let Some(message) = protocol::decode::<pb::FromKeeper>(&mut self.inbox).unwrap() {
                self.log.extend(message.body.clone());
                if let Some(pb::from_keeper::Body::Reply(reply)) = message.body
                    && reply.request == self.last_request
                {
                    return reply.result.unwrap();
                }
            }
            let mut buffer = [0; 4096];
            let len = self.stream.read(&mut buffer).expect("no answer in time");
            assert!(len > 0, "the keeper hung up");
            self.inbox.extend_from_slice(&buffer[..len]);
        }
    }
}

/// All that a process printed before its exit, from its first chunk on, and no gap.
pub async fn read_all(spawned: &Spawned) -> Vec<Chunk> {
    read_from(&spawned.output, 1).await
}

/// All that a process printed before its exit, from a chunk on, and no gap.
pub async fn read_from(output: &Output, seq: u64) -> Vec<Chunk> {
    soon(async {
        let mut follower = output.follow(seq);
        let mut chunks = Vec::new();
        while let Some(batch) = follower.next(1 << 20).await.unwrap() {
            assert_eq!(batch.gap, None);
            chunks.extend(batch.chunks);
        }
        chunks
    })
    .await
}

/// Follows a process until what it printed contains `text`.
pub async fn read_until(spawned: &Spawned, wanted: &str) -> String {
    let mut follower = spawned.output.follow(1);
    let mut seen = Vec::new();
    let begin = Instant::now();
    loop {
        let next = tokio::time::timeout(SOON, follower.next(1 << 20)).await;
        let shown = String::from_utf8_lossy(&seen).into_owned();
        let Ok(next) = next else { panic!("no {wanted:?} in {shown:?}") };
        let Some(batch) = next.unwrap() else { panic!("ended without {wanted:?}: {shown:?}") };
        seen.extend(batch.chunks.iter().flat_map(|chunk| chunk.data.iter().copied()));
        if String::from_utf8_lossy(&seen).contains(wanted) {
            return String::from_utf8_lossy(&seen).into_owned();
        }
        assert!(begin.elapsed() < SOON, "no {wanted:?} in {shown:?}");
    }
}

/// The bytes of all chunks of stdout or terminal.
pub fn bytes(chunks: &[Chunk]) -> Vec<u8> {
    let wanted = chunks.iter().filter(|chunk| chunk.stream != Stream::Stderr);
    wanted.flat_map(|chunk| chunk.data.iter().copied()).collect()
}

/// The same as text.
pub fn text(chunks: &[Chunk]) -> String {
    String::from_utf8(bytes(chunks)).expect("not UTF-8")
}

/// What a program prints, as it arrives: a terminal puts a carriage return before each newline.
pub fn as_shown(printed: &[u8], io: Io) -> Vec<u8> {
    let lines = printed.split(|byte| *byte == b'\n').collect::<Vec<_>>();
    match io {
        Io::Terminal(_) => lines.join(&b"\r\n"[..]),
        Io::Pipes { .. } => printed.to_vec(),
    }
}

/// Whether a process lives: exists and is no zombie.
pub fn alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// All pids there are.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The state of a process as `ps` shows it; none: there is no such process.
pub fn state(pid: u32) -> Option<char> {
    stat(pid).first()?.chars().next()
}

/// Takes a lease on a file: what opens it, as an exec does, waits for 45 s by default.
pub fn lease(file: &File) {
    // SAFETY: the signal that asks for the lease back is ignored, and the lease is this file's.
    let leased = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    assert_eq!(leased, 0, "{}", std::io::Error::last_os_error());
}

/// Gives a lease back.
pub fn give_lease_back(file: &File) {
    // SAFETY: the lease is this file's.
    let given = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    assert_eq!(given, 0, "{}", std::io::Error::last_os_error());
}

/// Pids of the zombies that are children of a process.
pub fn zombies(parent: u32) -> Vec<u32> {
    children(parent).into_iter().filter(|pid| matches!(state(*pid), Some('Z' | 'X'))).collect()
}

/// Pids of the children of a process, zombies too, without the helpers of a keeper.
pub fn children(parent: u32) -> Vec<u32> {
    // In this order: a helper that has been reaped has no name, but is no child either.
    pids().filter(|pid| !is_helper(*pid, parent) && is_child(*pid, parent)).collect()
}

/// Pids of the helpers of a keeper.
pub fn helpers(keeper: u32) -> Vec<u32> {
    pids().filter(|pid| is_child(*pid, keeper) && is_helper(*pid, keeper)).collect()
}

fn is_child(pid: u32, parent: u32) -> bool {
    stat(pid).get(1) == Some(&parent.to_string())
}

/// Whether a child is a helper, or one that a keeper has just made and that has neither named itself nor
/// executed a program.
fn is_helper(pid: u32, parent: u32) -> bool {
    let name = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let line = |pid| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let (own, of_parent) = (name(pid), name(parent));
    let is_new =
        || of_parent.starts_with("procyard") && own == of_parent && line(pid) == line(parent);
    own.trim_end() == "procyard-helper" || is_new()
}

/// Fields of `/proc/PID/stat` from the state on; none if there is no such process.
pub fn stat(pid: u32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().map(String::from).collect()
}

/// CPU time of a process, in ticks of which there are 100 a second.
pub fn cpu_ticks(pid: u32) -> u64 {
    let fields = stat(pid);
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Whether `true` can be run under a prefix of other commands.
pub fn possible(prefix: &[&str]) -> bool {
    let mut command = Command::new(prefix[0]);
    command.args(&prefix[1..]).arg("true").stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A file that shell lines wait at, with `read x <FILE`, until the test opens it.
pub struct Gate {
    file: std::fs::File,
    pub path: String,
}

impl Gate {
    pub fn new(directory: &Path) -> Gate {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let path = directory.join("gate");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        // Open for both, so that nobody waits for the other end.
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        Gate { file, path: path.to_str().unwrap().into() }
    }

    /// Lets so many pass.
    pub fn open(&mut self, readers: usize) {
        use std::io::Write;
        self.file.write_all(&b"\n".repeat(readers)).unwrap();
    }
}

/// A port that nobody listens on, and that nobody is given by the kernel before it is used: it
/// lies below those that are given to who asks for any.
pub fn free_port() -> u16 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let given = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let given = given.ok().and_then(|given| given.split_whitespace().next()?.parse().ok());
    let (lowest, lowest_given) = (10_000, given.unwrap_or(32_768).clamp(20_000, 60_000));
    for _ in 0..1000 {
        // Elsewhere in each process: tests of several may run at once.
        let next = NEXT.fetch_add(1, Ordering::Relaxed) + u64::from(std::process::id()) * 97;
        let port = u16::try_from(lowest + next % (lowest_given - lowest)).unwrap();
        if std::net::TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// Sets a resource limit in a command before it runs.
pub fn limit(command: &mut Command, resource: rustix::process::Resource, value: u64) {
    let limit = rustix::process::Rlimit { current: Some(value), maximum: Some(value) };
    // SAFETY: one system call, which is safe between fork and exec.
    unsafe {
        command.pre_exec(move || Ok(rustix::process::setrlimit(resource, limit)?));
    }
}

/// Writes a file that can be executed. Another process writes it: one that a thread of this process forks
/// meanwhile would have it open for writing.
pub fn executable(path: &Path, content: &str) {
    let mut write = Command::new("sh");
    write.args(["-c", "printf %s \"$1\" >\"$2\" && chmod 755 \"$2\"", "sh", content]).arg(path);
    assert!(write.status().unwrap().success());
}
