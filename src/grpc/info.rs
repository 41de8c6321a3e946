//! GetServerInfo.

use std::time::{Duration, Instant, SystemTime};

use super::{pb, to_proto};
use crate::process::KillDomain;
use crate::store::Repaired;
use crate::supervisor::{Counts, ENFORCEABLE_LIMITS, Supervisor};
use crate::transcript::ring;

/// What a server says of itself.
pub struct About {
    /// Identifies the installation.
    pub instance_id: String,
    /// How trees are ended.
    pub kill_domain: KillDomain,
    /// Largest message that a client may send.
    pub max_message_bytes: usize,
    /// Finished records that are kept at most.
    pub max_finished: usize,
    /// Events that are kept at most.
    pub max_events: u64,
    /// Processes that may run at a time; none: no bound is set.
    pub max_running: Option<usize>,
    /// When it began to serve.
    pub began: (SystemTime, Instant),
    /// What became of the store when it was last repaired, if it ever was.
    pub repaired: Option<Repaired>,
}

impl About {
    pub(super) fn answer(&self, supervisor: &Supervisor) -> pb::GetServerInfoResponse {
        let Counts { live, queued, finished } = supervisor.registry().counts();
        let (wall, monotonic) = self.began;
        let since_1970 = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let nanos = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX);
        pb::GetServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            instance_id: self.instance_id.clone(),
            start_time: Some(to_proto::timestamp(nanos)),
            uptime: Some(to_proto::duration(monotonic.elapsed())),
            capabilities: Some(pb::Capabilities {
                kill_domain: pb::KillDomain::from(self.kill_domain).into(),
                max_message_bytes: self.max_message_bytes as u64,
                max_transcript_bytes: ring::MAX_CAPACITY,
                max_pending_input_bytes: crate::process::MAX_PENDING_INPUT,
                max_finished: self.max_finished as u64,
                max_events: self.max_events,
                max_running: self.max_running.unwrap_or(0) as u64,
                limits: ENFORCEABLE_LIMITS.map(String::from).into(),
            }),
            counts: Some(pb::Counts {
                live: live as u64,
                finished: finished as u64,
                latest_event: supervisor.events().last_seq(),
                queued: queued as u64,
            }),
            store: Some(store(self.repaired.as_ref())),
        }
    }
}

fn store(repaired: Option<&Repaired>) -> pb::Store {
    let Some(repaired) = repaired else { return pb::Store::default() };
    let Repaired { time, file, records, events, lost_records, lost_events, .. } = repaired;
    pb::Store {
        repair_time: Some(to_proto::timestamp(time.saturating_mul(1_000_000_000))),
        damaged_file: file.clone(),
        saved_records: *records,
        saved_events: *events,
        lost_records: *lost_records,
        lost_events: *lost_events,
    }
}
