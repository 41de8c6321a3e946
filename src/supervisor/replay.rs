//! A terminal's output, played again: what it shows, and the mode that its keys are in.
//!
//! Keeps nothing of a terminal: the kept transcript is read from its beginning whenever someone
//! asks, on a thread apart if it is long. Who goes on typing keeps a place of its own.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::Supervisor;
use super::error::Error;
use super::observe::Observer;
use super::registry::Entry;
use crate::process::{Key, Keyboard};
use crate::terminal::{CursorMode, Picture, Screen};
use crate::transcript::Batch;

/// Bytes that are read from the ring in one go.
const BATCH: usize = 64 << 10;

/// Bytes that are played at most between two looks at whether anyone still waits.
const PIECE: usize = 4 << 10;

/// Cells that such a piece may change at most: a sequence of three bytes can change all.
const CELLS: usize = 16 << 20;

/// How long one screen may take to be worked out. The default transcript takes a fraction of a
/// second, unless it was made to take long.
const LONGEST: Duration = Duration::from_secs(30);

/// Bytes that are looked through where everything else runs, too.
const LOOKED_HERE: usize = 4 << 10;

/// Screens that are worked out, or long transcripts that are looked through, at a time: each takes
/// a processor, and a screen up to 100 MB if it is as large as can be.
static SCREENS: Semaphore = Semaphore::const_new(2);

impl Supervisor {
    /// What a terminal shows, and the number of the first chunk that is not on it.
    pub async fn screen(&self, entry: &Arc<Entry>) -> Result<(Picture, u64), Error> {
        if entry.sizes().is_empty() {
            return Err(Error::NotATerminal(entry.seen().record.id.to_string()));
        }
        let permit = SCREENS.acquire().await.map_err(|_| Error::ShuttingDown)?;
        let (observer, entry) = (self.observe_launch(entry).await?, Arc::clone(entry));
        let waiting = Arc::new(());
        let left = Arc::downgrade(&waiting);
        let played = spawn_blocking(move || {
            let _permit = permit;
            play(observer, &entry, &left)
        });
        let played = played.await.map_err(|_| Error::ShuttingDown)?;
        drop(waiting);
        played.ok_or(Error::ScreenTooCostly)
    }

    /// The output of a process from its launch on, which has a terminal of its own.
    async fn observe_launch(&self, entry: &Arc<Entry>) -> Result<Observer, Error> {
        let first_seq = entry.seen().record.first_seq;
        self.observe(Arc::clone(entry), Some(first_seq)).await
    }
}

/// Plays what is there by now. None: nobody waits for it any more, or it takes too long.
fn play(mut observer: Observer, entry: &Entry, waiting: &Weak<()>) -> Option<(Picture, u64)> {
    let begin = Instant::now();
    let there = observer.figures().next_seq;
    // Looked at afterwards: what is there was printed at one of these.
    let sizes = entry.sizes();
    let (_, first) = *sizes.first()?;
    let cells = sizes.iter().map(|(_, size)| usize::from(size.rows) * usize::from(size.cols)).max();
    let piece = (CELLS / cells.unwrap_or(1)).clamp(16, PIECE);
    let mut screen = Screen::new(first, sizes.len() > 1);
    let mut sizes = sizes.into_iter().peekable();
    while observer.next_seq() < there {
        let batch = observer.read_blocking(BATCH);
        if batch.chunks.is_empty() && batch.gap.is_none() {
            break;
        }
        for chunk in batch.chunks {
            while let Some((_, size)) = sizes.next_if(|(seq, _)| *seq <= chunk.seq) {
                screen.resize(size);
            }
            for piece in chunk.data.chunks(piece) {
                screen.feed(piece);
                if waiting.strong_count() == 0 || begin.elapsed() > LONGEST {
                    return None;
                }
            }
        }
    }
    sizes.for_each(|(_, size)| screen.resize(size));
    Some((screen.picture(), observer.next_seq()))
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
                let observer = self.supervisor.observe_launch(&self.entry).await?;
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
        let permit = SCREENS.acquire().await.map_err(|_| Error::ShuttingDown)?;
        let look = move || {
            let _permit = permit;
            loop {
                let batch = self.observer.read_blocking(BATCH);
                if !self.take(batch, there) {
                    return self;
                }
            }
        };
        spawn_blocking(look).await.map_err(|_| Error::ShuttingDown)
    }

    /// Takes some more. False: there is none.
    fn take(&mut self, batch: Batch, there: u64) -> bool {
        batch.chunks.iter().for_each(|chunk| self.mode.feed(&chunk.data));
        let something = batch.gap.is_some() || !batch.chunks.is_empty();
        (something || self.observer.unread().is_some()) && self.observer.next_seq() < there
    }
}
