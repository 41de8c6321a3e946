//! A whole procyard of its own for each test, and the words of its API.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use procyard::grpc::pb::process_service_client::ProcessServiceClient;
use procyard::grpc::pb::{self, spec, wait_for, watch_response};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic_types::{ErrorDetails, StatusExt};

use super::{Gate, SOON, alive, binary, children, soon};

pub type Client = ProcessServiceClient<Channel>;

/// `procyard serve` on a socket and a state directory of its own, ended when dropped.
pub struct TestService {
    pub child: Child,
    pub directory: TempDir,
}

impl TestService {
    pub fn start() -> TestService {
        TestService::start_with(|_| {})
    }

    /// A service whose command was changed, such as to have more options.
    pub fn start_with(change: impl FnOnce(&mut Command)) -> TestService {
        let directory = tempfile::tempdir().unwrap();
        let child = TestService::command(directory.path(), change).spawn().unwrap();
        TestService { child, directory }
    }

    /// A service whose command was changed, under a prefix of other commands, such as `unshare`, that
    /// execs its arguments.
    pub fn start_under(under: &[&str], change: impl FnOnce(&mut Command)) -> TestService {
        let directory = tempfile::tempdir().unwrap();
        let inner = TestService::command(directory.path(), change);
        let mut command = Command::new(under[0]);
        command.args(&under[1..]).arg(inner.get_program()).args(inner.get_args());
        command.env("RUST_LOG", "warn").stdin(Stdio::null());
        TestService { child: command.spawn().unwrap(), directory }
    }

    /// A service from a file of its own, `procyard` in its directory, that a test may replace.
    pub fn start_from_copy() -> TestService {
        TestService::start_from_copy_with(|_| {})
    }

    /// The same whose command was changed.
    pub fn start_from_copy_with(change: impl FnOnce(&mut Command)) -> TestService {
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("procyard");
        if std::fs::hard_link(binary(), &copy).is_err() {
            // By another process: whom other tests start meanwhile would have the copy open for
            // writing, had this one written it, and it could not be executed.
            let mut copying = Command::new("cp");
            assert!(copying.arg(binary()).arg(&copy).status().unwrap().success());
        }
        let child = TestService::command_of(&copy, directory.path(), change).spawn().unwrap();
        TestService { child, directory }
    }

    /// The command of a service in a directory.
    pub fn command(directory: &Path, change: impl FnOnce(&mut Command)) -> Command {
        TestService::command_of(binary().as_ref(), directory, change)
    }

    fn command_of(program: &Path, directory: &Path, change: impl FnOnce(&mut Command)) -> Command {
        let mut command = Command::new(program);
        command.arg("serve");
        command.arg("--listen").arg(format!("unix://{}", directory.join("s.sock").display()));
        command.arg("--state-dir").arg(directory.join("state"));
        command.env("RUST_LOG", "warn").stdin(Stdio::null());
        // What was said to whoever runs the tests is not for it.
        procyard::config::inherited::VARIABLES.iter().for_each(|name| {
            command.env_remove(name);
        });
        change(&mut command);
        command
    }

    /// Ends it as a person would, and starts it anew in the same directory.
    pub fn restart(&mut self) {
        self.stop();
        self.begin_anew(|_| {});
    }

    /// Starts it in the same directory when it has ended.
    pub fn begin_anew(&mut self, change: impl FnOnce(&mut Command)) {
        self.child.wait().unwrap();
        self.child = TestService::command(self.directory.path(), change).spawn().unwrap();
        // The socket is its own by then: who connects before may reach what is left of a server
        // that was killed.
        self.server_pid();
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("s.sock")
    }

    /// A command of procyard that asks this service.
    pub fn procyard(&self, args: &[&str]) -> Command {
        // Until it listens, there is no socket to be asked at.
        let begin = Instant::now();
        while std::os::unix::net::UnixStream::connect(self.socket()).is_err() {
            assert!(begin.elapsed() < SOON, "it does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut command = Command::new(binary());
        command.args(args).env("PROCYARD_SERVER", format!("unix://{}", self.socket().display()));
        command.stdin(Stdio::null()).current_dir(self.directory.path());
        for name in ["NO_COLOR", "RUST_LOG", "PROCYARD_TOKEN", "PROCYARD_ID"] {
            command.env_remove(name);
        }
        command
    }

    /// A client, when the service can be reached.
    pub async fn client(&self) -> Client {
        Client::new(self.channel().await).max_decoding_message_size(8 << 20)
    }

    /// A connection of its own.
    pub async fn channel(&self) -> Channel {
        let connecting = async {
            // Until it listens, there is no socket, or a stale one.
            loop {
                match connect(self.socket()).await {
                    Ok(channel) => return channel,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        soon(connecting).await
    }

    /// The pid of the server process, the keeper's first child.
    pub fn server_pid(&self) -> i32 {
        let keeper = self.child.id();
        let is_server = |pid: &u32| cmdline(*pid).get(1).is_some_and(|arg| arg == "server");
        // Between two servers there is none.
        let begin = Instant::now();
        while begin.elapsed() < SOON {
            if let Some(server) = children(keeper).into_iter().find(is_server) {
                return server.cast_signed();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("the keeper has no server");
    }

    /// Whom the keeper has besides its server: the processes that it started, and orphans.
    pub fn inmates(&self) -> Vec<u32> {
        let server = |pid: &u32| cmdline(*pid).get(1).is_some_and(|arg| arg == "server");
        let mut inmates = children(self.child.id());
        inmates.retain(|pid| alive(*pid) && !server(pid));
        inmates.sort_unstable();
        inmates
    }

    /// Ends the server process as an accident would. The keeper starts another.
    pub fn kill_server(&self) {
        let server = self.server_pid();
        kill_pid(server, libc::SIGKILL);
        // Until then it could take one more connection along.
        while alive(server.cast_unsigned()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn signal(&self, signal: i32) {
        kill_pid(self.child.id().cast_signed(), signal);
    }

    pub fn stop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.signal(libc::SIGTERM);
            self.child.wait().unwrap();
        }
    }
}

impl Drop for TestService {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Arguments of a process; none if there is no such process.
pub fn cmdline(pid: u32) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|arg| String::from_utf8_lossy(arg).into_owned()).collect()
}

/// Signals a process that this test has started.
pub fn kill_pid(pid: i32, signal: i32) {
    assert!(pid > 1);
    // SAFETY: a signal to one process.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Connects to the socket of a service.
pub async fn connect(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(SOON);
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(socket).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    endpoint.connect_with_connector(connector).await
}

/// A shell line on pipes.
pub fn shell(line: &str) -> pb::Spec {
    pb::Spec { program: Some(spec::Program::Shell(line.into())), ..pb::Spec::default() }
}

/// A program on pipes.
pub fn argv(args: &[&str]) -> pb::Spec {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let argv = pb::Argv { args, raw_args: Vec::new() };
    pb::Spec { program: Some(spec::Program::Argv(argv)), ..pb::Spec::default() }
}

/// The same with a pipe for stdin.
pub fn with_stdin(spec: pb::Spec) -> pb::Spec {
    let pipes = pb::Pipes { stdin: true, merge_stderr: false };
    pb::Spec { io: Some(spec::Io::Pipes(pipes)), ..spec }
}

/// The same on a terminal.
pub fn on_terminal(spec: pb::Spec) -> pb::Spec {
    pb::Spec { io: Some(spec::Io::Terminal(pb::Terminal::default())), ..spec }
}

/// A request to start it.
pub fn start(id: &str, spec: pb::Spec) -> pb::StartRequest {
    pb::StartRequest { id: id.into(), spec: Some(spec), wait: None, view: None }
}

/// The same, to be answered when it has ended.
pub fn run(id: &str, spec: pb::Spec) -> pb::StartRequest {
    pb::StartRequest { wait: Some(until_exit()), ..start(id, spec) }
}

/// Waits for the end.
pub fn until_exit() -> pb::WaitFor {
    pb::WaitFor { until: Some(wait_for::Until::Exit(wait_for::Exit {})), timeout: None }
}

/// Waits for output that matches.
pub fn until_output(regex: &str) -> pb::WaitFor {
    let output = wait_for::Output { regex: regex.into() };
    pb::WaitFor { until: Some(wait_for::Until::Output(output)), timeout: None }
}

/// Waits for a pause in the output.
pub fn until_quiet(milliseconds: u32) -> pb::WaitFor {
    let quiet = wait_for::Quiet { r#for: Some(millis(milliseconds)) };
    pb::WaitFor { until: Some(wait_for::Until::Quiet(quiet)), timeout: None }
}

/// The same for so long at most.
pub fn within(milliseconds: u32, wait: pb::WaitFor) -> pb::WaitFor {
    pb::WaitFor { timeout: Some(millis(milliseconds)), ..wait }
}

/// Waits until it is ready.
pub fn until_ready() -> pb::WaitFor {
    pb::WaitFor { until: Some(wait_for::Until::Ready(wait_for::Ready {})), timeout: None }
}

/// The same in a queue.
pub fn in_queue(queue: &str, spec: pb::Spec) -> pb::Spec {
    pb::Spec { queue: queue.into(), ..spec }
}

/// The same as a service.
pub fn as_service(name: &str, spec: pb::Spec) -> pb::Spec {
    pb::Spec { mode: pb::Mode::Service.into(), service: name.into(), ..spec }
}

/// The same as a service that is restarted, after pauses of a hundredth of a second at first.
pub fn restarted(policy: pb::restart::Policy, spec: pb::Spec) -> pb::Spec {
    let restart = pb::Restart {
        policy: policy.into(),
        backoff_min: Some(millis(10)),
        ..pb::Restart::default()
    };
    pb::Spec { restart: Some(restart), ..as_service("s", spec) }
}

/// The same, to be stopped in another way.
pub fn stopped_by(signal: &str, grace: u32, spec: pb::Spec) -> pb::Spec {
    let stop = pb::Stop { signal: signal.into(), grace: Some(millis(grace)) };
    pb::Spec { stop: Some(stop), ..spec }
}

/// A shell line that says "ready" and then takes no SIGTERM for an answer.
pub fn stubborn(grace: u32) -> pb::Spec {
    // What is ignored stays ignored in what is executed.
    stopped_by("TERM", grace, shell("trap '' TERM; echo ready; exec sleep 600"))
}

/// A shell line that says "ready", takes no SIGTERM for an answer, and ends at the gate.
pub fn patient(gate: &Gate) -> pb::Spec {
    let line = format!("trap '' TERM; echo ready; read x <{}", gate.path);
    stopped_by("TERM", 600_000, shell(&line))
}

/// Starts a process.
pub async fn begin(client: &mut Client, id: &str, spec: pb::Spec) -> pb::Process {
    soon(client.start(start(id, spec))).await.unwrap().into_inner().process.unwrap()
}

/// Starts a process, and waits until it has said so.
pub async fn begin_ready(client: &mut Client, id: &str, spec: pb::Spec) -> pb::Process {
    let request = pb::StartRequest { wait: Some(until_output("ready")), ..start(id, spec) };
    let answer = soon(client.start(request)).await.unwrap().into_inner();
    assert!(answer.wait.unwrap().met, "it ended before it was ready");
    answer.process.unwrap()
}

/// Runs a process to its end.
pub async fn finish(client: &mut Client, id: &str, spec: pb::Spec) -> pb::StartResponse {
    soon(client.start(run(id, spec))).await.unwrap().into_inner()
}

/// Runs a process to its end: what it printed to stdout.
pub async fn output_of(client: &mut Client, spec: pb::Spec) -> String {
    text(&finish(client, "", spec).await.chunks, pb::Stream::Stdout)
}

/// A record.
pub async fn get(client: &mut Client, id: &str) -> pb::Process {
    let request = pb::GetRequest { id: id.into() };
    soon(client.get(request)).await.unwrap().into_inner().process.unwrap()
}

/// The record of a process, when it has ended.
pub async fn ended(client: &mut Client, id: &str) -> pb::Process {
    let request = pb::WaitRequest { wait: Some(until_exit()), ..wait_for_it(id) };
    soon(client.wait(request)).await.unwrap().into_inner().process.unwrap()
}

/// A request to wait, without what for.
pub fn wait_for_it(id: &str) -> pb::WaitRequest {
    pb::WaitRequest { id: id.into(), ..pb::WaitRequest::default() }
}

/// A request to kill.
pub fn kill(id: &str) -> pb::KillRequest {
    let target = Some(pb::kill_request::Target::Id(id.into()));
    pb::KillRequest { target, ..pb::KillRequest::default() }
}

/// The same with SIGKILL at once.
pub fn kill_at_once(id: &str) -> pb::KillRequest {
    pb::KillRequest { force: true, ..kill(id) }
}

/// A request to run it again.
pub fn run_again(id: &str) -> pb::RunRequest {
    pb::RunRequest { id: id.into(), force: false }
}

/// The same, whatever it left.
pub fn run_by_force(id: &str) -> pb::RunRequest {
    pb::RunRequest { force: true, ..run_again(id) }
}

/// All that is kept of what it printed to stdout.
pub async fn printed(client: &mut Client, id: &str) -> String {
    let request = pb::ReadRequest { id: id.into(), ..Default::default() };
    text(&soon(client.read(request)).await.unwrap().into_inner().chunks, pb::Stream::Stdout)
}

/// All records, newest first.
pub async fn list(client: &mut Client) -> Vec<pb::Process> {
    let mut request = pb::ListRequest { page_size: 1000, ..pb::ListRequest::default() };
    let mut all = Vec::new();
    loop {
        let page = soon(client.list(request.clone())).await.unwrap().into_inner();
        all.extend(page.processes);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return all;
        }
    }
}

/// The ids of processes.
pub fn ids(processes: &[pb::Process]) -> Vec<&str> {
    processes.iter().map(|process| process.id.as_str()).collect()
}

/// How a process ended, which it must have.
pub fn exit(process: &pb::Process) -> &pb::Exit {
    assert_eq!(process.state(), pb::State::Exited);
    process.exit.as_ref().unwrap()
}

/// Code and reason of a refusal.
pub fn refusal<T: std::fmt::Debug>(answer: Result<T, tonic::Status>) -> (tonic::Code, String) {
    let status = answer.expect_err("it was not refused");
    (status.code(), reason(&status))
}

/// A stream of events.
pub struct Watcher(pub tonic::Streaming<pb::WatchResponse>);

impl Watcher {
    pub async fn open(client: &mut Client, request: pb::WatchRequest) -> Watcher {
        let mut watcher = Watcher(soon(client.watch(request)).await.unwrap().into_inner());
        let first = watcher.message().await;
        assert!(matches!(first, Some(watch_response::Message::Heartbeat(_))), "{first:?}");
        watcher
    }

    /// From after an event on.
    pub async fn since(client: &mut Client, event: u64) -> Watcher {
        let since_event = Some(event);
        Watcher::open(client, pb::WatchRequest { since_event, ..Default::default() }).await
    }

    /// The next message; none: the stream is over.
    pub async fn message(&mut self) -> Option<watch_response::Message> {
        soon(self.0.message()).await.unwrap().map(|answer| answer.message.unwrap())
    }

    /// The next event. There must be no gap before it.
    pub async fn event(&mut self) -> Option<pb::Event> {
        loop {
            match self.message().await? {
                watch_response::Message::Event(event) => return Some(event),
                watch_response::Message::Heartbeat(_) => {}
                watch_response::Message::Gap(gap) => panic!("{gap:?}"),
            }
        }
    }

    /// The next event of a kind.
    pub async fn next(&mut self, kind: pb::Kind) -> pb::Event {
        loop {
            let event = self.event().await.expect("the events ended");
            if event.kind() == kind {
                return event;
            }
        }
    }
}

/// All events so far.
pub async fn events(client: &mut Client) -> Vec<pb::Event> {
    let request =
        pb::WatchRequest { since_event: Some(0), replay_only: true, ..Default::default() };
    let mut watcher = Watcher::open(client, request).await;
    let mut events = Vec::new();
    while let Some(event) = watcher.event().await {
        events.push(event);
    }
    events
}

/// The kinds of events of a process.
pub async fn story(client: &mut Client, id: &str) -> Vec<pb::Kind> {
    let told = events(client).await;
    let told = told.iter().filter(|event| event.process_id == id);
    told.map(pb::Event::kind).collect()
}

/// What the terminal of a process shows.
pub async fn screen(client: &mut Client, id: &str) -> pb::ScreenResponse {
    soon(client.screen(pb::ScreenRequest { id: id.into() })).await.unwrap().into_inner()
}

/// The kinds of events.
pub fn kinds(events: &[pb::Event]) -> Vec<pb::Kind> {
    events.iter().map(pb::Event::kind).collect()
}

pub fn millis(milliseconds: u32) -> prost_types::Duration {
    let nanos = i32::try_from(milliseconds % 1000 * 1_000_000).unwrap();
    prost_types::Duration { seconds: i64::from(milliseconds / 1000), nanos }
}

/// All bytes of one stream.
pub fn text(chunks: &[pb::Chunk], stream: pb::Stream) -> String {
    let chunks = chunks.iter().filter(|chunk| chunk.stream() == stream);
    let bytes: Vec<u8> = chunks.flat_map(|chunk| chunk.data.to_vec()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The reason of an error, which must be procyard's own.
pub fn reason(status: &tonic::Status) -> String {
    let info = details(status).error_info().cloned();
    let info = info.unwrap_or_else(|| panic!("no ErrorInfo in {status:?}"));
    assert_eq!(info.domain, "procyard");
    info.reason
}

/// The fields that an error names.
pub fn bad_fields(status: &tonic::Status) -> Vec<String> {
    let details = details(status);
    let violations = details.bad_request().map(|bad| bad.field_violations.clone());
    violations.unwrap_or_default().into_iter().map(|violation| violation.field).collect()
}

pub fn details(status: &tonic::Status) -> ErrorDetails {
    status.get_error_details()
}
