//! Damage that shows while the store is used: it is marked, and whoever serves is told to end.
//!
//! Owns the mark in the state directory. Nothing is repaired here: that is done when the store is
//! opened the next time, when nobody uses it (`repair`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;

use super::StoreError;

/// Name of the file that says that the database is damaged.
const MARK: &str = "procyard.db.is-damaged";

/// Whether the database was found to be damaged.
pub(super) struct Damage {
    mark: PathBuf,
    found: watch::Sender<bool>,
}

impl Damage {
    pub(super) fn new(directory: &Path) -> Arc<Damage> {
        Arc::new(Damage { mark: mark(directory), found: watch::Sender::new(false) })
    }

    /// Marks the database as damaged if this is what an answer says.
    pub(super) fn heed<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &answer
            && error.is_damage()
            && !self.found.send_replace(true)
        {
            tracing::error!(%error, "the store is damaged; it is repaired by the next server");
            if let Err(error) = fs::write(&self.mark, error.to_string()) {
                tracing::warn!(%error, "that the store is damaged could not be marked");
            }
        }
        answer
    }

    /// Waits until damage is found.
    pub(super) async fn found(&self) {
        let mut found = self.found.subscribe();
        if found.wait_for(|found| *found).await.is_err() {
            std::future::pending().await
        }
    }
}

/// Where the mark of a directory is.
pub(super) fn mark(directory: &Path) -> PathBuf {
    directory.join(MARK)
}
