//! Cgroups that commands may write by their modes: a sandbox keeps them from it, and a frozen leaf fails
//! no start.

use std::path::PathBuf;

use procyard::grpc::pb;
use procyard::process::KillDomain;

use super::have_sandbox;
use crate::support::service::*;
use crate::support::*;

/// Tries to change every mounted cgroup hierarchy, and the leaf of this process, and says what
/// succeeded.
const CHANGE_CGROUPS: &str = r#"
leaf=$(sed -n 's/^0:://p' /proc/self/cgroup)
sed -nE 's/^([^ ]+ ){4}([^ ]+) .* - cgroup2? .*/\2/p' /proc/self/mountinfo | sort -u >"$1/points"
while read point; do
    made=$point/tried-$$
    mkdir "$made" 2>/dev/null && rmdir "$made" && echo "$point"
    (echo 0 >"$point$leaf/cgroup.freeze") 2>/dev/null && echo "$point$leaf"
    unshare --user --map-root-user --mount sh -c \
        'mount -o remount,bind,rw "$1" && mkdir "$2" && rmdir "$2"' sh "$point" "$made" 2>/dev/null && echo "again $point"
    unshare --user --map-root-user --mount sh -c \
        'umount "$1" && mkdir "$2" && rmdir "$2"' sh "$point" "$made" 2>/dev/null && echo "below $point"
done <"$1/points"
echo tried
"#;

async fn cgroups_cannot_be_written(service: &TestService) {
    let mut client = service.client().await;
    let place = service.directory.path().to_str().unwrap();
    let tries = argv(&["sh", "-c", CHANGE_CGROUPS, "sh", place]);
    if output_of(&mut client, tries.clone()).await == "tried\n" {
        return skip("no cgroup can be written here");
    }
    let own_mounts = pb::Sandbox { own_mounts: true, ..Default::default() };
    let own_pids = pb::Sandbox { own_pids: true, ..Default::default() };
    for sandbox in [own_mounts, own_pids] {
        let spec = pb::Spec { sandbox: Some(sandbox.clone()), ..tries.clone() };
        assert_eq!(output_of(&mut client, spec).await, "tried\n", "{sandbox:?}");
    }
}

const NAMESPACES: [&str; 2] = ["own_pids", "own_mounts"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxed_command_cannot_write_cgroups() {
    let service = TestService::start();
    if have_sandbox(&mut service.client().await, &NAMESPACES).await {
        cgroups_cannot_be_written(&service).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_below_a_user_namespace_cannot_write_cgroups() {
    let under = ["setpriv", "--bounding-set", "-sys_admin"];
    if !is_root() || !possible(&under) {
        return skip("giving up a capability needs root and setpriv");
    }
    let service = TestService::start_under(&under, |_| {});
    if have_sandbox(&mut service.client().await, &NAMESPACES).await {
        cgroups_cannot_be_written(&service).await;
    }
}

/// The leaf of a new process, where the keeper has leaves.
async fn leaf(server: &mut Server, gate: &Gate) -> (PathBuf, u64) {
    let launch = server.shell(&format!("cat /proc/self/cgroup; read x <{}", gate.path), PIPES);
    let spawned = server.spawn(launch).await;
    let groups = read_until(&spawned, "0::").await;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
    let fields: Vec<&str> = mount.split(' ').collect();
    let inside = own.strip_prefix(fields[3].trim_end_matches('/')).unwrap();
    (PathBuf::from(format!("{}{inside}", fields[4])), spawned.key)
}

#[tokio::test]
async fn process_starts_though_free_leaves_are_frozen() {
    let keeper = TestKeeper::start();
    let mut server = keeper.connect().await;
    if server.welcome.kill_domain == KillDomain::Walk {
        return skip("no cgroup leaf can be made here");
    }
    let mut gate = Gate::new(keeper.directory.path());
    let begun = [leaf(&mut server, &gate).await, leaf(&mut server, &gate).await];
    gate.open(begun.len());
    for (_, key) in &begun {
        server.exit(*key).await;
    }
    for (path, _) in &begun {
        std::fs::write(path.join("cgroup.freeze"), "1").unwrap();
    }
    let (status, printed) = server.output("echo started", PIPES).await;
    assert_eq!((status, printed.as_str()), (procyard::process::Status::Code(0), "started\n"));
    until("no frozen leaf is kept", || begun.iter().all(|(path, _)| !path.exists())).await;
}
