//! `procyard rm`.

use super::{failed, finished, printed};
use crate::support::service::*;
use crate::support::tty::Tty;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_ones_are_freed_and_others_by_force_only() {
    let service = TestService::start();
    let mut client = service.client().await;
    for id in ["a", "b", "c"] {
        finish(&mut client, id, shell("true")).await;
    }
    begin(&mut client, "lives", argv(&["sleep", "600"])).await;
    let mut tty = Tty::start(service.procyard(&["rm", "a"]));
    tty.expect("a\r\n");
    assert_eq!(tty.ended(), 0);
    let (code, said) = failed(service.procyard(&["rm", "a"]));
    assert_eq!(code, 1);
    assert!(said.contains("procyard ps --all"), "{said}");
    assert_eq!(printed(service.procyard(&["rm", "--missing-ok", "a", "b"])), "b\n");
    // Each that can be is freed.
    let output = finished(service.procyard(&["rm", "lives", "c"]));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"c\n");
    assert!(String::from_utf8(output.stderr).unwrap().contains("procyard kill"));
    assert_eq!(printed(service.procyard(&["rm", "--force", "lives"])), "lives\n");
    assert_eq!(printed(service.procyard(&["ps", "--all", "--quiet"])), "");
}

#[test]
fn an_empty_id_is_nobodys() {
    let service = TestService::start();
    printed(service.procyard(&["run", "-d", "--id", "bystander", "--", "sleep", "600"]));
    for command in ["rm", "kill", "logs", "wait", "rerun"] {
        let (_, said) = failed(service.procyard(&[command, ""]));
        assert!(said.contains("the id is empty"), "{command}: {said}");
    }
    assert!(printed(service.procyard(&["ps", "-q"])).contains("bystander"));
}
