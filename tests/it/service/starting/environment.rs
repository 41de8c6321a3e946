//! What a process finds in its environment.

use std::collections::BTreeMap;

use procyard::grpc::pb;

use crate::support::service::*;

/// A service whose own environment is known.
fn service() -> TestService {
    TestService::start_with(|command| {
        command.env_clear().env("RUST_LOG", "warn").envs([
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("LANG", "C.UTF-8"),
            ("APP_ONE", "1"),
            ("APP_TWO", "2"),
            ("APP_TOKEN", "hidden"),
            ("OTHER", "3"),
            ("PROCYARD_KEEP_HOURS", "99"),
        ]);
    })
}

/// The environment of a process, without what always differs.
async fn environment(client: &mut Client, env: pb::Environment) -> BTreeMap<String, String> {
    let spec = pb::Spec { env: Some(env), ..argv(&["env"]) };
    let answer = finish(client, "", spec).await;
    let id = answer.process.unwrap().id;
    let said = text(&answer.chunks, pb::Stream::Stdout);
    let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.into(), value.into()));
    let mut found: BTreeMap<String, String> = said.lines().filter_map(pair).collect();
    assert_eq!(found.remove("PROCYARD_ID"), Some(id));
    assert_eq!(found.remove("PROCYARD_RUN").as_deref(), Some("1"));
    assert!(found.remove("PROCYARD_OUTPUT").is_some_and(|path| path.starts_with('/')));
    found
}

fn names(found: &BTreeMap<String, String>) -> Vec<&str> {
    found.keys().map(String::as_str).collect()
}

fn inherit(patterns: &[&str]) -> pb::Environment {
    let inherit = patterns.iter().map(|pattern| (*pattern).into()).collect();
    pb::Environment { inherit, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_clean_unless_something_is_asked_for() {
    let service = service();
    let mut client = service.client().await;
    let found = environment(&mut client, pb::Environment::default()).await;
    assert_eq!(names(&found), ["LANG", "PATH"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_pass_by_name_and_by_prefix_and_what_is_set_wins() {
    let service = service();
    let mut client = service.client().await;
    let found = environment(&mut client, inherit(&["OTHER", "MISSING"])).await;
    assert_eq!(names(&found), ["LANG", "OTHER", "PATH"]);
    let set = [("APP_ONE", "set"), ("LANG", ""), ("NEW", "a=b\n c")];
    let set = set.map(|(name, value)| (name.into(), value.into())).into();
    let found = environment(&mut client, pb::Environment { set, ..inherit(&["APP_*"]) }).await;
    assert_eq!(names(&found), ["APP_ONE", "APP_TWO", "LANG", "NEW", "PATH"]);
    assert_eq!((&found["APP_ONE"][..], &found["APP_TWO"][..]), ("set", "2"));
    assert_eq!((&found["LANG"][..], &found["NEW"][..]), ("", "a=b"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_and_procyards_own_pass_only_when_named_exactly() {
    let service = service();
    let mut client = service.client().await;
    let everything = pb::Environment { inherit_all: true, ..inherit(&["*", "PROCYARD_*"]) };
    let found = environment(&mut client, everything).await;
    assert_eq!(names(&found), ["APP_ONE", "APP_TWO", "LANG", "OTHER", "PATH", "RUST_LOG"]);
    let named = inherit(&["APP_TOKEN", "PROCYARD_KEEP_HOURS"]);
    let found = environment(&mut client, named).await;
    assert_eq!((&found["APP_TOKEN"][..], &found["PROCYARD_KEEP_HOURS"][..]), ("hidden", "99"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_environment_comes_back_in_the_record_but_not_in_events() {
    let service = service();
    let mut client = service.client().await;
    let set = [("NEW".to_owned(), "value".to_owned())];
    let env = pb::Environment { set: set.into(), ..Default::default() };
    finish(&mut client, "a", pb::Spec { env: Some(env.clone()), ..shell("true") }).await;
    let kept = get(&mut client, "a").await.spec.unwrap().env.unwrap_or_default();
    assert_eq!(kept.set, env.set);
    for event in events(&mut client).await {
        let told = event.process.unwrap().spec.unwrap().env.unwrap_or_default();
        assert!(told.set.is_empty());
    }
}
