//! `procyard serve`: the keeper, and a server that it starts.

use std::error::Error;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use super::options::Options;
use crate::config::{Listen, Reach};
use crate::keeper::{Ground, Servers, end_what_was_left};
use crate::process::Launch;
use crate::store::{StateDir, Store};

/// Runs the supervisor until SIGTERM or ^C.
#[derive(clap::Args)]
pub(super) struct Serve {
    /// Where to listen: unix:///path, unix-abstract:name or tcp://127.0.0.1:port. May be repeated.
    /// Other addresses than loopback need credentials: --token-file or --tls-client-ca.
    /// The default is $XDG_RUNTIME_DIR/procyard.sock, for root /run/procyard.sock.
    #[arg(long, value_name = "ADDRESS", env = "PROCYARD_LISTEN", value_delimiter = ',')]
    listen: Vec<Listen>,
    #[command(flatten)]
    pub(super) options: Options,
}

impl Serve {
    pub(super) fn run(mut self) -> Result<(), Box<dyn Error>> {
        let ground = Ground::take()?;
        self.options.resolve()?;
        if self.listen.is_empty() {
            self.listen.push(Listen::usual());
        }
        self.options.access.check(&self.listen)?;
        // Held as long as the keeper lives, whichever server it has.
        let state_dir = StateDir::claim(&self.options.state_dir())?;
        end_what_was_left(state_dir.path());
        Store::check(&state_dir)?;
        let token = self.options.access.settle(&self.listen, state_dir.path())?;
        let reach = if self.options.access.knows_others() { Reach::Everyone } else { Reach::Owner };
        let (mut listeners, mut files, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for listen in &self.listen {
            let opened = listen.open(reach).map_err(|error| format!("{listen}: {error}"))?;
            places.push(opened.place);
            listeners.push(opened.socket);
            files.extend(opened.file);
        }
        let launch = Box::new(server_launch(listeners.len(), &self.options)?);
        let all: Vec<_> = places.iter().map(Listen::to_string).collect();
        let known = token.iter().map(|path| format!("; the token for it is in {}", path.display()));
        let known: String = known.collect();
        let hint = places.iter().find_map(|place| self.how_to_try(place, token.as_deref()));
        tracing::info!("listening on {}{known}{}", all.join(", "), hint.unwrap_or_default());
        let place = state_dir.path().into();
        Ok(ground.keep(Servers::Start { launch, listeners, state_dir: place })?)
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
