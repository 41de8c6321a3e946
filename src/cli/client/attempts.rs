//! Calls that are made again when the server is replaced.
//!
//! The server may be replaced at any moment. Who connects meanwhile waits; what breaks is a
//! connection, with every call on it, and nobody can tell which of them had been obeyed. So only
//! what may be done twice is done again.

use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

use crate::cli::print;

/// How long a service may be away.
const PATIENCE: Duration = Duration::from_secs(60);
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
        Attempts { until, pause: FIRST_PAUSE, lost: None, aloud: false }
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
        if !is_lost(&status) || Instant::now() + self.pause > self.until {
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
