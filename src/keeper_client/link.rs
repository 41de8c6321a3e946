//! The socket to the keeper with what waits to be sent on it, and the heartbeat of a busy server.
//!
//! Only [`Connection`](super::connection::Connection) reads and asks. A [`Heartbeat`] adds nothing but
//! beats, between whole messages, so that it can be used from any task of the server's thread.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::protocol::{encode, encode_request, pb, socket};

/// How long nothing was sent before a busy server beats between two pieces of work. Two beats of the
/// heartbeat task; the keeper waits for five.
const BEAT_OVERDUE: Duration = Duration::from_secs(4);

/// The number of a request whose answer no task awaits.
const UNAWAITED: u64 = 0;

/// The socket and its outbox.
pub(super) struct Link {
    pub(super) stream: UnixStream,
    outbox: Mutex<BytesMut>,
    began: Instant,
    /// When bytes were sent last, in milliseconds since `began`.
    last_sent: AtomicU64,
}

/// Beats while the task that owns the connection waits for its turn. Cheap to clone.
///
/// Does not keep the connection open. The default belongs to no connection.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat(Weak<Link>);

impl Link {
    pub(super) fn new(stream: UnixStream) -> Arc<Link> {
        let (outbox, began, last_sent) = (Mutex::default(), Instant::now(), AtomicU64::new(0));
        Arc::new(Link { stream, outbox, began, last_sent })
    }

    pub(super) fn heartbeat(self: &Arc<Link>) -> Heartbeat {
        Heartbeat(Arc::downgrade(self))
    }

    /// Bytes that wait to be sent.
    pub(super) fn queued(&self) -> usize {
        self.outbox().len()
    }

    pub(super) fn push(&self, message: &pb::ToKeeper) {
        encode(message, &mut *self.outbox());
    }

    pub(super) fn push_request(&self, number: u64, encoded: &[u8]) {
        encode_request(number, encoded, &mut *self.outbox());
    }

    /// Sends what the socket takes.
    pub(super) fn send(&self) -> io::Result<()> {
        let mut outbox = self.outbox();
        while !outbox.is_empty() {
            let sent = || socket::send(&self.stream, &outbox, &[]);
            match self.stream.try_io(Interest::WRITABLE, sent) {
                Ok(sent) => {
                    outbox.advance(sent);
                    self.last_sent.store(self.now(), Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn is_overdue(&self) -> bool {
        let silent = self.now().saturating_sub(self.last_sent.load(Ordering::Relaxed));
        Duration::from_millis(silent) >= BEAT_OVERDUE
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn outbox(&self) -> MutexGuard<'_, BytesMut> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heartbeat {
    /// Beats at once if nothing was sent for [`BEAT_OVERDUE`]. To be called after each piece of work: a
    /// server that is stuck within one does not call it.
    pub fn beat_if_overdue(&self) {
        let Some(link) = self.0.upgrade().filter(|link| link.is_overdue()) else { return };
        // What could not be sent before is a sign of life as well.
        if link.queued() == 0 {
            let body = Some(pb::to_keeper::Body::Beat(pb::Beat {}));
            link.push(&pb::ToKeeper { request: UNAWAITED, body });
        }
        // The task that owns the connection notices an error.
        let _ = link.send();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::protocol::decode;

    /// A link on which nothing was sent for so long, and the keeper's end.
    fn silent_for(time: Duration) -> (Arc<Link>, std::os::unix::net::UnixStream) {
        let (own, keeper) = std::os::unix::net::UnixStream::pair().unwrap();
        keeper.set_nonblocking(true).unwrap();
        own.set_nonblocking(true).unwrap();
        let mut link = Link::new(UnixStream::from_std(own).unwrap());
        Arc::get_mut(&mut link).unwrap().began -= time;
        (link, keeper)
    }

    fn received(keeper: &std::os::unix::net::UnixStream) -> Vec<pb::ToKeeper> {
        let mut bytes = BytesMut::new();
        let _ = socket::receive(keeper, &mut bytes, &mut VecDeque::new());
        std::iter::from_fn(|| decode(&mut bytes).unwrap()).collect()
    }

    #[tokio::test]
    async fn busy_server_beats_without_a_turn_of_the_connection() {
        let (link, keeper) = silent_for(BEAT_OVERDUE);
        link.stream.writable().await.unwrap();
        let heartbeat = link.heartbeat();
        for _ in 0..3 {
            heartbeat.beat_if_overdue();
        }
        let beats = received(&keeper);
        assert_eq!(beats.len(), 1, "{beats:?}");
        assert_eq!(beats[0].body, Some(pb::to_keeper::Body::Beat(pb::Beat {})));
    }

    #[tokio::test]
    async fn server_that_has_just_sent_something_does_not_beat() {
        let (link, keeper) = silent_for(BEAT_OVERDUE / 2);
        link.stream.writable().await.unwrap();
        link.heartbeat().beat_if_overdue();
        assert_eq!(received(&keeper), []);
    }

    #[tokio::test]
    async fn heartbeat_keeps_no_connection_open() {
        let (link, keeper) = silent_for(BEAT_OVERDUE);
        let heartbeat = link.heartbeat();
        drop(link);
        heartbeat.beat_if_overdue();
        let read = socket::receive(&keeper, &mut BytesMut::new(), &mut VecDeque::new());
        assert_eq!(read.unwrap(), 0);
    }
}
