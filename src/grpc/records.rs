//! Get and List.

use prost::Message;

use super::from_proto::{GetOrder, ListOrder, page_token};
use super::output::MAX_INLINE_BYTES;
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

/// A page of many or large records is put together on a worker thread.
pub(super) async fn list(
    supervisor: &Supervisor,
    order: ListOrder,
) -> Result<pb::ListResponse, Error> {
    supervisor.ticket().hold(MOST_BYTES).await?;
    let few = supervisor.record_count() <= LISTED_HERE;
    let inline = few.then(|| page(supervisor, &order)).filter(is_inline);
    let answer = match inline {
        Some(page) => shown(&page),
        None => {
            let own = supervisor.clone();
            supervisor.run_apart(move || shown(&page(&own, &order))).await?
        }
    };
    supervisor.ticket().release(MOST_BYTES.saturating_sub(answer.encoded_len()));
    Ok(answer)
}

fn page(supervisor: &Supervisor, order: &ListOrder) -> Page {
    let ListOrder { selector, live_only, page_size, after } = order;
    supervisor.list(selector, *live_only, *after, *page_size)
}

/// Whether a page is converted to an answer on the main thread. List cuts programs.
fn is_inline(page: &Page) -> bool {
    let outputs = page.entries.iter().map(|seen| seen.record.output_bytes());
    outputs.sum::<usize>() <= MAX_INLINE_BYTES
}

fn shown(Page { entries, more }: &Page) -> pb::ListResponse {
    let processes = fitting(entries);
    let last = entries[..processes.len()].last();
    let last = last.filter(|_| *more || processes.len() < entries.len());
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
