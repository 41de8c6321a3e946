//! Floods of connections: admins connect and call throughout.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use procyard::grpc::pb;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::callers::{KnowingService, listens_at};
use crate::support::http2;
use crate::support::service::*;
use crate::support::{NOBODY, full_volume, is_root, skip, until};

/// Calls that are made during a flood.
const CALLS: usize = 5;

/// How long an admin may take to connect and call. Generous for a busy machine; in a flood that is not
/// fended off it is for ever, or over TCP for a minute.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// An address on loopback that no flood comes from.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Connections of a flood: more than a service with [`FEW_FILES`] has places, as at full volume 5,000
/// and 6,000 are more than 4,096.
const FLOOD: usize = 400;

/// Files that a service may have open, of which a quarter are places for connections of each kind.
const FEW_FILES: u64 = 1000;

/// Lets a service have so few files open.
fn limit_files(command: &mut std::process::Command, files: u64) {
    let few = Rlimit { current: Some(files), maximum: Some(files) };
    // SAFETY: only a system call.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, few)?)) };
}

/// Connections that a thread opens and keeps, and opens again when the server closes them. On each it
/// says that it speaks HTTP/2, and makes no call.
struct Flood {
    opened: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Flood {
    /// `connect` opens one more, if it can.
    fn start<Io: AsFd + Write + Send + 'static>(
        size: usize,
        uid: Option<u32>,
        connect: impl Fn() -> Option<Io> + Send + 'static,
    ) -> Flood {
        let (opened, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, stop) = (Arc::clone(&opened), Arc::clone(&over));
        let thread = std::thread::spawn(move || {
            if let Some(uid) = uid {
                // SAFETY: the bare system call changes the user of this thread alone.
                let changed =
                    unsafe { libc::syscall(libc::SYS_setresuid, -1_i64, i64::from(uid), -1_i64) };
                assert_eq!(changed, 0);
            }
            let (mut kept, hello) = (VecDeque::new(), http2::hello());
            let greet = |mut io: Io| io.write_all(&hello).is_ok().then_some(io);
            while !stop.load(Ordering::Relaxed) {
                if kept.len() < size {
                    kept.extend(connect().and_then(greet));
                    count.fetch_add(1, Ordering::Relaxed);
                } else if let Some(connection) = kept.pop_front()
                    && !is_closed(&connection)
                {
                    kept.push_back(connection);
                }
            }
        });
        Flood { opened, over, thread: Some(thread) }
    }

    async fn has_opened(&self, count: usize) {
        let what = format!("{count} connections are open");
        until(&what, || self.opened.load(Ordering::Relaxed) >= count).await;
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Whether the server has closed a connection.
fn is_closed(connection: &impl AsFd) -> bool {
    let mut said = [0_u8; 256];
    let received = recv(connection, &mut said, RecvFlags::DONTWAIT);
    !matches!(received, Ok((1.., _)) | Err(Errno::AGAIN))
}

/// The size of a flood, and the files that its service may have open, if this process can open so
/// many connections.
fn volume(full: usize) -> Option<(usize, u64)> {
    let (size, files) = if full_volume() { (full, 16_384) } else { (FLOOD, FEW_FILES) };
    let limit = getrlimit(Resource::Nofile);
    // Other tests of this process have some open.
    let needed = size as u64 + 2048;
    let raised = Rlimit { current: Some(needed), ..limit };
    let enough = limit.current.is_none_or(|current| current >= needed)
        || setrlimit(Resource::Nofile, raised).is_ok();
    enough.then_some((size, files))
}

/// A service on an abstract socket, which every user can reach.
fn reachable(change: impl FnOnce(&mut std::process::Command)) -> (TestService, UnixAddr) {
    let directory = tempfile::tempdir().unwrap();
    let name = format!("procyard-test{}", directory.path().display());
    let address = UnixAddr::from_abstract_name(&name).unwrap();
    let service = TestService::start_with(|command| {
        command.arg("--listen").arg(format!("unix-abstract:{name}"));
        change(command);
    });
    (service, address)
}

/// The longest that `call`, on a connection of its own, takes in many attempts.
async fn slowest<F: Future<Output = ()>>(call: impl Fn() -> F) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..CALLS {
        let begin = Instant::now();
        let answered = tokio::time::timeout(MAX_DELAY, call()).await;
        assert!(answered.is_ok(), "an admin got no answer within {MAX_DELAY:?}");
        slowest = slowest.max(begin.elapsed());
    }
    slowest
}

/// A connection of its own.
async fn connect_unix(address: &UnixAddr) -> Channel {
    let (endpoint, address) = (Endpoint::from_static("http://x"), address.clone());
    let connector = tower::service_fn(move |_| {
        let address = address.clone();
        async move {
            let connected = tokio::task::spawn_blocking(move || UnixStream::connect_addr(&address));
            let io = connected.await.unwrap()?;
            io.set_nonblocking(true)?;
            let io = tokio::net::UnixStream::from_std(io)?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(io))
        }
    });
    endpoint.connect_with_connector(connector).await.unwrap()
}

/// Makes a call as an admin, on a connection of its own to the address of the flood.
async fn call_as_admin(address: &UnixAddr) {
    let mut client = Client::new(connect_unix(address).await);
    client.get_server_info(pb::GetServerInfoRequest {}).await.unwrap();
}

/// Probes health, on a connection of its own.
async fn probe_unix(address: &UnixAddr) -> Result<(), tonic::Status> {
    probe(connect_unix(address).await).await
}

/// The same without credentials, from an address on loopback.
async fn probe_tcp(address: SocketAddr, from: Ipv4Addr) -> Result<(), tonic::Status> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let endpoint = endpoint.local_address(Some(from.into()));
    probe(endpoint.connect().await.unwrap()).await
}

async fn probe(channel: Channel) -> Result<(), tonic::Status> {
    let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await?;
    assert_eq!(answer.into_inner().status(), ServingStatus::Serving);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_is_served_during_a_flood_of_unix_connections() {
    if !is_root() {
        return skip("only root can connect as another user");
    }
    let Some((size, files)) = volume(5000) else {
        return skip("too few files can be open here");
    };
    let log = tempfile::NamedTempFile::new().unwrap();
    let (service, address) = reachable(|command| {
        limit_files(command, files);
        command.args(["--listen", "tcp://127.0.0.1:0"]);
        command.env("RUST_LOG", "info").env("NO_COLOR", "1").stderr(log.reopen().unwrap());
    });
    let loopback = listens_at(log.path()).await;
    service.client().await;
    let of_flood = address.clone();
    let flood = Flood::start(size, Some(NOBODY), move || UnixStream::connect_addr(&of_flood).ok());
    flood.has_opened(size).await;
    let slowest_call = slowest(|| call_as_admin(&address)).await;
    let on_unix = slowest(async || probe_unix(&address).await.unwrap()).await;
    let probe = async || probe_tcp(loopback, Ipv4Addr::LOCALHOST).await.unwrap();
    let over_tcp = slowest(probe).await;
    eprintln!(
        "slowest call of an admin: {slowest_call:?}, slowest probes: {on_unix:?}, {over_tcp:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_is_served_during_a_flood_of_tcp_connections() {
    let Some((size, files)) = volume(6000) else {
        return skip("too few files can be open here");
    };
    let callers = [("root", "admin")];
    let known = KnowingService::start_with(&callers, |command| limit_files(command, files)).await;
    let address: SocketAddr = listens_at(&known.log_path()).await;
    known.caller("root").await;
    let flood = Flood::start(size, None, move || {
        TcpStream::connect_timeout(&address, Duration::from_millis(100)).ok()
    });
    flood.has_opened(size).await;
    let call = async || {
        // A connection that is closed before its first call is opened again, as clients do.
        loop {
            let mut admin = known.caller("root").await;
            if admin.get_server_info(pb::GetServerInfoRequest {}).await.is_ok() {
                return;
            }
        }
    };
    let slowest_call = slowest(call).await;
    // From the address of the flood a probe may have to connect again, as an admin.
    let probe = async || while probe_tcp(address, Ipv4Addr::LOCALHOST).await.is_err() {};
    let slowest_probe = slowest(probe).await;
    let from_elsewhere = slowest(async || probe_tcp(address, ELSEWHERE).await.unwrap()).await;
    let socket = UnixAddr::from_pathname(known.service.socket()).unwrap();
    let on_unix = slowest(async || probe_unix(&socket).await.unwrap()).await;
    eprintln!("slowest call of an admin: {slowest_call:?}");
    eprintln!("slowest probes: {slowest_probe:?}, {from_elsewhere:?}, {on_unix:?}");
    drop(flood);
    // However many were refused, they have few lines.
    let lines = known.log().lines().filter(|line| line.contains("call=\"connect\"")).count();
    assert!((1..=128).contains(&lines), "{lines} lines about refused connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn greedy_caller_leaves_places_for_admins() {
    if !is_root() {
        return skip("only root can connect as another user");
    }
    let (service, address) = reachable(|command| {
        command.arg("--grant").arg(format!("uid:{NOBODY}=viewer"));
        // A hundred places, of which a caller may keep a quarter.
        limit_files(command, 400);
    });
    service.client().await;
    let of_flood = address.clone();
    let flood = Flood::start(300, Some(NOBODY), move || UnixStream::connect_addr(&of_flood).ok());
    flood.has_opened(300).await;
    slowest(|| call_as_admin(&address)).await;
}
