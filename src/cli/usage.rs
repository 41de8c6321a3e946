//! What is wrong with the arguments, in one line that helps; or the help that they ask for.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::trouble::Trouble;
use super::words;

/// As shells and most programs exit when they were called in a wrong way.
const EXIT_USAGE: u8 = 2;

/// Words that other programs have for commands, and what to say of these.
const SYNONYMS: [(&[&str], &str); 8] = [
    (&["top", "list", "ls", "status", "jobs", "show", "processes"], "'ps' lists processes"),
    (&["start", "exec", "spawn", "shell"], "'run' starts a command"),
    (&["tail", "cat", "output"], "'logs' shows output"),
    (&["watch"], "'events' shows what happens to processes"),
    (&["restart"], "'rerun' runs a finished process again"),
    (&["up"], "'serve' runs the supervisor"),
    (&["down", "halt", "shutdown"], "'stop' ends the supervisor and all that it runs"),
    (&["version"], "'--version' shows the version"),
];

/// Commands that are safe to try. Others end, change or replace something: no typo leads to them.
const SUGGESTED: [&str; 11] = [
    "attach",
    "completions",
    "events",
    "healthcheck",
    "help",
    "info",
    "logs",
    "ps",
    "run",
    "screen",
    "wait",
];

/// Reports wrong arguments, or prints the help that they ask for.
pub(super) fn report(error: &clap::Error, cli: &clap::Command) -> ExitCode {
    let help = [
        ErrorKind::DisplayHelp,
        ErrorKind::DisplayVersion,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
    ];
    if help.contains(&error.kind()) {
        error.exit();
    }
    let rendered = error.to_string();
    let what = rendered.split("\n\n").next().unwrap_or_default();
    let what: Vec<_> = what.trim_start_matches("error:").split_whitespace().collect();
    let command = std::env::args_os().nth(1).and_then(|word| word.into_string().ok());
    let command = command.filter(|word| cli.find_subcommand(word).is_some());
    // The other codes of `attach`, `run` and `wait` are their processes'.
    let code = match command.as_deref() {
        Some("attach" | "run" | "wait") => words::FAILED,
        _ => EXIT_USAGE,
    };
    let command = command.map(|word| format!(" {word}")).unwrap_or_default();
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => suggested_command(error),
        _ => {
            rendered.lines().find_map(|line| Some(line.trim_start().strip_prefix("tip: ")?.into()))
        }
    };
    let tip = tip.map(|tip: String| format!(" ({tip})")).unwrap_or_default();
    let line = format!("{}{tip}; see `procyard{command} --help`", what.join(" "));
    Trouble::new(line).with_code(code).end()
}

/// A command that may have been meant.
fn suggested_command(error: &clap::Error) -> Option<String> {
    let word = match error.get(ContextKind::InvalidSubcommand)? {
        ContextValue::String(word) => word.as_str(),
        _ => return None,
    };
    if let Some((_, hint)) = SYNONYMS.iter().find(|(words, _)| words.contains(&word)) {
        return Some((*hint).into());
    }
    let similar = match error.get(ContextKind::SuggestedSubcommand)? {
        ContextValue::Strings(similar) => similar.as_slice(),
        ContextValue::String(similar) => std::slice::from_ref(similar),
        _ => return None,
    };
    let similar = similar.iter().rfind(|command| SUGGESTED.contains(&command.as_str()))?;
    Some(format!("a similar command exists: '{similar}'"))
}
