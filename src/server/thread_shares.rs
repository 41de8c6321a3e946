//! The shares that clients have of the server's thread.
//!
//! All connections of one caller, and all of one origin without a caller, use one share, however many they are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::origin::Client;
use crate::supervisor::ThreadShare;

/// The shares of the clients that are connected.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadShares(Arc<Mutex<HashMap<Client, Weak<ThreadShare>>>>);

impl ThreadShares {
    /// The share of a client.
    pub(super) fn of(&self, client: Client) -> Arc<ThreadShare> {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(&client).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::default();
        shares.insert(client, Arc::downgrade(&share));
        share
    }
}
