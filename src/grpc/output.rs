//! Read and Wait, and how an answer shows output.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;

use super::from_proto::{ReadOrder, WaitOrder};
use super::to_proto::Secrets;
use super::{pb, to_proto};
use crate::access::Does;
use crate::process::{AnyOf, Record, WaitFor};
use crate::supervisor::{Entry, Error, Observer, QuietFrom, Seen, Shown, Supervisor, observable};
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

/// Bytes of records that are converted to an answer on the main thread.
pub(super) const MAX_INLINE_BYTES: usize = 4 << 10;

/// Bytes of a record that the time of its conversion depends on.
pub(super) fn record_bytes(record: &Record) -> usize {
    record.spec.bytes() + record.output_bytes()
}

/// A process as an answer shows it, when there is room for it.
pub(super) async fn process(supervisor: &Supervisor, seen: &Seen) -> Result<pb::Process, Error> {
    Ok(charged_process(supervisor, seen).await?.0)
}

/// A process as the next message of a stream shows it, which holds room until it was sent.
pub(super) async fn process_in_message(
    supervisor: &Supervisor,
    seen: &Seen,
) -> Result<pb::Process, Error> {
    let (process, held_bytes) = charged_process(supervisor, seen).await?;
    supervisor.ticket().release_when_sent(held_bytes);
    Ok(process)
}

/// A process, and the bytes that are held for it. A large record is converted on a worker thread.
async fn charged_process(
    supervisor: &Supervisor,
    seen: &Seen,
) -> Result<(pb::Process, usize), Error> {
    let (secrets, ticket) = (Secrets::of(supervisor.caller()), supervisor.ticket());
    let reserved = seen.record.spec.bytes() + seen.record.max_output_wire_bytes();
    ticket.hold(reserved).await?;
    if record_bytes(&seen.record) <= MAX_INLINE_BYTES {
        return Ok((to_proto::seen(seen, secrets), reserved));
    }
    let seen = seen.clone();
    let conversion = supervisor.run_apart(move || {
        let process = to_proto::seen(&seen, secrets);
        (process.encoded_len(), process)
    });
    let (length, process) = conversion.await?;
    match length.checked_sub(reserved) {
        Some(missing) => ticket.hold(missing).await?,
        None => ticket.release(reserved - length),
    }
    Ok((process, length))
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

/// Acknowledges chunks, which frees them or nothing.
pub(super) async fn acknowledge(
    supervisor: &Supervisor,
    entry: &Arc<Entry>,
    seq: u64,
) -> Result<(), Error> {
    let first = observable(&entry.seen()).first_seq;
    supervisor.acknowledge(entry, seq).await?;
    if observable(&entry.seen()).first_seq != first {
        supervisor.ticket().has_changed();
    }
    Ok(())
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
    let mut observer = supervisor.observe(entry.clone(), since_seq)?;
    if let Some(seq) = ack_seq {
        acknowledge(supervisor, &entry, seq).await?;
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
    let (since, waited) = {
        let mut observer = supervisor.observe(entry.clone(), since_seq)?;
        (observer.since_seq(), observer.wait(&wait, QuietFrom::Now).await?)
    };
    let shown = show(supervisor.observe(entry, Some(since))?, view).await?;
    Ok(pb::WaitResponse {
        process: Some(process(supervisor, &shown.seen).await?),
        wait: Some(to_proto::waited(waited)),
        chunks: shown.chunks,
        cursor: Some(shown.cursor),
        omitted: shown.omitted,
        gap: shown.gap,
    })
}
