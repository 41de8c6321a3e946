//! `procyard ps`.

use std::time::Duration;

use futures_util::StreamExt;
use procyard::grpc::pb;

use super::{objects, printed};
use crate::support::service::*;
use crate::support::soon;
use crate::support::tty::Tty;

/// A service with one process that runs and two that have ended.
async fn three() -> TestService {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "good", shell("echo hi")).await;
    let labels = [("job".to_owned(), "build".to_owned())].into();
    finish(&mut client, "bad", pb::Spec { labels, ..shell("exit 3") }).await;
    let name = "a name".to_owned();
    begin(&mut client, "lives", pb::Spec { name, ..argv(&["sleep", "600"]) }).await;
    service
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_live_are_listed_and_all_if_wished() {
    let service = three().await;
    let table = printed(service.procyard(&["ps"]));
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    let heading: Vec<_> = lines[0].split_whitespace().collect();
    assert_eq!(heading, ["ID", "NAME", "STATE", "RAN", "OUTPUT", "COMMAND"]);
    assert!(lines[1].starts_with("lives  a name  running  "), "{table}");
    assert!(lines[1].ends_with("  0 B     sleep 600"), "{table}");
    let all = printed(service.procyard(&["ps", "--all"]));
    let starts: Vec<_> = all.lines().map(|line| line.split_once(' ').unwrap().0).collect();
    assert_eq!(starts, ["ID", "lives", "bad", "good"], "{all}");
    assert!(all.contains(" exited 0 ") && all.contains(" failed 3 "), "{all}");
    // A column that nobody needs is left out.
    let failed = printed(service.procyard(&["ps", "--outcome", "failed"]));
    assert!(!failed.contains("NAME") && failed.contains("exit 3"), "{failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_and_limits_choose() {
    let service = three().await;
    let ids = |args: &[&str]| printed(service.procyard(&[&["ps", "-q"], args].concat()));
    assert_eq!(ids(&[]), "lives\n");
    assert_eq!(ids(&["-a"]), "lives\nbad\ngood\n");
    assert_eq!(ids(&["-a", "--limit", "2"]), "lives\nbad\n");
    assert_eq!(ids(&["-a", "-n", "0"]), "");
    assert_eq!(ids(&["--state", "exited"]), "bad\ngood\n");
    assert_eq!(ids(&["--outcome", "succeeded"]), "good\n");
    assert_eq!(ids(&["-a", "--label", "job=build"]), "bad\n");
    assert_eq!(ids(&["-a", "--label", "job=other"]), "");
    assert_eq!(ids(&["--name", "a name"]), "lives\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_get_an_object_per_line() {
    let service = three().await;
    let all = objects(&printed(service.procyard(&["ps", "--all", "--output", "json"])));
    let ids: Vec<_> = all.iter().map(|process| process["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["lives", "bad", "good"]);
    assert_eq!(all[0]["spec"]["name"], "a name");
    assert_eq!(all[1]["exit"]["code"], 3);
    assert_eq!(all[2]["exit"]["outcome"], "OUTCOME_SUCCEEDED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_a_page_of_them_are_all_listed() {
    let service = TestService::start();
    let mut client = service.client().await;
    // They wait in a queue, where one after another costs little.
    begin(&mut client, "first", in_queue("q", argv(&["sleep", "600"]))).await;
    let starts = (0..1010).map(|_| {
        let mut client = client.clone();
        async move { begin(&mut client, "", in_queue("q", argv(&["true"]))).await }
    });
    // As many at a time as are answered soon.
    let starts: Vec<_> = futures_util::stream::iter(starts).buffer_unordered(50).collect().await;
    assert_eq!(starts.len(), 1010);
    let shown = printed(service.procyard(&["ps", "--quiet"]));
    let shown: Vec<_> = shown.lines().collect();
    assert_eq!(shown.len(), 1011);
    assert_eq!(shown, ids(&list(&mut client).await));
    let few = printed(service.procyard(&["ps", "--quiet", "--limit", "1005"]));
    assert_eq!(few.lines().collect::<Vec<_>>(), shown[..1005]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_terminal_states_have_colours_and_commands_end_where_it_does() {
    let service = three().await;
    let mut client = service.client().await;
    let long = format!("echo {}", "x".repeat(200));
    finish(&mut client, "long", shell(&long)).await;
    let mut tty = Tty::start(service.procyard(&["ps", "--all"]));
    tty.expect("\x1b[32mrunning\x1b[0m");
    tty.expect("\x1b[31mfailed 3\x1b[0m");
    assert_eq!(tty.ended(), 0);
    assert!(tty.all().contains("xxx…"), "{}", tty.all());
    // Without colours it can be seen how wide it is.
    let mut command = service.procyard(&["ps", "--all"]);
    command.env("NO_COLOR", "1");
    let mut tty = Tty::start_sized(command, 24, 70);
    assert_eq!(tty.ended(), 0);
    let shown = tty.all();
    assert!(!shown.contains('\x1b'), "{shown}");
    assert_eq!(shown.lines().map(|line| line.chars().count()).max(), Some(70), "{shown}");
    // Who reads a pipe wants all of it.
    let piped = printed(service.procyard(&["ps", "--all"]));
    assert!(piped.contains(&long) && !piped.contains('\x1b'), "{piped}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_show_their_name_and_their_restarts() {
    let service = three().await;
    let mut client = service.client().await;
    let marker = service.directory.path().join("restarted").display().to_string();
    let line = format!("[ -e {marker} ] && exec sleep 600; touch {marker}; exit 1");
    begin(&mut client, "p", restarted(pb::restart::Policy::OnFailure, shell(&line))).await;
    let plain = |args: &[&str]| {
        let mut command = service.procyard(args);
        command.env("NO_COLOR", "1");
        let mut tty = Tty::start(command);
        assert_eq!(tty.ended(), 0);
        tty.all().replace('\r', "")
    };
    soon(async {
        let is_restarted =
            |process: &pb::Process| process.state() == pb::State::Running && process.restarts == 1;
        while !is_restarted(&get(&mut client, "p").await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let table = plain(&["ps"]);
    let lines: Vec<Vec<_>> = table.lines().map(|line| line.split("  ").collect()).collect();
    let cells = |line: &[&str]| -> Vec<String> {
        line.iter().map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
    };
    let heading = ["ID", "NAME", "STATE", "RESTARTS", "RAN", "OUTPUT", "COMMAND"];
    assert_eq!(cells(&lines[0]), heading, "{table}");
    assert_eq!(cells(&lines[1])[..4], ["p", "s", "running", "1"], "{table}");
    assert_eq!(cells(&lines[2])[..4], ["lives", "a name", "running", "0"], "{table}");
    // Without a process that has restarted there is no such column.
    let table = plain(&["ps", "--name", "a name"]);
    assert!(table.contains("lives") && !table.contains("RESTARTS"), "{table}");
}
