//! Starts when something has run out, for the whole supervisor: processes, descriptors, terminals.
//! They are refused with a hint to retry, leave neither record nor process nor descriptor, and
//! nobody else notices; as soon as there is room, they work.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use procyard::grpc::pb::{self, write_stdin_request::Input};
use rustix::process::{Resource, getrlimit};
use tonic::{Code, Status};

use crate::support::service::*;
use crate::support::{
    NOBODY, binary, full_volume, helpers, is_root, limit, possible, skip, soon, until,
};

/// Someone who must not notice anything.
struct Neighbour {
    pid: u32,
    said: usize,
}

impl Neighbour {
    const ID: &str = "neighbour";

    async fn start(client: &mut Client) -> Neighbour {
        let process = begin(client, Neighbour::ID, with_stdin(shell("exec cat"))).await;
        Neighbour { pid: process.pid, said: 0 }
    }

    /// Says something and hears it.
    async fn is_unharmed(&mut self, client: &mut Client) {
        self.said += 1;
        let word = format!("word {}.", self.said);
        let write = pb::WriteStdinRequest {
            id: Neighbour::ID.into(),
            input: Some(Input::Text(word.clone())),
            wait: Some(until_output(&word)),
            ..Default::default()
        };
        let answer = soon(client.write_stdin(write)).await.unwrap().into_inner();
        assert!(answer.wait.unwrap().met);
    }
}

/// It is refused because something has run out, and a retry may help.
fn has_run_out(status: &Status, of: &str) {
    assert_eq!((status.code(), &reason(status)[..]), (Code::ResourceExhausted, of), "{status:?}");
    let retry = details(status).retry_info().and_then(|retry| retry.retry_delay);
    assert!(retry.is_some_and(|delay| !delay.is_zero()), "no hint to retry in {status:?}");
}

/// Descriptors of keeper and server.
fn descriptors(service: &TestService) -> [usize; 2] {
    [service.child.id(), service.server_pid().cast_unsigned()]
        .map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

/// The names of a process's threads.
fn threads(pid: i32) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    let names = threads.filter_map(|thread| name(thread.ok()?).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}

/// Starts processes until there is no room for one more; that one's refusal.
async fn fill(client: &mut Client, spec: pb::Spec) -> (Vec<pb::Process>, Status) {
    let mut started = Vec::new();
    loop {
        match soon(client.start(start("", spec.clone()))).await {
            Ok(answer) => started.push(answer.into_inner().process.unwrap()),
            Err(status) => return (started, status),
        }
    }
}

async fn works_again(client: &mut Client) {
    for spec in [shell("echo again"), in_script("echo again")] {
        assert_eq!(output_of(client, spec).await, "again\n");
    }
    let answer = finish(client, "", on_terminal(shell("echo again"))).await;
    assert_eq!(text(&answer.chunks, pb::Stream::Terminal), "again\r\n");
}

fn in_script(code: &str) -> pb::Spec {
    let script = pb::Script { code: code.into(), ..Default::default() };
    pb::Spec { program: Some(pb::spec::Program::Script(script)), ..Default::default() }
}

/// A service that is not root's: of another user if the test is root, if that user can.
fn unprivileged() -> Option<TestService> {
    if !is_root() {
        return Some(TestService::start());
    }
    let able = Command::new(binary()).arg("--help").uid(NOBODY).stdout(Stdio::null()).status();
    able.is_ok_and(|status| status.success()).then(|| {
        TestService::start_with(|command| {
            let state = command.get_args().last().map(Path::new);
            let directory = state.and_then(Path::parent).unwrap();
            std::os::unix::fs::chown(directory, Some(NOBODY), Some(NOBODY)).unwrap();
            command.uid(NOBODY).gid(NOBODY);
        })
    })
}

/// How many processes and threads the user of keeper and server may have before they get none.
fn limit_processes(service: &TestService, most: u64) {
    let keeper = service.child.id();
    let server = service.server_pid().cast_unsigned();
    // A helper makes the processes, and has limits of its own.
    for pid in helpers(keeper).into_iter().chain([keeper, server]) {
        let mut command = Command::new("prlimit");
        command.arg(format!("--pid={pid}")).arg(format!("--nproc={most}:"));
        if is_root() {
            // Root may be without the capability to change another's limits.
            command.uid(NOBODY).gid(NOBODY);
        }
        let limited = command.status().unwrap().success();
        // A surplus helper may have ended.
        assert!(limited || !helpers(keeper).contains(&pid) && ![keeper, server].contains(&pid));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_free_pid_a_start_is_refused_and_everything_else_is_served() {
    let Some(service) = unprivileged() else {
        return skip("the limit of processes does not bind root, and nobody can run the service");
    };
    if !possible(&["prlimit"]) {
        return skip("there is no prlimit");
    }
    let usual = getrlimit(Resource::Nproc).current.unwrap_or(1 << 20);
    let mut client = service.client().await;
    let server = service.server_pid();
    let mut neighbour = Neighbour::start(&mut client).await;
    neighbour.is_unharmed(&mut client).await;
    let terminal = begin_ready(&mut client, "t", on_terminal(stubborn(0))).await;
    let before = descriptors(&service);
    let told = events(&mut client).await.len();
    // What takes its time is lent a thread, of which there is always one, also when there was long
    // nothing to do: longer than output waits to be saved, and than the runtime keeps one by itself.
    if full_volume() {
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    assert!(threads(server).contains(&"tokio-rt-worker".into()), "{:?}", threads(server));
    limit_processes(&service, 0);

    let line = shell("true");
    let kinds = [line.clone(), with_stdin(line.clone()), on_terminal(line), in_script("true")];
    for spec in kinds.iter().cycle().take(20) {
        let status = soon(client.start(start("a", spec.clone()))).await.unwrap_err();
        has_run_out(&status, "OUT_OF_PIDS");
    }
    assert_eq!(ids(&list(&mut client).await), ["t", Neighbour::ID]);
    assert_eq!(events(&mut client).await.len(), told, "what never was has no events");
    let mut inmates = vec![neighbour.pid, terminal.pid];
    inmates.sort_unstable();
    assert_eq!(service.inmates(), inmates);
    neighbour.is_unharmed(&mut client).await;
    // What threads are lent to goes on too.
    assert!(screen(&mut client, "t").await.rows[0].starts_with("ready"));
    let view = pb::View { grep: "word".into(), ..Default::default() };
    let read = pb::ReadRequest { id: Neighbour::ID.into(), view: Some(view), ..Default::default() };
    assert!(!soon(client.read(read)).await.unwrap().into_inner().chunks.is_empty());
    soon(client.kill(kill_at_once("t"))).await.unwrap();

    limit_processes(&service, usual);
    works_again(&mut client).await;
    neighbour.is_unharmed(&mut client).await;
    assert_eq!(service.server_pid(), server, "the server was replaced");
    until("no descriptor is left", || {
        let now = descriptors(&service);
        now[0] <= before[0] && now[1] <= before[1]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_free_descriptors_a_start_is_refused_and_everything_else_is_served() {
    let few = |command: &mut _| limit(command, Resource::Nofile, 64);
    let service = TestService::start_with(few);
    let mut client = service.client().await;
    let server = service.server_pid();
    let mut neighbour = Neighbour::start(&mut client).await;
    neighbour.is_unharmed(&mut client).await;
    let before = descriptors(&service);

    let (started, refused) = fill(&mut client, shell("exec sleep 600")).await;
    has_run_out(&refused, "OUT_OF_DESCRIPTORS");
    assert!(started.len() > 2, "only {} fit", started.len());
    let full = descriptors(&service);
    let kinds = [shell("true"), with_stdin(shell("true")), on_terminal(shell("true"))];
    for spec in kinds.iter().cycle().take(15) {
        let status = soon(client.start(start("a", spec.clone()))).await.unwrap_err();
        has_run_out(&status, "OUT_OF_DESCRIPTORS");
    }
    until("no descriptor has leaked", || {
        let now = descriptors(&service);
        now[0] <= full[0] && now[1] <= full[1]
    })
    .await;
    assert_eq!(list(&mut client).await.len(), started.len() + 1);
    assert_eq!(service.inmates().len(), started.len() + 1);
    neighbour.is_unharmed(&mut client).await;

    for process in started {
        soon(client.kill(kill_at_once(&process.id))).await.unwrap();
    }
    works_again(&mut client).await;
    neighbour.is_unharmed(&mut client).await;
    assert_eq!(service.server_pid(), server, "the server was replaced");
    until("all descriptors are back", || descriptors(&service)[0] <= before[0]).await;
}

/// Has a command run under others, such as `unshare`, that exec their arguments.
fn under(prefix: &[&str], command: &mut Command) {
    let program = command.get_program().to_owned();
    let args: Vec<OsString> = command.get_args().map(Into::into).collect();
    let mut changed = Command::new(prefix[0]);
    changed.args(&prefix[1..]).arg(program).args(args);
    changed.env("RUST_LOG", "warn").stdin(Stdio::null());
    *command = changed;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_free_terminal_a_start_is_refused_and_everything_else_is_served() {
    const MOST: usize = 4;
    let mount = format!(
        "mount -t devpts -o newinstance,mode=620,ptmxmode=666,max={MOST} devpts /dev/pts \
         && exec \"$@\""
    );
    let mut prefix = vec!["unshare", "--mount"];
    if !is_root() {
        prefix.push("--map-root-user");
    }
    prefix.extend(["sh", "-c", &mount, "sh"]);
    if !possible(&prefix) {
        return skip("terminals of its own need a mount namespace");
    }
    let service = TestService::start_with(|command| under(&prefix, command));
    let mut client = service.client().await;
    let server = service.server_pid();
    let mut neighbour = Neighbour::start(&mut client).await;
    neighbour.is_unharmed(&mut client).await;

    let (started, refused) = fill(&mut client, on_terminal(shell("exec sleep 600"))).await;
    has_run_out(&refused, "OUT_OF_TERMINALS");
    assert_eq!(started.len(), MOST);
    let full = descriptors(&service);
    for _ in 0..20 {
        let request = start("a", on_terminal(shell("true")));
        has_run_out(&soon(client.start(request)).await.unwrap_err(), "OUT_OF_TERMINALS");
    }
    until("no descriptor has leaked", || {
        let now = descriptors(&service);
        now[0] <= full[0] && now[1] <= full[1]
    })
    .await;
    assert_eq!(list(&mut client).await.len(), MOST + 1);
    assert_eq!(service.inmates().len(), MOST + 1);
    neighbour.is_unharmed(&mut client).await;
    assert_eq!(output_of(&mut client, shell("echo on pipes")).await, "on pipes\n");

    soon(client.kill(kill_at_once(&started[0].id))).await.unwrap();
    works_again(&mut client).await;
    neighbour.is_unharmed(&mut client).await;
    assert_eq!(service.server_pid(), server, "the server was replaced");
}
