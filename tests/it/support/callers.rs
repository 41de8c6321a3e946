//! Callers that are known by tokens, and a service that knows them and tells what it logs.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use procyard::grpc::pb::process_service_client::ProcessServiceClient;
use procyard::server::credentials::tokens;
use tempfile::TempDir;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::service::{TestService, details, reason};
use super::{soon, until};

/// A client that shows a token, or nothing.
pub type TokenClient = ProcessServiceClient<InterceptedService<Channel, Bearer>>;

/// What it shows.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// A service with a file of tokens, that listens on TCP, too. On its own socket this user may do
/// everything.
pub struct KnowingService {
    pub service: TestService,
    files: TempDir,
    tokens: Vec<(String, String)>,
    pub tcp: SocketAddr,
}

impl KnowingService {
    /// Callers by their names, and what they may do.
    pub async fn start(callers: &[(&str, &str)]) -> KnowingService {
        KnowingService::start_logging("info", callers).await
    }

    /// The same, with this much in its log.
    pub async fn start_logging(level: &str, callers: &[(&str, &str)]) -> KnowingService {
        KnowingService::start_with(callers, |command| {
            command.env("RUST_LOG", level);
        })
        .await
    }

    /// The same, whose command was changed.
    pub async fn start_with(
        callers: &[(&str, &str)],
        change: impl FnOnce(&mut Command),
    ) -> KnowingService {
        let files = tempfile::tempdir().unwrap();
        let (mut tokens, mut lines) = (Vec::new(), String::new());
        for (name, grant) in callers {
            let new = tokens::new(name, &grant.parse().unwrap()).unwrap();
            lines.push_str(&new.line);
            tokens.push(((*name).to_owned(), new.token));
        }
        let (file, log) = (files.path().join("tokens"), files.path().join("log"));
        std::fs::write(&file, lines).unwrap();
        let stderr = std::fs::File::create(&log).unwrap();
        let service = TestService::start_with(|command| {
            command.args(["--listen", "tcp://127.0.0.1:0"]).arg("--token-file").arg(&file);
            command.env("RUST_LOG", "info").env("NO_COLOR", "1").stderr(stderr);
            change(command);
        });
        let tcp = listens_at(&log).await;
        KnowingService { service, files, tokens, tcp }
    }

    /// The file of tokens.
    pub fn token_file(&self) -> std::path::PathBuf {
        self.files.path().join("tokens")
    }

    /// A caller by its name.
    pub async fn caller(&self, name: &str) -> TokenClient {
        self.showing(Some(&self.token(name))).await
    }

    /// The token of a caller.
    pub fn token(&self, name: &str) -> String {
        let found = self.tokens.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("nobody is called {name}")).1.clone()
    }

    /// Whoever shows this.
    pub async fn showing(&self, token: Option<&str>) -> TokenClient {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.tcp)).unwrap();
        let channel = soon(endpoint.connect()).await.unwrap();
        let token = token.map(|token| format!("Bearer {token}").parse().unwrap());
        ProcessServiceClient::with_interceptor(channel, Bearer(token))
    }

    /// The file of its log.
    pub fn log_path(&self) -> std::path::PathBuf {
        self.files.path().join("log")
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap()
    }

    /// The lines of the audit log, without times and the ids of calls, when there are so many about
    /// something.
    pub async fn audit(&self, about: &str, lines: usize) -> Vec<String> {
        let mut found = Vec::new();
        until(&format!("there are {lines} audit lines about {about:?}"), || {
            let log = self.log();
            let audit = log.lines().filter_map(|line| line.split_once("procyard::audit: "));
            let of_call =
                |line: &str| line.rsplit_once(" request=").map(|(line, _)| line.to_owned());
            let audit = audit.map(|(_, line)| of_call(line).unwrap_or_else(|| line.to_owned()));
            let audit = audit.map(|line| line.trim().to_owned());
            found = audit.filter(|line| line.contains(about)).collect();
            found.len() >= lines
        })
        .await;
        found
    }
}

/// Where a service listens over TCP, as it says in its log, for who comes over loopback.
pub async fn listens_at(log: &Path) -> SocketAddr {
    let mut tcp = None;
    until("it tells where it listens", || {
        let log = std::fs::read_to_string(log).unwrap();
        let places = log.rsplit_once("listening on ").map(|(_, places)| places);
        let rest = places.and_then(|places| places.split_once("tcp://")).map(|(_, rest)| rest);
        let end = |c: char| !c.is_ascii_digit() && !matches!(c, '.' | ':');
        tcp = rest.and_then(|rest| rest.split(end).next()?.parse::<SocketAddr>().ok());
        tcp.is_some()
    })
    .await;
    ([127, 0, 0, 1], tcp.unwrap().port()).into()
}

/// Code and reason of a refusal, as the audit log has them, or "ok" and what came.
pub fn outcome(answer: &Result<String, Status>) -> String {
    match answer {
        Ok(came) => format!("ok {came}").trim_end().to_owned(),
        Err(status) => format!("{:?} {}", status.code(), reason(status)),
    }
}

/// All of a refusal that a client sees.
pub fn all_of(status: &Status) -> (tonic::Code, String, Vec<u8>, Vec<String>) {
    let headers = status.metadata().clone().into_headers();
    // Every call has its own: drawn, so that it tells nothing either.
    let drawn = |name: &str| name == "date" || name == "x-request-id";
    let headers = headers.iter().filter(|(name, _)| !drawn(name.as_str()));
    let mut headers: Vec<_> = headers.map(|(name, value)| format!("{name}: {value:?}")).collect();
    headers.sort();
    // The details are there as they came, and can be read.
    assert!(details(status).error_info().is_some());
    (status.code(), status.message().to_owned(), status.details().to_vec(), headers)
}
