//! Which keeper a launch was asked of.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Identifies a keeper: no other process of any boot has the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeeperId(Arc<str>);

impl KeeperId {
    /// The identity of a process: a pid is given again within a boot, a pid with its start time is not.
    pub fn new(boot_id: &str, pid: i32, start_ticks: u64) -> KeeperId {
        KeeperId(format!("{}/{pid}/{start_ticks}", boot_id.trim()).into())
    }
}
