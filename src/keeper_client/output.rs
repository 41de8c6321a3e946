//! The way to a process's output: how far it is, and reading along.

use std::sync::Arc;

use tokio::sync::watch;

use super::KeeperError;
use crate::process::{InputState, Status};
use crate::transcript::{Batch, Reader, Ring};

/// The state that the keeper last reported of a process.
#[derive(Clone, Default)]
pub struct Progress {
    /// Its ring, once it has printed something.
    pub ring: Option<Arc<Ring>>,
    /// Sequence number that the next chunk will have.
    pub next_seq: u64,
    /// How far its input is.
    pub input: InputState,
    /// It has exited; all it printed lies before this sequence number.
    pub final_seq: Option<u64>,
    /// With this code or signal, from the report of its exit on.
    pub status: Option<Status>,
    /// Nothing can write to its outputs any more.
    pub drained: bool,
    /// Its output is not read until chunks are acknowledged.
    pub awaits_reader: bool,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Progress { ring, next_seq, input, final_seq, status, drained, awaits_reader } = self;
        write!(f, "Progress {{ ring: {}, next_seq: {next_seq}, ", ring.is_some())?;
        write!(f, "input: {input:?}, final_seq: {final_seq:?}, ")?;
        write!(f, "status: {status:?}, drained: {drained}, awaits_reader: {awaits_reader} }}")
    }
}

/// A handle to the output of one process. Cheap to clone; costs the keeper nothing.
#[derive(Clone, Debug)]
pub struct Output {
    progress: watch::Receiver<Progress>,
}

impl Output {
    pub(crate) fn new(progress: watch::Receiver<Progress>) -> Output {
        Output { progress }
    }

    /// What was last reported.
    pub fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    /// Waits until what was reported satisfies `condition`.
    pub async fn wait_until(
        &mut self,
        condition: impl FnMut(&Progress) -> bool,
    ) -> Result<Progress, KeeperError> {
        let progress = self.progress.wait_for(condition).await;
        Ok(progress.map_err(|_| KeeperError::Disconnected)?.clone())
    }

    /// Reads along from the chunk `seq` on.
    pub fn follow(&self, seq: u64) -> Follower {
        Follower { output: self.clone(), seq, total: None, reader: None }
    }
}

/// A place in the output of one process, and the patience to wait for more.
pub struct Follower {
    output: Output,
    seq: u64,
    /// Bytes before it, if known.
    total: Option<u64>,
    /// Made when there is a ring.
    reader: Option<Reader>,
}

impl Follower {
    /// The same follower, told how many bytes lie before its first chunk: see [`Reader::knowing`].
    pub fn knowing(mut self, total: Option<u64>) -> Follower {
        self.total = total;
        self
    }

    /// The same follower at another place.
    pub fn again(&self, seq: u64) -> Follower {
        let reader = self.reader.as_ref().map(|reader| reader.again(seq));
        Follower { output: self.output.clone(), seq, total: None, reader }
    }

    /// Takes hold of the ring, if there is one: it can be read on when the keeper has forgotten it.
    pub fn hold(&mut self) {
        let progress = self.output.progress.borrow_and_update();
        if self.reader.is_none() {
            let ring = progress.ring.clone();
            self.reader = ring.map(|ring| Reader::new(ring, self.seq).knowing(self.total));
        }
    }

    /// The first chunk that the ring ever had, if it was taken hold of.
    pub fn first_ever(&self) -> Option<u64> {
        self.reader.as_ref().map(Reader::first_ever)
    }

    /// The chunk that will be read next.
    pub fn next_seq(&self) -> u64 {
        self.reader.as_ref().map_or(self.seq, Reader::next_seq)
    }

    /// Bytes of all streams before that chunk, if known.
    pub fn total(&self) -> Option<u64> {
        self.reader.as_ref().map_or(self.total, Reader::total)
    }

    /// Takes what is there: see [`Reader::read`]. What is reported later wakes
    /// [`Follower::changed`].
    pub fn read(&mut self, max_bytes: usize) -> Batch {
        self.hold();
        self.reader.as_mut().map(|reader| reader.read(max_bytes)).unwrap_or_default()
    }

    /// Waits for a report that came after the last read. An error: there will be none any more.
    pub async fn changed(&mut self) -> Result<(), KeeperError> {
        self.output.progress.changed().await.map_err(|_| KeeperError::Disconnected)
    }

    /// Waits for something to read; none when the process has exited and all that it printed
    /// until then was read. What descendants print later can be had by [`Follower::read`].
    pub async fn next(&mut self, max_bytes: usize) -> Result<Option<Batch>, KeeperError> {
        loop {
            // Looked at before reading: what is reported later wakes the wait below.
            let final_seq = self.output.progress.borrow().final_seq;
            let batch = self.read(max_bytes);
            if batch.gap.is_some() || !batch.chunks.is_empty() {
                return Ok(Some(batch));
            }
            if final_seq.is_some_and(|last| self.next_seq() >= last) {
                return Ok(None);
            }
            self.changed().await?;
        }
    }
}
