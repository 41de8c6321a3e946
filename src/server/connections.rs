//! The door: accepts connections, has them served, and closes them when it is time.
//!
//! Owns how many there may be, and for how long strangers. It knows no RPC, and sets no deadline on
//! one: the client's own rules. All that it starts has ended when it returns.

mod hall;

use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::net::AddressFamily;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};

use super::services::HttpService;
use super::tls::Tls;
use hall::Hall;

/// Most connections at a time over TCP, and most on Unix sockets: strangers from the network do not
/// keep out who has a user here. Past it nothing is accepted: clients wait in the backlog, as they
/// do while the server restarts, and are let in as others leave.
const MOST_CONNECTIONS: u64 = 4096;

/// How long a connection over TCP may stay on which nobody became known. Clients connect early and
/// connect again when they are told to; who is known may keep a channel open without a call.
const STAY: Duration = Duration::from_secs(60);

/// How long nothing is accepted after the kernel could not give a descriptor or memory.
pub(super) const PAUSE: Duration = Duration::from_millis(250);

/// How long calls may take to notice that their connection is gone.
pub(super) const LAST_MOMENT: Duration = Duration::from_secs(1);

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

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
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
        let hall = Hall::new(alive, service, closing, self.stay, self.tls);
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

    /// Accepts a connection and serves it in a task of its own.
    async fn accept(&self, hall: &Hall, place: Option<OwnedSemaphorePermit>) {
        let accepted = match self {
            Listener::Unix(listener) => listener.accept().await.map(|(io, _)| {
                hall.let_in(hall.clone().serve_unix(io), place);
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
