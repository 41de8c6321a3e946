//! Get and List.

use prost::Message;

use super::from_proto::{GetOrder, ListOrder, page_token};
use super::{output, pb, to_proto};
use crate::supervisor::{Error, Page, Seen, Supervisor};

/// Bytes of records in one answer: below the 4 MiB that clients take unless told otherwise.
pub(super) const MOST_BYTES: usize = 3 << 20;

/// Records up to which a page is put together on the main thread.
const LISTED_HERE: usize = 64;

pub(super) async fn get(
    supervisor: &Supervisor,
    order: GetOrder,
) -> Result<pb::GetResponse, Error> {
    let GetOrder { id } = order;
    let seen = supervisor.find(&id)?.seen();
    Ok(pb::GetResponse { process: Some(output::process(supervisor, &seen).await?) })
}

/// A page of many records is put together on a worker thread.
pub(super) async fn list(
    supervisor: &Supervisor,
    order: ListOrder,
) -> Result<pb::ListResponse, Error> {
    supervisor.ticket().hold(MOST_BYTES).await?;
    let answer = if supervisor.record_count() <= LISTED_HERE {
        page(supervisor, &order)
    } else {
        let own = supervisor.clone();
        supervisor.run_apart(move || page(&own, &order)).await?
    };
    supervisor.ticket().release(MOST_BYTES.saturating_sub(answer.encoded_len()));
    Ok(answer)
}

fn page(supervisor: &Supervisor, order: &ListOrder) -> pb::ListResponse {
    let ListOrder { selector, live_only, page_size, after } = order;
    let Page { entries, more } = supervisor.list(selector, *live_only, *after, *page_size);
    let processes = fitting(&entries);
    let last = entries[..processes.len()].last();
    let last = last.filter(|_| more || processes.len() < entries.len());
    pb::ListResponse {
        next_page_token: last.map(|last| page_token(last.record.birth)).unwrap_or_default(),
        processes,
    }
}

/// As many as fit into one answer, but at least one.
fn fitting(entries: &[Seen]) -> Vec<pb::Process> {
    let mut bytes = 0;
    let mut processes = Vec::new();
    for process in entries.iter().map(to_proto::listed) {
        bytes += process.encoded_len();
        if bytes > MOST_BYTES && !processes.is_empty() {
            break;
        }
        processes.push(process);
    }
    processes
}
