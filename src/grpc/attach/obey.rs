//! What a client that is attached asks for, done in order.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tonic::Status;

use super::request_stream::RequestStream;
use crate::grpc::from_proto::AttachMessage;
use crate::grpc::input;
use crate::keeper_client::Write;
use crate::process::{MAX_PENDING_INPUT, State, Streams};
use crate::supervisor::{Entry, Error, Supervisor, Typist};

/// How long a process may take to exit after it has closed its input: if it does, that it could
/// not be typed to was no fault.
const EXITING: Duration = Duration::from_secs(5);

/// Does what a client asks for.
pub(super) struct Obedient {
    supervisor: Supervisor,
    entry: Arc<Entry>,
    typist: Typist,
}

impl Obedient {
    pub(super) fn new(supervisor: Supervisor, entry: Arc<Entry>) -> Obedient {
        let typist = Typist::new(supervisor.clone(), entry.clone());
        Obedient { supervisor, entry, typist }
    }

    /// Obeys until the client has sent its last message or the process is over.
    pub(super) async fn obey_all(mut self, mut requests: RequestStream) -> Result<(), Status> {
        while let Some(message) = requests.next().await? {
            self.obey(message).await?;
        }
        Ok(())
    }

    /// Does one thing. What comes too late, because the process is over, is no error: its end is
    /// what the client will hear.
    pub(super) async fn obey(&mut self, message: AttachMessage) -> Result<(), Error> {
        let obeyed = match message {
            AttachMessage::Start(_) => Err(AttachMessage::second_start()),
            AttachMessage::Type(typed) if typed.is_empty() => Ok(()),
            AttachMessage::Type(typed) => match input::bytes(&mut self.typist, typed).await {
                Ok(data) => self.write(data, false).await,
                Err(error) => Err(error),
            },
            AttachMessage::Eof => self.write(Bytes::new(), true).await,
            AttachMessage::Resize(size) => self.supervisor.resize(&self.entry, size).await,
            AttachMessage::Signal(signal) => {
                self.supervisor.signal(&self.entry, signal, false).await
            }
        };
        match obeyed {
            Err(Error::NotRunning(_)) if !self.is_yet_to_run() => Ok(()),
            Err(Error::StdinNotOpen(_)) if self.had_input() && self.exits().await => Ok(()),
            obeyed => obeyed,
        }
    }

    /// Types, when there is room. Input that waits for it stays charged to the caller: the request stream gives
    /// a large message back when the next one is asked for.
    async fn write(&mut self, data: Bytes, eof: bool) -> Result<(), Error> {
        loop {
            let write = Write { offset: None, data: data.clone(), eof };
            match self.supervisor.write(&self.entry, write).await {
                Err(Error::StdinFull { .. }) => self.room_for(data.len() as u64).await?,
                Err(refused) => return Err(refused),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Waits until so many bytes may be taken, or it is known that they never will.
    async fn room_for(&self, bytes: u64) -> Result<(), Error> {
        let Some(held) = self.entry.seen().held else { return Ok(()) };
        let mut output = held.output;
        let decided = output.wait_until(|progress| {
            let fits = progress.input.pending + bytes <= MAX_PENDING_INPUT;
            fits || !progress.input.open || progress.final_seq.is_some()
        });
        decided.await.map(drop).map_err(|_| Error::ShuttingDown)
    }

    /// It is not over, but waits for its turn or its restart.
    fn is_yet_to_run(&self) -> bool {
        matches!(self.entry.seen().record.state(), State::Queued | State::Backoff)
    }

    /// It was started with an input.
    fn had_input(&self) -> bool {
        match self.entry.seen().record.spec.streams {
            Streams::Pipes { stdin, .. } => stdin,
            Streams::Terminal { .. } => true,
        }
    }

    /// Whether it exits now.
    async fn exits(&self) -> bool {
        let mut seen = self.entry.watch();
        let exited = seen.wait_for(|seen| seen.record.end().is_some());
        tokio::time::timeout(EXITING, exited).await.is_ok()
    }
}
