//! A terminal's output, played again: what it shows, and the mode that its keys are in.
//!
//! Keeps nothing of a terminal: the kept transcript is read from its beginning whenever someone
//! asks, on a thread apart if it is long. Who goes on typing keeps a place of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::Supervisor;
use super::error::Error;
use super::observe::Observer;
use super::registry::Entry;
use super::worker_pool::Step;
use crate::process::{Key, Keyboard, Size};
use crate::terminal::{CursorMode, Picture, Screen};
use crate::transcript::{Batch, Chunk};

/// Bytes that are read from the ring in one go.
const BATCH: usize = 64 << 10;

/// Bytes that are played at most between two looks at the clock.
const PIECE: usize = 4 << 10;

/// Cells that such a piece may change at most: a sequence of three bytes can change all.
const CELLS: usize = 16 << 20;

/// How long a step holds a worker thread.
const STEP_TIME: Duration = Duration::from_millis(20);

/// How long one screen may take to be worked out. The default transcript takes a fraction of a
/// second, unless it was made to take long.
const LONGEST: Duration = Duration::from_secs(30);

/// Bytes that are looked through where everything else runs, too.
const LOOKED_HERE: usize = 4 << 10;

/// Cells of a terminal whose screen counts as small: it takes up to about 3 MB.
const SMALL_CELLS: usize = 32 << 10;

/// Small screens that are worked out at a time. One caller has at most two of them.
static SMALL_SCREENS: Semaphore = Semaphore::const_new(32);

/// Large screens that are worked out at a time: each takes up to 100 MB if it is as large as can be.
/// One caller has at most half of them.
static LARGE_SCREENS: Semaphore = Semaphore::const_new(4);

/// What the answer with a screen takes at most: what clients take unless told otherwise.
pub const SCREEN_BYTES: usize = 4 << 20;

impl Supervisor {
    /// What a terminal shows, and the number of the first chunk that is not on it. Reserves
    /// [`SCREEN_BYTES`] of the caller's budget.
    pub async fn screen(&self, entry: &Arc<Entry>) -> Result<(Picture, u64), Error> {
        if entry.sizes().is_empty() {
            return Err(Error::NotATerminal(entry.seen().record.id.to_string()));
        }
        let _turn = self.ticket.screen_turn().await?;
        self.ticket.hold(SCREEN_BYTES).await?;
        let (_permit, playback) = self.playback(entry).await?;
        let workers = playback.observer.workers().clone();
        workers.run_steps(playback, Playback::step).await?.ok_or(Error::ScreenTooCostly)
    }

    /// What plays the output of a terminal, and its permit to take memory. Large screens do not delay small
    /// ones.
    async fn playback(
        &self,
        entry: &Arc<Entry>,
    ) -> Result<(SemaphorePermit<'static>, Playback), Error> {
        loop {
            let large = cells(entry.sizes().iter()) > SMALL_CELLS;
            let screens = if large { &LARGE_SCREENS } else { &SMALL_SCREENS };
            let permit = screens.acquire().await.map_err(|_| Error::ShuttingDown)?;
            let Some(playback) = Playback::new(self.observe_launch(entry)?, entry) else {
                return Err(Error::NotATerminal(entry.seen().record.id.to_string()));
            };
            // The terminal may have been resized while this waited.
            if large || cells(playback.sizes.iter()) <= SMALL_CELLS {
                return Ok((permit, playback));
            }
        }
    }

    /// The output of a process from its launch on, which has a terminal of its own.
    fn observe_launch(&self, entry: &Arc<Entry>) -> Result<Observer, Error> {
        let first_seq = entry.seen().record.first_seq;
        self.observe(Arc::clone(entry), Some(first_seq))
    }
}

/// A screen that is being worked out, step by step.
struct Playback {
    observer: Observer,
    screen: Screen,
    /// Sizes that are still to come, and the chunk with which each of them begins.
    sizes: VecDeque<(u64, Size)>,
    /// Read, and not played yet.
    chunks: VecDeque<Chunk>,
    /// The first chunk that is not to be played.
    end: u64,
    /// Bytes that are played without a look at the clock.
    piece: usize,
    /// Time that all steps took together.
    spent: Duration,
}

impl Playback {
    /// Begins with what is there by now; none: there is no terminal.
    fn new(observer: Observer, entry: &Entry) -> Option<Playback> {
        let end = observer.figures().next_seq;
        // Looked at afterwards: what is there was printed at one of these.
        let sizes = VecDeque::from(entry.sizes());
        let (_, first) = *sizes.front()?;
        let piece = (CELLS / cells(sizes.iter()).max(1)).clamp(16, PIECE);
        let screen = Screen::new(first, sizes.len() > 1);
        let (chunks, spent) = (VecDeque::new(), Duration::ZERO);
        Some(Playback { observer, screen, sizes, chunks, end, piece, spent })
    }

    /// Plays for a short while. None: it takes too long altogether.
    fn step(mut self) -> Step<Playback, Option<(Picture, u64)>> {
        let begin = Instant::now();
        while begin.elapsed() < STEP_TIME {
            if !self.play_piece() {
                self.sizes.iter().for_each(|(_, size)| self.screen.resize(*size));
                return Step::Done(Some((self.screen.picture(), self.observer.next_seq())));
            }
        }
        self.spent += begin.elapsed();
        if self.spent > LONGEST { Step::Done(None) } else { Step::More(self) }
    }

    /// Plays some more. False: all was played.
    fn play_piece(&mut self) -> bool {
        let Some(chunk) = self.chunks.front_mut() else { return self.read() };
        while self.sizes.front().is_some_and(|(seq, _)| *seq <= chunk.seq)
            && let Some((_, size)) = self.sizes.pop_front()
        {
            self.screen.resize(size);
        }
        let length = self.piece.min(chunk.data.len());
        self.screen.feed(&chunk.data.split_to(length));
        if chunk.data.is_empty() {
            self.chunks.pop_front();
        }
        true
    }

    /// Reads the next chunks. False: there are none.
    fn read(&mut self) -> bool {
        if self.observer.next_seq() >= self.end {
            return false;
        }
        let batch = self.observer.read_blocking(BATCH);
        let something = !batch.chunks.is_empty() || batch.gap.is_some();
        self.chunks = batch.chunks.into();
        something
    }
}

/// Cells of the largest of these sizes.
fn cells<'a>(sizes: impl Iterator<Item = &'a (u64, Size)>) -> usize {
    let cells = |(_, size): &(u64, Size)| usize::from(size.rows) * usize::from(size.cols);
    sizes.map(cells).max().unwrap_or(0)
}

/// Someone who presses keys of a process.
pub struct Typist {
    supervisor: Supervisor,
    entry: Arc<Entry>,
    /// How far its output was looked through, once that was needed.
    looked: Option<Looked>,
}

struct Looked {
    /// Another launch has another terminal.
    launch: u32,
    observer: Observer,
    mode: CursorMode,
}

impl Typist {
    /// Someone who has not pressed a key yet.
    pub fn new(supervisor: Supervisor, entry: Arc<Entry>) -> Typist {
        Typist { supervisor, entry, looked: None }
    }

    /// The bytes of keys that are pressed now.
    pub async fn press(&mut self, keys: &[Key]) -> Result<Bytes, Error> {
        let keyboard = self.keyboard(keys).await?;
        let mut typed = Vec::new();
        keys.iter().for_each(|key| keyboard.press(*key, &mut typed));
        Ok(typed.into())
    }

    async fn keyboard(&mut self, keys: &[Key]) -> Result<Keyboard, Error> {
        if self.entry.sizes().is_empty() {
            return Ok(Keyboard::Pipe);
        }
        if !keys.iter().any(Key::follows_cursor_mode) {
            return Ok(Keyboard::Terminal);
        }
        let launch = self.entry.seen().record.launch;
        let looked = match self.looked.take().filter(|looked| looked.launch == launch) {
            Some(looked) => looked,
            None => {
                let observer = self.supervisor.observe_launch(&self.entry)?;
                Looked { launch, observer, mode: CursorMode::default() }
            }
        };
        let looked = self.looked.insert(looked.on().await?);
        let application = looked.mode.is_application();
        Ok(if application { Keyboard::ApplicationCursor } else { Keyboard::Terminal })
    }
}

impl Looked {
    /// Looks through what is there by now.
    async fn on(mut self) -> Result<Looked, Error> {
        let there = self.observer.figures().next_seq;
        let batch = self.observer.read(LOOKED_HERE);
        if !self.take(batch, there) {
            return Ok(self);
        }
        let workers = self.observer.workers().clone();
        let step = move |mut looked: Looked| {
            let batch = looked.observer.read_blocking(BATCH);
            if looked.take(batch, there) { Step::More(looked) } else { Step::Done(looked) }
        };
        workers.run_steps(self, step).await
    }

    /// Takes some more. False: there is none.
    fn take(&mut self, batch: Batch, there: u64) -> bool {
        batch.chunks.iter().for_each(|chunk| self.mode.feed(&chunk.data));
        let something = batch.gap.is_some() || !batch.chunks.is_empty();
        (something || self.observer.unread().is_some()) && self.observer.next_seq() < there
    }
}
