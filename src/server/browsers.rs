//! Keeps web pages out.
//!
//! A browser lets any page send requests to loopback addresses, and a page whose host name is made
//! to point there counts as being of the same origin. Whoever calls this service runs commands, so
//! pages get nothing: there is no CORS, a request that names an origin off this machine is refused,
//! and so is one without gRPC's content type, which a page cannot send without asking first.
//! gRPC-Web is for pages that come from this machine and for programs that speak nothing else.
//!
//! Owns these two rules, and no other authorisation.

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::header::{CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use tonic::Code;
use tower::Service;

use crate::grpc::framework::with_reason;

/// A service that pages from elsewhere do not reach.
#[derive(Clone, Debug)]
pub(super) struct NoForeignPages<S>(pub(super) S);

impl<S, Sent, Got> Service<Request<Sent>> for NoForeignPages<S>
where
    S: Service<Request<Sent>, Response = Response<Got>>,
    Got: Default,
{
    type Response = Response<Got>;
    type Error = S::Error;
    type Future = Either<Ready<Result<Response<Got>, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Sent>) -> Self::Future {
        match refusal(request.headers()) {
            Some(response) => Either::Left(ready(Ok(response))),
            None => Either::Right(self.0.call(request)),
        }
    }
}

fn refusal<B: Default>(headers: &HeaderMap) -> Option<Response<B>> {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if !kind.starts_with(b"application/grpc") {
        let mut response = Response::new(B::default());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Some(response);
    }
    if headers.get_all(ORIGIN).iter().all(is_local) {
        return None;
    }
    let why = "web pages from elsewhere are not served; a proxy that answers for its pages takes \
               the Origin header away";
    Some(with_reason(Code::PermissionDenied, "ORIGIN_NOT_ALLOWED", why).into_http())
}

/// Whether an origin is a page of this machine.
fn is_local(origin: &HeaderValue) -> bool {
    let Ok(origin) = Uri::try_from(origin.as_bytes()) else { return false };
    matches!(origin.host(), Some("localhost" | "127.0.0.1" | "[::1]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(kind: &str, origin: Option<&str>) -> Option<Response<()>> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        refusal(&headers)
    }

    #[test]
    fn programs_and_local_pages_are_let_in() {
        for kind in ["application/grpc", "application/grpc+proto"] {
            for origin in [None, Some("http://localhost:3000"), Some("http://[::1]")] {
                assert!(refused(kind, origin).is_none(), "{kind} {origin:?}");
            }
        }
    }

    #[test]
    fn pages_from_elsewhere_are_refused_with_a_reason() {
        for origin in ["http://example.com", "http://localhost.example.com:7450", "null", "", "/"] {
            let response = refused("application/grpc", Some(origin)).unwrap();
            assert_eq!(response.headers()["grpc-status"], "7", "{origin}");
        }
    }

    #[test]
    fn what_a_page_may_send_without_asking_is_no_call() {
        for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
            let response = refused(kind, None).unwrap();
            assert_eq!(response.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        }
    }
}
