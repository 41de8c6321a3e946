//! `procyard healthcheck`: whether the service can be called, for probes that run a command.

use std::process::ExitCode;
use std::time::Duration;

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::client::Remote;
use super::print;
use super::trouble::Trouble;
use super::words::{read_span, span};

/// Asks whether the service can be called: exits with 0 if it says SERVING, otherwise with 1.
#[derive(clap::Args)]
#[command(after_help = "It needs no credentials, but a certificate where TLS asks for one.

Examples:
  procyard healthcheck && echo fine
  procyard healthcheck --server tcp://localhost:7450 --tls-ca ca.pem --timeout 2s")]
pub(super) struct Healthcheck {
    /// How long the answer may take.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = read_span)]
    timeout: Duration,
    #[command(flatten)]
    remote: Remote,
}

impl Healthcheck {
    pub(super) async fn run(self) -> Result<ExitCode, Trouble> {
        let late = |_| {
            let waited = span(self.timeout);
            Trouble::new(format!("{} has not answered within {waited}", self.remote.place()))
        };
        let status = tokio::time::timeout(self.timeout, self.ask()).await.map_err(late)??;
        if status != ServingStatus::Serving {
            let said = status.as_str_name();
            return Err(Trouble::new(format!("{} says {said}", self.remote.place())));
        }
        print::line(status.as_str_name())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Asked once: who probes asks again by itself.
    async fn ask(&self) -> Result<ServingStatus, Trouble> {
        let mut client = HealthClient::new(self.remote.channel().await?);
        let everything = HealthCheckRequest { service: String::new() };
        Ok(client.check(everything).await?.into_inner().status())
    }
}
