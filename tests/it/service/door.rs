//! The door: where it stands, who is let in, and what else is served on the same port.

mod crowds;
mod tls;
mod tokens;
mod users;

use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream as StdUnixStream};
use std::process::{Command, Stdio};

use procyard::grpc::pb;
use procyard::grpc::pb::process_service_client::ProcessServiceClient;
use prost::Message;
use tempfile::NamedTempFile;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};

use crate::support::callers::listens_at;
use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{binary, http2, soon, until};

const SERVICE: &str = "procyard.v1.ProcessService";
const INFO: &str = "/procyard.v1.ProcessService/GetServerInfo";

/// A service that also listens on TCP and on an abstract socket, and where.
struct Everywhere {
    service: TestService,
    tcp: SocketAddr,
    name: String,
    log: NamedTempFile,
}

impl Everywhere {
    /// One that lets in whoever comes over loopback.
    async fn start() -> Everywhere {
        Everywhere::start_with("127.0.0.1:0", |command| {
            command.arg("--no-auth-loopback");
        })
        .await
    }

    /// One on another address of TCP, with other options.
    async fn start_with(tcp: &str, change: impl FnOnce(&mut Command)) -> Everywhere {
        let log = NamedTempFile::new().unwrap();
        let unique = log.path().file_name().unwrap().to_string_lossy().into_owned();
        let name = format!("procyard-test-{}-{unique}", std::process::id());
        let service = TestService::start_with(|command| {
            command.arg("--listen").arg(format!("tcp://{tcp}"));
            command.arg("--listen").arg(format!("unix-abstract:{name}"));
            command.env("RUST_LOG", "info").stderr(log.reopen().unwrap());
            change(command);
        });
        let tcp = listens_at(log.path()).await;
        let everywhere = Everywhere { service, tcp, name, log };
        everywhere.service.client().await;
        everywhere
    }

    /// All that it has logged.
    fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }

    async fn unix(&self) -> UnixStream {
        UnixStream::connect(self.service.socket()).await.unwrap()
    }

    fn abstract_socket(&self) -> UnixStream {
        let address = UnixAddr::from_abstract_name(&self.name).unwrap();
        let socket = StdUnixStream::connect_addr(&address).unwrap();
        socket.set_nonblocking(true).unwrap();
        UnixStream::from_std(socket).unwrap()
    }

    async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.tcp).await.unwrap()
    }

    async fn tcp_client(&self) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.tcp)).unwrap();
        ProcessServiceClient::new(soon(endpoint.connect()).await.unwrap())
    }
}

/// Asks for the server's info, with a token if there is one.
async fn info(
    channel: &Channel,
    token: Option<&str>,
) -> Result<pb::GetServerInfoResponse, tonic::Status> {
    let mut request = Request::new(pb::GetServerInfoRequest {});
    if let Some(token) = token {
        let shown = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", shown);
    }
    let mut client = ProcessServiceClient::new(channel.clone());
    soon(client.get_server_info(request)).await.map(tonic::Response::into_inner)
}

fn no_credentials() -> (Code, String) {
    (Code::Unauthenticated, "NO_CREDENTIALS".into())
}

fn bad_credentials() -> (Code, String) {
    (Code::Unauthenticated, "BAD_CREDENTIALS".into())
}

/// Asks for the server's info by hand.
async fn info_by_hand<Io>(mut io: Io, authority: &str) -> pb::GetServerInfoResponse
where
    Io: AsyncRead + AsyncWrite + Unpin,
{
    let call = http2::call(1, authority, INFO, &pb::GetServerInfoRequest {});
    http2::send(&mut io, &[http2::hello(), call].concat()).await;
    http2::answer(&mut io, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_listens_on_all_addresses_at_once_and_is_the_same_everywhere() {
    let service = Everywhere::start().await;
    let id = info_by_hand(service.unix().await, "localhost").await.instance_id;
    assert!(!id.is_empty());
    assert_eq!(info_by_hand(service.abstract_socket(), "localhost").await.instance_id, id);
    assert_eq!(info_by_hand(service.tcp().await, "localhost").await.instance_id, id);
    // What is started through one can be followed through another.
    begin(&mut service.tcp_client().await, "p", shell("echo word")).await;
    let mut client = service.service.client().await;
    assert_eq!(read_to_end(&mut client, "p", 100).await.stdout(), "word\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_name_the_socket_by_its_path() {
    let service = Everywhere::start().await;
    let path = service.service.socket().to_str().unwrap().to_owned();
    let encoded = path.replace('/', "%2F");
    for authority in [&encoded[..], &path, "%2Ftmp%2Fx.sock", "localhost", "a:b:c", "[", " ", "é"]
    {
        for _ in 0..2 {
            let info = info_by_hand(service.unix().await, authority).await;
            assert_eq!(info.version, env!("CARGO_PKG_VERSION"), "{authority:?}");
            info_by_hand(service.abstract_socket(), authority).await;
        }
    }
    // Many calls of one connection, as such clients make them.
    let mut io = service.unix().await;
    http2::send(&mut io, &http2::hello()).await;
    for n in 0..100 {
        let stream = 2 * n + 1;
        let call = http2::call(stream, &encoded, INFO, &pb::GetServerInfoRequest {});
        http2::send(&mut io, &call).await;
        let info: pb::GetServerInfoResponse = http2::answer(&mut io, stream).await;
        assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_socket_is_its_owners_alone() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("new/deeper/p.sock");
    let service = TestService::start_with(|command| {
        command.arg("--listen").arg(format!("unix://{}", socket.display()));
    });
    // The keeper makes the sockets one after the other, and clients connect to the first one before the
    // second one exists. The server answers when all exist.
    let info = pb::GetServerInfoRequest::default();
    soon(service.client().await.get_server_info(info)).await.unwrap();
    let mode = |path: &std::path::Path| {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    };
    assert_eq!((mode(&socket), mode(&service.socket())), (0o600, 0o600));
    assert_eq!(mode(socket.parent().unwrap()), 0o700);
    assert_eq!(mode(&directory.path().join("new")), 0o700);
    drop(service);
    assert!(!socket.exists(), "the socket outlived its service");
}

/// What a start says that is refused.
async fn refused_start(listen: &str) -> String {
    refused_start_with(listen, &[]).await
}

/// The same with more options.
async fn refused_start_with(listen: &str, options: &[&str]) -> String {
    let (directory, log) = (tempfile::tempdir().unwrap(), NamedTempFile::new().unwrap());
    let mut command = Command::new(binary());
    command.args(["serve", "--listen", listen, "--state-dir"]).arg(directory.path().join("state"));
    command.args(options);
    let child = command.stdin(Stdio::null()).stderr(log.reopen().unwrap()).spawn().unwrap();
    // Stopped with it, should it not be refused.
    let mut service = TestService { child, directory };
    until("the start is refused", || service.child.try_wait().unwrap().is_some()).await;
    assert!(!service.child.wait().unwrap().success(), "{listen} was not refused");
    std::fs::read_to_string(log.path()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_reached_from_elsewhere_is_refused_with_the_reason() {
    for listen in ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:7450", "tcp://8.8.8.8:0"] {
        let said = refused_start(listen).await;
        assert!(said.contains("loopback only") && said.contains(listen), "{said}");
        assert!(said.contains("--token-file") && said.contains("--tls-client-ca"), "{said}");
        let said = refused_start_with(listen, &["--no-auth-loopback"]).await;
        assert!(said.contains("loopback only"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_taken_is_refused_with_the_reason() {
    let service = Everywhere::start().await;
    for listen in [
        format!("tcp://{}", service.tcp),
        format!("unix-abstract:{}", service.name),
        format!("unix://{}", service.service.socket().display()),
    ] {
        let said = refused_start(&listen).await;
        assert!(said.contains(&listen), "{said}");
    }
    info_by_hand(service.unix().await, "localhost").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_tells_of_the_whole_and_of_the_service() {
    let service = TestService::start();
    let mut health = HealthClient::new(service.channel().await);
    for name in ["", SERVICE] {
        let request = HealthCheckRequest { service: name.into() };
        let answer = soon(health.check(request)).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
    let unknown = soon(health.check(HealthCheckRequest { service: "no.Such".into() })).await;
    assert_eq!(refusal(unknown), (Code::NotFound, "NOT_FOUND".into()));
    let request = HealthCheckRequest { service: SERVICE.into() };
    let mut watch = soon(health.watch(request)).await.unwrap().into_inner();
    let first = soon(watch.message()).await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
}

/// Asks by reflection, in one version; gives the names and the files of the answers.
macro_rules! reflected {
    ($version:ident, $channel:expr) => {{
        use tonic_reflection::pb::$version::ServerReflectionRequest;
        use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
        let requests = [
            MessageRequest::ListServices(String::new()),
            MessageRequest::FileContainingSymbol(SERVICE.into()),
            MessageRequest::FileContainingSymbol("procyard.v1.Process".into()),
            MessageRequest::FileByFilename("procyard/v1/spec.proto".into()),
            MessageRequest::FileContainingSymbol("google.protobuf.Duration".into()),
        ];
        let requests = requests.map(|request| ServerReflectionRequest {
            host: String::new(),
            message_request: Some(request),
        });
        let mut client = ServerReflectionClient::new($channel);
        let answers = client.server_reflection_info(tokio_stream::iter(requests));
        let mut answers = soon(answers).await.unwrap().into_inner();
        let (mut names, mut files) = (Vec::new(), Vec::new());
        while let Some(answer) = soon(answers.message()).await.unwrap() {
            match answer.message_response.unwrap() {
                MessageResponse::ListServicesResponse(list) => {
                    names.extend(list.service.into_iter().map(|service| service.name));
                }
                MessageResponse::FileDescriptorResponse(found) => {
                    let file = &found.file_descriptor_proto[0][..];
                    files.push(prost_types::FileDescriptorProto::decode(file).unwrap());
                }
                other => panic!("{other:?}"),
            }
        }
        (names, files)
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reflection_tells_of_every_service_in_both_versions() {
    let service = TestService::start();
    let channel: Channel = service.channel().await;
    for (names, files) in [reflected!(v1, channel.clone()), reflected!(v1alpha, channel.clone())] {
        for name in [
            SERVICE,
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ] {
            assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
        }
        let found: Vec<&str> = files.iter().map(prost_types::FileDescriptorProto::name).collect();
        let expected = [
            "procyard/v1/service.proto",
            "procyard/v1/process.proto",
            "procyard/v1/spec.proto",
            "google/protobuf/duration.proto",
        ];
        assert_eq!(found, expected);
        let methods = files[0].service[0].method.iter().map(|method| method.name());
        assert!(
            ["Start", "Follow", "GetServerInfo"]
                .iter()
                .all(|name| methods.clone().any(|m| m == *name))
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_served_is_refused_with_a_reason() {
    let service = TestService::start();
    let channel = service.channel().await;
    for path in [
        "/procyard.v1.ProcessService/NoSuchMethod",
        "/procyard.v1.NoSuchService/Get",
        "/grpc.health.v1.Health/NoSuchMethod",
        "/x",
    ] {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        soon(grpc.ready()).await.unwrap();
        let codec = tonic_prost::ProstCodec::<pb::GetRequest, pb::GetResponse>::default();
        let request = Request::new(pb::GetRequest { id: "p".into() });
        let answer = soon(grpc.unary(request, path.parse().unwrap(), codec)).await;
        assert_eq!(refusal(answer), (Code::Unimplemented, "UNKNOWN_METHOD".into()), "{path}");
    }
}

/// A request over HTTP/1.1 by hand, and all of its answer.
async fn over_http1(service: &Everywhere, path: &str, headers: &str, body: &[u8]) -> String {
    let mut io = service.tcp().await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n",
        service.tcp,
        body.len()
    );
    http2::send(&mut io, &[head.as_bytes(), body].concat()).await;
    let mut answer = Vec::new();
    soon(io.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

const WEB: &str = "content-type: application/grpc-web+proto\r\nx-grpc-web: 1\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_web_is_served_over_http1() {
    let service = Everywhere::start().await;
    let nothing = http2::prefixed(&pb::GetServerInfoRequest {});
    let answer = over_http1(&service, INFO, WEB, &nothing).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("application/grpc-web"), "{answer}");
    assert!(answer.contains(env!("CARGO_PKG_VERSION")), "{answer}");
    assert!(answer.contains("grpc-status:0"), "{answer}");
    // Errors come the same way, with their details.
    let unknown = http2::prefixed(&pb::GetRequest { id: "nobody".into() });
    let path = format!("/{SERVICE}/Get");
    let answer = over_http1(&service, &path, WEB, &unknown).await;
    assert!(answer.contains("grpc-status: 5") || answer.contains("grpc-status:5"), "{answer}");
    assert!(answer.contains("grpc-status-details-bin"), "{answer}");
    // A page of this machine may ask too.
    let local = format!("{WEB}origin: http://localhost:3000\r\n");
    assert!(over_http1(&service, INFO, &local, &nothing).await.contains("grpc-status:0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_from_elsewhere_get_nothing() {
    let service = Everywhere::start().await;
    let start = start("p", shell("sleep 600"));
    let path = format!("/{SERVICE}/Start");
    for origin in ["http://example.com", "null", "http://localhost.example.com"] {
        let foreign = format!("{WEB}origin: {origin}\r\n");
        let answer = over_http1(&service, &path, &foreign, &http2::prefixed(&start)).await;
        assert!(answer.contains("grpc-status: 7"), "{answer}");
        assert!(!answer.to_lowercase().contains("access-control"), "{answer}");
    }
    // What a page may send without asking first is no call.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let simple = format!("content-type: {kind}\r\n");
        let answer = over_http1(&service, &path, &simple, &http2::prefixed(&start)).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    let mut client = service.service.client().await;
    let listed = soon(client.list(pb::ListRequest::default())).await.unwrap().into_inner();
    assert_eq!(listed.processes.len(), 0, "a page started something");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_in_a_request_starts_nothing_and_after_it_leaves_the_process() {
    let service = Everywhere::start().await;
    let path = format!("/{SERVICE}/Start");
    // All of it but the end.
    let whole = http2::call(1, "localhost", &path, &start("half", shell("sleep 600")));
    for cut in [1, 20, 60] {
        let mut io = service.unix().await;
        http2::send(&mut io, &http2::hello()).await;
        http2::send(&mut io, &whole[..whole.len() - cut]).await;
        drop(io);
    }
    let mut io = service.tcp().await;
    let waits =
        http2::call(1, "localhost", &path, &run("whole", shell("echo word; exec sleep 600")));
    http2::send(&mut io, &[http2::hello(), waits].concat()).await;
    let mut client = service.service.client().await;
    soon(async { while client.get(pb::GetRequest { id: "whole".into() }).await.is_err() {} }).await;
    io.set_zero_linger().unwrap();
    drop(io);
    soon(client.wait(wait("whole", until_output("word")))).await.unwrap();
    let listed = soon(client.list(pb::ListRequest::default())).await.unwrap().into_inner();
    let ids: Vec<_> = listed.processes.iter().map(|process| &process.id[..]).collect();
    assert_eq!(ids, ["whole"]);
    assert_eq!(listed.processes[0].state(), pb::State::Running);
}

/// The server sends its side to the end however rudely a client says nothing more.
async fn hung_up(mut io: impl AsyncRead + AsyncWrite + Unpin) {
    let mut rest = Vec::new();
    // Reset or ended.
    let _ = soon(io.read_to_end(&mut rest)).await;
    let _ = io.shutdown().await;
}
