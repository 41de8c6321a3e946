//! The programs of the load that a shell would be too slow or too coarse for: this program again,
//! told what to play by [`SWITCH`] as its first argument.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::common::Result;

/// Makes the program one of the load.
pub(crate) const SWITCH: &str = "--play";
/// When this file is there, printers say their last line.
pub(crate) const STOP: &str = "stop";
/// Code of one that found more in a queue than may be.
const CROWDED: u8 = 77;

/// The command line of a part that is played.
pub(crate) fn command(part: &[&str]) -> Result<Vec<String>> {
    let own = std::env::current_exe()?.into_os_string().into_string();
    let own = own.map_err(|own| format!("{} is not UTF-8", own.display()))?;
    Ok([own.as_str(), SWITCH].iter().chain(part).map(|word| (*word).to_owned()).collect())
}

pub(crate) fn main(words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let played = match *words {
        ["print", lines, millis] => print(lines, millis),
        ["turn", queue, capacity, millis] => turn(queue, capacity, millis),
        _ => Err("nothing that can be played".into()),
    };
    played.unwrap_or_else(|error| {
        eprintln!("{}: {error}", words.join(" "));
        ExitCode::FAILURE
    })
}

/// Prints numbered lines, so many at a time, until there is a file that says to stop. Of the lines
/// every seventh goes to stderr, where that is a stream of its own, and has a number of its own.
fn print(lines: &str, millis: &str) -> Result<ExitCode> {
    let (lines, pause): (u64, _) = (lines.parse()?, Duration::from_millis(millis.parse()?));
    let apart = !std::io::IsTerminal::is_terminal(&std::io::stderr());
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let (mut printed, mut complained) = (0_u64, 0_u64);
    while !Path::new(STOP).exists() {
        for _ in 0..lines {
            if apart && (printed + complained) % 7 == 6 {
                complained += 1;
                writeln!(err, "{complained}")?;
            } else {
                printed += 1;
                writeln!(out, "{printed}")?;
            }
        }
        std::thread::sleep(pause);
    }
    if apart && complained > 0 {
        writeln!(err, "last {complained}")?;
    }
    writeln!(out, "last {printed}")?;
    Ok(ExitCode::SUCCESS)
}

/// Has one of the places of a queue for a while, and says in which order it came.
fn turn(queue: &str, capacity: &str, millis: &str) -> Result<ExitCode> {
    let open = |name: String| OpenOptions::new().create(true).append(true).open(name);
    let id = std::env::var("PROCYARD_ID")?;
    writeln!(open(format!("{queue}.order"))?, "{id}")?;
    println!("noted");
    for place in 0..capacity.parse::<u32>()? {
        let place = open(format!("{queue}.{place}"))?;
        if flock(&place, FlockOperation::NonBlockingLockExclusive).is_ok() {
            std::thread::sleep(Duration::from_millis(millis.parse()?));
            return Ok(ExitCode::SUCCESS);
        }
    }
    Ok(ExitCode::from(CROWDED))
}
