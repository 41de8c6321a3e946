//! Reading a transcript through a view.
//!
//! Owns the order of reading, waiting and showing; what a view shows is [`crate::transcript`]'s.
//! Whatever takes long is done apart, one batch at a time, so that nobody waits for one who
//! searches a large transcript.

mod live;

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::caller_budget::CallTicket;
use super::error::Error;
use super::observe::{Observer, SEARCHED, apart, steps};
use super::worker_pool::Workers;
use crate::process::AnyOf;
use crate::transcript::{Answer, Batch, CHUNK_COST, Chunk, Gap, Omitted, Stream, View, Viewer};

pub use live::{LiveView, Sight};

/// Output as an answer shows it.
#[derive(Debug, Default)]
pub struct Shown {
    /// The chunks.
    pub chunks: Vec<Chunk>,
    /// What is missing before them.
    pub gap: Option<Gap>,
    /// What the view left out; none: it leaves nothing out.
    pub omitted: Option<Omitted>,
    /// The chunk to go on from.
    pub next_seq: u64,
    /// The process has exited, and this is the end of what it printed.
    pub ended: bool,
}

impl Observer {
    /// What there is from this place on, as a view shows it. Waits for something to show, or for
    /// the end, if there is nothing.
    pub async fn show(
        &mut self,
        view: &View,
        streams: &AnyOf<Stream>,
        wait: Duration,
    ) -> Result<Shown, Error> {
        let patience = Instant::now() + wait;
        if view.is_plain() {
            return self.show_plain(view.max_bytes, streams, patience).await;
        }
        let look = self.look(view, streams, patience).await?;
        let Look { viewer, workers, gap, end, held, .. } = look;
        let (live, cost) = (!self.at_end(), viewer.cost(0));
        let finish = move || viewer.finish(live);
        let answer = apart(&workers, cost, finish).await?;
        let Answer { chunks, omitted, end: full } = answer;
        self.ticket().release(held.saturating_sub(cost_of(&chunks)));
        let end = full.or(end);
        match end {
            Some(seq) => self.remember_at(seq),
            None => self.remember(),
        }
        Ok(Shown {
            chunks,
            gap,
            omitted: Some(omitted),
            next_seq: end.unwrap_or_else(|| self.next_seq()),
            ended: end.is_none() && self.at_end(),
        })
    }

    async fn show_plain(
        &mut self,
        max_bytes: usize,
        streams: &AnyOf<Stream>,
        patience: Instant,
    ) -> Result<Shown, Error> {
        // A flood of other streams does not hold a reader: what was there when it came is
        // searched.
        let there = self.figures().next_seq;
        let mut shown = Shown::default();
        loop {
            let room = max_bytes.min(self.unread_bytes());
            self.ticket().hold(room).await?;
            // What came meanwhile is for the next answer. Two chunks always fit, so that a small
            // answer has what is in a file and what is in the ring.
            let most = max_bytes.min(room.max(2 * SEARCHED));
            let Batch { gap, chunks } = self.take(most).await;
            shown.gap = shown.gap.or(gap);
            let nothing = chunks.is_empty();
            shown.chunks = wanted(chunks, streams);
            self.ticket().release(room.saturating_sub(cost_of(&shown.chunks)));
            if !shown.chunks.is_empty() || shown.gap.is_some() || self.at_end() {
                break;
            }
            if (nothing || self.next_seq() >= there) && Instant::now() >= patience {
                break;
            }
            if nothing {
                self.changed_until(patience).await?;
            } else {
                // All of it was of other streams; there may be more.
                tokio::task::yield_now().await;
            }
        }
        self.remember();
        Ok(Shown { next_seq: self.next_seq(), ended: self.at_end(), ..shown })
    }

    /// Goes through what is there until an answer is full, or all was seen and there is something
    /// to show.
    async fn look(
        &mut self,
        view: &View,
        streams: &AnyOf<Stream>,
        patience: Instant,
    ) -> Result<Look, Error> {
        let there = self.figures().next_seq;
        let mut look = Look::begin(self, Viewer::new(view, self.next_seq()), view, streams).await?;
        // As it is without lines to select: an answer is one batch.
        let room = if view.has_ends() || view.grep.is_some() { SEARCHED } else { view.max_bytes };
        loop {
            let most = view.max_bytes.min(self.unread_bytes());
            look.hold(self.ticket(), most).await?;
            let Batch { gap, chunks } = self.take(room).await;
            if let Some(gap) = gap {
                if look.has_taken && !view.has_ends() {
                    look.end = Some(gap.from_seq);
                    return Ok(look);
                }
                look.miss(gap, view);
            }
            let nothing = chunks.is_empty();
            look = look.over(chunks, streams).await?;
            let memory = look.viewer.memory();
            look.hold(self.ticket(), memory).await?;
            if look.viewer.is_full() {
                return Ok(look);
            }
            if !nothing && self.next_seq() < there {
                continue;
            }
            if look.gap.is_some() || self.at_end() || Instant::now() >= patience {
                return Ok(look);
            }
            let shows;
            (look, shows) = look.would_show().await?;
            if shows {
                return Ok(look);
            }
            if nothing {
                // While it waits it holds what it has, not what it may have.
                let kept = look.viewer.memory().min(look.held);
                self.ticket().release(look.held - kept);
                look.held = kept;
                self.changed_until(patience).await?;
            }
        }
    }

    async fn changed_until(&mut self, patience: Instant) -> Result<(), Error> {
        tokio::select! {
            biased;
            changed = self.changed() => changed,
            () = sleep_until(patience) => Ok(()),
        }
    }
}

/// A view that is led over a transcript.
struct Look {
    viewer: Viewer,
    workers: Workers,
    /// Where it began.
    since: u64,
    /// What is missing from there on.
    gap: Option<Gap>,
    /// Where it ended, if not where the observer is.
    end: Option<u64>,
    has_taken: bool,
    /// Bytes of all streams since it began, or began anew.
    taken: u64,
    /// Bytes that are reserved for the answer, and for what the view keeps until then.
    held: usize,
}

impl Look {
    /// Tells a view what goes on at its place.
    async fn begin(
        observer: &mut Observer,
        viewer: Viewer,
        view: &View,
        streams: &AnyOf<Stream>,
    ) -> Result<Look, Error> {
        let since = observer.next_seq();
        let before = observer.look_back(view.looks_back()).await;
        let workers = observer.workers().clone();
        let (gap, end, has_taken, taken, held) = (None, None, false, 0, 0);
        let look = Look { viewer, workers, since, gap, end, has_taken, taken, held };
        let look = look.over(before, streams).await?;
        Ok(Look { has_taken: false, taken: 0, ..look })
    }

    /// Reserves so many bytes in all, if it has fewer.
    async fn hold(&mut self, ticket: &CallTicket, bytes: usize) -> Result<(), Error> {
        ticket.hold(bytes.saturating_sub(self.held)).await?;
        self.held = self.held.max(bytes);
        Ok(())
    }

    /// Leads it over the next chunks.
    async fn over(mut self, chunks: Vec<Chunk>, streams: &AnyOf<Stream>) -> Result<Look, Error> {
        self.has_taken |= !chunks.is_empty();
        self.taken += bytes(&chunks);
        let workers = self.workers.clone();
        for chunks in self.steps(wanted(chunks, streams)) {
            let cost = self.viewer.cost(bytes(&chunks) as usize);
            let feed = move || {
                self.viewer.feed(&chunks);
                self
            };
            self = apart(&workers, cost, feed).await?;
        }
        Ok(self)
    }

    /// What is fed in one go: all, unless each byte is searched.
    fn steps(&self, chunks: Vec<Chunk>) -> Vec<Vec<Chunk>> {
        match self.viewer.step_bytes() {
            Some(step) => steps(chunks, step),
            None => vec![chunks],
        }
    }

    /// Begins anew behind chunks that are missing. What was read before them is gone by now, too.
    fn miss(&mut self, gap: Gap, view: &View) {
        if self.has_taken {
            self.viewer = Viewer::new(view, gap.to_seq + 1);
        } else {
            self.viewer.skip();
        }
        let before = self.gap.map_or(Some(0), |before| before.dropped_bytes);
        let dropped = gap.dropped_bytes.zip(before);
        let dropped_bytes = dropped.map(|(bytes, before)| bytes + before + self.taken);
        self.gap = Some(Gap { from_seq: self.since, to_seq: gap.to_seq, dropped_bytes });
        self.taken = 0;
    }

    async fn would_show(self) -> Result<(Look, bool), Error> {
        let (workers, cost) = (self.workers.clone(), self.viewer.cost(0));
        let look = move || {
            let shows = self.viewer.would_show();
            (self, shows)
        };
        apart(&workers, cost, look).await
    }
}

fn bytes(chunks: &[Chunk]) -> u64 {
    chunks.iter().map(|chunk| chunk.data.len() as u64).sum()
}

/// What chunks count for in an answer.
fn cost_of(chunks: &[Chunk]) -> usize {
    bytes(chunks) as usize + chunks.len() * CHUNK_COST as usize
}

fn wanted(chunks: Vec<Chunk>, streams: &AnyOf<Stream>) -> Vec<Chunk> {
    chunks.into_iter().filter(|chunk| streams.contains(chunk.stream)).collect()
}
