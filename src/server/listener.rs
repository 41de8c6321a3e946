//! Accepts connections, has them served, and closes them when the server ends.
//!
//! Owns the listening sockets and the connections that there are: [`limits`] decides who has a place, and
//! this module closes what it says. Connections are always accepted, so that the backlog stays empty and
//! clients without credentials cannot keep others waiting in it. It knows no RPC, and sets no deadline on
//! one: the client's own applies. All that it starts has ended when it returns.

mod limits;

use std::collections::HashMap;
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::AddressFamily;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::ancestry::Ancestry;
use super::connection::{Accepted, ConnectionHandler};
use super::credentials::Credentials;
use super::origin::{Client, Origin};
use super::services::HttpService;
use super::tls::Tls;
use crate::access::Caller;
use crate::keeper_client::Heartbeat;
use crate::telemetry::refusals;
use limits::{Admission, ConnectionLimits};

/// Connections at a time over TCP, and on Unix sockets: clients from the network cannot take the
/// places of users of this machine.
const MAX_CONNECTIONS: u64 = 4096;

/// How long a connection may last on which no caller has authenticated. Clients connect early and
/// reconnect when they are told to; an authenticated client may keep a channel open without a call.
const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(60);

/// Connections that are accepted before other tasks have a turn, of which each is a new one.
const ACCEPTS_PER_TURN: u64 = 32;

/// How long nothing is accepted after the kernel could not give a descriptor or memory.
pub(super) const ACCEPT_BACKOFF: Duration = Duration::from_millis(250);

/// How long calls may take to notice that their connection is gone.
pub(super) const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// The listening sockets, ready to accept.
#[derive(Debug)]
pub(super) struct Acceptor {
    listeners: Vec<Listener>,
    unix: Connections,
    tcp: Connections,
    unauthenticated_timeout: Duration,
    tls: Option<Arc<Tls>>,
    credentials: Arc<Credentials>,
    children: Option<Ancestry>,
    heartbeat: Heartbeat,
}

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Acceptor {
    /// Takes listening sockets of Unix or TCP; `tls` is spoken on the latter, `children` tells which
    /// clients of the former are descendants of the keeper; `heartbeat` beats while connections keep the
    /// server busy. To be called on a tokio runtime.
    pub(super) fn new(
        sockets: Vec<OwnedFd>,
        tls: Option<Tls>,
        credentials: Arc<Credentials>,
        children: Option<Ancestry>,
        heartbeat: Heartbeat,
    ) -> io::Result<Acceptor> {
        let listeners = sockets.into_iter().map(Listener::new).collect::<Result<_, _>>()?;
        // Half of the descriptors are for everything else.
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let places = MAX_CONNECTIONS.min(descriptors / 4) as usize;
        Ok(Acceptor {
            listeners,
            unix: Connections::new(places),
            tcp: Connections::new(places),
            unauthenticated_timeout: UNAUTHENTICATED_TIMEOUT,
            tls: tls.map(Arc::new),
            credentials,
            children,
            heartbeat,
        })
    }

    /// Serves until `shutdown`. Then nothing more is accepted, clients are told to call elsewhere,
    /// and calls have as long to end as it says; what is left is cut off. New clients wait in the
    /// backlog of the sockets, which the keeper holds for the next server.
    pub(super) async fn serve(
        self,
        service: HttpService,
        shutdown: impl Future<Output = Duration>,
    ) {
        let Acceptor { listeners, unix, tcp, unauthenticated_timeout, tls, .. } = self;
        let Acceptor { credentials, children, heartbeat, .. } = self;
        let (alive, mut all_ended) = mpsc::channel(1);
        let (close, closing) = watch::channel(Duration::ZERO);
        let handler = ConnectionHandler::new(
            alive,
            service,
            closing,
            unauthenticated_timeout,
            tls,
            heartbeat,
        );
        // Tasks of their own, so that the runtime gives them turns as it does connections.
        let mut loops = JoinSet::new();
        for listener in listeners {
            let connections = match &listener {
                Listener::Unix(_) => unix.clone(),
                Listener::Tcp(_) => tcp.clone(),
            };
            let (handler, credentials) = (handler.clone(), Arc::clone(&credentials));
            loops.spawn(AcceptLoop { listener, handler, connections, credentials, children }.run());
        }
        let drain = shutdown.await;
        loops.shutdown().await;
        let _ = close.send(drain);
        drop(handler);
        if timeout(drain + CLOSE_GRACE, all_ended.recv()).await.is_err() {
            tracing::warn!("calls still run after their connections were closed");
        }
    }
}

/// Accepts on one socket.
struct AcceptLoop {
    listener: Listener,
    handler: ConnectionHandler,
    connections: Connections,
    credentials: Arc<Credentials>,
    children: Option<Ancestry>,
}

impl AcceptLoop {
    async fn run(self) {
        // To find out whether a client is a child process takes many reads of `/proc`.
        let accepts_per_turn = if self.children.is_some() { 1 } else { ACCEPTS_PER_TURN };
        for accepts in 1_u64.. {
            if accepts % accepts_per_turn == 0 {
                tokio::task::yield_now().await;
            }
            match self.listener.accept().await {
                Ok(accepted) => self.admit(accepted),
                // The client left before.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // Out of descriptors or memory. The connection is still in the backlog, so that the
                // loop would spin.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    }

    /// Serves a connection in a task of its own, or closes it.
    fn admit(&self, accepted: Accepted) {
        let peer = accepted.peer(self.children);
        let caller = self.credentials.caller_of_connection(&peer);
        let origin = Origin::of(&peer);
        let client = caller.as_ref().map(|caller| Client::Caller(caller.name.clone()));
        let client = client.unwrap_or(Client::Origin(origin));
        self.connections.admit(origin, caller.as_deref(), |slot| {
            self.handler.spawn_connection(accepted, peer, slot, client)
        });
    }
}

impl Listener {
    /// To be called on a tokio runtime.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Listener> {
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

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        Ok(match self {
            Listener::Unix(listener) => Accepted::Unix(listener.accept().await?.0),
            Listener::Tcp(listener) => {
                let (io, from) = listener.accept().await?;
                Accepted::Tcp(io, from)
            }
        })
    }
}

/// The connections of one kind of socket: who has a place, and the tasks that serve them.
#[derive(Clone, Debug)]
struct Connections(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    limits: ConnectionLimits,
    tasks: HashMap<u64, (Origin, AbortHandle)>,
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    connections: Connections,
    id: u64,
}

impl Connections {
    fn new(places: usize) -> Connections {
        let table = Table { limits: ConnectionLimits::new(places), tasks: HashMap::new() };
        Connections(Arc::new(Mutex::new(table)))
    }

    /// Has a connection served if there is a place for it, which another may have to leave.
    fn admit(
        &self,
        origin: Origin,
        caller: Option<&Caller>,
        spawn: impl FnOnce(Arc<ConnectionSlot>) -> AbortHandle,
    ) {
        // The task may end before its handle is in the table: it waits for the lock then.
        let mut table = self.lock();
        let (id, evicted) = match table.limits.admit(origin, caller, Instant::now()) {
            Admission::Admit { id, evicted } => (id, evicted),
            Admission::Refuse => return log_refused(origin, "too many connections"),
        };
        if let Some((origin, task)) = evicted.and_then(|evicted| table.tasks.remove(&evicted)) {
            task.abort();
            log_refused(origin, "closed for a newer connection");
        }
        let task = spawn(Arc::new(ConnectionSlot { connections: self.clone(), id }));
        table.tasks.insert(id, (origin, task));
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionSlot {
    /// Counts the connection as its caller's from now on.
    pub(super) fn authenticate(&self, caller: &Caller) {
        self.connections.lock().limits.authenticate(self.id, caller);
    }

    /// Gives the place back.
    pub(super) fn release(&self) {
        let mut table = self.connections.lock();
        table.limits.remove(self.id);
        table.tasks.remove(&self.id);
    }
}

/// Logs that places run short.
fn log_refused(origin: Origin, result: &str) {
    let origin = origin.to_string();
    if refusals::has_line(&origin, result) {
        tracing::warn!(target: "procyard::audit", peer = origin, call = "connect", result, "refused");
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpStream, UnixStream};
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;
    use tonic::service::Routes;

    use super::super::authority::tests::RECORDED;
    use super::super::credentials::Access;
    use super::super::credentials::tests::open;
    use super::super::services::standard;
    use super::*;
    use crate::supervisor::Quotas;

    /// An acceptor with so many places on its Unix socket, which serves health in a task.
    struct Served {
        path: PathBuf,
        shutdown: oneshot::Sender<()>,
        serving: JoinHandle<()>,
        _directory: TempDir,
    }

    impl Served {
        async fn with_places(places: usize) -> Served {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("s");
            let listener = StdUnixListener::bind(&path).unwrap();
            let mut acceptor =
                Acceptor::new(vec![listener.into()], None, open(), None, Heartbeat::default())
                    .unwrap();
            acceptor.unix = Connections::new(places);
            let routes =
                standard(Routes::default(), open(), Quotas::default()).await.unwrap().routes;
            let (shutdown, asked) = oneshot::channel();
            let asked = async {
                drop(asked.await);
                Duration::from_millis(50)
            };
            let serving = tokio::spawn(acceptor.serve(routes, asked));
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

    /// Whether the server has not closed a connection, after a while.
    async fn is_open(client: &mut UnixStream) -> bool {
        let mut said = Vec::new();
        timeout(Duration::from_millis(100), client.read_to_end(&mut said)).await.is_err()
    }

    #[tokio::test]
    async fn a_client_that_names_the_socket_by_its_path_is_answered() {
        let served = Served::with_places(16).await;
        assert_eq!(answered(&mut client(&served.path).await).await, [1, 3]);
    }

    #[tokio::test]
    async fn an_idle_connection_does_not_hold_up_the_end() {
        let served = Served::with_places(16).await;
        let mut idle = client(&served.path).await;
        answered(&mut idle).await;
        let mut silent = UnixStream::connect(&served.path).await.unwrap();
        served.shutdown.send(()).unwrap();
        timeout(Duration::from_secs(60), served.serving).await.unwrap().unwrap();
        idle.read_to_end(&mut Vec::new()).await.unwrap();
        // Reset, if it was not accepted yet: no other process holds the socket here.
        let _ = silent.read_to_end(&mut Vec::new()).await;
    }

    #[tokio::test]
    async fn connections_beyond_the_share_of_a_caller_are_closed_for_newer_ones() {
        let served = Served::with_places(8).await;
        let mut clients = Vec::new();
        for _ in 0..9 {
            let mut client = client(&served.path).await;
            assert_eq!(answered(&mut client).await, [1, 3]);
            clients.push(client);
        }
        // Two are within the share of this user; the third had to go for the ninth.
        let mut closed = clients.remove(2);
        timeout(Duration::from_secs(60), closed.read_to_end(&mut Vec::new()))
            .await
            .unwrap()
            .unwrap();
        assert!(is_open(&mut clients[0]).await);
    }

    #[tokio::test]
    async fn unauthenticated_connections_leave_places_for_others_and_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let unix = StdUnixListener::bind(&path).unwrap();
        let tcp = StdTcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let mut acceptor =
            Acceptor::new(vec![unix.into(), tcp.into()], None, open(), None, Heartbeat::default())
                .unwrap();
        acceptor.unauthenticated_timeout = Duration::from_millis(50);
        let routes = standard(Routes::default(), open(), Quotas::default()).await.unwrap().routes;
        let serving = tokio::spawn(acceptor.serve(routes, std::future::pending()));
        for _ in 0..2 {
            let mut stranger = TcpStream::connect(address).await.unwrap();
            stranger.write_all(&RECORDED.concat()[..24 + 45]).await.unwrap();
            let mut known = client(&path).await;
            assert_eq!(answered(&mut known).await, [1, 3]);
            let mut said = Vec::new();
            let closed = stranger.read_to_end(&mut said);
            let _ = timeout(Duration::from_secs(60), closed).await.unwrap();
            assert!(is_open(&mut known).await);
        }
        serving.abort();
    }

    #[tokio::test]
    async fn connection_of_a_refused_child_process_is_unauthenticated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let unix = StdUnixListener::bind(&path).unwrap();
        let children = Some("none".parse().unwrap());
        let credentials = Arc::new(Credentials::new(&Access { children, ..Access::default() }));
        // This process is a child of the process that stands for the keeper here.
        let ancestry = Ancestry::below(std::os::unix::process::parent_id());
        let mut acceptor = Acceptor::new(
            vec![unix.into()],
            None,
            Arc::clone(&credentials),
            Some(ancestry),
            Heartbeat::default(),
        )
        .unwrap();
        acceptor.unauthenticated_timeout = Duration::from_millis(50);
        let quotas = Quotas::default();
        let routes = standard(Routes::default(), credentials, quotas).await.unwrap().routes;
        let serving = tokio::spawn(acceptor.serve(routes, std::future::pending()));
        let mut child = UnixStream::connect(&path).await.unwrap();
        child.write_all(&RECORDED.concat()[..24 + 45]).await.unwrap();
        let mut said = Vec::new();
        let closed = child.read_to_end(&mut said);
        let _ = timeout(Duration::from_secs(60), closed).await.expect("the connection stays");
        serving.abort();
    }

    #[tokio::test]
    async fn a_socket_of_another_kind_is_refused() {
        use rustix::net::{SocketType, socket};
        let netlink = socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
        assert!(Acceptor::new(vec![netlink], None, open(), None, Heartbeat::default()).is_err());
    }
}
