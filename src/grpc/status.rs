//! Refusals to statuses: the only place where an [`Error`] meets a gRPC code.
//!
//! Owns the codes, reasons, metadata and retry delays of the API. What a caller sent is repeated
//! clipped: a status travels in headers, and many clients refuse more than 8 KiB of them.

mod errno;

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use super::clip::clip;
use super::framework::DOMAIN;
use crate::access::{Choice, Outside};
use crate::supervisor::{BadField, Error, LATER, Reached};

/// The type of what was not found.
const PROCESS: &str = "procyard.v1.Process";
/// Most bytes of a message. It is sent twice, once with up to three bytes for each.
const MESSAGE: usize = 512;
/// Most bytes of a value in the metadata.
const VALUE: usize = 1 << 10;
/// When input may have been read meanwhile.
const SOON: Duration = Duration::from_millis(100);

/// What a refusal is on the wire, besides its message.
struct Verdict {
    code: Code,
    reason: &'static str,
    metadata: Vec<(&'static str, String)>,
    /// When a retry may help.
    retry: Option<Duration>,
}

impl Verdict {
    fn new(code: Code, reason: &'static str) -> Verdict {
        Verdict { code, reason, metadata: Vec::new(), retry: None }
    }

    fn with(mut self, key: &'static str, value: impl ToString) -> Verdict {
        self.metadata.push((key, value.to_string()));
        self
    }

    /// There is too little of something, and a retry after a while may help.
    fn exhausted(reason: &'static str, retry: Duration) -> Verdict {
        Verdict { retry: Some(retry), ..Verdict::new(Code::ResourceExhausted, reason) }
    }
}

fn verdict(error: &Error) -> Verdict {
    let precondition = |reason| Verdict::new(Code::FailedPrecondition, reason);
    match error {
        Error::Invalid(_) => Verdict::new(Code::InvalidArgument, "INVALID_FIELD"),
        Error::NoCredentials | Error::UnknownUser(_) | Error::ChildProcess => {
            Verdict::new(Code::Unauthenticated, "NO_CREDENTIALS")
        }
        Error::BadCredentials | Error::NotBearer => {
            Verdict::new(Code::Unauthenticated, "BAD_CREDENTIALS")
        }
        Error::Role { call, role, needs } => Verdict::new(Code::PermissionDenied, "ROLE")
            .with("call", call)
            .with("role", role)
            .with("needs", needs),
        Error::Scope(Outside { field, allowed, given: _ }) => {
            Verdict::new(Code::PermissionDenied, "SCOPE")
                .with("field", format_args!("spec.{field}"))
                .with("allowed", allowed)
        }
        Error::NotFree(choice) => not_free(*choice),
        Error::NotFound(id) => Verdict::new(Code::NotFound, "PROCESS_NOT_FOUND").with("id", id),
        Error::IdConflict(id) => Verdict::new(Code::AlreadyExists, "ID_CONFLICT").with("id", id),
        Error::ServiceRunning { service, id } => {
            let verdict = Verdict::new(Code::AlreadyExists, "SERVICE_RUNNING");
            verdict.with("service", service).with("id", id)
        }
        Error::ScreenTooCostly => Verdict::new(Code::ResourceExhausted, "SCREEN_TOO_COSTLY"),
        Error::HasOutput(id) => precondition("HAS_OUTPUT").with("id", id),
        Error::SpawnFailed { step, errno, path } => {
            system(precondition("SPAWN_FAILED"), step, *errno).with("path", path)
        }
        Error::UserNotAllowed { step, errno } => {
            system(Verdict::new(Code::PermissionDenied, "USER_NOT_ALLOWED"), step, *errno)
        }
        Error::LimitUnsupported { unsupported, enforceable: _ } => {
            precondition("LIMIT_UNSUPPORTED").with("limits", unsupported.join(","))
        }
        Error::CwdNotAllowed { writable, path } => {
            let field = if *writable { "spec.sandbox.writable" } else { "spec.cwd" };
            let verdict = Verdict::new(Code::PermissionDenied, "CWD_NOT_ALLOWED");
            verdict.with("path", path).with("field", field)
        }
        Error::SandboxUnsupported(parts) => {
            precondition("SANDBOX_UNSUPPORTED").with("sandbox", parts.join(","))
        }
        Error::NotRunning(id) => precondition("NOT_RUNNING").with("id", id),
        Error::StillRunning(id) => precondition("STILL_RUNNING").with("id", id),
        Error::NotATerminal(id) => precondition("NOT_A_TERMINAL").with("id", id),
        Error::StdinNotOpen(id) => precondition("STDIN_NOT_OPEN").with("id", id),
        Error::CursorAhead { cursor, next } => {
            Verdict::new(Code::OutOfRange, "CURSOR_AHEAD").with("cursor", cursor).with("next", next)
        }
        Error::InputOffset { offset, accepted } => Verdict::new(Code::OutOfRange, "INPUT_OFFSET")
            .with("offset", offset)
            .with("accepted_bytes", accepted),
        Error::StdinFull { pending } => {
            Verdict::exhausted("STDIN_FULL", SOON).with("pending_bytes", pending)
        }
        Error::TooManyProcesses => Verdict::exhausted("TOO_MANY_PROCESSES", LATER),
        Error::Quota(reached) => over("TOO_MANY_PROCESSES", reached),
        Error::TooManyStreams(reached) => over("TOO_MANY_STREAMS", reached),
        Error::TooManyCalls(reached) => over("TOO_MANY_CALLS", reached),
        Error::OutOfPids => Verdict::exhausted("OUT_OF_PIDS", LATER),
        Error::OutOfDescriptors => Verdict::exhausted("OUT_OF_DESCRIPTORS", LATER),
        Error::OutOfTerminals => Verdict::exhausted("OUT_OF_TERMINALS", LATER),
        Error::ShuttingDown => Verdict::new(Code::Unavailable, "SHUTTING_DOWN"),
        Error::Store(_) => {
            Verdict { retry: Some(LATER), ..Verdict::new(Code::Unavailable, "STORE_FAILED") }
        }
        Error::Keeper(_) => Verdict::new(Code::Internal, "KEEPER"),
    }
}

/// A choice that is not the caller's.
fn not_free(choice: Choice) -> Verdict {
    let reason = match choice {
        Choice::User => "USER_NOT_ALLOWED",
        Choice::Inherit | Choice::InheritAll | Choice::Interpreter => "ROLE",
    };
    let verdict = Verdict::new(Code::PermissionDenied, reason);
    verdict.with("field", choice.field()).with("freedom", choice.freedom())
}

/// A bound that was reached, and whose it is.
fn over(reason: &'static str, reached: &Reached) -> Verdict {
    let Reached { what, most, used, of_all, retry } = reached;
    let verdict = Verdict { retry: *retry, ..Verdict::new(Code::ResourceExhausted, reason) };
    verdict
        .with("limit", what.name())
        .with("most", most)
        .with("used", used)
        .with("of", if *of_all { "all" } else { "caller" })
}

/// The kernel's word, as a number and, where it has one, by its name.
fn system(verdict: Verdict, step: &str, errno: i32) -> Verdict {
    let verdict = verdict.with("step", step).with("errno", errno);
    match errno::name(errno) {
        Some(name) => verdict.with("errno_name", name),
        None => verdict,
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        let Verdict { code, reason, metadata, retry } = verdict(&error);
        let metadata: HashMap<String, String> =
            metadata.into_iter().map(|(key, value)| (key.into(), clip(&value, VALUE))).collect();
        let mut details = ErrorDetails::new();
        details.set_error_info(reason, DOMAIN, metadata);
        if retry.is_some() {
            details.set_retry_info(retry);
        }
        match &error {
            Error::Invalid(fields) => {
                details.set_bad_request(fields.iter().map(violation).collect::<Vec<_>>());
            }
            Error::NotFound(id) => {
                details.set_resource_info(PROCESS, clip(id, VALUE), "", "no such process");
            }
            _ => {}
        }
        Status::with_error_details(code, clip(&error.to_string(), MESSAGE), details)
    }
}

/// How many there are is the care of `from_proto`.
fn violation(BadField { field, problem }: &BadField) -> FieldViolation {
    FieldViolation::new(clip(field, MESSAGE), clip(problem, MESSAGE))
}

#[cfg(test)]
pub(super) mod tests;
