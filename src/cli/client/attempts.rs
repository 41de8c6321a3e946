//! Calls that are made again when the server is replaced.
//!
//! The server may be replaced at any moment. Who connects meanwhile waits; what breaks is a
//! connection, with every call on it, and nobody can tell which of them had been obeyed. So only
//! what may be done twice is done again. A supervisor that has ended itself is not waited for.

use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

use super::NoListener;
use crate::cli::print;

/// How long a service may be away.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long no process may listen on a Unix socket until its supervisor has ended: a service manager
/// that restarts it takes less.
const NO_LISTENER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may be until that is said, and what is said.
pub(in crate::cli) const AWAY: Duration = Duration::from_secs(2);
pub(in crate::cli) const UNREACHABLE: &str = "the supervisor cannot be reached; waiting for it";
/// Between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A call that took so long was with somebody who was there: no attempt to connect takes as long.
const CONVERSATION: Duration = Duration::from_secs(30);

/// Attempts to do one thing.
pub(in crate::cli) struct Attempts {
    until: Instant,
    pause: Duration,
    /// Since when nobody could be reached.
    lost: Option<Instant>,
    /// Since when no process has listened on the Unix socket.
    unlistened: Option<Instant>,
    /// Whoever is there to read it is still to be told so.
    aloud: bool,
}

impl Attempts {
    pub(in crate::cli) fn begin() -> Attempts {
        Attempts::within(PATIENCE)
    }

    /// Those that are made within a time.
    pub(in crate::cli) fn within(patience: Duration) -> Attempts {
        let until = Instant::now() + patience;
        Attempts { until, pause: FIRST_PAUSE, lost: None, unlistened: None, aloud: false }
    }

    /// The usual ones, and somebody who looks is told if they take long.
    pub(in crate::cli) fn aloud() -> Attempts {
        Attempts { aloud: io::stderr().is_terminal(), ..Attempts::begin() }
    }

    /// Waits for somebody to answer, and says so if that takes long.
    pub(in crate::cli) async fn wait<T>(&mut self, answer: impl Future<Output = T>) -> T {
        let lost = self.lost.unwrap_or_else(Instant::now);
        let mut answer = pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => return answer,
            () = tokio::time::sleep_until(lost + AWAY), if self.aloud => self.tell(),
        }
        answer.await
    }

    fn tell(&mut self) {
        self.aloud = false;
        print::tell(UNREACHABLE);
    }

    /// Pauses after a connection was lost; any other status, and the last one, is the caller's.
    pub(in crate::cli) async fn pause_after(&mut self, status: Status) -> Result<(), Status> {
        let now = Instant::now();
        if !is_lost(&status) || now + self.pause > self.until || self.has_ended(&status, now) {
            return Err(status);
        }
        let lost = *self.lost.get_or_insert_with(Instant::now);
        if self.aloud && lost.elapsed() >= AWAY {
            self.tell();
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        Ok(())
    }
}

impl Attempts {
    /// Whether the supervisor itself has ended, and not only its server.
    fn has_ended(&mut self, status: &Status, now: Instant) -> bool {
        let since = NoListener::of(status).map(|_| self.unlistened.unwrap_or(now));
        self.unlistened = since;
        since.is_some_and(|since| now.duration_since(since) >= NO_LISTENER_TIMEOUT)
    }
}

/// Why the service has refused a call, in the API's word; none: it was not the service that did.
pub(in crate::cli) fn reason(status: &Status) -> Option<String> {
    status.get_error_details().error_info().map(|info| info.reason.clone())
}

/// Whether a status tells that the connection was lost or the server is being replaced, and nothing
/// of the call itself.
pub(in crate::cli) fn is_lost(status: &Status) -> bool {
    if let Some(reason) = reason(status) {
        return reason == "SHUTTING_DOWN";
    }
    let http2 = status.code() == Code::Internal && status.message().contains("h2 protocol error");
    http2 || matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled)
}

/// The answer to a call that may be made twice.
pub(in crate::cli) async fn again<T>(
    call: impl AsyncFnMut() -> Result<Response<T>, Status>,
) -> Result<T, Status> {
    repeated(call, Attempts::aloud).await
}

/// The same, without a word where it takes long: others say so.
pub(in crate::cli) async fn quietly_again<T>(
    call: impl AsyncFnMut() -> Result<Response<T>, Status>,
) -> Result<T, Status> {
    repeated(call, Attempts::begin).await
}

async fn repeated<T>(
    mut call: impl AsyncFnMut() -> Result<Response<T>, Status>,
    begin: impl Fn() -> Attempts,
) -> Result<T, Status> {
    let mut attempts = begin();
    loop {
        let begun = Instant::now();
        match call().await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => {
                if begun.elapsed() > CONVERSATION {
                    attempts = begin();
                }
                attempts.pause_after(status).await?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::client::Place;

    #[test]
    fn supervisor_has_ended_when_no_process_listens_for_a_while() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let marked = NoListener::mark(Place::Unix("/s".into()), refused);
        let unlistened = Status::from_error(Box::new(marked));
        let lost = Status::unavailable("the stream broke off");
        let (begin, mut attempts) = (Instant::now(), Attempts::begin());
        assert!(!attempts.has_ended(&unlistened, begin));
        assert!(!attempts.has_ended(&unlistened, begin + NO_LISTENER_TIMEOUT / 2));
        assert!(attempts.has_ended(&unlistened, begin + NO_LISTENER_TIMEOUT));
        // A server that is replaced refuses no connection.
        assert!(!attempts.has_ended(&lost, begin + 2 * NO_LISTENER_TIMEOUT));
        assert!(!attempts.has_ended(&unlistened, begin + 3 * NO_LISTENER_TIMEOUT));
    }
}
