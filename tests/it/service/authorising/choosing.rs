//! What a caller may choose: its owner and workspace, a user, variables and an interpreter.

use procyard::grpc::pb::{self, spec};

use crate::support::callers::*;
use crate::support::service::*;
use crate::support::soon;

/// Starts something: its owner and workspace, or why not.
async fn started(client: &mut TokenClient, spec: pb::Spec) -> Result<(String, String), String> {
    let answer = soon(client.start(start("", spec))).await;
    let spec = answer.map(|answer| answer.into_inner().process.unwrap().spec.unwrap());
    spec.map(|spec| (spec.owner, spec.workspace)).map_err(|status| {
        let info = details(&status).error_info().unwrap().clone();
        let said = |key: &str| info.metadata.get(key).cloned().unwrap_or_default();
        format!("{} {} {}{}", info.reason, said("field"), said("allowed"), said("freedom"))
    })
}

fn owned(owner: &str, workspace: &str) -> pb::Spec {
    pb::Spec { owner: owner.into(), workspace: workspace.into(), ..shell("true") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_started_is_put_into_the_scope_or_refused() {
    let known = KnowingService::start(&[
        ("one", "operator,owner=ci,workspace=main"),
        ("some", "operator,owner=a,owner=b-*"),
    ])
    .await;
    let mut one = known.caller("one").await;
    let settled = Ok(("ci".to_owned(), "main".to_owned()));
    assert_eq!(started(&mut one, owned("", "")).await, settled);
    assert_eq!(started(&mut one, owned("ci", "")).await, settled);
    let refused = started(&mut one, owned("cd", "main")).await;
    assert_eq!(refused, Err("SCOPE spec.owner ci".into()));
    let refused = started(&mut one, owned("", "other")).await;
    assert_eq!(refused, Err("SCOPE spec.workspace main".into()));
    let mut some = known.caller("some").await;
    assert_eq!(started(&mut some, owned("b-1", "w")).await, Ok(("b-1".into(), "w".into())));
    assert_eq!(started(&mut some, owned("", "")).await, Err("SCOPE spec.owner a, b-*".into()));
    // Nothing was left behind by what was refused.
    assert_eq!(list(&mut known.service.client().await).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_repeated_without_an_owner_finds_the_same_process() {
    let known = KnowingService::start(&[("ci", "operator,owner=ci")]).await;
    let mut client = known.caller("ci").await;
    let mut again = async || soon(client.start(run("a", shell("true")))).await.unwrap();
    assert!(!again().await.into_inner().existed);
    assert!(again().await.into_inner().existed);
}

fn script(interpreter: &[&str]) -> pb::Spec {
    let interpreter = interpreter.iter().map(|word| (*word).to_owned()).collect();
    let script = pb::Script { code: "true".into(), interpreter, filename: String::new() };
    pb::Spec { program: Some(spec::Program::Script(script)), ..Default::default() }
}

fn with_env(inherit: &[&str], inherit_all: bool) -> pb::Spec {
    let inherit = inherit.iter().map(|name| (*name).to_owned()).collect();
    let env = pb::Environment { inherit, inherit_all, ..Default::default() };
    pb::Spec { env: Some(env), ..shell("true") }
}

/// This user, which everyone could have.
fn as_user() -> pb::Spec {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let user = pb::User { uid: uid.as_raw(), gid: Some(gid.as_raw()), groups: Vec::new() };
    pb::Spec { user: Some(user), ..shell("true") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_needs_a_freedom_is_refused_to_who_has_it_not() {
    let known = KnowingService::start(&[
        ("bare", "operator,may=none"),
        ("usual", "operator"),
        ("env", "operator,may=env"),
    ])
    .await;
    let user = "USER_NOT_ALLOWED spec.user user";
    let inherit = "ROLE spec.env.inherit env";
    let inherit_all = "ROLE spec.env.inherit_all env";
    let interpreter = "ROLE spec.script.interpreter interpreter";
    for (caller, refused) in [
        ("bare", &[user, inherit, inherit_all, interpreter][..]),
        ("usual", &[user, inherit, inherit_all]),
        ("env", &[user, interpreter]),
    ] {
        let mut client = known.caller(caller).await;
        for (spec, problem) in [
            (as_user(), user),
            (with_env(&["A"], false), inherit),
            (with_env(&[], true), inherit_all),
            (script(&["sh", "-e"]), interpreter),
            (script(&[]), "none"),
            (script(&["/bin/sh"]), "none"),
        ] {
            let expected = refused.contains(&problem).then_some(problem);
            let answer = started(&mut client, spec).await;
            assert_eq!(answer.err().as_deref(), expected, "{caller}: {problem}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_choose_how_something_runs_may_not_run_it_again() {
    let known = KnowingService::start(&[("bare", "operator,may=none"), ("admin", "admin")]).await;
    finish(&mut known.service.client().await, "a", with_env(&["HOME"], false)).await;
    let mut bare = known.caller("bare").await;
    let refused = soon(bare.run(run_again("a"))).await.unwrap_err();
    assert_eq!(reason(&refused), "ROLE");
    assert_eq!(details(&refused).error_info().unwrap().metadata["field"], "spec.env.inherit");
    assert_eq!(get(&mut known.service.client().await, "a").await.run, 1);
    soon(known.caller("admin").await.run(run_again("a"))).await.unwrap();
}
