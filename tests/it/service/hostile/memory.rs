//! A memory cgroup that runs full: a process or a Start pays for it, never the keeper.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use procyard::grpc::pb;
use tonic::Code;

use crate::support::service::*;
use crate::support::{possible, skip, soon, until};

/// The memory of keeper, server and processes together.
const LIMIT: u64 = 200 << 20;

/// A cgroup v1 with a memory limit, below that of the tests, removed when dropped.
struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    /// None: such a cgroup cannot be made here, which is printed.
    fn new() -> Option<MemoryCgroup> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = groups.lines().find_map(|line| line.split_once(":memory:"));
        let own = own.map(|(_, path)| format!("/sys/fs/cgroup/memory{path}"));
        let made = own.and_then(|own| {
            let name = format!("test-{}-{:?}", std::process::id(), std::thread::current().id());
            let cgroup = MemoryCgroup(Path::new(&own).join(name));
            fs::create_dir(&cgroup.0).ok()?;
            fs::write(cgroup.0.join("memory.limit_in_bytes"), LIMIT.to_string()).ok()?;
            Some(cgroup)
        });
        if made.is_none() {
            skip("no memory cgroup (v1) can be made here");
        }
        made
    }

    fn start_service(&self) -> TestService {
        let members =
            std::ffi::CString::new(self.0.join("cgroup.procs").to_str().unwrap()).unwrap();
        let join = move || {
            // SAFETY: system calls on memory that was allocated before the fork.
            let joined = unsafe {
                let file = libc::open(members.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                libc::write(file, c"0".as_ptr().cast(), 1)
            };
            if joined == 1 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        TestService::start_with(|command| {
            // SAFETY: only system calls.
            unsafe { command.pre_exec(join) };
        })
    }

    /// How many processes in it the kernel has killed because the memory was used up.
    fn oom_kills(&self) -> u64 {
        let counts = fs::read_to_string(self.0.join("memory.oom_control")).unwrap();
        let count = counts.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.map_or(0, |count| count.trim().parse().unwrap())
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let begin = Instant::now();
        while self.0.exists() && begin.elapsed() < Duration::from_secs(10) {
            // A keeper that was killed leaves its own cgroup in it, and its server lives on a while.
            let below = fs::read_dir(&self.0).into_iter().flatten().flatten();
            for entry in below.filter(|entry| entry.path().is_dir()) {
                let _ = fs::remove_dir(entry.path());
            }
            let _ = fs::remove_dir(&self.0);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Frees processes and their transcripts, so that the end of the service does not write those to files.
async fn delete(client: &mut Client, ids: impl Iterator<Item = String>) {
    for id in ids {
        let request = pb::DeleteRequest { id, force: true, allow_missing: true };
        soon(client.delete(request)).await.unwrap();
    }
}

fn with_transcript(bytes: u64, spec: pb::Spec) -> pb::Spec {
    pb::Spec { transcript_bytes: bytes, ..spec }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeper_and_server_lower_their_oom_score() {
    let lower = "echo -900 >/proc/self/oom_score_adj && exec \"$@\"";
    if !possible(&["sh", "-c", lower, "sh"]) {
        return skip("lowering the OOM score needs CAP_SYS_RESOURCE");
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let process = begin(&mut client, "a", shell("sleep 600")).await;
    let scores = [service.child.id(), service.server_pid().cast_unsigned(), process.pid]
        .map(|pid| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap());
    assert_eq!(scores.each_ref().map(|score| score.trim()), ["-900", "-500", "0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_beyond_the_ring_memory_are_refused() {
    let Some(cgroup) = MemoryCgroup::new() else { return };
    let mut service = cgroup.start_service();
    let mut client = service.client().await;
    let flood =
        with_transcript(64 << 20, shell("head -c 60000000 /dev/zero; echo; exec sleep 600"));
    let mut refused = 0;
    for n in 0..7 {
        match soon(client.start(start(&format!("flood-{n}"), flood.clone()))).await {
            Ok(_) => {
                let wait = pb::WaitRequest {
                    id: format!("flood-{n}"),
                    wait: Some(until_output("\n")),
                    ..Default::default()
                };
                soon(client.wait(wait)).await.unwrap();
            }
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                let info = details(&status).error_info().unwrap().clone();
                assert_eq!(
                    (&info.metadata["limit"][..], &info.metadata["of"][..]),
                    ("transcript_bytes", "all")
                );
                assert_eq!(info.metadata["most"], (LIMIT / 2).to_string());
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 6, "half of the cgroup's memory has room for one ring of 64 MiB");
    assert_eq!(cgroup.oom_kills(), 0);
    assert!(service.child.try_wait().unwrap().is_none(), "the keeper was killed");
    delete(&mut client, (0..7).map(|n| format!("flood-{n}"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_that_allocates_is_killed_and_not_the_keeper() {
    let Some(cgroup) = MemoryCgroup::new() else { return };
    let mut service = cgroup.start_service();
    let mut client = service.client().await;
    // All ring memory that there is, written over and over.
    let mut rings = 0;
    while soon(client.start(start(&format!("flood-{rings}"), shell("exec yes")))).await.is_ok() {
        rings += 1;
        assert!(rings < 20, "ring memory has no bound");
    }
    // Each of them is smaller than all rings together.
    let hold = shell("x=$(head -c 40000000 /dev/zero | tr '\\0' x); echo held; exec sleep 600");
    for n in 0..5 {
        let spec = with_transcript(64 << 10, hold.clone());
        soon(client.start(start(&format!("hold-{n}"), spec))).await.unwrap();
    }
    until("memory runs out", || cgroup.oom_kills() > 0).await;
    let mut killed = 0;
    while killed == 0 {
        for n in 0..5 {
            let process = get(&mut client, &format!("hold-{n}")).await;
            let signal = process.exit.and_then(|exit| exit.signal);
            killed += usize::from(signal == Some(libc::SIGKILL));
        }
    }
    assert!(service.child.try_wait().unwrap().is_none(), "the keeper was killed");
    for n in 0..rings {
        let process = get(&mut client, &format!("flood-{n}")).await;
        assert_eq!(process.state(), pb::State::Running, "rings are no memory of a process");
    }
    delete(&mut client, (0..rings).map(|n| format!("flood-{n}"))).await;
}
