//! WriteStdin, Resize and Signal: what goes to a process without changing its lifecycle.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::audit::Told;
use super::from_proto::{ResizeOrder, SignalOrder, Typed, WriteOrder};
use super::{output, pb, to_proto};
use crate::keeper_client::Write;
use crate::process::{Streams, WaitFor};
use crate::supervisor::{Entry, Error, QuietFrom, Supervisor, Typist, observable};
use crate::transcript::View;

/// Input that was taken, and what the caller waits for and is shown then.
pub(super) struct Accepted {
    entry: Arc<Entry>,
    bytes_written: u64,
    accepted_bytes: u64,
    /// The first chunk that may be the answer to it.
    since: u64,
    wait: Option<WaitFor>,
    view: Option<View>,
}

impl Told for Accepted {}

/// The first half of a WriteStdin: the process gets the input.
pub(super) async fn write(supervisor: &Supervisor, order: WriteOrder) -> Result<Accepted, Error> {
    let only_looks = order.only_looks();
    let WriteOrder { id, input, enter, eof, offset, wait, view } = order;
    let entry = supervisor.find(&id)?;
    output::hold_regexes(supervisor, wait.as_ref(), view.as_ref()).await?;
    // What is printed from here on may be the answer.
    let mut since = observable(&entry.seen()).next_seq;
    let (mut written, mut accepted) = (0, entry.seen().input().map_or(0, |input| input.accepted));
    if !only_looks {
        let terminal = matches!(entry.seen().record.spec.streams, Streams::Terminal { .. });
        let mut typist = Typist::new(supervisor.clone(), entry.clone());
        let data = with_enter(bytes(&mut typist, input).await?, enter, terminal);
        let taken = supervisor.write(&entry, Write { offset, data, eof }).await?;
        (written, accepted) = (taken.added, taken.input.accepted);
        if written > 0 || eof {
            supervisor.ticket().has_changed();
        }
        match offset {
            // A write that is repeated is answered by what followed the first.
            Some(offset) if written == 0 => since = entry.answer_to(offset).unwrap_or(since),
            _ => entry.mark_typed(accepted - written, since),
        }
    }
    Ok(Accepted { entry, bytes_written: written, accepted_bytes: accepted, since, wait, view })
}

/// The second half: what its caller waits for and is shown.
pub(super) async fn show(
    supervisor: &Supervisor,
    taken: Accepted,
) -> Result<pb::WriteStdinResponse, Error> {
    let Accepted { entry, bytes_written, accepted_bytes, since, wait, view } = taken;
    let mut waited = None;
    if let Some(wait) = &wait {
        let mut observer = supervisor.observe(entry.clone(), Some(since))?;
        waited = Some(observer.wait(wait, QuietFrom::Now).await?);
    }
    let view = view.or(wait.map(|_| View::default()));
    let shown = output::show(supervisor.observe(entry, Some(since))?, view).await?;
    Ok(pb::WriteStdinResponse {
        bytes_written,
        accepted_bytes,
        chunks: shown.chunks,
        cursor: Some(shown.cursor),
        wait: waited.map(to_proto::waited),
        state: pb::State::from(shown.seen.record.state()).into(),
        process: Some(output::process(supervisor, &shown.seen).await?),
        omitted: shown.omitted,
        gap: shown.gap,
    })
}

/// What is typed, as the process gets it.
pub(super) async fn bytes(typist: &mut Typist, input: Typed) -> Result<Bytes, Error> {
    match input {
        Typed::Bytes(bytes) => Ok(bytes),
        Typed::Keys(keys) => typist.press(&keys).await,
    }
}

/// The Enter key is another byte on a terminal than on a pipe.
fn with_enter(input: Bytes, enter: bool, terminal: bool) -> Bytes {
    if !enter {
        return input;
    }
    let mut line = BytesMut::with_capacity(input.len() + 1);
    line.extend_from_slice(&input);
    line.extend_from_slice(if terminal { b"\r" } else { b"\n" });
    line.freeze()
}

pub(super) async fn resize(
    supervisor: &Supervisor,
    order: ResizeOrder,
) -> Result<pb::ResizeResponse, Error> {
    let ResizeOrder { id, size } = order;
    let entry = supervisor.find(&id)?;
    supervisor.resize(&entry, size).await?;
    supervisor.ticket().has_changed();
    Ok(pb::ResizeResponse { process: Some(output::process(supervisor, &entry.seen()).await?) })
}

pub(super) async fn signal(
    supervisor: &Supervisor,
    order: SignalOrder,
) -> Result<pb::SignalResponse, Error> {
    let SignalOrder { id, signal, group } = order;
    let entry = supervisor.find(&id)?;
    supervisor.signal(&entry, signal, group).await?;
    supervisor.ticket().has_changed();
    Ok(pb::SignalResponse { process: Some(output::process(supervisor, &entry.seen()).await?) })
}
