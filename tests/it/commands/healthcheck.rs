//! `procyard healthcheck`.

use std::fs::{self, File};
use std::os::unix::net::UnixListener;

use super::{failed, printed};
use crate::support::callers::listens_at;
use crate::support::certificates::Authority;
use crate::support::service::TestService;
use crate::support::tty::Tty;

#[test]
fn a_service_that_serves_is_healthy() {
    let service = TestService::start();
    let mut tty = Tty::start(service.procyard(&["healthcheck", "--timeout", "1m"]));
    tty.expect("SERVING");
    assert_eq!(tty.ended(), 0);
    assert_eq!(printed(service.procyard(&["healthcheck", "--timeout", "1m"])), "SERVING\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_no_credentials_are_needed() {
    let (authority, files) = (Authority::new(), tempfile::tempdir().unwrap());
    let (certificate, key) = authority.sign(&["localhost"]).write(files.path());
    let (ca, log) = (files.path().join("ca.pem"), files.path().join("log"));
    fs::write(&ca, &authority.pem).unwrap();
    let service = TestService::start_with(|command| {
        command.args(["--listen", "tcp://127.0.0.1:0"]).arg("--tls-client-ca").arg(&ca);
        command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
        command.env("RUST_LOG", "info").env("NO_COLOR", "1").stderr(File::create(&log).unwrap());
    });
    let address = format!("tcp://{}", listens_at(&log).await);
    let ask = |what: &[&str], ca: &str| {
        let place = ["--server", &address, "--tls-ca", ca];
        let mut command = service.procyard(&[what, &place].concat());
        // Whoever runs the probe has no file of a token either.
        command.env("PROCYARD_TLS_SERVER_NAME", "localhost").env("HOME", "/nowhere");
        command.env_remove("XDG_STATE_HOME");
        command
    };
    let (ca, check) = (ca.to_str().unwrap(), ["healthcheck", "--timeout", "1m"]);
    assert_eq!(printed(ask(&check, ca)), "SERVING\n");
    // Anything else needs some.
    let (_, said) = failed(ask(&["info"], ca));
    assert!(said.contains("PROCYARD_TOKEN"), "{said}");
    // And the server must be who it says it is.
    let other = files.path().join("other.pem");
    fs::write(&other, Authority::new().pem).unwrap();
    let (code, said) = failed(ask(&check, other.to_str().unwrap()));
    assert_eq!(code, 1);
    assert!(said.contains("cannot reach tcp://127.0.0.1:"), "{said}");
}

#[test]
fn one_that_is_away_or_does_not_answer_is_not() {
    let mut service = TestService::start();
    let away = service.procyard(&["healthcheck"]);
    let waiting = service.procyard(&["healthcheck", "--timeout", "50ms"]);
    service.stop();
    let (code, said) = failed(away);
    assert_eq!(code, 1);
    assert!(said.contains("nobody serves at"), "{said}");
    // Somebody listens there who never says a word.
    let _ = fs::remove_file(service.socket());
    let _silent = UnixListener::bind(service.socket()).unwrap();
    let (code, said) = failed(waiting);
    assert_eq!(code, 1);
    assert!(said.contains("has not answered within 50ms"), "{said}");
}
