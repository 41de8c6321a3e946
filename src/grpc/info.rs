//! GetServerInfo.

use std::time::{Duration, Instant, SystemTime};

use super::{pb, to_proto};
use crate::access::{Caller, Choice, Freedoms, Grant, Pattern, Scope};
use crate::process::{KillDomain, Parts};
use crate::store::Repaired;
use crate::supervisor::{Counts, Error, Supervisor};
use crate::transcript::ring;

/// What a server says of itself.
pub struct About {
    /// Identifies the installation.
    pub instance_id: String,
    /// How trees are ended.
    pub kill_domain: KillDomain,
    /// Fields of limits that can be enforced.
    pub limits: Vec<&'static str>,
    /// Which parts of a sandbox can be had; none: nobody can be confined.
    pub sandbox: Option<Parts>,
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
    /// Fields of a sandbox that can be had: a keeper that confines can always withhold privileges.
    fn sandbox(&self) -> Vec<String> {
        let Some(parts) = self.sandbox else { return Vec::new() };
        let all = parts.fields().into_iter().chain(["no_new_privileges"]);
        all.map(String::from).collect()
    }

    pub(super) async fn answer(
        &self,
        supervisor: &Supervisor,
    ) -> Result<pb::GetServerInfoResponse, Error> {
        let Counts { live, queued, finished } = supervisor.counts().await?;
        let (wall, monotonic) = self.began;
        let since_1970 = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let nanos = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX);
        Ok(pb::GetServerInfoResponse {
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
                limits: self.limits.iter().copied().map(String::from).collect(),
                sandbox: self.sandbox(),
            }),
            counts: Some(pb::Counts {
                live: live as u64,
                finished: finished as u64,
                latest_event: *supervisor.latest_event().borrow(),
                queued: queued as u64,
            }),
            store: Some(store(self.repaired.as_ref())),
            caller: Some(caller(supervisor.caller())),
        })
    }
}

fn caller(caller: &Caller) -> pb::Caller {
    let Caller { name, grant: Grant { role, scope: Scope { owners, workspaces }, may } } = caller;
    let Freedoms { user, environment, interpreter } = *may;
    let may =
        [(Choice::User, user), (Choice::Inherit, environment), (Choice::Interpreter, interpreter)];
    let may = may.into_iter().filter(|(_, may)| *may);
    pb::Caller {
        name: name.clone(),
        role: role.to_string(),
        owners: owners.iter().map(Pattern::to_string).collect(),
        workspaces: workspaces.iter().map(Pattern::to_string).collect(),
        may: may.map(|(choice, _)| choice.freedom().to_owned()).collect(),
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
