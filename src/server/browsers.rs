//! Keeps web pages out.
//!
//! A browser lets any page send requests to loopback addresses, and a page whose host name is made
//! to point there counts as being of the same origin. Whoever calls this service runs commands, so
//! pages get nothing: there is no CORS, a request that names an origin off this machine is refused,
//! and so is one without gRPC's content type, which a page cannot send without asking first.
//! gRPC-Web is for pages that come from this machine and for programs that speak nothing else.
//! Over loopback, a request must be meant for this machine by its host name too; with TLS the names
//! of the certificate see to that, and a Unix socket is reached by no page.
//!
//! Owns these three rules, and no other authorisation.

use std::future::{Ready, ready};
use std::net::IpAddr;
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use tonic::Code;
use tower::Service;

use super::credentials::Peer;
use super::origin::Origin;
use crate::grpc::audit::result;
use crate::grpc::clip::clip;
use crate::grpc::framework::with_reason;
use crate::telemetry::refusals;

/// Most bytes of a path, a host or an origin that a log line tells.
const TOLD: usize = 128;

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
        let peer = request.extensions().get::<Peer>();
        let hosted = peer.is_some_and(|peer| peer.is_loopback() && !peer.has_tls());
        let strayed = if hosted { misdirection(&request) } else { None };
        match refusal(&request).or(strayed) {
            Some(response) => Either::Left(ready(Ok(response))),
            None => Either::Right(self.0.call(request)),
        }
    }
}

fn refusal<Sent, Got: Default>(request: &Request<Sent>) -> Option<Response<Got>> {
    let headers = request.headers();
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if !kind.starts_with(b"application/grpc") {
        let mut response = Response::new(Got::default());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Some(response);
    }
    if headers.get_all(ORIGIN).iter().all(is_local) {
        return None;
    }
    let why = "web pages from elsewhere are not served; a proxy that answers for its pages takes \
               the Origin header away";
    Some(refuse(request, headers.get(ORIGIN).map(HeaderValue::as_bytes), why))
}

/// Refuses a request for where it comes from or leads to, and tells so.
fn refuse<Sent, Got: Default>(
    request: &Request<Sent>,
    page: Option<&[u8]>,
    why: &str,
) -> Response<Got> {
    let refused = with_reason(Code::PermissionDenied, "ORIGIN_NOT_ALLOWED", why);
    let peer = request.extensions().get::<Peer>();
    let origin = peer.map_or(Origin::User(None), Origin::of);
    let result = result(&refused);
    if refusals::has_line(&origin.to_string(), &result) {
        let peer = peer.map(tracing::field::display);
        let call = clip(request.uri().path().trim_start_matches('/'), TOLD);
        let page = page.map(|page| clip(&String::from_utf8_lossy(page), TOLD));
        tracing::warn!(target: "procyard::audit", peer, call, result, page, "refused");
    }
    refused.into_http()
}

/// The refusal of a request that is meant for another host: its name was made to point here.
fn misdirection<Sent, Got: Default>(request: &Request<Sent>) -> Option<Response<Got>> {
    let authority = request.uri().authority().map(Authority::as_str);
    let hosts = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or(""));
    let mut hosts = authority.into_iter().chain(hosts).peekable();
    // Every client names the host it means.
    if hosts.peek().is_some() && hosts.all(is_this_machine) {
        return None;
    }
    let host = authority.map(str::as_bytes);
    let host = host.or(request.headers().get(HOST).map(HeaderValue::as_bytes));
    let why = "over loopback the host is an IP address or localhost; a proxy says so for its \
               clients";
    Some(refuse(request, host, why))
}

/// Whether a host, with or without a port, is a name that nobody else can make point here.
fn is_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let lower = name.trim_end_matches('.').to_ascii_lowercase();
    bare.parse::<IpAddr>().is_ok() || lower == "localhost" || lower.ends_with(".localhost")
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
        let request = Request::post("/x").header(CONTENT_TYPE, kind);
        let request =
            origin.into_iter().fold(request, |request, origin| request.header(ORIGIN, origin));
        refusal(&request.body(()).unwrap())
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

    #[test]
    fn over_loopback_a_request_is_meant_for_this_machine() {
        let strayed = |uri: &str, host: Option<&str>| {
            let request = host
                .into_iter()
                .fold(Request::post(uri), |request, host| request.header(HOST, host));
            misdirection::<_, ()>(&request.body(()).unwrap()).is_some()
        };
        for host in
            ["localhost", "LocalHost:1", "localhost.", "a.localhost:1", "127.0.0.1", "[::1]:7450"]
        {
            assert!(!strayed("/x", Some(host)), "{host}");
            assert!(!strayed(&format!("http://{host}/x"), None), "{host}");
        }
        for host in ["example.com", "localhost.example.com", "xlocalhost", "2130706433", "[", ""] {
            assert!(strayed("/x", Some(host)), "{host}");
            assert!(strayed("http://localhost/x", Some(host)), "{host}");
        }
        assert!(strayed("http://example.com/x", None) && strayed("/x", None));
    }
}
