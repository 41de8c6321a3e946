//! TLS: what is spoken over TCP when there is a certificate.
//!
//! Owns the server's certificate, whom clients' certificates must come from, and the handshake. What
//! somebody with a certificate may do is said by `credentials`. Files are read again when they have
//! changed: new ones count from the next handshake on.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{Error as TlsError, InconsistentKeys, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

use super::credentials::Shown;
use super::fresh::{Content, Fresh, Meaning};

/// What is spoken within, the best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where certificates are, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The server's own, and those between it and its root.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Whom clients' certificates must come from; none: clients are not asked for one.
    pub client_ca: Option<PathBuf>,
}

/// How TLS is spoken now.
#[derive(Debug)]
pub(super) struct Tls(Fresh<Config>);

/// None: the files cannot be used.
#[derive(Debug, Default)]
struct Config(Option<Arc<ServerConfig>>);

impl Tls {
    pub(super) fn new(files: &Files) -> Tls {
        let Files { certificate, key, client_ca } = files.clone();
        // One that is gone is being replaced: the former counts until then.
        Tls(Fresh::new([certificate, key].into_iter().chain(client_ca).collect(), config))
    }

    /// Why the files cannot be used.
    pub(super) fn check(&self) -> Result<(), String> {
        self.0.check()
    }

    /// Shakes hands. Takes as long as the client does.
    pub(super) async fn accept<Io>(&self, io: Io) -> io::Result<(TlsStream<Io>, Shown)>
    where
        Io: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.0.get().0.clone();
        let config = config.ok_or_else(|| io::Error::other("there is no certificate"))?;
        let stream = TlsAcceptor::from(config).accept(io).await?;
        let certificates = stream.get_ref().1.peer_certificates();
        let shown = match certificates.and_then(|certificates| certificates.first()) {
            Some(certificate) => Shown::Certificate(name(certificate)),
            None => Shown::Nothing,
        };
        Ok((stream, shown))
    }
}

fn config(files: &[Content]) -> Result<Meaning<Config>, String> {
    let [own, key, client_ca @ ..] = files else { return Err("there is no certificate".into()) };
    let chain = certificates(own)?;
    let private = private_key(key)?;
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(match client_ca.first() {
            Some(authority) => clients(authority, provider)?,
            None => WebPkiClientVerifier::no_client_auth(),
        });
    let fitting = config.with_single_cert(chain, private);
    let mut config = fitting.map_err(|error| match error {
        TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            key.wrong(format!("it is not the key of the certificate in {}", own.name()))
        }
        error => key.wrong(format!("with its certificate: {error}")),
    })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    // A session that goes on would bring a certificate that was looked at then, not now.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    let words = format!("the certificate in {} is in use", own.name());
    Ok(Meaning { value: Config(Some(Arc::new(config))), words, problems: Vec::new() })
}

fn certificates(file: &Content) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(&file.bytes).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| file.wrong(error))?;
    if found.is_empty() { Err(file.wrong("there is no certificate in it")) } else { Ok(found) }
}

/// A key that others may read is nobody's. Those of root may be read by a group, which is how a
/// volume of Kubernetes gives a secret to a user.
fn private_key(file: &Content) -> Result<PrivateKeyDer<'static>, String> {
    let others = if file.file.uid() == 0 { 0o037 } else { 0o077 };
    if file.file.mode() & others != 0 {
        return Err(file.wrong("others may use this private key; use chmod 600"));
    }
    PrivateKeyDer::from_pem_slice(&file.bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => file.wrong("there is no private key in it"),
        error => file.wrong(error),
    })
}

/// Looks at the certificates of clients. Who has none may have a token.
fn clients(
    authority: &Content,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority)? {
        roots.add(certificate).map_err(|error| authority.wrong(error))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
    verifier.allow_unauthenticated().build().map_err(|error| authority.wrong(error))
}

/// Whom a certificate is for: its first URI, else its first host name. Subjects are for people.
fn name(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let mut uris = certificate.valid_uri_names();
    uris.next().or_else(|| certificate.valid_dns_names().next()).map(str::to_owned)
}
