//! Sandboxed commands that set resource limits and priorities of the procyard that runs them.

use procyard::grpc::pb;

use super::have_sandbox;
use crate::support::service::*;

/// Tries every program that sets limits or priorities of the processes `$@`, and prints which one
/// succeeded. Each sets what is set already, so that a success changes nothing.
const FOREIGN: &str = r#"
try() { what=$1; shift; if "$@" >/dev/null 2>&1; then echo "$what"; fi; }
for pid in "$@"; do
    nice=$(cut -d ' ' -f 19 /proc/$pid/stat)
    processors=$(sed -n 's/^Cpus_allowed_list:\t*//p' /proc/$pid/status)
    files=$(prlimit --pid $pid --nofile --output SOFT,HARD --noheadings --raw | tr ' ' :)
    try read prlimit --pid $pid --nofile
    try limit prlimit --pid $pid --nofile=$files
    try nice renice -n $nice -p $pid
    try affinity taskset -p -c $processors $pid
    try scheduler chrt --other -p 0 $pid
    try io ionice -c 2 -n 4 -p $pid
done
"#;

/// Sets limits and priorities of the command itself, and prints which one succeeded.
const OWN: &str = r#"
try() { what=$1; shift; if "$@" >/dev/null; then echo "$what"; fi; }
processors=$(sed -n 's/^Cpus_allowed_list:\t*//p' /proc/self/status)
try ulimit ulimit -S -n 32
try limit prlimit --nofile=16:32 true
try nice nice -n 1 true
try group renice -n 19 -g 0
try affinity taskset -c $processors true
try scheduler chrt --batch 0 true
try io ionice -c 2 -n 7 true
"#;

const ALL: &str = "read\nlimit\nnice\naffinity\nscheduler\nio\n";

fn sandboxes() -> [pb::Sandbox; 3] {
    let read_only = pb::sandbox::Files::ReadOnly.into();
    [
        pb::Sandbox { files: read_only, ..Default::default() },
        pb::Sandbox { own_network: true, ..Default::default() },
        pb::Sandbox { own_mounts: true, ..Default::default() },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxed_command_cannot_limit_or_renice_procyard() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_sandbox(&mut client, &["files", "own_network", "own_mounts"]).await {
        return;
    }
    let [keeper, server] = [service.child.id().to_string(), service.server_pid().to_string()];
    let tries = argv(&["sh", "-c", FOREIGN, "sh", &keeper, &server]);
    // Without a sandbox each of them succeeds: the programs exist and the user is the same.
    assert_eq!(output_of(&mut client, tries.clone()).await, ALL.repeat(2));
    for sandbox in sandboxes() {
        let spec = pb::Spec { sandbox: Some(sandbox.clone()), ..tries.clone() };
        assert_eq!(output_of(&mut client, spec).await, "read\nread\n", "{sandbox:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxed_command_can_limit_and_renice_itself() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_sandbox(&mut client, &["files", "own_network", "own_mounts"]).await {
        return;
    }
    for sandbox in sandboxes() {
        let spec = pb::Spec { sandbox: Some(sandbox.clone()), ..shell(OWN) };
        let succeeded = output_of(&mut client, spec).await;
        let expected = "ulimit\nlimit\nnice\ngroup\naffinity\nscheduler\nio\n";
        assert_eq!(succeeded, expected, "{sandbox:?}");
    }
}
