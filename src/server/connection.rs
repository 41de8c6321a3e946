//! Serves one connection: TLS handshake, HTTP limits, graceful shutdown.
//!
//! Owns every bound that one connection meets: how long it may say nothing, how much it may have under
//! way, how the server asks its client to leave. Each is served in a task of its own.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::Error as TlsError;

use super::ancestry::Ancestry;
use super::connection_auth::ConnectionAuth;
use super::credentials::{HEALTH, Peer};
use super::listener::{CLOSE_GRACE, ConnectionSlot};
use super::origin::{Client, Origin};
use super::read_turns::{FREE_BYTES, ReadTurns};
use super::services::HttpService;
use super::socket::Socket;
use super::thread_shares::ThreadShares;
use super::tls::Tls;
use crate::grpc::clip::clip;
use crate::keeper_client::Heartbeat;
use crate::telemetry::refusals;

/// How long a TLS handshake may take, then the first bytes that tell the protocol, and over HTTP/1 a
/// request's headers.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often an HTTP/2 client is pinged, and how long it may take to answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Calls of one connection at a time: one for each of a thousand processes. A client that has more opens
/// another connection, or lets the rest wait.
const MAX_CONCURRENT_CALLS: u32 = 1024;

/// Data that may be under way from a client: they are requests, of 4 MiB at most. What is sent to a
/// client is bounded by the windows that the client grants.
///
/// h2 charges up to 256 bytes for each unread frame and ends the connection, with all its calls, when
/// that exceeds half of the connection window. Attach calls whose input waits must not exhaust that by
/// their smallest messages, of 8 bytes. A call's window holds 8,192 of them, the budget those of two calls.
///
/// A frame from a client has at most 16 KiB, which is HTTP/2's default and is not changed: h2 buffers a
/// whole frame before it looks at it, also on connections without a caller.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// Bytes of one request's headers; they are a path and some metadata.
const MAX_HEADER_BYTES: u32 = 16 << 10;

/// What a call may have waiting to be sent while its client does not read. Some chunks of output:
/// enough to fill a window at each turn, little enough that a thousand followers that stopped
/// reading hold no more than a busy ring does. It dies with the server, so less is better.
const MAX_SEND_BUFFER: usize = 256 << 10;

/// Calls that a client may have cancelled before they were looked at, or broken so that the server
/// reset them, before its connection is closed. Clients cancel whole batches at once, so more than the
/// library's 20; each costs about a kilobyte for a moment.
const MAX_RESET_CALLS: usize = 1024;

/// How long no call has come on a connection before GOAWAY is sent, and how long that is waited for.
/// Some client libraries lose a call that they are sending in the moment in which GOAWAY arrives,
/// and report nothing by which it could be known that it may be repeated. A client that is refused
/// pauses, or uses another connection.
const GOAWAY_QUIET_PERIOD: Duration = Duration::from_millis(20);
const GOAWAY_MAX_DELAY: Duration = Duration::from_millis(300);

/// Bytes of the reason for which a certificate is not valid, in a log line.
const MAX_LOGGED_BYTES: usize = 128;

/// What all connections share.
#[derive(Clone)]
pub(super) struct ConnectionHandler {
    alive: mpsc::Sender<Infallible>,
    heartbeat: Heartbeat,
    thread_shares: ThreadShares,
    service: HttpService,
    /// Changes when connections have to end, to how long they may take.
    closing: watch::Receiver<Duration>,
    unauthenticated_timeout: Duration,
    tls: Option<Arc<Tls>>,
}

/// An accepted connection.
pub(super) enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, SocketAddr),
}

impl Accepted {
    /// Its other end, as far as it is known before a handshake. `children` tells which clients on
    /// Unix sockets are descendants of the keeper; none: that makes no difference.
    pub(super) fn peer(&self, children: Option<Ancestry>) -> Peer {
        match self {
            Accepted::Unix(io) => Peer::Unix {
                uid: io.peer_cred().ok().map(|user| user.uid()),
                child: children.is_some_and(|children| children.includes(io)),
            },
            Accepted::Tcp(_, from) => Peer::Tcp { from: *from, tls: None },
        }
    }
}

impl ConnectionHandler {
    /// Each task that is started here holds `alive`.
    pub(super) fn new(
        alive: mpsc::Sender<Infallible>,
        service: HttpService,
        closing: watch::Receiver<Duration>,
        unauthenticated_timeout: Duration,
        tls: Option<Arc<Tls>>,
        heartbeat: Heartbeat,
    ) -> ConnectionHandler {
        let thread_shares = ThreadShares::default();
        ConnectionHandler {
            alive,
            heartbeat,
            thread_shares,
            service,
            closing,
            unauthenticated_timeout,
            tls,
        }
    }

    /// Serves a connection in a task of its own, which holds its slot. Aborting the task closes the
    /// connection.
    pub(super) fn spawn_connection(
        &self,
        accepted: Accepted,
        peer: Peer,
        slot: Arc<ConnectionSlot>,
        client: Client,
    ) -> AbortHandle {
        let handler = self.clone();
        let auth = ConnectionAuth::new(Arc::clone(&slot), client, &self.thread_shares);
        self.tasks(&auth).spawn(async move {
            let _slot = SlotGuard(slot);
            match accepted {
                Accepted::Unix(io) => {
                    let turns = ReadTurns::new(auth.clone(), FREE_BYTES);
                    handler.serve(Socket::unix(io, HANDSHAKE_TIMEOUT, turns), peer, auth).await;
                }
                Accepted::Tcp(io, from) => handler.serve_tcp(io, from, auth).await,
            }
        })
    }

    /// Starts the tasks of a connection.
    fn tasks(&self, auth: &ConnectionAuth) -> Tasks {
        let (alive, heartbeat) = (self.alive.clone(), self.heartbeat.clone());
        Tasks { alive, heartbeat, auth: auth.clone() }
    }

    /// Serves on TCP, after a TLS handshake if there is to be one.
    async fn serve_tcp(self, io: TcpStream, from: SocketAddr, auth: ConnectionAuth) {
        // Answers are written whole, and are not to wait for more.
        let _ = io.set_nodelay(true);
        let Some(tls) = self.tls.clone() else {
            let peer = Peer::Tcp { from, tls: None };
            let turns = ReadTurns::new(auth.clone(), FREE_BYTES);
            return self.serve(Socket::tcp(io, HANDSHAKE_TIMEOUT, turns), peer, auth).await;
        };
        // A signature takes the thread for milliseconds, however few bytes ask for it.
        let io = Socket::below_tls(io, ReadTurns::new(auth.clone(), 0));
        let handshake = tokio::select! {
            handshake = tls.accept(io) => handshake,
            () = self.handshake_timeout() => Err(io::ErrorKind::TimedOut.into()),
        };
        match handshake {
            Ok((io, shown)) => {
                let peer = Peer::Tcp { from, tls: Some(shown) };
                self.serve(Socket::over_tls(io, HANDSHAKE_TIMEOUT), peer, auth).await;
            }
            Err(error) => log_handshake_error(from, &error),
        }
    }

    /// Returns when a handshake has taken too long, or the server ends and has waited for it.
    async fn handshake_timeout(&self) {
        let mut closing = self.closing.clone();
        let closed = async {
            let _ = closing.changed().await;
            let drain = *closing.borrow();
            sleep(drain).await;
        };
        tokio::select! {
            () = sleep(HANDSHAKE_TIMEOUT) => {}
            () = closed => {}
        }
    }

    /// Serves HTTP until the end of the connection or of the server.
    async fn serve<Io>(self, mut socket: Socket<Io>, peer: Peer, auth: ConnectionAuth)
    where
        Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let http = http(self.tasks(&auth));
        let ConnectionHandler { service, mut closing, unauthenticated_timeout, .. } = self;
        let service = TowerToHyperService::new(service);
        let (called, mut calls) = watch::channel(());
        let of_request = auth.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            called.send_replace(());
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(of_request.clone());
            let (auth, is_health) = (of_request.clone(), is_health(request.uri().path()));
            let answer = service.call(request);
            async move {
                if auth.is_refusal_limit_exceeded() {
                    // The connection is about to be closed, which ends this call.
                    return pending().await;
                }
                let answer = answer.await;
                if !is_health {
                    auth.count_refusal();
                }
                answer
            }
        });
        let quiet = async move {
            while let Ok(Ok(())) = timeout(GOAWAY_QUIET_PERIOD, calls.changed()).await {}
        };
        let greeted = socket.greeted();
        let mut connection = pin!(http.serve_connection(TokioIo::new(socket), service));
        let closes = async {
            tokio::select! {
                _ = closing.changed() => *closing.borrow(),
                () = auth.auth_deadline(unauthenticated_timeout) => CLOSE_GRACE,
                () = auth.refusal_limit() => CLOSE_GRACE,
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => Ok(ended),
            drain = closes => {
                let close = async {
                    tokio::select! {
                        biased;
                        ended = connection.as_mut() => return ended,
                        // A connection that is shut down earlier is cut off, though its preface
                        // may be under way, and a call with it.
                        () = async {
                            greeted.await;
                            let _ = timeout(GOAWAY_MAX_DELAY, quiet).await;
                        } => {}
                    }
                    connection.as_mut().graceful_shutdown();
                    connection.await
                };
                // An idle connection may never end by itself (hyper#4170).
                timeout(drain, close).await
            }
        };
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error, "connection failed"),
            Err(_) => tracing::debug!("connection closed after its deadline"),
        }
    }
}

/// Whether a call is of the health service, which needs no credentials.
fn is_health(path: &str) -> bool {
    path.trim_start_matches('/').split_once('/').is_some_and(|(service, _)| service == HEALTH)
}

/// Gives the place of a connection back when its task ends or is aborted, though requests of it may
/// still hold its slot.
struct SlotGuard(Arc<ConnectionSlot>);

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Logs why a handshake failed.
fn log_handshake_error(from: SocketAddr, error: &io::Error) {
    match error.get_ref().and_then(|why| why.downcast_ref()) {
        // The client showed a certificate that is not valid here.
        Some(TlsError::InvalidCertificate(_)) => {
            let result = clip(&error.to_string(), MAX_LOGGED_BYTES);
            let origin = Origin::of_address(from.ip()).to_string();
            if refusals::has_line(&origin, certificate_problem(&result)) {
                tracing::warn!(target: "procyard::audit", peer = %from, call = "handshake", result, "refused");
            }
        }
        // The client spoke no TLS, or did not accept the server's certificate.
        Some(error) => {
            let origin = Origin::of_address(from.ip()).to_string();
            if refusals::has_line(&origin, "handshake failed") {
                tracing::info!(peer = %from, %error, "no TLS was spoken");
            }
        }
        // The client left, or said nothing.
        None => tracing::debug!(%error, "handshake failed"),
    }
}

/// What is wrong with a certificate, without the times and names that may follow it in the message
/// "invalid peer certificate: certificate expired: verification time …".
fn certificate_problem(message: &str) -> &str {
    message.match_indices(": ").nth(1).map_or(message, |(end, _)| &message[..end])
}

/// The HTTP settings of all connections.
fn http(tasks: Tasks) -> Builder<Tasks> {
    let mut http = Builder::new(tasks);
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE_TIMEOUT)
        .max_buf_size(64 << 10);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(MAX_CONCURRENT_CALLS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_send_buf_size(MAX_SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_RESET_CALLS)
        .max_local_error_reset_streams(MAX_RESET_CALLS);
    http
}

/// Starts tasks, for connections and for the calls on them. All have ended when the receiver of
/// `alive` notices that no sender is left. However many of them are ready to run, the keeper hears of the
/// server: see [`pulse`](super::pulse). Their time counts for the client of their connection.
#[derive(Clone)]
struct Tasks {
    alive: mpsc::Sender<Infallible>,
    heartbeat: Heartbeat,
    auth: ConnectionAuth,
}

impl Tasks {
    fn spawn<F: Future<Output: Send> + Send + 'static>(&self, task: F) -> AbortHandle {
        let Tasks { alive, heartbeat, auth } = self.clone();
        let spawned = tokio::spawn(async move {
            let mut task = pin!(task);
            let turn = |cx: &mut Context<'_>| {
                let polled = auth.thread_share().poll(|| task.as_mut().poll(cx));
                heartbeat.beat_if_overdue();
                polled
            };
            poll_fn(turn).await;
            drop(alive);
        });
        spawned.abort_handle()
    }
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}
