//! Namespaces: processes, mounts and a network of one's own.

use procyard::grpc::pb;

use super::{begin_until_ready, have_parts, parts, ready_by, sandboxed};
use crate::support::service::*;
use crate::support::{NOBODY, alive, children, is_root, possible, skip, soon, until};

fn pids() -> pb::Sandbox {
    pb::Sandbox { own_pids: true, ..Default::default() }
}

fn mounts() -> pb::Sandbox {
    pb::Sandbox { own_mounts: true, ..Default::default() }
}

fn network() -> pb::Sandbox {
    pb::Sandbox { own_network: true, ..Default::default() }
}

fn all() -> pb::Sandbox {
    pb::Sandbox {
        files: pb::sandbox::Files::ReadOnly.into(),
        own_pids: true,
        own_network: true,
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_with_processes_of_its_own_is_the_first_and_sees_no_others() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_parts(&mut client, &["own_pids"]).await {
        return;
    }
    let line = "echo $$; set -- /proc/[0-9]*; echo $#; id -u; cat /proc/self/comm";
    let own = rustix::process::getuid().as_raw();
    for spec in [shell(line), on_terminal(shell(line))] {
        let answer = finish(&mut client, "", sandboxed(pids(), spec)).await;
        let told = text(&answer.chunks, answer.chunks[0].stream()).replace('\r', "");
        assert_eq!(told, format!("1\n1\n{own}\ncat\n"));
    }
    // To everyone else it is one of many.
    let process = begin(&mut client, "a", sandboxed(pids(), argv(&["sleep", "600"]))).await;
    assert!(process.pid > 1 && alive(process.pid));
    assert_eq!(service.inmates(), [process.pid]);
    soon(client.kill(kill_at_once("a"))).await.unwrap();
    if !possible(&["unshare", "--pid", "--fork", "--mount"]) || !is_root() {
        return skip("namespaces and another user, both by privilege, need root");
    }
    assert_eq!(output_of(&mut client, of_nobody()).await, format!("1\n{NOBODY}\n"));
}

/// With processes of its own, and as another user.
fn of_nobody() -> pb::Spec {
    let user = Some(pb::User { uid: NOBODY, ..Default::default() });
    pb::Spec { user, ..sandboxed(pids(), shell("echo $$; id -u")) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_user_that_a_sandbox_rules_out_is_refused_because_of_the_sandbox() {
    // Root may become another user, but without this privilege it needs a namespace of users.
    let under = ["setpriv", "--bounding-set", "-sys_admin"];
    let service = if !is_root() {
        TestService::start()
    } else if possible(&under) {
        TestService::start_under(&under, |_| {})
    } else {
        return skip("there is no setpriv, or it may not give up a privilege");
    };
    let mut client = service.client().await;
    if !have_parts(&mut client, &["own_pids"]).await {
        return;
    }
    let status = soon(client.start(start("a", of_nobody()))).await.unwrap_err();
    assert_eq!(reason(&status), "SPAWN_FAILED", "{status:?}");
    let step = details(&status).error_info().unwrap().metadata["step"].clone();
    assert_eq!(
        step,
        "cannot become another user in the sandbox, which takes a user namespace here"
    );
    if is_root() {
        let alone = pb::Spec { sandbox: None, ..of_nobody() };
        assert!(output_of(&mut client, alone).await.ends_with(&format!("\n{NOBODY}\n")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_process_that_heeds_no_signal_is_killed_with_all_below_it() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_parts(&mut client, &["own_pids"]).await {
        return;
    }
    // Neither has a handler, so TERM does nothing to the first; the other left its session.
    let line = "setsid sleep 600 & setsid sh -c 'trap \"\" TERM; echo ready; sleep 600; sleep 600' & \
                while :; do wait; done";
    let spec = sandboxed(pids(), stopped_by("TERM", 300, shell(line)));
    let process = begin_ready(&mut client, "a", spec).await;
    let killed = soon(client.kill(kill("a"))).await.unwrap().into_inner();
    assert!(killed.killed.len() >= 3, "{killed:?}");
    assert!(killed.killed.iter().all(|member| !alive(member.pid)), "{killed:?}");
    let exit = exit(&killed.processes[0]).clone();
    assert_eq!((exit.cause(), exit.signal), (pb::Cause::Killed, Some(libc::SIGKILL)));
    assert!(!alive(process.pid));
    assert_eq!(service.inmates(), [0; 0]);
    // One that has a handler ends by it.
    let line = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    begin_ready(&mut client, "b", sandboxed(pids(), shell(line))).await;
    let killed = soon(client.kill(kill("b"))).await.unwrap().into_inner();
    assert_eq!(killed.processes[0].exit.as_ref().unwrap().code, Some(3));
    // When the first ends so do the others.
    let line = "setsid sleep 600 & echo $!; exit 0";
    let answer = finish(&mut client, "c", sandboxed(pids(), shell(line))).await;
    assert_eq!(answer.process.unwrap().lingering, []);
    assert_eq!(service.inmates(), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_with_mounts_of_its_own_mounts_nobody_else_sees() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_parts(&mut client, &["own_mounts"]).await {
        return;
    }
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    let told =
        output_of(&mut client, sandboxed(mounts(), shell("readlink /proc/self/ns/mnt"))).await;
    assert_ne!(told.trim(), own.to_str().unwrap());
    if !possible(&["unshare", "--user", "--map-root-user", "--mount"]) {
        return skip("no namespaces in which it could mount something");
    }
    let place = service.directory.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let place = place.to_str().unwrap();
    // In its sandbox it mounts nothing; in namespaces that it makes itself it does.
    let line = format!(
        "mount -t tmpfs none {place} 2>/dev/null && echo mounted; \
         exec unshare --user --map-root-user --mount sh -c \
         'mount -t tmpfs none {place} && touch {place}/made && echo ready; exec sleep 600'"
    );
    begin_ready(&mut client, "a", sandboxed(mounts(), shell(&line))).await;
    assert_eq!(printed(&mut client, "a").await, "ready\n");
    assert!(!std::path::Path::new(place).join("made").exists());
    let outside = output_of(&mut client, shell(&format!("ls {place}"))).await;
    assert_eq!(outside, "");
    soon(client.kill(kill_at_once("a"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_with_a_network_of_its_own_has_loopback_and_nothing_else() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_parts(&mut client, &["own_network"]).await {
        return;
    }
    let line = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '";
    assert_eq!(output_of(&mut client, sandboxed(network(), shell(line))).await, "lo\n");
    if !crate::support::have(&["python3"]) {
        return;
    }
    let serve = "import socket\n\
                 s = socket.create_server(('127.0.0.1', 7391))\n\
                 print('ready', flush=True)\n\
                 while True: s.accept()[0].send(b'x')";
    let ask = "import socket; socket.create_connection(('127.0.0.1', 7391)).recv(1) or exit(1)";
    let spec = sandboxed(network(), argv(&["python3", "-c", serve]));
    let spec = ready_by(&["python3", "-c", ask], spec);
    assert!(begin_until_ready(&mut client, "a", spec.clone()).await, "the command reaches it");
    // On the same port, in a network of its own; and found by its port.
    let readiness = pb::Readiness {
        probe: Some(pb::readiness::Probe::TcpPort(7391)),
        timeout: Some(millis(60_000)),
        ..Default::default()
    };
    let other = pb::Spec { readiness: Some(readiness), ..spec };
    assert!(begin_until_ready(&mut client, "b", other).await);
    let outside = finish(&mut client, "", argv(&["python3", "-c", ask])).await;
    assert_ne!(outside.process.unwrap().exit.unwrap().code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_parts_of_a_sandbox_can_be_had_at_once_and_again() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_parts(&mut client, &["files", "own_pids", "own_mounts", "own_network"]).await {
        return;
    }
    let made = service.directory.path().join("made");
    let line = format!(
        "echo $$; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; \
         grep NoNewPrivs /proc/self/status; touch {} 2>/dev/null || echo no; echo ready; \
         exec sleep 600",
        made.display()
    );
    let spec = stopped_by("TERM", 0, sandboxed(all(), shell(&line)));
    begin_ready(&mut client, "a", spec).await;
    assert_eq!(printed(&mut client, "a").await, "1\nlo\nNoNewPrivs:\t1\nno\nready\n");
    service.kill_server();
    let mut client = service.client().await;
    soon(client.kill(kill("a"))).await.unwrap();
    soon(client.run(run_by_force("a"))).await.unwrap();
    let ready = pb::WaitRequest { wait: Some(until_output("ready")), ..wait_for_it("a") };
    assert!(soon(client.wait(ready)).await.unwrap().into_inner().wait.unwrap().met);
    assert_eq!(printed(&mut client, "a").await, "1\nlo\nNoNewPrivs:\t1\nno\nready\n");
    soon(client.kill(kill("a"))).await.unwrap();
    assert_eq!(service.inmates(), [0; 0]);
}

/// A service in a namespace of users, where it is root and these commands of a shell were run before.
fn start_among_other_users(before: &str) -> Option<TestService> {
    let line = format!("{before}; exec \"$@\"");
    let under = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &line, "sh"];
    if !possible(&under) {
        skip("no namespace of users in which others can be forbidden");
        return None;
    }
    Some(TestService::start_under(&under, |_| {}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_that_have_run_out_are_told_by_the_kernels_word() {
    let Some(service) = start_among_other_users("true") else { return };
    let mut client = service.client().await;
    if !have_parts(&mut client, &["own_network"]).await {
        return;
    }
    let line = "echo 0 >/proc/sys/user/max_net_namespaces";
    assert_eq!(
        finish(&mut client, "", shell(line)).await.process.unwrap().exit.unwrap().code,
        Some(0)
    );
    let status =
        soon(client.start(start("a", sandboxed(network(), shell("true"))))).await.unwrap_err();
    assert_eq!(reason(&status), "SPAWN_FAILED");
    let metadata = details(&status).error_info().unwrap().metadata.clone();
    assert_eq!(
        (&metadata["step"][..], &metadata["errno_name"][..]),
        ("cannot put up the sandbox", "ENOSPC")
    );
    assert_eq!(output_of(&mut client, shell("echo x")).await, "x\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_in_a_sandbox_outlives_the_keeper() {
    let service = TestService::start();
    let mut client = service.client().await;
    if !have_parts(&mut client, &["own_pids"]).await {
        return;
    }
    let line = "setsid sleep 600 & setsid setsid sleep 600 & echo ready; wait";
    let process = begin_ready(&mut client, "a", sandboxed(pids(), shell(line))).await;
    let below = children(process.pid);
    assert!(!below.is_empty());
    let server = service.server_pid().cast_unsigned();
    service.signal(libc::SIGKILL);
    until("all have followed it", || !below.iter().chain([&process.pid]).any(|pid| alive(*pid)))
        .await;
    until("its server has ended", || !alive(server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_kernel_does_not_give_is_refused_by_name_and_nothing_stays() {
    let forbid = "for kind in user pid mnt net; do \
                  echo 0 >/proc/sys/user/max_${kind}_namespaces || exit 1; done";
    let Some(service) = start_among_other_users(forbid) else { return };
    let mut client = service.client().await;
    let had = parts(&mut client).await;
    assert!(!had.iter().any(|part| part.starts_with("own_")), "{had:?}");
    for queue in ["", "q"] {
        let spec = in_queue(queue, sandboxed(pb::Sandbox { files: 0, ..all() }, shell("true")));
        let status = soon(client.start(start("a", spec))).await.unwrap_err();
        let told = (status.code(), reason(&status));
        assert_eq!(told, (tonic::Code::FailedPrecondition, "SANDBOX_UNSUPPORTED".into()));
        let named = details(&status).error_info().unwrap().metadata["sandbox"].clone();
        assert_eq!(named, "own_pids,own_mounts,own_network");
    }
    assert_eq!(list(&mut client).await, []);
    assert_eq!(output_of(&mut client, shell("echo x")).await, "x\n");
}
