//! How commands reach the service: where it is, and who asks.
//!
//! Owns the options that all of them share and the connection that comes of them. What is asked is
//! the commands' own.

mod attempts;
mod loopback;
mod no_listener;
mod peer;
mod place;
mod resumed;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

pub(super) use attempts::{AWAY, Attempts, UNREACHABLE, again, is_lost, quietly_again, reason};
pub(super) use no_listener::NoListener;
pub(super) use peer::Peer;
pub(super) use place::Place;
pub(super) use resumed::{Resumable, Resumed};

use super::options::state_dir_here;
use super::trouble::{self, Trouble};
use crate::grpc::pb::{self, process_service_client::ProcessServiceClient};
use crate::server::credentials::token_file;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long somebody may take to turn out to be procyard: a server that is being replaced is back
/// by then.
const MEETING: Duration = Duration::from_secs(5);
/// How often is asked whether the other side is still there, and how long it may take to answer:
/// who waits for an answer would else wait for ever on a connection that died without a word.
const PING: Duration = Duration::from_secs(15);
const PONG: Duration = Duration::from_secs(20);
/// Large frames make a stream of output twice as fast.
const FRAME: u32 = 1 << 20;
/// The largest answer: a view has up to 3 MiB, and what goes with it is small.
const LARGEST_ANSWER: usize = 8 << 20;

/// The service, as a command calls it.
pub(super) type Client = ProcessServiceClient<InterceptedService<Channel, Bearer>>;

/// Where the service is, and who asks.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Connection")]
pub(super) struct Remote {
    /// Where procyard serves: unix:///path, unix-abstract:name or tcp://host:port. The default is
    /// the usual socket of `procyard serve`, for root /run/procyard.sock.
    #[arg(long, value_name = "ADDRESS", env = "PROCYARD_SERVER")]
    server: Option<Place>,
    /// The uid of the user that runs the server on this machine: at a Unix socket, or on loopback
    /// without TLS. Servers of root and of your own user are trusted without it.
    #[arg(long, value_name = "UID", env = "PROCYARD_SERVER_UID")]
    server_uid: Option<u32>,
    /// The token to show, better given by the variable, as others see arguments. Over loopback the
    /// default is the one that `serve` has made there.
    #[arg(long, value_name = "TOKEN", env = "PROCYARD_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Speaks TLS: the file of the authority that has signed the server's certificate.
    #[arg(long, value_name = "PATH", env = "PROCYARD_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// The file of an own certificate.
    #[arg(long, value_name = "PATH", env = "PROCYARD_CLIENT_CERT", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// The file of its key.
    #[arg(long, value_name = "PATH", env = "PROCYARD_CLIENT_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The name in the server's certificate, where it is not the host of the address.
    #[arg(long, value_name = "NAME", env = "PROCYARD_TLS_SERVER_NAME", requires = "tls_ca")]
    tls_server_name: Option<String>,
}

impl Remote {
    /// Where the service is.
    pub(super) fn place(&self) -> Place {
        self.server.clone().unwrap_or_else(Place::usual)
    }

    /// The same client for another address.
    pub(super) fn at(&self, place: Place) -> Remote {
        Remote { server: Some(place), ..self.clone() }
    }

    /// Whether the user has named an address.
    pub(super) fn is_named(&self) -> bool {
        self.server.is_some()
    }

    /// Whether it is the usual socket, named or not, so that a supervisor may be started there.
    pub(super) fn is_usual(&self) -> bool {
        self.place() == Place::usual()
    }

    /// A connection to the Unix socket, on which nothing was said yet.
    pub(super) fn open(&self) -> io::Result<std::os::unix::net::UnixStream> {
        self.place().open(self.server_uid)
    }

    /// Connects, and stays connected: a connection that is lost is made anew by the next call.
    pub(super) async fn connect(&self) -> Result<Client, Trouble> {
        let bearer = self.bearer()?;
        let channel = self.checked_channel(self.place().is_loopback()).await?;
        let client = ProcessServiceClient::with_interceptor(channel, bearer);
        let client = client.max_decoding_message_size(LARGEST_ANSWER);
        if let Place::Tcp(_) = self.place() {
            self.meet(client.clone()).await?;
        }
        Ok(client)
    }

    /// Finds out who is at the other end: on a port it may be anybody, and to speak with somebody
    /// else looks as if the connection was lost, again and again.
    async fn meet(&self, mut client: Client) -> Result<(), Trouble> {
        let mut attempts = Attempts::within(MEETING);
        loop {
            match client.get_server_info(pb::GetServerInfoRequest {}).await {
                Err(status) if is_lost(&status) && reason(&status).is_none() => {
                    let hint = if self.tls_ca.is_some() { "" } else { "; --tls-ca speaks TLS" };
                    let nobody = |status: Status| {
                        let (place, why) = (self.place(), trouble::deepest(&status));
                        Trouble::new(format!("{place} does not answer as procyard: {why}{hint}"))
                    };
                    attempts.pause_after(status).await.map_err(nobody)?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Connects for calls that send nothing of the user's, such as a health check.
    pub(super) async fn channel(&self) -> Result<Channel, Trouble> {
        self.checked_channel(false).await
    }

    /// Connects. `checks_user`: also over TCP without TLS each connection, also a later one, is made to a
    /// server that root, this user or `--server-uid` runs. On Unix sockets that is always so.
    async fn checked_channel(&self, checks_user: bool) -> Result<Channel, Trouble> {
        let place = self.place();
        let endpoint = match &place {
            Place::Tcp(address) => {
                let scheme = if self.tls_ca.is_some() { "https" } else { "http" };
                Endpoint::from_shared(format!("{scheme}://{address}"))
                    .map_err(|_| Trouble::new(format!("{place} is no address")))?
            }
            Place::Unix(_) | Place::Abstract(_) => Endpoint::from_static("http://localhost"),
        };
        let endpoint = endpoint
            .max_frame_size(FRAME)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .keep_alive_while_idle(true);
        let connected = match &place {
            Place::Tcp(address) => match self.tls()? {
                Some(tls) => {
                    let told = endpoint.tls_config(tls);
                    told.map_err(|error| Trouble::unreachable(&place, &error))?.connect().await
                }
                None if checks_user => {
                    let (address, server_uid) =
                        (Arc::<str>::from(address.as_str()), self.server_uid);
                    let connector = tower::service_fn(move |_| {
                        let address = Arc::clone(&address);
                        async move { loopback::connect(&address, server_uid).await.map(TokioIo::new) }
                    });
                    endpoint.connect_with_connector(connector).await
                }
                None => endpoint.connect().await,
            },
            Place::Unix(_) | Place::Abstract(_) => {
                let (socket, server_uid) = (place.clone(), self.server_uid);
                let connector = tower::service_fn(move |_| {
                    let socket = socket.clone();
                    async move {
                        // Where too many wait to be let in it blocks; others have their timeouts.
                        let opening = tokio::task::spawn_blocking(move || {
                            let opened = socket.open(server_uid);
                            opened.map_err(|error| NoListener::mark(socket, error))
                        });
                        let stream = opening.await??;
                        stream.set_nonblocking(true)?;
                        Ok::<_, std::io::Error>(TokioIo::new(UnixStream::from_std(stream)?))
                    }
                });
                endpoint.connect_with_connector(connector).await
            }
        };
        connected.map_err(|error| Trouble::unreachable(&place, &error))
    }

    fn tls(&self) -> Result<Option<ClientTlsConfig>, Trouble> {
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|error| Trouble::new(format!("{}: {error}", path.display())))
        };
        let Some(ca) = &self.tls_ca else { return Ok(None) };
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?));
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        if let Some(name) = &self.tls_server_name {
            tls = tls.domain_name(name);
        }
        Ok(Some(tls))
    }

    /// What is shown with each call.
    fn bearer(&self) -> Result<Bearer, Trouble> {
        // Read only where it is meant for, so that nobody else is ever shown it.
        let own = || match self.place().is_loopback() {
            true => token_file::token_of_this_machine(&state_dir_here()),
            false => None,
        };
        let Some(token) = self.token.clone().or_else(own) else { return Ok(Bearer(None)) };
        if self.tls_ca.is_none() && self.place().is_far() {
            return Err(Trouble::new(format!(
                "a token is not shown to {} in clear text; --tls-ca speaks TLS",
                self.place()
            )));
        }
        let value = format!("Bearer {}", token.trim()).parse();
        Ok(Bearer(Some(value.map_err(|_| Trouble::new("a token has no such characters"))?)))
    }
}

/// The token that is shown with each call, if any.
#[derive(Clone, Debug)]
pub(super) struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}
