//! List: newest first, in pages that hold together, by any field, and no more than is to be kept.

mod programs;

use std::collections::HashSet;

use procyard::grpc::pb;
use tokio::task::JoinSet;
use tonic::Code;

use crate::support::service::*;
use crate::support::{full_volume, soon, until};

async fn page(client: &mut Client, request: pb::ListRequest) -> pb::ListResponse {
    soon(client.list(request)).await.unwrap().into_inner()
}

async fn selected(client: &mut Client, selector: pb::Selector) -> Vec<String> {
    let request = pb::ListRequest { selector: Some(selector), ..Default::default() };
    page(client, request).await.processes.into_iter().map(|process| process.id).collect()
}

/// Runs so many to their end, some at a time.
async fn run_many(client: &Client, count: usize) {
    let mut runs = JoinSet::new();
    for n in 0..count {
        let mut client = client.clone();
        runs.spawn(async move { finish(&mut client, &format!("p{n}"), argv(&["true"])).await });
        if runs.len() >= 32 {
            runs.join_next().await.unwrap().unwrap();
        }
    }
    runs.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_come_first_whatever_becomes_of_them() {
    let service = TestService::start();
    let mut client = service.client().await;
    assert_eq!(page(&mut client, pb::ListRequest::default()).await, pb::ListResponse::default());
    begin(&mut client, "c", shell("exec sleep 600")).await;
    finish(&mut client, "a", shell("exit 1")).await;
    begin(&mut client, "b", shell("exec sleep 600")).await;
    assert_eq!(ids(&list(&mut client).await), ["b", "a", "c"]);
    soon(client.kill(kill("c"))).await.unwrap();
    assert_eq!(ids(&list(&mut client).await), ["b", "a", "c"]);
    let request = pb::ListRequest { live_only: true, ..Default::default() };
    assert_eq!(ids(&page(&mut client, request).await.processes), ["b"]);
    let listed = list(&mut client).await.remove(2);
    assert_eq!(listed, get(&mut client, "c").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_pages_together_have_each_process_once_while_others_start_and_go() {
    let service = TestService::start();
    let mut client = service.client().await;
    run_many(&client, 47).await;
    let expected: HashSet<_> = (0..47).map(|n| format!("p{n}")).collect();
    for page_size in [1, 7, 46, 47, 48] {
        let mut request = pb::ListRequest { page_size, ..Default::default() };
        let mut seen = Vec::new();
        for turn in 0.. {
            let answer = page(&mut client, request.clone()).await;
            assert!(answer.processes.len() <= page_size as usize);
            seen.extend(answer.processes.into_iter().map(|process| process.id));
            // One that is newer than all pages to come, and one that is gone before the next.
            finish(&mut client, &format!("new{page_size}-{turn}"), argv(&["true"])).await;
            request.page_token = answer.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        let unique: HashSet<_> = seen.iter().cloned().collect();
        assert_eq!(unique.len(), seen.len(), "one came twice");
        assert!(unique.is_superset(&expected));
        assert!(!seen.iter().any(|id| id.starts_with(&format!("new{page_size}-"))));
        for process in list(&mut client).await {
            if process.id.starts_with("new") {
                let request = pb::DeleteRequest { id: process.id, ..Default::default() };
                soon(client.delete(request)).await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_goes_on_where_the_last_one_ended_even_if_that_process_is_gone() {
    let service = TestService::start();
    let mut client = service.client().await;
    for id in ["a", "b", "c", "d"] {
        finish(&mut client, id, argv(&["true"])).await;
    }
    let request = pb::ListRequest { page_size: 2, ..Default::default() };
    let first = page(&mut client, request.clone()).await;
    assert_eq!(ids(&first.processes), ["d", "c"]);
    soon(client.delete(pb::DeleteRequest { id: "c".into(), ..Default::default() })).await.unwrap();
    let request = pb::ListRequest { page_token: first.next_page_token, ..request };
    let second = page(&mut client, request).await;
    assert_eq!(ids(&second.processes), ["b", "a"]);
    assert_eq!(second.next_page_token, "", "there are no more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_field_of_a_selector_selects_and_all_of_them_must_match() {
    let service = TestService::start();
    let mut client = service.client().await;
    let labels = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    };
    let one = pb::Spec {
        name: "n".into(),
        r#ref: "r".into(),
        owner: "o".into(),
        workspace: "w".into(),
        labels: labels(&[("k", "v"), ("l", "")]),
        ..shell("exit 0")
    };
    let two = pb::Spec { labels: labels(&[("k", "w")]), ..shell("exit 1") };
    finish(&mut client, "one", one).await;
    finish(&mut client, "two", two).await;
    let timed = pb::Spec { timeout: Some(millis(1)), ..shell("exec sleep 600") };
    finish(&mut client, "timed", timed).await;
    begin(&mut client, "live", shell("exec sleep 600")).await;
    begin(&mut client, "killed", shell("exec sleep 600")).await;
    soon(client.kill(kill("killed"))).await.unwrap();

    let any = pb::Selector::default;
    let states = |states: &[pb::State]| states.iter().map(|state| *state as i32).collect();
    let outcomes = |outcomes: &[pb::Outcome]| outcomes.iter().map(|it| *it as i32).collect();
    use pb::{Outcome, State};
    for (selector, wanted) in [
        (any(), &["killed", "live", "timed", "two", "one"][..]),
        (pb::Selector { name: "n".into(), ..any() }, &["one"]),
        (pb::Selector { r#ref: "r".into(), ..any() }, &["one"]),
        (pb::Selector { owner: "o".into(), ..any() }, &["one"]),
        (pb::Selector { workspace: "w".into(), ..any() }, &["one"]),
        (pb::Selector { labels: labels(&[("k", "v")]), ..any() }, &["one"]),
        (pb::Selector { labels: labels(&[("k", "v"), ("l", "")]), ..any() }, &["one"]),
        (pb::Selector { labels: labels(&[("l", "")]), ..any() }, &["one"]),
        (pb::Selector { labels: labels(&[("k", "v"), ("l", "x")]), ..any() }, &[]),
        (pb::Selector { states: states(&[State::Running]), ..any() }, &["live"]),
        (
            pb::Selector { states: states(&[State::Exited, State::Running]), ..any() },
            &["killed", "live", "timed", "two", "one"],
        ),
        (pb::Selector { outcomes: outcomes(&[Outcome::Succeeded]), ..any() }, &["one"]),
        (pb::Selector { outcomes: outcomes(&[Outcome::Failed]), ..any() }, &["two"]),
        (pb::Selector { outcomes: outcomes(&[Outcome::TimedOut]), ..any() }, &["timed"]),
        (
            pb::Selector { outcomes: outcomes(&[Outcome::Canceled, Outcome::Failed]), ..any() },
            &["killed", "two"],
        ),
        (pb::Selector { name: "n".into(), owner: "x".into(), ..any() }, &[]),
        (pb::Selector { name: "N".into(), ..any() }, &[]),
    ] {
        assert_eq!(selected(&mut client, selector.clone()).await, wanted, "{selector:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_size_of_a_page_and_its_token_have_bounds() {
    let service = TestService::start();
    let mut client = service.client().await;
    let refused = async |client: &mut Client, request| {
        let status = soon(client.list(request)).await.unwrap_err();
        assert_eq!((status.code(), &reason(&status)[..]), (Code::InvalidArgument, "INVALID_FIELD"));
        bad_fields(&status)
    };
    page(&mut client, pb::ListRequest { page_size: 1000, ..Default::default() }).await;
    let request = pb::ListRequest { page_size: 1001, ..Default::default() };
    assert_eq!(refused(&mut client, request).await, ["page_size"]);
    for token in ["x", "1-", "1-zz", "1-1 ", "2-1", "1-ffffffffffffffffffff", "\u{0}"] {
        let request = pb::ListRequest { page_token: token.into(), ..Default::default() };
        assert_eq!(refused(&mut client, request).await, ["page_token"], "{token:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_come_at_once_unless_asked_and_many_finished_ones_are_still_an_answer() {
    let service = TestService::start();
    let mut client = service.client().await;
    let count = if full_volume() { 10_000 } else { 500 };
    run_many(&client, count).await;
    let plain = page(&mut client, pb::ListRequest::default()).await;
    assert_eq!(plain.processes.len(), 50);
    let all: HashSet<_> = list(&mut client).await.into_iter().map(|process| process.id).collect();
    assert_eq!(all.len(), count);
    // Nothing is found, and it takes no page to say so.
    let selector = Some(pb::Selector { owner: "nobody".into(), ..Default::default() });
    let request = pb::ListRequest { selector, ..Default::default() };
    assert_eq!(page(&mut client, request).await, pb::ListResponse::default());
    let info = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    let counts = info.into_inner().counts.unwrap();
    assert_eq!((counts.live, counts.finished as usize), (0, count));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_large_specs_fits_into_what_clients_take() {
    let service = TestService::start();
    // As clients are unless told otherwise.
    let mut client = Client::new(service.channel().await);
    let code = "#".repeat(1 << 20);
    for n in 0..6 {
        let script = pb::Script { code: code.clone(), ..Default::default() };
        let program = Some(pb::spec::Program::Script(script));
        begin(&mut client, &format!("p{n}"), pb::Spec { program, ..Default::default() }).await;
    }
    assert_eq!(ids(&list(&mut client).await), ["p5", "p4", "p3", "p2", "p1", "p0"]);
}

/// A service with more options.
fn keeping(args: &[&str]) -> TestService {
    TestService::start_with(|command| {
        command.args(args);
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_too_many_finished_ones_the_oldest_go_and_events_tell() {
    let service = keeping(&["--keep-finished", "5"]);
    let mut client = service.client().await;
    begin(&mut client, "live", shell("exec sleep 600")).await;
    for n in 0..8 {
        finish(&mut client, &format!("p{n}"), shell("echo hi")).await;
    }
    assert_eq!(ids(&list(&mut client).await), ["p7", "p6", "p5", "p4", "p3", "live"]);
    let told = events(&mut client).await;
    let deleted = told.iter().filter(|event| event.kind() == pb::Kind::Deleted);
    let deleted: Vec<_> = deleted.map(|event| event.process_id.as_str()).collect();
    assert_eq!(deleted, ["p0", "p1", "p2"]);
    let seqs: Vec<_> = told.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=told.len() as u64).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_too_large_finished_ones_the_oldest_go() {
    let service = keeping(&["--keep-mib", "3"]);
    let mut client = service.client().await;
    for n in 0..6 {
        let line = shell("head -c 1000000 /dev/zero");
        let request = start(&format!("p{n}"), line);
        soon(client.start(request)).await.unwrap();
        let wait = pb::WaitRequest { wait: Some(until_exit()), ..wait_for_it(&format!("p{n}")) };
        soon(client.wait(wait)).await.unwrap();
    }
    assert_eq!(ids(&list(&mut client).await), ["p5", "p4", "p3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newest_finished_process_is_kept_until_the_next_finishes() {
    let service = keeping(&["--keep-mib", "1"]);
    let mut client = service.client().await;
    let mut watcher = Watcher::open(&mut client, pb::WatchRequest::default()).await;
    let mut kept = None;
    for id in ["small", "large", "larger"] {
        let bytes = if id == "small" { 1 } else { 3_000_000 };
        let spec = shell(&format!("head -c {bytes} /dev/zero"));
        begin(&mut client, id, pb::Spec { transcript_bytes: 8 << 20, ..spec }).await;
        assert_eq!(watcher.next(pb::Kind::Completed).await.process_id, id);
        if let Some(before) = kept.replace(id) {
            assert_eq!(watcher.next(pb::Kind::Deleted).await.process_id, before);
        }
        super::archiving::nothing_in_memory(&service).await;
        assert_eq!(ids(&list(&mut client).await), [id]);
    }
    let delete = pb::DeleteRequest { id: "larger".into(), ..Default::default() };
    soon(client.delete(delete)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_ones_that_are_too_old_go_by_themselves() {
    let service = keeping(&["--keep-hours", "0"]);
    let mut client = service.client().await;
    let mut watcher = Watcher::open(&mut client, pb::WatchRequest::default()).await;
    begin(&mut client, "live", shell("exec sleep 600")).await;
    begin(&mut client, "a", shell("exit 3")).await;
    let completed = watcher.next(pb::Kind::Completed).await;
    assert_eq!(exit(completed.process.as_ref().unwrap()).code, Some(3));
    // The newest one stays.
    assert_eq!(ids(&list(&mut client).await), ["a", "live"]);
    begin(&mut client, "b", shell("exit 4")).await;
    assert_eq!(watcher.next(pb::Kind::Deleted).await.process_id, "a");
    assert_eq!(ids(&list(&mut client).await), ["b", "live"]);
    until("nothing of it is held", || service.inmates().len() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_tells_what_it_is_and_what_can_be_done_with_it() {
    let service = TestService::start_with(|command| {
        command.args(["--keep-finished", "7", "--keep-events", "8"]);
    });
    let mut client = service.client().await;
    let info = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    let info = info.into_inner();
    assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    assert!(!info.instance_id.is_empty() && info.start_time.is_some() && info.uptime.is_some());
    let can = info.capabilities.unwrap();
    assert_ne!(can.kill_domain(), pb::KillDomain::Unspecified);
    assert_eq!((can.max_finished, can.max_events, can.max_running), (7, 8, 0));
    assert_eq!((can.max_transcript_bytes, can.max_pending_input_bytes), (1 << 30, 1 << 20));
    // A script as large as may be, and more that goes with it.
    assert!(can.max_message_bytes > 2 << 20);
}
