//! Start, Kill and Delete.

use super::from_proto::{DeleteOrder, KillOrder, StartOrder};
use super::{output, pb, to_proto};
use crate::process::Until;
use crate::supervisor::{Begun, Error, Killed, QuietFrom, StopOrder, Supervisor};
use crate::transcript::View;

pub(super) async fn start(
    supervisor: &Supervisor,
    order: StartOrder,
) -> Result<pb::StartResponse, Error> {
    let StartOrder { id, spec, wait, view } = order;
    let patient = wait.as_ref().is_some_and(|wait| matches!(wait.until, Until::Exit));
    let Begun { entry, existed } = supervisor.start(id, spec, patient).await?;
    let mut waited = None;
    if let Some(wait) = &wait {
        let mut observer = supervisor.observe(entry.clone(), None)?;
        waited = Some(observer.wait(wait, QuietFrom::FirstOutput).await?);
    }
    let view = view.or(wait.map(|_| View::default()));
    let observer = supervisor.observe(entry, None)?;
    let shown = output::show(observer, view);
    Ok(pb::StartResponse {
        process: Some(to_proto::seen(&shown.seen)),
        chunks: shown.chunks,
        cursor: Some(shown.cursor),
        wait: waited.map(to_proto::waited),
        existed,
    })
}

pub(super) async fn kill(
    supervisor: &Supervisor,
    order: KillOrder,
) -> Result<pb::KillResponse, Error> {
    let KillOrder { id, signal, grace, force } = order;
    let Killed { seen, reached } = supervisor.kill(id, StopOrder { signal, grace, force }).await?;
    Ok(pb::KillResponse {
        processes: vec![to_proto::seen(&seen)],
        killed: reached.iter().map(to_proto::descendant).collect(),
    })
}

pub(super) async fn delete(
    supervisor: &Supervisor,
    order: DeleteOrder,
) -> Result<pb::DeleteResponse, Error> {
    let DeleteOrder { id, force, allow_missing } = order;
    match supervisor.delete(id, force).await {
        Err(Error::NotFound(_)) if allow_missing => {}
        deleted => deleted?,
    }
    Ok(pb::DeleteResponse {})
}
