//! `procyard rerun`.

use super::{failed, finished, objects, printed};
use crate::support::service::*;
use crate::support::tty::Tty;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_runs_again_and_what_it_printed_is_cleared_by_force_only() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "p", shell("echo hi")).await;
    let (code, said) = failed(service.procyard(&["rerun", "p"]));
    assert_eq!(code, 1);
    assert!(said.contains("--force"), "{said}");
    let mut tty = Tty::start(service.procyard(&["rerun", "--force", "p"]));
    tty.expect("p: run 2");
    assert_eq!(tty.ended(), 0);
    ended(&mut client, "p").await;
    // What was cleared is not missed.
    let output = finished(service.procyard(&["logs", "p"]));
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"hi\n"[..], &b""[..]));
    assert!(!tty.all().contains("--acknowledge"));
    let json = objects(&printed(service.procyard(&["rerun", "--force", "p", "-o", "json"])));
    assert_eq!(json[0]["run"], 3);
    ended(&mut client, "p").await;
    // A service that waits for its reader has none any more.
    printed(service.procyard(&["run", "--id", "read", "--service", "s", "--", "echo", "hi"]));
    let output = finished(service.procyard(&["rerun", "--force", "read"]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("procyard attach --acknowledge read"), "{said}");
    ended(&mut client, "read").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rerun_of_a_foreground_process_needs_no_reader() {
    let service = TestService::start();
    let mut client = service.client().await;
    let flood = ["--", "head", "-c", "3000000", "/dev/zero"];
    let run = [&["run", "--id", "p", "--transcript", "64K"][..], &flood].concat();
    assert_eq!(printed(service.procyard(&run)).len(), 3_000_000);
    let output = finished(service.procyard(&["rerun", "--force", "p"]));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let process = ended(&mut client, "p").await;
    assert_eq!((process.run, exit(&process).code), (2, Some(0)));
    let transcript = process.transcript.unwrap();
    assert_eq!(transcript.total_bytes, 3_000_000);
    assert!(transcript.dropped_bytes > 0, "{transcript:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rerun_of_a_live_process_names_kill_and_wait() {
    let service = TestService::start();
    begin(&mut service.client().await, "p", shell("exec sleep 600")).await;
    for args in [&["rerun", "p"][..], &["rerun", "--force", "p"], &["rm", "p"]] {
        let (code, said) = failed(service.procyard(args));
        assert_eq!(code, 1);
        assert!(said.contains("end it by `procyard kill`, or wait for it"), "{said}");
        assert!(!said.contains("procyard rm") && !said.contains("--force"), "{said}");
    }
}
