//! Which process a word on the command line means: an id, a name or a service.
//!
//! One rule for all commands. Of the processes that the word matches, a command takes those that it
//! can act on: live ones, or for `rerun` and `rm` finished ones. Among these an id wins over names.
//! Several that are left are an error that lists them, except that commands which change no
//! finished process take the newest finished one.

use tonic::{Code, Status};

use super::client::{Client, again};
use super::print;
use super::trouble::Trouble;
use super::words;
use crate::grpc::pb;

/// How many candidates an error names at most.
const MAX_CANDIDATES: usize = 5;

/// The live process that a word means; if none is live, the finished one: by id, else the newest.
pub(super) async fn find(client: &mut Client, word: &str) -> Result<pb::Process, Trouble> {
    let by_id = get(client, word).await?;
    if let Some(process) = by_id.clone().filter(is_live) {
        return Ok(process);
    }
    let live = called(client, word, Side::Live).await?;
    if let Some(process) = only(word, live)? {
        return Ok(process);
    }
    match by_id {
        Some(process) => Ok(process),
        None => called(client, word, Side::Finished)
            .await?
            .into_iter()
            .next()
            .ok_or_else(|| missing(word)),
    }
}

/// The finished process that a word means; if none is finished, the live one.
pub(super) async fn find_finished(client: &mut Client, word: &str) -> Result<pb::Process, Trouble> {
    let by_id = get(client, word).await?;
    if let Some(process) = by_id.clone().filter(|process| !is_live(process)) {
        return Ok(process);
    }
    let finished = called(client, word, Side::Finished).await?;
    if let Some(process) = only(word, finished)? {
        return Ok(process);
    }
    match by_id {
        Some(process) => Ok(process),
        None => only(word, called(client, word, Side::Live).await?)?.ok_or_else(|| missing(word)),
    }
}

/// The process with this id.
pub(super) async fn get(client: &mut Client, id: &str) -> Result<Option<pb::Process>, Trouble> {
    // A selector with an empty name matches every process.
    if id.is_empty() {
        return Err(Trouble::new("the id is empty"));
    }
    let request = pb::GetRequest { id: id.into() };
    match again(async || client.get(request.clone()).await).await {
        Ok(found) => Ok(found.process),
        Err(status) if is_no_match(&status) => Ok(None),
        Err(status) => Err(status.into()),
    }
}

/// Which processes are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Live,
    Finished,
}

/// The processes with this name or service, newest first, each once; one more than is ever named.
async fn called(client: &mut Client, word: &str, side: Side) -> Result<Vec<pb::Process>, Trouble> {
    let named = pb::Selector { name: word.into(), ..Default::default() };
    let service = pb::Selector { service: word.into(), ..Default::default() };
    let mut found: Vec<pb::Process> = Vec::new();
    for mut selector in [named, service] {
        if side == Side::Finished {
            selector.states = vec![pb::State::Exited.into()];
        }
        let request = pb::ListRequest {
            selector: Some(selector),
            live_only: side == Side::Live,
            page_size: MAX_CANDIDATES as u32 + 1,
            ..Default::default()
        };
        match again(async || client.list(request.clone()).await).await {
            Ok(list) => found.extend(list.processes),
            Err(status) if is_no_match(&status) => {}
            Err(status) => return Err(status.into()),
        }
    }
    let creation = |process: &pb::Process| {
        process.create_time.map(|time| (time.seconds, time.nanos)).unwrap_or_default()
    };
    found.sort_by(|one, other| (creation(other), &other.id).cmp(&(creation(one), &one.id)));
    found.dedup_by(|one, other| one.id == other.id);
    Ok(found)
}

/// The only one of them, if there are any.
fn only(word: &str, mut found: Vec<pb::Process>) -> Result<Option<pb::Process>, Trouble> {
    if found.len() > 1 {
        return Err(ambiguous(word, &found));
    }
    Ok(found.pop())
}

fn ambiguous(word: &str, found: &[pb::Process]) -> Trouble {
    let named: Vec<_> = found.iter().take(MAX_CANDIDATES).map(candidate).collect();
    let more = if found.len() > MAX_CANDIDATES { " and more" } else { "" };
    Trouble::new(format!(
        "cannot choose among the processes called {}: {}{more}; give an id",
        print::harmless(word),
        named.join(", ")
    ))
}

/// A process as an error names it: `web-k3v9x2 (name web, running)`.
fn candidate(process: &pb::Process) -> String {
    let (name, service) = match &process.spec {
        Some(spec) => (spec.name.as_str(), spec.service.as_str()),
        None => ("", ""),
    };
    let called =
        [("name", name), ("service", service)].into_iter().filter(|(_, text)| !text.is_empty());
    let called: String =
        called.map(|(what, text)| format!("{what} {}, ", print::harmless(text))).collect();
    format!("{} ({called}{})", process.id, words::state(process).0)
}

fn missing(word: &str) -> Trouble {
    let word = print::harmless(word);
    Trouble::missing(format!(
        "cannot find a process called {word}: no id, name or service is; `procyard ps --all` lists \
         all processes"
    ))
}

fn is_live(process: &pb::Process) -> bool {
    process.state() != pb::State::Exited
}

/// Whether a status says that nothing matches; what cannot be an id or a name matches nothing.
fn is_no_match(status: &Status) -> bool {
    matches!(status.code(), Code::NotFound | Code::InvalidArgument)
}
