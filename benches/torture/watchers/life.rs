//! The life of one process as its events tell it. Pure.

use procyard::grpc::pb::{self, Cause, Kind, State};

use crate::promise::Promise;

#[derive(Debug)]
pub(super) struct Life {
    /// What was told last; none: nothing yet.
    last: Option<Kind>,
    run: u32,
    restarts: u32,
    completed: u32,
    promise: Option<Promise>,
}

impl Life {
    pub(super) fn new() -> Life {
        Life { last: None, run: 1, restarts: 0, completed: 0, promise: None }
    }

    /// Takes the next event, and says what is wrong with it.
    pub(super) fn take(&mut self, event: &pb::Event) -> Result<(), String> {
        let (seq, kind) = (event.seq, event.kind());
        let process =
            event.process.as_ref().ok_or_else(|| format!("event {seq} has no process"))?;
        let before = self.last.replace(kind);
        if kind == Kind::RunAgain {
            (self.run, self.restarts) = (self.run + 1, 0);
        }
        if kind == Kind::Restarting {
            self.restarts += 1;
        }
        let found = (process.run, process.restarts);
        let expected = (self.run, self.restarts);
        if !follows(before, kind, process) {
            return Err(format!("event {seq}: {kind:?} after {before:?}"));
        }
        if found != expected {
            return Err(format!(
                "event {seq}, {kind:?}: expected run and restarts {expected:?}, found {found:?}"
            ));
        }
        if kind == Kind::Completed {
            self.completed += 1;
            self.promise = Some(Promise::of(process)?);
            Promise::kept(process).map_err(|wrong| format!("event {seq}: {wrong}"))?;
            if process.state() != State::Exited {
                return Err(format!("event {seq}: completed, and {:?}", process.state()));
            }
        }
        Ok(())
    }

    /// Whether one that was deleted, or will not run any more, completed as often as promised.
    pub(super) fn over(&self) -> Result<(), String> {
        let expected = self.promise.as_ref().map(|promise| promise.runs);
        if expected == Some(self.completed) {
            return Ok(());
        }
        Err(format!("expected {expected:?} completions, found {}", self.completed))
    }

    /// The same when nothing happens any more: what is promised to be ended by the shutdown runs.
    pub(super) fn settled(&self) -> Result<(), String> {
        match self.last {
            Some(Kind::Completed) => self.over(),
            Some(Kind::Started) if self.promise.is_none() => Ok(()),
            last => Err(format!("the last that was told of it is {last:?}")),
        }
    }
}

/// Whether a kind of event may come after another.
fn follows(before: Option<Kind>, kind: Kind, process: &pb::Process) -> bool {
    use Kind::{Completed, Deleted, Queued, Ready, Restarting, RunAgain, Started, Stopping};
    let cause = process.exit.as_ref().map(pb::Exit::cause);
    match kind {
        Queued => matches!(before, None | Some(RunAgain)),
        Started => matches!(before, None | Some(Queued | RunAgain | Restarting)),
        Ready => before == Some(Started),
        Stopping => matches!(before, Some(Started | Ready)),
        Restarting => matches!(before, Some(Started | Ready | Stopping)),
        Completed => match before {
            Some(Started | Ready | Stopping) => true,
            Some(Restarting) => cause == Some(Cause::Killed),
            Some(Queued) => cause == Some(Cause::CanceledInQueue),
            _ => false,
        },
        RunAgain | Deleted => before == Some(Completed),
        Kind::Unspecified => false,
    }
}
