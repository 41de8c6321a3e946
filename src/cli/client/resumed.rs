//! A stream that goes on where it was when the server is replaced: each message comes once.
//!
//! Owns opening it again, and noticing that it is dead. Where it goes on is known by what is asked
//! for.

use std::time::Duration;

use tonic::{Response, Status, Streaming};

use super::{Attempts, Client};

/// Nobody is there any more who sent nothing for so long: a heartbeat is due every 15 s.
const SILENCE: Duration = Duration::from_secs(60);

/// A request for a stream, which knows how far that has come.
pub(in crate::cli) trait Resumable {
    /// What the stream brings, and what is in it.
    type Answer;
    type Message;

    /// Asks for what is still to come.
    async fn open(&self, client: &mut Client) -> Result<Response<Streaming<Self::Answer>>, Status>;

    /// What is in an answer.
    fn message(answer: Self::Answer) -> Option<Self::Message>;

    /// From now on asks for what comes after this. Whether it is news for whoever reads.
    fn go_past(&mut self, message: &Self::Message) -> bool;

    /// Whether the stream may end without having been lost.
    fn may_end(&self) -> bool;
}

/// A stream that goes on.
pub(in crate::cli) struct Resumed<R: Resumable> {
    client: Client,
    /// What is asked for when it is opened next.
    pub(in crate::cli) request: R,
    stream: Option<Streaming<R::Answer>>,
    attempts: Attempts,
}

impl<R: Resumable> Resumed<R> {
    pub(in crate::cli) fn new(client: Client, request: R) -> Resumed<R> {
        Resumed { client, request, stream: None, attempts: Attempts::aloud() }
    }

    /// The next message, each of them once. None: all there is has come, and what is asked for next
    /// is opened anew.
    pub(in crate::cli) async fn next(&mut self) -> Result<Option<R::Message>, Status> {
        loop {
            match self.try_next().await {
                Ok(message) => {
                    self.attempts = Attempts::aloud();
                    if message.as_ref().is_none_or(|message| self.request.go_past(message)) {
                        return Ok(message);
                    }
                }
                Err(status) => {
                    self.stream = None;
                    self.attempts.pause_after(status).await?;
                }
            }
        }
    }

    async fn try_next(&mut self) -> Result<Option<R::Message>, Status> {
        let lost = || Status::unavailable("the stream broke off");
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let opening = self.request.open(&mut self.client);
                let opened = self.attempts.wait(opening).await?;
                self.stream.insert(opened.into_inner())
            }
        };
        let news = tokio::time::timeout(SILENCE, stream.message()).await.map_err(|_| lost())??;
        match news {
            Some(answer) => R::message(answer).map(Some).ok_or_else(lost),
            None if self.request.may_end() => {
                self.stream = None;
                Ok(None)
            }
            None => Err(lost()),
        }
    }
}
