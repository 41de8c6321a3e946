//! What a child finds when it begins: its descriptors, signals, limits, session, terminal,
//! directory, environment and user, whatever state the keeper was started in.

use std::os::unix::process::CommandExt;
use std::process::Command;

use procyard::process::{Io, Launch, Size, Status, User};
use rustix::process::{Resource, Rlimit};
use tokio::task::JoinSet;

use crate::support::*;

/// Leaves the keeper with what a careless parent leaves: ignored and blocked signals, open
/// descriptors, a mask, a low limit.
fn careless(command: &mut Command) {
    let make = || {
        // SAFETY: plain system calls on this process's own state, between fork and exec.
        unsafe {
            for signal in [libc::SIGCHLD, libc::SIGPIPE, libc::SIGHUP, libc::SIGUSR1, 40] {
                libc::signal(signal, libc::SIG_IGN);
            }
            // libc's own two, which it would refuse; its posix_spawn leaves them ignored.
            let ignore = [libc::SIG_IGN, 0, 0, 0];
            for signal in [32, 33] {
                let none = std::ptr::null_mut::<libc::c_void>();
                libc::syscall(libc::SYS_rt_sigaction, signal, ignore.as_ptr(), none, 8);
            }
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
            for descriptor in [3, 5, 50] {
                libc::dup2(0, descriptor);
            }
            libc::umask(0o027);
        }
        let limit = Rlimit { current: Some(100), maximum: Some(4096) };
        Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
    };
    // SAFETY: as above: nothing in it allocates or locks.
    unsafe { command.pre_exec(make) };
}

/// Programs that tell what they found, and what they should have found.
const TELLTALES: [&[&str]; 3] = [
    // The third descriptor is the directory that is being listed.
    &["ls", "-1", "/proc/self/fd"],
    &["cat", "/proc/self/status", "/proc/self/limits"],
    &["cat", "/proc/self/oom_score_adj"],
];

fn check(telltale: usize, told: &str) {
    let lines: Vec<&str> = told.lines().collect();
    match telltale {
        0 => assert_eq!(lines, ["0", "1", "2", "3"], "descriptors"),
        1 => {
            for name in ["SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"] {
                let found = lines.iter().find_map(|line| line.strip_prefix(name)).unwrap();
                assert_eq!(found.trim_start_matches(':').trim(), "0000000000000000", "{name}");
            }
            let limits = lines.iter().find(|line| line.starts_with("Max open files")).unwrap();
            let limits: Vec<&str> = limits.split_whitespace().skip(3).take(2).collect();
            assert_eq!(limits, ["100", "4096"], "limits of descriptors");
            assert!(lines.contains(&"Umask:\t0027"), "umask");
        }
        _ => assert_eq!(lines, ["0"], "OOM score"),
    }
}

#[tokio::test]
async fn many_mixed_starts_at_once_each_find_a_clean_state() {
    let keeper = TestKeeper::start_with(careless);
    let mut server = keeper.connect().await;
    let merged = Io::Pipes { stdin: false, merge_stderr: true };
    let mut starts = JoinSet::new();
    for n in 0..if full_volume() { 500 } else { 204 } {
        let telltale = n % TELLTALES.len();
        let io = [PIPES, STDIN, TERMINAL, merged][n % 4];
        let launch = server.launch(TELLTALES[telltale], io);
        let handle = server.keeper.clone();
        starts.spawn(async move { (telltale, handle.spawn(launch).await.unwrap()) });
    }
    while let Some(started) = soon(starts.join_next()).await {
        let (telltale, spawned) = started.unwrap();
        assert_eq!(server.exit(spawned.key).await.status, Status::Code(0));
        check(telltale, &text(&read_all(&spawned).await));
    }
}

/// Runs a program and returns what it printed.
async fn told(server: &mut Server, args: &[&str], io: Io) -> String {
    let launch = server.launch(args, io);
    told_by(server, launch).await
}

async fn told_by(server: &mut Server, launch: Launch) -> String {
    let (exit, chunks) = server.run(launch).await;
    assert_eq!(exit.status, Status::Code(0), "{}", text(&chunks));
    text(&chunks).replace('\r', "")
}

#[tokio::test]
async fn oom_score_is_0_unless_asked_for_and_the_keepers_is_lowered() {
    for score in ["500", "-500"] {
        let set = format!("echo {score} >/proc/self/oom_score_adj");
        let line = format!("{set} && exec \"$@\"");
        let prefix = ["sh", "-c", &line, "sh"];
        if !possible(&prefix) {
            skip(&format!("an OOM score of {score} is not permitted"));
            continue;
        }
        let keeper = TestKeeper::start_under(&prefix);
        let mut server = keeper.connect().await;
        for io in [PIPES, TERMINAL] {
            assert_eq!(told(&mut server, TELLTALES[2], io).await, "0\n");
            let mut launch = server.launch(TELLTALES[2], io);
            launch.oom_score_adj = Some(700);
            assert_eq!(told_by(&mut server, launch).await, "700\n");
        }
        let own = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", keeper.pid()));
        let lower = format!("{set} && echo -900 >/proc/self/oom_score_adj && exec \"$@\"");
        let lowered = possible(&["sh", "-c", &lower, "sh"]);
        assert_eq!(own.unwrap().trim(), if lowered { "-900" } else { score });
    }
}

#[tokio::test]
async fn each_process_leads_a_session_and_has_a_terminal_only_on_a_terminal() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for io in [PIPES, TERMINAL] {
        let launch = server.launch(&["cat", "/proc/self/stat"], io);
        let spawned = server.spawn(launch).await;
        server.exit(spawned.key).await;
        let stat = text(&read_all(&spawned).await);
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        let fields: Vec<i32> = fields.skip(1).take(5).map(|field| field.parse().unwrap()).collect();
        let [parent, group, session, terminal, foreground] = fields[..] else { panic!("{stat}") };
        let pid = spawned.pid.cast_signed();
        assert_eq!((parent, group, session), (keeper.pid().cast_signed(), pid, pid));
        let on_terminal = io == TERMINAL;
        assert_eq!((terminal != 0, foreground == pid), (on_terminal, on_terminal));
    }
    let opens = "if (: </dev/tty) 2>/dev/null; then echo yes; else echo no; fi";
    assert_eq!(server.output(opens, TERMINAL).await.1, "yes\r\n");
    assert_eq!(server.output(opens, PIPES).await.1, "no\n");
}

#[tokio::test]
async fn a_terminal_has_its_size_and_name_from_the_beginning() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let io = Io::Terminal(Size { rows: 50, cols: 132 });
    assert_eq!(told(&mut server, &["stty", "size"], io).await, "50 132\n");
    let line = "tty; tty <&1; tty <&2; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo $TERM";
    let (_, names) = server.output(line, io).await;
    let names: Vec<&str> = names.lines().collect();
    let [first, second, third, term] = names[..] else { panic!("{names:?}") };
    assert!(first.starts_with("/dev/") && first == second && second == third, "{names:?}");
    assert_eq!(term, "xterm-256color");
}

#[tokio::test]
async fn the_environment_is_what_was_asked_for_and_the_cookie() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    for io in [PIPES, TERMINAL] {
        let env: [(&[u8], &[u8]); 5] = [
            (b"PATH", b"/usr/bin:/bin"),
            (b"EMPTY", b""),
            (b"equals", b"a=b=c"),
            (b"odd name \xfe", b"\xff\x01 \n\xc3"),
            (b"LAST", "\u{1F600}".as_bytes()),
        ];
        let mut launch = server.launch(&["env", "-0"], io);
        launch.env = env.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        let cookie = (&b"PROCYARD_ID"[..], launch.id.clone());
        let (_, chunks) = server.run(launch).await;
        // The keeper searches the beginning of an environment for the cookie.
        let expected: Vec<u8> = [&(cookie.0, cookie.1.as_bytes())]
            .into_iter()
            .chain(&env)
            .flat_map(|(name, value)| [name, &b"="[..], value, b"\0"].concat())
            .collect();
        assert_eq!(bytes(&chunks), as_shown(&expected, io));

        let mut launch = server.launch(&["/usr/bin/env", "-0"], io);
        launch.env = vec![(cookie.0.to_vec(), b"another's".to_vec())];
        let expected = format!("PROCYARD_ID={}\0", launch.id);
        assert_eq!(text(&server.run(launch).await.1), expected, "the cookie is the keeper's");
    }
}

#[tokio::test]
async fn directory_limits_and_nice_value_are_as_asked() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let directory = keeper.directory.path().canonicalize().unwrap();
    let own_nice = rustix::process::getpriority_process(None).unwrap();
    for io in [PIPES, TERMINAL] {
        let line = "pwd -P; ulimit -n; ulimit -Hn; ulimit -f; nice";
        let mut launch = server.shell(line, io);
        launch.cwd = directory.to_str().unwrap().into();
        launch.rlimits = vec![(libc::RLIMIT_NOFILE, 77), (libc::RLIMIT_FSIZE, 1 << 20)];
        launch.nice = Some(own_nice.max(0) + 3);
        let expected = format!("{}\n77\n77\n2048\n{}\n", directory.display(), own_nice.max(0) + 3);
        assert_eq!(told_by(&mut server, launch).await, expected);
        assert_eq!(told(&mut server, &["nice"], io).await, format!("{own_nice}\n"));
    }
}

#[tokio::test]
async fn another_user_is_taken_with_exactly_its_groups_or_the_start_is_refused() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    let before = keeper.descriptors();
    for io in [PIPES, TERMINAL] {
        let mut launch = server.launch(&["cat", "/proc/self/status"], io);
        launch.user = Some(User { uid: 4001, gid: 4002, groups: vec![4003, 4004] });
        if !is_root() {
            let refused = server.refusal(launch).await.to_string();
            assert!(refused.starts_with("cannot become the user"), "{refused}");
            continue;
        }
        let status = told_by(&mut server, launch).await;
        let ids = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<u32>>()
        };
        assert_eq!(ids("Uid:"), [4001; 4]);
        assert_eq!(ids("Gid:"), [4002; 4]);
        assert_eq!(ids("Groups:"), [4003, 4004]);
        assert!(status.contains("CapEff:\t0000000000000000"), "capabilities were kept");
    }
    if !is_root() {
        keeper.has_closed_all_since(before).await;
        assert_eq!(children(keeper.pid()), Vec::<u32>::new());
        skip("only root can become another user");
    }
}
