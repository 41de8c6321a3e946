//! Attach: a live terminal that any number of clients share, and none of them owns.

mod late_input;

use std::time::Instant;

use procyard::grpc::pb;
use procyard::grpc::pb::attach_request::Message as Say;
use procyard::grpc::pb::attach_response::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::support::service::*;
use crate::support::transcript::*;
use crate::support::{Gate, SOON, have, soon, until};

/// Both directions of one client.
struct Attached {
    says: mpsc::Sender<pb::AttachRequest>,
    hears: Streaming<pb::AttachResponse>,
    /// All that it was shown so far, from the first chunk on that it was promised.
    shown: Vec<u8>,
    /// How far of it was listened for.
    heard: usize,
    next_seq: u64,
}

impl Attached {
    async fn open(client: &mut Client, start: pb::AttachStart) -> Attached {
        let mut attached = Attached::call(client, Say::Start(start)).await;
        let Some(Message::Attached(first)) = attached.message().await.unwrap() else {
            panic!("not attached");
        };
        attached.next_seq = first.next_seq;
        assert!(!first.process.unwrap().id.is_empty());
        attached
    }

    /// From now on.
    async fn to(client: &mut Client, id: &str) -> Attached {
        Attached::open(client, pb::AttachStart { id: id.into(), ..Default::default() }).await
    }

    /// From the beginning.
    async fn to_all_of(client: &mut Client, id: &str) -> Attached {
        let since_seq = Some(0);
        Attached::open(client, pb::AttachStart { id: id.into(), since_seq, ..Default::default() })
            .await
    }

    async fn call(client: &mut Client, first: Say) -> Attached {
        let (says, said) = mpsc::channel(1);
        // Answered before anything was said: who waits for that is not waited for.
        let hears = soon(client.attach(ReceiverStream::new(said))).await.unwrap().into_inner();
        let attached = Attached { says, hears, shown: Vec::new(), heard: 0, next_seq: 0 };
        attached.say(first).await;
        attached
    }

    async fn say(&self, message: Say) {
        let request = pb::AttachRequest { message: Some(message) };
        soon(self.says.send(request)).await.unwrap();
    }

    async fn text(&self, text: &str) {
        self.say(Say::Text(text.into())).await;
    }

    async fn keys(&self, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.say(Say::Keys(pb::Keys { names })).await;
    }

    async fn message(&mut self) -> Result<Option<Message>, Status> {
        Ok(soon(self.hears.message()).await?.map(|answer| answer.message.unwrap()))
    }

    fn take(&mut self, chunk: &pb::Chunk) {
        assert_eq!(chunk.seq, self.next_seq);
        self.next_seq += 1;
        self.shown.extend_from_slice(&chunk.data);
    }

    /// Listens until it was shown something, after what it has listened for before.
    async fn hears(&mut self, text: &str) {
        let begin = Instant::now();
        loop {
            let left = &self.shown[self.heard..];
            if let Some(at) = left.windows(text.len()).position(|part| part == text.as_bytes()) {
                self.heard += at + text.len();
                return;
            }
            let left = String::from_utf8_lossy(left);
            assert!(begin.elapsed() < SOON, "no {text:?} in {left:?}");
            match self.message().await.unwrap() {
                Some(Message::Chunk(chunk)) => self.take(&chunk),
                Some(Message::Heartbeat(_)) => {}
                other => panic!("{other:?} before {text:?}"),
            }
        }
    }

    /// Listens to the end, which must come once and last.
    async fn end(mut self) -> (Vec<u8>, pb::Process) {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < SOON, "{:?}", String::from_utf8_lossy(&self.shown));
            match self.message().await.unwrap() {
                Some(Message::Chunk(chunk)) => self.take(&chunk),
                Some(Message::Heartbeat(_)) => {}
                Some(Message::End(end)) => {
                    assert_eq!(self.message().await.unwrap(), None, "something after the End");
                    return (self.shown, end.process.unwrap());
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Listens to an error, which must be the last.
    async fn error(mut self) -> Status {
        loop {
            match self.message().await {
                Ok(Some(Message::Chunk(_) | Message::Gap(_) | Message::Attached(_))) => {}
                Ok(other) => panic!("no error: {other:?}"),
                Err(status) => return status,
            }
        }
    }
}

fn size(rows: u32, cols: u32) -> pb::TerminalSize {
    pb::TerminalSize { rows, cols }
}

const EOF: Say = Say::Eof(pb::EndOfInput {});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_are_attached_see_the_same_and_type_to_the_same_process() {
    let service = TestService::start();
    let mut client = service.client().await;
    let script = "echo ready; while read -r word; do echo heard $word; done; echo over; exit 3";
    begin(&mut client, "p", on_terminal(shell(script))).await;
    let ready = pb::WaitRequest { wait: Some(until_output("ready\r\n")), ..wait_for_it("p") };
    assert!(soon(client.wait(ready)).await.unwrap().into_inner().wait.unwrap().met);
    let mut one = Attached::to_all_of(&mut client, "p").await;
    let mut two = Attached::to_all_of(&mut service.client().await, "p").await;
    let mut late = Attached::to(&mut client, "p").await;
    one.text("first\r").await;
    for attached in [&mut one, &mut two, &mut late] {
        attached.hears("heard first\r\n").await;
    }
    two.text("second").await;
    two.keys(&["enter"]).await;
    one.hears("heard second\r\n").await;
    // One leaves without a word; the others and the process go on.
    drop(one);
    two.say(Say::Data(b"third\r".to_vec().into())).await;
    late.hears("heard third\r\n").await;
    two.say(EOF).await;
    let (seen, process) = two.end().await;
    let (seen_late, _) = late.end().await;
    assert_eq!(process.exit.unwrap().code, Some(3));
    let seen = String::from_utf8(seen).unwrap();
    assert!(seen.starts_with("ready\r\n") && seen.ends_with("over\r\n"), "{seen:?}");
    assert_eq!(seen.strip_prefix("ready\r\n").unwrap().as_bytes(), seen_late);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_nothing_more_listens_on() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let script = format!("read x; echo heard $x; read y <{}; echo over", gate.path);
    begin(&mut client, "p", with_stdin(shell(&script))).await;
    let mut attached = Attached::to(&mut client, "p").await;
    attached.text("word\n").await;
    let (closed, _) = mpsc::channel(1);
    drop(std::mem::replace(&mut attached.says, closed));
    attached.hears("heard word\n").await;
    gate.open(1);
    let (shown, process) = attached.end().await;
    assert_eq!(String::from_utf8(shown).unwrap(), "heard word\nover\n");
    assert_eq!(process.exit.unwrap().code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_signals_and_sizes_go_in() {
    let service = TestService::start();
    let mut client = service.client().await;
    let script = "trap 'echo interrupted' INT; trap 'stty size' WINCH; \
                  trap 'echo signalled; exit 4' USR1; stty size; echo ready; \
                  while :; do sleep 0.01; done";
    begin_ready(&mut client, "p", on_terminal(shell(script))).await;
    let start = pb::AttachStart { id: "p".into(), size: Some(size(30, 90)), ..Default::default() };
    let mut attached = Attached::open(&mut client, start).await;
    attached.hears("30 90\r\n").await;
    attached.say(Say::Resize(size(40, 100))).await;
    attached.hears("40 100\r\n").await;
    attached.keys(&["ctrl+c"]).await;
    attached.hears("interrupted").await;
    attached.say(Say::Signal("USR1".into())).await;
    let (shown, process) = attached.end().await;
    assert!(String::from_utf8_lossy(&shown).ends_with("signalled\r\n"));
    assert_eq!(process.exit.unwrap().code, Some(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrows_follow_the_mode_while_one_is_attached() {
    let service = TestService::start();
    let mut client = service.client().await;
    let script = "stty raw -echo; echo ready; head -c 3 | cat -v; \
                  printf '\\033[?1hchanged'; head -c 3 | cat -v";
    begin_ready(&mut client, "p", on_terminal(shell(script))).await;
    let mut attached = Attached::to(&mut client, "p").await;
    attached.keys(&["up"]).await;
    attached.hears("changed").await;
    attached.keys(&["up"]).await;
    let (shown, _) = attached.end().await;
    assert_eq!(String::from_utf8(shown).unwrap(), "^[[A\x1b[?1hchanged^[OA");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_typed_faster_than_it_is_read_is_held_back_and_nothing_is_lost() {
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    let spec = with_stdin(shell(&format!("read x <{}; exec cat", gate.path)));
    begin(&mut client, "p", pb::Spec { transcript_bytes: 8 << 20, ..spec }).await;
    let attached = Attached::to(&mut client, "p").await;
    let pasted: Vec<u8> = (0..3_u32 << 20).map(|n| (n % 251) as u8).collect();
    let says = attached.says.clone();
    let pieces: Vec<Vec<u8>> = pasted.chunks(700_001).map(<[u8]>::to_vec).collect();
    let pasting = tokio::spawn(async move {
        for piece in pieces {
            let message = Some(Say::Data(piece.into()));
            soon(says.send(pb::AttachRequest { message })).await.unwrap();
        }
        says.send(pb::AttachRequest { message: Some(EOF) }).await.unwrap();
    });
    // As much as may pend was taken, and then no more.
    let stdin = async |client: &mut Client| get(client, "p").await.stdin.unwrap();
    soon(async { while stdin(&mut client).await.accepted_bytes == 0 {} }).await;
    let held = stdin(&mut client).await;
    assert!(held.pending_bytes <= 1 << 20 && held.accepted_bytes < 3 << 20, "{held:?}");
    gate.open(1);
    let (shown, process) = attached.end().await;
    pasting.await.unwrap();
    assert!(shown == pasted, "{} of {} bytes", shown.len(), pasted.len());
    assert_eq!(process.stdin.unwrap().accepted_bytes, 3 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_listen_can_type_on_and_holds_little() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", with_stdin(shell("yes & cat >/dev/null; kill $!"))).await;
    let attached = Attached::to(&mut client, "p").await;
    let server = service.server_pid();
    let before = own_memory(server);
    for _ in 0..20 {
        attached.say(Say::Data(vec![b'x'; 1 << 20].into())).await;
    }
    attached.say(EOF).await;
    // Nothing of it is heard, and all of it is done.
    soon(client.wait(pb::WaitRequest { wait: Some(until_exit()), ..wait_for_it("p") }))
        .await
        .unwrap();
    until("little is held", || own_memory(server) < before + (16 << 20)).await;
    drop(attached);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_that_comes_too_late_does_not_spoil_the_end() {
    let service = TestService::start();
    let mut client = service.client().await;
    for (id, spec) in [
        ("pipes", with_stdin(shell("echo ready; head -c 1"))),
        ("terminal", on_terminal(shell("stty raw -echo; echo ready; head -c 1"))),
    ] {
        begin_ready(&mut client, id, spec).await;
        let attached = Attached::to_all_of(&mut client, id).await;
        let says = attached.says.clone();
        let typing = tokio::spawn(async move {
            let text = || Some(Say::Text("xyz".into()));
            while says.send(pb::AttachRequest { message: text() }).await.is_ok() {}
        });
        let (_, process) = attached.end().await;
        assert_eq!(process.exit.unwrap().code, Some(0), "{id}");
        soon(typing).await.unwrap();
    }
    // One who comes when it is over sees all of it; a size comes too late as well.
    let start = pb::AttachStart { since_seq: Some(0), ..Default::default() };
    let sized = pb::AttachStart { id: "terminal".into(), size: Some(size(30, 90)), ..start };
    let late = Attached::open(&mut client, sized).await;
    let _ = late.says.send(pb::AttachRequest { message: Some(Say::Text("x".into())) }).await;
    let (shown, _) = late.end().await;
    assert_eq!(String::from_utf8(shown).unwrap(), "ready\nx");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_obeyed_ends_the_stream_with_its_reason_and_touches_nothing() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "pipes", argv(&["sleep", "600"])).await;
    begin(&mut client, "flood", with_stdin(argv(&["yes"]))).await;
    let start = |id: &str| pb::AttachStart { id: id.into(), ..Default::default() };
    let precondition = |reason: &str| (Code::FailedPrecondition, reason.to_owned());
    let invalid = (Code::InvalidArgument, "INVALID_FIELD".to_owned());
    for (id, message, refused) in [
        ("pipes", Say::Resize(size(30, 90)), precondition("NOT_A_TERMINAL")),
        ("flood", Say::Resize(size(30, 90)), precondition("NOT_A_TERMINAL")),
        ("pipes", Say::Text("x".into()), precondition("STDIN_NOT_OPEN")),
        ("pipes", EOF, precondition("STDIN_NOT_OPEN")),
        ("pipes", Say::Start(start("pipes")), invalid.clone()),
        ("pipes", Say::Signal("NO".into()), invalid.clone()),
        ("pipes", Say::Resize(size(0, 90)), invalid.clone()),
    ] {
        let attached = Attached::to(&mut client, id).await;
        attached.say(message.clone()).await;
        let status = attached.error().await;
        assert_eq!((status.code(), reason(&status)), refused, "{message:?}");
        assert_eq!(get(&mut client, id).await.state(), pb::State::Running);
    }
    let sized = pb::AttachStart { size: Some(size(30, 90)), ..start("pipes") };
    let ahead = pb::AttachStart { since_seq: Some(1000), ..start("pipes") };
    for (first, refused) in [
        (Say::Text("x".into()), invalid.clone()),
        (Say::Start(start("")), invalid),
        (Say::Start(start("nobody")), (Code::NotFound, "PROCESS_NOT_FOUND".into())),
        (Say::Start(sized), precondition("NOT_A_TERMINAL")),
        (Say::Start(ahead), (Code::OutOfRange, "CURSOR_AHEAD".into())),
    ] {
        let status = Attached::call(&mut client, first.clone()).await.error().await;
        assert_eq!((status.code(), reason(&status)), refused, "{first:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_filled_with_signs_of_life() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", on_terminal(argv(&["sleep", "600"]))).await;
    let heartbeat_interval = Some(millis(1000));
    let start = pb::AttachStart { id: "p".into(), heartbeat_interval, ..Default::default() };
    let mut attached = Attached::open(&mut client, start).await;
    for _ in 0..2 {
        assert!(matches!(attached.message().await, Ok(Some(Message::Heartbeat(_)))));
    }
    end(&mut client, "p").await;
    let (shown, process) = attached.end().await;
    assert_eq!((shown.len(), process.exit.unwrap().signal), (0, Some(libc::SIGKILL)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_with_jobs_behaves_as_on_any_terminal() {
    if !have(&["bash"]) {
        return;
    }
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "p", on_terminal(argv(&["bash", "--norc", "--noprofile", "-i"]))).await;
    let mut shell = Attached::to_all_of(&mut client, "p").await;
    // What is typed before a prompt is there meets the terminal in another mode.
    let prompt = "\x1b[?2004hready> ";
    shell.hears("bash-").await;
    shell.text("PS1='ready> '\r").await;
    shell.hears(prompt).await;
    shell.text("tty\r").await;
    shell.hears("/dev/pts/").await;
    shell.hears(prompt).await;
    // It starts no other program: a stop in the middle of that is for some shells no stop.
    let ticking = "i=0; while :; do i=$((i+1)); [ $((i%9999)) = 0 ] && echo tick $((i/9999)); done";
    shell.text(&format!("sh -c '{ticking}'\r")).await;
    shell.hears("tick 3\r\n").await;
    shell.keys(&["ctrl+z"]).await;
    shell.hears("Stopped").await;
    shell.hears(prompt).await;
    let ticks = String::from_utf8_lossy(&shell.shown).matches("tick ").count();
    shell.text("fg\r").await;
    shell.hears(&format!("tick {ticks}\r\n")).await;
    shell.keys(&["ctrl+c"]).await;
    shell.hears(prompt).await;
    // A password is asked for on the terminal itself, and not shown.
    let ask = "stty -echo; printf 'pass''word: '; read -r word </dev/tty; stty echo";
    shell.text(&format!("{ask}; echo got ${{#word}}\r")).await;
    shell.hears("password: ").await;
    shell.text("hidden-word\r").await;
    shell.hears("got 11\r\n").await;
    shell.hears(prompt).await;
    assert!(!String::from_utf8_lossy(&shell.shown).contains("hidden-word"));
    shell.keys(&["ctrl+d"]).await;
    let (_, process) = shell.end().await;
    assert_eq!(process.exit.unwrap().code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_for_one_that_waits_for_its_turn_is_refused_and_not_lost_in_silence() {
    let service = TestService::start();
    let mut client = service.client().await;
    begin(&mut client, "runs", in_queue("q", argv(&["sleep", "600"]))).await;
    begin(&mut client, "waits", in_queue("q", with_stdin(shell("cat")))).await;
    let mut attached = Attached::to_all_of(&mut client, "waits").await;
    attached.text("x").await;
    let refused = loop {
        match attached.message().await {
            Ok(Some(Message::Heartbeat(_))) => {}
            Ok(other) => panic!("{other:?}"),
            Err(status) => break status,
        }
    };
    assert_eq!(
        (refused.code(), reason(&refused)),
        (Code::FailedPrecondition, "NOT_RUNNING".into())
    );
    assert_eq!(get(&mut client, "waits").await.state(), pb::State::Queued);
}
