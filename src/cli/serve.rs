//! `procyard serve`: the keeper, and a server that it starts.

use std::error::Error;
use std::os::unix::ffi::OsStringExt;

use super::options::Options;
use crate::config::Listen;
use crate::keeper::{Ground, Servers, end_what_was_left};
use crate::process::Launch;
use crate::store::{StateDir, Store};

/// Runs the supervisor until SIGTERM or ^C.
#[derive(clap::Args)]
pub(super) struct Serve {
    /// Where to listen: unix:///path, unix-abstract:name or tcp://127.0.0.1:port. May be repeated.
    /// The default is $XDG_RUNTIME_DIR/procyard.sock, for root /run/procyard.sock.
    #[arg(long, value_name = "ADDRESS", env = "PROCYARD_LISTEN", value_delimiter = ',')]
    listen: Vec<Listen>,
    #[command(flatten)]
    pub(super) options: Options,
}

impl Serve {
    pub(super) fn run(mut self) -> Result<(), Box<dyn Error>> {
        let ground = Ground::take()?;
        if self.listen.is_empty() {
            self.listen.push(Listen::usual());
        }
        // Held as long as the keeper lives, whichever server it has.
        let state_dir = StateDir::claim(&self.options.state_dir())?;
        end_what_was_left(state_dir.path());
        Store::check(&state_dir)?;
        let (mut listeners, mut files, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for listen in &self.listen {
            let opened = listen.open().map_err(|error| format!("{listen}: {error}"))?;
            places.push(opened.place);
            listeners.push(opened.socket);
            files.extend(opened.file);
        }
        let launch = Box::new(server_launch(listeners.len(), &self.options)?);
        let all: Vec<_> = places.iter().map(Listen::to_string).collect();
        let hint = places.iter().find_map(how_to_try).unwrap_or_default();
        tracing::info!("listening on {}{hint}", all.join(", "));
        let place = state_dir.path().into();
        Ok(ground.keep(Servers::Start { launch, listeners, state_dir: place })?)
    }
}

/// A command that speaks to the server, if it can reach this place.
fn how_to_try(place: &Listen) -> Option<String> {
    let address = match place {
        Listen::Tcp(address) => address.to_string(),
        Listen::Unix(_) => place.to_string(),
        Listen::Abstract(_) => return None,
    };
    let call = "procyard.v1.ProcessService/GetServerInfo";
    Some(format!("; try: grpcurl -plaintext {address} {call}"))
}

/// The server is this binary again, with this environment.
fn server_launch(listeners: usize, options: &Options) -> Result<Launch, Box<dyn Error>> {
    let own = std::env::current_exe()?.into_os_string();
    let mut args = vec![own, "server".into(), "--listeners".into(), listeners.to_string().into()];
    args.extend(options.to_args());
    let mut launch = Launch::new("server", args.into_iter().map(OsStringExt::into_vec));
    let own = std::env::vars_os();
    launch.env = own.map(|(name, value)| (name.into_vec(), value.into_vec())).collect();
    Ok(launch)
}
