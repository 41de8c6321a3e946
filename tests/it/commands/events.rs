//! `procyard events`.

use std::io::{BufRead, BufReader};

use super::{Running, objects, printed};
use crate::support::service::*;
use crate::support::tty::Tty;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happened_is_shown_a_line_each() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "good", shell("true")).await;
    finish(&mut client, "bad", shell("exit 3")).await;
    let all = printed(service.procyard(&["events"]));
    let words: Vec<Vec<_>> = all.lines().map(|line| line.split_whitespace().collect()).collect();
    let told: Vec<_> = words.iter().map(|words| (words[1], words[2], words[3])).collect();
    let expected = [
        ("1", "started", "good"),
        ("2", "completed", "good"),
        ("3", "started", "bad"),
        ("4", "completed", "bad"),
    ];
    assert_eq!(told, expected, "{all}");
    assert!(all.lines().next().unwrap().ends_with("  true"), "{all}");
    assert!(words[3][4..].join(" ").starts_with("exited with code 3 after"), "{all}");
    let seqs = |args: &[&str]| {
        let events = printed(service.procyard(&[&["events", "-o", "json"], args].concat()));
        let events = objects(&events);
        events.iter().map(|event| event["seq"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(seqs(&[]), ["1", "2", "3", "4"]);
    assert_eq!(seqs(&["--since", "3"]), ["4"]);
    assert_eq!(seqs(&["--tail", "2"]), ["3", "4"]);
    assert_eq!(seqs(&["--tail", "0"]), [""; 0]);
    assert_eq!(seqs(&["--kind", "completed"]), ["2", "4"]);
    assert_eq!(seqs(&["--kind", "completed", "--outcome", "failed", "--tail", "5"]), ["4"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_terminal_they_come_as_they_happen_and_ctrl_c_ends_it() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "before", shell("true")).await;
    let mut tty = Tty::start(service.procyard(&["events", "-f", "--tail", "1"]));
    tty.expect("before");
    finish(&mut client, "bad", shell("exit 3")).await;
    tty.expect("\x1b[31mcompleted \x1b[0m  bad");
    tty.type_in("\x03");
    assert_eq!(tty.ended(), 130);
    assert!(!tty.all().contains("started   \x1b[0m  before"), "{}", tty.all());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_is_lost_or_doubled_when_the_server_is_killed() {
    let service = TestService::start();
    let mut child = Running::start(service.procyard(&["events", "--follow", "--output", "json"]));
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    for round in 0..4_u64 {
        let mut client = service.client().await;
        finish(&mut client, &format!("p{round}"), shell("true")).await;
        // Killed in the first rounds before they can be read, in the others after.
        if round < 2 {
            service.kill_server();
        }
        for event in 1..=2 {
            let line = lines.next().unwrap().unwrap();
            let told = &objects(&line)[0];
            assert_eq!(told["seq"], (2 * round + event).to_string());
            assert_eq!(told["processId"], format!("p{round}"));
            let kind = if event == 1 { "KIND_STARTED" } else { "KIND_COMPLETED" };
            assert_eq!(told["kind"], kind);
        }
        if round >= 2 {
            service.kill_server();
        }
    }
}
