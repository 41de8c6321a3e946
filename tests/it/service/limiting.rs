//! Limits: enforced by the kernel, or refused; never ignored.

mod trees;

use std::process::Command;

use procyard::grpc::pb::{self, Cause};
use rustix::process::Resource;
use tonic::Code;

use crate::support::service::*;
use crate::support::{NOBODY, hide_mounts, is_root, limit, possible, skip, soon};

fn limited(limits: pb::Limits, spec: pb::Spec) -> pb::Spec {
    pb::Spec { limits: Some(limits), ..spec }
}

fn no_limits() -> pb::Limits {
    pb::Limits::default()
}

/// Fields of limits that can be enforced here.
async fn enforceable(client: &mut Client) -> Vec<String> {
    let info = soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    info.into_inner().capabilities.unwrap().limits
}

/// Whether nice values below 0 can be had here. Root in a container may not be able to.
fn may_hurry() -> bool {
    possible(&["sh", "-c", "[ \"$(nice -n -40 nice 2>/dev/null)\" = -20 ] && exec \"$@\"", "sh"])
}

/// The step that a start failed in, and the kernel's word.
fn failed_step(status: &tonic::Status) -> (String, String) {
    assert_eq!((status.code(), &reason(status)[..]), (Code::FailedPrecondition, "SPAWN_FAILED"));
    let metadata = details(status).error_info().unwrap().metadata.clone();
    (metadata["step"].clone(), metadata["errno_name"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_in_force_in_the_process_and_come_back_in_its_record() {
    // A number that no other test changes meanwhile, as one does that of this process.
    let some_files = |command: &mut Command| limit(command, Resource::Nofile, 1000);
    let service = TestService::start_with(some_files);
    let mut client = service.client().await;
    let own_nice = rustix::process::getpriority_process(None).unwrap();
    let asked = pb::Limits {
        open_files: 77,
        file_bytes: 1 << 20,
        cpu_time: Some(millis(2500)),
        nice: Some(own_nice.max(0) + 3),
        ..no_limits()
    };
    let line = "ulimit -n; ulimit -Hn; ulimit -f; ulimit -t; ulimit -Ht; nice";
    let answer = finish(&mut client, "a", limited(asked, shell(line))).await;
    let told = text(&answer.chunks, pb::Stream::Stdout);
    assert_eq!(told, format!("77\n77\n2048\n3\n3\n{}\n", own_nice.max(0) + 3));
    let spec = get(&mut client, "a").await.spec.unwrap();
    // Whole seconds, rounded up.
    assert_eq!(spec.limits, Some(pb::Limits { cpu_time: Some(millis(3000)), ..asked }));
    // Who asks for none has those of the server.
    let line = "ulimit -n; ulimit -f; ulimit -t; nice";
    let mut own = Command::new("sh");
    some_files(own.args(["-c", line]));
    let own = own.output().unwrap().stdout;
    assert_eq!(output_of(&mut client, shell(line)).await.as_bytes(), own);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_grows_too_large_brings_sigxfsz() {
    let service = TestService::start();
    let mut client = service.client().await;
    let file = service.directory.path().join("large");
    let limits = pb::Limits { file_bytes: 4096, ..no_limits() };
    let line = format!("exec head -c 5000 /dev/zero >{}", file.display());
    let process = finish(&mut client, "", limited(limits, shell(&line))).await.process.unwrap();
    let exit = exit(&process);
    assert_eq!((exit.cause(), exit.signal), (Cause::Signaled, Some(libc::SIGXFSZ)));
    assert_eq!(std::fs::metadata(file).unwrap().len(), 4096);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_used_up_its_cpu_time_is_killed_by_the_kernel() {
    let service = TestService::start();
    let mut client = service.client().await;
    let limits = pb::Limits { cpu_time: Some(millis(1000)), ..no_limits() };
    let spec = limited(limits, shell("while :; do :; done"));
    let process = finish(&mut client, "", spec).await.process.unwrap();
    let exit = exit(&process);
    assert_eq!((exit.cause(), exit.signal), (Cause::Signaled, Some(libc::SIGKILL)));
    assert_eq!(exit.outcome(), pb::Outcome::Failed);
    let usage = exit.usage.unwrap();
    let used = [usage.user_time, usage.system_time].map(|time| time.unwrap());
    let used: f64 = used.iter().map(|time| time.seconds as f64 + f64::from(time.nanos) / 1e9).sum();
    // The kernel counts ticks for the limit, and time for what was used.
    assert!((0.3..10.0).contains(&used), "{used}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_that_cannot_be_enforced_are_refused_and_no_record_is_left() {
    // Whoever is not root has no cgroups here, or those that were given to it.
    let service = TestService::start_with(|command| {
        if is_root() && possible(&["unshare", "--mount"]) {
            hide_mounts(command, " - cgroup");
        }
    });
    let mut client = service.client().await;
    if enforceable(&mut client).await.len() > 4 {
        return skip("cgroups were delegated to this user, or cannot be hidden from it");
    }
    let all = pb::Limits {
        memory_bytes: 1 << 30,
        processes: 10,
        cpus: 0.5,
        open_files: 9,
        ..no_limits()
    };
    let one = pb::Limits { processes: 1, ..no_limits() };
    for (limits, named) in [(all, "memory_bytes,processes,cpus"), (one, "processes")] {
        let request = start("a", limited(limits, shell("true")));
        let status = soon(client.start(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(reason(&status), "LIMIT_UNSUPPORTED");
        assert_eq!(details(&status).error_info().unwrap().metadata["limits"], named);
        assert!(status.message().contains("open_files, file_bytes, cpu_time, nice"), "{status}");
    }
    assert_eq!(list(&mut client).await, []);
    assert_eq!(events(&mut client).await, []);
    // The id is free.
    assert!(!finish(&mut client, "a", shell("true")).await.existed);
    let can = enforceable(&mut client).await;
    assert_eq!(can, ["open_files", "file_bytes", "cpu_time", "nice"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_that_the_kernel_refuses_are_refused_in_its_words() {
    let service = TestService::start();
    let mut client = service.client().await;
    // More than any user may have.
    let open_files = pb::Limits { open_files: 1 << 62, ..no_limits() };
    let status = soon(client.start(start("a", limited(open_files, shell("true"))))).await;
    let refused = failed_step(&status.unwrap_err());
    assert_eq!(refused, ("cannot set a resource limit".into(), "EPERM".into()));
    assert_eq!(list(&mut client).await, []);
    assert_eq!(finish(&mut client, "a", shell("exit 5")).await.process.unwrap().id, "a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nice_value_below_the_servers_is_given_or_refused_as_the_kernel_says() {
    let service = TestService::start();
    let mut client = service.client().await;
    let limits = pb::Limits { nice: Some(-20), ..no_limits() };
    let answer = soon(client.start(run("a", limited(limits, shell("nice"))))).await;
    if may_hurry() {
        assert_eq!(text(&answer.unwrap().into_inner().chunks, pb::Stream::Stdout), "-20\n");
    } else {
        let refused = failed_step(&answer.unwrap_err());
        assert_eq!(refused, ("cannot set the nice value".into(), "EACCES".into()));
        assert_eq!(list(&mut client).await, []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_for_another_user_too_also_those_that_it_could_not_set_itself() {
    if !is_root() || !may_hurry() {
        return skip("becoming another user, and nice values below 0, need root");
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let limits = pb::Limits { open_files: 50, file_bytes: 1 << 20, nice: Some(-5), ..no_limits() };
    let user = Some(pb::User { uid: NOBODY, gid: None, groups: Vec::new() });
    let spec = pb::Spec { user, ..limited(limits, shell("id -u; ulimit -n; ulimit -f; nice")) };
    let told = output_of(&mut client, spec).await;
    assert_eq!(told, format!("{NOBODY}\n50\n2048\n-5\n"));
}
