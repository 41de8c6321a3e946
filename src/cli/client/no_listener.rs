//! A Unix socket on which no process listens: its supervisor has ended.
//!
//! While a server is replaced, the keeper holds the listening socket and connects wait in its
//! backlog. They are refused, or find no socket, only when the keeper itself is gone. Over TCP a
//! refusal may also come from a proxy or a host that restarts, so only Unix sockets count.

use std::error::Error;
use std::fmt;
use std::io;

use tonic::Status;

use super::Place;
use crate::cli::trouble::deepest;

/// The cause of a failed connect to a Unix socket without a listener.
#[derive(Debug)]
pub(in crate::cli) struct NoListener {
    /// The address of the socket.
    pub(in crate::cli) place: Place,
    cause: io::Error,
}

impl NoListener {
    /// Marks an error of connecting to `place` that says that no process listens there.
    pub(super) fn mark(place: Place, cause: io::Error) -> io::Error {
        match cause.kind() {
            kind @ (io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                io::Error::new(kind, NoListener { place, cause })
            }
            _ => cause,
        }
    }

    /// The marked error below a status; none: the call failed for another reason.
    pub(in crate::cli) fn of(status: &Status) -> Option<&NoListener> {
        deepest(status).downcast_ref::<io::Error>()?.get_ref()?.downcast_ref()
    }
}

impl fmt::Display for NoListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

// Without a source, so that the marked error stays the deepest one.
impl Error for NoListener {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_and_refusing_sockets_are_marked() {
        let place = || Place::Unix("/s".into());
        let status = |kind: io::ErrorKind| {
            let marked = NoListener::mark(place(), io::Error::new(kind, "cause"));
            assert_eq!(marked.to_string(), "cause");
            Status::from_error(Box::new(marked))
        };
        for kind in [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused] {
            assert_eq!(NoListener::of(&status(kind)).unwrap().place, place());
        }
        assert!(NoListener::of(&status(io::ErrorKind::TimedOut)).is_none());
        let unmarked = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(NoListener::of(&Status::from_error(Box::new(unmarked))).is_none());
    }
}
