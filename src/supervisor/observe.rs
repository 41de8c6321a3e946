//! Looking at a process: a place in its transcript, and the patience to wait there.
//!
//! Owns no state: it reads the ring, or the file that took its place, and what the actor has
//! published. Whoever observes costs the
//! process, the keeper and the actor nothing, and can leave at any moment.

mod reading;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Stage;
use super::archives::Archives;
use super::caller_budget::CallTicket;
use super::error::Error;
use super::registry::{Entry, Seen};
use super::worker_pool::Workers;
use crate::keeper_client::Progress;
use crate::process::{Archived, End, Record, State, Until, WaitFor};
use crate::transcript::archive::Place;
use crate::transcript::{Archive, Batch, CHUNK_COST, Chunk, Figures, Match, Matcher};
use reading::Followed;

/// Bytes that a search takes in one go.
pub(super) const SEARCHED: usize = 64 << 10;

/// What may cost so much is done on the main thread, in bytes that are only read. Anything that
/// costs more is done on a worker thread.
const MAX_COST_HERE: usize = 4 << 10;

/// A place in the transcript of a process.
pub struct Observer {
    entry: Arc<Entry>,
    seen: watch::Receiver<Seen>,
    stage: watch::Receiver<Stage>,
    archives: Arc<Archives>,
    /// Of the caller that observes.
    workers: Workers,
    ticket: Arc<CallTicket>,
    /// What was read from a file, and what the record said of it then.
    filed: Option<(Archived, Arc<Archive>)>,
    /// Where in a file that began which was freed.
    left_window: Option<(Archived, Place)>,
    /// Made when the keeper has the process.
    followed: Option<Followed>,
    since: u64,
    /// Where it is as long as nothing is followed.
    next: u64,
    /// The last look of one who goes on looking was taken.
    last_look: bool,
}

/// What came of waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// What was awaited happened.
    pub met: bool,
    /// The timeout came first.
    pub timed_out: bool,
    /// What matched.
    pub found: Option<Match>,
}

impl Waited {
    const MET: Waited = Waited { met: true, timed_out: false, found: None };
    const TIMED_OUT: Waited = Waited { met: false, timed_out: true, found: None };
    /// The process ended before.
    const ENDED: Waited = Waited { met: false, timed_out: false, found: None };
}

/// From when on a pause in the output counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuietFrom {
    /// From the first output on.
    FirstOutput,
    /// From now on.
    Now,
}

impl Observer {
    /// A place at the chunk `since`, or at the oldest that is kept. One after the end is refused.
    pub(super) fn new(
        entry: Arc<Entry>,
        archives: Arc<Archives>,
        (workers, ticket): (Workers, Arc<CallTicket>),
        stage: watch::Receiver<Stage>,
        since: Option<u64>,
    ) -> Result<Observer, Error> {
        let seen = entry.watch();
        let figures = observable(&seen.borrow());
        // Of a transcript that is gone altogether even who asks for nothing in particular is told.
        let kept = seen.borrow().held.is_some() || seen.borrow().record.archive.is_some();
        let gone = !kept && figures.total_bytes > 0;
        let since = since.unwrap_or(if gone { 1 } else { figures.first_seq });
        // How far one came that was lost is not known: every cursor stands at its end.
        let known = seen.borrow().held.is_some() || seen.borrow().record.is_end_known();
        let since = if !known { since.min(figures.next_seq) } else { since };
        if since > figures.next_seq {
            return Err(Error::CursorAhead { cursor: since, next: figures.next_seq });
        }
        let now = seen.borrow().clone();
        let (filed, left_window, followed) = (None, None, None);
        let (next, last_look) = (since, false);
        let mut observer = Observer {
            entry,
            seen,
            stage,
            archives,
            workers,
            ticket,
            filed,
            left_window,
            followed,
            since,
            next,
            last_look,
        };
        observer.hold(&now);
        Ok(observer)
    }

    /// The chunk that it began with.
    pub fn since_seq(&self) -> u64 {
        self.since
    }

    /// The worker threads for the caller that observes.
    pub(super) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// What the call that observes holds.
    pub(super) fn ticket(&self) -> &CallTicket {
        &self.ticket
    }

    /// What is there to be read counts for, at most.
    pub(super) fn unread_bytes(&self) -> usize {
        let figures = self.figures();
        let chunks = figures.next_seq.saturating_sub(self.next_seq().max(figures.first_seq));
        if chunks == 0 {
            return 0;
        }
        let kept = figures.total_bytes.saturating_sub(figures.dropped_bytes);
        let cost = kept.saturating_add(chunks.saturating_mul(CHUNK_COST));
        usize::try_from(cost).unwrap_or(usize::MAX)
    }

    /// The process.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// The process as it is now.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// How much there is to read now.
    pub fn figures(&self) -> Figures {
        observable(&self.seen.borrow())
    }

    /// The process has exited, and all there is was read.
    pub fn at_end(&self) -> bool {
        let seen = self.seen.borrow();
        seen.record.state() == State::Exited && self.next_seq() >= observable(&seen).next_seq
    }

    /// The process has exited, and all that it printed itself was read.
    pub fn is_complete(&self) -> bool {
        let seen = self.seen.borrow();
        let last = seen.record.end().map(|end| match &end.exit {
            Some(exit) => exit.final_seq,
            None => end.printed.next_seq,
        });
        last.is_some_and(|last| self.next_seq() >= last)
    }

    /// Takes what is there, for one who goes on doing so until something happens. When another
    /// server takes over, that is once more: a process that prints on and on is followed there.
    pub async fn take_next(&mut self, max_bytes: usize) -> Batch {
        let retires = *self.stage.borrow() >= Stage::Retiring;
        if retires && std::mem::replace(&mut self.last_look, true) {
            return Batch::default();
        }
        self.take(max_bytes).await
    }

    /// Waits for news of the output or of the process.
    pub async fn changed(&mut self) -> Result<(), Error> {
        if self.last_look {
            return Err(Error::ShuttingDown);
        }
        if self.unread().is_some() {
            return Ok(());
        }
        let Observer { followed, seen, stage, .. } = self;
        let output = async {
            match followed {
                Some(followed) => {
                    if followed.follower.changed().await.is_err() {
                        // Forgotten by the keeper: only the record will change now.
                        std::future::pending::<()>().await;
                    }
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The last news comes before the end of the service.
            biased;
            () = output => Ok(()),
            changed = record_changed(seen, stage) => changed,
        }
    }

    /// Waits for what was asked. The end of the process always wakes.
    pub async fn wait(&mut self, wait: &WaitFor, quiet: QuietFrom) -> Result<Waited, Error> {
        let WaitFor { until, timeout } = wait;
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let waited = async {
            match until {
                Until::Exit => self.wait_exit().await,
                Until::Ready => self.wait_ready().await,
                Until::Output(regex) => self.wait_output(Matcher::new(regex.clone())).await,
                Until::Quiet(pause) => self.wait_quiet(*pause, quiet).await,
            }
        };
        tokio::select! {
            biased;
            waited = waited => waited,
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                Ok(Waited::TIMED_OUT)
            }
        }
    }

    async fn wait_exit(&mut self) -> Result<Waited, Error> {
        while self.seen.borrow_and_update().record.end().is_none() {
            record_changed(&mut self.seen, &mut self.stage).await?;
        }
        Ok(Waited::MET)
    }

    async fn wait_ready(&mut self) -> Result<Waited, Error> {
        loop {
            let record = Arc::clone(&self.seen.borrow_and_update().record);
            if record.is_ready() {
                return Ok(Waited::MET);
            }
            if record.end().is_some() {
                return Ok(Waited::ENDED);
            }
            record_changed(&mut self.seen, &mut self.stage).await?;
        }
    }

    async fn wait_output(&mut self, mut matcher: Matcher) -> Result<Waited, Error> {
        loop {
            let batch = self.take_next(SEARCHED).await;
            if batch.gap.is_some() {
                matcher.skip();
            }
            if batch.chunks.is_empty() {
                if self.at_end() {
                    return Ok(Waited::ENDED);
                }
                if batch.gap.is_some() {
                    continue;
                }
                self.changed().await?;
                continue;
            }
            let found;
            (matcher, found) = search(&self.workers, matcher, batch.chunks).await?;
            if found.is_some() {
                return Ok(Waited { found, ..Waited::MET });
            }
        }
    }

    async fn wait_quiet(&mut self, pause: Duration, from: QuietFrom) -> Result<Waited, Error> {
        let mut quiet_at = match from {
            QuietFrom::FirstOutput => None,
            QuietFrom::Now => {
                (self.followed, self.next) = (None, self.figures().next_seq);
                Some(Instant::now() + pause)
            }
        };
        loop {
            let batch = self.take_next(SEARCHED).await;
            if !batch.chunks.is_empty() {
                quiet_at = Some(Instant::now() + pause);
            }
            if batch.gap.is_some() || !batch.chunks.is_empty() {
                tokio::task::yield_now().await;
                continue;
            }
            if self.at_end() {
                return Ok(Waited::MET);
            }
            tokio::select! {
                biased;
                changed = self.changed() => changed?,
                () = sleep_until(quiet_at.unwrap_or_else(Instant::now)), if quiet_at.is_some() => {
                    return Ok(Waited::MET);
                }
            }
        }
    }
}

/// Waits for news of a process other than its output.
async fn record_changed(
    seen: &mut watch::Receiver<Seen>,
    stage: &mut watch::Receiver<Stage>,
) -> Result<(), Error> {
    tokio::select! {
        // The last news comes before the end of the service.
        biased;
        changed = seen.changed() => {
            let now = seen.borrow();
            match changed.is_err() || now.removed && now.record.end().is_none() {
                true => Err(Error::NotFound(now.record.id.to_string())),
                false => Ok(()),
            }
        }
        _ = stage.wait_for(|stage| *stage >= Stage::AllOver) => Err(Error::ShuttingDown),
    }
}

/// How much of a process there is to read now; nothing, if nobody said how far it is.
pub fn observable(seen: &Seen) -> Figures {
    let first_seq = seen.record.first_seq;
    let nothing = Figures { first_seq, next_seq: first_seq, ..Figures::default() };
    figures(&seen.record, seen.progress().as_ref()).unwrap_or(nothing)
}

/// Continues a search, step by step, up to the first match.
pub(super) async fn search(
    workers: &Workers,
    mut matcher: Matcher,
    chunks: Vec<Chunk>,
) -> Result<(Matcher, Option<Match>), Error> {
    for chunks in steps(chunks, matcher.step_bytes()) {
        let cost = matcher.cost(chunks.iter().map(|chunk| chunk.data.len()).sum());
        let search = move || {
            let found = matcher.feed(&chunks);
            (matcher, found)
        };
        let found;
        (matcher, found) = apart(workers, cost, search).await?;
        if found.is_some() {
            return Ok((matcher, found));
        }
    }
    Ok((matcher, None))
}

/// Chunks in groups that each have at most so many bytes, or one chunk.
pub(super) fn steps(chunks: Vec<Chunk>, max_bytes: usize) -> Vec<Vec<Chunk>> {
    let mut groups: Vec<Vec<Chunk>> = Vec::new();
    let mut bytes = 0;
    for chunk in chunks {
        bytes += chunk.data.len();
        match groups.last_mut() {
            Some(group) if bytes <= max_bytes => group.push(chunk),
            _ => {
                bytes = chunk.data.len();
                groups.push(vec![chunk]);
            }
        }
    }
    groups
}

/// Does what costs so much, where it delays no other call.
pub(super) async fn apart<T: Send + 'static>(
    workers: &Workers,
    cost: usize,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    if cost <= MAX_COST_HERE {
        tokio::task::yield_now().await;
        return Ok(look());
    }
    workers.run(look).await
}

/// What there is to read of a process; none: it lives, and nobody said how far it is.
pub fn figures(record: &Record, progress: Option<&Progress>) -> Option<Figures> {
    let filed = record.archive.map(|archived| archived.figures);
    if let Some(ring) = progress.and_then(|progress| progress.ring.as_ref()) {
        let ring = ring.figures();
        return Some(filed.map_or(ring, |filed| joined(filed, ring)));
    }
    let nothing = |next_seq| Figures { first_seq: next_seq, next_seq, ..Figures::default() };
    match record.end() {
        Some(End { printed, .. }) => Some(Figures {
            // Its ring is gone, or there never was one: what no file has is not kept.
            first_seq: filed.map_or(printed.next_seq, |filed| filed.first_seq),
            next_seq: printed.next_seq,
            total_bytes: printed.bytes,
            dropped_bytes: filed.map_or(printed.bytes, |filed| filed.dropped_bytes),
            last_time: printed.last_time,
        }),
        None => {
            let next = progress.map(|progress| progress.next_seq.max(record.first_seq));
            match filed {
                Some(filed) => {
                    let next = next.unwrap_or(record.first_seq);
                    Some(Figures { next_seq: filed.next_seq.max(next), ..filed })
                }
                None => next.map(nothing),
            }
        }
    }
}

/// A file, and a ring that goes on from it.
fn joined(filed: Figures, ring: Figures) -> Figures {
    Figures {
        first_seq: filed.first_seq,
        next_seq: ring.next_seq,
        total_bytes: filed.total_bytes + ring.total_bytes,
        dropped_bytes: filed.dropped_bytes + ring.dropped_bytes,
        last_time: ring.last_time.max(filed.last_time),
    }
}
