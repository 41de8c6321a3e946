//! Keepers and servers of neighbouring versions understand each other; others say why not.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use bytes::BytesMut;
use procyard::keeper_client::{Keeper, KeeperError};
use procyard::process::{Enforceable, Launch, Refused, Sandbox};
use procyard::protocol::pb::from_keeper::Body as FromKeeper;
use procyard::protocol::pb::reply::Result as Answer;
use procyard::protocol::pb::to_keeper::Body;
use procyard::protocol::{BEFORE, VERSION, decode, encode, pb};

use crate::support::*;

#[test]
fn a_keeper_takes_servers_of_its_version_and_the_one_before_and_names_both_to_others() {
    let keeper = TestKeeper::start();
    let mut server = RawServer::connect(&keeper);
    for version in [BEFORE, VERSION] {
        match server.hello(version) {
            Answer::Welcome(welcome) => assert_eq!(welcome.version, version),
            other => panic!("{other:?}"),
        }
    }
    for version in [BEFORE - 1, VERSION + 1] {
        let Answer::Refusal(refusal) = server.hello(version) else { panic!("{version} is taken") };
        assert_eq!(refusal.reason(), pb::Reason::Version);
        for words in [format!("version {version}"), format!("{BEFORE} and {VERSION}")] {
            assert!(refusal.message.contains(&words), "{}", refusal.message);
        }
    }
    for sign in [Body::Serving(pb::Serving {}), Body::Beat(pb::Beat {})] {
        assert_eq!(server.ask(sign), Answer::Done(pb::Done {}));
    }
}

/// A keeper that speaks one version, on a thread of its own: what was asked of it.
fn play_keeper(mut link: UnixStream, speaks: u32) -> std::thread::JoinHandle<Vec<Body>> {
    std::thread::spawn(move || {
        let (mut inbox, mut asked) = (BytesMut::new(), Vec::new());
        loop {
            while let Some(message) = decode::<pb::ToKeeper>(&mut inbox).unwrap() {
                let result = match message.body.clone().unwrap() {
                    Body::Hello(hello) if hello.version == speaks => Answer::Welcome(pb::Welcome {
                        version: speaks,
                        pid: 1,
                        kill_domain: 2,
                        ..Default::default()
                    }),
                    Body::Hello(_) => Answer::Refusal(pb::Refusal {
                        reason: pb::Reason::Version.into(),
                        message: format!("not my version, which is {speaks}"),
                        ..Default::default()
                    }),
                    _ => Answer::Done(pb::Done {}),
                };
                asked.extend(message.body);
                let reply = pb::Reply { request: message.request, result: Some(result) };
                let mut bytes = Vec::new();
                encode(&pb::FromKeeper { body: Some(FromKeeper::Reply(reply)) }, &mut bytes);
                link.write_all(&bytes).unwrap();
            }
            let mut buffer = [0; 4096];
            match link.read(&mut buffer).unwrap() {
                0 => return asked,
                len => inbox.extend_from_slice(&buffer[..len]),
            }
        }
    })
}

#[tokio::test]
async fn a_server_takes_keepers_of_its_version_and_the_one_before_which_limits_and_confines_nobody()
{
    for version in [BEFORE, VERSION] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let keeper = play_keeper(theirs, version);
        let (client, _reports, welcome) = soon(Keeper::connect(ours)).await.unwrap();
        assert_eq!((welcome.version, welcome.limits), (version, Enforceable::default()));
        assert_eq!(welcome.sandbox, None);
        let sandbox = Sandbox { no_new_privileges: true, ..Sandbox::default() };
        let confined = [
            Launch { roots: vec![b"/".to_vec()], ..Launch::new("a", ["true"]) },
            Launch { sandbox, ..Launch::new("a", ["true"]) },
        ];
        for launch in confined.into_iter().filter(|_| version == BEFORE) {
            // It would start them, and confine nobody.
            let refused = soon(client.spawn(launch)).await.err().unwrap();
            assert!(matches!(refused, KeeperError::Refused(Refused::Version(_))), "{refused}");
        }
        if version == BEFORE {
            // It would start it, and ignore them.
            let mut launch = Launch::new("a", ["/bin/true"]);
            launch.limits.processes = 1;
            match refused(soon(client.spawn(launch)).await) {
                Refused::SpawnFailed { errno, .. } => assert_eq!(errno, libc::EOPNOTSUPP),
                other => panic!("{other:?}"),
            }
        }
        drop(client);
        until("the connection has ended", || keeper.is_finished()).await;
        let asked = keeper.join().unwrap();
        assert!(asked.iter().all(|body| matches!(body, Body::Hello(_))), "{asked:?}");
    }
}

#[tokio::test]
async fn a_server_leaves_a_keeper_of_another_version_with_the_reason() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let _keeper = play_keeper(theirs, VERSION + 2);
    let refused = soon(Keeper::connect(ours)).await.err().unwrap().to_string();
    assert!(refused.contains(&format!("not my version, which is {}", VERSION + 2)), "{refused}");
}
