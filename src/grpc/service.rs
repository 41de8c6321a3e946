//! The service: each RPC, from its request to its answer or its error.
//!
//! Owns nothing but the way: a request becomes domain words (`from_proto`), the file of its group
//! does what it asks, and whatever is refused becomes a status (`status`) here.

use std::pin::Pin;

use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::pb::process_service_server::ProcessService;
use super::{attach, follow, info, input, lifecycle, output, pb, records, screen, sleep, watch};
use crate::supervisor::{Error, Stage, Supervisor};

/// The API over the supervisor.
pub struct Service {
    supervisor: Supervisor,
    about: info::About,
}

impl Service {
    /// The API over a supervisor.
    pub fn new(supervisor: Supervisor, about: info::About) -> Service {
        Service { supervisor, about }
    }

    /// The answer of a call, or that there will be none because another server takes over.
    async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<Response<T>, Status> {
        let mut stage = self.supervisor.stage();
        tokio::select! {
            biased;
            answer = call => Ok(Response::new(answer?)),
            Ok(_) = stage.wait_for(|stage| *stage == Stage::Retired) => {
                Err(Error::ShuttingDown.into())
            }
        }
    }
}

/// What a stream of answers is.
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

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
        let order = request.into_inner().try_into()?;
        self.answer(lifecycle::start(&self.supervisor, order)).await
    }

    async fn get(
        &self,
        request: Request<pb::GetRequest>,
    ) -> Result<Response<pb::GetResponse>, Status> {
        let order = request.into_inner().try_into()?;
        Ok(Response::new(records::get(&self.supervisor, order)?))
    }

    async fn list(
        &self,
        request: Request<pb::ListRequest>,
    ) -> Result<Response<pb::ListResponse>, Status> {
        let order = request.into_inner().try_into()?;
        Ok(Response::new(records::list(&self.supervisor, &order)))
    }

    async fn read(
        &self,
        request: Request<pb::ReadRequest>,
    ) -> Result<Response<pb::ReadResponse>, Status> {
        let order = request.into_inner().try_into()?;
        self.answer(output::read(&self.supervisor, order)).await
    }

    async fn follow(
        &self,
        request: Request<pb::FollowRequest>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let order = request.into_inner().try_into()?;
        Ok(Response::new(Box::pin(follow::follow(&self.supervisor, order).await?)))
    }

    async fn wait(
        &self,
        request: Request<pb::WaitRequest>,
    ) -> Result<Response<pb::WaitResponse>, Status> {
        let order = request.into_inner().try_into()?;
        self.answer(output::wait(&self.supervisor, order)).await
    }

    async fn write_stdin(
        &self,
        request: Request<pb::WriteStdinRequest>,
    ) -> Result<Response<pb::WriteStdinResponse>, Status> {
        let order = request.into_inner().try_into()?;
        self.answer(input::write(&self.supervisor, order)).await
    }

    async fn resize(
        &self,
        request: Request<pb::ResizeRequest>,
    ) -> Result<Response<pb::ResizeResponse>, Status> {
        let order = request.into_inner().try_into()?;
        self.answer(input::resize(&self.supervisor, order)).await
    }

    async fn signal(
        &self,
        request: Request<pb::SignalRequest>,
    ) -> Result<Response<pb::SignalResponse>, Status> {
        let order = request.into_inner().try_into()?;
        self.answer(input::signal(&self.supervisor, order)).await
    }

    async fn kill(
        &self,
        request: Request<pb::KillRequest>,
    ) -> Result<Response<pb::KillResponse>, Status> {
        let order = request.into_inner().try_into()?;
        self.answer(lifecycle::kill(&self.supervisor, order)).await
    }

    async fn run(
        &self,
        request: Request<pb::RunRequest>,
    ) -> Result<Response<pb::RunResponse>, Status> {
        let order = request.into_inner().try_into()?;
        self.answer(lifecycle::run(&self.supervisor, order)).await
    }

    async fn delete(
        &self,
        request: Request<pb::DeleteRequest>,
    ) -> Result<Response<pb::DeleteResponse>, Status> {
        let order = request.into_inner().try_into()?;
        self.answer(lifecycle::delete(&self.supervisor, order)).await
    }

    async fn watch(
        &self,
        request: Request<pb::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let order = request.into_inner().try_into()?;
        Ok(Response::new(Box::pin(watch::watch(&self.supervisor, order)?)))
    }

    async fn attach(
        &self,
        request: Request<tonic::Streaming<pb::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        Ok(Response::new(Box::pin(attach::attach(self.supervisor.clone(), request.into_inner()))))
    }

    async fn screen(
        &self,
        request: Request<pb::ScreenRequest>,
    ) -> Result<Response<pb::ScreenResponse>, Status> {
        let order = request.into_inner().try_into()?;
        self.answer(screen::screen(&self.supervisor, order)).await
    }

    async fn sleep(
        &self,
        request: Request<pb::SleepRequest>,
    ) -> Result<Response<Self::SleepStream>, Status> {
        let order = request.into_inner().try_into()?;
        Ok(Response::new(Box::pin(sleep::sleep(&self.supervisor, order))))
    }

    async fn get_server_info(
        &self,
        request: Request<pb::GetServerInfoRequest>,
    ) -> Result<Response<pb::GetServerInfoResponse>, Status> {
        let pb::GetServerInfoRequest {} = request.into_inner();
        Ok(Response::new(self.about.answer(&self.supervisor)))
    }
}
