//! Which supervisor `stop` and `upgrade` act on when there are several.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use super::starting_by_itself::{Home, command};
use super::{Running, failed, in_shell, printed};
use crate::support::service::{TestService, kill_pid};
use crate::support::tty::Tty;
use crate::support::{alive, binary, skip};

/// A command whose environment names the server of one service and the state directory of another.
fn torn(server: &TestService, state: &TestService, args: &[&str]) -> Command {
    let mut command = server.procyard(args);
    command.env("PROCYARD_STATE_DIR", state.directory.path().join("state"));
    command
}

fn lives(service: &TestService) -> bool {
    alive(service.child.id())
}

/// A service whose socket answers.
fn serving() -> TestService {
    let service = TestService::start();
    printed(service.procyard(&["info"]));
    service
}

#[test]
fn stop_ends_the_server_that_info_shows() {
    let (mut meant, other) = (serving(), serving());
    printed(meant.procyard(&["run", "-d", "--id", "p", "--name", "web", "--", "sleep", "600"]));
    let told = printed(meant.procyard(&["stop"]));
    let pid = meant.child.id();
    assert!(told.starts_with(&format!("stopping procyard (pid {pid}, ")), "{told}");
    assert!(told.contains("and 1 running process: p (web)\n"), "{told}");
    meant.child.wait().unwrap();
    assert!(lives(&other));
}

#[test]
fn stop_refuses_when_server_and_state_directory_differ() {
    let (one, other) = (serving(), serving());
    let state = other.directory.path().join("state");
    let by_flag = ["--state-dir", state.to_str().unwrap()];
    for command in ["stop", "upgrade"] {
        let by_flag = one.procyard(&[&[command], &by_flag[..]].concat());
        for command in [by_flag, torn(&one, &other, &[command])] {
            let (code, said) = failed(command);
            assert_eq!(code, 1, "{said}");
            assert!(said.contains("cannot choose a supervisor"), "{said}");
        }
    }
    assert!(lives(&one) && lives(&other));
}

#[test]
fn stop_says_how_to_choose_when_only_the_variable_differs() {
    let Some(home) = Home::new() else { return skip("no other user can run the program") };
    assert!(home.run(&["run", "--", "true"]).status.success());
    let other = home.0.path().join("run");
    let mut stop = command(home.0.path(), &["stop"]);
    stop.env("PROCYARD_STATE_DIR", &other);
    let (code, said) = failed(stop);
    assert_eq!(code, 1, "{said}");
    let other = other.display();
    let words = format!(
        "PROCYARD_STATE_DIR names {other}; pass --state-dir {other} to act on it, or unset \
         PROCYARD_STATE_DIR"
    );
    assert!(said.contains(&words), "{said}");
}

#[test]
fn upgrade_replaces_the_server_that_info_shows() {
    let (meant, other) = (serving(), serving());
    let before = (meant.server_pid(), other.server_pid());
    assert!(printed(meant.procyard(&["upgrade"])).contains("upgraded"));
    assert_ne!(meant.server_pid(), before.0);
    assert_eq!(other.server_pid(), before.1);
}

#[test]
fn stop_and_upgrade_refuse_an_address_that_may_be_remote() {
    let service = serving();
    for command in ["stop", "upgrade"] {
        let args = [command, "--server", "tcp://127.0.0.1:7450"];
        let (code, said) = failed(torn(&service, &service, &args));
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("may run on another machine"), "{said}");
        let what_to_do = "there, give no --server or PROCYARD_SERVER and pass --state-dir PATH";
        assert!(said.contains(what_to_do), "{said}");
    }
    assert!(lives(&service));
}

#[test]
fn stop_refuses_a_socket_that_is_no_keepers() {
    let service = serving();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let address = format!("unix://{}", path.display());
    let (code, said) = failed(torn(&service, &service, &["stop", "--server", &address]));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("does not listen there"), "{said}");
    assert!(lives(&service));
}

#[test]
fn stop_asks_on_a_terminal_while_something_runs() {
    let mut service = serving();
    printed(service.procyard(&["run", "-d", "--id", "p", "--", "sleep", "600"]));
    let mut tty = Tty::start(service.procyard(&["stop"]));
    tty.expect("1 running process: p? [y/N] ");
    tty.type_in("\r");
    tty.expect("not stopped");
    assert_eq!(tty.ended(), 1);
    assert!(lives(&service));
    let mut tty = Tty::start(service.procyard(&["stop"]));
    tty.expect("[y/N] ");
    tty.type_in("y\r");
    tty.expect("stopped");
    assert_eq!(tty.ended(), 0);
    service.child.wait().unwrap();
}

#[test]
fn stop_asks_on_the_terminal_when_stderr_is_redirected() {
    let service = serving();
    printed(service.procyard(&["run", "-d", "--id", "p", "--", "sleep", "600"]));
    let mut tty = Tty::start(in_shell(&service, &format!("exec {} stop 2>/dev/null", binary())));
    tty.expect("1 running process: p? [y/N] ");
    tty.type_in("\r");
    assert_eq!(tty.ended(), 1);
    // Without a controlling terminal there is no /dev/tty to ask on.
    let said = service.directory.path().join("said");
    let said = said.display();
    let script = format!("setsid -w {} stop 2>{said}; cat {said}", binary());
    let mut tty = Tty::start(in_shell(&service, &script));
    tty.expect("--yes stops without asking");
    tty.ended();
    assert!(lives(&service));
}

#[test]
fn stop_does_not_ask_when_told_so_or_nothing_runs() {
    for (run, args) in [(true, &["stop", "--yes"][..]), (false, &["stop"])] {
        let mut service = serving();
        if run {
            printed(service.procyard(&["run", "-d", "--", "sleep", "600"]));
        }
        let mut tty = Tty::start(service.procyard(args));
        assert!(!tty.expect("stopped").contains("[y/N]"));
        assert_eq!(tty.ended(), 0);
        service.child.wait().unwrap();
    }
}

#[test]
fn a_server_that_does_not_answer_can_be_stopped() {
    let mut service = serving();
    // The keeper's listening socket takes the connection; no server reads from it.
    let server = service.server_pid();
    kill_pid(server, libc::SIGSTOP);
    let mut stop = Running::start(service.procyard(&["stop"]));
    let mut told = String::new();
    BufReader::new(stop.0.stdout.as_mut().unwrap()).read_line(&mut told).unwrap();
    assert!(told.ends_with("and all that it runs\n"), "{told}");
    kill_pid(server, libc::SIGCONT);
    assert!(stop.finished().status.success());
    service.child.wait().unwrap();
}

/// Stops the supervisor of a service that only its state directory names.
fn stop_by_state_dir(service: &TestService) -> Command {
    let mut command = Command::new(binary());
    command.args(["stop", "--state-dir"]).arg(service.directory.path().join("state"));
    command.env_remove("PROCYARD_SERVER").env_remove("PROCYARD_STATE_DIR");
    command
}

#[test]
fn a_state_directory_alone_names_its_supervisor() {
    let (mut meant, other) = (serving(), serving());
    assert!(printed(stop_by_state_dir(&meant)).contains("stopped"));
    meant.child.wait().unwrap();
    assert!(lives(&other));
}

/// A service that listens also on a socket of the usual name, at another place.
fn with_usual_name() -> TestService {
    let service = TestService::start_with(|command| {
        let state = Path::new(command.get_args().last().unwrap());
        let socket = format!("unix://{}", state.with_file_name("procyard.sock").display());
        command.arg("--listen").arg(socket);
    });
    printed(service.procyard(&["info"]));
    service
}

#[test]
fn stop_by_state_directory_asks_with_what_runs() {
    let service = with_usual_name();
    printed(service.procyard(&["run", "-d", "--id", "p", "--", "sleep", "600"]));
    let mut tty = Tty::start(stop_by_state_dir(&service));
    tty.expect("1 running process: p? [y/N] ");
    tty.type_in("\r");
    assert_eq!(tty.ended(), 1);
    assert!(lives(&service));
}

#[test]
fn stop_by_state_directory_does_not_ask_when_nothing_runs() {
    let mut service = with_usual_name();
    let mut tty = Tty::start(stop_by_state_dir(&service));
    assert!(!tty.expect("stopped").contains("[y/N]"));
    assert_eq!(tty.ended(), 0);
    service.child.wait().unwrap();
}

#[test]
fn stop_says_when_it_cannot_list_what_runs() {
    let service = serving();
    let mut tty = Tty::start(stop_by_state_dir(&service));
    tty.expect("all that it runs (its server cannot be asked what that is)? [y/N] ");
    tty.type_in("\r");
    assert_eq!(tty.ended(), 1);
    assert!(lives(&service));
}
