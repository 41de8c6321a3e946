//! The connection of a session to its process, made anew whenever it is lost.

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::input::Input;
use crate::cli::client::{Attempts, Client};
use crate::grpc::pb;
use crate::grpc::pb::attach_request;
use crate::grpc::pb::attach_response::Message;

/// Messages that may wait to be sent: what is typed next to what is on its way.
const WAITING: usize = 2;
/// Before a connection is made again by which nothing came, at first and at last: a server that
/// ends at once each time is not to be asked all the time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// It is doubled so often at most, which is more than enough for the longest.
const MOST_DOUBLED: u32 = 8;

/// The connection.
pub(super) enum Line {
    /// It is being made.
    Calling(Pin<Box<dyn Future<Output = Result<Call, Status>>>>),
    /// It is there.
    Open(mpsc::Sender<pb::AttachRequest>, Box<Streaming<pb::AttachResponse>>),
}

/// A connection that was made.
pub(super) struct Call {
    pub(super) attached: pb::Attached,
    pub(super) line: Line,
}

/// What came of a connection.
pub(super) enum Heard {
    /// It was made, or cannot be.
    Called(Result<Call, Status>),
    /// Something was sent.
    Sent,
    /// The process has something to tell; none: the stream has ended. Empty: only a newer service
    /// knows what it means.
    Message(Result<Option<pb::AttachResponse>, Status>),
}

impl Line {
    /// Calls until somebody answers, or it takes too long; so many connections in a row were made
    /// in vain before, and the more, the longer is the pause.
    pub(super) fn call(mut client: Client, start: pb::AttachStart, in_vain: u32) -> Line {
        Line::Calling(Box::pin(async move {
            if in_vain > 0 {
                let longer = FIRST_PAUSE * (1 << (in_vain - 1).min(MOST_DOUBLED));
                tokio::time::sleep(longer.min(LONGEST_PAUSE)).await;
            }
            let mut attempts = Attempts::begin();
            loop {
                match call(&mut client, &start).await {
                    Ok(call) => return Ok(call),
                    Err(status) => attempts.pause_after(status).await?,
                }
            }
        }))
    }

    /// Whether it is there.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Line::Open(..))
    }

    /// Waits for what comes next. Whoever stops waiting misses nothing. `input` is to be sent, if
    /// any; `listens`: more output can be taken.
    pub(super) async fn next(&mut self, input: Option<&mut Input>, listens: bool) -> Heard {
        let (says, hears) = match self {
            Line::Calling(calling) => return Heard::Called(calling.await),
            Line::Open(says, hears) => (says, hears),
        };
        tokio::select! {
            biased;
            Ok(permit) = says.reserve(), if input.is_some() => {
                if let Some(message) = input.and_then(Input::send) {
                    permit.send(pb::AttachRequest { message: Some(message) });
                }
                Heard::Sent
            }
            heard = hears.message(), if listens => Heard::Message(heard),
            else => std::future::pending().await,
        }
    }
}

async fn call(client: &mut Client, start: &pb::AttachStart) -> Result<Call, Status> {
    let (says, said) = mpsc::channel(WAITING);
    let start = Some(attach_request::Message::Start(start.clone()));
    let _ = says.try_send(pb::AttachRequest { message: start });
    let mut hears = client.attach(ReceiverStream::new(said)).await?.into_inner();
    while let Some(heard) = hears.message().await? {
        if let Some(Message::Attached(attached)) = heard.message {
            return Ok(Call { attached, line: Line::Open(says, Box::new(hears)) });
        }
    }
    Err(Status::unavailable("an attachment that did not begin"))
}
