//! Regular expressions that take long to compile, or to search with.

use futures_util::future::join_all;
use procyard::grpc::pb;
use tonic::Code;

use super::{PROMPT, calls_during};
use crate::support::callers::KnowingService;
use crate::support::service::*;
use crate::support::soon;

/// Takes the compiler long, and far more memory than a regex may have.
const COSTLY: &str = r"(?i)(\pL|\pN|\pS){400}";

fn wait(id: &str, regex: String) -> pb::WaitRequest {
    pb::WaitRequest { wait: Some(until_output(&regex)), ..wait_for_it(id) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regexes_for_a_missing_process_are_not_compiled() {
    let callers = [("eye", "viewer,owner=none"), ("ci", "operator,owner=ci")];
    let known = KnowingService::start(&callers).await;
    let (eye, mut ci) = (known.caller("eye").await, known.caller("ci").await);
    soon(ci.start(start("p", argv(&["sleep", "600"])))).await.unwrap();
    let server = known.service.server_pid();
    // Neither one that is not there, nor one that is outside of the caller's scope.
    let waits = (0..120).map(|n| {
        let mut eye = eye.clone();
        let request = wait(if n % 2 == 0 { "missing" } else { "p" }, format!("{COSTLY}|{n}"));
        async move { refusal(eye.wait(request).await) }
    });
    let (calls, refused) = calls_during(&mut ci, soon(join_all(waits))).await;
    for refused in refused {
        assert_eq!(refused, (Code::NotFound, "PROCESS_NOT_FOUND".into()));
    }
    assert!(calls.slowest < PROMPT, "{:?}", calls.slowest);
    assert_eq!(known.service.server_pid(), server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costly_regexes_leave_other_callers_served() {
    let callers = [("a", "operator,owner=a"), ("b", "operator,owner=b")];
    let known = KnowingService::start(&callers).await;
    let (mut a, mut b) = (known.caller("a").await, known.caller("b").await);
    soon(a.start(start("p", argv(&["sleep", "600"])))).await.unwrap();
    let server = known.service.server_pid();
    let waits = (0..60).map(|n| {
        let (mut a, request) = (a.clone(), wait("p", format!("{COSTLY}|{n}")));
        async move { a.wait(request).await.unwrap_err() }
    });
    let (calls, refused) = calls_during(&mut b, soon(join_all(waits))).await;
    for status in refused {
        assert_eq!(
            (status.code(), reason(&status)),
            (Code::InvalidArgument, "INVALID_FIELD".into())
        );
        let details = details(&status);
        let field = &details.bad_request().unwrap().field_violations[0];
        assert_eq!(field.field, "wait.output.regex");
        assert!(field.description.contains("bytes of memory"), "{}", field.description);
    }
    // One thread that compiled and served would serve after almost all.
    assert!(calls.answered >= 5, "{} calls were answered meanwhile", calls.answered);
    assert!(calls.slowest < PROMPT, "{:?}", calls.slowest);
    assert_eq!(known.service.server_pid(), server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_bad_fields_are_named_beside_a_bad_regex() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", argv(&["sleep", "600"])).await;
    let view = pb::View { max_bytes: u32::MAX, grep: "a(b".into(), ..Default::default() };
    let request = pb::WaitRequest { view: Some(view), ..wait("p", "x)".into()) };
    let status = soon(client.wait(request)).await.unwrap_err();
    let details = details(&status);
    let fields = details.bad_request().unwrap().field_violations.iter();
    let fields: Vec<_> = fields.map(|bad| (bad.field.as_str(), bad.description.as_str())).collect();
    assert_eq!(
        [fields[0], (fields[1].0, ""), fields[2]],
        [
            ("wait.output.regex", "at character 2: unopened group"),
            ("view.max_bytes", ""),
            ("view.grep", "at character 2: unclosed group"),
        ]
    );
}
