//! The door: accepts connections, serves HTTP on them, and closes them when it is time.
//!
//! Owns every bound that a connection meets before a request has a meaning: how many there may be,
//! how long they may say nothing or be nobody, how much they may have under way. It knows no RPC, and sets no
//! deadline on one: the client's own rules. All that it starts has ended when it returns.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustix::net::AddressFamily;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::Error as TlsError;

use super::acquaintance::Acquaintance;
use super::credentials::Peer;
use super::services::HttpService;
use super::socket::Socket;
use super::tls::Tls;
use crate::grpc::clip::clip;

/// Most connections at a time over TCP, and most on Unix sockets: strangers from the network do not
/// keep out who has a user here. Past it nothing is accepted: clients wait in the backlog, as they
/// do while the server restarts, and are let in as others leave.
const MOST_CONNECTIONS: u64 = 4096;

/// How long a client may take to shake hands, then to tell what it speaks, and over HTTP/1 to send a
/// request's headers.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a connection over TCP may stay on which nobody became known. Clients connect early and
/// connect again when they are told to; who is known may keep a channel open without a call.
const STAY: Duration = Duration::from_secs(60);

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

/// How long nothing is accepted after the kernel could not give a descriptor or memory.
const PAUSE: Duration = Duration::from_millis(250);

/// How long nobody has called on a connection that is told to end, and how long that is waited for.
/// Some client libraries lose a call that they are sending in the moment in which they are told,
/// and say nothing by which it could be known that it may be repeated. Who is refused pauses, or
/// comes on another connection.
const QUIET: Duration = Duration::from_millis(20);
const BUSY: Duration = Duration::from_millis(300);

/// Most bytes that are told of why a certificate does not count.
const SAID: usize = 128;

/// How long calls may take to notice that their connection is gone.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// The listening sockets, ready to accept.
#[derive(Debug)]
pub(super) struct Door {
    listeners: Vec<Listener>,
    rooms: Rooms,
    stay: Duration,
    tls: Option<Arc<Tls>>,
}

/// Places for connections, of each kind.
#[derive(Debug)]
struct Rooms {
    unix: Arc<Semaphore>,
    tcp: Arc<Semaphore>,
}

#[derive(Debug)]
enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Door {
    /// Takes listening sockets, of Unix or of TCP, and what is spoken on the latter beneath HTTP. To
    /// be called on a tokio runtime.
    pub(super) fn new(sockets: Vec<OwnedFd>, tls: Option<Tls>) -> io::Result<Door> {
        let listeners: Vec<_> = sockets.into_iter().map(Listener::new).collect::<Result<_, _>>()?;
        // Half of the descriptors are for everything else.
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // Each listener holds a place while it waits for someone to take it.
        let most = MOST_CONNECTIONS.min(descriptors / 4) as usize + listeners.len();
        let room = || Arc::new(Semaphore::new(most));
        let rooms = Rooms { unix: room(), tcp: room() };
        Ok(Door { listeners, rooms, stay: STAY, tls: tls.map(Arc::new) })
    }

    /// Serves until `shutdown`. Then nothing more is accepted, clients are told to call elsewhere,
    /// and calls have as long to end as it says; what is left is cut off. New clients wait in the
    /// backlog of whoever else holds the sockets.
    pub(super) async fn serve(
        self,
        service: HttpService,
        shutdown: impl Future<Output = Duration>,
    ) {
        let (alive, mut all_gone) = mpsc::channel(1);
        let (close, closing) = watch::channel(Duration::ZERO);
        let tasks = Tasks { alive };
        let (stay, tls) = (self.stay, self.tls);
        let hall = Hall { http: http(tasks.clone()), tasks, service, closing, stay, tls };
        let accepting = join_all(self.listeners.iter().map(|listener| {
            let (hall, room) = (hall.clone(), self.rooms.of(listener));
            async move {
                loop {
                    let place = room_for_one(&room).await;
                    listener.accept(&hall, place).await;
                }
            }
        }));
        let drain = tokio::select! {
            drain = shutdown => drain,
            _ = accepting, if !self.listeners.is_empty() => Duration::ZERO,
        };
        let _ = close.send(drain);
        drop((hall, self.listeners));
        if timeout(drain + LAST_MOMENT, all_gone.recv()).await.is_err() {
            tracing::warn!("calls are still at work after their connections were closed");
        }
    }
}

impl Rooms {
    fn of(&self, listener: &Listener) -> Arc<Semaphore> {
        Arc::clone(match listener {
            Listener::Unix(_) => &self.unix,
            Listener::Tcp(_) => &self.tcp,
        })
    }
}

/// Waits until there is room for one more connection.
async fn room_for_one(room: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = room.clone().try_acquire_owned() {
        return Some(place);
    }
    tracing::warn!("too many connections: the next have to wait");
    room.clone().acquire_owned().await.ok()
}

impl Listener {
    fn new(socket: OwnedFd) -> io::Result<Listener> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        match rustix::net::getsockname(&socket)?.address_family() {
            AddressFamily::UNIX => {
                Ok(Listener::Unix(UnixListener::from_std(StdUnixListener::from(socket))?))
            }
            AddressFamily::INET | AddressFamily::INET6 => {
                Ok(Listener::Tcp(TcpListener::from_std(StdTcpListener::from(socket))?))
            }
            _ => Err(io::Error::other("a listening socket is neither of Unix nor of TCP")),
        }
    }

    /// Accepts a connection and serves it in a task of its own.
    async fn accept(&self, hall: &Hall, place: Option<OwnedSemaphorePermit>) {
        let accepted = match self {
            Listener::Unix(listener) => listener.accept().await.map(|(io, _)| {
                let peer = Peer::Unix(io.peer_cred().ok().map(|user| user.uid()));
                let serving = hall.clone().serve(Socket::unix(io, PATIENCE), peer);
                hall.let_in(serving, place);
            }),
            Listener::Tcp(listener) => listener.accept().await.map(|(io, from)| {
                hall.let_in(hall.clone().serve_tcp(io, from), place);
            }),
        };
        match accepted {
            Ok(()) => {}
            // It was gone before it was looked at.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            // Out of descriptors or memory. The connection is still there, so without a pause this
            // would spin.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
            }
        }
    }
}

/// What all connections share.
#[derive(Clone)]
struct Hall {
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
    /// Serves a connection in a task of its own, which holds its place.
    fn let_in(
        &self,
        serving: impl Future<Output = ()> + Send + 'static,
        place: Option<OwnedSemaphorePermit>,
    ) {
        self.tasks.execute(async move {
            serving.await;
            drop(place);
        });
    }

    /// Shakes hands over TCP, if that is what is done, and serves.
    async fn serve_tcp(self, io: TcpStream, from: SocketAddr) {
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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;
    use tonic::service::Routes;

    use super::super::authority::tests::RECORDED;
    use super::super::credentials::tests::open;
    use super::super::services::standard;
    use super::*;

    /// A door with room for so many, that serves health in a task.
    struct Served {
        path: PathBuf,
        shutdown: oneshot::Sender<()>,
        serving: JoinHandle<()>,
        _directory: TempDir,
    }

    impl Served {
        async fn with_room(room: usize) -> Served {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("s");
            let listener = StdUnixListener::bind(&path).unwrap();
            let mut door = Door::new(vec![listener.into()], None).unwrap();
            door.rooms.unix = Arc::new(Semaphore::new(room));
            let routes = standard(Routes::default(), open()).await.unwrap().routes;
            let (shutdown, asked) = oneshot::channel();
            let asked = async {
                drop(asked.await);
                Duration::from_millis(50)
            };
            let serving = tokio::spawn(door.serve(routes, asked));
            Served { path, shutdown, serving, _directory: directory }
        }
    }

    /// A client that has sent all that was recorded of one.
    async fn client(path: &Path) -> UnixStream {
        let mut client = UnixStream::connect(path).await.unwrap();
        client.write_all(&RECORDED.concat()).await.unwrap();
        client
    }

    /// The kind and the stream of the next frame.
    async fn frame(client: &mut UnixStream) -> (u8, u8) {
        let mut header = [0; 9];
        client.read_exact(&mut header).await.unwrap();
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        client.read_exact(&mut vec![0; length as usize]).await.unwrap();
        (header[3], header[8])
    }

    /// Which streams bring an answer: the first two.
    async fn answered(client: &mut UnixStream) -> Vec<u8> {
        let (data, reset) = (0, 3);
        let mut streams = Vec::new();
        while streams.len() < 2 {
            let (kind, stream) = frame(client).await;
            assert_ne!(kind, reset, "stream {stream} was reset");
            streams.extend((kind == data).then_some(stream));
        }
        streams
    }

    #[tokio::test]
    async fn a_client_that_names_the_socket_by_its_path_is_answered() {
        let served = Served::with_room(10).await;
        assert_eq!(answered(&mut client(&served.path).await).await, [1, 3]);
    }

    #[tokio::test]
    async fn an_idle_connection_does_not_hold_up_the_end() {
        let served = Served::with_room(10).await;
        let mut idle = client(&served.path).await;
        answered(&mut idle).await;
        let mut silent = UnixStream::connect(&served.path).await.unwrap();
        served.shutdown.send(()).unwrap();
        timeout(Duration::from_secs(60), served.serving).await.unwrap().unwrap();
        idle.read_to_end(&mut Vec::new()).await.unwrap();
        // Reset, if it was not accepted yet: nobody else holds the socket here.
        let _ = silent.read_to_end(&mut Vec::new()).await;
    }

    #[tokio::test]
    async fn who_finds_no_room_is_let_in_when_another_leaves() {
        let served = Served::with_room(1).await;
        let mut first = client(&served.path).await;
        answered(&mut first).await;
        let mut second = client(&served.path).await;
        let waits = timeout(Duration::from_millis(50), frame(&mut second)).await;
        assert!(waits.is_err());
        drop(first);
        assert_eq!(answered(&mut second).await, [1, 3]);
    }

    #[tokio::test]
    async fn strangers_from_the_network_keep_nobody_out_and_have_to_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let unix = StdUnixListener::bind(&path).unwrap();
        let tcp = StdTcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let mut door = Door::new(vec![unix.into(), tcp.into()], None).unwrap();
        door.rooms.tcp = Arc::new(Semaphore::new(1));
        door.stay = Duration::from_millis(50);
        let routes = standard(Routes::default(), open()).await.unwrap().routes;
        let serving = tokio::spawn(door.serve(routes, std::future::pending()));
        for _ in 0..2 {
            let mut stranger = TcpStream::connect(address).await.unwrap();
            stranger.write_all(&RECORDED.concat()[..24 + 45]).await.unwrap();
            assert_eq!(answered(&mut client(&path).await).await, [1, 3]);
            // The second finds room when the first is gone.
            let mut said = Vec::new();
            let gone = stranger.read_to_end(&mut said);
            let _ = timeout(Duration::from_secs(60), gone).await.unwrap();
        }
        serving.abort();
    }

    #[tokio::test]
    async fn a_socket_of_another_kind_is_refused() {
        use rustix::net::{SocketType, socket};
        let netlink = socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
        assert!(Door::new(vec![netlink], None).is_err());
    }
}
