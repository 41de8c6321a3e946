//! Who calls: by a token, by a certificate, or by the user at the other end of a Unix socket.
//!
//! Owns how somebody is known, and what those get who were given nothing by name. What a caller may
//! do with it is said by `access`. Whoever shows a token is judged by it alone, and whoever shows a
//! certificate and no token by that: what is wrong is not made good by where it comes from.

mod child_grant;
mod gate;
mod given;
mod standing;
pub mod token_file;
pub mod tokens;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};

use super::fresh::{Fresh, Meaning};
use super::tls::{Files, Tls};
use crate::access::{Caller, Grant, Pattern, Role, Scope};
use crate::supervisor::Error;
use tokens::Tokens;

pub use child_grant::ChildGrant;
pub(super) use gate::{Gate, HEALTH};
pub use given::{BadGiven, Given, Who};
use standing::Standing;

/// Who is to be known, and what they may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// A file of tokens; none: no token is known.
    pub token_file: Option<PathBuf>,
    /// What users and certificates may do. The first that fits counts.
    pub given: Vec<Given>,
    /// The most that descendants of the keeper may do on a Unix socket; none: as their users.
    pub children: Option<ChildGrant>,
    /// Whoever comes over loopback is an admin.
    pub open_loopback: bool,
    /// The certificates of TLS, which is then spoken over TCP; none: it is not.
    pub tls: Option<Files>,
}

impl Access {
    /// Whether all files can be used; or the first that cannot, and why.
    pub fn check(&self) -> Result<(), String> {
        if let Some(path) = &self.token_file {
            let hint = if path.exists() { "" } else { "; make it with `procyard token new`" };
            fresh_tokens(path.clone()).check().map_err(|problem| format!("{problem}{hint}"))?;
        }
        self.tls.as_ref().map_or(Ok(()), |files| Tls::new(files).check())
    }
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// On a Unix socket.
    Unix {
        /// Its user, if the kernel tells.
        uid: Option<u32>,
        /// It is a descendant of the keeper. Found out only where that makes a difference.
        child: bool,
    },
    /// Over TCP.
    Tcp {
        /// From there.
        from: SocketAddr,
        /// What the handshake of TLS brought; none: there was none.
        tls: Option<Shown>,
    },
}

/// What a client has shown in the handshake of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// No certificate.
    Nothing,
    /// One that is right, and the name in it if it has one.
    Certificate(Option<String>),
}

impl Peer {
    /// Whether it is on this machine and comes over TCP.
    pub(super) fn is_loopback(&self) -> bool {
        matches!(self, Peer::Tcp { from, .. } if from.ip().to_canonical().is_loopback())
    }

    /// Whether TLS is spoken with it.
    pub(super) fn has_tls(&self) -> bool {
        matches!(self, Peer::Tcp { tls: Some(_), .. })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Unix { uid, child } => {
                uid.map_or(Ok(()), |uid| write!(f, "uid {uid} on "))?;
                f.write_str("a Unix socket")?;
                f.write_str(if *child { ", a child process" } else { "" })
            }
            Peer::Tcp { from, tls: Some(Shown::Certificate(Some(name))) } => {
                write!(f, "{from} with the certificate of {name:?}")
            }
            Peer::Tcp { from, tls: Some(Shown::Certificate(None)) } => {
                write!(f, "{from} with a certificate without a name")
            }
            Peer::Tcp { from, .. } => write!(f, "{from}"),
        }
    }
}

/// Tells who calls.
#[derive(Debug)]
pub(super) struct Credentials {
    tokens: Option<Fresh<Tokens>>,
    users: Vec<(u32, Arc<Caller>)>,
    certificates: Vec<(Pattern, Grant)>,
    children: Option<ChildGrant>,
    loopback: Option<Arc<Caller>>,
}

impl Credentials {
    pub(super) fn new(access: &Access) -> Credentials {
        let Access { token_file, given, children, open_loopback, tls: _ } = access.clone();
        let (mut users, mut certificates) = (Vec::new(), Vec::new());
        for Given { who, grant } in given {
            match who {
                Who::User(uid) => users.push((uid, grant)),
                Who::Certificate(name) => certificates.push((name, grant)),
            }
        }
        // What was said of somebody comes before what nobody said.
        let own = [rustix::process::geteuid().as_raw(), 0];
        users.extend(own.map(|uid| (uid, Grant::of(Role::Admin))));
        let user = |(uid, grant)| (uid, Arc::new(Caller { name: format!("uid:{uid}"), grant }));
        Credentials {
            tokens: token_file.map(fresh_tokens),
            users: users.into_iter().map(user).collect(),
            certificates,
            children,
            loopback: open_loopback.then(|| Arc::new(Caller::admin("loopback"))),
        }
    }

    /// Who calls from there with these headers.
    pub(super) fn caller(&self, peer: &Peer, headers: &HeaderMap) -> Result<Arc<Caller>, Error> {
        if let Some(shown) = headers.get(AUTHORIZATION) {
            let tokens = self.tokens.as_ref().map(Fresh::get);
            let caller = bearer(shown).and_then(|token| tokens?.find(token));
            return caller.ok_or(Error::BadCredentials);
        }
        let caller = match peer {
            Peer::Unix { uid, .. } => self.users.iter().find(|(known, _)| Some(*known) == *uid),
            Peer::Tcp { tls: Some(Shown::Certificate(name)), .. } => {
                return name
                    .as_ref()
                    .and_then(|name| self.certified(name))
                    .map(Arc::new)
                    .ok_or(Error::BadCredentials);
            }
            Peer::Tcp { .. } => None,
        };
        let caller = caller.map(|(_, caller)| caller);
        let open = self.loopback.as_ref().filter(|_| peer.is_loopback());
        caller.or(open).cloned().ok_or(Error::NoCredentials)
    }

    /// The caller that the connection alone identifies, limited as its calls are; none: a call has to
    /// show credentials, or is refused.
    pub(super) fn caller_of_connection(&self, peer: &Peer) -> Option<Arc<Caller>> {
        let caller = self.caller(peer, &HeaderMap::new()).ok()?;
        self.limited(peer, &caller).ok()
    }

    /// The caller with what it may do from there: a child process at most what children may, whatever
    /// it has shown.
    fn limited(&self, peer: &Peer, caller: &Arc<Caller>) -> Result<Arc<Caller>, Error> {
        match (&self.children, peer) {
            (Some(most), Peer::Unix { child: true, .. }) => {
                most.limit(caller).map(Arc::new).ok_or(Error::ChildProcess)
            }
            _ => Ok(Arc::clone(caller)),
        }
    }

    /// What tells whether a caller is still known that has shown a token; none: it has not.
    fn standing(self: &Arc<Self>, headers: &HeaderMap, caller: &Arc<Caller>) -> Option<Standing> {
        let id = headers.get(AUTHORIZATION).and_then(bearer).and_then(tokens::id)?.to_owned();
        let (credentials, caller) = (Arc::clone(self), Arc::clone(caller));
        Some(Standing { credentials, id, caller })
    }

    /// Who has a certificate of this name. One that was given nothing has to do with what it owns.
    /// A name that cannot be an owner, or that a log line could not hold, is nobody's.
    fn certified(&self, name: &str) -> Option<Caller> {
        let own = Pattern::exactly(name).ok().filter(|_| name.is_ascii())?;
        let given = self.certificates.iter().find(|(pattern, _)| pattern.matches(name));
        let grant = given.map_or_else(
            || Grant {
                scope: Scope { owners: vec![own], ..Scope::default() },
                ..Grant::of(Role::Operator)
            },
            |(_, grant)| grant.clone(),
        );
        Some(Caller { name: format!("cert:{name}"), grant })
    }
}

/// The tokens of a file. Without the file there are none.
fn fresh_tokens(path: PathBuf) -> Fresh<Tokens> {
    let read = |files: &[super::fresh::Content]| {
        let [file] = files else { return Err("one file of tokens is needed".into()) };
        let (tokens, problems) = tokens::read(&file.bytes);
        let words = format!("{}: {} tokens are known", file.name(), tokens.count());
        let problems = problems.into_iter().map(|problem| file.wrong(problem)).collect();
        Ok(Meaning { value: tokens, words, problems })
    };
    Fresh::new(vec![path], read).forgetting()
}

/// The token of a header. The scheme's case does not matter.
fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Credentials of nobody but this user and root.
    pub(in crate::server) fn open() -> Arc<Credentials> {
        Arc::new(Credentials::new(&Access::default()))
    }

    /// A peer on a Unix socket that is no child process.
    pub(in crate::server) fn unix(uid: Option<u32>) -> Peer {
        Peer::Unix { uid, child: false }
    }

    fn tcp(from: &str, tls: Option<Shown>) -> Peer {
        Peer::Tcp { from: from.parse().unwrap(), tls }
    }

    fn with(header: Option<&str>) -> HeaderMap {
        header.map(|value| (AUTHORIZATION, value.parse().unwrap())).into_iter().collect()
    }

    #[test]
    fn users_are_known_by_what_was_said_of_them_and_then_by_the_usual() {
        let own = rustix::process::geteuid().as_raw();
        let viewer: Grant = "viewer".parse().unwrap();
        let given =
            [own, own + 1].map(|uid| Given { who: Who::User(uid), grant: viewer.clone() }).to_vec();
        let role = |access: &Access, uid| {
            let caller = Credentials::new(access).caller(&unix(uid), &with(None));
            caller.map(|caller| caller.grant.role.to_string())
        };
        let usual = Access::default();
        assert_eq!(role(&usual, Some(own)), Ok("admin".into()));
        assert_eq!(role(&usual, Some(0)), Ok("admin".into()));
        assert_eq!(role(&usual, Some(own + 1)), Err(Error::NoCredentials));
        assert_eq!(role(&usual, None), Err(Error::NoCredentials));
        let said = Access { given, ..usual };
        assert_eq!(role(&said, Some(own)), Ok("viewer".into()));
        assert_eq!(role(&said, Some(own + 1)), Ok("viewer".into()));
    }

    #[test]
    fn who_shows_a_token_is_judged_by_it_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let token = tokens::new("ci", &"viewer".parse().unwrap()).unwrap();
        std::fs::write(&path, &token.line).unwrap();
        let access = Access { token_file: Some(path), open_loopback: true, ..Access::default() };
        let credentials = Credentials::new(&access);
        let own = unix(Some(rustix::process::geteuid().as_raw()));
        for peer in [own, tcp("127.0.0.1:1", None), tcp("127.0.0.1:1", Some(Shown::Nothing))] {
            let who = |header: &str| {
                let caller = credentials.caller(&peer, &with(Some(header)));
                caller.map(|caller| caller.name.clone())
            };
            assert_eq!(who(&format!("Bearer {}", token.token)), Ok("token:ci".into()));
            assert_eq!(who(&format!("bearer  {}", token.token)), Ok("token:ci".into()));
            assert_eq!(who(&token.token), Err(Error::BadCredentials));
            assert_eq!(who("Bearer x"), Err(Error::BadCredentials));
            assert!(credentials.caller(&peer, &with(None)).is_ok());
        }
    }

    #[test]
    fn child_gets_no_more_by_a_token_than_children_may() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let token = tokens::new("ci", &"operator,owner=ci".parse().unwrap()).unwrap();
        std::fs::write(&path, &token.line).unwrap();
        let own = Some(rustix::process::geteuid().as_raw());
        let what = |children: Option<&str>, child, header: Option<String>| {
            let children = children.map(|grant| grant.parse().unwrap());
            let access = Access { token_file: Some(path.clone()), children, ..Access::default() };
            let (credentials, peer) = (Credentials::new(&access), Peer::Unix { uid: own, child });
            let caller = credentials.caller(&peer, &with(header.as_deref()))?;
            Ok(credentials.limited(&peer, &caller)?.grant.to_string())
        };
        let shown = || Some(format!("Bearer {}", token.token));
        assert_eq!(what(None, true, None), Ok("admin".into()));
        assert_eq!(what(Some("none"), false, None), Ok("admin".into()));
        assert_eq!(what(Some("none"), true, None), Err(Error::ChildProcess));
        assert_eq!(what(Some("none"), true, shown()), Err(Error::ChildProcess));
        assert_eq!(what(Some("viewer"), true, shown()), Ok("viewer,owner=ci".into()));
        assert_eq!(what(Some("viewer"), true, None), Ok("viewer".into()));
    }

    #[test]
    fn nobody_from_the_network_is_known_by_nothing() {
        let access = Access { open_loopback: true, ..Access::default() };
        let credentials = Credentials::new(&access);
        let refused = credentials.caller(&tcp("192.0.2.1:1", None), &with(None));
        assert_eq!(refused, Err(Error::NoCredentials));
        assert!(credentials.caller(&tcp("[::ffff:127.0.0.1]:1", None), &with(None)).is_ok());
    }

    #[test]
    fn a_certificate_is_known_by_its_name_and_one_that_was_given_nothing_owns_what_it_starts() {
        let given = ["cert:ci-*=viewer", "cert:*=operator,owner=all", "cert:ci-1=admin"];
        let access = Access {
            given: given.map(|text| text.parse().unwrap()).to_vec(),
            open_loopback: true,
            ..Access::default()
        };
        let who = |access: &Access, name: Option<&str>| {
            let shown = Shown::Certificate(name.map(str::to_owned));
            let peer = tcp("127.0.0.1:1", Some(shown));
            let caller = Credentials::new(access).caller(&peer, &with(None))?;
            Ok(format!("{} {}", caller.name, caller.grant))
        };
        assert_eq!(who(&access, Some("ci-1")), Ok("cert:ci-1 viewer".into()));
        assert_eq!(who(&access, Some("x")), Ok("cert:x operator,owner=all".into()));
        let usual = Access { open_loopback: true, ..Access::default() };
        assert_eq!(
            who(&usual, Some("spiffe://x/y")),
            Ok("cert:spiffe://x/y operator,owner=spiffe://x/y".into())
        );
        for name in [None, Some(""), Some("a b"), Some("*"), Some("a,b"), Some("\u{202e}a")] {
            assert_eq!(who(&access, name), Err(Error::BadCredentials), "{name:?}");
        }
    }
}
