//! Calls of one part of the load: repeated when their connection broke, never when they were refused.
//!
//! What a client must bear when a server dies is a call that breaks. A broken call has no word of
//! procyard in it, which every refusal has: `google.rpc.ErrorInfo`. The client's library calls it
//! UNAVAILABLE, UNKNOWN or CANCELLED, and INTERNAL where it speaks of HTTP/2 in its message. Any other
//! error is a violation, and so is a call that is not answered at all.

use std::sync::Arc;
use std::time::Duration;

use procyard::grpc::pb;
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

use crate::random::Random;
use crate::world::{Client, World};

/// A call without an answer: longer than any outage, and any job.
pub(crate) const STUCK: Duration = Duration::from_secs(30);
/// Longest pause before a broken call is repeated, in milliseconds.
const PAUSE: u64 = 30;

/// One part of the load: its connection and its dice.
pub(crate) struct Caller {
    pub(crate) world: Arc<World>,
    pub(crate) client: Client,
    pub(crate) random: Random,
}

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Its connection broke; it may have been obeyed all the same.
    Broken,
    /// The server said no, for this reason.
    Refused(String),
    /// The call is a violation, which is noted.
    Wrong,
}

impl Caller {
    pub(crate) fn new(world: &Arc<World>, part: &str, number: u64) -> Caller {
        let random = Random::new(world.seed, part, number);
        Caller { world: world.clone(), client: world.client(number), random }
    }

    /// Tells an error that a client must bear from one that it need not.
    pub(crate) fn failure(&self, what: &str, status: &Status) -> Failure {
        if let Some(info) = status.get_error_details().error_info() {
            return Failure::Refused(info.reason.clone());
        }
        let (code, message) = (status.code(), status.message());
        let http2 = code == Code::Internal && message.contains("h2 protocol error");
        if http2 || matches!(code, Code::Unavailable | Code::Unknown | Code::Cancelled) {
            self.world.broke(format!("{code:?}: {message}"));
            return Failure::Broken;
        }
        self.world.violation(format!("{what}: broke with {code:?}: {message}"));
        Failure::Wrong
    }

    /// One attempt.
    pub(crate) async fn once<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(STUCK, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(self.failure(what, &status)),
            Err(_) => {
                self.world.violation(format!("{what}: no answer within {STUCK:?}"));
                Err(Failure::Wrong)
            }
        }
    }

    /// Repeats a call until its connection holds.
    pub(crate) async fn ask<T, F>(
        &mut self,
        what: &str,
        mut call: impl FnMut(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        loop {
            match self.once(what, call(self.client.clone())).await {
                Err(Failure::Broken) => self.pause().await,
                answer => return answer,
            }
        }
    }

    /// The answer, where a refusal is a violation.
    pub(crate) fn granted<T>(&self, what: &str, answer: Result<T, Failure>) -> Option<T> {
        if let Err(Failure::Refused(reason)) = &answer {
            self.world.violation(format!("{what}: refused, {reason}"));
        }
        answer.ok()
    }

    /// Waits a little before a call is repeated.
    pub(crate) async fn pause(&mut self) {
        let pause = self.random.millis(PAUSE);
        tokio::time::sleep(pause).await;
    }

    /// Starts a process, however often that must be asked for.
    pub(crate) async fn start(&mut self, request: pb::StartRequest) -> Option<pb::StartResponse> {
        let what = format!("Start of {}", request.id);
        let start = |mut client: Client| {
            let request = request.clone();
            async move { client.start(request).await }
        };
        let answer = self.ask(&what, start).await;
        self.granted(&what, answer)
    }

    pub(crate) async fn get(&mut self, id: &str) -> Result<pb::Process, Failure> {
        let get = |mut client: Client| {
            let request = pb::GetRequest { id: id.into() };
            async move { client.get(request).await }
        };
        let answer = self.ask(&format!("Get of {id}"), get).await?;
        answer.process.ok_or(Failure::Wrong)
    }

    /// The record of a process when it has ended.
    pub(crate) async fn ended(&mut self, id: &str) -> Option<pb::Process> {
        self.wait(id, crate::specs::until_exit()).await
    }

    /// The record of a process when something has come.
    pub(crate) async fn wait(&mut self, id: &str, wait: pb::WaitFor) -> Option<pb::Process> {
        let what = format!("Wait for {id}");
        let call = |mut client: Client| {
            let (id, wait) = (id.to_owned(), Some(wait.clone()));
            async move { client.wait(pb::WaitRequest { id, wait, ..Default::default() }).await }
        };
        let answer = self.ask(&what, call).await;
        self.granted(&what, answer)?.process
    }

    /// Ends a process; with a grace of its own, if there is one. The record when it has ended.
    pub(crate) async fn kill(&mut self, id: &str, grace: Option<Duration>) -> Option<pb::Process> {
        let what = format!("Kill of {id}");
        let grace = grace.map(crate::specs::span);
        let kill = |mut client: Client| {
            let target = Some(pb::kill_request::Target::Id(id.into()));
            let request = pb::KillRequest { target, grace, ..pb::KillRequest::default() };
            async move { client.kill(request).await }
        };
        let answer = self.ask(&what, kill).await;
        let mut processes = self.granted(&what, answer)?.processes;
        if processes.len() != 1 {
            self.world.violation(format!("{what}: {} processes in the answer", processes.len()));
        }
        processes.pop()
    }

    /// Deletes a process, and sees that it is gone.
    pub(crate) async fn delete(&mut self, id: &str, force: bool) -> Option<()> {
        let what = format!("Delete of {id}");
        let delete = |mut client: Client| {
            // A call that is repeated may find that it was obeyed.
            let request = pb::DeleteRequest { id: id.into(), force, allow_missing: true };
            async move { client.delete(request).await }
        };
        let answer = self.ask(&what, delete).await;
        self.granted(&what, answer)?;
        match self.get(id).await {
            Err(Failure::Refused(reason)) if reason == "PROCESS_NOT_FOUND" => {}
            found => self.world.violation(format!("{id}: deleted, and found: {found:?}")),
        }
        Some(())
    }
}
