//! Which call a line of the log is about.
//!
//! Owns the ids of calls, and the way from a call to the lines that are written while it is handled.
//! The id is at hand and is looked at by whoever writes a line: a call whose lines nobody wants pays
//! for no span, only for its name. What is done once a call's changes are committed names the process.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// Longest id that a client may choose: one that it made of a UUID, or of two, fits.
const LONGEST: usize = 64;

tokio::task_local! {
    static CURRENT: RequestId;
}

/// The id of a call: letters, digits, dots, underscores and hyphens. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The id that a client has chosen, if it is one; else one that no other call has.
    pub fn of(chosen: Option<&[u8]>) -> RequestId {
        let chosen = chosen.filter(|id| is_id(id)).and_then(|id| str::from_utf8(id).ok());
        chosen.map_or_else(RequestId::make, |id| RequestId(id.into()))
    }

    /// Calls are numbered, and the number is hashed with a key that each server draws: nobody learns
    /// by an id how many calls others make.
    fn make() -> RequestId {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        static CALLS: AtomicU64 = AtomicU64::new(1);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        RequestId(format!("{:016x}", KEY.hash_one(call)).into())
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Handles something for this call: every line that it writes names it, to the last, which may
    /// come when it is dropped.
    pub fn handles<F: Future>(&self, handling: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), handling)
    }

    /// The same for what takes no time.
    pub fn does<T>(&self, done: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), done)
    }
}

/// The call that is being handled here, if one is.
pub fn current() -> Option<RequestId> {
    CURRENT.try_with(RequestId::clone).ok()
}

/// Does something for a call, if it is for one.
pub fn within<T>(request: Option<&RequestId>, done: impl FnOnce() -> T) -> T {
    match request {
        Some(request) => request.does(done),
        None => done(),
    }
}

/// The same on another thread: what is done there is done for the call that is handled here.
pub fn carried<T>(done: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let request = current();
    move || within(request.as_ref(), done)
}

fn is_id(id: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    (1..=LONGEST).contains(&id.len()) && id.iter().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_a_client_chose_is_kept_and_what_is_none_is_replaced() {
        for id in ["a", "0", "A-b_c.9", "00000000-0000-7000-8000-000000000000"] {
            assert_eq!(RequestId::of(Some(id.as_bytes())).as_str(), id);
        }
        let long = "a".repeat(LONGEST);
        assert!(is_id(long.as_bytes()) && !is_id([&long, "a"].concat().as_bytes()));
        let mut made = std::collections::HashSet::new();
        for id in ["", "a b", "a\"b", "a,b", "{}", "a/b"] {
            let request = RequestId::of(Some(id.as_bytes()));
            assert!(is_id(request.as_str().as_bytes()), "{request:?}");
            assert!(made.insert(request.as_str().to_owned()), "{request:?} was made twice");
        }
        assert!(is_id(RequestId::of(None).as_str().as_bytes()));
    }

    #[tokio::test]
    async fn what_is_done_for_a_call_knows_it_and_what_is_dropped_too() {
        struct Tells(std::sync::mpsc::Sender<Option<RequestId>>);
        impl Drop for Tells {
            fn drop(&mut self) {
                let _ = self.0.send(current());
            }
        }
        let (tell, told) = std::sync::mpsc::channel();
        let request = RequestId::of(Some(b"a"));
        let tells = Tells(tell.clone());
        let carried = request.handles(async { carried(current) }).await;
        assert_eq!(tokio::task::spawn_blocking(carried).await.unwrap(), Some(request.clone()));
        let forever = request.handles(async move {
            let _tells = tells;
            std::future::pending::<()>().await;
        });
        drop(forever);
        assert_eq!((told.recv().unwrap(), current()), (Some(request), None));
    }
}
