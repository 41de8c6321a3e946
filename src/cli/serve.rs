//! `procyard serve`: the keeper, and a server that it starts.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use super::options::{Options, state_dir_problem};
use crate::config::{Listen, Reach, SocketFile, inherited};
use crate::keeper::{Ground, Notify, Servers, end_what_was_left};
use crate::process::Launch;
use crate::store::{StateDir, Store};

/// Runs the supervisor until SIGTERM or ^C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  procyard serve
  procyard serve --listen tcp://127.0.0.1:7450 --metrics tcp://127.0.0.1:9464
  procyard serve --root ~/work --max-running 8")]
pub(super) struct Serve {
    /// Where to listen: unix:///path, unix-abstract:name or tcp://127.0.0.1:port. May be repeated.
    /// Other addresses than loopback need credentials: --token-file or --tls-client-ca.
    /// The default is $XDG_RUNTIME_DIR/procyard.sock, without that variable
    /// ~/.procyard/procyard.sock, for root /run/procyard.sock, unless a service manager has passed
    /// sockets.
    #[arg(long, value_name = "ADDRESS", env = "PROCYARD_LISTEN", value_delimiter = ',')]
    listen: Vec<Listen>,
    /// Where metrics for Prometheus are to be had, at /metrics, such as tcp://127.0.0.1:9464 or
    /// unix:///path. Whoever reaches the address sees numbers and names of methods, never ids,
    /// commands or output: no credentials are asked for. The default is nowhere.
    #[arg(long, value_name = "ADDRESS", env = "PROCYARD_METRICS")]
    metrics: Option<Listen>,
    #[command(flatten)]
    pub(super) options: Options,
}

impl Serve {
    pub(super) fn run(mut self) -> Result<(), Box<dyn Error>> {
        let (mut listeners, places) = inherited::take()?;
        let ground = Ground::take(&mut listeners)?;
        self.options.resolve()?;
        if self.listen.is_empty() && places.is_empty() {
            self.listen.push(Listen::usual());
        }
        let all = [&places[..], &self.listen].concat();
        self.options.access.check(&all)?;
        // Held as long as the keeper lives, whichever server it has.
        let path = self.options.state_dir();
        let state_dir = StateDir::claim(&path, &self.options.named_files())
            .map_err(|error| state_dir_problem(&path, &error))?;
        end_what_was_left(state_dir.path())?;
        Store::check(&state_dir)?;
        let token = self.options.access.settle(&all, state_dir.path())?;
        let mut sockets = Sockets { all: listeners, places, metrics: None, files: Vec::new() };
        let launch = Box::new(self.open(&mut sockets)?);
        let listening = self.tell(&sockets, token.as_deref());
        let notify = Notify::new(std::env::var_os("NOTIFY_SOCKET").as_deref(), &listening)
            .map_err(|error| format!("NOTIFY_SOCKET: {error}"))?;
        let Sockets { all: listeners, files: _kept, .. } = sockets;
        let place = state_dir.path().into();
        Ok(ground.keep(Servers::Start { launch, listeners, state_dir: place, notify })?)
    }

    /// Opens what was not inherited; returns how a server is started that has all of it.
    fn open(&self, sockets: &mut Sockets) -> Result<Launch, Box<dyn Error>> {
        let reach = if self.options.access.knows_others() { Reach::Everyone } else { Reach::Owner };
        for listen in &self.listen {
            let place = sockets.open(listen, reach)?;
            sockets.places.push(place);
        }
        let mut launch = server_launch(sockets.all.len(), &self.options)?;
        if let Some(metrics) = &self.metrics {
            sockets.metrics = Some(sockets.open(metrics, reach)?);
            launch.args.push("--metrics".into());
        }
        Ok(launch)
    }

    /// Tells where it listens, and how that is tried; returns the former.
    fn tell(&self, sockets: &Sockets, token: Option<&Path>) -> String {
        let places: Vec<_> = sockets.places.iter().map(Listen::to_string).collect();
        let listening = format!("listening on {}", places.join(", "));
        let known = token.map(|path| format!("; the token for it is in {}", path.display()));
        let hint = sockets.places.iter().find_map(|place| self.how_to_try(place, token));
        tracing::info!("{listening}{}{}", known.unwrap_or_default(), hint.unwrap_or_default());
        if let Some(place) = &sockets.metrics {
            tracing::info!("{}", metrics_on(place));
            if place.is_beyond_loopback() {
                tracing::warn!("metrics are open to whoever reaches {place}: nobody is asked who");
            }
        }
        listening
    }

    /// A command that speaks to the server, if it can reach this place.
    fn how_to_try(&self, place: &Listen, token: Option<&Path>) -> Option<String> {
        let access = &self.options.access;
        let token = token.map_or("$TOKEN".into(), |path| format!("$(cat {})", path.display()));
        let bearer = format!("-H \"authorization: Bearer {token}\" ");
        let (address, shown) = match place {
            Listen::Tcp(address) if access.is_open() => (address.to_string(), String::new()),
            // A certificate would do as well as a token.
            Listen::Tcp(address) if access.has_client_ca() => {
                (address.to_string(), "-cert client.pem -key client.key ".into())
            }
            Listen::Tcp(address) => (address.to_string(), bearer),
            Listen::Unix(_) => (place.to_string(), String::new()),
            Listen::Abstract(_) => return None,
        };
        let call = "procyard.v1.ProcessService/GetServerInfo";
        // Who has signed the certificate, and for which names, is not known here.
        let tls = access.has_tls() && matches!(place, Listen::Tcp(_));
        let how = if tls { "-cacert ca.pem -authority NAME" } else { "-plaintext" };
        Some(format!("; try: grpcurl {how} {shown}{address} {call}"))
    }
}

/// The sockets that a server is to have.
struct Sockets {
    /// Those for clients, and then that for metrics.
    all: Vec<OwnedFd>,
    /// Where clients find it.
    places: Vec<Listen>,
    /// Where metrics are.
    metrics: Option<Listen>,
    /// Removed when nobody listens any more.
    files: Vec<SocketFile>,
}

impl Sockets {
    /// Opens one more, and tells where it is.
    fn open(&mut self, listen: &Listen, reach: Reach) -> Result<Listen, String> {
        let opened = listen.open(reach).map_err(|error| format!("{listen}: {error}"))?;
        self.all.push(opened.socket);
        self.files.extend(opened.file);
        Ok(opened.place)
    }
}

/// The server is this binary again, with this environment but for what was said to this process.
fn server_launch(listeners: usize, options: &Options) -> Result<Launch, Box<dyn Error>> {
    let own = std::env::current_exe()?.into_os_string();
    let mut args = vec![own, "server".into(), "--listeners".into(), listeners.to_string().into()];
    args.extend(options.to_args());
    let mut launch = Launch::new("server", args.into_iter().map(OsStringExt::into_vec));
    let own = std::env::vars_os()
        .filter(|(name, _)| inherited::VARIABLES.iter().all(|not_for_it| name != not_for_it));
    launch.env = own.map(|(name, value)| (name.into_vec(), value.into_vec())).collect();
    Ok(launch)
}

/// Where metrics are.
fn metrics_on(place: &Listen) -> String {
    match place {
        Listen::Tcp(address) => format!("metrics on http://{address}/metrics"),
        Listen::Unix(_) | Listen::Abstract(_) => format!("metrics on {place}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        serve: Serve,
    }

    #[test]
    fn what_to_try_shows_what_is_asked_for() {
        let tries = |args: &[&str], place: &str, token: Option<&str>| {
            let serve = Cli::try_parse_from([&["procyard"], args].concat()).unwrap().serve;
            serve.how_to_try(&place.parse().unwrap(), token.map(Path::new)).unwrap_or_default()
        };
        let tcp = "tcp://127.0.0.1:7450";
        let local = tries(&[], tcp, Some("/s/token"));
        assert!(local.contains("-H \"authorization: Bearer $(cat /s/token)\" 127"), "{local}");
        assert!(tries(&["--token-file=/t"], tcp, None).contains("Bearer $TOKEN"));
        assert!(!tries(&["--no-auth-loopback"], tcp, None).contains("-H"));
        assert!(!tries(&[], "unix:///p", Some("/s/token")).contains("-H"));
        let tls = ["--tls-cert=/c", "--tls-key=/k", "--tls-client-ca=/a"];
        assert!(tries(&tls[..2], tcp, None).contains("grpcurl -cacert ca.pem -authority NAME -H"));
        assert!(tries(&tls, tcp, None).contains("-cert client.pem"));
        assert!(tries(&tls, "unix:///p", None).contains("-plaintext unix:"));
    }
}
