//! Errors that the framework makes before a handler is reached, put into the contract's words.
//!
//! tonic refuses by itself what it cannot decode, decompress or route, with bare statuses. The
//! contract promises every error an `ErrorInfo`; here such statuses get one. What a handler says
//! already has its details and is never touched.

use std::collections::HashMap;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::TryFutureExt;
use futures_util::future::MapOk;
use http::{Request, Response};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower::Service;

/// The `domain` of every `ErrorInfo`.
pub const DOMAIN: &str = "procyard";

/// A status of the framework, with the code and the details that the contract has for it. Handlers
/// need it for what the messages of a request stream fail with.
pub fn explain(status: Status) -> Status {
    if !status.details().is_empty() {
        return status;
    }
    let said = status.message();
    match status.code() {
        Code::OutOfRange => not_a_request(format!(
            "the request is larger than what is read; send less at once: {said}"
        )),
        // Whatever else tonic cannot read: a frame, a field, or the end is not where it should be.
        Code::Internal => not_a_request(format!(
            "the request cannot be read as the message that this method takes: {said}"
        )),
        Code::Unimplemented if said.is_empty() => with_reason(
            Code::Unimplemented,
            "UNKNOWN_METHOD",
            "no such method: see procyard.v1.ProcessService, or ask by reflection",
        ),
        Code::Unimplemented => with_reason(Code::Unimplemented, "UNSUPPORTED_ENCODING", said),
        code => with_reason(code, name(code), said),
    }
}

/// The status of a request message that is longer than its method takes.
pub fn message_too_large(found: usize, limit: usize) -> Status {
    // As tonic says it.
    explain(Status::out_of_range(format!(
        "Error, decoded message length too large: found {found} bytes, the limit is: {limit} bytes"
    )))
}

/// The status of a request message that has more fields than its method takes.
pub fn too_many_fields(limit: usize) -> Status {
    not_a_request(format!(
        "the request has more than {limit} fields: send fewer; where they are arguments or variables, \
         put them into a file, as a program gets less than 2 MiB of them from the kernel"
    ))
}

/// The status of a request message that the decoder would refuse, or that the server does not decode.
pub fn undecodable(why: &str) -> Status {
    explain(Status::internal(why))
}

/// The status of a request with a further message, where its method takes one.
pub fn second_message() -> Status {
    not_a_request("the request has more than one message: this method takes one".to_owned())
}

/// The status of a request that has begun and of which nothing more came.
pub fn request_timeout(after: Duration) -> Status {
    let message = format!(
        "the request is incomplete and no byte of it came for {} s; make the call again",
        after.as_secs()
    );
    with_reason(Code::DeadlineExceeded, "REQUEST_TIMEOUT", &message)
}

fn not_a_request(why: String) -> Status {
    let mut details = ErrorDetails::with_error_info("INVALID_FIELD", DOMAIN, HashMap::new());
    details.add_bad_request_violation("request", why.clone());
    Status::with_error_details(Code::InvalidArgument, why, details)
}

/// A status with nothing to tell but its reason.
pub fn with_reason(code: Code, reason: &str, message: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
    Status::with_error_details(code, message, details)
}

/// The name of a code, for want of a better reason: the standard services give none.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// A service whose immediate failures are explained. Those that end a stream are the handler's.
#[derive(Clone, Debug)]
pub struct Explained<S>(pub S);

impl<S, Sent, Got> Service<Request<Sent>> for Explained<S>
where
    S: Service<Request<Sent>, Response = Response<Got>>,
{
    type Response = Response<Got>;
    type Error = S::Error;
    type Future = MapOk<S::Future, fn(Response<Got>) -> Response<Got>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Sent>) -> Self::Future {
        self.0.call(request).map_ok(explained)
    }
}

/// The status that is a whole response stands in its headers.
fn explained<B>(mut response: Response<B>) -> Response<B> {
    let headers = response.headers_mut();
    if !headers.contains_key(Status::GRPC_STATUS) {
        return response;
    }
    if let Some(status) = Status::from_header_map(headers)
        && status.code() != Code::Ok
        && status.details().is_empty()
    {
        let _ = explain(status).add_header(headers);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: Status) -> Response<()> {
        explained(status.into_http())
    }

    fn read(response: &Response<()>) -> (Code, String, Option<String>) {
        let status = Status::from_header_map(response.headers()).unwrap();
        let info = status.get_details_error_info();
        (status.code(), status.message().into(), info.map(|info| info.reason))
    }

    #[test]
    fn a_bare_status_gets_its_reason() {
        for (bare, code, reason) in [
            (Status::out_of_range("too large"), Code::InvalidArgument, "INVALID_FIELD"),
            (Status::internal("failed to decode"), Code::InvalidArgument, "INVALID_FIELD"),
            (Status::unimplemented(""), Code::Unimplemented, "UNKNOWN_METHOD"),
            (Status::unimplemented("gzip"), Code::Unimplemented, "UNSUPPORTED_ENCODING"),
            (Status::not_found("service"), Code::NotFound, "NOT_FOUND"),
        ] {
            let (got, _, info) = read(&response(bare));
            assert_eq!((got, info.as_deref()), (code, Some(reason)));
        }
    }

    #[test]
    fn an_unreadable_request_is_a_bad_request_too() {
        let status = explain(Status::internal("failed to decode Protobuf message: invalid tag"));
        let bad = status.get_details_bad_request().unwrap();
        assert!(bad.field_violations[0].description.contains("invalid tag"));
    }

    #[test]
    fn what_a_handler_says_is_left_as_it_is() {
        let own = with_reason(Code::Internal, "STORE", "no room");
        let expected = (Code::Internal, "no room".into(), Some("STORE".into()));
        assert_eq!(read(&response(own)), expected);
        let fine: Response<()> = explained(Response::new(()));
        assert!(fine.headers().is_empty());
    }
}
