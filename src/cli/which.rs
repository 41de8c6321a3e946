//! Which process a word on the command line means: its id, or its name.

use tonic::{Code, Status};

use super::client::{Client, again};
use super::trouble::Trouble;
use crate::grpc::pb;

/// The process of that id, or else the newest of that name: one that lives, if one does.
pub(super) async fn find(client: &mut Client, word: &str) -> Result<pb::Process, Trouble> {
    // Asked for by name, it would be anybody's.
    if word.is_empty() {
        return Err(Trouble::new("the id is empty"));
    }
    let by_id = pb::GetRequest { id: word.into() };
    let missing = match again(async || client.get(by_id.clone()).await).await {
        Ok(found) => {
            return found.process.ok_or_else(|| Trouble::new("an answer without a process"));
        }
        Err(status) if matches!(status.code(), Code::NotFound | Code::InvalidArgument) => status,
        Err(status) => return Err(status.into()),
    };
    for live_only in [true, false] {
        if let Some(newest) = newest(client, word, live_only).await? {
            return Ok(newest);
        }
    }
    Err(missing.into())
}

/// The newest of that name.
async fn newest(
    client: &mut Client,
    name: &str,
    live_only: bool,
) -> Result<Option<pb::Process>, Status> {
    let selector = Some(pb::Selector { name: name.into(), ..Default::default() });
    let by_name = pb::ListRequest { selector, live_only, page_size: 1, ..Default::default() };
    let named = again(async || client.list(by_name.clone()).await).await;
    match named {
        Ok(list) => Ok(list.processes.into_iter().next()),
        // It could be nobody's name.
        Err(status) if status.code() == Code::InvalidArgument => Ok(None),
        Err(status) => Err(status),
    }
}
