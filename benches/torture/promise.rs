//! What was promised of a process when it was started: how often it runs and how each run ends.
//!
//! It is written into the labels, so that whoever looks at a record or an event can hold it against
//! that, and nobody has to remember.

use std::collections::HashMap;

use procyard::grpc::pb::{self, Cause, Outcome};

/// How a program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Code(i32),
    Signal(i32),
    /// It never ran.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) runs: u32,
    pub(crate) cause: Cause,
    pub(crate) status: Status,
    /// In each run.
    pub(crate) restarts: u32,
}

impl Promise {
    /// One run that exits with this code.
    pub(crate) fn exits(code: i32) -> Promise {
        Promise { runs: 1, cause: Cause::Exited, status: Status::Code(code), restarts: 0 }
    }

    /// One run that procyard ends for this cause, by this signal.
    pub(crate) fn ends(cause: Cause, signal: i32) -> Promise {
        Promise { cause, status: Status::Signal(signal), ..Promise::exits(0) }
    }

    pub(crate) fn labels(&self) -> HashMap<String, String> {
        let Promise { runs, cause, status, restarts } = self;
        let (code, signal) = match status {
            Status::Code(code) => (Some(code), None),
            Status::Signal(signal) => (None, Some(signal)),
            Status::None => (None, None),
        };
        let number = |number: Option<&i32>| number.map(i32::to_string).unwrap_or_default();
        [
            ("runs", runs.to_string()),
            ("cause", cause.as_str_name().to_owned()),
            ("code", number(code)),
            ("signal", number(signal)),
            ("restarts", restarts.to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    /// What the labels of a process say.
    pub(crate) fn of(process: &pb::Process) -> Result<Promise, String> {
        let labels = process.spec.as_ref().map(|spec| &spec.labels).ok_or("no spec")?;
        let label = |key: &str| labels.get(key).ok_or_else(|| format!("no label {key}"));
        let number = |key: &str| label(key)?.parse::<u32>().map_err(|error| error.to_string());
        let status = match (label("code")?.parse(), label("signal")?.parse()) {
            (Ok(code), _) => Status::Code(code),
            (_, Ok(signal)) => Status::Signal(signal),
            _ => Status::None,
        };
        let cause = label("cause")?;
        let cause = Cause::from_str_name(cause).ok_or_else(|| format!("no cause {cause}"))?;
        Ok(Promise { runs: number("runs")?, cause, status, restarts: number("restarts")? })
    }

    /// Whether a process that has exited did so as promised.
    pub(crate) fn kept(process: &pb::Process) -> Result<(), String> {
        let promise = Promise::of(process)?;
        let exit = process.exit.as_ref().ok_or("exited, and nobody knows how")?;
        let status = match (exit.code, exit.signal) {
            (Some(code), None) => Status::Code(code),
            (None, Some(signal)) => Status::Signal(signal),
            (None, None) => Status::None,
            both => return Err(format!("ended with code and signal {both:?}")),
        };
        let found = (exit.cause(), status, exit.outcome(), process.restarts);
        let expected = (promise.cause, promise.status, promise.outcome(), promise.restarts);
        if found != expected {
            let run = process.run;
            return Err(format!("run {run} ended: expected {expected:?}, found {found:?}"));
        }
        Ok(())
    }

    fn outcome(&self) -> Outcome {
        match self.cause {
            Cause::Exited if self.status == Status::Code(0) => Outcome::Succeeded,
            Cause::Killed | Cause::CanceledInQueue | Cause::Shutdown => Outcome::Canceled,
            Cause::TimedOut => Outcome::TimedOut,
            _ => Outcome::Failed,
        }
    }
}
