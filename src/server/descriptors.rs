//! How many files the server may have open, and what it makes of those that may not grow.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files as far as it goes. The soft one is low for the sake of programs
/// that use `select`; children keep it, since they are the keeper's and not this process's.
pub(super) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, limit = limit.current, "cannot raise the limit on open files");
    }
}

/// A file that may not grow any more is a write that fails, and no reason to end.
pub(super) fn outlive_file_limit() {
    // SAFETY: no handler runs; the server starts no programs that would inherit this.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
