//! Which process a word means: an id, a name or a service.

use procyard::grpc::pb;

use super::{failed, printed};
use crate::support::service::*;

fn named(name: &str, spec: pb::Spec) -> pb::Spec {
    pb::Spec { name: name.into(), ..spec }
}

fn service_called(name: &str) -> pb::Spec {
    let mode = pb::Mode::Service.into();
    pb::Spec { service: name.into(), mode, ..argv(&["sleep", "600"]) }
}

async fn is_live(client: &mut Client, id: &str) -> bool {
    get(client, id).await.state() == pb::State::Running
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_name_wins_over_a_finished_id() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "sh", shell("true")).await;
    begin(&mut client, "live", named("sh", argv(&["sleep", "600"]))).await;
    // Commands on finished processes mean the finished one.
    assert_eq!(printed(service.procyard(&["rm", "--force", "sh"])), "sh\n");
    assert!(is_live(&mut client, "live").await);
    finish(&mut client, "sh", shell("true")).await;
    assert!(printed(service.procyard(&["kill", "sh"])).starts_with("live: killed on request"));
    // With no live process left, the id is the finished one's.
    assert!(printed(service.procyard(&["kill", "sh"])).starts_with("sh had already ended: exited"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_id_wins_over_a_live_name() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "web", argv(&["sleep", "600"])).await;
    begin(&mut client, "other", named("web", argv(&["sleep", "600"]))).await;
    assert!(printed(service.procyard(&["kill", "web"])).starts_with("web: killed on request"));
    assert!(is_live(&mut client, "other").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_word_for_several_live_processes_changes_none() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "a", named("web", argv(&["sleep", "600"]))).await;
    begin(&mut client, "b", named("web", argv(&["sleep", "600"]))).await;
    begin(&mut client, "c", service_called("web")).await;
    finish(&mut client, "d", named("web", shell("true"))).await;
    for args in [
        &["kill", "--force", "web"][..],
        &["signal", "web", "KILL"],
        &["send", "--eof", "web"],
        &["attach", "web"],
        &["logs", "web"],
    ] {
        let (_, said) = failed(service.procyard(args));
        assert!(said.contains("cannot choose among the processes called web"), "{said}");
        for candidate in
            ["a (name web, running)", "b (name web, running)", "c (service web, running)"]
        {
            assert!(said.contains(candidate), "{said}");
        }
        assert!(!said.contains("d ("), "{said}");
    }
    for id in ["a", "b", "c"] {
        assert!(is_live(&mut client, id).await, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_word_for_several_finished_processes_frees_none() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "old", named("job", shell("echo old"))).await;
    finish(&mut client, "new", named("job", shell("echo new"))).await;
    for args in [&["rm", "job"][..], &["rm", "--missing-ok", "job"], &["rerun", "--force", "job"]] {
        let (code, said) = failed(service.procyard(args));
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("new (name job, exited 0), old (name job, exited 0)"), "{said}");
    }
    assert_eq!(get(&mut client, "old").await.run, 1);
    // Reading changes nothing, and means the newest.
    assert_eq!(printed(service.procyard(&["logs", "job"])), "new\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_found_by_its_name() {
    let service = TestService::start();
    let mut client = service.client().await;
    // A name that is the same process's does not count twice.
    begin(&mut client, "p", named("web", service_called("web"))).await;
    begin(&mut client, "q", service_called("db")).await;
    assert!(printed(service.procyard(&["kill", "web"])).starts_with("p: killed on request"));
    assert!(printed(service.procyard(&["kill", "db"])).starts_with("q: killed on request"));
    assert_eq!(printed(service.procyard(&["rm", "db"])), "q\n");
    let (_, said) = failed(service.procyard(&["logs", "db"]));
    assert!(said.contains("cannot find a process called db"), "{said}");
}
