//! Attach: a live terminal, or live pipes.
//!
//! Output is followed as by Follow, when the connection has room for more. What the client sends
//! is obeyed by a task apart, one message after the other: a client that does not read its output
//! can type on, and one that types faster than the process reads is not read any further. Both
//! hold one batch or one message. The process never notices who comes and goes. The answer ends
//! with its last message, whether or not the client still sends.

mod obey;
mod request_stream;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::audit::{Audit, Stay, Told};
use super::follow::Following;
use super::from_proto::{AttachMessage, AttachOrder};
use super::pb::attach_request;
use super::pb::attach_response::Message;
use super::pb::follow_response;
use super::{output, pb};
use crate::process::AnyOf;
use crate::supervisor::{Error, LiveView, Stage, Supervisor, observable};
use crate::transcript::View;
use obey::Obedient;
use request_stream::RequestStream;

/// A client that is attached.
struct Attachment {
    following: Following,
    /// What obeys the client; none: it has sent its last message.
    obeying: Option<Obeying>,
    over: bool,
    _stay: Stay,
}

impl Told for (pb::Attached, Attachment) {}

/// Ends with whom it belongs to.
struct Obeying(JoinHandle<Result<(), Status>>);

impl Drop for Obeying {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Answers at once, before the client has said to what it attaches: some wait for that.
pub(super) fn attach(
    supervisor: Supervisor,
    messages: Streaming<pb::AttachRequest>,
) -> impl Stream<Item = Result<pb::AttachResponse, Status>> + Send {
    let begun = stream::once(begin(supervisor, messages));
    let all = begun.map_ok(|(attached, attachment)| {
        let first = stream::iter([Ok(Message::Attached(attached))]);
        first.chain(stream::unfold(attachment, async |mut attachment| {
            Some((attachment.next().await?, attachment))
        }))
    });
    all.try_flatten().map_ok(|message| pb::AttachResponse { message: Some(message) })
}

async fn begin(
    supervisor: Supervisor,
    messages: Streaming<pb::AttachRequest>,
) -> Result<(pb::Attached, Attachment), Status> {
    let mut stage = supervisor.stage();
    let mut requests = RequestStream::new(messages, stage.clone());
    let first = tokio::select! {
        biased;
        first = requests.receive() => first?.unwrap_or_default(),
        _ = stage.wait_for(|stage| *stage >= Stage::AllOver) => {
            return Err(Error::ShuttingDown.into());
        }
    };
    let id = match &first.message {
        Some(attach_request::Message::Start(start)) => start.id.as_str(),
        _ => "",
    };
    let audit = Audit::new(&supervisor, "Attach", id);
    audit.of(begin_with(supervisor, first, requests)).await
}

async fn begin_with(
    supervisor: Supervisor,
    first: pb::AttachRequest,
    requests: RequestStream,
) -> Result<(pb::Attached, Attachment), Status> {
    let order = AttachMessage::try_from(first)?.into_start()?;
    let AttachOrder { id, since_seq, size, heartbeat } = order;
    let entry = supervisor.find(&id)?;
    let mut obedient = Obedient::new(supervisor.clone(), entry.clone());
    let since = match since_seq {
        Some(since) => since,
        None => observable(&entry.seen()).next_seq,
    };
    let mut observer = supervisor.observe(entry, Some(since))?;
    // Before anything is changed: it fails if the caller's budget has no room.
    let process = Some(output::process_in_message(&supervisor, &observer.seen()).await?);
    if let Some(size) = size {
        obedient.obey(AttachMessage::Resize(size)).await?;
    }
    let next_seq = since.max(observer.figures().first_seq);
    let attached = pb::Attached { process, next_seq };
    let everything = LiveView::begin(&mut observer, View::default(), AnyOf::default()).await?;
    let following = Following::new(&supervisor, observer, everything, heartbeat);
    let obeying = Some(Obeying(tokio::spawn(obedient.obey_all(requests))));
    supervisor.ticket().has_changed();
    let stay = Stay::attached(&supervisor, &id);
    Ok((attached, Attachment { following, obeying, over: false, _stay: stay }))
}

impl Attachment {
    /// The next message; none: the end or an error was told.
    async fn next(&mut self) -> Option<Result<Message, Status>> {
        if self.over {
            return None;
        }
        let next = self.news().await;
        // Nothing comes after the end, nor after an error: what cannot be obeyed by then least.
        self.over =
            !matches!(next, Some(Ok(Message::Chunk(_) | Message::Gap(_) | Message::Heartbeat(_))));
        next
    }

    async fn news(&mut self) -> Option<Result<Message, Status>> {
        while let Some(Obeying(task)) = &mut self.obeying {
            tokio::select! {
                // What cannot be obeyed is told, however much there is to print.
                biased;
                obeyed = task => {
                    self.obeying = None;
                    match obeyed {
                        Ok(Ok(())) => {}
                        Ok(Err(status)) => return Some(Err(status)),
                        Err(_) => return Some(Err(Error::ShuttingDown.into())),
                    }
                }
                next = self.following.next() => return next.map(message),
            }
        }
        self.following.next().await.map(message)
    }
}

fn message(followed: Result<follow_response::Message, Error>) -> Result<Message, Status> {
    Ok(match followed? {
        follow_response::Message::Chunk(chunk) => Message::Chunk(chunk),
        follow_response::Message::Gap(gap) => Message::Gap(gap),
        follow_response::Message::Heartbeat(heartbeat) => Message::Heartbeat(heartbeat),
        follow_response::Message::End(end) => Message::End(end),
    })
}
