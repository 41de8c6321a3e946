//! A server goes and the next one comes: it finds everything as it was left.

use std::os::unix::net::UnixStream;

use procyard::keeper_client::{Adopted, Keeper, KeeperError, Report, Write};
use procyard::process::{InputState, Size, Status};

use crate::support::*;

fn find(server: &Server, id: &str) -> Adopted {
    let found = server.adopted.iter().find(|held| held.id == id);
    found.unwrap_or_else(|| panic!("{id} is not there: {:?}", server.adopted)).clone()
}

#[tokio::test]
async fn the_living_and_the_finished_are_found_as_they_were_and_the_released_are_not() {
    let keeper = TestKeeper::start();
    let mut first = keeper.connect().await;
    let mut reader = first.shell("echo reading; cat", STDIN);
    let mut deaf = first.shell("echo deaf; sleep 1000", STDIN);
    let mut shell = first.shell("stty -echo; echo shell; cat", TERMINAL);
    let mut finished = first.shell("echo done; exit 7", PIPES);
    let mut released = first.shell("exit 0", PIPES);
    for (n, launch) in
        [&mut reader, &mut deaf, &mut shell, &mut finished, &mut released].into_iter().enumerate()
    {
        launch.run = n as u32 + 1;
    }
    let launches = [&reader, &deaf, &shell, &finished, &released];
    let mut spawned = Vec::new();
    for launch in launches {
        spawned.push(first.spawn(launch.clone()).await);
    }
    for (process, text) in spawned.iter().zip(["reading", "deaf", "shell", "done"]) {
        read_until(process, text).await;
    }
    let typed_to = soon(first.keeper.write(spawned[0].key, typed("hello\n"))).await.unwrap().input;
    read_until(&spawned[0], "hello").await;
    let unread = soon(first.keeper.write(spawned[1].key, typed(vec![b'x'; 500_000]))).await;
    let exit = first.exit(spawned[3].key).await;
    first.exit(spawned[4].key).await;
    soon(first.keeper.release(spawned[4].key)).await.unwrap();
    drop(first);

    let second = keeper.connect().await;
    assert_eq!(second.adopted.len(), 4);
    for (n, (launch, before)) in launches.iter().zip(&spawned).take(4).enumerate() {
        let held = find(&second, &launch.id);
        assert_eq!((held.key, held.run, held.pid), (before.key, n as u32 + 1, before.pid));
        let size = (n == 2).then_some(Size { rows: 24, cols: 80 });
        assert_eq!((held.start_time, held.size), (before.start_time, size));
        assert_eq!(held.exit, (n == 3).then(|| exit.clone()));
    }
    let input = |id: &str| find(&second, id).output.progress().input;
    assert_eq!(input(&reader.id), InputState { accepted: 6, ..typed_to });
    assert_eq!(Ok(input(&deaf.id)), unread.map(|written| written.input));
    assert!(!input(&finished.id).open);
    assert_eq!(text(&read_from(&find(&second, &finished.id).output, 1).await), "done\n");
    assert!(find(&second, &finished.id).output.progress().drained);
}

#[tokio::test]
async fn what_is_printed_while_nobody_serves_is_read_by_the_next_without_a_hole() {
    let keeper = TestKeeper::start();
    let mut first = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let line = format!("echo before; read x <{0}; seq 1000; touch {0}.done; cat", gate.path);
    let spawned = first.sh(&line, STDIN).await;
    read_until(&spawned, "before").await;
    let next = spawned.output.progress().next_seq;
    drop(first);
    gate.open(1);
    let done = format!("{}.done", gate.path);
    until("it has printed", || std::path::Path::new(&done).exists()).await;

    let mut second = keeper.connect().await;
    let output = second.adopted[0].output.clone();
    soon(second.keeper.write(spawned.key, Write { eof: true, ..typed("after\n") })).await.unwrap();
    second.exit(spawned.key).await;
    let numbers: String = (1..=1000).map(|n| format!("{n}\n")).collect();
    assert_eq!(text(&read_from(&output, next).await), numbers.clone() + "after\n");
    assert_eq!(text(&read_from(&output, 1).await), "before\n".to_owned() + &numbers + "after\n");
}

#[tokio::test]
async fn an_exit_is_told_in_the_adoption_or_reported_but_not_both() {
    let keeper = TestKeeper::start();
    let mut first = keeper.connect().await;
    let mut gate = Gate::new(keeper.directory.path());
    let early = first.sh("exit 1", PIPES).await;
    first.exit(early.key).await;
    let unseen = first.sh(&format!("read x <{}; exit 2", gate.path), PIPES).await;
    let late = first.sh("cat; exit 3", STDIN).await;
    drop(first);
    gate.open(1);
    until("it has ended", || !alive(unseen.pid)).await;

    let mut second = keeper.connect().await;
    let told = |server: &Server, key| {
        let held = server.adopted.iter().find(|held| held.key == key).unwrap();
        held.exit.as_ref().map(|exit| exit.status)
    };
    assert_eq!(told(&second, early.key), Some(Status::Code(1)));
    assert_eq!(told(&second, late.key), None);
    // The keeper may see it end just before the adoption or just after.
    if told(&second, unseen.key).is_none() {
        assert_eq!(second.exit(unseen.key).await.status, Status::Code(2));
    }
    soon(second.keeper.close(late.key)).await.unwrap();
    assert_eq!(second.exit(late.key).await.status, Status::Code(3));
    let marker = second.sh("exit 4", PIPES).await;
    loop {
        match soon(second.reports.next()).await.unwrap() {
            Report::Exited { key, .. } if key == marker.key => break,
            Report::Exited { key, .. } => panic!("the exit of {key} was told twice"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_second_server_waits_until_the_first_is_gone() {
    let keeper = TestKeeper::start();
    let mut first = keeper.connect().await;
    let spawned = first.sh("sleep 1000", PIPES).await;
    let link = UnixStream::connect(keeper.directory.path().join("control")).unwrap();
    let second = tokio::spawn(async move {
        let (second, _reports, _) = Keeper::connect(link).await.unwrap();
        second.adopt().await.unwrap()
    });
    for _ in 0..10 {
        assert_eq!(first.output("echo first", PIPES).await.1, "first\n");
        assert!(!second.is_finished(), "two servers are served at once");
    }
    drop(first);
    let adopted = soon(second).await.unwrap();
    assert!(adopted.iter().any(|held| held.key == spawned.key));
}

#[tokio::test]
async fn a_start_that_is_asked_for_again_by_the_next_server_finds_the_first() {
    let keeper = TestKeeper::start();
    let mut first = keeper.connect().await;
    let launch = first.shell("sleep 1000", PIPES);
    let before = first.spawn(launch.clone()).await;
    assert!(!before.existed);
    drop(first);
    let second = keeper.connect().await;
    let again = second.spawn(launch).await;
    assert_eq!((again.existed, again.key, again.pid), (true, before.key, before.pid));
}

#[tokio::test]
async fn a_terminal_is_as_usable_for_the_next_server() {
    let keeper = TestKeeper::start();
    let mut first = keeper.connect().await;
    let line = "stty -echo; echo ready; read x; stty size; cat";
    let spawned = first.sh(line, TERMINAL).await;
    read_until(&spawned, "ready").await;
    soon(first.keeper.write(spawned.key, typed_at(0, "\n"))).await.unwrap();
    read_until(&spawned, "24 80").await;
    drop(first);
    let mut second = keeper.connect().await;
    soon(second.keeper.resize(spawned.key, Size { rows: 30, cols: 90 })).await.unwrap();
    for write in [typed_at(0, "\n"), typed_at(0, "\nbye\n"), typed_at(1, "bye\n")] {
        let state = soon(second.keeper.write(spawned.key, write)).await.unwrap().input;
        assert!(state.open && state.accepted <= 5);
    }
    soon(second.keeper.close(spawned.key)).await.unwrap();
    assert_eq!(second.exit(spawned.key).await.status, Status::Code(0));
    let all = text(&read_from(&second.adopted[0].output, 1).await);
    assert_eq!(all, "ready\r\n24 80\r\nbye\r\n");
}

#[tokio::test]
async fn a_terminal_is_found_with_the_size_that_it_has_whoever_set_it() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let spawned =
        server.sh("echo ready; read x; stty rows 7 cols 9; echo set; cat", TERMINAL).await;
    read_until(&spawned, "ready").await;
    soon(server.keeper.resize(spawned.key, Size { rows: 30, cols: 90 })).await.unwrap();
    drop(server);
    let server = keeper.connect().await;
    assert_eq!(server.adopted[0].size, Some(Size { rows: 30, cols: 90 }));
    soon(server.keeper.write(spawned.key, typed("\n"))).await.unwrap();
    let (mut follower, mut shown) = (server.adopted[0].output.follow(1), String::new());
    while !shown.contains("set\r\n") {
        shown += &text(&soon(follower.next(1 << 20)).await.unwrap().unwrap().chunks);
    }
    drop(server);
    let mut server = keeper.connect().await;
    assert_eq!(server.adopted[0].size, Some(Size { rows: 7, cols: 9 }));
    soon(server.keeper.close(spawned.key)).await.unwrap();
    server.exit(spawned.key).await;
    drop(server);
    assert_eq!(keeper.connect().await.adopted[0].size, None, "a terminal that has ended");
}

#[tokio::test]
async fn a_reader_of_a_connection_that_is_gone_reads_what_is_kept_and_then_says_so() {
    let keeper = TestKeeper::start();
    let mut first = keeper.connect().await;
    let spawned = first.sh("echo kept; sleep 1000", PIPES).await;
    read_until(&spawned, "kept").await;
    let mut follower = spawned.output.follow(1);
    drop(first);
    let _second = keeper.connect().await;
    let batch = soon(follower.next(100)).await.unwrap().unwrap();
    assert_eq!(text(&batch.chunks), "kept\n");
    assert_eq!(soon(follower.next(100)).await, Err(KeeperError::Disconnected));
}
