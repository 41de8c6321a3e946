//! A view of what is being printed.
//!
//! Owns what one who follows has seen and not yet been shown: a line under way and what may stand
//! around a match, both bounded. With a tail it begins with the last lines that are there.

use super::{Look, wanted};
use crate::process::AnyOf;
use crate::supervisor::error::Error;
use crate::supervisor::observe::{Observer, apart};
use crate::transcript::{Batch, Chunk, Gap, Omitted, Stream, View, Viewer};

/// What one who follows is shown.
#[derive(Debug, PartialEq, Eq)]
pub enum Sight {
    /// Chunks are missing here.
    Gap(Gap),
    /// Output.
    Chunk(Chunk),
}

impl Sight {
    /// Bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        let output = match self {
            Sight::Gap(_) => 0,
            Sight::Chunk(chunk) => chunk.data.len(),
        };
        size_of::<Sight>() + output
    }
}

/// A view of what is being printed.
pub struct LiveView {
    view: View,
    streams: AnyOf<Stream>,
    /// None: everything is shown, or it is being looked at.
    look: Option<Look>,
    /// The end of what was there in the beginning, until its last lines are shown.
    until: Option<u64>,
}

impl LiveView {
    /// A view from the place of an observer on.
    pub async fn begin(
        observer: &mut Observer,
        view: View,
        streams: AnyOf<Stream>,
    ) -> Result<LiveView, Error> {
        let mut look = None;
        if !view.is_plain() {
            let viewer = Viewer::following(&view, observer.next_seq());
            look = Some(Look::begin(observer, viewer, &view, &streams).await?);
        }
        let until = view.has_ends().then(|| observer.figures().next_seq);
        Ok(LiveView { view, streams, look, until })
    }

    /// What is shown of a batch, after which the observer is at `next_seq`.
    pub async fn see(&mut self, batch: Batch, next_seq: u64) -> Result<Vec<Sight>, Error> {
        let Batch { gap, chunks } = batch;
        if gap.is_none() && chunks.is_empty() && self.until.is_none() {
            return Ok(Vec::new());
        }
        let Some(mut look) = self.look.take() else {
            return Ok(sights(Vec::new(), gap, wanted(chunks, &self.streams)));
        };
        let (mut before, mut missing) = (Vec::new(), gap);
        match (gap, self.until) {
            (Some(gap), Some(_)) => look.miss(gap, &self.view),
            (Some(_), None) => (look, before) = decided(look, Viewer::skip).await?,
            (None, _) => {}
        }
        let there_was_more = !chunks.is_empty();
        look = look.over(chunks, &self.streams).await?;
        let chunks = match self.until {
            None => look.viewer.take(),
            Some(until) if there_was_more && next_seq < until => {
                missing = None;
                Vec::new()
            }
            Some(_) => {
                self.until = None;
                missing = look.gap.take();
                look.viewer.go_on()
            }
        };
        self.look = Some(look);
        Ok(sights(before, missing, chunks))
    }

    /// What is shown because the process has ended.
    pub async fn end(&mut self) -> Result<Vec<Sight>, Error> {
        let Some(look) = self.look.take() else {
            return Ok(Vec::new());
        };
        let (look, last) = decided(look, Viewer::close).await?;
        self.look = Some(look);
        Ok(sights(last, None, Vec::new()))
    }

    /// Bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        self.look.as_ref().map_or(0, |look| look.viewer.memory())
    }

    /// What was left out; none: nothing is.
    pub fn omitted(&self) -> Option<Omitted> {
        self.look.as_ref().map(|look| look.viewer.omitted())
    }

    /// Where one who leaves goes on, being at `next_seq`.
    pub fn resumes_at(&self, next_seq: u64) -> u64 {
        self.look.as_ref().map_or(next_seq, |look| look.viewer.resumes_at(next_seq))
    }
}

/// What a view shows when it has to decide.
async fn decided(
    mut look: Look,
    decide: impl FnOnce(&mut Viewer) + Send + 'static,
) -> Result<(Look, Vec<Chunk>), Error> {
    let (workers, cost) = (look.workers.clone(), look.viewer.cost(0));
    let decide = move || {
        decide(&mut look.viewer);
        let chunks = look.viewer.take();
        (look, chunks)
    };
    apart(&workers, cost, decide).await
}

fn sights(before: Vec<Chunk>, gap: Option<Gap>, after: Vec<Chunk>) -> Vec<Sight> {
    let before = before.into_iter().map(Sight::Chunk);
    before.chain(gap.map(Sight::Gap)).chain(after.into_iter().map(Sight::Chunk)).collect()
}
