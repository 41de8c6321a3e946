//! Read and Wait, and how an answer shows output.

use tokio::time::{Instant, sleep_until};

use super::from_proto::{ReadOrder, WaitOrder};
use super::{pb, to_proto};
use crate::supervisor::{Error, Observer, QuietFrom, Seen, Supervisor};
use crate::transcript::{Gap, View};

/// Output as an answer shows it.
pub(super) struct Shown {
    pub(super) chunks: Vec<pb::Chunk>,
    pub(super) cursor: pb::Cursor,
    /// The process, not older than the chunks.
    pub(super) seen: Seen,
}

/// What there is from the place of an observer on; without a view only the place.
pub(super) fn show(mut observer: Observer, view: Option<View>) -> Shown {
    let batch = view.map(|view| observer.read(view.max_bytes)).unwrap_or_default();
    observer.remember();
    Shown {
        chunks: batch.chunks.into_iter().map(to_proto::chunk).collect(),
        cursor: to_proto::cursor(observer.since_seq(), observer.next_seq(), &observer.figures()),
        seen: observer.seen(),
    }
}

pub(super) async fn read(
    supervisor: &Supervisor,
    order: ReadOrder,
) -> Result<pb::ReadResponse, Error> {
    let ReadOrder { id, since_seq, streams, view, wait, ack_seq } = order;
    let entry = supervisor.find(&id)?;
    let mut observer = supervisor.observe(entry.clone(), since_seq)?;
    if let Some(seq) = ack_seq {
        supervisor.acknowledge(&entry, seq).await?;
    }
    let patience = Instant::now() + wait;
    // A flood of other streams does not hold a reader: what was there when it came is searched.
    let there = observer.figures().next_seq;
    let mut missed: Option<Gap> = None;
    let mut chunks = Vec::new();
    loop {
        let batch = observer.read(view.max_bytes);
        missed = missed.or(batch.gap);
        let nothing = batch.chunks.is_empty();
        let wanted = batch.chunks.into_iter().filter(|chunk| streams.contains(chunk.stream));
        chunks.extend(wanted.map(to_proto::chunk));
        if !chunks.is_empty() || missed.is_some() || observer.at_end() {
            break;
        }
        if !nothing {
            // All of it was of other streams; there may be more.
            if observer.next_seq() >= there && Instant::now() >= patience {
                break;
            }
            tokio::task::yield_now().await;
            continue;
        }
        tokio::select! {
            biased;
            changed = observer.changed(), if !wait.is_zero() => changed?,
            () = sleep_until(patience) => break,
        }
    }
    observer.remember();
    let ended = observer.at_end();
    Ok(pb::ReadResponse {
        chunks,
        gap: missed.map(to_proto::gap),
        cursor: Some(to_proto::cursor(
            observer.since_seq(),
            observer.next_seq(),
            &observer.figures(),
        )),
        state: pb::State::from(observer.seen().record.state()).into(),
        ended,
    })
}

pub(super) async fn wait(
    supervisor: &Supervisor,
    order: WaitOrder,
) -> Result<pb::WaitResponse, Error> {
    let WaitOrder { id, wait, since_seq, view } = order;
    let entry = supervisor.find(&id)?;
    let mut observer = supervisor.observe(entry.clone(), since_seq)?;
    let since = observer.since_seq();
    let waited = observer.wait(&wait, QuietFrom::Now).await?;
    let shown = show(supervisor.observe(entry, Some(since))?, view);
    Ok(pb::WaitResponse {
        process: Some(to_proto::seen(&shown.seen)),
        wait: Some(to_proto::waited(waited)),
        chunks: shown.chunks,
        cursor: Some(shown.cursor),
    })
}
