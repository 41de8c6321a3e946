//! The server may be killed at any moment: the next one finds everything, and nothing is missing.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use procyard::keeper_client::{Adopted, Keeper, Output};
use procyard::process::Status;

use crate::support::*;

const PROCESSES: usize = 20;
const KILLS: usize = 50;
/// Prints numbered lines in bursts until a file appears, then says how many there were.
const PRINTER: &str = "i=0; while [ ! -e stop ]; do n=0; while [ $n -lt 40 ]; do i=$((i+1)); \
                       n=$((n+1)); echo line $i; done; sleep 0.05; done; echo end $i";

#[tokio::test]
async fn a_server_killed_fifty_times_leaves_no_hole_and_no_double() {
    let keeper = TestKeeper::start();
    let directory = keeper.directory.path().to_owned();
    start_printers(&keeper, &directory).await;

    let mut random = 0x9e37_79b9_u64;
    for _ in 0..KILLS {
        let mut server = play_server(&directory);
        let before = logged(&directory);
        until("every log has grown", || {
            assert!(server.try_wait().unwrap().is_none(), "the server ended by itself");
            logged(&directory).iter().zip(&before).all(|(now, before)| now > before)
        })
        .await;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        tokio::time::sleep(Duration::from_micros(random >> 48)).await;
        server.kill().unwrap();
        server.wait().unwrap();
    }

    fs::write(directory.join("stop"), "").unwrap();
    let mut server = keeper.connect().await;
    assert_eq!(server.adopted.len(), PROCESSES);
    for held in std::mem::take(&mut server.adopted) {
        let exit = match held.exit {
            Some(exit) => exit,
            None => server.exit(held.key).await,
        };
        assert_eq!(exit.status, Status::Code(0));
        follow(&held.output, &log_of(&directory, &held.id)).await;
        check(&log_of(&directory, &held.id));
    }
}

async fn start_printers(keeper: &TestKeeper, directory: &Path) {
    let mut server = keeper.connect().await;
    for n in 0..PROCESSES {
        let io = if n % 2 == 0 { PIPES } else { TERMINAL };
        let mut launch = server.shell(PRINTER, io);
        launch.id = format!("printer-{n}");
        launch.cwd = directory.to_str().unwrap().into();
        server.spawn(launch).await;
    }
}

/// Starts this test binary again, to be killed in the server's place.
fn play_server(directory: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "surviving::a_server_to_be_killed", "--ignored"]);
    command.env("PROCYARD_TEST_DIRECTORY", directory).stdout(Stdio::null());
    command.spawn().unwrap()
}

/// The part of a server: adopts, and writes down what it reads, one chunk at a time.
#[tokio::test]
#[ignore = "a part that is played for another test"]
async fn a_server_to_be_killed() {
    let Some(directory) = std::env::var_os("PROCYARD_TEST_DIRECTORY") else { return };
    let directory = PathBuf::from(directory);
    let link = UnixStream::connect(directory.join("control")).unwrap();
    let (keeper, _reports, _) = Keeper::connect(link).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for Adopted { id, output, .. } in keeper.adopt().await.unwrap() {
        let log = log_of(&directory, &id);
        tasks.spawn(async move { follow(&output, &log).await });
    }
    tasks.join_all().await;
}

fn log_of(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.log"))
}

fn logged(directory: &Path) -> Vec<u64> {
    let size =
        |n| fs::metadata(log_of(directory, &format!("printer-{n}"))).map_or(0, |log| log.len());
    (0..PROCESSES).map(size).collect()
}

/// Writes down all output that comes after what was written down before.
async fn follow(output: &Output, log: &Path) {
    let (whole, last_seq) = read_log(log).map_or((0, 0), |entries| {
        let size = entries.iter().map(|(_, data)| 12 + data.len() as u64).sum();
        (size, entries.last().map_or(0, |(seq, _)| *seq))
    });
    let mut file: File = OpenOptions::new().create(true).append(true).open(log).unwrap();
    // A kill in the middle of a write leaves half an entry, which was not read then.
    file.set_len(whole).unwrap();
    let mut follower = output.follow(last_seq + 1);
    while let Some(batch) = soon(follower.next(1 << 20)).await.unwrap() {
        assert_eq!(batch.gap, None);
        for chunk in batch.chunks {
            let len = chunk.data.len() as u32;
            let entry = [&chunk.seq.to_le_bytes()[..], &len.to_le_bytes(), &chunk.data].concat();
            file.write_all(&entry).unwrap();
        }
    }
}

/// The whole entries of a log: sequence number and bytes.
fn read_log(log: &Path) -> Option<Vec<(u64, Vec<u8>)>> {
    let bytes = fs::read(log).ok()?;
    let mut rest = &bytes[..];
    let mut entries = Vec::new();
    while let Some((seq, after)) = rest.split_first_chunk::<8>()
        && let Some((len, after)) = after.split_first_chunk::<4>()
        && let Some((data, after)) = after.split_at_checked(u32::from_le_bytes(*len) as usize)
    {
        entries.push((u64::from_le_bytes(*seq), data.to_vec()));
        rest = after;
    }
    Some(entries)
}

/// Chunks without hole or double, and lines likewise, up to the last.
fn check(log: &Path) {
    let entries = read_log(log).unwrap();
    let expected: Vec<u64> = (1..=entries.len() as u64).collect();
    assert_eq!(entries.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), expected);
    let bytes: Vec<u8> = entries.into_iter().flat_map(|(_, data)| data).collect();
    let text = String::from_utf8(bytes).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (last, lines) = lines.split_last().unwrap();
    assert_eq!(*last, format!("end {}", lines.len()));
    for (n, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("line {}", n + 1));
    }
}

#[tokio::test]
async fn input_that_was_accepted_is_not_typed_twice_by_the_next_server() {
    let keeper = TestKeeper::start();
    let write = |offset, data: &'static [u8]| procyard::keeper_client::Write {
        offset: Some(offset),
        data: bytes::Bytes::from_static(data),
        eof: false,
    };
    let key = {
        let mut server = keeper.connect().await;
        let cat = server.sh("cat", STDIN).await;
        soon(server.keeper.write(cat.key, write(0, b"one\n"))).await.unwrap();
        cat.key
    };
    let mut server = keeper.connect().await;
    let state = soon(server.keeper.write(key, write(0, b"one\ntwo\n"))).await.unwrap();
    assert_eq!(state.input.accepted, 8);
    soon(server.keeper.close(key)).await.unwrap();
    let exit = server.exit(key).await;
    assert_eq!(exit.status, Status::Code(0));
    let mut follower = server.adopted[0].output.follow(1);
    let mut text = Vec::new();
    while let Some(batch) = soon(follower.next(1000)).await.unwrap() {
        text.extend(batch.chunks.into_iter().flat_map(|chunk| chunk.data));
    }
    assert_eq!(text, b"one\ntwo\n");
}

#[tokio::test]
async fn a_kill_that_was_asked_for_goes_on_without_its_server() {
    let keeper = TestKeeper::start();
    let pid = {
        let mut server = keeper.connect().await;
        let stubborn =
            server.sh("trap '' TERM; echo ready; while :; do sleep 0.1; done", PIPES).await;
        read_until(&stubborn, "ready").await;
        let asked = server.keeper.clone();
        let kill = tokio::spawn(async move { asked.kill_tree(stubborn.key, libc::SIGKILL).await });
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        kill.abort();
        stubborn.pid
    };
    until("it was reaped", || state(pid).is_none()).await;
    let server = keeper.connect().await;
    assert!(server.adopted[0].exit.is_some());
}
