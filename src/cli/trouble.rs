//! What went wrong, in one line that says what to do, and the exit code that goes with it.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

use tonic::{Code, Status};
use tonic_types::{FieldViolation, StatusExt};

use super::client::{NoListener, Place, reason};
use super::print;

/// As a shell tells of a command that was ended by SIGPIPE.
const BROKEN_PIPE: u8 = 128 + 13;

/// What went wrong.
#[derive(Debug)]
pub(super) struct Trouble {
    line: String,
    code: u8,
    /// It is about something that is not there.
    missing: bool,
    /// The supervisor has ended.
    ended: bool,
}

impl Trouble {
    pub(super) fn new(line: impl Into<String>) -> Trouble {
        Trouble { line: line.into(), code: 1, missing: false, ended: false }
    }

    /// No process is what was asked for.
    pub(super) fn missing(line: impl Into<String>) -> Trouble {
        Trouble { missing: true, ..Trouble::new(line) }
    }

    /// The same with another exit code.
    pub(super) fn with_code(self, code: u8) -> Trouble {
        // Whoever was not read has nobody to tell.
        if self.code == BROKEN_PIPE { self } else { Trouble { code, ..self } }
    }

    /// Whether it is that there is no such process.
    pub(super) fn is_missing(&self) -> bool {
        self.missing
    }

    /// The supervisor that a command was connected to has ended.
    fn supervisor_ended(place: &Place) -> Trouble {
        let serve = match *place == Place::usual() {
            true => "procyard serve".to_owned(),
            false => format!("procyard serve --listen {place}"),
        };
        let line = format!(
            "the supervisor at {place} has ended; `{serve}` starts another, which records processes \
             that were still running as LOST"
        );
        Trouble { ended: true, ..Trouble::new(line) }
    }

    /// Whether it is that the supervisor has ended.
    pub(super) fn is_supervisor_end(&self) -> bool {
        self.ended
    }

    /// Nobody could be reached there.
    pub(super) fn unreachable(place: &Place, error: &(dyn Error + 'static)) -> Trouble {
        let cause = deepest(error);
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let nobody =
            matches!(kind, Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused));
        match place.is_local() && nobody {
            true if *place == Place::usual() => Trouble::new(format!(
                "nobody serves at {place}; `procyard serve` does, and `procyard run` starts it by itself"
            )),
            true => Trouble::new(format!(
                "nobody serves at {place}; `procyard serve --listen {place}` would"
            )),
            false => Trouble::new(format!("cannot reach {place}: {cause}")),
        }
    }

    /// Ends the program with it.
    pub(super) fn end(&self) -> ExitCode {
        if self.code != BROKEN_PIPE {
            print::tell(self);
        }
        ExitCode::from(self.code)
    }
}

/// The error at the bottom of it.
pub(super) fn deepest<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl Error for Trouble {}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        let code = if error.kind() == io::ErrorKind::BrokenPipe { BROKEN_PIPE } else { 1 };
        Trouble { code, ..Trouble::new(error.to_string()) }
    }
}

impl From<Status> for Trouble {
    fn from(status: Status) -> Trouble {
        if let Some(NoListener { place, .. }) = NoListener::of(&status) {
            return Trouble::supervisor_ended(place);
        }
        let reason = reason(&status).unwrap_or_default();
        let details = status.get_error_details();
        let fields = details.bad_request().map(|bad| &bad.field_violations[..]).unwrap_or_default();
        let said = match (status.message(), status.code()) {
            _ if !fields.is_empty() => fields.iter().map(wrong).collect::<Vec<_>>().join("; "),
            ("", code) => code.description().to_owned(),
            (message, Code::Unavailable | Code::Unknown | Code::Cancelled) if reason.is_empty() => {
                format!("the connection was lost: {message}")
            }
            (message, _) => message.to_owned(),
        };
        let trouble = match hint(&reason) {
            Some(hint) => Trouble::new(format!("{said}; {hint}")),
            None => Trouble::new(said),
        };
        Trouble { missing: status.code() == Code::NotFound, ..trouble }
    }
}

/// What is wrong with a field.
fn wrong(bad: &FieldViolation) -> String {
    format!("{}: {}", option(&bad.field), bad.description)
}

/// What a field of the API is called on the command line.
fn option(field: &str) -> &str {
    match field {
        "view.grep" => "--grep",
        "wait.output.regex" => "the pattern",
        "spec.readiness.output_regex" => "--ready-prints",
        "spec.readiness.timeout" => "--ready-timeout",
        "spec.stop.signal" => "--stop-signal",
        "spec.stop.grace" => "--grace",
        "spec.transcript_bytes" => "--transcript",
        _ if field.starts_with("spec.env.set") => "--env",
        _ if field.starts_with("spec.labels") => "--label",
        _ if field.starts_with("keys.names") => "the key",
        _ => field.strip_prefix("spec.").unwrap_or(field),
    }
}

/// What to do about a refusal, in the words of the command line.
fn hint(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "PROCESS_NOT_FOUND" => "`procyard ps --all` lists those there are",
        "NO_CREDENTIALS" | "BAD_CREDENTIALS" => "give one by PROCYARD_TOKEN or --tls-cert",
        "ID_CONFLICT" => "choose another one, or free it by `procyard rm`",
        "HAS_OUTPUT" => "that is --force",
        "STILL_RUNNING" => "end it by `procyard kill`, or wait for it by `procyard wait`",
        "NOT_A_TERMINAL" => "`procyard run -t` gives it one",
        "STDIN_NOT_OPEN" => "those are -i and -t of `procyard run`",
        _ => return None,
    })
}
