//! How much output there was: bytes captured and dropped since this server began.
//!
//! Owns the sums, which only ever grow: what was counted of a process stays counted when it is freed.
//! The keeper's reports say when a ring has grown; by how much is read there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::transcript::Ring;

/// The sums of all rings. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Growth(Arc<Sums>);

#[derive(Debug, Default)]
struct Sums {
    captured: AtomicU64,
    dropped: AtomicU64,
}

/// How much of a ring was counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    captured: u64,
    dropped: u64,
}

impl Growth {
    /// Bytes that were captured.
    pub fn captured(&self) -> u64 {
        self.0.captured.load(Ordering::Relaxed)
    }

    /// Bytes that were dropped for want of room.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Counts what was added to a ring.
    pub(super) fn count(&self, ring: &Ring, counted: &mut Counted) {
        let now = Counted::all_of(ring);
        let add = |sum: &AtomicU64, now: u64, before: u64| {
            sum.fetch_add(now.saturating_sub(before), Ordering::Relaxed)
        };
        add(&self.0.captured, now.captured, counted.captured);
        add(&self.0.dropped, now.dropped, counted.dropped);
        *counted = now;
    }
}

impl Counted {
    /// All that there is, as if it had been counted.
    pub(super) fn all_of(ring: &Ring) -> Counted {
        let figures = ring.figures();
        Counted { captured: figures.total_bytes, dropped: figures.dropped_bytes }
    }
}
