//! Whether a connection has an authenticated caller, shared by the connection and its requests.
//!
//! Owns how long a connection without one may last: places are few, and a client without credentials
//! could take them all. A client that watches health needs no credentials, and may stay. Owns also how many
//! calls may be refused on such a connection, and which share of the server's thread it uses.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::listener::ConnectionSlot;
use super::origin::Client;
use super::thread_shares::ThreadShares;
use crate::access::Caller;
use crate::supervisor::ThreadShare;

/// Calls that are refused on a connection without an authenticated caller before it is closed. A client that
/// retries with a wrong token connects again.
const MAX_REFUSED_CALLS: usize = 64;

/// The authentication state of one connection. Travels with its requests.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionAuth(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// Absent only in tests without a listener.
    slot: Option<Arc<ConnectionSlot>>,
    authenticated: AtomicBool,
    watches: AtomicUsize,
    health_calls: AtomicUsize,
    refused_calls: AtomicUsize,
    refusal_limit: Notify,
    thread_shares: ThreadShares,
    /// Of its caller, or of its origin until there is one.
    thread_share: Mutex<Arc<ThreadShare>>,
}

/// An open health Watch; it is over when this is dropped.
#[derive(Debug)]
pub(super) struct OpenWatch(ConnectionAuth);

/// A health call; it is over when this is dropped.
#[derive(Debug)]
pub(super) struct OpenHealthCall(ConnectionAuth);

impl ConnectionAuth {
    /// `client`: what is known of it when the connection was accepted.
    pub(super) fn new(
        slot: Arc<ConnectionSlot>,
        client: Client,
        thread_shares: &ThreadShares,
    ) -> ConnectionAuth {
        let authenticated = AtomicBool::new(matches!(client, Client::Caller(_)));
        let thread_share = Mutex::new(thread_shares.of(client));
        let (slot, thread_shares) = (Some(slot), thread_shares.clone());
        let state = State { slot, authenticated, thread_shares, thread_share, ..State::default() };
        ConnectionAuth(Arc::new(state))
    }

    /// The share of the server's thread that its tasks use.
    pub(super) fn thread_share(&self) -> Arc<ThreadShare> {
        Arc::clone(&self.0.thread_share.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records that a call on the connection is by this caller. The first one counts.
    pub(super) fn mark_authenticated(&self, caller: &Caller) {
        if self.0.authenticated.load(Ordering::Relaxed) {
            return;
        }
        self.0.authenticated.store(true, Ordering::Relaxed);
        let share = self.0.thread_shares.of(Client::Caller(caller.name.clone()));
        *self.0.thread_share.lock().unwrap_or_else(PoisonError::into_inner) = share;
        if let Some(slot) = &self.0.slot {
            slot.authenticate(caller);
        }
    }

    /// Keeps the connection open for a health Watch.
    pub(super) fn open_watch(&self) -> OpenWatch {
        self.0.watches.fetch_add(1, Ordering::Relaxed);
        OpenWatch(self.clone())
    }

    /// Counts a health call, unless the connection has `max` of them.
    pub(super) fn open_health_call(&self, max: usize) -> Option<OpenHealthCall> {
        let call = OpenHealthCall(self.clone());
        let open = self.0.health_calls.fetch_add(1, Ordering::Relaxed);
        (open < max).then_some(call)
    }

    /// Counts a call that is refused, if the connection has no authenticated caller. That is so for all calls
    /// but those of health.
    pub(super) fn count_refusal(&self) {
        if self.0.authenticated.load(Ordering::Relaxed) {
            return;
        }
        if self.0.refused_calls.fetch_add(1, Ordering::Relaxed) >= MAX_REFUSED_CALLS {
            self.0.refusal_limit.notify_one();
        }
    }

    /// Whether so many calls were refused that the connection is closed.
    pub(super) fn is_refusal_limit_exceeded(&self) -> bool {
        let refused = self.0.refused_calls.load(Ordering::Relaxed);
        refused > MAX_REFUSED_CALLS && !self.0.authenticated.load(Ordering::Relaxed)
    }

    /// Returns when [`MAX_REFUSED_CALLS`] is exceeded.
    pub(super) async fn refusal_limit(&self) {
        self.0.refusal_limit.notified().await;
    }

    /// Returns when the connection has had no authenticated caller for this long, and no watch.
    pub(super) async fn auth_deadline(&self, timeout: Duration) {
        loop {
            sleep(timeout).await;
            if self.0.authenticated.load(Ordering::Relaxed) {
                return pending().await;
            }
            if self.0.watches.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for OpenHealthCall {
    fn drop(&mut self) {
        self.0.0.health_calls.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn deadline_spares_watches_and_authenticated_callers() {
        let (short, long) = (Duration::from_millis(1), Duration::from_millis(100));
        let auth = ConnectionAuth::default();
        let watch = auth.open_watch();
        assert!(timeout(long, auth.auth_deadline(short)).await.is_err());
        assert!(auth.auth_deadline(long).now_or_never().is_none());
        drop(watch);
        auth.auth_deadline(short).await;
        auth.mark_authenticated(&Caller::admin("a"));
        assert!(timeout(long, auth.auth_deadline(short)).await.is_err());
    }

    #[test]
    fn refused_calls_without_a_caller_are_bounded() {
        let auth = ConnectionAuth::default();
        for _ in 0..MAX_REFUSED_CALLS {
            auth.count_refusal();
        }
        assert!(!auth.is_refusal_limit_exceeded());
        assert!(auth.refusal_limit().now_or_never().is_none());
        auth.count_refusal();
        assert!(auth.is_refusal_limit_exceeded());
        assert!(auth.refusal_limit().now_or_never().is_some());
        let known = ConnectionAuth::default();
        known.mark_authenticated(&Caller::admin("a"));
        for _ in 0..=MAX_REFUSED_CALLS {
            known.count_refusal();
        }
        assert!(!known.is_refusal_limit_exceeded());
    }

    #[test]
    fn health_calls_of_a_connection_are_bounded() {
        let auth = ConnectionAuth::default();
        let calls: Vec<_> = (0..2).map(|_| auth.open_health_call(2).unwrap()).collect();
        assert!(auth.open_health_call(2).is_none());
        drop(calls);
        assert!(auth.open_health_call(2).is_some());
    }
}
