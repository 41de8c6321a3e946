//! When a connection may read.
//!
//! All connections share one thread, and whatever a client sends costs time of it, also what is refused or means
//! nothing. A connection reads little at a time, and nothing while its client has had the thread for long: then the
//! tasks of all other clients run first. So the bytes of a flood wait in the kernel.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::connection_auth::ConnectionAuth;

/// Bytes of one read: some dozen calls fit into them.
const READ_BYTES: usize = 4 << 10;

/// Bytes that a connection reads before other tasks run.
const MAX_BYTES: usize = 64 << 10;

/// First bytes of a connection without TLS, which do not wait for the share of its client: a call fits into them.
/// Until it came, the client is an origin, and others may have connected from there.
pub(super) const FREE_BYTES: usize = 1 << 10;

/// How much a connection has read since other tasks have run.
pub(super) struct ReadTurns {
    auth: ConnectionAuth,
    /// The poll of its client's tasks during which the bytes were read.
    poll: u64,
    bytes: usize,
    /// First bytes that are to come.
    free_bytes: usize,
    /// Until others have run.
    wait: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl ReadTurns {
    /// `free_bytes`: those that do not wait for the share of the client.
    pub(super) fn new(auth: ConnectionAuth, free_bytes: usize) -> ReadTurns {
        ReadTurns { auth, poll: 0, bytes: 0, free_bytes, wait: None }
    }

    /// Ready when the connection may read so many bytes.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let share = self.auth.thread_share();
        let is_new_poll = share.polls() != std::mem::replace(&mut self.poll, share.polls());
        if self.wait.is_none() {
            if is_new_poll {
                self.bytes = 0;
            }
            let has_time = self.bytes < MAX_BYTES && share.has_time();
            let room = if has_time { READ_BYTES } else { self.free_bytes };
            if room > 0 {
                return Poll::Ready(room);
            }
            let share = Arc::clone(&share);
            self.wait = Some(Box::pin(async move {
                tokio::task::yield_now().await;
                share.available().await;
            }));
        } else if !is_new_poll {
            // HTTP asks again before others have run.
            return Poll::Pending;
        }
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(cx));
        }
        self.wait = None;
        // Others wait for the share, too: one read, and then they.
        self.bytes = MAX_BYTES;
        Poll::Ready(READ_BYTES)
    }

    /// Counts bytes that were read.
    pub(super) fn count(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.free_bytes = self.free_bytes.saturating_sub(bytes);
    }
}
