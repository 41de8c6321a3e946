//! Tokens: who has one is known, as long as the file says so.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use procyard::grpc::pb;
use tempfile::NamedTempFile;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::{
    Everywhere, WEB, bad_credentials, info, no_credentials, over_http1, refused_start_with,
};
use crate::support::callers::{KnowingService, listens_at};
use crate::support::service::*;
use crate::support::{binary, http2, skip, soon, until};

/// `procyard token` with these arguments.
fn token(path: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg("token").args(args).arg("--token-file").arg(path).output().unwrap()
}

/// A new token.
pub(super) fn new_token(path: &Path, args: &[&str]) -> String {
    let made = token(path, &[&["new"], args].concat());
    assert!(made.status.success(), "{made:?}");
    let stdout = String::from_utf8(made.stdout).unwrap();
    let one = stdout.trim_end().to_owned();
    assert_eq!(stdout, format!("{one}\n"));
    one
}

async fn channel(everywhere: &Everywhere) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", everywhere.tcp)).unwrap();
    soon(endpoint.connect()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_known_as_long_as_the_file_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens");
    let first = new_token(&path, &["first"]);
    // Beyond loopback too.
    let everywhere = Everywhere::start_with("0.0.0.0:0", |command| {
        command.arg("--token-file").arg(&path);
    })
    .await;
    let channel = channel(&everywhere).await;
    info(&channel, Some(&first)).await.unwrap();
    assert_eq!(refusal(info(&channel, None).await), no_credentials());
    let wrong = format!("{}0", &first[..first.len() - 1]);
    let wrong = if wrong == first { format!("{}1", &first[..first.len() - 1]) } else { wrong };
    assert_eq!(refusal(info(&channel, Some(&wrong)).await), bad_credentials());
    // Added in place, taken back by another file in its place.
    let second = new_token(&path, &["second"]);
    info(&channel, Some(&second)).await.unwrap();
    assert!(token(&path, &["revoke", "first"]).status.success());
    assert_eq!(refusal(info(&channel, Some(&first)).await), bad_credentials());
    info(&channel, Some(&second)).await.unwrap();
    // Lines count apart: nonsense in one neither lets anybody stay nor keeps others out.
    let good = fs::read_to_string(&path).unwrap();
    let third = new_token(&path, &["third"]);
    info(&channel, Some(&third)).await.unwrap();
    fs::write(&path, format!("nonsense\n{good}")).unwrap();
    assert_eq!(refusal(info(&channel, Some(&third)).await), bad_credentials());
    info(&channel, Some(&second)).await.unwrap();
    let log = everywhere.log();
    assert!(log.contains("tokens: line 1: a name, what it may do"), "{log}");
    assert!(log.contains("tokens: 1 tokens are known"), "{log}");
    fs::write(&path, &good).unwrap();
    info(&channel, Some(&second)).await.unwrap();
    // Without the file nobody is known.
    fs::remove_file(&path).unwrap();
    assert_eq!(refusal(info(&channel, Some(&second)).await), bad_credentials());
    fs::write(&path, &good).unwrap();
    // After an accident it is as before.
    everywhere.service.kill_server();
    everywhere.service.client().await;
    let channel = self::channel(&everywhere).await;
    info(&channel, Some(&second)).await.unwrap();
    assert_eq!(refusal(info(&channel, None).await), no_credentials());
    let log = everywhere.log();
    assert!(log.contains("tokens can be read on their way to tcp://0.0.0.0:0"), "{log}");
    let refused = "call=\"GetServerInfo\" result=\"Unauthenticated NO_CREDENTIALS\"";
    assert!(log.contains("refused peer=127.0.0.1:") && log.contains(refused), "{log}");
    for secret in [&first, &second] {
        let (_, secret) = secret.rsplit_once('_').unwrap();
        assert!(!log.contains(secret) && !good.contains(secret), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_a_token_that_is_revoked_end_and_what_they_typed_with_them() {
    let known = KnowingService::start(&[("gone", "operator"), ("stays", "operator")]).await;
    let (mut gone, mut stays) = (known.caller("gone").await, known.caller("stays").await);
    soon(gone.start(start("p", on_terminal(shell("exec cat"))))).await.unwrap();
    let follow = pb::FollowRequest { id: "p".into(), ..Default::default() };
    let mut followed = soon(gone.follow(follow.clone())).await.unwrap().into_inner();
    let mut kept = soon(stays.follow(follow)).await.unwrap().into_inner();
    let (typing, typed) = tokio::sync::mpsc::channel(9);
    let begin = pb::AttachStart { id: "p".into(), ..Default::default() };
    let begin = Some(pb::attach_request::Message::Start(begin));
    typing.send(pb::AttachRequest { message: begin }).await.unwrap();
    let typed = tokio_stream::wrappers::ReceiverStream::new(typed);
    let mut attached = soon(gone.attach(typed)).await.unwrap().into_inner();
    soon(attached.message()).await.unwrap().unwrap();
    assert!(token(&known.token_file(), &["revoke", "gone"]).status.success());
    let followed = soon(async {
        while followed.message().await?.is_some() {}
        Ok(())
    });
    assert_eq!(refusal::<()>(followed.await), bad_credentials());
    let attached = soon(async {
        while attached.message().await?.is_some() {}
        Ok(())
    });
    assert_eq!(refusal::<()>(attached.await), bad_credentials());
    until("nobody reads what is typed", || typing.is_closed()).await;
    let text = Some(pb::write_stdin_request::Input::Text("word\n".into()));
    let typed = pb::WriteStdinRequest { id: "p".into(), input: text, ..Default::default() };
    soon(stays.write_stdin(typed)).await.unwrap();
    soon(kept.message()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_is_what_the_token_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens");
    let viewer = new_token(&path, &["v", "--role", "viewer", "--owner", "a"]);
    let everywhere = Everywhere::start_with("127.0.0.1:0", |command| {
        command.arg("--token-file").arg(&path);
    })
    .await;
    let mut request = tonic::Request::new(start("p", argv(&["true"])));
    let shown = format!("Bearer {viewer}").parse().unwrap();
    request.metadata_mut().insert("authorization", shown);
    let started = soon(everywhere.tcp_client().await.start(request)).await;
    assert_eq!(refusal(started), (Code::PermissionDenied, "ROLE".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_credentials_only_loopback_is_open_on_whatever_address() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens");
    let token = new_token(&path, &["ci"]);
    let everywhere = Everywhere::start_with("0.0.0.0:0", |command| {
        command.arg("--no-auth-loopback").arg("--token-file").arg(&path);
    })
    .await;
    info(&channel(&everywhere).await, None).await.unwrap();
    let Some(own) = own_address() else { return skip("this machine has no address") };
    let from_elsewhere = format!("http://{}", SocketAddr::new(own, everywhere.tcp.port()));
    let endpoint = Endpoint::from_shared(from_elsewhere).unwrap();
    let channel = soon(endpoint.connect()).await.unwrap();
    assert_eq!(refusal(info(&channel, None).await), no_credentials());
    info(&channel, Some(&token)).await.unwrap();
}

/// An address of this machine that is not loopback. Who connects to it comes from it.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: the kernel only chooses a way.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|own| !own.is_loopback())
}

/// Has it listen on TCP, and tell so.
fn on_loopback(command: &mut Command, log: &NamedTempFile) {
    command.args(["--listen", "tcp://127.0.0.1:0"]);
    command.env("RUST_LOG", "info").stderr(log.reopen().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_loopback_a_token_is_made_once_and_its_place_is_told() {
    let log = NamedTempFile::new().unwrap();
    let mut service = TestService::start_with(|command| on_loopback(command, &log));
    let mut tokens = Vec::new();
    for start in 0..2 {
        let endpoint = format!("http://{}", listens_at(log.path()).await);
        let state = service.directory.path().join("state").canonicalize().unwrap();
        let (place, file) = (state.join("token"), state.join("tokens"));
        let said = fs::read_to_string(log.path()).unwrap();
        assert!(said.contains(&format!("the token for it is in {}", place.display())), "{said}");
        for file in [&place, &file] {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o7777, 0o600);
        }
        let token = fs::read_to_string(&place).unwrap().trim_end().to_owned();
        let (_, secret) = token.rsplit_once('_').unwrap();
        service.client().await;
        let args = cmdline(service.server_pid().cast_unsigned()).join(" ");
        assert!(!said.contains(secret) && !args.contains(secret), "{said} {args}");
        let channel = soon(Endpoint::from_shared(endpoint).unwrap().connect()).await.unwrap();
        info(&channel, Some(&token)).await.unwrap();
        assert_eq!(refusal(info(&channel, None).await), no_credentials());
        // Others are made beside it; the user's own socket asks for nothing.
        let other = new_token(&file, &[&format!("other-{start}")]);
        info(&channel, Some(&other)).await.unwrap();
        info(&service.channel().await, None).await.unwrap();
        tokens.push(token);
        service.stop();
        fs::write(log.path(), "").unwrap();
        service.begin_anew(|command| on_loopback(command, &log));
    }
    assert_eq!(tokens[0], tokens[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_loopback_a_name_that_was_made_to_lead_here_is_refused() {
    let everywhere = Everywhere::start().await;
    let path = "/procyard.v1.ProcessService/Start";
    for host in ["example.com", "localhost.example.com"] {
        let call = http2::call(1, host, path, &start("p", argv(&["true"])));
        let mut io = everywhere.tcp().await;
        http2::send(&mut io, &[http2::hello(), call].concat()).await;
        while http2::next_frame(&mut io).await.unwrap().stream != 1 {}
        until_logged(&everywhere, &format!("ORIGIN_NOT_ALLOWED\" page=\"{host}\"")).await;
        let endpoint = Endpoint::from_shared(format!("http://{}", everywhere.tcp)).unwrap();
        let endpoint = endpoint.origin(format!("http://{host}:1").parse().unwrap());
        let channel = soon(endpoint.connect()).await.unwrap();
        let refused = (Code::PermissionDenied, "ORIGIN_NOT_ALLOWED".into());
        assert_eq!(refusal(info(&channel, None).await), refused);
    }
    let nothing = http2::prefixed(&pb::GetServerInfoRequest {});
    let local = over_http1(&everywhere, super::INFO, WEB, &nothing).await;
    assert!(local.contains("grpc-status:0"), "{local}");
    assert_eq!(list(&mut everywhere.service.client().await).await.len(), 0);
}

async fn until_logged(everywhere: &Everywhere, words: &str) {
    until(words, || everywhere.log().contains(words)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_made_listed_and_revoked_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens");
    new_token(&path, &["b", "--owner", "x", "--owner", "y-*", "--may", "env"]);
    new_token(&path, &["a", "--role", "admin"]);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let listed = token(&path, &["list"]).stdout;
    let expected = "a admin\nb operator,owner=x,owner=y-*,may=env\n";
    assert_eq!(String::from_utf8(listed).unwrap(), expected);
    for (args, why) in [
        (&["new", "a"][..], "named \"a\" already"),
        (&["new", "c d"], "a name has"),
        (&["new", "c", "--role", "root"], "viewer, operator, admin"),
        (&["new", "c", "--owner", "x,may=user"], "without spaces, commas"),
        (&["new", "c", "--workspace", "x,owner=y"], "without spaces, commas"),
        (&["new", "c", "--may", "env,may=user"], "interpreter, none"),
        (&["new", "c", "--role", "viewer,may=env"], "viewer, operator, admin"),
        (&["new", "c", "--role", "admin", "--owner", "x"], "an admin has no owner"),
        (&["revoke", "c"], "no token is named \"c\""),
    ] {
        let refused = token(&path, args);
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(why), "{said}");
    }
    let revoked = token(&path, &["revoke", "b"]);
    assert!(revoked.status.success());
    let said = String::from_utf8(revoked.stderr).unwrap();
    assert!(said.contains("b is not known any more"), "{said}");
    assert_eq!(token(&path, &["list"]).stdout, b"a admin\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_whose_token_file_is_wrong_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let (wrong, missing) = (directory.path().join("wrong"), directory.path().join("missing"));
    fs::write(&wrong, "# tokens\nnonsense\n").unwrap();
    for (path, why) in
        [(&wrong, "wrong: line 2: "), (&missing, "make it with `procyard token new`")]
    {
        let options = ["--token-file", path.to_str().unwrap()];
        let said = refused_start_with("tcp://127.0.0.1:0", &options).await;
        assert!(said.contains(why), "{said}");
    }
    let said = refused_start_with("tcp://127.0.0.1:0", &["--grant", "ci=viewer"]).await;
    assert!(said.contains("use uid:1000=viewer or cert:NAME=viewer"), "{said}");
}
