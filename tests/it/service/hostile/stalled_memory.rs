//! A process whose memory no other process can read for a while: `serve` starts all the same.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::service::*;
use crate::support::{skip, soon};

/// One thread frees a large file in memory, with little CPU time, as it has the lowest priority and
/// other processes use the CPU. Another thread waits for that in a page fault. A third one waits to
/// change the mappings, and then every reader of the environment waits, too.
const STALLED: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <signal.h>
#include <unistd.h>

static const size_t SIZE = 256UL << 20;
static int file, word, *page;
static volatile int begun;

static void use_first_cpu(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void *free_file(void *unused) {
    struct sched_param lowest = { 0 };
    sched_setscheduler(0, SCHED_IDLE, &lowest);
    begun = 1;
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE);
    return 0;
}

static void *fault(void *unused) {
    int operation = FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0);
    syscall(SYS_futex, &word, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 1, 1, page, operation);
    puts("over");
    fflush(stdout);
    return 0;
}

int main(void) {
    pthread_t thread;
    use_first_cpu();
    file = memfd_create("file", 0);
    if (ftruncate(file, SIZE) || fallocate(file, 0, 0, SIZE)) return 1;
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, SIZE - 4096);
    for (int n = 0; n < 2; n++) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;);
        }
    }
    pthread_create(&thread, 0, free_file, 0);
    while (!begun);
    usleep(30000);
    pthread_create(&thread, 0, fault, 0);
    usleep(30000);
    puts("stalled");
    fflush(stdout);
    mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (;;) pause();
}
"#;

/// Ended when dropped, with the processes that it has started.
struct Stalled {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Stalled {
    /// None: there is no C compiler.
    fn start(directory: &Path) -> Option<Stalled> {
        let [source, program] = ["stalled.c", "stalled"].map(|name| directory.join(name));
        std::fs::write(&source, STALLED).unwrap();
        let mut compile = Command::new("cc");
        compile.args(["-pthread", "-o"]).args([&program, &source]);
        if !compile.status().is_ok_and(|status| status.success()) {
            return None;
        }
        let mut command = Command::new(program);
        let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "stalled");
        Some(Stalled { child, lines })
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        // SAFETY: a signal to the group of a child that was not waited for.
        unsafe { libc::kill(-self.child.id().cast_signed(), libc::SIGKILL) };
        self.child.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_with_stalled_memory_does_not_delay_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut stalled) = Stalled::start(directory.path()) else {
        return skip("no C compiler is here");
    };
    let service = TestService::start();
    let mut client = service.client().await;
    soon(client.get_server_info(procyard::grpc::pb::GetServerInfoRequest {})).await.unwrap();
    // SAFETY: a signal to the group of a child that was not waited for.
    unsafe { libc::kill(-stalled.child.id().cast_signed(), libc::SIGKILL) };
    assert!(stalled.lines.next().is_none(), "the memory was stalled until the service had begun");
}
