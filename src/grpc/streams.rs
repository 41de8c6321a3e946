//! How many streams there are: of each caller, and of all.
//!
//! Owns the counting. A stream counts from the call on until it is over or its client has left.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_stream::{Stream, StreamExt};

use crate::supervisor::{Bound, Error, Quotas, Reached};

/// The streams that are open.
#[derive(Clone, Default)]
pub(super) struct Streams {
    quotas: Quotas,
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    all: u64,
    /// Those of callers who have some.
    callers: HashMap<String, u64>,
}

/// A stream that is open, until this is dropped.
pub(super) struct Place {
    open: Arc<Mutex<Open>>,
    caller: String,
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Streams {
    pub(super) fn new(quotas: Quotas) -> Streams {
        Streams { quotas, ..Streams::default() }
    }

    /// A place for one more stream of a caller.
    pub(super) fn enter(&self, caller: &str) -> Result<Place, Error> {
        let mut open = lock(&self.open);
        let own = open.callers.get(caller).copied().unwrap_or(0);
        for (quota, count, of_all) in
            [(self.quotas.each, own, false), (self.quotas.all, open.all, true)]
        {
            if let Some(most) = quota.streams.filter(|most| count >= *most) {
                let reached = Reached::for_now(Bound::Streams, most, count, of_all);
                return Err(Error::TooManyStreams(reached));
            }
        }
        open.all += 1;
        *open.callers.entry(caller.to_owned()).or_default() += 1;
        Ok(Place { open: Arc::clone(&self.open), caller: caller.to_owned() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        open.all -= 1;
        if let Some(count) = open.callers.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                open.callers.remove(&self.caller);
            }
        }
    }
}

/// A stream that holds its place.
pub(super) fn placed<T: Send + 'static>(
    place: Place,
    stream: impl Stream<Item = T> + Send + 'static,
) -> Pin<Box<dyn Stream<Item = T> + Send>> {
    Box::pin(stream.map(move |item| {
        let _held = &place;
        item
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::Quota;

    #[test]
    fn a_place_is_free_again_when_its_stream_is_over() {
        let some = |most| Quota { streams: Some(most), ..Quota::default() };
        let streams = Streams::new(Quotas { each: some(2), all: some(3) });
        let of_all = |result: Result<Place, Error>| match result {
            Err(Error::TooManyStreams(reached)) => reached.of_all,
            _ => panic!("there was a place"),
        };
        let first = streams.enter("a").unwrap();
        let _second = streams.enter("a").unwrap();
        assert!(!of_all(streams.enter("a")));
        let _third = streams.enter("b").unwrap();
        assert!(of_all(streams.enter("b")));
        drop(first);
        drop(streams.enter("b").unwrap());
        streams.enter("a").unwrap();
        assert_eq!(lock(&streams.open).callers.len(), 2);
    }
}
