//! Saving what the living print, now and then: should the keeper be lost with all rings, that much
//! is left of their transcripts.
//!
//! Owns how far each was saved. Never holds a process up: it reads rings as any reader does.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::Stage;
use super::archives::{Added, Archives, Written};
use super::registry::Registry;
use crate::process::Record;

/// How often. What is printed in between is what a loss of the whole machine may cost.
const PERIOD: Duration = Duration::from_secs(5);

/// How often the file of a process may be written anew that prints more than its ring holds in a
/// period: all of the ring is written then, for one that may never end. It may lose this much.
const ANEW: Duration = Duration::from_secs(30);

pub(super) struct Saver {
    registry: Arc<Registry>,
    archives: Arc<Archives>,
    /// How far the file of each run was written.
    saved: HashMap<(u64, u32), Saved>,
    /// Something could not be saved the last time.
    failing: bool,
}

/// A file that was written.
struct Saved {
    written: Written,
    /// When it was written anew.
    at: Instant,
}

impl Saver {
    pub(super) fn new(registry: Arc<Registry>, archives: Arc<Archives>) -> Saver {
        Saver { registry, archives, saved: HashMap::new(), failing: false }
    }

    /// Saves until everything is to end: then each is written as a whole, or saved once more.
    pub(super) async fn run(saver: Arc<Mutex<Saver>>, mut stage: watch::Receiver<Stage>) {
        loop {
            tokio::select! {
                _ = stage.wait_for(|stage| *stage >= Stage::Stopping) => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            saver.lock().await.save(false).await;
        }
    }

    /// Saves what was printed since the last time. What is over is written to its file by others,
    /// unless this is the last time.
    pub(super) async fn save(&mut self, last: bool) {
        let mut printing = self.registry.printing();
        printing.retain(|(record, _)| last || !record.may_be_filed());
        let known = |key: &(u64, u32)| printing.iter().any(|(record, _)| self::key(record) == *key);
        if self.saved.len() > printing.len() {
            self.saved.retain(|key, _| known(key));
        }
        let mut failed = None;
        for (record, ring) in printing {
            // Whatever was read of it since the last time: transcripts are not this process's memory.
            ring.unmap_pages();
            let saved = self.saved.get(&key(&record));
            let next = saved.map(|saved| saved.written.archived.figures.next_seq);
            if next == Some(ring.figures().next_seq) && !record.may_be_filed() {
                continue;
            }
            if let Err(error) = self.save_one(key(&record), last).await {
                failed = Some((error, Arc::clone(&record.id)));
            }
        }
        let failing = failed.is_some();
        if let Some((error, process)) = failed.filter(|_| !self.failing) {
            let words = "what is printed cannot be saved and stays in memory";
            tracing::warn!(%error, %process, "{words}");
        }
        self.failing = failing;
    }

    async fn save_one(&mut self, key: (u64, u32), last: bool) -> io::Result<()> {
        let (saved, registry) = (self.saved.remove(&key), Arc::clone(&self.registry));
        let save = move |archives: &Archives| {
            // It may have been freed, run again or written to its file before this turn came.
            let Some((record, ring)) = registry.printing_in(key.0, key.1) else { return Ok(None) };
            let ended = record.may_be_filed();
            if let Some(mut saved) = saved.filter(|_| !ended) {
                let added = archives.append(&record, &ring, &mut saved.written)?;
                let waits = added == Added::Lapped && !last && saved.at.elapsed() < ANEW;
                if added == Added::All || waits {
                    return Ok(Some(saved));
                }
            }
            let written = archives.write(&record, &ring, ended)?;
            ring.unmap_pages();
            Ok(Some(Saved { written, at: Instant::now() }))
        };
        let saved = self.archives.in_turn(save).await?;
        self.saved.extend(saved.map(|saved| (key, saved)));
        Ok(())
    }
}

fn key(record: &Record) -> (u64, u32) {
    (record.birth, record.run)
}
