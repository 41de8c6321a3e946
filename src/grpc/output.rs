//! Read and Wait, and how an answer shows output.

use std::time::Duration;

use super::from_proto::{ReadOrder, WaitOrder};
use super::to_proto::Secrets;
use super::{pb, to_proto};
use crate::access::Does;
use crate::process::{AnyOf, WaitFor};
use crate::supervisor::{Error, Observer, QuietFrom, Seen, Shown, Supervisor};
use crate::transcript::View;

/// Output as an answer shows it.
pub(super) struct Output {
    pub(super) chunks: Vec<pb::Chunk>,
    pub(super) gap: Option<pb::Gap>,
    pub(super) cursor: pb::Cursor,
    pub(super) omitted: Option<pb::Omitted>,
    /// The process, not older than the chunks.
    pub(super) seen: Seen,
}

/// A process as an answer shows it, when there is room for it.
pub(super) async fn process(supervisor: &Supervisor, seen: &Seen) -> Result<pb::Process, Error> {
    let bytes = seen.record.spec.bytes() + seen.record.output_bytes();
    supervisor.ticket().hold(bytes).await?;
    Ok(to_proto::seen(seen, Secrets::of(supervisor.caller())))
}

/// What there is from the place of an observer on; without a view only the place.
pub(super) async fn show(mut observer: Observer, view: Option<View>) -> Result<Output, Error> {
    let shown = match &view {
        Some(view) => observer.show(view, &AnyOf::default(), Duration::ZERO).await?,
        None => Shown { next_seq: observer.next_seq(), ..Default::default() },
    };
    Ok(Output {
        chunks: shown.chunks.into_iter().map(to_proto::chunk).collect(),
        gap: shown.gap.map(to_proto::gap),
        cursor: to_proto::cursor(observer.since_seq(), shown.next_seq, &observer.figures()),
        omitted: shown.omitted.map(to_proto::omitted),
        seen: observer.seen(),
    })
}

/// Reserves what the regexes of a call take as long as it lasts.
pub(super) async fn hold_regexes(
    supervisor: &Supervisor,
    wait: Option<&WaitFor>,
    view: Option<&View>,
) -> Result<(), Error> {
    let wait = wait.map_or(0, WaitFor::compiled_bytes);
    supervisor.ticket().hold(wait + view.map_or(0, View::compiled_bytes)).await
}

pub(super) async fn read(
    supervisor: &Supervisor,
    order: ReadOrder,
) -> Result<pb::ReadResponse, Error> {
    let ReadOrder { id, since_seq, streams, view, wait, ack_seq } = order;
    if ack_seq.is_some() {
        // What is freed is gone for everyone.
        supervisor.may(Does::Change, "Read")?;
    }
    let entry = supervisor.find(&id)?;
    supervisor.ticket().hold(view.compiled_bytes()).await?;
    let mut observer = supervisor.observe(entry.clone(), since_seq).await?;
    if let Some(seq) = ack_seq {
        supervisor.acknowledge(&entry, seq).await?;
        supervisor.ticket().has_changed();
    }
    let Shown { chunks, gap, omitted, next_seq, ended } =
        observer.show(&view, &streams, wait).await?;
    let there_is = observer.figures();
    let record = observer.seen().record;
    Ok(pb::ReadResponse {
        chunks: chunks.into_iter().map(to_proto::chunk).collect(),
        gap: gap.map(to_proto::gap),
        cursor: Some(to_proto::cursor(observer.since_seq(), next_seq, &there_is)),
        state: pb::State::from(record.state()).into(),
        ended,
        omitted: omitted.map(to_proto::omitted),
        uptime: to_proto::uptime(&record),
        last_output_time: to_proto::last_output(&there_is),
    })
}

pub(super) async fn wait(
    supervisor: &Supervisor,
    order: WaitOrder,
) -> Result<pb::WaitResponse, Error> {
    let WaitOrder { id, wait, since_seq, view } = order;
    let entry = supervisor.find(&id)?;
    hold_regexes(supervisor, Some(&wait), view.as_ref()).await?;
    let mut observer = supervisor.observe(entry.clone(), since_seq).await?;
    let since = observer.since_seq();
    let waited = observer.wait(&wait, QuietFrom::Now).await?;
    let shown = show(supervisor.observe(entry, Some(since)).await?, view).await?;
    Ok(pb::WaitResponse {
        process: Some(process(supervisor, &shown.seen).await?),
        wait: Some(to_proto::waited(waited)),
        chunks: shown.chunks,
        cursor: Some(shown.cursor),
        omitted: shown.omitted,
        gap: shown.gap,
    })
}
