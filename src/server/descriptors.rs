//! How many files the server may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files as far as it goes. The soft one is low for the sake of programs
/// that use `select`; children keep it, since they are the keeper's and not this process's.
pub(super) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, limit = limit.current, "cannot raise the limit on open files");
    }
}
