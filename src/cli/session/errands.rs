//! What a session asks of the service besides its attachment, each apart, so that nothing waits
//! for it. What may not be asked twice, as a signal, is not.

use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::Status;

use super::signals;
use crate::cli::client::{self, Attempts, Client, quietly_again};
use crate::grpc::pb;

/// How long a process may take to end when nobody reads it and it was told so.
const UNREAD: Duration = Duration::from_secs(2);
/// Until it is looked again for somebody who could be told.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Until it is asked again for a turn, of which nobody would tell.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What came of an errand.
#[derive(Debug)]
pub(super) enum Done {
    /// How far the input is, as far as that is known, and by which connection it was asked for.
    Counted(u64, Option<Box<pb::Process>>),
    /// Chunks up to this one make room for others.
    Acknowledged,
    /// It has the new size.
    Resized,
    /// This signal finds nobody yet who could end by it: it is ended in another way.
    Canceling(i32),
    /// It was sent a signal; `gone`: it has ended before.
    Signalled { gone: bool },
    /// It runs, after it has waited for its turn.
    Begun,
}

/// Whom errands are given to.
pub(super) struct Errands {
    client: Client,
    id: String,
    /// Without a bound, as few are under way: of each kind one at a time, and a signal tells of itself
    /// twice at the most.
    tell: UnboundedSender<Done>,
    done: UnboundedReceiver<Done>,
}

impl Errands {
    pub(super) fn new(client: Client, id: String) -> Errands {
        let (tell, done) = unbounded_channel();
        Errands { client, id, tell, done }
    }

    /// The next that was done. Whoever stops waiting for it misses none.
    pub(super) async fn done(&mut self) -> Option<Done> {
        self.done.recv().await
    }

    fn give(&self, errand: impl AsyncFnOnce(Client, String) -> Option<Done> + 'static) {
        let (client, id, tell) = (self.client.clone(), self.id.clone(), self.tell.clone());
        tokio::task::spawn_local(async move {
            if let Some(done) = errand(client, id).await {
                let _ = tell.send(done);
            }
        });
    }

    /// Asks how far the input is.
    pub(super) fn count(&self, calls: u64) {
        self.give(async move |mut client, id| {
            let record = client.get(pb::GetRequest { id }).await.ok();
            let process = record.and_then(|record| record.into_inner().process);
            Some(Done::Counted(calls, process.map(Box::new)))
        });
    }

    /// Makes room for what the process prints next.
    pub(super) fn acknowledge(&self, seq: u64) {
        self.give(async move |mut client, id| {
            // Asks for as little as can be asked for.
            let view = Some(pb::View { max_bytes: 1, ..Default::default() });
            let request = pb::ReadRequest {
                id,
                since_seq: Some(seq + 1),
                view,
                ack_seq: seq,
                ..Default::default()
            };
            let _ = quietly_again(async || client.read(request.clone()).await).await;
            Some(Done::Acknowledged)
        });
    }

    /// Gives the terminal another size.
    pub(super) fn resize(&self, size: pb::TerminalSize) {
        self.give(async move |mut client, id| {
            let request = pb::ResizeRequest { id, rows: size.rows, cols: size.cols };
            let _ = quietly_again(async || client.resize(request.clone()).await).await;
            Some(Done::Resized)
        });
    }

    /// Sends a signal to the process and its group, as a terminal would. One that asks to end ends
    /// a process that waits for its turn, too.
    pub(super) fn signal(&self, number: i32) {
        let tell = self.tell.clone();
        self.give(async move |mut client, id| {
            let canceling = || drop(tell.send(Done::Canceling(number)));
            let sent = signal(&mut client, id, number, canceling).await;
            Some(Done::Signalled { gone: sent.is_err_and(|status| is_gone(&status)) })
        });
    }

    /// Tells it by a signal that nobody reads what it prints, and ends it if it does not care.
    pub(super) fn close(&self, number: i32) {
        self.give(async move |mut client, id| {
            let _ = signal(&mut client, id.clone(), number, || ()).await;
            tokio::time::sleep(UNREAD).await;
            let _ = kill(&mut client, id).await;
            None
        });
    }

    /// Waits until it runs.
    pub(super) fn await_turn(&self) {
        self.give(async move |mut client, id| {
            let until = Some(pb::wait_for::Until::Ready(pb::wait_for::Ready {}));
            let wait = Some(pb::WaitFor { until, timeout: None });
            let request = pb::WaitRequest { id, wait, ..Default::default() };
            loop {
                match quietly_again(async || client.wait(request.clone()).await).await {
                    Ok(answer) if answer.wait.as_ref().is_some_and(|wait| wait.met) => {
                        return Some(Done::Begun);
                    }
                    // Its end is told to the session.
                    Ok(_) => return None,
                    Err(status) if is_gone(&status) => return None,
                    Err(_) => tokio::time::sleep(ASK_AGAIN).await,
                }
            }
        });
    }
}

/// Sends a signal once, even if the answer is lost: two could mean something else to a program than
/// one.
async fn signal(
    client: &mut Client,
    id: String,
    number: i32,
    canceling: impl Fn(),
) -> Result<(), Status> {
    let request = pb::SignalRequest { id, signal: number.to_string(), group: true };
    let mut attempts = Attempts::begin();
    loop {
        // Somebody must be there by then: what is asked before may be asked twice.
        state(client, &request.id).await?;
        match client.signal(request.clone()).await {
            Err(status) if reason(&status) == "SHUTTING_DOWN" => {
                attempts.pause_after(status).await?;
            }
            Err(status) if is_gone(&status) => match state(client, &request.id).await? {
                pb::State::Exited => return Err(status),
                // Nobody is there yet.
                pb::State::Queued | pb::State::Backoff if signals::ends(number) => {
                    canceling();
                    return kill(client, request.id).await;
                }
                pb::State::Queued | pb::State::Backoff => return Ok(()),
                // It is just beginning or ending, and has not heard of it.
                _ => tokio::time::sleep(LOOK_AGAIN).await,
            },
            sent => return sent.map(drop),
        }
    }
}

async fn state(client: &mut Client, id: &str) -> Result<pb::State, Status> {
    let look = pb::GetRequest { id: id.into() };
    let found = quietly_again(async || client.get(look.clone()).await).await?;
    Ok(found.process.unwrap_or_default().state())
}

async fn kill(client: &mut Client, id: String) -> Result<(), Status> {
    let target = Some(pb::kill_request::Target::Id(id));
    let request = pb::KillRequest { target, ..Default::default() };
    quietly_again(async || client.kill(request.clone()).await).await.map(drop)
}

/// Whether a refusal tells that nobody runs: it has ended, or has not begun.
fn is_gone(status: &Status) -> bool {
    reason(status) == "NOT_RUNNING" || reason(status) == "PROCESS_NOT_FOUND"
}

/// The reason of a refusal; empty if none was given.
pub(super) fn reason(status: &Status) -> String {
    client::reason(status).unwrap_or_default()
}
