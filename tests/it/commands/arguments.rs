//! Arguments that are wrong, and help.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use super::{failed, finished, printed};
use crate::support::service::TestService;
use crate::support::tty::Tty;
use crate::support::{binary, until};

fn procyard(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(args).stdin(Stdio::null());
    command
}

#[test]
fn a_wrong_argument_is_told_in_a_line_that_helps() {
    let said = |args: &[&str]| {
        let (code, said) = failed(procyard(args));
        assert_eq!(code, 2, "{said}");
        said
    };
    let flag = said(&["ps", "--wrong"]);
    assert!(flag.contains("'--wrong'") && flag.contains("`procyard ps --help`"), "{flag}");
    let close = said(&["attahc"]);
    assert!(close.contains("'attach'"), "{close}");
    let command = said(&["wrong"]);
    assert!(command.contains("'wrong'") && command.contains("`procyard --help`"), "{command}");
    let missing = said(&["logs"]);
    assert!(missing.contains("<ID>") && missing.contains("`procyard logs --help`"), "{missing}");
    let word = said(&["ps", "--state", "gone"]);
    assert!(word.contains("'gone'") && word.contains("queued, starting, running"), "{word}");
    let span = said(&["kill", "p", "--grace", "30"]);
    assert!(span.contains("'30'") && span.contains("500ms, 30s"), "{span}");
}

#[test]
fn usage_errors_of_run_and_wait_exit_with_125() {
    for args in [
        &["run"][..],
        &["run", "--wrong"],
        &["run", "--ready-port", "0", "--", "true"],
        &["wait"],
        &["run", "--queue", "", "--", "true"],
        &["run", "--service", "", "--", "true"],
        &["run", "--owner", "", "--", "true"],
        &["run", "--workspace", "", "--", "true"],
        &["run", "--stop-signal", "", "--", "true"],
        &["wait", "p", "--timeout", "30"],
    ] {
        let (code, said) = failed(procyard(args));
        assert_eq!(code, 125, "{said}");
        assert!(said.contains(&format!("see `procyard {} --help`", args[0])), "{said}");
    }
}

#[test]
fn readiness_heading_of_run_has_only_its_options() {
    let help = printed(procyard(&["run", "--help"]));
    let (_, readiness) = help.split_once("\nReadiness:\n").unwrap();
    let own = readiness.lines().take_while(|line| line.is_empty() || line.starts_with(' '));
    let options = own.filter(|line| line.trim_start().starts_with('-'));
    let options: Vec<_> = options.filter(|line| !line.contains("--ready-")).collect();
    assert!(options.is_empty(), "{options:?}");
}

#[test]
fn no_unknown_word_suggests_a_command_that_changes_something() {
    for word in ["top", "list", "ls", "status"] {
        let (code, said) = failed(procyard(&[word]));
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("'ps' lists processes"), "{said}");
    }
    for (word, hint) in [
        ("start", "'run' starts a command"),
        ("exec", "'run' starts a command"),
        ("tail", "'logs' shows output"),
        ("cat", "'logs' shows output"),
        ("restart", "'rerun' runs a finished process again"),
        ("up", "'serve' runs the supervisor"),
        ("down", "'stop' ends the supervisor and all that it runs"),
        ("halt", "'stop' ends the supervisor and all that it runs"),
        ("shutdown", "'stop' ends the supervisor and all that it runs"),
        ("watch", "'events' shows what happens to processes"),
        ("version", "'--version' shows the version"),
    ] {
        let (code, said) = failed(procyard(&[word]));
        assert!(code == 2 && said.contains(&format!("({hint})")), "{said}");
    }
    for word in [
        "remove", "stpo", "instal", "kil", "upgrad", "rmm", "signa", "tokn", "reru", "stat",
        "lists",
    ] {
        let (_, said) = failed(procyard(&[word]));
        for command in
            ["stop", "install", "kill", "upgrade", "rm", "signal", "token", "rerun", "serve"]
        {
            assert!(!said.contains(&format!("'{command}'")), "{said}");
        }
    }
}

#[test]
fn what_would_go_in_clear_text_to_a_stranger_does_not_go() {
    let far = ["ps", "--server", "tcp://192.0.2.1:7450"];
    let (code, said) = failed(procyard(&[&far[..], &["--token", "secret"]].concat()));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("--tls-ca") && !said.contains("secret"), "{said}");
    for half in [&["--tls-cert", "a", "--tls-key", "b"][..], &["--tls-server-name", "c"]] {
        let (code, said) = failed(procyard(&[&far[..], half].concat()));
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("--tls-ca"), "{said}");
    }
}

#[tokio::test]
async fn what_is_wrong_is_said_in_full_though_nobody_reads_it_yet() {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    // It stays so: whoever shares it may have set it.
    while writer.write(&[b'.'; 4096]).is_ok() {}
    let word = "w".repeat(5000);
    let mut command = procyard(&["ps", "--state", &word]);
    let mut child = command.stderr(writer).spawn().unwrap();
    // It holds the other end of the pipe.
    drop(command);
    let stat = format!("/proc/{}/stat", child.id());
    until("it waits to be read", || {
        let ended = child.try_wait().unwrap().is_some();
        ended || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "))
    })
    .await;
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
    assert!(said.contains(&word) && said.ends_with("see `procyard ps --help`\n"));
}

#[test]
fn what_the_service_refuses_is_told_in_the_words_of_the_command_line() {
    let service = TestService::start();
    printed(service.procyard(&["run", "--id", "p", "--", "echo", "hi"]));
    for (args, words) in [
        (&["logs", "--grep", "(", "p"][..], "--grep: at character 1"),
        (&["wait", "--prints", "(", "p"], "the pattern: at character 1"),
        (&["run", "--stop-signal", "X", "--", "true"], "--stop-signal: "),
        (&["run", "--name", "a\nb", "--", "true"], "name: "),
    ] {
        let (_, said) = failed(service.procyard(args));
        assert!(said.starts_with(&format!("procyard: {words}")), "{said}");
    }
}

#[test]
fn an_argument_that_is_no_text_is_told_as_any_other() {
    use std::os::unix::ffi::OsStrExt;
    let mut command = procyard(&[]);
    command.arg(std::ffi::OsStr::from_bytes(b"\xff"));
    assert_eq!(failed(command).0, 2);
}

#[test]
fn a_port_at_which_somebody_else_answers_is_told_soon() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("tcp://{}", listener.local_addr().unwrap());
    // Ends with the test binary.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    let (code, said) = failed(procyard(&["ps", "--server", &place]));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains(&place) && said.contains("--tls-ca"), "{said}");
}

#[test]
fn each_command_has_help_with_an_example() {
    let help = printed(procyard(&["--help"]));
    let (_, commands) = help.split_once("\nCommands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let commands: Vec<_> =
        commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() > 20 && commands.contains(&"serve"), "{help}");
    for command in commands {
        if command == "help" {
            continue;
        }
        let own = printed(procyard(&[command, "--help"]));
        let (_, examples) = own.split_once("\nExamples:\n").expect(command);
        assert!(examples.contains(&format!("procyard {command}")), "{own}");
    }
}

#[test]
fn alone_it_shows_its_help() {
    let output = finished(procyard(&[]));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("Usage: procyard"));
    let mut tty = Tty::start(procyard(&[]));
    tty.expect("Usage: procyard");
    assert_eq!(tty.ended(), 2);
}
