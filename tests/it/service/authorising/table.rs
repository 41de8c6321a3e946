//! Every call × every role × a process in the caller's scope, outside of it, and none at all.

use std::collections::BTreeSet;

use procyard::access::Call;
use procyard::grpc::pb;
use prost::Message;

use super::calls::{delete, look, waiting};
use crate::support::callers::*;
use crate::support::service::*;
use crate::support::soon;

/// What comes of a call for a process in the caller's scope, for one outside, and for none: as code
/// and reason, or "ok" and how many it found.
type Outcomes = [&'static str; 3];

/// A call, and what it is to those who are bound to an owner and to an admin.
struct Row {
    rpc: &'static str,
    /// How it is made, where there are several ways.
    how: &'static str,
    viewer: Outcomes,
    operator: Outcomes,
    admin: Outcomes,
}

const OK: &str = "ok";
const GONE: &str = "NotFound PROCESS_NOT_FOUND";
const TAKEN: &str = "AlreadyExists ID_CONFLICT";
const LIVE: &str = "FailedPrecondition STILL_RUNNING";
const SCOPE: &str = "PermissionDenied SCOPE";
const NO: Outcomes = ["PermissionDenied ROLE"; 3];
const IN_SCOPE: Outcomes = [OK, GONE, GONE];
const ANY: Outcomes = [OK, OK, GONE];
const FOUND: Outcomes = ["ok 1", "ok 0", "ok 0"];

const fn row(
    (rpc, how): (&'static str, &'static str),
    viewer: Outcomes,
    operator: Outcomes,
    admin: Outcomes,
) -> Row {
    Row { rpc, how, viewer, operator, admin }
}

/// All calls. Whoever adds one says here who may make it for what.
const TABLE: [Row; 23] = [
    row(("Start", "Start"), NO, [OK, TAKEN, OK], [TAKEN, TAKEN, OK]),
    row(("Start", "Start for the owner"), NO, [OK, TAKEN, OK], [OK, TAKEN, OK]),
    row(("Start", "Start for another"), NO, [SCOPE, SCOPE, SCOPE], [TAKEN, OK, OK]),
    row(("Get", "Get"), IN_SCOPE, IN_SCOPE, ANY),
    row(("List", "List"), FOUND, FOUND, ["ok 1", "ok 1", "ok 0"]),
    row(("Read", "Read"), IN_SCOPE, IN_SCOPE, ANY),
    row(("Read", "Read and acknowledge"), NO, IN_SCOPE, ANY),
    row(("Follow", "Follow"), IN_SCOPE, IN_SCOPE, ANY),
    row(("Follow", "Follow and acknowledge"), NO, IN_SCOPE, ANY),
    row(("Wait", "Wait"), IN_SCOPE, IN_SCOPE, ANY),
    row(("WriteStdin", "WriteStdin"), NO, IN_SCOPE, ANY),
    row(("Resize", "Resize"), NO, IN_SCOPE, ANY),
    row(("Signal", "Signal"), NO, IN_SCOPE, ANY),
    row(("Kill", "Kill"), NO, IN_SCOPE, ANY),
    row(("Kill", "Kill by selector"), NO, FOUND, ["ok 1", "ok 1", "ok 0"]),
    row(("Run", "Run"), NO, [LIVE, GONE, GONE], [LIVE, LIVE, GONE]),
    row(("Delete", "Delete"), NO, IN_SCOPE, ANY),
    row(("Delete", "Delete what may be missing"), NO, [OK; 3], [OK; 3]),
    row(("Watch", "Watch"), FOUND, FOUND, ["ok 1", "ok 1", "ok 4"]),
    row(("Attach", "Attach"), NO, IN_SCOPE, ANY),
    row(("Screen", "Screen"), IN_SCOPE, IN_SCOPE, ANY),
    row(("Sleep", "Sleep"), [OK; 3], [OK; 3], [OK; 3]),
    row(("GetServerInfo", "GetServerInfo"), [OK; 3], [OK; 3], [OK; 3]),
];

#[test]
fn every_call_of_the_api_is_in_both_tables() {
    let files = prost_types::FileDescriptorSet::decode(pb::FILE_DESCRIPTORS).unwrap();
    let services = files.file.iter().flat_map(|file| &file.service);
    let services = services.filter(|service| service.name() == "ProcessService");
    let api: BTreeSet<_> =
        services.flat_map(|service| &service.method).map(|method| method.name()).collect();
    assert_eq!(api, Call::ALL.iter().map(|call| call.name).collect());
    assert_eq!(api, TABLE.iter().map(|row| row.rpc).collect());
}

/// A service that knows a viewer and an operator who are bound to an owner, and an admin.
async fn service() -> KnowingService {
    let bound = |role: &str| format!("{role},owner=mine");
    let callers = [("viewer", &*bound("viewer")), ("operator", &bound("operator"))];
    KnowingService::start(&[callers[0], callers[1], ("admin", "admin")]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_does_more_than_the_table_says_and_what_is_foreign_is_as_if_absent() {
    let known = service().await;
    let mut yard = known.service.client().await;
    for (n, Row { how, viewer, operator, admin, .. }) in TABLE.iter().enumerate() {
        for (caller, expected) in [("viewer", viewer), ("operator", operator), ("admin", admin)] {
            let case = format!("{how} by {caller}");
            let mut client = known.caller(caller).await;
            let (own, foreign) = (format!("own-{n}-{caller}"), format!("foreign-{n}-{caller}"));
            begin(&mut yard, &own, waiting(&own, "mine")).await;
            let before = begin(&mut yard, &foreign, waiting(&foreign, "theirs")).await;
            let own = look(&mut client, how, &own).await;
            assert_eq!(outcome(&own), expected[0], "{case}, its own");
            let there = look(&mut client, how, &foreign).await;
            assert_eq!(outcome(&there), expected[1], "{case}, foreign");
            if caller != "admin" {
                assert_eq!(get(&mut yard, &foreign).await, before, "{case} touched it");
            }
            soon(yard.delete(delete(&foreign, true))).await.unwrap();
            let absent = look(&mut client, how, &foreign).await;
            assert_eq!(outcome(&absent), expected[2], "{case}, absent");
            // Where more than one thing is told, their order is any.
            if expected[1] == expected[2] && !expected[1].starts_with("PermissionDenied") {
                let seen = |answer: &Result<String, _>| answer.as_ref().map_err(all_of).cloned();
                assert_eq!(seen(&there), seen(&absent), "{case}: they can be told apart");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_known_does_nothing_at_all() {
    let known = service().await;
    let mut yard = known.service.client().await;
    let before = begin(&mut yard, "a", waiting("a", "mine")).await;
    let token = known.token("admin");
    let wrong = token.replace(&token[40..], &"0".repeat(token.len() - 40));
    for (shown, refused) in [
        (None, "Unauthenticated NO_CREDENTIALS"),
        (Some(wrong.as_str()), "Unauthenticated BAD_CREDENTIALS"),
        (Some("procyard"), "Unauthenticated BAD_CREDENTIALS"),
    ] {
        let mut client = known.showing(shown).await;
        for Row { how, .. } in &TABLE {
            for id in ["a", "nobody"] {
                let answer = look(&mut client, how, id).await;
                assert_eq!(outcome(&answer), refused, "{how} with {shown:?}");
            }
        }
    }
    assert_eq!(list(&mut yard).await, [before]);
}
