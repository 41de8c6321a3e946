//! Lets nobody in who is not known, and nobody do what its role does not allow.
//!
//! Owns which services are for everyone: health, because probes have nothing to show. Whatever else
//! is called is called by a [`Caller`], which travels with the request from here on.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, Either};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::super::connection_auth::ConnectionAuth;
use super::super::origin::Origin;
use super::standing::Standing;
use super::{Credentials, Peer, bearer};
use crate::access::{Call, Caller, Role};
use crate::grpc::audit::result;
use crate::grpc::clip::clip;
use crate::grpc::pb::process_service_server::SERVICE_NAME;
use crate::supervisor::Error;
use crate::telemetry::refusals;

/// The one service that is for everyone.
pub(in crate::server) const HEALTH: &str = "grpc.health.v1.Health";

/// Most bytes of a path that a log line tells: those that are served fit.
const PATH: usize = 128;

/// How a call is named that is in no table.
const UNKNOWN: &str = "an unknown method";

/// A service that only those reach who may.
#[derive(Clone, Debug)]
pub(in crate::server) struct Gate<S> {
    inner: S,
    credentials: Arc<Credentials>,
}

impl<S> Gate<S> {
    pub(in crate::server) fn new(inner: S, credentials: Arc<Credentials>) -> Gate<S> {
        Gate { inner, credentials }
    }
}

impl<S, Sent> Service<Request<Sent>> for Gate<S>
where
    S: Service<Request<Sent>, Response = Response<Body>, Error: Send, Future: Send + 'static>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<
        Ready<Result<Response<Body>, S::Error>>,
        Either<S::Future, BoxFuture<'static, Result<Response<Body>, S::Error>>>,
    >;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Sent>) -> Self::Future {
        match admit(&self.credentials, &mut request) {
            Ok(None) => Either::Right(Either::Left(self.inner.call(request))),
            Ok(Some(standing)) => {
                let answer = self.inner.call(request);
                let watched = async { Ok(answer.await?.map(|body| standing.over(body))) };
                Either::Right(Either::Right(Box::pin(watched)))
            }
            Err(refused) => Either::Left(ready(Ok(refused.into_http()))),
        }
    }
}

/// Finds out who calls and whether it may, and puts the answer into the request. Returns what is to
/// be looked at again while the answer goes on.
fn admit<B>(
    credentials: &Arc<Credentials>,
    request: &mut Request<B>,
) -> Result<Option<Standing>, Status> {
    let path = request.uri().path().trim_start_matches('/');
    let (service, method) = path.split_once('/').unwrap_or((path, ""));
    let known = Call::named(method).filter(|_| service == SERVICE_NAME);
    let call = known.map_or_else(|| clip(path, PATH), |call| call.name.into());
    let peer = request.extensions().get::<Peer>().ok_or(Error::NoCredentials)?;
    let found = credentials
        .caller(peer, request.headers())
        .and_then(|identified| Ok((credentials.limited(peer, &identified)?, identified)));
    if service == HEALTH && found.is_err() {
        return Ok(None);
    }
    let (caller, identified) = found.map_err(|error| {
        let refused = Status::from(explained(error, peer, request.headers()));
        let result = result(&refused);
        if refusals::has_line(&Origin::of(peer).to_string(), &result) {
            tracing::warn!(target: "procyard::audit", peer = %peer, call, result, "refused");
        }
        refused
    })?;
    if let Some(connection) = request.extensions().get::<ConnectionAuth>() {
        connection.mark_authenticated(&caller);
    }
    if service == SERVICE_NAME {
        allow(&caller, known).map_err(|error| {
            let refused = Status::from(error);
            let (caller, result) = (caller.name.as_str(), result(&refused));
            if refusals::has_line(caller, &result) {
                tracing::warn!(target: "procyard::audit", caller, call, result, "refused");
            }
            refused
        })?;
    }
    let standing = credentials.standing(request.headers(), &identified);
    request.extensions_mut().insert(caller);
    Ok(standing)
}

/// Why somebody is not known, with what can be done about it.
fn explained(error: Error, peer: &Peer, headers: &HeaderMap) -> Error {
    match (&error, peer, headers.get(AUTHORIZATION)) {
        (Error::NoCredentials, Peer::Unix { uid: Some(uid), .. }, _) => Error::UnknownUser(*uid),
        (Error::BadCredentials, _, Some(shown)) if bearer(shown).is_none() => Error::NotBearer,
        _ => error,
    }
}

/// Whether a role is enough for a call. What the table does not know is for admins.
fn allow(caller: &Caller, call: Option<Call>) -> Result<(), Error> {
    let role = caller.grant.role;
    let (call, needs) = call.map_or((UNKNOWN, Role::Admin), |call| (call.name, call.does.needs()));
    if role < needs { Err(Error::Role { call, role, needs }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::unix;
    use super::*;
    use crate::access::Grant;

    #[test]
    fn what_the_table_does_not_know_is_for_admins() {
        for (role, may) in [(Role::Viewer, false), (Role::Operator, false), (Role::Admin, true)] {
            let caller = Caller { name: "a".into(), grant: Grant::of(role) };
            assert_eq!(allow(&caller, None).is_ok(), may, "{role}");
            assert!(allow(&caller, Call::named("Get")).is_ok());
        }
    }

    #[test]
    fn who_is_not_known_is_told_what_can_be_done_about_it() {
        let (user, unnamed) = (unix(Some(7)), unix(None));
        let nothing = HeaderMap::new();
        let showing = |header: &'static str| {
            HeaderMap::from_iter([(AUTHORIZATION, http::HeaderValue::from_static(header))])
        };
        assert_eq!(explained(Error::NoCredentials, &user, &nothing), Error::UnknownUser(7));
        assert_eq!(explained(Error::NoCredentials, &unnamed, &nothing), Error::NoCredentials);
        let bad = |header| explained(Error::BadCredentials, &user, &showing(header));
        assert_eq!(bad("Basic x"), Error::NotBearer);
        assert_eq!(bad("Bearer x"), Error::BadCredentials);
    }
}
