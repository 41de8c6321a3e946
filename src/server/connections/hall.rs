//! The hall behind the door: shakes hands, serves HTTP on a connection, and ends it in time.
//!
//! Owns every bound that one connection meets: how long it may say nothing, how much it may have under
//! way, how it is told to end. Each is served in a task of its own.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
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
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::Error as TlsError;

use super::LAST_MOMENT;
use crate::grpc::clip::clip;
use crate::server::acquaintance::Acquaintance;
use crate::server::credentials::Peer;
use crate::server::services::HttpService;
use crate::server::socket::Socket;
use crate::server::tls::Tls;

/// How long a client may take to shake hands, then to tell what it speaks, and over HTTP/1 to send a
/// request's headers.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often an HTTP/2 client is asked whether it is still there, and how long it may take to say.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(20);

/// Most calls of one client at a time: a few for each of a thousand processes. A client that has
/// more lets the rest wait.
const MOST_CALLS: u32 = 4096;

/// Data that may be under way from a client: they are requests, of 4 MiB at most. What is sent to a
/// client is bounded by the windows that the client grants.
const CALL_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
const FRAME: u32 = 1 << 20;

/// Headers of one request; they are a path and some metadata.
const HEADERS: u32 = 16 << 10;

/// What a call may have waiting to be sent while its client does not read. Some chunks of output:
/// enough to fill a window at each turn, little enough that a thousand followers that stopped
/// reading hold no more than a busy ring does. It dies with the server, so less is better.
const SEND_BUFFER: usize = 256 << 10;

/// Calls that a client may have taken back before they were looked at, or broken so that they were
/// reset here, before it is sent away. Clients cancel whole batches at once, so more than the
/// library's 20; each costs about a kilobyte for a moment.
const MOST_RESETS: usize = 1024;

/// How long nobody has called on a connection that is told to end, and how long that is waited for.
/// Some client libraries lose a call that they are sending in the moment in which they are told,
/// and say nothing by which it could be known that it may be repeated. Who is refused pauses, or
/// comes on another connection.
const QUIET: Duration = Duration::from_millis(20);
const BUSY: Duration = Duration::from_millis(300);

/// Most bytes that are told of why a certificate does not count.
const SAID: usize = 128;

/// What all connections share.
#[derive(Clone)]
pub(super) struct Hall {
    http: Builder<Tasks>,
    tasks: Tasks,
    service: HttpService,
    /// Changes when connections have to end, to how long they may take.
    closing: watch::Receiver<Duration>,
    /// How long strangers from the network may stay.
    stay: Duration,
    tls: Option<Arc<Tls>>,
}

impl Hall {
    /// Each task that is begun here holds `alive`.
    pub(super) fn new(
        alive: mpsc::Sender<Infallible>,
        service: HttpService,
        closing: watch::Receiver<Duration>,
        stay: Duration,
        tls: Option<Arc<Tls>>,
    ) -> Hall {
        let tasks = Tasks { alive };
        Hall { http: http(tasks.clone()), tasks, service, closing, stay, tls }
    }

    /// Serves a connection in a task of its own, which holds its place.
    pub(super) fn let_in(
        &self,
        serving: impl Future<Output = ()> + Send + 'static,
        place: Option<OwnedSemaphorePermit>,
    ) {
        self.tasks.execute(async move {
            serving.await;
            drop(place);
        });
    }

    /// Serves on a Unix socket, whose other end the kernel knows.
    pub(super) async fn serve_unix(self, io: UnixStream) {
        let peer = Peer::Unix(io.peer_cred().ok().map(|user| user.uid()));
        self.serve(Socket::unix(io, PATIENCE), peer).await;
    }

    /// Shakes hands over TCP, if that is what is done, and serves.
    pub(super) async fn serve_tcp(self, io: TcpStream, from: SocketAddr) {
        // Answers leave when they are written: they are whole.
        let _ = io.set_nodelay(true);
        let Some(tls) = self.tls.clone() else {
            return self.serve(Socket::tcp(io, PATIENCE), Peer::Tcp { from, tls: None }).await;
        };
        let shaken = tokio::select! {
            shaken = tls.accept(io) => shaken,
            () = self.out_of_patience() => Err(io::ErrorKind::TimedOut.into()),
        };
        match shaken {
            Ok((io, shown)) => {
                let peer = Peer::Tcp { from, tls: Some(shown) };
                self.serve(Socket::tcp(io, PATIENCE), peer).await;
            }
            Err(error) => not_shaken(from, &error),
        }
    }

    /// Returns when a handshake has taken too long, or the server ends and has waited for it.
    async fn out_of_patience(&self) {
        let mut closing = self.closing.clone();
        let closed = async {
            let _ = closing.changed().await;
            let drain = *closing.borrow();
            sleep(drain).await;
        };
        tokio::select! {
            () = sleep(PATIENCE) => {}
            () = closed => {}
        }
    }

    /// Serves a connection until its end or the server's.
    async fn serve<Io>(self, mut socket: Socket<Io>, peer: Peer)
    where
        Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Hall { http, service, mut closing, stay, tasks: _, tls: _ } = self;
        let (acquaintance, is_tcp) = (Acquaintance::default(), matches!(peer, Peer::Tcp { .. }));
        let met = acquaintance.clone();
        let service = TowerToHyperService::new(service);
        let (called, mut calls) = watch::channel(());
        let service = service_fn(move |mut request: Request<Incoming>| {
            called.send_replace(());
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(met.clone());
            service.call(request)
        });
        let quiet = async move { while let Ok(Ok(())) = timeout(QUIET, calls.changed()).await {} };
        let greeted = socket.greeted();
        let mut connection = pin!(http.serve_connection(TokioIo::new(socket), service));
        let closes = async {
            tokio::select! {
                _ = closing.changed() => *closing.borrow(),
                () = acquaintance.overstayed(stay), if is_tcp => LAST_MOMENT,
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => Ok(ended),
            drain = closes => {
                let close = async {
                    tokio::select! {
                        biased;
                        ended = connection.as_mut() => return ended,
                        // Before, it would be cut off, though its greeting may be under way,
                        // and a call with that.
                        () = async { greeted.await; let _ = timeout(BUSY, quiet).await; } => {}
                    }
                    connection.as_mut().graceful_shutdown();
                    connection.await
                };
                // An idle one may never end by itself (hyper#4170).
                timeout(drain, close).await
            }
        };
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error, "a connection failed"),
            Err(_) => tracing::debug!("a connection was cut off"),
        }
    }
}

/// Tells why no hands were shaken.
fn not_shaken(from: SocketAddr, error: &io::Error) {
    match error.get_ref().and_then(|why| why.downcast_ref()) {
        // Who showed what does not count.
        Some(TlsError::InvalidCertificate(_)) => {
            let result = clip(&error.to_string(), SAID);
            tracing::warn!(target: "procyard::audit", peer = %from, call = "handshake", result, "refused");
        }
        // Who spoke something else, or did not like what it was shown.
        Some(error) => tracing::info!(peer = %from, %error, "no TLS was spoken"),
        // Who went, or said nothing.
        None => tracing::debug!(%error, "a handshake failed"),
    }
}

/// How HTTP is spoken.
fn http(tasks: Tasks) -> Builder<Tasks> {
    let mut http = Builder::new(tasks);
    http.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(64 << 10);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .max_concurrent_streams(MOST_CALLS)
        .initial_stream_window_size(CALL_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(HEADERS)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MOST_RESETS)
        .max_local_error_reset_streams(MOST_RESETS);
    http
}

/// Starts tasks, for connections and for the calls on them. They are all over when no one holds
/// `alive` any more, which the receiver of its channel notices.
#[derive(Clone)]
struct Tasks {
    alive: mpsc::Sender<Infallible>,
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let alive = self.alive.clone();
        tokio::spawn(async move {
            task.await;
            drop(alive);
        });
    }
}
