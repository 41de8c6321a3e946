//! The wall clock is for timestamps: when it jumps, no timer of the keeper fires early or late.

use std::path::Path;
use std::process::Command;

use procyard::keeper_client::KeeperError;
use procyard::process::Refused;

use crate::support::*;

/// A wall clock that is an hour ahead while there is a file `forward`, and behind with `back`:
/// the machine's own clock is everyone's and cannot be set for a test.
const CLOCK: &str = r#"
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now), saved = errno;
    if (result == 0 && id == CLOCK_REALTIME) {
        if (access(DIRECTORY "/forward", F_OK) == 0) now->tv_sec += 3600;
        if (access(DIRECTORY "/back", F_OK) == 0) now->tv_sec -= 3600;
    }
    errno = saved;
    return result;
}
"#;

/// A keeper that reads that clock, if it can be made to.
fn keeper_with_clock(directory: &Path) -> Option<TestKeeper> {
    let [source, library] = ["clock.c", "clock.so"].map(|name| directory.join(name));
    std::fs::write(&source, CLOCK).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    compile.arg(format!("-DDIRECTORY={:?}", directory.to_str()?));
    let compiled = compile.status().is_ok_and(|status| status.success());
    let preload = |command: &mut Command| {
        command.env("LD_PRELOAD", library);
    };
    compiled.then(|| TestKeeper::start_with(preload))
}

const HOUR: u64 = 3_600_000_000_000;

#[tokio::test]
async fn a_clock_that_jumps_an_hour_fires_no_timer_early_or_late() {
    let directory = tempfile::tempdir().unwrap();
    let Some(keeper) = keeper_with_clock(directory.path()) else {
        return skip("a clock that can jump needs a C compiler");
    };
    let mut server = keeper.connect().await;
    let first = server.sh("exit 0", PIPES).await.start_time;

    // The timer: how long a program file that is being written is waited for.
    let program = directory.path().join("sh");
    std::fs::copy("/bin/sh", &program).unwrap();
    let writer = std::fs::File::options().write(true).open(&program).unwrap();
    let mut launch = server.launch(&[program.to_str().unwrap(), "-c", "exit 0"], PIPES);
    let (handle, waiting) = (server.keeper.clone(), launch.clone());
    let start = tokio::spawn(async move { handle.spawn(waiting).await });

    std::fs::write(directory.path().join("forward"), "").unwrap();
    let later = server.sh("exit 0", PIPES).await.start_time;
    if later < first + HOUR / 2 {
        return skip("this binary does not take its clock from a shared library");
    }
    assert!(!start.is_finished(), "the wait ended early when the clock went forward");
    drop(writer);
    let spawned = soon(start).await.unwrap().expect("the wait ended early");
    server.exit(spawned.key).await;

    std::fs::remove_file(directory.path().join("forward")).unwrap();
    let _writer = std::fs::File::options().write(true).open(&program).unwrap();
    launch.run = 2;
    let (handle, waiting) = (server.keeper.clone(), launch);
    let start = tokio::spawn(async move { handle.spawn(waiting).await });
    server.sh("exit 0", PIPES).await;
    std::fs::write(directory.path().join("back"), "").unwrap();
    let earlier = server.sh("exit 0", PIPES).await.start_time;
    assert!(earlier < later - HOUR, "the clock did not go back");
    let refused = soon(start).await.unwrap().expect_err("the program is still being written");
    let KeeperError::Refused(Refused::SpawnFailed { errno, .. }) = refused else {
        panic!("{refused}");
    };
    assert_eq!(errno, libc::ETXTBSY);
}
