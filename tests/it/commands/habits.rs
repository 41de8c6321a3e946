//! What people are used to from commands, shells and terminals holds for `run`, too.

use super::{failed, finished, in_shell, printed};
use crate::support::service::*;
use crate::support::tty::Tty;
use crate::support::{binary, have};

#[test]
fn ctrl_c_ends_a_shell_loop_and_not_only_the_command_in_it() {
    if !have(&["bash"]) {
        return;
    }
    let service = TestService::start();
    let asking = service.procyard(&[]);
    let line = format!("for i in 1 2 3; do {} run --shell 'echo up; sleep 600'; done", binary());
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", &line]);
    shell.envs(asking.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut tty = Tty::start(shell);
    tty.expect("up");
    tty.type_in("\x03");
    assert_eq!(tty.ended(), 130);
    assert_eq!(tty.all().matches("up").count(), 1, "{:?}", tty.all());
}

#[test]
fn one_that_is_left_alone_can_be_given_input_if_that_was_asked_for() {
    let service = TestService::start();
    printed(service.procyard(&["run", "-d", "-i", "--id", "sorter", "--", "sort"]));
    printed(service.procyard(&["send", "--enter", "sorter", "b"]));
    printed(service.procyard(&["send", "--enter", "--eof", "sorter", "a"]));
    printed(service.procyard(&["wait", "sorter"]));
    assert_eq!(printed(service.procyard(&["logs", "sorter"])), "a\nb\n");
}

#[test]
fn a_procyard_within_procyard_finds_the_same_supervisor() {
    let service = TestService::start();
    let inner = [&binary(), "ps", "-q"].map(String::from);
    let args = ["run", "--id", "outer", "--"].map(String::from).into_iter().chain(inner);
    let args: Vec<String> = args.collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    assert_eq!(printed(service.procyard(&args)), "outer\n");
}

#[test]
fn an_interactive_shell_ends_when_it_is_asked_to() {
    if !have(&["bash"]) {
        return;
    }
    let service = TestService::start();
    let shell =
        ["run", "-d", "-t", "--id", "shell", "-e", "HISTFILE=", "--", "bash", "--norc", "-i"];
    printed(service.procyard(&shell));
    printed(service.procyard(&[
        "send",
        "--enter",
        "--wait-output",
        "\\s42\\s",
        "shell",
        "echo $((6*7))",
    ]));
    printed(service.procyard(&["kill", "--grace", "1h", "shell"]));
    let json = printed(service.procyard(&["ps", "--all", "-o", "json"]));
    assert!(!json.contains("SIGKILL") && json.contains("CAUSE_KILLED"), "{json}");
}

#[test]
fn whoever_is_not_read_ends_without_a_word() {
    let service = TestService::start();
    printed(service.procyard(&["run", "--id", "p", "--", "echo", "hi"]));
    let tokens = service.directory.path().join("tokens");
    let tokens = tokens.to_str().unwrap();
    printed(service.procyard(&["token", "new", "t", "--token-file", tokens]));
    for args in [
        &["logs", "p"][..],
        &["logs", "-f", "p"],
        &["ps", "--all"],
        &["events"],
        &["info"],
        &["wait", "p"],
        &["completions", "bash"],
        &["token", "list", "--token-file", tokens],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = service.procyard(args).stdout(writer).output().unwrap();
        let ended = (output.status.code(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(ended, (Some(141), String::new()), "{args:?}");
    }
}

#[test]
fn an_empty_input_ends_also_on_a_terminal() {
    let service = TestService::start();
    let output = finished(service.procyard(&["run", "-t", "--", "cat"]));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_directory_that_is_gone_is_told_with_what_to_do() {
    let service = TestService::start();
    let script = format!("mkdir gone; cd gone; rmdir ../gone; exec {} run -- true", binary());
    let mut command = in_shell(&service, &script);
    command.current_dir(service.directory.path());
    let (code, said) = failed(command);
    assert!(code == 125 && said.contains("-C gives another"), "{said}");
}

#[test]
fn who_has_run_already_is_shown_and_said_to_be() {
    let service = TestService::start();
    let again = || service.procyard(&["run", "--id", "once", "--", "echo", "hi"]);
    assert_eq!(printed(again()), "hi\n");
    let second = finished(again());
    assert_eq!(String::from_utf8(second.stdout).unwrap(), "hi\n");
    assert!(String::from_utf8(second.stderr).unwrap().contains("procyard rerun once"));
}

#[test]
fn a_path_with_a_slash_is_a_directory_to_install_into() {
    let service = TestService::start();
    let path = service.directory.path().join("new/bin");
    printed(service.procyard(&["install", &format!("{}/", path.display())]));
    assert!(path.join("procyard").is_file());
}
