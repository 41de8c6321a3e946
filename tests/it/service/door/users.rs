//! Users on Unix sockets: the kernel tells who they are.

use std::fs::{self, Permissions};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream as StdUnixStream};
use std::path::Path;

use procyard::grpc::pb::process_service_client::ProcessServiceClient;
use tokio::net::UnixStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::{Everywhere, info, no_credentials};
use crate::support::service::*;
use crate::support::{NOBODY, is_root, skip, soon, until};

/// Connects as another user, which only root can.
fn connect_as(uid: u32, address: &UnixAddr) -> io::Result<StdUnixStream> {
    let address = address.clone();
    let as_other = std::thread::spawn(move || {
        // SAFETY: the bare system call changes the user of this thread alone, which then ends.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1_i64, i64::from(uid), -1_i64) };
        assert_eq!(changed, 0);
        StdUnixStream::connect_addr(&address)
    });
    as_other.join().unwrap()
}

/// A channel over a connection that was made.
async fn over(socket: StdUnixStream) -> Channel {
    socket.set_nonblocking(true).unwrap();
    let mut socket = Some(hyper_util::rt::TokioIo::new(UnixStream::from_std(socket).unwrap()));
    let connector = tower::service_fn(move |_| {
        let socket = socket.take().ok_or_else(|| io::Error::other("it was used"));
        std::future::ready(socket)
    });
    let endpoint = Endpoint::from_static("http://localhost");
    soon(endpoint.connect_with_connector(connector)).await.unwrap()
}

fn path_of(path: &Path) -> UnixAddr {
    UnixAddr::from_pathname(path).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_user_is_refused_and_logged_also_where_there_is_no_file_to_protect() {
    if !is_root() {
        return skip("only root can connect as another user");
    }
    let everywhere = Everywhere::start().await;
    let name = UnixAddr::from_abstract_name(&everywhere.name).unwrap();
    let other = over(connect_as(NOBODY, &name).unwrap()).await;
    assert_eq!(refusal(info(&other, None).await), no_credentials());
    let refused = format!("peer=uid {NOBODY} on a Unix socket");
    until("it is logged", || everywhere.log().contains(&refused)).await;
    // A file keeps others from connecting at all.
    fs::set_permissions(everywhere.service.directory.path(), Permissions::from_mode(0o755))
        .unwrap();
    let denied = connect_as(NOBODY, &path_of(&everywhere.service.socket())).unwrap_err();
    assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
    info(&over(connect_as(0, &name).unwrap()).await, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_is_given_something_is_let_in_and_no_other() {
    if !is_root() {
        return skip("only root can connect as another user");
    }
    let everywhere = Everywhere::start_with("127.0.0.1:0", |command| {
        command.arg("--grant").arg(format!("uid:{NOBODY}=viewer"));
    })
    .await;
    let socket = everywhere.service.socket();
    let mode = fs::symlink_metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o666);
    // Where the way to it is closed, it is.
    let directory = everywhere.service.directory.path();
    fs::set_permissions(directory, Permissions::from_mode(0o700)).unwrap();
    let closed = connect_as(NOBODY, &path_of(&socket)).unwrap_err();
    assert_eq!(closed.kind(), io::ErrorKind::PermissionDenied);
    fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    // The same after an accident.
    for _ in 0..2 {
        let viewer = over(connect_as(NOBODY, &path_of(&socket)).unwrap()).await;
        info(&viewer, None).await.unwrap();
        let started = ProcessServiceClient::new(viewer).start(start("p", argv(&["true"]))).await;
        assert_eq!(refusal(started), (Code::PermissionDenied, "ROLE".into()));
        let stranger = over(connect_as(NOBODY - 1, &path_of(&socket)).unwrap()).await;
        assert_eq!(refusal(info(&stranger, None).await), no_credentials());
        everywhere.service.kill_server();
        everywhere.service.client().await;
    }
}
