//! `procyard serve`: the keeper, and a server that it starts.

use std::error::Error;
use std::os::unix::ffi::OsStringExt;

use crate::config::Listen;
use crate::keeper::{Ground, Servers};
use crate::process::Launch;

/// Runs the supervisor until SIGTERM or ^C.
#[derive(clap::Args)]
pub(super) struct Serve {
    /// Where to listen: unix:///path, unix-abstract:name or tcp://127.0.0.1:port. May be repeated.
    /// The default is $XDG_RUNTIME_DIR/procyard.sock, for root /run/procyard.sock.
    #[arg(long, value_name = "ADDRESS", env = "PROCYARD_LISTEN", value_delimiter = ',')]
    listen: Vec<Listen>,
}

impl Serve {
    pub(super) fn run(mut self) -> Result<(), Box<dyn Error>> {
        let ground = Ground::take()?;
        if self.listen.is_empty() {
            self.listen.push(Listen::usual());
        }
        let (mut listeners, mut files) = (Vec::new(), Vec::new());
        for listen in &self.listen {
            let (socket, file) = listen.open().map_err(|error| format!("{listen}: {error}"))?;
            tracing::info!("listening on {listen}");
            listeners.push(socket);
            files.extend(file);
        }
        let launch = Box::new(server_launch(listeners.len())?);
        Ok(ground.keep(Servers::Start { launch, listeners })?)
    }
}

/// The server is this binary again, with this environment.
fn server_launch(listeners: usize) -> Result<Launch, Box<dyn Error>> {
    let listeners = listeners.to_string();
    let own = std::env::current_exe()?.into_os_string().into_vec();
    let args = [&own[..], b"server", b"--listeners", listeners.as_bytes()];
    let mut launch = Launch::new("server", args);
    let own = std::env::vars_os();
    launch.env = own.map(|(name, value)| (name.into_vec(), value.into_vec())).collect();
    Ok(launch)
}
