//! Measuring in a process apart: this program again, fresh, small and with a single thread,
//! whatever the first one has become meanwhile.
//!
//! It is told by [`SWITCH`] as its first argument, and prints one number.

use std::process::{Command, ExitCode, Stdio};

use super::{Result, raw};

/// Makes the program one that measures a single thing.
pub(crate) const SWITCH: &str = "--apart";

/// How a bench takes a number that its words name, beside those of `raw`.
pub(crate) type Measure = fn(&[&str]) -> Result<f64>;

/// For a bench that has no other numbers.
pub(crate) fn nothing_else(_: &[&str]) -> Result<f64> {
    Err("nothing that can be measured".into())
}

/// Has a number taken in a process apart.
pub(crate) fn run(words: &[&str]) -> Result<f64> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(SWITCH).args(words).stdin(Stdio::null());
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// The main function of that process.
pub(super) fn main(words: &[String], others: Measure) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match measure(&words, others) {
        Ok(figure) => {
            println!("{figure}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn measure(words: &[&str], others: Measure) -> Result<f64> {
    match *words {
        ["starts", millis, at_once, program] => {
            raw::starts::rate(program, millis.parse()?, at_once.parse()?)
        }
        ["flood", "pipe", bytes, child] => raw::flood::pipe(child, bytes),
        ["flood", "cat", bytes, child] => raw::flood::pipeline(child, bytes, "cat"),
        ["flood", "cat | cat", bytes, child] => raw::flood::pipeline(child, bytes, "cat | cat"),
        ["flood", "terminal", bytes, child] => raw::flood::terminal(child, bytes),
        ["echo", count] => raw::echo::median(count.parse()?),
        _ => others(words),
    }
}
