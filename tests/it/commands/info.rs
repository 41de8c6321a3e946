//! `procyard info`.

use super::{failed, objects, printed};
use crate::support::service::*;
use crate::support::tty::Tty;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_says_which_version_serves_where_and_what_there_is() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "p", shell("true")).await;
    let mut tty = Tty::start(service.procyard(&["info"]));
    tty.expect(concat!("procyard ", env!("CARGO_PKG_VERSION"), " at unix://"));
    tty.expect("s.sock");
    tty.expect("\x1b[2minstance");
    tty.expect("0 live, 0 of them queued; 1 finished");
    assert_eq!(tty.ended(), 0);
    let text = printed(service.procyard(&["info"]));
    let words: Vec<_> = text.lines().map(|line| line.split_once(' ').unwrap().0).collect();
    let expected = [
        "procyard",
        "instance",
        "up",
        "you",
        "processes",
        "events",
        "trees",
        "limits",
        "sandbox",
        "at",
    ];
    assert_eq!(words, expected, "{text}");
    assert!(text.contains(", admin"), "{text}");
    let json = printed(service.procyard(&["info", "--output", "json"]));
    assert!(json.starts_with("{\"version\":"), "{json}");
    assert_eq!(objects(&json)[0]["counts"]["finished"], "1");
}

#[test]
fn a_service_that_is_not_there_is_told_in_a_line_that_helps() {
    let service = TestService::start();
    let mut command = service.procyard(&["info"]);
    command.env("PROCYARD_SERVER", "unix:///nowhere.sock");
    let (code, said) = failed(command);
    assert_eq!(code, 1);
    assert!(said.contains("unix:///nowhere.sock") && said.contains("procyard serve"), "{said}");
}
