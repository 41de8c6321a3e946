//! The supervisor itself ends while commands follow it, and not only its server.

use procyard::grpc::pb;

use crate::support::service::*;
use crate::support::tty::Tty;

/// What a command shows when the supervisor at the socket of a service has ended.
fn notice(service: &TestService) -> String {
    let address = format!("unix://{}", service.socket().display());
    format!(
        "procyard: the supervisor at {address} has ended; `procyard serve --listen {address}` \
         starts another, which records processes that were still running as LOST\r\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_end_when_the_keeper_is_killed() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "done", shell("true")).await;
    begin(&mut client, "p", shell("echo up; sleep 600")).await;
    begin(&mut client, "shell", on_terminal(shell("echo up; sleep 600"))).await;
    // Each has shown something by the time that it is connected.
    let commands = [
        (&["attach", "--since-start", "p"][..], "up", 125),
        (&["attach", "--since-start", "shell"], "up", 125),
        (&["run", "--shell", "echo up; sleep 600"], "up", 125),
        (&["run", "-t", "--shell", "echo up; sleep 600"], "up", 125),
        (&["wait", "done", "p"], "done: exited with code 0", 125),
        (&["logs", "-f", "p"], "up", 1),
        (&["events", "-f"], "completed", 1),
    ];
    let mut running = Vec::new();
    for (args, shown, code) in commands {
        let mut tty = Tty::start(service.procyard(args));
        tty.expect(shown);
        running.push((args, tty, code));
    }
    service.signal(libc::SIGKILL);
    for (args, tty, code) in &mut running {
        assert_eq!(tty.ended(), *code, "{args:?}: {}", tty.all());
        assert!(tty.all().ends_with(&notice(&service)), "{args:?}: {}", tty.all());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_continue_when_only_the_server_is_killed() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(shell("echo up; read x; echo got $x; exit 3"))).await;
    let commands = [
        (&["attach", "--since-start", "--no-stdin", "p"][..], "up", "got it", 3),
        (&["logs", "-f", "p"], "up", "got it", 0),
        (&["events", "-f"], "started", "completed", 130),
    ];
    let mut running = Vec::new();
    for (args, shown, last, code) in commands {
        let mut tty = Tty::start(service.procyard(args));
        tty.expect(shown);
        running.push((args, tty, last, code));
    }
    service.kill_server();
    let mut client = service.client().await;
    let input = Some(pb::write_stdin_request::Input::Text("it\n".into()));
    let write = pb::WriteStdinRequest { id: "p".into(), input, ..Default::default() };
    crate::support::soon(client.write_stdin(write)).await.unwrap();
    for (args, tty, last, code) in &mut running {
        tty.expect(last);
        if args[0] == "events" {
            tty.type_in("\x03");
        }
        assert_eq!(tty.ended(), *code, "{args:?}: {}", tty.all());
    }
}
