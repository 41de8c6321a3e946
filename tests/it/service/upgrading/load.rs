//! Upgrades under load: nothing is lost, nothing doubled, and a call fails only for the moment.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use procyard::grpc::pb::{self, follow_response, watch_response};
use tonic::{Code, Status};

use super::{install_good, is_new, upgrade};
use crate::support::service::*;
use crate::support::{soon, until};

/// Prints numbered lines in bursts until a file appears, then says how many there were.
const PRINTER: &str = "i=0; while [ ! -e stop ]; do n=0; while [ $n -lt 40 ]; do i=$((i+1)); \
                       n=$((n+1)); echo line $i; done; sleep 0.02; done; echo end $i";
const UPGRADES: usize = 3;

/// The only failures that a client may see while servers change: the old one says to come again,
/// or has hung up on a client that was too slow to hear it.
fn only_gone(status: &Status) {
    // Whatever the code: it is the client's library that says so, with the cause, and no server.
    let hung_up = std::error::Error::source(status).is_some();
    if hung_up {
        assert!(status.details().is_empty(), "{status:?}");
    } else {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert_eq!(reason(status), "SHUTTING_DOWN");
    }
}

async fn client(socket: &Path) -> Client {
    soon(async {
        loop {
            if let Ok(channel) = connect(socket.to_path_buf()).await {
                return Client::new(channel).max_decoding_message_size(8 << 20);
            }
        }
    })
    .await
}

/// Follows to the end, from where it was whenever the connection is gone.
async fn follow(socket: PathBuf, id: &'static str) -> String {
    let (mut bytes, mut next) = (Vec::new(), 1);
    loop {
        let request =
            pb::FollowRequest { id: id.into(), since_seq: Some(next), ..Default::default() };
        let stream = client(&socket).await.follow(request).await;
        let Ok(mut stream) = stream.map(tonic::Response::into_inner).inspect_err(only_gone) else {
            continue;
        };
        while let Ok(answer) = soon(stream.message()).await.inspect_err(only_gone) {
            match answer.unwrap().message.unwrap() {
                follow_response::Message::Chunk(chunk) => {
                    assert_eq!(chunk.seq, next);
                    next += 1;
                    bytes.extend_from_slice(&chunk.data);
                }
                follow_response::Message::Gap(gap) => panic!("{gap:?}"),
                follow_response::Message::Heartbeat(_) => {}
                follow_response::Message::End(_) => return String::from_utf8(bytes).unwrap(),
            }
        }
    }
}

/// All events up to the completion of so many, from where it was whenever the connection is gone.
async fn watch(socket: PathBuf, completions: usize) -> Vec<pb::Event> {
    let mut events: Vec<pb::Event> = Vec::new();
    loop {
        let since_event = Some(events.last().map_or(0, |event| event.seq));
        let request = pb::WatchRequest { since_event, ..Default::default() };
        let stream = client(&socket).await.watch(request).await;
        let Ok(mut stream) = stream.map(tonic::Response::into_inner).inspect_err(only_gone) else {
            continue;
        };
        while let Ok(answer) = soon(stream.message()).await.inspect_err(only_gone) {
            match answer.unwrap().message.unwrap() {
                watch_response::Message::Event(event) => events.push(event),
                watch_response::Message::Gap(gap) => panic!("{gap:?}"),
                watch_response::Message::Heartbeat(_) => {}
            }
            let over = |event: &&pb::Event| event.kind() == pb::Kind::Completed;
            if events.iter().filter(over).count() == completions {
                return events;
            }
        }
    }
}

/// Types numbered lines, each write with its offset, and again whenever the connection is gone;
/// how many there were.
async fn write(socket: PathBuf, over: Arc<AtomicBool>) -> usize {
    let (mut client_now, mut offset) = (client(&socket).await, 0);
    for number in 1.. {
        let last = over.load(Ordering::Relaxed);
        let line = format!("typed {number}\n");
        let request = pb::WriteStdinRequest {
            id: "reader".into(),
            input: Some(pb::write_stdin_request::Input::Text(line.clone())),
            offset: Some(offset),
            eof: last,
            ..Default::default()
        };
        while let Err(status) = soon(client_now.write_stdin(request.clone())).await {
            only_gone(&status);
            client_now = client(&socket).await;
        }
        offset += line.len() as u64;
        if last {
            return number;
        }
    }
    0
}

/// Starts short processes one after another, each with its id, and again with the same id whenever
/// the connection is gone; how many there were.
async fn start_short_ones(socket: PathBuf, over: Arc<AtomicBool>) -> usize {
    let mut client_now = client(&socket).await;
    for number in 0.. {
        if over.load(Ordering::Relaxed) {
            return number;
        }
        let request = run(&format!("short-{number}"), shell("exit 5"));
        let answer = loop {
            match soon(client_now.start(request.clone())).await {
                Ok(answer) => break answer.into_inner(),
                Err(status) => only_gone(&status),
            }
            client_now = client(&socket).await;
        };
        assert_eq!(exit(&answer.process.unwrap()).code, Some(5));
    }
    0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_under_load_loses_and_doubles_nothing() {
    let service = TestService::start_from_copy();
    let mut now = service.client().await;
    let cwd = service.directory.path().to_str().unwrap().to_owned();
    let printer = || pb::Spec { cwd: cwd.clone(), ..shell(PRINTER) };
    begin(&mut now, "pipes", printer()).await;
    begin(&mut now, "terminal", on_terminal(printer())).await;
    begin(&mut now, "reader", with_stdin(shell("cat"))).await;
    let socket = service.socket();
    let following = ["pipes", "terminal", "reader"];
    let following = following.map(|id| tokio::spawn(follow(socket.clone(), id)));
    let over = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn(write(socket.clone(), Arc::clone(&over)));
    let starting = tokio::spawn(start_short_ones(socket.clone(), Arc::clone(&over)));
    install_good(&service);
    let mut servers = vec![service.server_pid()];
    for _ in 0..UPGRADES {
        let (well, said) = upgrade(&service).await;
        assert!(well, "{said}");
        let server = service.server_pid();
        assert!(is_new(server) && !servers.contains(&server));
        servers.push(server);
    }
    over.store(true, Ordering::Relaxed);
    let short = soon(starting).await.unwrap();
    let typed = soon(writing).await.unwrap();
    std::fs::write(service.directory.path().join("stop"), "").unwrap();
    let watched = tokio::spawn(watch(socket, short + 3));
    for (following, word) in following.into_iter().zip(["line", "line", "typed"]) {
        let text = soon(following).await.unwrap();
        let mut lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let expected = match word {
            "typed" => typed,
            _ => lines.pop().unwrap().strip_prefix("end ").unwrap().parse().unwrap(),
        };
        assert_eq!(lines.len(), expected);
        for (n, line) in lines.iter().enumerate() {
            assert_eq!(*line, format!("{word} {}", n + 1));
        }
    }
    check_events(&soon(watched).await.unwrap(), short);
    until("nobody is left", || service.inmates().is_empty()).await;
}

/// Every event once, and each process begun once and ended once.
fn check_events(events: &[pb::Event], short: usize) {
    let mut kinds: HashMap<&str, Vec<pb::Kind>> = HashMap::new();
    for (n, event) in (1..).zip(events) {
        assert_eq!(event.seq, n);
        kinds.entry(&event.process_id).or_default().push(event.kind());
    }
    assert_eq!(kinds.len(), short + 3);
    for (id, kinds) in kinds {
        assert_eq!(kinds, [pb::Kind::Started, pb::Kind::Completed], "{id}");
    }
}
