//! A whole procyard of its own, and this process as its client.
//!
//! Owns the runtime that the client runs on, with one thread, and the words that calls are made
//! of. When it is dropped the service ends, and with it all that it held.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use futures_util::future::try_join_all;
use procyard::grpc::pb::process_service_client::ProcessServiceClient;
use procyard::grpc::pb::{self, follow_response, spec, wait_for};
use tokio::runtime::Runtime;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::common::Result;
use crate::common::serve::Serve;

pub(crate) type Client = ProcessServiceClient<Channel>;

/// No measurement takes that long; what does is stuck.
const STUCK: Duration = Duration::from_secs(120);

pub(crate) struct Yard {
    client: Client,
    runtime: Runtime,
    pub(crate) serve: Serve,
}

/// How a client is set up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settings {
    /// Frames of up to 1 MiB.
    Tuned,
    /// As the library has them.
    Default,
}

impl Yard {
    pub(crate) fn open() -> Result<Yard> {
        Yard::open_with(|_| {})
    }

    /// A service whose command was changed.
    pub(crate) fn open_with(change: impl FnOnce(&mut Command)) -> Result<Yard> {
        let serve = Serve::start_with(change)?;
        let runtime = runtime()?;
        let client = runtime.block_on(connect(serve.socket(), Settings::Tuned))?;
        Ok(Yard { client, runtime, serve })
    }

    /// Has something done by a client, on a connection that is there already.
    pub(crate) fn run<T>(&self, job: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        let stuck = tokio::time::timeout;
        self.runtime.block_on(async { stuck(STUCK, job(&self.client)).await? })
    }

    /// Another connection.
    pub(crate) fn connect(&self, settings: Settings) -> Result<Client> {
        self.runtime.block_on(connect(self.serve.socket(), settings))
    }
}

pub(crate) fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

pub(crate) async fn connect(socket: PathBuf, settings: Settings) -> Result<Client> {
    let mut endpoint = Endpoint::from_static("http://localhost");
    if settings == Settings::Tuned {
        endpoint = endpoint.max_frame_size(1 << 20);
    }
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(socket).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    Ok(Client::new(endpoint.connect_with_connector(connector).await?))
}

/// A program on pipes.
pub(crate) fn argv(args: &[&str]) -> pb::Spec {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let argv = pb::Argv { args, raw_args: Vec::new() };
    pb::Spec { program: Some(spec::Program::Argv(argv)), ..pb::Spec::default() }
}

/// The same on a terminal.
pub(crate) fn on_terminal(spec: pb::Spec) -> pb::Spec {
    pb::Spec { io: Some(spec::Io::Terminal(pb::Terminal::default())), ..spec }
}

pub(crate) fn until(until: wait_for::Until) -> pb::WaitFor {
    pb::WaitFor { until: Some(until), timeout: None }
}

pub(crate) fn until_exit() -> pb::WaitFor {
    until(wait_for::Until::Exit(wait_for::Exit {}))
}

/// Starts a process; answered when it runs, or when what is waited for has come. Its id.
pub(crate) async fn start(
    client: &Client,
    spec: pb::Spec,
    wait: Option<pb::WaitFor>,
) -> Result<String> {
    let request = pb::StartRequest { spec: Some(spec), wait, ..pb::StartRequest::default() };
    let response = client.clone().start(request).await?.into_inner();
    Ok(response.process.ok_or("an answer without process")?.id)
}

/// Starts a process and waits for its end, in one call.
pub(crate) async fn run(client: &Client, spec: pb::Spec) -> Result<()> {
    let wait = Some(until_exit());
    let request = pb::StartRequest { spec: Some(spec), wait, ..pb::StartRequest::default() };
    let response = client.clone().start(request).await?.into_inner();
    let exit = response.process.and_then(|process| process.exit);
    match exit.as_ref().and_then(|exit| exit.code) {
        Some(0) => Ok(()),
        _ => Err(format!("something ended with {exit:?}").into()),
    }
}

/// Starts processes that live until the yard is gone, and waits for their first lines.
pub(crate) async fn fill(
    client: &Client,
    program: &str,
    count: usize,
    line: Option<&str>,
) -> Result<()> {
    const AT_ONCE: usize = 16;
    let args: Vec<&str> = [program, "idle"].into_iter().chain(line).collect();
    let wait =
        line.map(|line| until(wait_for::Until::Output(wait_for::Output { regex: line.into() })));
    let several = (0..AT_ONCE).map(async |part| {
        for _ in (part..count).step_by(AT_ONCE) {
            start(client, argv(&args), wait.clone()).await?;
        }
        Result::Ok(())
    });
    try_join_all(several).await?;
    Ok(())
}

pub(crate) async fn kill(client: &Client, id: String) -> Result<()> {
    let target = Some(pb::kill_request::Target::Id(id));
    client
        .clone()
        .kill(pb::KillRequest { target, force: true, ..pb::KillRequest::default() })
        .await?;
    Ok(())
}

pub(crate) async fn follow(client: &Client, id: &str) -> Result<Streaming<pb::FollowResponse>> {
    let request = pb::FollowRequest { id: id.into(), ..pb::FollowRequest::default() };
    Ok(client.clone().follow(request).await?.into_inner())
}

/// What a follower may be told.
pub(crate) enum Told {
    Chunk(pb::Chunk),
    Gap(pb::Gap),
    End,
}

/// The next that a follower is told of a process.
pub(crate) async fn next(stream: &mut Streaming<pb::FollowResponse>) -> Result<Told> {
    loop {
        let response = stream.message().await?.ok_or("a follower was left without an end")?;
        match response.message.ok_or("a follower was told nothing")? {
            follow_response::Message::Chunk(chunk) => return Ok(Told::Chunk(chunk)),
            follow_response::Message::Gap(gap) => return Ok(Told::Gap(gap)),
            follow_response::Message::End(_) => return Ok(Told::End),
            follow_response::Message::Heartbeat(_) => {}
        }
    }
}
