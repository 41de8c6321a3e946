//! `procyard completions`.

use std::process::{Command, Stdio};

use super::printed;
use crate::support::binary;
use crate::support::tty::Tty;

fn completions(shell: &str) -> Command {
    let mut command = Command::new(binary());
    command.args(["completions", shell]).stdin(Stdio::null());
    command
}

/// Asks bash, as when Tab is hit after these words; none if there is no bash.
fn completed(words: &[&str]) -> Option<Vec<String>> {
    let mut bash = Command::new("bash");
    let (line, place) = (words.join(" "), words.len() - 1);
    let script = format!(
        "source <('{}' completions bash) || exit 3
        COMP_WORDS=({line}) COMP_CWORD={place}
        _procyard procyard '{}' '{}'
        printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        binary(),
        words[place],
        words[place - 1],
    );
    let output = bash.args(["--norc", "-c", &script]).output().ok()?;
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    Some(lines.lines().map(str::to_owned).collect())
}

#[test]
fn bash_completes_commands_options_and_words() {
    let Some(commands) = completed(&["procyard", "he"]) else {
        println!("skipped: there is no bash");
        return;
    };
    assert!(commands.contains(&"healthcheck".into()), "{commands:?}");
    assert!(!commands.contains(&"ps".into()), "{commands:?}");
    let options = completed(&["procyard", "logs", "--fo"]).unwrap();
    assert_eq!(options, ["--follow"]);
    let states = completed(&["procyard", "ps", "--state", "ru"]).unwrap();
    assert_eq!(states, ["running"]);
    // What is not to be run by hand is not offered.
    let hidden = completed(&["procyard", "keep"]).unwrap();
    assert!(!hidden.contains(&"keeper".into()), "{hidden:?}");
}

#[test]
fn every_shell_has_some_and_who_does_not_read_on_is_left_alone() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(printed(completions(shell)).contains("healthcheck"), "{shell}");
    }
    let mut command = completions("zsh");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let mut tty = Tty::start(completions("fish"));
    tty.expect("healthcheck");
    assert_eq!(tty.ended(), 0);
}
