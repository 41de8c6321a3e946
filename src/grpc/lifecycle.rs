//! Start, Kill, Run and Delete.

use std::sync::Arc;

use prost::Message;

use super::audit::Told;
use super::from_proto::{DeleteOrder, KillOrder, KillTarget, RunOrder, StartOrder};
use super::records::MOST_BYTES;
use super::to_proto::Secrets;
use super::{output, pb, to_proto};
use crate::process::{Record, Until, WaitFor};
use crate::supervisor::{Begun, Error, Killed, QuietFrom, StopOrder, Supervisor, observable};
use crate::transcript::View;

/// A start that is recorded, and what its caller wants to see of it.
pub(super) struct Started {
    begun: Begun,
    wait: Option<WaitFor>,
    view: Option<View>,
}

impl Told for Started {
    fn processes(&self) -> Option<String> {
        Some(self.begun.entry.seen().record.id.to_string())
    }

    fn result(&self) -> &'static str {
        if self.begun.existed { "existed" } else { "ok" }
    }
}

/// The first half of a Start: the process begins, or is found to have begun.
pub(super) async fn start(supervisor: &Supervisor, order: StartOrder) -> Result<Started, Error> {
    let StartOrder { id, spec, wait, view } = order;
    let patient = wait.as_ref().is_some_and(|wait| matches!(wait.until, Until::Exit));
    output::hold_regexes(supervisor, wait.as_ref(), view.as_ref()).await?;
    let begun = supervisor.start(id, spec, patient).await?;
    if !begun.existed {
        supervisor.ticket().has_changed();
    }
    Ok(Started { begun, wait, view })
}

/// The second half: what its caller waits for and is shown.
pub(super) async fn show(
    supervisor: &Supervisor,
    started: Started,
) -> Result<pb::StartResponse, Error> {
    let Started { begun: Begun { entry, existed }, wait, view } = started;
    let mut waited = None;
    if let Some(wait) = &wait {
        let mut observer = supervisor.observe(entry.clone(), None)?;
        waited = Some(observer.wait(wait, QuietFrom::FirstOutput).await?);
    }
    let view = view.or(wait.map(|_| View::default()));
    // From the beginning of the run, so that the answer has a gap for output which was dropped since.
    let seen = entry.seen();
    let since = observable(&seen).first_seq.min(seen.record.first_seq);
    let observer = supervisor.observe(entry, Some(since))?;
    let shown = output::show(observer, view).await?;
    Ok(pb::StartResponse {
        process: Some(output::process(supervisor, &shown.seen).await?),
        chunks: shown.chunks,
        cursor: Some(shown.cursor),
        wait: waited.map(to_proto::waited),
        existed,
        omitted: shown.omitted,
        gap: shown.gap,
    })
}

pub(super) async fn kill(
    supervisor: &Supervisor,
    order: KillOrder,
) -> Result<pb::KillResponse, Error> {
    let KillOrder { target, signal, grace, force } = order;
    let stop = StopOrder { signal, grace, force };
    match target {
        KillTarget::Id(id) => {
            let before = supervisor.record_of(&id);
            let Killed { seen, reached } = supervisor.kill(id, stop).await?;
            // The record of a process that had already ended stays the same, also if descendants were
            // left and are killed now.
            let has_same_record = before.is_some_and(|before| Arc::ptr_eq(&before, &seen.record));
            if !has_same_record || !reached.is_empty() {
                supervisor.ticket().has_changed();
            }
            let process = output::process(supervisor, &seen).await?;
            Ok(pb::KillResponse {
                unkillable: process.unkillable.clone(),
                processes: vec![process],
                killed: reached.iter().map(to_proto::descendant).collect(),
                not_listed: 0,
            })
        }
        KillTarget::Selector(selector) => {
            let killed = supervisor.kill_all(selector, stop).await?;
            if !killed.is_empty() {
                supervisor.ticket().has_changed();
            }
            supervisor.ticket().hold(MOST_BYTES.min(killed.len() * RECORD_BYTES)).await?;
            supervisor.run_apart(move || all_killed(&killed)).await
        }
    }
}

/// About what one of many records takes in an answer.
const RECORD_BYTES: usize = 2 << 10;

/// Of many processes that were killed, as many as fit into one answer.
fn all_killed(killed: &[Killed]) -> pb::KillResponse {
    let mut answer = pb::KillResponse::default();
    let mut bytes = 0;
    for Killed { seen, reached } in killed {
        let process = to_proto::seen(&seen.brief(), Secrets::Hidden);
        let reached: Vec<_> = reached.iter().map(to_proto::descendant).collect();
        let named = reached.iter().chain(&process.unkillable);
        bytes += process.encoded_len() + named.map(Message::encoded_len).sum::<usize>();
        if bytes > MOST_BYTES {
            answer.not_listed += 1;
            continue;
        }
        answer.unkillable.extend(process.unkillable.iter().cloned());
        answer.processes.push(process);
        answer.killed.extend(reached);
    }
    answer
}

pub(super) async fn run(
    supervisor: &Supervisor,
    order: RunOrder,
) -> Result<pb::RunResponse, Error> {
    let RunOrder { id, force } = order;
    let before = supervisor.record_of(&id);
    let begun = supervisor.run(id.clone(), force).await;
    // A run that cannot be started has cleared the output of the one before.
    let is_new_run = |after: Arc<Record>| before.is_some_and(|before| before.run != after.run);
    if begun.is_ok() || supervisor.record_of(&id).is_some_and(is_new_run) {
        supervisor.ticket().has_changed();
    }
    let Begun { entry, existed: _ } = begun?;
    Ok(pb::RunResponse { process: Some(output::process(supervisor, &entry.seen()).await?) })
}

pub(super) async fn delete(
    supervisor: &Supervisor,
    order: DeleteOrder,
) -> Result<pb::DeleteResponse, Error> {
    let DeleteOrder { id, force, allow_missing } = order;
    let before = supervisor.record_of(&id);
    let deleted = supervisor.delete(id.clone(), force).await;
    // One that SIGKILL does not end was killed all the same.
    let is_other = |after| before.is_some_and(|before| !Arc::ptr_eq(&before, &after));
    if deleted.is_ok() || force && supervisor.record_of(&id).is_some_and(is_other) {
        supervisor.ticket().has_changed();
    }
    match deleted {
        Err(Error::NotFound(_)) if allow_missing => {}
        deleted => deleted?,
    }
    Ok(pb::DeleteResponse {})
}
