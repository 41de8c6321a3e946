//! Who follows output, and how far behind.
//!
//! Owns the list of places. A follower tells where it is at each message, which is one store; how far
//! that is behind is worked out when somebody scrapes, so that one who stopped reading is seen to
//! fall behind.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Entry, observable};

/// All who follow now. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Followers(Arc<Mutex<Places>>);

#[derive(Default)]
struct Places {
    next: u64,
    all: HashMap<u64, (Arc<Entry>, Arc<AtomicU64>)>,
}

/// One who follows, until this is dropped.
pub struct Follower {
    followers: Followers,
    number: u64,
    seq: Arc<AtomicU64>,
}

/// How far behind all of them are, in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// How many they are.
    pub followers: u64,
    /// Of the one that is furthest behind.
    pub most: u64,
    /// Of all together.
    pub all: u64,
}

impl Followers {
    /// Somebody follows a process, from a chunk on.
    pub(super) fn enter(&self, entry: Arc<Entry>, seq: u64) -> Follower {
        let seq = Arc::new(AtomicU64::new(seq));
        let mut places = self.places();
        let number = places.next;
        places.next += 1;
        places.all.insert(number, (entry, Arc::clone(&seq)));
        drop(places);
        Follower { followers: self.clone(), number, seq }
    }

    pub(super) fn lag(&self) -> Lag {
        let places = self.places();
        places.all.values().fold(Lag::default(), |lag, (entry, seq)| {
            let latest = observable(&entry.seen()).next_seq;
            let behind = latest.saturating_sub(seq.load(Ordering::Relaxed));
            Lag {
                followers: lag.followers + 1,
                most: lag.most.max(behind),
                all: lag.all.saturating_add(behind),
            }
        })
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Follower {
    /// All before this chunk was sent.
    pub fn reached(&self, seq: u64) {
        self.seq.store(seq, Ordering::Relaxed);
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.followers.places().all.remove(&self.number);
    }
}
