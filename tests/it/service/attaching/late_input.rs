//! Attach with a client that is still sending when the answer ends.

use http2::{END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, call_headers, frame, hello, prefixed};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::*;
use crate::support::http2;

/// Sends one letter per message, as fast as the stream takes them, until the server resets it.
fn flood(says: mpsc::Sender<pb::AttachRequest>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let letter = || pb::AttachRequest { message: Some(Say::Text("x".into())) };
        while says.send(letter()).await.is_ok() {}
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flooding_client_receives_the_end_every_time() {
    let service = TestService::start();
    let mut client = service.client().await;
    // The first reads nothing and holds the input back, the second reads one letter and exits.
    for (n, script) in ["exec 0<&-; sleep 1", "head -c 1"].iter().cycle().take(4).enumerate() {
        let id = format!("p{n}");
        let script = format!("echo ready; {script}");
        begin_ready(&mut client, &id, with_stdin(shell(&script))).await;
        let attached = Attached::to_all_of(&mut client, &id).await;
        // It shares the connection, which the flood must not end.
        let listener = Attached::to_all_of(&mut client, &id).await;
        let flooding = flood(attached.says.clone());
        for attached in [attached, listener] {
            let (_, process) = attached.end().await;
            assert_eq!(process.exit.unwrap().code, Some(0), "{script}");
        }
        soon(flooding).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_is_not_reset_while_a_slow_client_still_sends() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", shell("exit 3")).await;
    let wait = pb::WaitRequest { wait: Some(until_exit()), ..wait_for_it("p") };
    soon(client.wait(wait)).await.unwrap();
    let mut io = UnixStream::connect(service.socket()).await.unwrap();
    let data = |message: Say| {
        let request = pb::AttachRequest { message: Some(message) };
        frame(http2::DATA, 0, 1, &prefixed(&request))
    };
    let start = pb::AttachStart { id: "p".into(), ..Default::default() };
    let path = "/procyard.v1.ProcessService/Attach";
    let call = [hello(), call_headers(1, "localhost", path), data(Say::Start(start))].concat();
    http2::send(&mut io, &call).await;
    // Longer than the server remembers a stream that it has reset.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    http2::send(&mut io, &data(Say::Text("x".into())).repeat(2000)).await;
    http2::send(&mut io, &frame(PING, 0, 0, &[7; 8])).await;
    let mut has_ended = false;
    loop {
        let frame = http2::next_frame(&mut io).await.expect("the server closed the connection");
        assert!(![RST_STREAM, GOAWAY].contains(&frame.kind), "{frame:?}");
        has_ended |= (frame.stream, frame.kind) == (1, HEADERS) && frame.flags & END_STREAM != 0;
        if frame.kind == PING && frame.payload == [7; 8] {
            break;
        }
    }
    assert!(has_ended);
}
