//! Starts: what cannot be started is refused with the kernel's word and leaves nothing behind;
//! what is delivered is delivered exactly; a start that nobody waits for is still one start.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use procyard::process::{Io, Launch, Refused, Status};
use tokio::task::JoinSet;

use crate::support::*;

/// A launch that cannot be, and how the kernel puts it.
pub struct Impossible {
    pub what: &'static str,
    pub program: PathBuf,
    pub cwd: PathBuf,
    pub errno: i32,
    /// What the error speaks of.
    pub path: PathBuf,
}

pub fn impossible_launches(directory: &Path) -> Vec<Impossible> {
    let program = |what, name: &str, errno| {
        let program = directory.join(name);
        Impossible { what, path: program.clone(), program, cwd: PathBuf::new(), errno }
    };
    let in_directory = |what, name: &str, errno| {
        let cwd = directory.join(name);
        Impossible { what, program: "/bin/sh".into(), path: cwd.clone(), cwd, errno }
    };
    executable(&directory.join("interpreter"), "#!/no/such/interpreter\n");
    std::fs::write(directory.join("plain"), "#!/bin/sh\n").unwrap();
    std::os::unix::fs::symlink("loop", directory.join("loop")).unwrap();
    vec![
        program("bad interpreter", "interpreter", libc::ENOENT),
        program("no execute bit", "plain", libc::EACCES),
        program("missing file", "missing", libc::ENOENT),
        program("directory as program", "", libc::EACCES),
        program("file as directory", "plain/x", libc::ENOTDIR),
        program("loop of links", "loop", libc::ELOOP),
        in_directory("missing cwd", "missing", libc::ENOENT),
        in_directory("file as cwd", "plain", libc::ENOTDIR),
    ]
}

/// Errno and path of a start that the kernel refuses.
async fn kernel_refusal(server: &Server, launch: Launch) -> (i32, String) {
    match server.refusal(launch).await {
        Refused::SpawnFailed { errno, path, .. } => (errno, path),
        other => panic!("not refused by the kernel: {other:?}"),
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_executed_is_refused_with_errno_and_path_on_pipes_and_terminals() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let before = keeper.descriptors();
    for Impossible { what, program, cwd, errno, path } in
        impossible_launches(keeper.directory.path())
    {
        for io in [PIPES, STDIN, TERMINAL] {
            let mut launch = server.launch(&[program.as_os_str().as_bytes()], io);
            launch.cwd = cwd.clone().into_os_string().into_vec();
            let refused = kernel_refusal(&server, launch).await;
            assert_eq!(refused, (errno, path.to_str().unwrap().into()), "{what} on {io:?}");
        }
    }
    keeper.has_closed_all_since(before).await;
    assert_eq!(children(keeper.pid()), Vec::<u32>::new(), "something was left behind");
}

#[tokio::test]
async fn a_name_is_looked_up_in_the_path_of_its_own_environment() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let directory = keeper.directory.path();
    let [hidden, found] = ["hidden", "found"].map(|name| directory.join(name));
    for path in [&hidden, &found] {
        std::fs::create_dir(path).unwrap();
    }
    std::fs::write(hidden.join("tool"), "not executable").unwrap();
    executable(&found.join("tool"), "#!/bin/sh\necho found\n");
    let path = |dirs: &[&Path]| std::env::join_paths(dirs).unwrap().into_vec();
    for io in [PIPES, TERMINAL] {
        let mut launch = server.launch(&["tool"], io);
        launch.env[0].1 = path(&[Path::new("/missing"), &hidden, &found]);
        let (exit, chunks) = server.run(launch).await;
        assert_eq!((exit.status, text(&chunks).trim_end()), (Status::Code(0), "found"));

        let mut launch = server.launch(&["tool"], io);
        launch.env[0].1 = path(&[&hidden, Path::new("/missing")]);
        let forbidden = hidden.join("tool").to_str().unwrap().to_owned();
        assert_eq!(kernel_refusal(&server, launch).await, (libc::EACCES, forbidden));

        let mut launch = server.launch(&["tool"], io);
        launch.env[0].1 = path(&[Path::new("/missing")]);
        assert_eq!(kernel_refusal(&server, launch).await, (libc::ENOENT, "tool".into()));
    }
}

#[tokio::test]
async fn a_script_without_interpreter_is_refused_on_pipes_and_terminals() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for (name, content) in [("script", "echo hi\n"), ("empty", "")] {
        let path = keeper.directory.path().join(name);
        executable(&path, content);
        let path = path.to_str().unwrap();
        for io in [PIPES, TERMINAL] {
            let launch = server.launch(&[path], io);
            assert_eq!(kernel_refusal(&server, launch).await, (libc::ENOEXEC, path.into()));
        }
    }
}

/// A copy of the shell, held open for writing.
fn shell_being_written(directory: &Path) -> (String, std::fs::File) {
    let path = directory.join("sh");
    std::fs::copy("/bin/sh", &path).unwrap();
    let writer = std::fs::File::options().write(true).open(&path).unwrap();
    (path.to_str().unwrap().into(), writer)
}

#[tokio::test]
async fn a_program_that_is_being_written_is_waited_for_and_delays_nobody() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let (program, writer) = shell_being_written(keeper.directory.path());
    let mut starts = JoinSet::new();
    for io in [PIPES, TERMINAL] {
        let launch = server.launch(&[&program, "-c", "echo ran"], io);
        let handle = server.keeper.clone();
        starts.spawn(async move { handle.spawn(launch).await });
    }
    for _ in 0..2 {
        let other = server.output("echo other", PIPES).await;
        assert_eq!(other, (Status::Code(0), "other\n".into()));
    }
    assert!(starts.try_join_next().is_none(), "answered while the program was being written");
    drop(writer);
    while let Some(spawned) = soon(starts.join_next()).await {
        let spawned = spawned.unwrap().expect("the busy program was not waited for");
        assert_eq!(server.exit(spawned.key).await.status, Status::Code(0));
        assert_eq!(text(&read_all(&spawned).await).trim_end(), "ran");
    }
}

#[tokio::test]
async fn a_program_that_stays_busy_is_refused_in_the_end() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let (program, _writer) = shell_being_written(keeper.directory.path());
    let before = keeper.descriptors();
    for io in [PIPES, TERMINAL] {
        let launch = server.launch(&[&program], io);
        assert_eq!(kernel_refusal(&server, launch).await, (libc::ETXTBSY, program.clone()));
    }
    keeper.has_closed_all_since(before).await;
    assert_eq!(children(keeper.pid()), Vec::<u32>::new());
}

#[tokio::test]
async fn what_no_kernel_can_take_is_refused_in_words() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut refusals = Vec::new();
    for io in [PIPES, TERMINAL] {
        let true_ = server.launch(&["/bin/true"], io);
        let with = |change: fn(&mut Launch)| {
            let mut launch = true_.clone();
            change(&mut launch);
            launch
        };
        for launch in [
            with(|launch| launch.args.clear()),
            with(|launch| launch.args = vec![vec![]]),
            with(|launch| launch.args = vec![b"/bin/\0true".to_vec()]),
            with(|launch| launch.args.push(b"a\0b".to_vec())),
            with(|launch| launch.env.push((b"A=B".to_vec(), b"c".to_vec()))),
            with(|launch| launch.env.push((b"".to_vec(), b"c".to_vec()))),
            with(|launch| launch.env.push((b"A\0".to_vec(), b"c".to_vec()))),
            with(|launch| launch.env.push((b"A".to_vec(), b"c\0d".to_vec()))),
            with(|launch| launch.cwd = b"/\0tmp".to_vec()),
            with(|launch| launch.args.push(vec![b'x'; 17 << 20])),
        ] {
            match server.refusal(launch).await {
                Refused::Invalid(what) => refusals.push(what),
                other => panic!("{other:?}"),
            }
        }
    }
    let (pipes, terminals) = refusals.split_at(refusals.len() / 2);
    assert_eq!(pipes, terminals);
    let words =
        ["no program", "no program", "argument 0", "argument 1", "A=B", "empty", "variable"];
    let words = words.into_iter().chain(["variable", "working directory", "16 MiB"]);
    for (refusal, word) in pipes.iter().zip(words) {
        assert!(refusal.contains(word), "{refusal:?} does not speak of {word:?}");
    }
    let alive = server.output("echo hi", PIPES).await;
    assert_eq!(alive, (Status::Code(0), "hi\n".into()));
}

#[tokio::test]
async fn arguments_beyond_the_kernels_limits_are_refused_and_those_within_arrive() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for io in [PIPES, TERMINAL] {
        let mut long_list = server.launch(&["/bin/true"], io);
        long_list.args.resize(3 << 10, vec![b'x'; 1023]);
        let mut long_variable = server.launch(&["/bin/true"], io);
        long_variable.env.push((b"LONG".to_vec(), vec![b'x'; 1 << 20]));
        for launch in [long_list, long_variable] {
            let refused = kernel_refusal(&server, launch).await;
            assert_eq!(refused, (libc::E2BIG, "/bin/true".into()));
        }
        let line = "echo $# ${#1} ${#LONG}";
        let mut large = server.launch(&["/bin/sh", "-c", line, "sh"], io);
        large.args.resize(4 + 1000, vec![b'x'; 1000]);
        large.env.push((b"LONG".to_vec(), vec![b'x'; 100_000]));
        let (_, chunks) = server.run(large).await;
        assert_eq!(text(&chunks).trim_end(), "1000 1000 100000");
    }
}

#[tokio::test]
async fn bytes_that_are_no_utf8_arrive_as_they_are() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let every: Vec<u8> = (1..=255).collect();
    let odd = std::ffi::OsString::from_vec(b"odd \xff\xfe\n name".to_vec());
    let cwd = keeper.directory.path().join(odd);
    std::fs::create_dir(&cwd).unwrap();
    executable(&cwd.join("\u{1F600}"), "#!/bin/sh\nprintf '%s|%s|%s' \"$1\" \"$ODD\" \"$PWD\"\n");

    for io in [PIPES, TERMINAL] {
        let mut launch = server.launch(&["./\u{1F600}".as_bytes(), &every], io);
        launch.cwd = cwd.as_os_str().as_bytes().to_vec();
        launch.env.push((b"ODD".to_vec(), every.clone()));
        let (exit, chunks) = server.run(launch).await;
        let expected = [&every[..], &every[..], cwd.as_os_str().as_bytes()].join(&b'|');
        assert_eq!((exit.status, bytes(&chunks)), (Status::Code(0), as_shown(&expected, io)));
    }
}

/// Lets time pass without the timer's coarseness.
async fn pause(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_start_that_was_cancelled_at_any_moment_is_one_process_or_none() {
    const ROUNDS: u64 = 10;
    const STARTS: u64 = 100;
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let descriptors = keeper.descriptors();
    let mut found_in_all = 0;
    for round in 0..ROUNDS {
        let ios: [Io; 3] = [PIPES, STDIN, TERMINAL];
        let launches: Vec<Launch> =
            (0..STARTS).map(|n| server.launch(&["sleep", "600"], ios[n as usize % 3])).collect();
        for (launch, n) in launches.iter().zip(0..) {
            let patience = Duration::from_micros((round * STARTS + n) * 7919 % 300);
            tokio::select! {
                biased;
                () = pause(patience) => {}
                spawned = server.keeper.spawn(launch.clone()) => assert!(!spawned.unwrap().existed),
            }
        }
        drop(server);
        server = keeper.connect().await;

        let mut running: Vec<u32> = server.adopted.iter().map(|adopted| adopted.pid).collect();
        running.sort_unstable();
        let mut existing = children(keeper.pid());
        existing.sort_unstable();
        assert_eq!(running, existing, "records and processes differ");
        found_in_all += running.len();

        let mut keys = Vec::new();
        for launch in &launches {
            let found = server.adopted.iter().find(|adopted| adopted.id == launch.id);
            let before = found.map(|adopted| (adopted.key, adopted.pid));
            let again = server.spawn(launch.clone()).await;
            assert_eq!(before.is_some(), again.existed);
            assert_eq!(before.unwrap_or((again.key, again.pid)), (again.key, again.pid));
            keys.push(again.key);
        }
        assert_eq!(children(keeper.pid()).len(), launches.len(), "one process for each id");
        for key in &keys {
            soon(server.keeper.signal(*key, libc::SIGKILL, false)).await.unwrap();
        }
        for key in keys {
            assert_eq!(server.exit(key).await.status, Status::Signal(libc::SIGKILL));
            soon(server.keeper.release(key)).await.unwrap();
        }
        keeper.has_closed_all_since(descriptors).await;
        assert_eq!(children(keeper.pid()), Vec::<u32>::new());
    }
    assert!(found_in_all > 0, "no start came through: nothing was tested");
}

/// More than the keeper queues, so that it stops reading for a while.
#[tokio::test]
async fn more_starts_at_once_than_are_queued_are_all_answered() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..2000 {
        let launch = server.launch(&["true"], PIPES);
        let handle = server.keeper.clone();
        starts.spawn(async move { handle.spawn(launch).await.map(|spawned| spawned.key) });
    }
    let mut keys = Vec::new();
    while let Some(started) = soon(starts.join_next()).await {
        keys.push(started.unwrap().unwrap());
    }
    for key in keys {
        server.exit(key).await;
    }
}

#[tokio::test]
async fn a_run_that_is_over_is_not_begun_again_by_a_late_repeat() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let first = server.shell("exit 1", PIPES);
    let mut second = first.clone();
    second.run = 2;
    let run_1 = server.spawn(first.clone()).await;
    let run_2 = server.spawn(second.clone()).await;
    assert_ne!(run_1.key, run_2.key);
    let Refused::Invalid(why) = server.refusal(first).await else { panic!("another refusal") };
    assert_eq!(why, "run 1 is over: run 2 has begun");
    let again = server.spawn(second).await;
    assert_eq!((again.key, again.existed), (run_2.key, true));
}
