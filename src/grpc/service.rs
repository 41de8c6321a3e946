//! The service: each RPC, from its request to its answer or its error.
//!
//! Owns nothing but the way: a request becomes domain words (`from_proto`), the file of its group
//! does what it asks for its caller, and whatever is refused becomes a status (`status`) here. What
//! changes something has its line in the audit log (`audit`).

use std::pin::Pin;
use std::sync::Arc;

use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::audit::{Audit, Told};
use super::from_proto::MayHaveRegex;
use super::paced_stream::PacedStream;
use super::pb::process_service_server::ProcessService;
use super::watch_limit::{WatchLimit, WatchSlot};
use super::{attach, follow, info, input, lifecycle, output, pb, records, screen, sleep, watch};
use crate::access::Caller;
use crate::supervisor::{CallTicket, Error, Stage, Supervisor, Whole};

/// The API over the supervisor.
pub struct Service {
    whole: Whole,
    about: info::About,
    watches: WatchLimit,
}

impl Service {
    /// The API over a supervisor.
    pub fn new(whole: Whole, about: info::About) -> Service {
        Service { whole, about, watches: WatchLimit::default() }
    }

    /// The supervisor for whoever sent a request, and what was sent. Nobody gets here without being
    /// known (`server` sees to that); should somebody, it is refused.
    fn enter<T>(&self, request: Request<T>) -> Result<(Supervisor, T), Error> {
        let caller = request.extensions().get::<Arc<Caller>>();
        let caller = Arc::clone(caller.ok_or(Error::NoCredentials)?);
        let ticket = request.extensions().get::<Arc<CallTicket>>();
        let ticket = Arc::clone(ticket.ok_or(Error::NoCredentials)?);
        Ok((self.whole.seen_by(caller, ticket), request.into_inner()))
    }

    /// The answer of a call, or that there will be none because another server takes over.
    async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<Response<T>, Status> {
        let mut stage = self.whole.stage();
        tokio::select! {
            biased;
            answer = call => Ok(Response::new(answer?)),
            Ok(_) = stage.wait_for(|stage| *stage == Stage::Retired) => {
                Err(Error::ShuttingDown.into())
            }
        }
    }
}

/// What a request asks for. Regular expressions are compiled on a worker thread, and only for a
/// process that the caller sees.
async fn convert<R, O>(supervisor: &Supervisor, request: R) -> Result<O, Error>
where
    R: MayHaveRegex + Send + 'static,
    O: TryFrom<R, Error = Error> + Send + 'static,
{
    if !request.has_regex() {
        return request.try_into();
    }
    if let Some(id) = request.process_id().filter(|id| !id.is_empty()) {
        supervisor.find(id)?;
    }
    supervisor.run_apart(move || request.try_into()).await?
}

/// What a stream of answers is.
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl<T> Told for Answers<T> {}

fn paced<T: prost::Message + 'static>(
    supervisor: &Supervisor,
    answers: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Answers<T> {
    Box::pin(PacedStream::new(answers, Arc::clone(supervisor.ticket())))
}

/// A stream that holds its slot as long as it exists.
fn holding<T>(slot: Option<WatchSlot>, answers: impl Stream<Item = T>) -> impl Stream<Item = T> {
    answers.map(move |answer| {
        let _held = &slot;
        answer
    })
}

#[tonic::async_trait]
impl ProcessService for Service {
    type FollowStream = Answers<pb::FollowResponse>;
    type WatchStream = Answers<pb::WatchResponse>;
    type AttachStream = Answers<pb::AttachResponse>;
    type SleepStream = Answers<pb::SleepResponse>;

    async fn start(
        &self,
        request: Request<pb::StartRequest>,
    ) -> Result<Response<pb::StartResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let mut audit = Audit::new(&supervisor, "Start", &request.id);
        let order = audit.convert(self.answer(convert(&supervisor, request))).await?.into_inner();
        // Its line does not wait for what the caller waits for.
        let call = self.answer(lifecycle::start(&supervisor, order));
        let started = audit.of(call).await?.into_inner();
        self.answer(lifecycle::show(&supervisor, started)).await
    }

    async fn get(
        &self,
        request: Request<pb::GetRequest>,
    ) -> Result<Response<pb::GetResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let order = request.try_into()?;
        self.answer(records::get(&supervisor, order)).await
    }

    async fn list(
        &self,
        request: Request<pb::ListRequest>,
    ) -> Result<Response<pb::ListResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let order = request.try_into()?;
        self.answer(records::list(&supervisor, order)).await
    }

    async fn read(
        &self,
        request: Request<pb::ReadRequest>,
    ) -> Result<Response<pb::ReadResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let audit = Audit::new(&supervisor, "Read", &request.id);
        let mut audit = audit.only_if(request.ack_seq > 0);
        let order = audit.convert(self.answer(convert(&supervisor, request))).await?.into_inner();
        audit.of(self.answer(output::read(&supervisor, order))).await
    }

    async fn follow(
        &self,
        request: Request<pb::FollowRequest>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let audit = Audit::new(&supervisor, "Follow", &request.id);
        let mut audit = audit.only_if(request.ack_seq > 0);
        let conversion = async { Ok(convert(&supervisor, request).await?) };
        let order = audit.convert(conversion).await?;
        let call = async {
            let followed = follow::follow(&supervisor, order).await?;
            Ok(Response::new(paced(&supervisor, followed)))
        };
        audit.of(call).await
    }

    async fn wait(
        &self,
        request: Request<pb::WaitRequest>,
    ) -> Result<Response<pb::WaitResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let wait = async { output::wait(&supervisor, convert(&supervisor, request).await?).await };
        self.answer(wait).await
    }

    async fn write_stdin(
        &self,
        request: Request<pb::WriteStdinRequest>,
    ) -> Result<Response<pb::WriteStdinResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let mut audit = Audit::new(&supervisor, "WriteStdin", &request.id);
        let order = audit.convert(self.answer(convert(&supervisor, request))).await?.into_inner();
        // Its line does not wait for what the caller waits for.
        let accepted = audit.of(self.answer(input::write(&supervisor, order))).await?.into_inner();
        self.answer(input::show(&supervisor, accepted)).await
    }

    async fn resize(
        &self,
        request: Request<pb::ResizeRequest>,
    ) -> Result<Response<pb::ResizeResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let audit = Audit::new(&supervisor, "Resize", &request.id);
        let call = async { self.answer(input::resize(&supervisor, request.try_into()?)).await };
        audit.of(call).await
    }

    async fn signal(
        &self,
        request: Request<pb::SignalRequest>,
    ) -> Result<Response<pb::SignalResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let audit = Audit::new(&supervisor, "Signal", &request.id);
        let call = async { self.answer(input::signal(&supervisor, request.try_into()?)).await };
        audit.of(call).await
    }

    async fn kill(
        &self,
        request: Request<pb::KillRequest>,
    ) -> Result<Response<pb::KillResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let audit = Audit::of_kill(&supervisor, &request);
        let call = async { self.answer(lifecycle::kill(&supervisor, request.try_into()?)).await };
        audit.of(call).await
    }

    async fn run(
        &self,
        request: Request<pb::RunRequest>,
    ) -> Result<Response<pb::RunResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let audit = Audit::new(&supervisor, "Run", &request.id);
        let call = async { self.answer(lifecycle::run(&supervisor, request.try_into()?)).await };
        audit.of(call).await
    }

    async fn delete(
        &self,
        request: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::DeleteResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let audit = Audit::new(&supervisor, "Delete", &request.id);
        let call = async { self.answer(lifecycle::delete(&supervisor, request.try_into()?)).await };
        audit.of(call).await
    }

    async fn watch(
        &self,
        request: Request<pb::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let slot = self.watches.enter(&supervisor.caller().name)?;
        let events = watch::watch(&supervisor, request.try_into()?)?;
        Ok(Response::new(paced(&supervisor, holding(Some(slot), events))))
    }

    async fn attach(
        &self,
        request: Request<tonic::Streaming<pb::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (supervisor, messages) = self.enter(request)?;
        Ok(Response::new(paced(&supervisor.clone(), attach::attach(supervisor, messages))))
    }

    async fn screen(
        &self,
        request: Request<pb::ScreenRequest>,
    ) -> Result<Response<pb::ScreenResponse>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let order = request.try_into()?;
        self.answer(screen::screen(&supervisor, order)).await
    }

    async fn sleep(
        &self,
        request: Request<pb::SleepRequest>,
    ) -> Result<Response<Self::SleepStream>, Status> {
        let (supervisor, request) = self.enter(request)?;
        let slot = request.wake_on.as_ref().map(|_| self.watches.enter(&supervisor.caller().name));
        let slot = slot.transpose()?;
        let sleep = sleep::sleep(&supervisor, request.try_into()?);
        Ok(Response::new(paced(&supervisor, holding(slot, sleep))))
    }

    async fn get_server_info(
        &self,
        request: Request<pb::GetServerInfoRequest>,
    ) -> Result<Response<pb::GetServerInfoResponse>, Status> {
        let (supervisor, pb::GetServerInfoRequest {}) = self.enter(request)?;
        self.answer(self.about.answer(&supervisor)).await
    }
}
