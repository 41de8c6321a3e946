//! Whether anybody on a connection over TCP became known.
//!
//! Owns how long strangers may stay: the places at the door are few, and who has nothing to show
//! could take them all. Probes of health have nothing to show and stay while they watch.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::sleep;

/// What is known of who is at the other end of a connection. Travels with its requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Acquaintance(Arc<State>);

#[derive(Debug, Default)]
struct State {
    known: AtomicBool,
    watching: AtomicUsize,
}

/// Somebody who watches, until this is dropped.
#[derive(Debug)]
pub(super) struct Watching(Acquaintance);

impl Acquaintance {
    /// Somebody has shown who it is.
    pub(super) fn make(&self) {
        self.0.known.store(true, Ordering::Relaxed);
    }

    /// Somebody watches whom nobody needs to know.
    pub(super) fn watch(&self) -> Watching {
        self.0.watching.fetch_add(1, Ordering::Relaxed);
        Watching(self.clone())
    }

    /// Returns when a connection on which nobody is known has lasted so long, and nobody watches.
    pub(super) async fn overstayed(&self, stay: Duration) {
        loop {
            sleep(stay).await;
            if self.0.known.load(Ordering::Relaxed) {
                return pending().await;
            }
            if self.0.watching.load(Ordering::Relaxed) == 0 {
                return;
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.0.watching.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_stranger_has_to_go_unless_it_watches_and_who_is_known_stays() {
        let (moment, long) = (Duration::from_millis(1), Duration::from_millis(100));
        let stranger = Acquaintance::default();
        let watching = stranger.watch();
        assert!(timeout(long, stranger.overstayed(moment)).await.is_err());
        assert!(stranger.overstayed(long).now_or_never().is_none());
        drop(watching);
        stranger.overstayed(moment).await;
        stranger.make();
        assert!(timeout(long, stranger.overstayed(moment)).await.is_err());
    }
}
