//! Every refusal on the wire: its code, its reason, its details, and that they fit.

use super::*;
use crate::access::Role;
use crate::supervisor::Bound;

fn everything() -> Vec<Error> {
    let (id, step, path) = ("a".to_owned(), "cannot execute".to_owned(), "/nowhere".to_owned());
    let bad = BadField { field: "id".into(), problem: "required".into() };
    vec![
        Error::Invalid(vec![bad]),
        Error::NoCredentials,
        Error::BadCredentials,
        Error::Role { call: "Kill", role: Role::Viewer, needs: Role::Operator },
        Error::Scope(Outside { field: "owner", allowed: "a, b-*".into(), given: true }),
        Error::NotFound(id.clone()),
        Error::IdConflict(id.clone()),
        Error::SpawnFailed { step: step.clone(), errno: 2, path },
        Error::UserNotAllowed { step, errno: 1 },
        Error::LimitUnsupported {
            unsupported: vec!["memory_bytes", "cpus"],
            enforceable: vec!["nice"],
        },
        Error::CwdNotAllowed { writable: false, path: "/nowhere".into() },
        Error::SandboxUnsupported(vec!["files", "own_pids"]),
        Error::NotRunning(id.clone()),
        Error::StillRunning(id.clone()),
        Error::NotATerminal(id.clone()),
        Error::StdinNotOpen(id),
        Error::CursorAhead { cursor: 9, next: 3 },
        Error::InputOffset { offset: 9, accepted: 3 },
        Error::StdinFull { pending: 1 << 20 },
        Error::TooManyProcesses,
        Error::TooManyStreams(Reached::for_now(Bound::Streams, 9, 9, false)),
        Error::TooManyCalls(Reached::for_now(Bound::Calls, 9, 9, false)),
        Error::OutOfPids,
        Error::OutOfDescriptors,
        Error::OutOfTerminals,
        Error::ShuttingDown,
        Error::Store("the disk is full".into()),
        Error::Keeper("no answer".into()),
    ]
}

/// Bytes that a status takes in headers, as HTTP/2 counts them.
pub(in crate::grpc) fn header_bytes(status: Status) -> usize {
    let response = status.into_http::<()>();
    response.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

fn metadata(error: Error) -> HashMap<String, String> {
    Status::from(error).get_details_error_info().unwrap().metadata
}

#[test]
fn every_refusal_has_a_reason_of_its_own_and_its_words() {
    let mut reasons = std::collections::HashSet::new();
    for error in everything() {
        let status = Status::from(error.clone());
        assert_eq!(status.message(), error.to_string());
        let info = status.get_details_error_info().unwrap();
        assert_eq!(info.domain, "procyard");
        assert!(reasons.insert(info.reason), "{error}");
    }
}

#[test]
fn a_retry_is_offered_exactly_where_something_is_exhausted_or_cannot_be_recorded() {
    for error in everything() {
        let status = Status::from(error.clone());
        let retry = status.get_details_retry_info().and_then(|info| info.retry_delay);
        let may_pass = status.code() == Code::ResourceExhausted || matches!(error, Error::Store(_));
        assert_eq!(retry.is_some(), may_pass, "{status}");
    }
    let full = Status::from(Error::StdinFull { pending: 1 });
    assert_eq!(full.get_details_retry_info().unwrap().retry_delay, Some(SOON));
}

#[test]
fn what_is_not_found_is_named_as_a_resource() {
    let status = Status::from(Error::NotFound("a".into()));
    assert_eq!(status.code(), Code::NotFound);
    let resource = status.get_details_resource_info().unwrap();
    assert_eq!(resource.resource_type, "procyard.v1.Process");
    assert_eq!(resource.resource_name, "a");
    assert_eq!(metadata(Error::NotFound("a".into()))["id"], "a");
}

#[test]
fn what_is_not_the_callers_to_choose_is_named_with_what_it_takes() {
    for (choice, reason, field, freedom) in [
        (Choice::User, "USER_NOT_ALLOWED", "spec.user", "user"),
        (Choice::InheritAll, "ROLE", "spec.env.inherit_all", "env"),
    ] {
        let status = Status::from(Error::NotFree(choice));
        let info = status.get_details_error_info().unwrap();
        assert_eq!((status.code(), info.reason.as_str()), (Code::PermissionDenied, reason));
        let expected = [("field", field), ("freedom", freedom)];
        assert_eq!(info.metadata, expected.map(|(key, value)| (key.into(), value.into())).into());
    }
}

#[test]
fn a_bound_that_was_reached_is_told_with_what_is_used() {
    let reached = Reached::for_now(Bound::TranscriptBytes, 9, 8, true);
    let expected = [("limit", "transcript_bytes"), ("most", "9"), ("used", "8"), ("of", "all")];
    assert_eq!(
        metadata(Error::Quota(reached)),
        expected.map(|(key, value)| (key.into(), value.into())).into()
    );
    let never = Status::from(Error::Quota(Reached { retry: None, ..reached }));
    assert!(never.get_details_retry_info().is_none());
}

#[test]
fn bad_fields_are_told_one_by_one() {
    let bad = |n: u32| BadField { field: format!("f{n}"), problem: format!("p{n}") };
    let status = Status::from(Error::Invalid(vec![bad(1), bad(2)]));
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "f1: p1; f2: p2"));
    let violations = status.get_details_bad_request().unwrap().field_violations;
    let told: Vec<_> = violations.into_iter().map(|bad| (bad.field, bad.description)).collect();
    assert_eq!(told, [("f1".into(), "p1".into()), ("f2".into(), "p2".into())]);
}

#[test]
fn a_failed_start_has_the_kernels_word() {
    let (step, path) = ("cannot execute".to_owned(), "/nowhere".to_owned());
    let told = metadata(Error::SpawnFailed { step: step.clone(), errno: 2, path: path.clone() });
    let expected = [
        ("step", "cannot execute"),
        ("errno", "2"),
        ("errno_name", "ENOENT"),
        ("path", "/nowhere"),
    ];
    assert_eq!(told, expected.map(|(key, value)| (key.into(), value.into())).into());
    let nameless = metadata(Error::SpawnFailed { step, errno: 9999, path });
    assert_eq!((nameless["errno"].as_str(), nameless.get("errno_name")), ("9999", None));
}

#[test]
fn no_refusal_outgrows_the_headers_of_a_client() {
    // The worst that can be sent: each byte of a message takes three as a header.
    let long = "ä\n".repeat(1 << 20);
    let errors = [
        Error::NotFound(long.clone()),
        Error::IdConflict(long.clone()),
        Error::SpawnFailed { step: long.clone(), errno: 2, path: long.clone() },
        Error::Store(long.clone()),
        Error::Keeper(long.clone()),
        Error::Invalid(vec![BadField { field: long.clone(), problem: long }]),
    ];
    for error in errors {
        let bytes = header_bytes(error.into());
        assert!(bytes < 7500, "{bytes} bytes");
    }
}
