//! Every call, as somebody makes it for one process; and what comes of it in a few words.

use procyard::grpc::pb::{self, attach_request, kill_request, watch_response};
use tonic::Status;

use crate::support::callers::TokenClient;
use crate::support::service::*;
use crate::support::soon;

/// The process that every call is made for: it waits for input, on a terminal.
pub fn waiting(id: &str, owner: &str) -> pb::Spec {
    pb::Spec { owner: owner.into(), r#ref: id.into(), ..on_terminal(argv(&["cat"])) }
}

fn selector(id: &str) -> pb::Selector {
    pb::Selector { r#ref: id.into(), ..Default::default() }
}

/// Makes a call that only looks.
pub async fn look(client: &mut TokenClient, how: &str, id: &str) -> Result<String, Status> {
    let id_of = || id.to_owned();
    Ok(match how {
        "Get" => client.get(pb::GetRequest { id: id_of() }).await.map(|_| String::new())?,
        "List" => {
            let request = pb::ListRequest { selector: Some(selector(id)), ..Default::default() };
            client.list(request).await?.into_inner().processes.len().to_string()
        }
        "Read" => {
            let request = pb::ReadRequest { id: id_of(), ..Default::default() };
            client.read(request).await.map(|_| String::new())?
        }
        "Read and acknowledge" => {
            let request = pb::ReadRequest { id: id_of(), ack_seq: 1, ..Default::default() };
            client.read(request).await.map(|_| String::new())?
        }
        "Follow" => {
            let request = pb::FollowRequest { id: id_of(), ..Default::default() };
            client.follow(request).await.map(|_| String::new())?
        }
        "Follow and acknowledge" => {
            let request = pb::FollowRequest { id: id_of(), ack_seq: 1, ..Default::default() };
            client.follow(request).await.map(|_| String::new())?
        }
        "Wait" => {
            let wait = Some(within(1, until_exit()));
            let request = pb::WaitRequest { wait, ..wait_for_it(id) };
            client.wait(request).await.map(|_| String::new())?
        }
        "Screen" => {
            client.screen(pb::ScreenRequest { id: id_of() }).await.map(|_| String::new())?
        }
        "Watch" => watch(client, id).await?,
        "Sleep" => {
            let duration = Some(millis(100));
            let request = pb::SleepRequest { duration, ..Default::default() };
            let mut stream = client.sleep(request).await?.into_inner();
            soon(stream.message()).await?.map(|_| String::new()).unwrap()
        }
        "GetServerInfo" => {
            let info = client.get_server_info(pb::GetServerInfoRequest {}).await?.into_inner();
            assert!(!info.version.is_empty());
            String::new()
        }
        other => return change(client, other, id).await,
    })
}

/// How many events there are of it.
async fn watch(client: &mut TokenClient, id: &str) -> Result<String, Status> {
    let request = pb::WatchRequest {
        selector: Some(selector(id)),
        since_event: Some(0),
        replay_only: true,
        ..Default::default()
    };
    let mut stream = client.watch(request).await?.into_inner();
    let mut events = 0;
    while let Some(answer) = soon(stream.message()).await? {
        events += u32::from(matches!(answer.message, Some(watch_response::Message::Event(_))));
    }
    Ok(events.to_string())
}

/// Makes a call that changes something.
async fn change(client: &mut TokenClient, how: &str, id: &str) -> Result<String, Status> {
    let id_of = || id.to_owned();
    Ok(match how {
        "Start" => client.start(start(id, waiting(id, ""))).await.map(|_| String::new())?,
        "Start for the owner" => {
            client.start(start(id, waiting(id, "mine"))).await.map(|_| String::new())?
        }
        "Start for another" => {
            client.start(start(id, waiting(id, "theirs"))).await.map(|_| String::new())?
        }
        "WriteStdin" => {
            let input = Some(pb::write_stdin_request::Input::Text("x".into()));
            let request = pb::WriteStdinRequest { id: id_of(), input, ..Default::default() };
            client.write_stdin(request).await.map(|_| String::new())?
        }
        "Resize" => {
            let request = pb::ResizeRequest { id: id_of(), rows: 9, cols: 9 };
            client.resize(request).await.map(|_| String::new())?
        }
        "Signal" => {
            let request =
                pb::SignalRequest { id: id_of(), signal: "CONT".into(), ..Default::default() };
            client.signal(request).await.map(|_| String::new())?
        }
        "Kill" => client.kill(kill_at_once(id)).await.map(|_| String::new())?,
        "Kill by selector" => {
            let target = Some(kill_request::Target::Selector(selector(id)));
            let request = pb::KillRequest { target, force: true, ..Default::default() };
            client.kill(request).await?.into_inner().processes.len().to_string()
        }
        "Run" => client.run(run_by_force(id)).await.map(|_| String::new())?,
        "Delete" => client.delete(delete(id, false)).await.map(|_| String::new())?,
        "Delete what may be missing" => {
            client.delete(delete(id, true)).await.map(|_| String::new())?
        }
        "Attach" => {
            let start = pb::AttachStart { id: id_of(), ..Default::default() };
            let message = Some(attach_request::Message::Start(start));
            let messages = tokio_stream::iter([pb::AttachRequest { message }]);
            let mut stream = client.attach(messages).await?.into_inner();
            soon(stream.message()).await?.map(|_| String::new()).unwrap()
        }
        other => panic!("nobody knows how to {other}"),
    })
}

pub fn delete(id: &str, allow_missing: bool) -> pb::DeleteRequest {
    pb::DeleteRequest { id: id.into(), force: true, allow_missing }
}
