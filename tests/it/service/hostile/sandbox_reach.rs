//! Commands in a sandbox that reach for the procyard that runs them.

use procyard::grpc::pb;

use super::have_sandbox;
use crate::support::service::*;
use crate::support::{NOBODY, binary, is_root, skip};

/// The version of Landlock that the kernel has, 0 or less if it has none.
fn landlock_version() -> i64 {
    // SAFETY: asks for a number; no pointer is passed but null.
    unsafe { libc::syscall(444, 0_usize, 0_usize, 1_usize) }
}

fn sandboxes() -> [pb::Sandbox; 2] {
    let read_only = pb::sandbox::Files::ReadOnly.into();
    [
        pb::Sandbox { files: read_only, ..Default::default() },
        pb::Sandbox { own_network: true, ..Default::default() },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxed_command_cannot_signal_procyard() {
    if landlock_version() < 6 {
        return skip("the kernel's Landlock knows no signals");
    }
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_sandbox(&mut client, &["files", "own_network"]).await {
        return;
    }
    let (keeper, server) = (service.child.id(), service.server_pid());
    let line = format!(
        "for pid in {keeper} {server}; do kill -0 $pid 2>/dev/null && echo reached; done; \
         sleep 600 & kill $! && echo own"
    );
    assert_eq!(output_of(&mut client, shell(&line)).await, "reached\nreached\nown\n");
    for sandbox in sandboxes() {
        let spec = pb::Spec { sandbox: Some(sandbox.clone()), ..shell(&line) };
        assert_eq!(output_of(&mut client, spec).await, "own\n", "{sandbox:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxed_command_cannot_call_procyard() {
    if landlock_version() < 6 {
        return skip("the kernel's Landlock knows no abstract sockets");
    }
    let name = format!("procyard-{}", uuid::Uuid::now_v7());
    let service = TestService::start_with(|command| {
        command.args(["--listen", &format!("unix-abstract:{name}"), "--grant-children=none"]);
    });
    let mut client = service.client().await;
    if !have_sandbox(&mut client, &["files"]).await {
        return;
    }
    let sandbox = Some(sandboxes()[0].clone());
    let calling = |server: &str| shell(&format!("{} info --server {server} 2>&1", binary()));
    let on_file = format!("unix://{}", service.socket().display());
    let refused = output_of(&mut client, pb::Spec { sandbox, ..calling(&on_file) }).await;
    assert!(refused.contains("processes that procyard runs may not call it"), "{refused}");
    // Outside of a sandbox the abstract socket is reached, though nothing is granted there.
    let address = format!("unix-abstract:{name}");
    let reached = output_of(&mut client, calling(&address)).await;
    assert!(reached.contains("processes that procyard runs may not call it"), "{reached}");
    let sandbox = Some(sandboxes()[0].clone());
    let denied = output_of(&mut client, pb::Spec { sandbox, ..calling(&address) }).await;
    assert!(denied.contains("Operation not permitted"), "{denied}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_user_cannot_read_the_token() {
    if !is_root() {
        return skip("only root can start processes of other users");
    }
    let service = TestService::start_with(|command| {
        command.args(["--listen", "tcp://127.0.0.1:0"]);
    });
    let mut client = service.client().await;
    let token = service.directory.path().join("state/token");
    assert!(token.exists());
    let user = Some(pb::User { uid: NOBODY, ..Default::default() });
    let line = format!("cat {} 2>/dev/null || echo denied", token.display());
    let told = output_of(&mut client, pb::Spec { user, ..shell(&line) }).await;
    assert_eq!(told, "denied\n");
}
