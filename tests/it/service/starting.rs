//! Start: one process, its answer, and the same answer again.

mod environment;
mod failing;
mod scripts;
mod waiting;

use std::collections::HashSet;

use procyard::grpc::pb::{self, spec};
use tokio::task::JoinSet;
use tonic::Code;

use crate::support::service::*;
use crate::support::{NOBODY, executable, is_root, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_runs_and_its_output_and_code_come_back() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = shell("echo out; echo err >&2; exit 3");
    let answer = finish(&mut client, "", line).await;
    let exit = answer.process.unwrap().exit.unwrap();
    assert_eq!((exit.code, exit.signal, exit.outcome()), (Some(3), None, pb::Outcome::Failed));
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "out\n");
    assert_eq!(text(&answer.chunks, pb::Stream::Stderr), "err\n");
    assert!(answer.wait.unwrap().met && !answer.existed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_a_wait_answers_at_once_and_names_a_process_that_runs() {
    let service = TestService::start();
    let mut client = service.client().await;
    let answer = soon(client.start(start("", shell("exec sleep 600")))).await.unwrap().into_inner();
    let process = answer.process.unwrap();
    assert_eq!((process.state(), process.run), (pb::State::Running, 1));
    assert_eq!(service.inmates(), [process.pid]);
    assert!(process.exit.is_none() && answer.chunks.is_empty() && answer.wait.is_none());
    let id = uuid::Uuid::parse_str(&process.id).unwrap();
    assert_eq!(id.get_version_num(), 7);
    assert!(process.start_time.is_some() && process.create_time.is_some());
    assert_eq!(get(&mut client, &process.id).await.pid, process.pid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_start_again_finds_the_same_process_and_another_spec_is_refused() {
    let service = TestService::start();
    let mut client = service.client().await;
    let first = soon(client.start(start("a", shell("sleep 60")))).await.unwrap().into_inner();
    let again = soon(client.start(start("a", shell("sleep 60")))).await.unwrap().into_inner();
    assert_eq!((first.existed, again.existed), (false, true));
    assert_eq!(first.process.unwrap().pid, again.process.unwrap().pid);
    let other = client.start(start("a", shell("sleep 61")));
    assert_eq!(refusal(soon(other).await), (Code::AlreadyExists, "ID_CONFLICT".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_start_after_the_end_finds_the_finished_process_with_its_output() {
    let service = TestService::start();
    let mut client = service.client().await;
    let first = finish(&mut client, "a", shell("echo $$; exit 4")).await;
    let again = finish(&mut client, "a", shell("echo $$; exit 4")).await;
    assert!(!first.existed && again.existed && again.wait.unwrap().met);
    assert_eq!(first.chunks, again.chunks);
    assert_eq!(first.process, again.process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_starts_with_one_id_at_the_same_time_one_starts_and_all_name_it() {
    let service = TestService::start();
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(service.client().await);
    }
    let log = service.directory.path().join("log");
    let line = format!("echo $PROCYARD_ID >>{}; exec sleep 600", log.display());
    for round in 0..30 {
        let mut starts = JoinSet::new();
        for mut client in clients.clone() {
            let request = start(&format!("p{round}"), shell(&line));
            starts.spawn(async move { soon(client.start(request)).await.unwrap().into_inner() });
        }
        let answers = starts.join_all().await;
        assert_eq!(answers.iter().filter(|answer| !answer.existed).count(), 1);
        let pids: HashSet<_> =
            answers.into_iter().map(|answer| answer.process.unwrap().pid).collect();
        assert!(pids.len() == 1 && !pids.contains(&0), "{pids:?}");
    }
    assert_eq!(service.inmates().len(), 30);
    let client = &mut clients[0];
    for process in list(client).await {
        soon(client.kill(kill(&process.id))).await.unwrap();
    }
    let mut ran: Vec<_> = std::fs::read_to_string(log).unwrap().lines().map(String::from).collect();
    let all = ran.len();
    ran.sort();
    ran.dedup();
    assert_eq!(ran.len(), all, "one ran twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_that_are_not_utf8_arrive_exactly() {
    let service = TestService::start();
    let mut client = service.client().await;
    let raw_args = vec!["printf".into(), "%s|".into(), b"\xff\xfe\n ".as_slice().into()];
    let argv = pb::Argv { args: Vec::new(), raw_args };
    let spec = pb::Spec { program: Some(spec::Program::Argv(argv)), ..Default::default() };
    let answer = finish(&mut client, "", spec.clone()).await;
    assert_eq!(&answer.chunks[0].data[..], b"\xff\xfe\n |");
    assert_eq!(answer.process.unwrap().spec.unwrap().program, spec.program);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_is_looked_up_in_the_path_of_its_own_environment() {
    let service = TestService::start();
    let mut client = service.client().await;
    let directory = service.directory.path();
    executable(&directory.join("tool"), "#!/bin/sh\necho found \"$@\"\n");
    let spec = pb::Spec {
        env: Some(pb::Environment {
            set: [("PATH".into(), directory.to_str().unwrap().into())].into(),
            ..Default::default()
        }),
        ..argv(&["tool", "a b"])
    };
    assert_eq!(output_of(&mut client, spec).await, "found a b\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_has_its_kind_and_size() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = shell("test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM");
    let sized = pb::Terminal { rows: 7, cols: 1000, term: "vt100".into() };
    for (terminal, shown) in
        [(pb::Terminal::default(), "24 80\r\nxterm-256color\r\n"), (sized, "7 1000\r\nvt100\r\n")]
    {
        let spec = pb::Spec { io: Some(spec::Io::Terminal(terminal)), ..line.clone() };
        let answer = finish(&mut client, "", spec).await;
        assert_eq!(text(&answer.chunks, pb::Stream::Terminal), shown);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_working_directory_is_as_asked_and_else_where_procyard_was_started() {
    let service = TestService::start_with(|command| {
        command.current_dir("/usr");
    });
    let mut client = service.client().await;
    let here = std::fs::canonicalize(service.directory.path()).unwrap();
    let here = here.to_str().unwrap();
    let spec = pb::Spec { cwd: here.into(), ..shell("pwd -P") };
    assert_eq!(output_of(&mut client, spec).await, format!("{here}\n"));
    assert_eq!(output_of(&mut client, shell("pwd -P")).await, "/usr\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merged_errors_stand_where_they_were_printed() {
    let service = TestService::start();
    let mut client = service.client().await;
    let pipes = pb::Pipes { stdin: false, merge_stderr: true };
    let line = shell("echo a; echo b >&2; echo c");
    let spec = pb::Spec { io: Some(spec::Io::Pipes(pipes)), ..line };
    let answer = finish(&mut client, "", spec).await;
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "a\nb\nc\n");
    assert_eq!(text(&answer.chunks, pb::Stream::Stderr), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_describes_a_process_comes_back_everywhere() {
    let service = TestService::start();
    let mut client = service.client().await;
    let spec = pb::Spec {
        name: "näme".into(),
        description: "first line\nsecond line".into(),
        r#ref: "ref-1".into(),
        labels: [("app/x".into(), "1".into()), ("b".into(), String::new())].into(),
        owner: "ann".into(),
        workspace: "w".into(),
        ..shell("true")
    };
    let started = finish(&mut client, "a", spec.clone()).await.process.unwrap();
    let got = get(&mut client, "a").await;
    let listed = list(&mut client).await.remove(0);
    let told = events(&mut client).await.remove(0).process.unwrap();
    for process in [started, got, listed, told] {
        let shown = process.spec.unwrap();
        assert_eq!((&shown.name, &shown.r#ref), (&spec.name, &spec.r#ref));
        assert_eq!((&shown.owner, &shown.workspace), (&spec.owner, &spec.workspace));
        assert_eq!((shown.labels, &shown.description[..]), (spec.labels.clone(), "first line"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_user_is_for_root_alone() {
    let service = TestService::start();
    let mut client = service.client().await;
    let user = pb::User { uid: NOBODY, gid: Some(NOBODY), groups: vec![NOBODY, 7] };
    let line = shell("id -u; id -g; id -G; cd /; echo $HOME $USER");
    let spec = pb::Spec { user: Some(user), cwd: "/".into(), ..line };
    if is_root() {
        let said = output_of(&mut client, spec).await;
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines[..3], ["65534", "65534", "65534 7"]);
        assert!(lines[3].ends_with(" nobody"), "{said}");
    } else {
        let answer = soon(client.start(start("", spec))).await;
        assert_eq!(refusal(answer), (Code::PermissionDenied, "USER_NOT_ALLOWED".into()));
        assert_eq!(list(&mut client).await, []);
    }
}
