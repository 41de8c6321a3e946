//! The turns in which connections read.
//!
//! All connections share one thread, and whatever a client sends costs time of it, also what is refused or means
//! nothing. A connection reads little at a time, and nothing while its client has had the thread for long: then the
//! tasks of all other clients run first. So the bytes of a flood wait in the kernel.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::connection_auth::ConnectionAuth;
use crate::supervisor::ThreadShare;

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
    /// The share that its client had, and the poll of the tasks of that client, when the bytes were read.
    last_poll: (Arc<ThreadShare>, u64),
    bytes: usize,
    /// First bytes that are to come.
    free_bytes: usize,
    /// Until others have run.
    wait: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl ReadTurns {
    /// `free_bytes`: those that do not wait for the share of the client.
    pub(super) fn new(auth: ConnectionAuth, free_bytes: usize) -> ReadTurns {
        let last_poll = (auth.thread_share(), 0);
        ReadTurns { auth, last_poll, bytes: 0, free_bytes, wait: None }
    }

    /// Ready when the connection may read so many bytes.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let share = self.auth.thread_share();
        let poll = (Arc::clone(&share), share.polls());
        let (last_share, last_poll) = std::mem::replace(&mut self.last_poll, poll);
        // A client that was not known before has another share now.
        let is_new_poll = !Arc::ptr_eq(&last_share, &share) || last_poll != share.polls();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Caller;

    /// Polls as a task of the connection.
    fn poll(turns: &mut ReadTurns, cx: &mut Context<'_>) -> Poll<usize> {
        let share = turns.auth.thread_share();
        share.poll(|| turns.poll(cx))
    }

    #[tokio::test]
    async fn connection_reads_on_when_its_client_becomes_known() {
        let auth = ConnectionAuth::default();
        let mut turns = ReadTurns::new(auth.clone(), 0);
        let used_up = std::future::poll_fn(|cx| {
            let share = auth.thread_share();
            share.poll(|| {
                while share.has_time() {}
                Poll::Ready(turns.poll(cx))
            })
        });
        assert!(used_up.await.is_pending());
        // The new share has been polled as often as the old one.
        auth.mark_authenticated(&Caller::admin("a"));
        let room = std::future::poll_fn(|cx| poll(&mut turns, cx)).await;
        assert_eq!(room, READ_BYTES);
    }
}
