//! TLS, and who is known by a certificate.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use procyard::grpc::pb;
use procyard::grpc::pb::process_service_client::ProcessServiceClient;
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::{
    Everywhere, INFO, WEB, bad_credentials, hung_up, info, info_by_hand, no_credentials,
    refused_start_with,
};
use crate::support::certificates::{Authority, Signed};
use crate::support::service::*;
use crate::support::transcript::own_memory;
use crate::support::{http2, soon, until};

/// A service that speaks TLS, with whom it trusts and the files it reads.
struct Secure {
    everywhere: Everywhere,
    authority: Authority,
    files: TempDir,
}

impl Secure {
    /// One that knows clients by certificates of the same authority.
    async fn start(options: &[&str]) -> Secure {
        let (authority, files) = (Authority::new(), tempfile::tempdir().unwrap());
        let (certificate, key) = authority.sign(&["localhost"]).write(files.path());
        let client_ca = files.path().join("ca.pem");
        fs::write(&client_ca, &authority.pem).unwrap();
        let everywhere = Everywhere::start_with("127.0.0.1:0", |command| {
            command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
            command.arg("--tls-client-ca").arg(client_ca).args(options);
        })
        .await;
        Secure { everywhere, authority, files }
    }

    async fn channel(&self, own: Option<&Signed>) -> Channel {
        self.try_channel(&self.authority, own).await.unwrap()
    }

    async fn try_channel(
        &self,
        authority: &Authority,
        own: Option<&Signed>,
    ) -> Result<Channel, tonic::transport::Error> {
        let root = Certificate::from_pem(&authority.pem);
        let mut tls = ClientTlsConfig::new().ca_certificate(root).domain_name("localhost");
        if let Some(Signed { certificate, key }) = own {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", self.everywhere.tcp)).unwrap();
        soon(endpoint.tls_config(tls).unwrap().connect()).await
    }

    /// What somebody with a certificate gets, be it in the handshake.
    async fn info(&self, own: &Signed) -> Result<pb::GetServerInfoResponse, tonic::Status> {
        match self.try_channel(&self.authority, Some(own)).await {
            Ok(channel) => info(&channel, None).await,
            Err(error) => Err(tonic::Status::unavailable(error.to_string())),
        }
    }

    /// A client of the service, which speaks this.
    fn client(&self, protocol: &[u8]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.pem.as_bytes()).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    }

    /// A connection that has shaken hands, to speak this.
    async fn by_hand(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        let connector = TlsConnector::from(self.client(protocol));
        let io = self.everywhere.tcp().await;
        soon(connector.connect("localhost".try_into().unwrap(), io)).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tcp_tls_is_spoken_and_unix_sockets_are_as_ever() {
    let secure = Secure::start(&["--no-auth-loopback"]).await;
    let id = info(&secure.channel(None).await, None).await.unwrap().instance_id;
    let everywhere = &secure.everywhere;
    for socket in [everywhere.unix().await, everywhere.abstract_socket()] {
        assert_eq!(info_by_hand(socket, "localhost").await.instance_id, id);
    }
    // Its certificate says where a name leads, so any is taken.
    let io = secure.by_hand(b"h2").await;
    assert_eq!(info_by_hand(io, "example.org").await.instance_id, id);
    let mut io = secure.by_hand(b"http/1.1").await;
    let nothing = http2::prefixed(&pb::GetServerInfoRequest {});
    let head = format!(
        "POST {INFO} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\nconnection: close\r\n{WEB}\r\n",
        nothing.len()
    );
    http2::send(&mut io, &[head.as_bytes(), &nothing].concat()).await;
    let mut answer = Vec::new();
    let _ = soon(tokio::io::AsyncReadExt::read_to_end(&mut io, &mut answer)).await;
    assert!(String::from_utf8_lossy(&answer).contains("grpc-status:0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_tls_is_refused_and_logged() {
    let secure = Secure::start(&["--no-auth-loopback"]).await;
    let mut plain = secure.everywhere.tcp().await;
    http2::send(&mut plain, &http2::hello()).await;
    hung_up(plain).await;
    until("plaintext is logged", || secure.everywhere.log().contains("corrupt message")).await;
    // A greeting of TLS 1.1.
    let algorithms = b"\0\x0a\0\x0d\0\x06\0\x04\x04\x03\x08\x04";
    let suites = b"\0\x04\x00\x2f\xc0\x13";
    let hello = [&b"\x03\x02"[..], &[7; 32], b"\0", suites, b"\x01\0", algorithms].concat();
    let length = hello.len() as u8;
    let record = [&[22, 3, 1, 0, length + 4, 1, 0, 0, length][..], &hello].concat();
    let mut old = secure.everywhere.tcp().await;
    http2::send(&mut old, &record).await;
    let mut answer = Vec::new();
    let _ = soon(tokio::io::AsyncReadExt::read_to_end(&mut old, &mut answer)).await;
    // A fatal alert: the version of the protocol.
    assert_eq!((answer[0], &answer[5..]), (21, &[2, 70][..]));
    info(&secure.channel(None).await, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_known_by_the_names_of_their_certificates() {
    let looks = "cert:look-*=viewer";
    let secure = Secure::start(&["--grant", looks, "--grant", "cert:spiffe://x/*=admin"]).await;
    let everyone = [
        (&["look-1"][..], false),
        (&["other", "look-1"], true),
        (&["look-1", "spiffe://x/y"], true),
        (&["spiffe://other/y", "look-1"], true),
    ];
    // The same after an accident.
    for n in 0..2 {
        for (names, may_start) in everyone {
            let channel = secure.channel(Some(&secure.authority.sign(names))).await;
            info(&channel, None).await.unwrap();
            let mut client = ProcessServiceClient::new(channel);
            let owner = if names[0].contains(':') { names[0] } else { "other" };
            let spec = pb::Spec { owner: owner.into(), ..argv(&["true"]) };
            let id = format!("{}-{n}-{}", names.len(), names[0].len());
            let started = soon(client.start(start(&id, spec))).await;
            match may_start {
                true => drop(started.unwrap()),
                false => assert_eq!(refusal(started), (Code::PermissionDenied, "ROLE".into())),
            }
        }
        secure.everywhere.service.kill_server();
        secure.everywhere.service.client().await;
    }
}

/// Whether it got no answer at all.
fn sent_away(answer: Result<pb::GetServerInfoResponse, tonic::Status>) -> bool {
    answer.is_err_and(|status| details(&status).error_info().is_none())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_does_not_count_is_refused_and_logged() {
    let secure = Secure::start(&[]).await;
    let logged = |what: &'static str| {
        let secure = &secure;
        async move { until(what, || secure.everywhere.log().contains(what)).await }
    };
    let expired = secure.authority.sign_expired(&["a"]);
    assert!(sent_away(secure.info(&expired).await));
    logged("certificate expired").await;
    let foreign = Authority::new().sign(&["a"]);
    assert!(sent_away(secure.info(&foreign).await));
    logged("invalid peer certificate: UnknownIssuer").await;
    let log = secure.everywhere.log();
    let from = format!("peer={}:", secure.everywhere.tcp.ip());
    let mut refused = log.lines().filter(|line| line.contains("invalid peer certificate"));
    assert!(refused.all(|line| line.contains(&from)), "{log}");
    // Right, but nobody's.
    for names in [&[][..], &["*.example.org"]] {
        let nobody = secure.authority.sign(names);
        assert_eq!(refusal(secure.info(&nobody).await), bad_credentials(), "{names:?}");
    }
    logged("a certificate without a name").await;
    assert_eq!(refusal(info(&secure.channel(None).await, None).await), no_credentials());
    secure.info(&secure.authority.sign(&["a"])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_certificate_may_have_a_token() {
    let tokens = tempfile::tempdir().unwrap();
    let path = tokens.path().join("tokens");
    let token = super::tokens::new_token(&path, &["ci"]);
    let secure = Secure::start(&["--token-file", path.to_str().unwrap()]).await;
    let without = secure.channel(None).await;
    info(&without, Some(&token)).await.unwrap();
    assert_eq!(refusal(info(&without, None).await), no_credentials());
    // A token that is wrong is not made good by a certificate.
    let with = secure.channel(Some(&secure.authority.sign(&["a"]))).await;
    info(&with, None).await.unwrap();
    assert_eq!(refusal(info(&with, Some("procyard_0_0")).await), bad_credentials());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_are_replaced_count_without_a_restart() {
    let secure = Secure::start(&["--no-auth-loopback"]).await;
    let before = secure.channel(None).await;
    info(&before, None).await.unwrap();
    let other = Authority::new();
    other.sign(&["localhost"]).write(secure.files.path());
    let after = secure.try_channel(&other, None).await.unwrap();
    info(&after, None).await.unwrap();
    assert!(secure.try_channel(&secure.authority, None).await.is_err());
    // Who was let in stays.
    info(&before, None).await.unwrap();
    // Whom clients come from is read again too.
    let theirs = Authority::new();
    fs::write(secure.files.path().join("ca.pem"), &theirs.pem).unwrap();
    let known = theirs.sign(&["a"]);
    let channel = secure.try_channel(&other, Some(&known)).await.unwrap();
    info(&channel, None).await.unwrap();
    // Nonsense changes nothing, nor does a file that is gone.
    let certificate = secure.files.path().join("cert.pem");
    for breaks in [|path: &Path| fs::write(path, "nonsense"), |path: &Path| fs::remove_file(path)] {
        breaks(&certificate).unwrap();
        info(&secure.try_channel(&other, None).await.unwrap(), None).await.unwrap();
    }
    let log = secure.everywhere.log();
    assert!(log.contains("cert.pem: there is no certificate in it"), "{log}");
    // A server that begins meanwhile serves whoever needs none.
    secure.everywhere.service.kill_server();
    info(&secure.everywhere.service.channel().await, None).await.unwrap();
    assert!(secure.try_channel(&other, None).await.is_err());
    secure.authority.sign(&["localhost"]).write(secure.files.path());
    info(&secure.channel(None).await, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_without_end_hold_up_nobody_and_are_let_go() {
    let secure = Secure::start(&["--no-auth-loopback"]).await;
    info(&secure.channel(None).await, None).await.unwrap();
    let server = secure.everywhere.service.server_pid();
    let before = own_memory(server);
    let mut sent_away = Vec::new();
    for n in 0..200 {
        let mut half = secure.everywhere.tcp().await;
        // Nothing, or the beginning of a record that never ends.
        http2::send(&mut half, &b"\x16\x03\x01\x02\x00\x01\x00"[..n % 8]).await;
        sent_away.push(tokio::spawn(hung_up(half)));
    }
    // Who has shaken hands is to say something too.
    for said in [&b""[..], &http2::PREFACE[..12], b"POST / HTTP/1.1\r\nhost: loc"] {
        for _ in 0..10 {
            let mut io = secure.by_hand(if said.len() > 12 { b"http/1.1" } else { b"h2" }).await;
            http2::send(&mut io, said).await;
            sent_away.push(tokio::spawn(hung_up(io)));
        }
    }
    let mut slow = secure.by_hand(b"http/1.1").await;
    http2::send(&mut slow, b"POST / HTTP/1.1\r\nx: ").await;
    let slow = tokio::spawn(soon(async move {
        while slow.write_all(b"x").await.is_ok() && slow.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }));
    info(&secure.channel(None).await, None).await.unwrap();
    let growth = own_memory(server).saturating_sub(before);
    assert!(growth < 32 << 20, "the server grew by {growth} bytes");
    for connection in sent_away {
        connection.await.unwrap();
    }
    slow.await.unwrap();
    info(&secure.channel(None).await, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_of_a_stranger_leave_a_caller_served() {
    const HANDSHAKES: usize = 200;
    const CALLS: usize = 3;
    let secure = Secure::start(&["--no-auth-loopback"]).await;
    let mut admin = secure.everywhere.unix().await;
    let call = |stream| http2::call(stream, "localhost", INFO, &pb::GetServerInfoRequest {});
    http2::send(&mut admin, &[http2::hello(), call(1)].concat()).await;
    http2::answer::<pb::GetServerInfoResponse>(&mut admin, 1).await;
    let mut greeting = Vec::new();
    let mut client =
        ClientConnection::new(secure.client(b"h2"), "localhost".try_into().unwrap()).unwrap();
    client.write_tls(&mut greeting).unwrap();
    let mut connections = Vec::new();
    for _ in 0..HANDSHAKES {
        connections.push(secure.everywhere.tcp().await);
    }

    // What is sent to a stopped server is there at once when it continues.
    let server = Pid::from_raw(secure.everywhere.service.server_pid()).unwrap();
    kill_process(server, Signal::STOP).unwrap();
    for io in &mut connections {
        http2::send(io, &greeting).await;
    }
    http2::send(&mut admin, &call(3)).await;
    kill_process(server, Signal::CONT).unwrap();
    for stream in (3..).step_by(2).take(CALLS) {
        http2::answer::<pb::GetServerInfoResponse>(&mut admin, stream).await;
        http2::send(&mut admin, &call(stream + 2)).await;
    }
    let has_answer =
        |io: &&TcpStream| matches!(recv(io, &mut [0; 9], RecvFlags::DONTWAIT), Ok((1.., _)));
    let answered = connections.iter().filter(has_answer).count();
    assert!(answered < HANDSHAKES / 2, "{answered} handshakes came before the calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_whose_files_are_wrong_is_refused_with_the_reason_and_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let (authority, files) = (Authority::new(), tempfile::tempdir().unwrap());
    let (certificate, key) = authority.sign(&["localhost"]).write(files.path());
    let write = |name: &str, text: &str, mode| -> PathBuf {
        let path = files.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let nonsense = write("nonsense", "nonsense", 0o600);
    let other = write("other.pem", &authority.sign(&["localhost"]).key, 0o600);
    let open = write("open.pem", &fs::read_to_string(&key).unwrap(), 0o644);
    let missing = files.path().join("missing");
    for (certificate, key, client_ca, wrong, why) in [
        (&missing, &key, &certificate, "missing", "No such file"),
        (&nonsense, &key, &certificate, "nonsense", "no certificate"),
        (&certificate, &nonsense, &certificate, "nonsense", "no private key"),
        (&certificate, &other, &certificate, "other.pem", "certificate"),
        (&certificate, &open, &certificate, "open.pem", "others may use this private key"),
        (&certificate, &key, &nonsense, "nonsense", "no certificate"),
    ] {
        let [certificate, key, client_ca] =
            [certificate, key, client_ca].map(|path| path.to_str().unwrap());
        let options = ["--tls-cert", certificate, "--tls-key", key, "--tls-client-ca", client_ca];
        let said = refused_start_with("tcp://127.0.0.1:0", &options).await;
        assert!(said.contains(wrong) && said.contains(why), "{wrong}: {said}");
    }
    for half in ["--tls-cert", "--tls-key", "--tls-client-ca"] {
        let said = refused_start_with("tcp://127.0.0.1:0", &[half, "/x"]).await;
        assert!(said.contains("--tls-"), "{said}");
    }
}
