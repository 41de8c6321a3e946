//! What the streams of one caller hold of output that was not sent yet, and what they and its calls have read
//! from files in advance.
//!
//! A client that stops reading leaves what was made for its stream in the server. All streams of a caller
//! share a number of bytes. The more of it they hold, the less each may add, down to one message of a
//! stream that holds none: a stream that is read never waits for its neighbours.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Part of what is left that one stream may take: several can be filled before the rest notice.
const PART_OF_THE_REST: usize = 8;

/// Bytes that a stream may always hold, beside a message that is larger than that.
const MIN_ROOM: usize = 4 << 10;

/// What the streams and reads of one caller hold, and may hold.
#[derive(Debug)]
pub(super) struct StreamShare {
    max_bytes: usize,
    held: AtomicUsize,
}

impl StreamShare {
    pub(super) fn new(max_bytes: usize) -> StreamShare {
        StreamShare { max_bytes, held: AtomicUsize::new(0) }
    }

    /// Bytes that one stream may hold, as long as the others hold what they do.
    fn room(&self) -> usize {
        let rest = self.max_bytes.saturating_sub(self.held.load(Ordering::Relaxed));
        (rest / PART_OF_THE_REST).max(MIN_ROOM)
    }
}

/// What one stream or call holds, until this is dropped.
#[derive(Debug)]
pub(super) struct StreamOutput {
    share: Arc<StreamShare>,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Bytes of messages that were made and not sent.
    unsent: usize,
    /// Bytes that were read from a file in advance.
    read_ahead: usize,
    /// Waits until fewer are unsent.
    waiting: Option<Waker>,
}

impl StreamOutput {
    pub(super) fn new(share: Arc<StreamShare>) -> StreamOutput {
        StreamOutput { share, held: Mutex::default() }
    }

    pub(super) fn room(&self) -> usize {
        self.share.room()
    }

    /// Ready when the stream may make its next message.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut held = self.lock();
        if held.unsent == 0 || held.unsent < self.room() {
            return Poll::Ready(());
        }
        held.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    /// A message of so many bytes was made.
    pub(super) fn made(&self, bytes: usize) {
        self.lock().unsent += bytes;
        self.share.held.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes of messages were sent, or will never be.
    pub(super) fn sent(&self, bytes: usize) {
        let waiting = {
            let mut held = self.lock();
            let bytes = bytes.min(held.unsent);
            held.unsent -= bytes;
            self.share.held.fetch_sub(bytes, Ordering::Relaxed);
            held.waiting.take()
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// So many bytes are kept that were read from a file in advance. False: there is no room for them.
    pub(super) fn keep_read_ahead(&self, bytes: usize) -> bool {
        let mut held = self.lock();
        self.share.held.fetch_sub(held.read_ahead, Ordering::Relaxed);
        let fits = bytes <= self.room();
        held.read_ahead = if fits { bytes } else { 0 };
        self.share.held.fetch_add(held.read_ahead, Ordering::Relaxed);
        fits
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamOutput {
    fn drop(&mut self) {
        let held = self.lock();
        self.share.held.fetch_sub(held.unsent + held.read_ahead, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    const MEBIBYTE: usize = 1 << 20;

    fn may_make(output: &StreamOutput) -> bool {
        output.poll_room(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn unread_streams_hold_their_share_and_a_message_each() {
        let share = Arc::new(StreamShare::new(MEBIBYTE));
        let outputs: Vec<_> = (0..1000).map(|_| StreamOutput::new(Arc::clone(&share))).collect();
        for output in &outputs {
            assert!(may_make(output));
            while may_make(output) {
                output.made(1000);
            }
        }
        let held = share.held.load(Ordering::Relaxed);
        assert!(held < MEBIBYTE + 1000 * (MIN_ROOM + 1000), "{held}");
        // One that is read makes message after message, whatever its neighbours hold.
        let read = StreamOutput::new(Arc::clone(&share));
        for _ in 0..100 {
            assert!(may_make(&read));
            read.made(64 << 10);
            assert!(!may_make(&read));
            read.sent(64 << 10);
        }
        drop((outputs, read));
        assert_eq!(share.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn read_ahead_is_kept_while_there_is_room() {
        let share = Arc::new(StreamShare::new(MEBIBYTE));
        let [first, second] = [(); 2].map(|()| StreamOutput::new(Arc::clone(&share)));
        assert!(first.keep_read_ahead(MEBIBYTE / 8) && first.keep_read_ahead(MEBIBYTE / 8));
        assert!(!second.keep_read_ahead(MEBIBYTE / 8));
        assert!(second.keep_read_ahead(0) && first.keep_read_ahead(0));
        assert!(second.keep_read_ahead(MEBIBYTE / 8));
    }

    #[test]
    fn stream_is_woken_when_its_output_was_sent() {
        let output = StreamOutput::new(Arc::new(StreamShare::new(0)));
        output.made(MIN_ROOM);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        assert!(output.poll_room(&mut Context::from_waker(&waker)).is_pending());
        output.sent(1);
        assert!(woken.0.load(Ordering::Relaxed) && may_make(&output));
    }
}
