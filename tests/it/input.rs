//! Typing: offsets, bounds and ends of input, on pipes and terminals, and the size of terminals.

use procyard::keeper_client::{Spawned, Write};
use procyard::process::{InputState, Launch, Refused, Size, Status};
use procyard::protocol::pb;
use procyard::protocol::pb::reply::Result as Answer;
use procyard::protocol::pb::to_keeper::Body;

use crate::support::*;

/// Most bytes that may pend.
const BOUND: u64 = 1 << 20;

async fn write(server: &Server, process: &Spawned, write: Write) -> InputState {
    soon(server.keeper.write(process.key, write)).await.unwrap().input
}

async fn refusal(server: &Server, process: &Spawned, write: Write) -> Refused {
    refused(soon(server.keeper.write(process.key, write)).await)
}

fn ended(write: Write) -> Write {
    Write { eof: true, ..write }
}

/// Types until it is refused; how far the input is then.
async fn fill(server: &Server, process: &Spawned) -> InputState {
    let piece = vec![b'x'; 50_000];
    let mut last = InputState { open: true, ..InputState::default() };
    loop {
        let answer = soon(server.keeper.write(process.key, typed_at(last.accepted, &piece))).await;
        let answer = answer.map(|written| written.input);
        let Ok(state) = answer else {
            let Refused::StdinFull(full) = refused(answer) else { panic!("another refusal") };
            assert_eq!(full.accepted, last.accepted, "a refused write changed something");
            assert!(full.pending + 50_000 > BOUND && full.pending <= BOUND, "{full:?}");
            return full;
        };
        assert_eq!((state.open, state.accepted), (true, last.accepted + 50_000));
        last = state;
    }
}

#[tokio::test]
async fn a_child_that_never_reads_is_typed_to_up_to_the_bound_and_harms_nobody() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for (line, io) in [("echo deaf", STDIN), ("stty raw -echo; echo deaf", TERMINAL)] {
        let deaf = server.sh(&format!("{line}; sleep 1000"), io).await;
        read_until(&deaf, "deaf").await;
        let mut state = fill(&server, &deaf).await;
        // A repeated write is fine, the last free byte can be used, and no byte beyond. The kernel may
        // still take some for a terminal.
        let accepted = state.accepted;
        assert_eq!(write(&server, &deaf, typed_at(0, "x")).await.accepted, accepted);
        let full = loop {
            let rest = vec![b'x'; (BOUND - state.pending) as usize];
            let accepted = state.accepted + rest.len() as u64;
            state = write(&server, &deaf, typed(&rest)).await;
            assert_eq!(state.accepted, accepted);
            match soon(server.keeper.write(deaf.key, typed("x"))).await {
                Ok(written) => state = written.input,
                refusal => break refused(refusal),
            }
        };
        assert_eq!(full, Refused::StdinFull(state));
        assert_eq!(state.pending, BOUND);

        let neighbour = server.output("echo fine", PIPES).await;
        assert_eq!(neighbour, (Status::Code(0), "fine\n".into()));
        soon(server.keeper.kill_tree(deaf.key, libc::SIGKILL)).await.unwrap();
        assert_eq!(server.exit(deaf.key).await.status, Status::Signal(libc::SIGKILL));
        assert_eq!(refusal(&server, &deaf, typed("x")).await, Refused::NotRunning);
    }
}

#[tokio::test]
async fn a_write_larger_than_the_bound_is_refused_whole() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let cat = server.sh("cat", STDIN).await;
    let untouched = InputState { open: true, accepted: 0, pending: 0 };
    let large = vec![b'x'; BOUND as usize + 1];
    assert_eq!(refusal(&server, &cat, typed(&large)).await, Refused::StdinFull(untouched));
    write(&server, &cat, ended(typed("small"))).await;
    assert_eq!(text(&read_all(&cat).await), "small");
}

#[tokio::test]
async fn what_pends_arrives_in_order_when_the_child_reads_at_last() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let late = server.sh(&format!("read x <{}; cat", gate.path), STDIN).await;
    let data: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    let state = write(&server, &late, ended(typed(&data))).await;
    assert_eq!((state.open, state.accepted), (false, 1_000_000));
    assert!(state.pending > 0);
    gate.open(1);
    assert!(bytes(&read_all(&late).await) == data, "something else arrived");
    assert_eq!(server.exit(late.key).await.status, Status::Code(0));
}

#[tokio::test]
async fn how_much_pends_is_told_as_it_shrinks() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let line = format!("read x <{0}; head -c 500000 >/dev/null; read x <{0}", gate.path);
    let late = server.sh(&line, STDIN).await;
    assert!(write(&server, &late, typed(vec![b'x'; 500_000])).await.pending > 0);
    gate.open(1);
    let mut output = late.output.clone();
    let is_taken = |state: InputState| state.accepted == 500_000 && state.pending == 0;
    soon(output.wait_until(|progress| is_taken(progress.input))).await.unwrap();
    gate.open(1);
}

#[tokio::test]
async fn a_hole_is_refused_and_a_write_may_overlap_what_was_taken() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let cat = server.sh("cat", STDIN).await;
    write(&server, &cat, typed_at(0, "abc")).await;
    for hole in [4, 1000, u64::MAX] {
        let refused = refusal(&server, &cat, typed_at(hole, "x")).await;
        let Refused::InputOffset(state) = refused else { panic!("{refused:?}") };
        assert_eq!((state.open, state.accepted), (true, 3));
    }
    assert_eq!(write(&server, &cat, typed_at(1, "bcde")).await.accepted, 5);
    assert_eq!(write(&server, &cat, typed_at(0, "")).await.accepted, 5);
    write(&server, &cat, ended(typed_at(5, "f"))).await;
    assert_eq!(text(&read_all(&cat).await), "abcdef");
}

#[tokio::test]
async fn the_end_of_a_pipe_is_final_and_may_be_repeated() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let cat = server.sh(&format!("cat; echo end; read x <{}", gate.path), STDIN).await;
    write(&server, &cat, ended(typed_at(0, "last "))).await;
    read_until(&cat, "last end").await;
    let closed = InputState { open: false, accepted: 5, pending: 0 };
    assert_eq!(write(&server, &cat, ended(typed_at(0, "last "))).await, closed);
    assert_eq!(soon(server.keeper.close(cat.key)).await.map(|written| written.input), Ok(closed));
    assert_eq!(refusal(&server, &cat, typed("more")).await, Refused::StdinNotOpen);
    gate.open(1);
    assert_eq!(server.exit(cat.key).await.status, Status::Code(0));
}

#[tokio::test]
async fn the_end_of_input_is_typed_on_a_terminal_with_the_character_that_is_set() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for setting in ["", "stty eof ^A;"] {
        let cat = server.sh(&format!("stty -echo; {setting} echo ready; cat"), TERMINAL).await;
        read_until(&cat, "ready").await;
        let state = write(&server, &cat, ended(typed("line\n"))).await;
        assert!(state.open, "a terminal can be typed into after an end");
        assert_eq!(server.exit(cat.key).await.status, Status::Code(0));
        assert_eq!(text(&read_all(&cat).await), "ready\r\nline\r\n");
    }
}

#[tokio::test]
async fn a_repeated_end_on_a_terminal_is_typed_once() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let line = "stty -echo; echo ready; cat; echo first; cat; echo second";
    let spawned = server.sh(line, TERMINAL).await;
    read_until(&spawned, "ready").await;
    for _ in 0..3 {
        write(&server, &spawned, ended(typed_at(0, "a\n"))).await;
    }
    read_until(&spawned, "first").await;
    write(&server, &spawned, ended(typed_at(2, "b\n"))).await;
    assert_eq!(server.exit(spawned.key).await.status, Status::Code(0));
    assert_eq!(text(&read_all(&spawned).await), "ready\r\na\r\nfirst\r\nb\r\nsecond\r\n");
}

#[tokio::test]
async fn who_has_no_input_or_closed_it_cannot_be_typed_to() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let without = server.sh("sleep 1000", PIPES).await;
    assert_eq!(refusal(&server, &without, typed("x")).await, Refused::StdinNotOpen);
    assert_eq!(refused(soon(server.keeper.close(without.key)).await), Refused::StdinNotOpen);
    let closed = server.sh("exec <&-; echo closed; sleep 1000 <&1", STDIN).await;
    read_until(&closed, "closed").await;
    // The keeper's own end is closed soon.
    soon(async { while write(&server, &closed, typed("lost")).await.open {} }).await;
    assert_eq!(refusal(&server, &closed, typed("x")).await, Refused::StdinNotOpen);
}

#[tokio::test]
async fn what_is_typed_into_a_terminal_is_echoed_and_interrupts() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let line = "trap 'echo interrupted; exit 5' INT; echo ready; read x; echo got $x; \
                while :; do sleep 0.01; done";
    let spawned = server.sh(line, TERMINAL).await;
    read_until(&spawned, "ready\r\n").await;
    write(&server, &spawned, typed("wort\n")).await;
    let shown = read_until(&spawned, "got wort").await;
    assert!(shown.contains("ready\r\nwort\r\n"), "no echo in {shown:?}");
    write(&server, &spawned, typed("\x03")).await;
    assert_eq!(server.exit(spawned.key).await.status, Status::Code(5));
    assert!(text(&read_all(&spawned).await).contains("^Cinterrupted"));
}

#[tokio::test]
async fn a_new_size_is_seen_and_told_with_a_signal() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let line = "stty size; trap 'stty size' WINCH; echo ready; while :; do sleep 0.01; done";
    let spawned = server.sh(line, TERMINAL).await;
    assert_eq!(read_until(&spawned, "ready").await, "24 80\r\nready\r\n");
    for (rows, cols) in [(50, 132), (1, 1), (1000, 1000)] {
        let size = Size::new(rows, cols).unwrap();
        soon(server.keeper.resize(spawned.key, size)).await.unwrap();
        read_until(&spawned, &format!("\n{rows} {cols}\r\n")).await;
    }
}

#[tokio::test]
async fn what_is_no_living_terminal_has_no_size() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let size = Size { rows: 40, cols: 100 };
    let pipes = server.sh("sleep 1000", PIPES).await;
    let finished = server.sh("exit 0", TERMINAL).await;
    server.exit(finished.key).await;
    let cases = [
        (pipes.key, Refused::NotATerminal),
        (finished.key, Refused::NotRunning),
        (u64::MAX, Refused::UnknownProcess),
    ];
    for (key, expected) in cases {
        assert_eq!(refused(soon(server.keeper.resize(key, size)).await), expected);
    }
}

/// The keeper does not rely on the server for it.
#[test]
fn sizes_that_cannot_be_are_refused_by_the_client_and_by_the_keeper() {
    let keeper = TestKeeper::start();
    let mut server = RawServer::connect(&keeper);
    let mut launch = Launch::new("terminal", ["/bin/sh", "-c", "read x; stty size"]);
    launch.env = vec![(b"PATH".to_vec(), b"/usr/bin:/bin".to_vec())];
    launch.io = TERMINAL;
    let Answer::Spawned(spawned) = server.ask(Body::Spawn(launch.clone().into())) else {
        panic!("not spawned");
    };
    let refused = |answer| match answer {
        Answer::Refusal(refusal) => refusal.reason() == pb::Reason::Invalid,
        _ => false,
    };
    let sizes = [(0, 0), (0, 80), (24, 0), (1001, 80), (65_535, 65_535), (65_536, 65_537)];
    for (rows, cols) in sizes {
        assert_eq!(Size::new(rows, cols), None);
        let resize = pb::Resize { key: spawned.key, rows, cols };
        assert!(refused(server.ask(Body::Resize(resize))), "{rows} x {cols}");
        let mut spawn: pb::Spawn = launch.clone().into();
        (spawn.id, spawn.io) = ("other".into(), Some(terminal(rows, cols)));
        assert!(refused(server.ask(Body::Spawn(spawn))), "{rows} x {cols}");
    }
}

fn terminal(rows: u32, cols: u32) -> pb::spawn::Io {
    pb::spawn::Io::Terminal(pb::Terminal { rows, cols })
}
