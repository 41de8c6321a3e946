//! Commands in namespaces that try to get out, as root where the tests are root.

use procyard::grpc::pb;

use super::have_sandbox;
use crate::support::service::*;
use crate::support::{have, is_root, possible, skip};

/// Tries what undoes a sandbox, and says what succeeded. `$1` is the keeper's pid, `$2` a directory
/// that may be written, `$3` whether the mounts are the sandbox's own: others are left alone.
const ESCAPE: &str = r#"
keeper=$1 place=$2 own_mounts=$3
try() { if "$@" >/dev/null 2>&1; then echo "$*"; fi; }
try chroot / true
try unshare --mount true
try mknod "$place/disk" b 8 0
try mknod "$place/memory" c 1 1
for kind in mount net pid; do
    try nsenter --target $keeper --$kind true
    try unshare --user --map-root-user nsenter --target $keeper --$kind true
done
try ls /proc/$keeper/root/
try readlink /proc/$keeper/ns/mnt
try cat /proc/$keeper/fd/0
try cat /proc/$keeper/environ
try dd if=/proc/$keeper/mem bs=1 count=1
try grep 'NoNewPrivs:.*0' /proc/self/status
if [ "$own_mounts" = true ]; then
    try unshare --user --map-root-user --mount umount /proc
    try mount -t tmpfs none "$place"
    try mount --bind / "$place"
    try umount /proc
    try umount -l /proc
fi
echo tried
"#;

async fn escape_fails(service: &TestService) {
    let mut client = service.client().await;
    let own_mounts = pb::Sandbox { own_mounts: true, ..Default::default() };
    let own_network = pb::Sandbox { own_network: true, ..Default::default() };
    let own_pids = pb::Sandbox { own_pids: true, ..own_mounts.clone() };
    let all = pb::Sandbox { own_network: true, ..own_pids.clone() };
    let place = service.directory.path().to_str().unwrap();
    let keeper = service.child.id().to_string();
    for sandbox in [own_mounts, own_network, own_pids, all] {
        let mounts = sandbox.own_mounts.to_string();
        let tries = argv(&["sh", "-c", ESCAPE, "sh", &keeper, place, &mounts]);
        let spec = pb::Spec { sandbox: Some(sandbox.clone()), ..tries };
        let succeeded = output_of(&mut client, spec).await;
        assert_eq!(succeeded, "tried\n", "{sandbox:?}");
    }
}

const NAMESPACES: [&str; 3] = ["own_pids", "own_mounts", "own_network"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_cannot_be_left_or_undone() {
    let service = TestService::start();
    if have_sandbox(&mut service.client().await, &NAMESPACES).await {
        escape_fails(&service).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_below_a_user_namespace_cannot_be_undone_by_root() {
    // Without this capability root needs a user namespace, in which it is root again.
    let under = ["setpriv", "--bounding-set", "-sys_admin"];
    if !is_root() || !possible(&under) {
        return skip("giving up a capability needs root and setpriv");
    }
    let service = TestService::start_under(&under, |_| {});
    if have_sandbox(&mut service.client().await, &NAMESPACES).await {
        escape_fails(&service).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_keeps_the_capabilities_that_undo_nothing() {
    if !is_root() {
        return skip("only root has capabilities");
    }
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_sandbox(&mut client, &["own_pids"]).await {
        return;
    }
    let file = service.directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let line = format!("chown 65534 {0} && stat -c %u {0}", file.display());
    let sandbox = Some(pb::Sandbox { own_pids: true, ..Default::default() });
    let told = output_of(&mut client, pb::Spec { sandbox, ..shell(&line) }).await;
    assert_eq!(told, "65534\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxed_root_cannot_make_files_immutable() {
    if !is_root() || !have(&["chattr"]) {
        return skip("only root makes files immutable");
    }
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_sandbox(&mut client, &["files", "own_pids"]).await {
        return;
    }
    let file = service.directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let line = format!("chattr +i {0} 2>&- && chattr -i {0} && echo changed", file.display());
    if output_of(&mut client, shell(&line)).await != "changed\n" {
        return skip("the filesystem has no immutable files");
    }
    let files = pb::sandbox::Files::ReadOnly.into();
    let sandbox = Some(pb::Sandbox { files, own_pids: true, ..Default::default() });
    assert_eq!(output_of(&mut client, pb::Spec { sandbox, ..shell(&line) }).await, "");
}
