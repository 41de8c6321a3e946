//! Commands in namespaces that try to get out, as root where the tests are root.

use procyard::grpc::pb;

use super::have_sandbox;
use crate::support::service::*;
use crate::support::{have, is_root, possible, skip};

/// Tries what undoes a sandbox, and says what succeeded. `$1` is the keeper's pid, `$2` a directory
/// that may be written, `$3` whether the mounts are the sandbox's own: others are left alone. `$4` is
/// an address in the keeper's memory.
const ESCAPE: &str = r#"
keeper=$1 place=$2 own_mounts=$3 address=$4
for program in cat chroot dd grep ls mknod mount nsenter readlink umount unshare; do
    command -v $program >/dev/null || { echo "no $program"; exit; }
done
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
try dd if=/proc/$keeper/mem bs=1 count=1 skip=$address
try grep 'NoNewPrivs:.*0' /proc/self/status
if [ "$own_mounts" = true ]; then
    try unshare --user --map-root-user --mount umount /proc
    try mount -t tmpfs none "$place"
    try mount --bind / "$place"
    try umount -l /proc
fi
echo tried
"#;

/// What of it succeeds for root without a sandbox. The rest fails also there: root of a user namespace
/// has no power outside of it.
const ESCAPED: &str = "\
chroot / true
unshare --mount true
mknod PLACE/disk b 8 0
mknod PLACE/memory c 1 1
nsenter --target KEEPER --mount true
nsenter --target KEEPER --net true
nsenter --target KEEPER --pid true
ls /proc/KEEPER/root/
readlink /proc/KEEPER/ns/mnt
cat /proc/KEEPER/fd/0
cat /proc/KEEPER/environ
dd if=/proc/KEEPER/mem bs=1 count=1 skip=ADDRESS
grep NoNewPrivs:.*0 /proc/self/status
mount -t tmpfs none PLACE
mount --bind / PLACE
umount -l /proc
tried
";

/// The script with its arguments, in order: the keeper's pid, a directory, and an address in its memory.
struct Escape([String; 3]);

impl Escape {
    fn from(service: &TestService) -> Escape {
        let keeper = service.child.id();
        let maps = std::fs::read_to_string(format!("/proc/{keeper}/maps")).unwrap();
        let address = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
        let place = service.directory.path().to_str().unwrap().to_owned();
        Escape([keeper.to_string(), place, address.to_string()])
    }

    /// Under a prefix of other commands.
    fn spec(&self, under: &[&str], own_mounts: bool) -> pb::Spec {
        let Escape([keeper, place, address]) = self;
        let args = ["sh", "-c", ESCAPE, "sh", keeper, place, &own_mounts.to_string(), address];
        argv(&[under, &args].concat())
    }

    /// What succeeds without a sandbox.
    fn all(&self) -> String {
        let Escape([keeper, place, address]) = self;
        let all = ESCAPED.replace("KEEPER", keeper).replace("PLACE", place);
        all.replace("ADDRESS", address)
    }
}

/// Whether the programs of the script were found; says so if not.
fn has_tried(output: &str) -> bool {
    let missing = output.strip_prefix("no ");
    missing.inspect(|program| skip(&format!("no {} here", program.trim_end()))).is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_without_a_sandbox_can_do_what_undoes_one() {
    let id_map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_outer_root = is_root() && id_map.split_whitespace().eq(["0", "0", "4294967295"]);
    let own_mounts = ["unshare", "--mount"];
    if !is_outer_root || !possible(&own_mounts) {
        return skip("only root with all capabilities can undo a sandbox");
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let escape = Escape::from(&service);
    let succeeded = output_of(&mut client, escape.spec(&own_mounts, true)).await;
    if has_tried(&succeeded) {
        assert_eq!(succeeded, escape.all());
    }
}

async fn escape_fails(service: &TestService) {
    let mut client = service.client().await;
    let own_mounts = pb::Sandbox { own_mounts: true, ..Default::default() };
    let own_network = pb::Sandbox { own_network: true, ..Default::default() };
    let own_pids = pb::Sandbox { own_pids: true, ..own_mounts.clone() };
    let all = pb::Sandbox { own_network: true, ..own_pids.clone() };
    let escape = Escape::from(service);
    for sandbox in [own_mounts, own_network, own_pids, all] {
        let tries = escape.spec(&[], sandbox.own_mounts);
        let spec = pb::Spec { sandbox: Some(sandbox.clone()), ..tries };
        let succeeded = output_of(&mut client, spec).await;
        if !has_tried(&succeeded) {
            return;
        }
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
