//! What a process prints, on its way to stdout and stderr.
//!
//! Written by a thread of its own: whoever reads it may be slow, and signals and keys are not to
//! wait for that. Bytes are written as they came, as many at a time as there are.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::mpsc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::modes;
use crate::cli::print;
use crate::grpc::pb;

/// Bytes that may wait to be written: enough that neither side waits for the other, and few enough
/// that a reader who is slow holds the process back soon.
const MOST_WAITING: usize = 1 << 20;
/// What a chunk takes besides its bytes, about: many small ones are much, too.
const PER_CHUNK: usize = 128;
/// Chunks that are written in one go, within what the kernel takes.
const MOST_AT_ONCE: usize = 64;

/// What was written, or could not be.
#[derive(Debug)]
pub(super) struct Written {
    /// The last of the chunks.
    pub(super) seq: u64,
    /// How many they are.
    pub(super) chunks: u64,
    /// Bytes in them.
    pub(super) bytes: usize,
    /// Why they were not written. From then on that stream is passed over.
    pub(super) failed: Option<io::Error>,
}

/// The way to stdout and stderr.
pub(super) struct Output {
    chunks: mpsc::Sender<pb::Chunk>,
    written: UnboundedReceiver<Written>,
    waiting: usize,
}

impl Output {
    /// What comes from a terminal may change the modes of the window.
    pub(super) fn begin(terminal: bool) -> Output {
        if terminal {
            modes::watch();
        }
        let (chunks, to_write) = mpsc::channel();
        let (tell, written) = unbounded_channel();
        std::thread::spawn(move || write(&to_write, &tell));
        Output { chunks, written, waiting: 0 }
    }

    /// Whether more may be put.
    pub(super) fn has_room(&self) -> bool {
        self.waiting < MOST_WAITING
    }

    /// Whether all was written.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Writes a chunk after all others.
    pub(super) fn put(&mut self, chunk: pb::Chunk) {
        let bytes = chunk.data.len();
        if bytes > 0 && self.chunks.send(chunk).is_ok() {
            self.waiting += bytes + PER_CHUNK;
        }
    }

    /// Writes a line of our own to stderr, after all that came before.
    pub(super) fn say(&mut self, line: String) {
        let stream = pb::Stream::Stderr.into();
        self.put(pb::Chunk { stream, data: line.into(), ..Default::default() });
    }

    /// Waits until something was written. Whoever stops waiting misses nothing.
    pub(super) async fn written(&mut self) -> Option<Written> {
        let written = self.written.recv().await?;
        let taken = written.bytes + PER_CHUNK * written.chunks as usize;
        self.waiting = self.waiting.saturating_sub(taken);
        Some(written)
    }
}

/// The thread.
fn write(chunks: &mpsc::Receiver<pb::Chunk>, tell: &UnboundedSender<Written>) {
    let mut closed = Vec::new();
    while let Ok(first) = chunks.recv() {
        let mut batch = vec![first];
        batch.extend(chunks.try_iter().take(MOST_AT_ONCE - 1));
        for same in batch.chunk_by(|one, next| one.stream == next.stream) {
            let stream = same[0].stream;
            let mut written = Written {
                seq: same[same.len() - 1].seq,
                chunks: same.len() as u64,
                bytes: same.iter().map(|chunk| chunk.data.len()).sum(),
                failed: None,
            };
            if !closed.contains(&stream)
                && let Err(error) = show(stream, same)
            {
                closed.push(stream);
                written.failed = Some(error);
            }
            if tell.send(written).is_err() {
                return;
            }
        }
    }
}

fn descriptor(stream: i32) -> BorrowedFd<'static> {
    match pb::Stream::try_from(stream) {
        Ok(pb::Stream::Stderr) => rustix::stdio::stderr(),
        _ => rustix::stdio::stdout(),
    }
}

fn show(stream: i32, chunks: &[pb::Chunk]) -> io::Result<()> {
    let mut window = modes::window();
    let Some(window) = &mut *window else { return write_all(descriptor(stream), chunks) };
    if !window.is_left() {
        write_all(descriptor(stream), chunks)?;
        chunks.iter().for_each(|chunk| window.printed(&chunk.data));
    }
    Ok(())
}

fn write_all(fd: BorrowedFd<'_>, chunks: &[pb::Chunk]) -> io::Result<()> {
    let mut slices: Vec<_> = chunks.iter().map(|chunk| IoSlice::new(&chunk.data)).collect();
    print::write_all(fd, &mut slices)
}
