//! Looking at a process: a place in its transcript, and the patience to wait there.
//!
//! Owns no state: it reads the ring and what the actor has published. Whoever observes costs the
//! process, the keeper and the actor nothing, and can leave at any moment.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Stage;
use super::error::Error;
use super::registry::{Entry, Seen};
use crate::keeper_client::{Follower, Progress};
use crate::process::{End, Record, State, Until, WaitFor};
use crate::transcript::{Batch, Chunk, Figures, Gap, Match, Matcher};

/// Bytes that a search takes in one go.
pub(super) const SEARCHED: usize = 64 << 10;

/// Bytes that are searched where everything else runs, too. More of them are searched on a thread
/// apart: a pattern can be slow.
const SEARCHED_HERE: usize = 4 << 10;

/// How often one looks before a place, each time further if it was little.
const MOST_LOOKS: usize = 16;

/// Bytes that one such look may take besides those that it is for.
const LOOKED_AT: usize = 64 << 10;

/// A place in the transcript of a process.
pub struct Observer {
    entry: Arc<Entry>,
    seen: watch::Receiver<Seen>,
    stage: watch::Receiver<Stage>,
    /// Made when the keeper has the process.
    follower: Option<Follower>,
    /// The keeper's number for what is followed, and the run.
    followed: (u64, u32),
    since: u64,
    /// Where it is as long as there is no follower.
    next: u64,
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
        stage: watch::Receiver<Stage>,
        since: Option<u64>,
    ) -> Result<Observer, Error> {
        let seen = entry.watch();
        let figures = readable(&seen.borrow());
        // Of a transcript that is gone altogether even who asks for nothing in particular is told.
        let gone = seen.borrow().held.is_none() && figures.total_bytes > 0;
        let since = since.unwrap_or(if gone { 1 } else { figures.first_seq });
        // How far one came that was lost is not known: every cursor stands at its end.
        let lost = seen.borrow().record.end().is_some_and(|end| end.exit.is_none());
        let since = if lost { since.min(figures.next_seq) } else { since };
        if since > figures.next_seq {
            return Err(Error::CursorAhead { cursor: since, next: figures.next_seq });
        }
        Ok(Observer { entry, seen, stage, follower: None, followed: (0, 0), since, next: since })
    }

    /// The chunk that it began with.
    pub fn since_seq(&self) -> u64 {
        self.since
    }

    /// The chunk that will be read next.
    pub fn next_seq(&self) -> u64 {
        self.follower.as_ref().map_or(self.next, Follower::next_seq)
    }

    /// The process as it is now.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// How much there is to read now.
    pub fn figures(&self) -> Figures {
        readable(&self.seen.borrow())
    }

    /// The process has exited, and all there is was read.
    pub fn at_end(&self) -> bool {
        let seen = self.seen.borrow();
        seen.record.state() == State::Exited && self.next_seq() >= readable(&seen).next_seq
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

    /// Takes what is there. What comes later wakes [`Observer::changed`].
    pub fn read(&mut self, max_bytes: usize) -> Batch {
        let seen = self.seen.borrow_and_update();
        if let Some(held) = &seen.held
            && (self.follower.is_none() || self.followed.0 != held.key)
        {
            // Another launch goes on where the one before was; another run has a new transcript.
            let next = self.follower.as_ref().map_or(self.next, Follower::next_seq);
            let same_run = self.followed.1 == seen.record.run;
            let known = self.follower.as_ref().filter(|_| same_run).and_then(Follower::total);
            let total = known.or_else(|| self.entry.total_before(next));
            self.follower = Some(held.output.follow(next).knowing(total));
            self.followed = (held.key, seen.record.run);
        }
        let kept = readable(&seen).first_seq;
        let gone = seen.progress().is_none_or(|progress| progress.ring.is_none());
        drop(seen);
        let from_seq = self.next_seq();
        if gone && from_seq < kept {
            // Of a transcript that is gone altogether only the numbers are known.
            (self.follower, self.next) = (None, kept);
            let gap = Gap { from_seq, to_seq: kept - 1, dropped_bytes: None };
            return Batch { gap: Some(gap), chunks: Vec::new() };
        }
        self.follower.as_mut().map(|follower| follower.read(max_bytes)).unwrap_or_default()
    }

    /// Remembers this place for the client that will go on from it. A follower, who keeps its
    /// place itself, would only crowd out the others.
    pub fn remember(&self) {
        if let Some((follower, total)) = self.follower.as_ref().and_then(|f| Some((f, f.total()?)))
        {
            self.entry.mark(follower.next_seq(), total);
        }
    }

    /// The same for a place that was passed already.
    pub(super) fn remember_at(&self, seq: u64) {
        if let Some(held) = &self.seen.borrow().held {
            let mut before = held.output.follow(seq.saturating_sub(1));
            before.read(1);
            if let (true, Some(total)) = (before.next_seq() == seq, before.total()) {
                self.entry.mark(seq, total);
            }
        }
    }

    /// What was printed right before this place: so many bytes at least, if they are kept and
    /// not in too many pieces.
    pub(super) fn look_back(&self, bytes: usize) -> Vec<Chunk> {
        let seen = self.seen.borrow();
        let (first, mut from) = (readable(&seen).first_seq, self.next_seq());
        let (mut parts, mut found, mut count) = (Vec::new(), 0, 1);
        for _ in 0..MOST_LOOKS {
            let (Some(held), true) = (&seen.held, found < bytes && from > first) else {
                break;
            };
            let start = first.max(from.saturating_sub(count));
            let Batch { gap, mut chunks } = held.output.follow(start).read(bytes + LOOKED_AT);
            chunks.retain(|chunk| chunk.seq < from);
            if gap.is_some() || chunks.last().is_none_or(|chunk| chunk.seq + 1 < from) {
                // More than was to be looked at; one chunk always comes.
                if count == 1 {
                    break;
                }
                count = 1.max(count / 4);
                continue;
            }
            found += chunks.iter().map(|chunk| chunk.data.len()).sum::<usize>();
            parts.push(chunks);
            from = start;
            count *= 2;
        }
        parts.into_iter().rev().flatten().collect()
    }

    /// Waits for news of the output or of the process.
    pub async fn changed(&mut self) -> Result<(), Error> {
        let follower = &mut self.follower;
        let output = async {
            match follower {
                Some(follower) => {
                    if follower.changed().await.is_err() {
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
            () = output => {}
            changed = self.seen.changed() => {
                let removed = self.seen.borrow().removed;
                if changed.is_err() || removed && self.seen.borrow().record.end().is_none() {
                    return Err(Error::NotFound(self.seen.borrow().record.id.to_string()));
                }
            }
            _ = self.stage.wait_for(|stage| *stage >= Stage::AllOver) => {
                return Err(Error::ShuttingDown);
            }
        }
        Ok(())
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
            self.changed().await?;
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
            self.changed().await?;
        }
    }

    async fn wait_output(&mut self, mut matcher: Matcher) -> Result<Waited, Error> {
        loop {
            let batch = self.read(SEARCHED);
            if batch.gap.is_some() {
                matcher.skip();
            }
            if batch.chunks.is_empty() {
                if self.at_end() {
                    return Ok(Waited::ENDED);
                }
                self.changed().await?;
                continue;
            }
            let found;
            (matcher, found) = search(matcher, batch.chunks).await?;
            if found.is_some() {
                return Ok(Waited { found, ..Waited::MET });
            }
        }
    }

    async fn wait_quiet(&mut self, pause: Duration, from: QuietFrom) -> Result<Waited, Error> {
        let mut quiet_at = match from {
            QuietFrom::FirstOutput => None,
            QuietFrom::Now => {
                self.next = self.figures().next_seq;
                Some(Instant::now() + pause)
            }
        };
        loop {
            if !self.read(SEARCHED).chunks.is_empty() {
                quiet_at = Some(Instant::now() + pause);
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

fn readable(seen: &Seen) -> Figures {
    let first_seq = seen.record.first_seq;
    let nothing = Figures { first_seq, next_seq: first_seq, ..Figures::default() };
    figures(&seen.record, seen.progress().as_ref()).unwrap_or(nothing)
}

/// Goes on with a search.
pub(super) async fn search(
    mut matcher: Matcher,
    chunks: Vec<Chunk>,
) -> Result<(Matcher, Option<Match>), Error> {
    let bytes = matcher.pending() + chunks.iter().map(|chunk| chunk.data.len()).sum::<usize>();
    let search = move || {
        let found = matcher.feed(&chunks);
        (matcher, found)
    };
    apart(bytes, search).await
}

/// Looks through so many bytes, where it holds nobody up.
pub(super) async fn apart<T: Send + 'static>(
    bytes: usize,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    if bytes <= SEARCHED_HERE {
        tokio::task::yield_now().await;
        return Ok(look());
    }
    tokio::task::spawn_blocking(look).await.map_err(|_| Error::ShuttingDown)
}

/// What there is to read of a process; none: it lives, and nobody said how far it is.
pub fn figures(record: &Record, progress: Option<&Progress>) -> Option<Figures> {
    if let Some(ring) = progress.and_then(|progress| progress.ring.as_ref()) {
        return Some(ring.figures());
    }
    let nothing = |next_seq| Figures { first_seq: next_seq, next_seq, ..Figures::default() };
    match record.end() {
        // Its ring is gone, or there never was one: nothing of it is kept.
        Some(End { printed, .. }) => Some(Figures {
            total_bytes: printed.bytes,
            dropped_bytes: printed.bytes,
            last_time: printed.last_time,
            ..nothing(printed.next_seq)
        }),
        None => progress.map(|progress| nothing(progress.next_seq.max(record.first_seq))),
    }
}
