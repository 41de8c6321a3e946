//! The options that say who is known, and what they may do.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;

use crate::config::Listen;
use crate::server::credentials::token_file::{self, TokenFile};
use crate::server::credentials::{Access, ChildGrant, Given, Who};
use crate::server::tls::Files;

/// Who is known, and what they may do.
#[derive(clap::Args, Clone)]
pub(in crate::cli) struct AccessOptions {
    /// A file of tokens that are known, as `procyard token new` writes it. It is read again when
    /// it has changed. The default is `tokens` in the state directory, unless there is
    /// --tls-client-ca.
    #[arg(long, value_name = "PATH", env = "PROCYARD_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// What somebody may do: a user on a Unix socket, as uid:1000=operator,owner=ci, or whose
    /// certificate has a name, as cert:*.example.org=viewer; the first that fits counts. The
    /// user of the supervisor and root are admins unless they are named; others who are not named
    /// are not known on Unix sockets, and a certificate that is not is an operator of what it owns.
    /// What follows is a role, owner=PATTERN, workspace=PATTERN and may=WHAT. Repeatable; in the environment separated by spaces.
    #[arg(long, value_name = "WHO=WHAT", env = "PROCYARD_GRANT", value_delimiter = ' ')]
    grant: Vec<Given>,
    /// The most that processes which procyard runs may do on its Unix sockets: a role with
    /// owner=PATTERN, workspace=PATTERN and may=WHAT as in --grant, or `none` to refuse them. A
    /// process gets what its user and this both allow. The default: what its user may.
    #[arg(long, value_name = "WHAT", env = "PROCYARD_GRANT_CHILDREN")]
    grant_children: Option<ChildGrant>,
    /// Lets whoever comes over loopback do everything.
    #[arg(long, env = "PROCYARD_NO_AUTH_LOOPBACK", value_parser = BoolishValueParser::new())]
    no_auth_loopback: bool,
    /// The server's certificate and those between it and its root, in PEM: TLS is then spoken on
    /// all TCP addresses. It is read again when it has changed.
    #[arg(long, value_name = "PATH", env = "PROCYARD_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key, which nobody else may read; a group may if it is root's file.
    #[arg(long, value_name = "PATH", env = "PROCYARD_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Whom certificates of clients come from, in PEM. A client may have a token instead.
    #[arg(long, value_name = "PATH", env = "PROCYARD_TLS_CLIENT_CA", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl AccessOptions {
    /// The same for the server that is started.
    pub(super) fn for_server(&self) -> Access {
        let files = self.tls_cert.clone().zip(self.tls_key.clone());
        Access {
            token_file: self.token_file.clone(),
            given: self.grant.clone(),
            children: self.grant_children.clone(),
            open_loopback: self.no_auth_loopback,
            tls: files.map(|(certificate, key)| Files {
                certificate,
                key,
                client_ca: self.tls_client_ca.clone(),
            }),
        }
    }

    /// Files of tokens, keys and certificates.
    pub(super) fn named_files(&self, state_dir: &Path) -> Vec<PathBuf> {
        let chosen = [&self.token_file, &self.tls_cert, &self.tls_key, &self.tls_client_ca];
        let mut files = token_file::own_files(state_dir);
        files.extend(chosen.into_iter().flatten().cloned());
        files
    }

    /// The same as arguments.
    pub(super) fn to_args(&self) -> Vec<OsString> {
        let AccessOptions {
            token_file,
            grant,
            grant_children,
            no_auth_loopback,
            tls_cert,
            tls_key,
            tls_client_ca,
        } = self;
        let paths = [
            ("--token-file", token_file),
            ("--tls-cert", tls_cert),
            ("--tls-key", tls_key),
            ("--tls-client-ca", tls_client_ca),
        ];
        let mut args = Vec::new();
        for (name, path) in paths {
            args.extend(path.iter().flat_map(|path| [name.into(), path.into()]));
        }
        args.extend(grant.iter().flat_map(|given| ["--grant".into(), given.to_string().into()]));
        let children = grant_children.iter();
        args.extend(children.flat_map(|most| ["--grant-children".into(), most.to_string().into()]));
        args.extend(no_auth_loopback.then(|| "--no-auth-loopback".into()));
        args
    }

    /// Whether the files can be used and these places listened on; or why not.
    pub(in crate::cli) fn check(&self, listen: &[Listen]) -> Result<(), String> {
        if self.grant_children.is_some() && self.no_auth_loopback {
            return Err(
                "cannot use --grant-children with --no-auth-loopback: child processes could \
                        connect over TCP as admins; use tokens over TCP"
                    .into(),
            );
        }
        self.for_server().check()?;
        for doubt in self.doubts(listen) {
            tracing::warn!("{doubt}");
        }
        let Some(far) = listen.iter().find(|place| place.is_beyond_loopback()) else {
            return Ok(());
        };
        if self.token_file.is_none() && self.tls_client_ca.is_none() {
            return Err(format!(
                "{far}: without credentials procyard listens on loopback only; use --token-file \
                 with a file that `procyard token new` makes, best with --tls-cert and --tls-key, \
                 or --tls-client-ca"
            ));
        }
        if self.tls_cert.is_none() {
            tracing::warn!(
                "tokens can be read on their way to {far}: use --tls-cert and --tls-key"
            );
        }
        Ok(())
    }

    /// What is allowed, and hardly meant.
    fn doubts(&self, listen: &[Listen]) -> Vec<&'static str> {
        let tcp = listen.iter().any(|place| matches!(place, Listen::Tcp(_)));
        let far = listen.iter().any(Listen::is_beyond_loopback);
        let for_certificates =
            self.grant.iter().any(|given| matches!(given.who, Who::Certificate(_)));
        let tokens = self.token_file.clone().and_then(|path| TokenFile::named(path).list().ok());
        let nobody = tokens.is_some_and(|tokens| tokens.is_empty()) && self.tls_client_ca.is_none();
        let all = [
            (
                self.no_auth_loopback && tcp,
                "--no-auth-loopback: every user and program of this machine may do everything",
            ),
            (
                for_certificates && self.tls_client_ca.is_none(),
                "--grant cert:… without --tls-client-ca: nobody is asked for a certificate",
            ),
            (far && nobody, "the token file is empty: nobody from elsewhere is known"),
        ];
        all.into_iter().filter(|(is, _)| *is).map(|(_, doubt)| doubt).collect()
    }

    /// Settles which tokens count, when the state directory is there. Where clients over TCP would
    /// have nothing to show, a token is made for them; returns where it is.
    pub(in crate::cli) fn settle(
        &mut self,
        listen: &[Listen],
        state_dir: &Path,
    ) -> Result<Option<PathBuf>, String> {
        if self.token_file.is_some() || self.tls_client_ca.is_some() {
            return Ok(None);
        }
        let file = TokenFile::default_in(state_dir);
        file.protect()?;
        self.token_file = Some(file.path().into());
        let tcp = listen.iter().any(|place| matches!(place, Listen::Tcp(_)));
        let wanted = tcp && !self.no_auth_loopback;
        wanted.then(|| token_file::local(state_dir)).transpose()
    }

    /// Whether TLS is spoken over TCP.
    pub(in crate::cli) fn has_tls(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// Whether clients may show certificates.
    pub(in crate::cli) fn has_client_ca(&self) -> bool {
        self.tls_client_ca.is_some()
    }

    /// Whether nothing needs to be shown over loopback.
    pub(in crate::cli) fn is_open(&self) -> bool {
        self.no_auth_loopback
    }

    /// Whether other users are known on Unix sockets.
    pub(in crate::cli) fn knows_others(&self) -> bool {
        let own = [0, rustix::process::geteuid().as_raw()];
        self.grant.iter().any(|given| matches!(given.who, Who::User(uid) if !own.contains(&uid)))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        access: AccessOptions,
    }

    fn parsed(args: &[&str]) -> AccessOptions {
        Cli::try_parse_from([&["procyard"], args].concat()).unwrap().access
    }

    #[test]
    fn a_server_is_told_all_that_was_asked_for() {
        let all = parsed(&[
            "--token-file",
            "/t",
            "--tls-cert=/c",
            "--tls-key=/k",
            "--tls-client-ca=/a",
            "--grant=uid:1=viewer",
            "--grant=cert:*=operator,owner=a",
            "--grant-children=viewer,owner=b",
            "--no-auth-loopback",
        ]);
        let args = all.to_args();
        let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        let told = parsed(&args).for_server();
        assert_eq!(told, all.for_server());
        assert_eq!(told.given.len(), 2);
        assert!(told.tls.is_some_and(|files| files.client_ca.is_some()));
    }

    #[test]
    fn beyond_loopback_credentials_are_asked_for() {
        let far: Vec<Listen> = vec!["tcp://0.0.0.0:1".parse().unwrap()];
        let near: Vec<Listen> = vec!["tcp://127.0.0.1:1".parse().unwrap()];
        let open = parsed(&["--no-auth-loopback"]);
        for options in [parsed(&[]), open, parsed(&["--grant=uid:1=admin"])] {
            assert!(options.check(&near).is_ok());
            let refused = options.check(&far).unwrap_err();
            assert!(refused.contains("tcp://0.0.0.0:1: without credentials"), "{refused}");
        }
    }

    #[test]
    fn grant_of_children_needs_credentials_over_loopback() {
        let check = |args: &[&str]| parsed(args).check(&[]);
        let refused = check(&["--grant-children=none", "--no-auth-loopback"]).unwrap_err();
        assert!(
            refused.starts_with("cannot use --grant-children with --no-auth-loopback: "),
            "{refused}"
        );
        assert_eq!(check(&["--grant-children=none"]), Ok(()));
    }

    #[test]
    fn what_is_hardly_meant_is_told() {
        let far: Vec<Listen> = vec!["tcp://0.0.0.0:1".parse().unwrap()];
        let unix: Vec<Listen> = vec!["unix:///p".parse().unwrap()];
        let empty = tempfile::NamedTempFile::new().unwrap();
        let file = format!("--token-file={}", empty.path().display());
        for args in [&["--no-auth-loopback"][..], &["--grant=cert:a=viewer"], &[&file]] {
            assert_eq!(parsed(args).doubts(&far).len(), 1, "{args:?}");
        }
        for args in [&["--no-auth-loopback"][..], &["--grant=uid:1=viewer"], &[&file]] {
            assert!(parsed(args).doubts(&unix).is_empty(), "{args:?}");
        }
    }

    #[test]
    fn a_token_is_made_where_clients_would_have_nothing_to_show() {
        let directory = tempfile::tempdir().unwrap();
        let tcp: Vec<Listen> = vec!["tcp://127.0.0.1:1".parse().unwrap()];
        let made = |args: &[&str], listen: &[Listen]| {
            parsed(args).settle(listen, directory.path()).unwrap().is_some()
        };
        assert!(!made(&[], &["unix:///p".parse().unwrap()]));
        assert!(!made(&["--no-auth-loopback"], &tcp));
        assert!(!made(&["--token-file=/t"], &tcp));
        assert!(!made(&["--tls-cert=/c", "--tls-key=/k", "--tls-client-ca=/a"], &tcp));
        assert!(!directory.path().join("tokens").exists());
        assert!(made(&[], &tcp) && made(&["--tls-cert=/c", "--tls-key=/k"], &tcp));
    }
}
