//! What is outside of a scope is as if absent: in counts, in streams, and over time.

use procyard::grpc::pb::{self, attach_request, follow_response, sleep_response, watch_response};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::calls::delete;
use crate::support::callers::*;
use crate::support::service::*;
use crate::support::soon;

fn of(owner: &str, spec: pb::Spec) -> pb::Spec {
    pb::Spec { owner: owner.into(), ..spec }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_and_pages_are_those_of_the_scope() {
    let known = KnowingService::start(&[("ci", "viewer,owner=ci")]).await;
    let mut yard = known.service.client().await;
    for n in 0..3 {
        finish(&mut yard, &format!("ci-{n}"), of("ci", shell("true"))).await;
        finish(&mut yard, &format!("cd-{n}"), of("cd", shell("true"))).await;
    }
    begin(&mut yard, "live", of("ci", shell("exec sleep 600"))).await;
    begin(&mut yard, "foreign", of("cd", shell("exec sleep 600"))).await;
    for id in ["waits", "foreign-waits", "foreign-too"] {
        let owner = if id == "waits" { "ci" } else { "cd" };
        begin(&mut yard, &format!("{id}-1"), of(owner, in_queue(id, shell("exec sleep 600"))))
            .await;
        begin(&mut yard, &format!("{id}-2"), of(owner, in_queue(id, shell("true")))).await;
    }
    let mut ci = known.caller("ci").await;
    let info = async |client: &mut TokenClient| {
        let answer = soon(client.get_server_info(pb::GetServerInfoRequest {})).await;
        answer.unwrap().into_inner().counts.unwrap()
    };
    let counts = info(&mut ci).await;
    assert_eq!((counts.live, counts.finished, counts.queued), (3, 3, 1));
    let mut found = Vec::new();
    let mut request = pb::ListRequest { page_size: 1, ..Default::default() };
    loop {
        let page = soon(ci.list(request.clone())).await.unwrap().into_inner();
        found.extend(page.processes.into_iter().map(|process| process.id));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(found, ["waits-2", "waits-1", "live", "ci-2", "ci-1", "ci-0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_sees_its_own_events_and_no_gap_where_others_were() {
    let known = KnowingService::start(&[("ci", "viewer,owner=ci")]).await;
    let mut yard = known.service.client().await;
    let mut ci = known.caller("ci").await;
    let mut stream = soon(ci.watch(pb::WatchRequest::default())).await.unwrap().into_inner();
    let first = soon(stream.message()).await.unwrap().unwrap().message.unwrap();
    assert!(matches!(first, watch_response::Message::Heartbeat(_)), "{first:?}");
    finish(&mut yard, "a", of("cd", shell("true"))).await;
    finish(&mut yard, "b", of("ci", shell("true"))).await;
    finish(&mut yard, "c", of("cd", shell("true"))).await;
    finish(&mut yard, "d", of("ci", shell("true"))).await;
    let mut told = Vec::new();
    while told.len() < 4 {
        match soon(stream.message()).await.unwrap().unwrap().message.unwrap() {
            watch_response::Message::Event(event) => told.push((event.seq, event.process_id)),
            watch_response::Message::Heartbeat(_) => {}
            watch_response::Message::Gap(gap) => panic!("{gap:?}"),
        }
    }
    let expected = [(3, "b"), (4, "b"), (7, "d"), (8, "d")];
    assert_eq!(told, expected.map(|(seq, id)| (seq, id.to_owned())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sleeper_is_woken_by_what_is_in_its_scope_only() {
    let known = KnowingService::start(&[("ci", "viewer,owner=ci")]).await;
    let mut yard = known.service.client().await;
    let request = pb::SleepRequest {
        duration: Some(millis(600_000)),
        tick_interval: Some(millis(5000)),
        wake_on: Some(pb::Selector::default()),
        ..Default::default()
    };
    let mut ci = known.caller("ci").await;
    let mut stream = soon(ci.sleep(request)).await.unwrap().into_inner();
    // The first tick tells that it has begun.
    soon(stream.message()).await.unwrap().unwrap();
    finish(&mut yard, "foreign", of("cd", shell("true"))).await;
    finish(&mut yard, "own", of("ci", shell("true"))).await;
    let done = loop {
        match soon(stream.message()).await.unwrap().unwrap().message.unwrap() {
            sleep_response::Message::Tick(_) => {}
            sleep_response::Message::Done(done) => break done,
        }
    };
    assert_eq!(done.event.unwrap().process_id, "own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_does_not_go_on_with_who_has_its_id_next() {
    let known = KnowingService::start(&[("ci", "operator,owner=ci")]).await;
    let mut yard = known.service.client().await;
    let mut ci = known.caller("ci").await;
    begin_ready(&mut yard, "a", of("ci", shell("echo ready; exec sleep 600"))).await;
    let request = pb::FollowRequest { id: "a".into(), ..Default::default() };
    let mut following = soon(ci.follow(request)).await.unwrap().into_inner();
    let request = pb::WaitRequest { wait: Some(until_output("secret")), ..wait_for_it("a") };
    let mut waiter = ci.clone();
    let waiting = tokio::spawn(async move { waiter.wait(request).await });
    soon(yard.delete(delete("a", false))).await.unwrap();
    begin_ready(&mut yard, "a", of("cd", shell("echo secret ready; exec sleep 600"))).await;
    let mut chunks = Vec::new();
    let end = loop {
        match soon(following.message()).await.unwrap().unwrap().message.unwrap() {
            follow_response::Message::Chunk(chunk) => chunks.push(chunk),
            follow_response::Message::End(end) => break end,
            other => drop(other),
        }
    };
    assert_eq!(text(&chunks, pb::Stream::Stdout), "ready\n");
    assert_eq!(end.process.unwrap().spec.unwrap().owner, "ci");
    // Whether the wait had begun before is not known; whatever it saw was its own.
    match soon(waiting).await.unwrap() {
        Ok(answer) => assert!(!answer.into_inner().wait.unwrap().met),
        Err(status) => assert_eq!(reason(&status), "PROCESS_NOT_FOUND"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_of_one_owner_says_nothing_to_another() {
    let known = KnowingService::start(&[("ci", "operator,owner=ci")]).await;
    let mut yard = known.service.client().await;
    let spec = || as_service("web", shell("exec sleep 600"));
    begin(&mut yard, "theirs", of("cd", spec())).await;
    let mut ci = known.caller("ci").await;
    soon(ci.start(start("mine", spec()))).await.unwrap();
    let refused = soon(ci.start(start("", spec()))).await.unwrap_err();
    assert_eq!(reason(&refused), "SERVICE_RUNNING");
    assert_eq!(details(&refused).error_info().unwrap().metadata["id"], "mine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_names_a_process_of_another_is_in_the_log() {
    let known = KnowingService::start(&[("ci", "operator,owner=ci")]).await;
    begin(&mut known.service.client().await, "foreign", of("cd", shell("exec sleep 600"))).await;
    let mut ci = known.caller("ci").await;
    soon(ci.get(pb::GetRequest { id: "foreign".into() })).await.unwrap_err();
    soon(ci.kill(kill("foreign"))).await.unwrap_err();
    soon(ci.get(pb::GetRequest { id: "nobody".into() })).await.unwrap_err();
    let lines = known.audit("outside", 2).await;
    let line = r#"caller="token:ci" call="" process="foreign" result="outside of the scope""#;
    assert_eq!(lines, [line; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_typed_does_not_reach_who_has_the_id_next() {
    let known = KnowingService::start(&[("ci", "operator,owner=ci")]).await;
    let mut yard = known.service.client().await;
    let mut ci = known.caller("ci").await;
    let reads = || on_terminal(shell("echo ready; exec cat"));
    begin_ready(&mut yard, "a", of("ci", reads())).await;
    let (says, said) = mpsc::channel(1);
    let say = async |message| {
        // Whoever does not listen any more is told nothing.
        let _ = says.send(pb::AttachRequest { message: Some(message) }).await;
    };
    let attach = pb::AttachStart { id: "a".into(), ..Default::default() };
    say(attach_request::Message::Start(attach)).await;
    let mut stream = soon(ci.attach(ReceiverStream::new(said))).await.unwrap().into_inner();
    soon(stream.message()).await.unwrap().unwrap();
    soon(yard.delete(delete("a", false))).await.unwrap();
    begin_ready(&mut yard, "a", of("cd", reads())).await;
    soon(say(attach_request::Message::Text("stolen\n".into()))).await;
    while let Ok(Some(_)) = soon(stream.message()).await {}
    let text = |text: &str| Some(pb::write_stdin_request::Input::Text(text.into()));
    let typed =
        pb::WriteStdinRequest { id: "a".into(), input: text("stolen\n"), ..Default::default() };
    let absent = (tonic::Code::NotFound, "PROCESS_NOT_FOUND".to_owned());
    assert_eq!(refusal(soon(ci.write_stdin(typed.clone())).await), absent);
    let resize = pb::ResizeRequest { id: "a".into(), rows: 9, cols: 9 };
    assert_eq!(refusal(soon(ci.resize(resize)).await), absent);
    // What its own caller types comes after all of that.
    let wait = Some(until_output("own"));
    let own = pb::WriteStdinRequest { input: text("own\n"), wait, ..typed };
    soon(yard.write_stdin(own)).await.unwrap();
    assert!(!printed(&mut yard, "a").await.contains("stolen"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn that_an_id_is_taken_does_not_tell_whose_it_is() {
    let known = KnowingService::start(&[("ci", "operator,owner=ci")]).await;
    let mut yard = known.service.client().await;
    finish(&mut yard, "mine", of("ci", shell("true"))).await;
    finish(&mut yard, "them", of("cd", shell("true"))).await;
    let mut ci = known.caller("ci").await;
    let mut told = Vec::new();
    for id in ["mine", "them"] {
        let status = soon(ci.start(start(id, shell("false")))).await.unwrap_err();
        assert_eq!(reason(&status), "ID_CONFLICT");
        let metadata = details(&status).error_info().unwrap().metadata.clone();
        assert_eq!((metadata.len(), &metadata["id"][..]), (1, id));
        told.push(status.message().replace(id, "id"));
    }
    assert_eq!(told, [r#"the id "id" is taken by another process"#; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_learn_who_they_are() {
    let grants = [("ci", "operator,owner=a,owner=b-*,workspace=w,may=env"), ("eye", "viewer")];
    let known = KnowingService::start(&grants).await;
    let request = || pb::GetServerInfoRequest {};
    let told = soon(known.caller("ci").await.get_server_info(request())).await.unwrap();
    let expected = pb::Caller {
        name: "token:ci".into(),
        role: "operator".into(),
        owners: vec!["a".into(), "b-*".into()],
        workspaces: vec!["w".into()],
        may: vec!["env".into()],
    };
    assert_eq!(told.into_inner().caller.unwrap(), expected);
    let told = soon(known.caller("eye").await.get_server_info(request())).await.unwrap();
    let told = told.into_inner().caller.unwrap();
    assert_eq!((&told.name[..], &told.role[..]), ("token:eye", "viewer"));
    assert!(told.owners.is_empty() && told.workspaces.is_empty());
    let told = soon(known.service.client().await.get_server_info(request())).await.unwrap();
    let told = told.into_inner().caller.unwrap();
    assert_eq!(
        (&told.role[..], &told.may[..]),
        ("admin", &["user", "env", "interpreter"].map(String::from)[..])
    );
}
