//! The connection that reads, apart from the one that writes: neither waits for the other.

use std::sync::Arc;

use rusqlite::Connection;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::StoreError;

#[derive(Clone)]
pub(super) struct Reader {
    /// Whoever waits for it waits as a task: at most one thread reads.
    connection: Arc<Mutex<Connection>>,
}

impl Reader {
    pub(super) fn new(connection: Connection) -> Reader {
        Reader { connection: Arc::new(Mutex::new(connection)) }
    }

    /// Asks one question, apart from the runtime's threads.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let connection = Arc::clone(&self.connection).lock_owned().await;
        let answer = spawn_blocking(move || question(&connection));
        answer.await.map_err(|_| StoreError::Ended)?
    }
}
