//! `procyard kill` and `procyard signal`.

use procyard::grpc::pb;

use super::{failed, finished, objects, printed};
use crate::support::service::*;
use crate::support::tty::Tty;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_a_process_and_tells_who_was_ended_with_it() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin_ready(&mut client, "p", shell("sleep 600 & echo ready; wait")).await;
    let mut tty = Tty::start(service.procyard(&["kill", "p"]));
    tty.expect("p: killed on request: ended by SIGTERM after ");
    // Its name depends on how far it was.
    tty.expect("and with them ");
    tty.expect(" (");
    assert_eq!(tty.ended(), 0);
    assert_eq!(exit(&get(&mut client, "p").await).signal, Some(libc::SIGTERM));
    // Once more is fine.
    let again = printed(service.procyard(&["kill", "p", "p"]));
    assert!(again.starts_with("p had already ended: killed on request"), "{again}");
    assert_eq!(again.lines().count(), 1, "{again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_it_is_ended_can_be_chosen() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin_ready(&mut client, "a", stubborn(600_000)).await;
    begin_ready(&mut client, "b", stubborn(600_000)).await;
    begin_ready(
        &mut client,
        "c",
        shell("trap 'exit 5' USR1; echo ready; while :; do sleep 0.05; done"),
    )
    .await;
    printed(service.procyard(&["kill", "--force", "a"]));
    printed(service.procyard(&["kill", "--grace", "10ms", "b"]));
    printed(service.procyard(&["kill", "-s", "USR1", "--grace", "10m", "c"]));
    assert_eq!(exit(&get(&mut client, "a").await).signal, Some(libc::SIGKILL));
    assert_eq!(exit(&get(&mut client, "b").await).signal, Some(libc::SIGKILL));
    assert_eq!(exit(&get(&mut client, "c").await).code, Some(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_choose_whom_and_nothing_chooses_nobody() {
    let service = TestService::start();
    let mut client = service.client().await;
    let labels = |value: &str| [("job".to_owned(), value.to_owned())].into();
    for (id, job) in [("a", "one"), ("b", "one"), ("c", "two")] {
        let spec = pb::Spec { labels: labels(job), ..argv(&["sleep", "600"]) };
        begin(&mut client, id, spec).await;
    }
    let (code, said) = failed(service.procyard(&["kill"]));
    assert_eq!(code, 2);
    assert!(said.contains("--label"), "{said}");
    let (code, _) = failed(service.procyard(&["kill", "a", "--label", "job=one"]));
    assert_eq!(code, 2);
    let ended = objects(&printed(service.procyard(&["kill", "--label", "job=one", "-o", "json"])));
    let ended = ended[0]["processes"].as_array().unwrap();
    let mut ids: Vec<_> = ended.iter().map(|process| process["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(get(&mut client, "c").await.state(), pb::State::Running);
    assert_eq!(
        printed(service.procyard(&["kill", "--label", "job=one"])),
        "nothing that lives matches\n"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_ends_nothing_unless_every_word_resolves() {
    let service = TestService::start();
    let mut client = service.client().await;
    let called = |spec| pb::Spec { name: "web".into(), ..spec };
    begin(&mut client, "a", called(argv(&["sleep", "600"]))).await;
    begin(&mut client, "b", called(argv(&["sleep", "600"]))).await;
    let output = finished(service.procyard(&["kill", "a", "missing", "web"]));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cannot find a process called missing"), "{said}");
    assert!(said.contains("cannot choose among the processes called web"), "{said}");
    assert_eq!(get(&mut client, "a").await.state(), pb::State::Running);
    printed(service.procyard(&["kill", "a", "b"]));
    assert_eq!(get(&mut client, "b").await.state(), pb::State::Exited);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_means_the_one_that_lives() {
    let service = TestService::start();
    let mut client = service.client().await;
    let called = |spec| pb::Spec { name: "web".into(), ..spec };
    begin(&mut client, "lives", called(argv(&["sleep", "600"]))).await;
    finish(&mut client, "newer", called(shell("true"))).await;
    assert!(printed(service.procyard(&["kill", "web"])).starts_with("lives: killed on request"));
    // Once it is over, the newest.
    assert!(
        printed(service.procyard(&["kill", "web"])).starts_with("newer had already ended: exited")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_is_sent_and_nothing_else() {
    let service = TestService::start();
    let mut client = service.client().await;
    let line = "trap 'echo heard' USR1; echo ready; while :; do sleep 0.05; done";
    begin_ready(&mut client, "p", shell(line)).await;
    let mut tty = Tty::start(service.procyard(&["signal", "p", "USR1"]));
    assert_eq!(tty.ended(), 0);
    printed(service.procyard(&["wait", "--prints", "heard", "p"]));
    assert_eq!(get(&mut client, "p").await.state(), pb::State::Running);
    let (code, said) = failed(service.procyard(&["signal", "p", "NOPE"]));
    assert_eq!(code, 1);
    assert!(said.contains("NOPE"), "{said}");
}
