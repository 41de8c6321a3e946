//! Limits of whole trees, by cgroups.

use std::path::{Path, PathBuf};

use procyard::grpc::pb::{self, Cause, Outcome};
use tonic::Code;

use super::{enforceable, limited, no_limits};
use crate::support::service::*;
use crate::support::{Gate, NOBODY, alive, is_root, skip, soon, until};

const MEBIBYTE: u64 = 1 << 20;

/// A shell line that takes all the memory that it gets.
const HOG: &str = "x=x; while :; do x=$x$x; done";

/// A service that can enforce these limits, or none if this machine cannot.
async fn able(fields: &[&str]) -> Option<(TestService, Client)> {
    let service = TestService::start();
    let mut client = service.client().await;
    let can = enforceable(&mut client).await;
    let lacking: Vec<_> =
        fields.iter().filter(|field| !can.iter().any(|can| can == *field)).collect();
    if lacking.is_empty() {
        return Some((service, client));
    }
    skip(&format!("cgroups that this user may not change, or that are not there: {lacking:?}"));
    None
}

fn of_memory(mebibytes: u64) -> pb::Limits {
    pb::Limits { memory_bytes: mebibytes * MEBIBYTE, ..no_limits() }
}

/// The directory of the cgroup that a process is in, of a controller.
fn group_of(pid: u32, controller: &str) -> PathBuf {
    find_group(pid, controller).unwrap()
}

fn find_group(pid: u32, controller: &str) -> Option<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let named = |list: &str| list.split(',').any(|name| name == controller);
    let of_v1 = groups.lines().find_map(|line| {
        let (list, own) = line.split_once(':').unwrap().1.split_once(':').unwrap();
        named(list).then_some(own)
    });
    let of_v2 = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| {
        let after = line.split_once(" - ").unwrap().1;
        let options = after.rsplit(' ').next().unwrap();
        if of_v1.is_some() {
            after.starts_with("cgroup ") && named(options)
        } else {
            after.starts_with("cgroup2 ")
        }
    });
    let fields: Vec<_> = mount?.split(' ').collect();
    let own = Path::new(of_v1.or(of_v2)?).strip_prefix(fields[3]).ok()?;
    Some(Path::new(fields[4]).join(own))
}

/// A number in a file of a cgroup.
fn number(group: &Path, file: &str) -> u64 {
    std::fs::read_to_string(group.join(file)).unwrap().trim().parse().unwrap()
}

/// What a cgroup allows: thousandths of a CPU.
fn milli_cpus(group: &Path) -> u64 {
    let (quota, period) = match std::fs::read_to_string(group.join("cpu.max")) {
        Ok(both) => {
            let (quota, period) = both.trim().split_once(' ').unwrap();
            (quota.parse().unwrap(), period.parse().unwrap())
        }
        Err(_) => (number(group, "cpu.cfs_quota_us"), number(group, "cpu.cfs_period_us")),
    };
    quota * 1000 / period
}

/// All cgroups of a process in which it may be limited.
fn groups_of(pid: u32) -> Vec<PathBuf> {
    ["memory", "pids", "cpu"].map(|controller| group_of(pid, controller)).to_vec()
}

/// Ended by the kernel for want of memory.
fn assert_out_of_memory(process: &pb::Process, mebibytes: u64) {
    let exit = exit(process);
    assert_eq!((exit.cause(), exit.outcome()), (Cause::OutOfMemory, Outcome::Failed), "{exit:?}");
    assert_eq!((exit.signal, exit.code), (Some(libc::SIGKILL), None));
    let limit = mebibytes * MEBIBYTE;
    let message = format!("out of memory: ended by SIGKILL: its limit is {limit} bytes");
    assert_eq!(exit.message, message);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_takes_more_memory_than_it_may_is_ended_and_the_cause_says_so() {
    let Some((_service, mut client)) = able(&["memory_bytes"]).await else { return };
    let neighbour =
        begin(&mut client, "neighbour", limited(of_memory(32), shell("exec sleep 600")));
    let neighbour = neighbour.await;
    let process = finish(&mut client, "", limited(of_memory(32), shell(HOG))).await.process;
    assert_out_of_memory(&process.unwrap(), 32);
    assert!(alive(neighbour.pid), "a neighbour was harmed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_goes_on_when_a_descendant_was_ended_has_its_own_cause_and_tells_of_it() {
    let Some((_service, mut client)) = able(&["memory_bytes"]).await else { return };
    let line = format!("({HOG}); echo $?; ({HOG}); exit 3");
    let answer = finish(&mut client, "", limited(of_memory(32), shell(&line))).await;
    assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "137\n");
    let process = answer.process.unwrap();
    let exit = exit(&process);
    assert_eq!((exit.cause(), exit.code), (Cause::Exited, Some(3)));
    let told =
        "exited with code 3: 2 of its tree were killed for want of memory, of 33554432 bytes";
    assert_eq!(exit.message, told);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_by_somebody_else_is_not_for_want_of_memory() {
    let Some((_service, mut client)) = able(&["memory_bytes"]).await else { return };
    let killed = |process: &pb::Process| {
        let exit = exit(process);
        (exit.cause(), exit.signal, exit.message.clone())
    };
    let spec = || limited(of_memory(32), shell("exec sleep 600"));
    let process = begin(&mut client, "a", spec()).await;
    kill_pid(process.pid.cast_signed(), libc::SIGKILL);
    let told = killed(&ended(&mut client, "a").await);
    assert_eq!(told, (Cause::Signaled, Some(libc::SIGKILL), "ended by SIGKILL".into()));

    // A descendant was, but not the process, which a client ended.
    let line = format!("({HOG}); echo ready; exec sleep 600");
    begin_ready(&mut client, "b", limited(of_memory(32), shell(&line))).await;
    let signal = pb::SignalRequest { id: "b".into(), signal: "KILL".into(), group: false };
    soon(client.signal(signal)).await.unwrap();
    let (cause, signal, message) = killed(&ended(&mut client, "b").await);
    assert_eq!((cause, signal), (Cause::Signaled, Some(libc::SIGKILL)));
    assert!(message.contains("one of its tree was killed for want of memory"), "{message}");

    begin(&mut client, "c", spec()).await;
    soon(client.kill(kill_at_once("c"))).await.unwrap();
    assert_eq!(killed(&get(&mut client, "c").await).0, Cause::Killed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_used_up_its_cpu_time_did_not_run_out_of_memory_though_a_descendant_had() {
    let Some((_service, mut client)) = able(&["memory_bytes"]).await else { return };
    let limits = pb::Limits { cpu_time: Some(millis(2000)), ..of_memory(32) };
    let line = format!("({HOG}); while :; do :; done");
    let process = finish(&mut client, "", limited(limits, shell(&line))).await.process.unwrap();
    let exit = exit(&process);
    assert_eq!((exit.cause(), exit.signal), (Cause::Signaled, Some(libc::SIGKILL)), "{exit:?}");
    assert!(exit.message.contains("one of its tree was killed for want of memory"), "{exit:?}");
    // The same limit is in nobody's way who has not used it up.
    let limits = pb::Limits { cpu_time: Some(millis(600_000)), ..of_memory(32) };
    let process = finish(&mut client, "", limited(limits, shell(HOG))).await.process;
    assert_out_of_memory(&process.unwrap(), 32);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_bomb_has_as_many_processes_as_it_may_harms_nobody_and_can_be_killed() {
    let Some((service, mut client)) = able(&["processes"]).await else { return };
    let few = pb::Limits { processes: 30, ..no_limits() };
    let bomb = "b() { b | b & }; (b; b) 2>/dev/null; echo ready; exec sleep 600";
    let process = begin_ready(&mut client, "bomb", limited(few, shell(bomb))).await;
    let group = group_of(process.pid, "pids");
    assert_eq!(number(&group, "pids.max"), 30);
    let full = "(while :; do sleep 600 & done) 2>/dev/null; echo ready; exec sleep 600";
    let spec = limited(few, shell(full));
    let second = begin_ready(&mut client, "full", spec).await;
    for group in [group.clone(), group_of(second.pid, "pids")] {
        for _ in 0..50 {
            let members = number(&group, "pids.current");
            assert!((1..=30).contains(&members), "{members}");
        }
    }
    assert_eq!(output_of(&mut client, shell("echo $(echo unharmed)")).await, "unharmed\n");
    for id in ["bomb", "full"] {
        let answer = soon(client.kill(kill_at_once(id))).await.unwrap().into_inner();
        assert_eq!(exit(&answer.processes[0]).cause(), Cause::Killed);
        assert!(!answer.killed.is_empty());
    }
    assert_eq!(service.inmates(), [0; 0]);
    until("the cgroup is gone", || !group.exists()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_may_not_fork_and_is_told_why() {
    let Some((_service, mut client)) = able(&["processes"]).await else { return };
    let one = pb::Limits { processes: 1, ..no_limits() };
    let fork = "import os\ntry: os.fork()\nexcept OSError as error: print(error.errno)";
    // What is called by that name may be a script that forks.
    let mut command = std::process::Command::new("python3");
    let python = command.args(["-c", "import sys; print(sys.executable)"]).output();
    let Ok(python) = python else { return skip("there is no python3") };
    let python = String::from_utf8(python.stdout).unwrap();
    let spec = limited(one, argv(&[python.trim(), "-c", fork]));
    assert_eq!(output_of(&mut client, spec).await, format!("{}\n", libc::EAGAIN));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_a_tree_are_in_force_and_come_back_in_its_record() {
    let Some((_service, mut client)) = able(&["memory_bytes", "processes", "cpus"]).await else {
        return;
    };
    for (n, cpus) in [1.5, 0.001, 0.25].into_iter().enumerate() {
        let asked = pb::Limits { processes: 10, cpus, open_files: 50, ..of_memory(64) };
        let id = format!("p{n}");
        let process = begin(&mut client, &id, limited(asked, shell("exec sleep 600"))).await;
        assert_eq!(process.spec.unwrap().limits, Some(asked));
        let group = group_of(process.pid, "memory");
        let files = ["memory.max", "memory.limit_in_bytes"];
        let file = files.into_iter().find(|file| group.join(file).exists()).unwrap();
        assert_eq!(number(&group, file), 64 * MEBIBYTE);
        if group.join("memory.memsw.limit_in_bytes").exists() {
            assert_eq!(number(&group, "memory.memsw.limit_in_bytes"), 64 * MEBIBYTE);
        }
        assert_eq!(number(&group_of(process.pid, "pids"), "pids.max"), 10);
        assert_eq!(milli_cpus(&group_of(process.pid, "cpu")), (cpus * 1000.0) as u64);
        assert_eq!(get(&mut client, &id).await.spec.unwrap().limits, Some(asked));
    }
    // One without limits is where the keeper is, or in a leaf that has none.
    let free = begin(&mut client, "free", shell("exec sleep 600")).await;
    let free = group_of(free.pid, "memory");
    let limited_group = group_of(get(&mut client, "p0").await.pid, "memory");
    match std::fs::read_to_string(free.join("memory.max")) {
        Ok(most) => assert_eq!(most.trim(), "max"),
        Err(_) => assert_ne!(free.parent(), limited_group.parent()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_cgroups_by_who_is_deleted_nor_by_the_keeper() {
    let fields = ["memory_bytes", "processes", "cpus"];
    let Some((mut service, mut client)) = able(&fields).await else { return };
    let all = pb::Limits { processes: 10, cpus: 0.5, ..of_memory(64) };
    let spec = || limited(all, shell("exec sleep 600"));
    let first = groups_of(begin(&mut client, "a", spec()).await.pid);
    assert!(first.iter().all(|group| group.exists()), "{first:?}");
    // A leaf of v2 has all of them.
    let bases: Vec<_> = first.iter().map(|group| group.parent().unwrap().to_owned()).collect();
    let delete = pb::DeleteRequest { id: "a".into(), force: true, allow_missing: false };
    soon(client.delete(delete)).await.unwrap();
    until("its cgroups are gone", || first.iter().all(|group| !group.exists())).await;
    // One that cannot be executed leaves none either.
    let request = start("b", limited(all, argv(&["/nowhere"])));
    assert_eq!(refusal(soon(client.start(request)).await).1, "SPAWN_FAILED");
    for base in &bases {
        let has_any = || {
            let mut entries = std::fs::read_dir(base).unwrap().flatten();
            entries.any(|entry| entry.path().is_dir())
        };
        // Leaves of v2 are made beforehand.
        let of_v1 = base.join("../tasks").exists();
        until("nothing is left of them", || !of_v1 || !has_any()).await;
    }

    begin(&mut client, "c", spec()).await;
    service.stop();
    assert!(bases.iter().all(|base| !base.exists()), "{bases:?}");

    service.begin_anew(|_| {});
    let mut client = service.client().await;
    let process = begin(&mut client, "d", spec()).await;
    let left = groups_of(process.pid);
    service.child.kill().unwrap();
    until("the kernel has ended it, too", || !alive(process.pid)).await;
    assert!(left.iter().any(|group| group.exists()), "the keeper could not clean up");
    service.begin_anew(|_| {});
    // Answered, and so begun.
    list(&mut service.client().await).await;
    assert!(left.iter().all(|group| !group.parent().unwrap().exists()), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lives_on_stays_limited_and_the_cgroup_goes_with_the_last() {
    let Some((_service, mut client)) = able(&["processes"]).await else { return };
    let few = pb::Limits { processes: 9, ..no_limits() };
    let answer = finish(&mut client, "a", limited(few, shell("sleep 600 & exit 0"))).await;
    let process = answer.process.unwrap();
    assert_eq!(exit(&process).outcome(), Outcome::Succeeded);
    let [left] = &process.lingering[..] else { panic!("{:?}", process.lingering) };
    let group = group_of(left.pid, "pids");
    assert_eq!(number(&group, "pids.max"), 9);
    soon(client.kill(kill("a"))).await.unwrap();
    until("it has ended", || !alive(left.pid)).await;
    until("the cgroup is gone", || !group.exists()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cgroup_goes_though_nobody_tells_the_keeper_that_the_last_has_left() {
    let Some((_service, mut client)) = able(&["processes"]).await else { return };
    let few = pb::Limits { processes: 9, ..no_limits() };
    let process = begin(&mut client, "a", limited(few, shell("exec sleep 600"))).await;
    let group = group_of(process.pid, "pids");
    if !group.join("tasks").exists() {
        return skip("of cgroup v2, whoever is in a leaf belongs to the process");
    }
    let mut stranger = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    std::fs::write(group.join("cgroup.procs"), stranger.id().to_string()).unwrap();
    soon(client.kill(kill_at_once("a"))).await.unwrap();
    assert!(alive(stranger.id()) && group.exists());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    until("the cgroup is gone", || !group.exists()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_at_once_have_each_its_own_limit_and_cause() {
    let Some((_service, client)) = able(&["memory_bytes", "processes"]).await else { return };
    let mut running = Vec::new();
    for n in 0..12_u64 {
        let mut client = client.clone();
        running.push(tokio::spawn(async move {
            let mebibytes = 24 + n;
            let limits = pb::Limits { processes: 3, ..of_memory(mebibytes) };
            let line = if n % 2 == 0 { HOG } else { "echo $(echo fine)" };
            let process = finish(&mut client, "", limited(limits, shell(line))).await.process;
            (n, mebibytes, process.unwrap())
        }));
    }
    for run in running {
        let (n, mebibytes, process) = run.await.unwrap();
        if n % 2 == 0 {
            assert_out_of_memory(&process, mebibytes);
        } else {
            assert_eq!(exit(&process).outcome(), Outcome::Succeeded);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cause_is_known_to_a_server_that_was_not_there() {
    let Some((service, mut client)) = able(&["memory_bytes"]).await else { return };
    let mut gate = Gate::new(service.directory.path());
    let line = format!("read y <{}; {HOG}", gate.path);
    let process = begin(&mut client, "a", limited(of_memory(32), shell(&line))).await;
    let server = service.server_pid();
    kill_pid(server, libc::SIGSTOP);
    gate.open(1);
    until("it has ended", || !alive(process.pid)).await;
    kill_pid(server, libc::SIGKILL);
    let mut client = service.client().await;
    assert_out_of_memory(&ended(&mut client, "a").await, 32);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_ran_out_of_memory_is_started_again_and_counts_anew() {
    let Some((service, mut client)) = able(&["memory_bytes"]).await else { return };
    let mark = service.directory.path().join("mark");
    let mark = mark.display();
    let line = format!("if mkdir {mark} 2>/dev/null; then {HOG}; fi; exit 0");
    let spec = restarted(pb::restart::Policy::OnFailure, shell(&line));
    let process = finish(&mut client, "a", limited(of_memory(32), spec)).await.process.unwrap();
    let last = exit(&process);
    assert_eq!((process.restarts, last.outcome()), (1, Outcome::Succeeded));
    assert_eq!(last.message, "exited with code 0");
    let mut told = events(&mut client).await.into_iter();
    let restarting = told.find(|event| event.kind() == pb::Kind::Restarting).unwrap();
    let before = restarting.process.unwrap().exit.unwrap();
    assert_eq!(before.cause(), Cause::OutOfMemory, "{before:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_a_tree_hold_for_another_user_too() {
    let Some((_service, mut client)) = able(&["memory_bytes", "processes"]).await else { return };
    if !is_root() {
        return skip("becoming another user needs root");
    }
    let limits = pb::Limits { processes: 20, ..of_memory(32) };
    let user = Some(pb::User { uid: NOBODY, gid: None, groups: Vec::new() });
    let spec = pb::Spec { user, ..limited(limits, shell(HOG)) };
    let process = finish(&mut client, "", spec).await.process.unwrap();
    assert_out_of_memory(&process, 32);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_too_small_to_begin_with_harms_nobody_else() {
    let Some((service, mut client)) = able(&["memory_bytes"]).await else { return };
    let neighbour = begin(&mut client, "neighbour", shell("exec sleep 600")).await;
    let (server, keeper) = (service.server_pid(), service.child.id());
    for bytes in [1, 4096, 65_536, 131_072, 262_144, 524_288, MEBIBYTE] {
        let limits = pb::Limits { memory_bytes: bytes, ..no_limits() };
        let id = format!("p{bytes}");
        match soon(client.start(run(&id, limited(limits, argv(&["/bin/sh", "-c", HOG]))))).await {
            Ok(answer) => {
                let process = answer.into_inner().process.unwrap();
                assert_eq!(exit(&process).outcome(), Outcome::Failed, "{bytes} bytes");
            }
            Err(status) => {
                assert_eq!(status.code(), Code::FailedPrecondition);
                assert_eq!(reason(&status), "SPAWN_FAILED", "{bytes} bytes");
            }
        }
    }
    assert!(alive(neighbour.pid) && alive(keeper));
    assert_eq!(service.server_pid(), server);
}

/// A cgroup of pids for a whole procyard, as there is around a container.
struct Around(PathBuf);

impl Around {
    fn make() -> Option<Around> {
        let own =
            find_group(std::process::id(), "pids").filter(|own| own.join("tasks").exists())?;
        let around = own.join(format!("around-{}", std::process::id()));
        std::fs::create_dir(&around).ok().map(|()| Around(around))
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        let removed = std::fs::remove_dir(&self.0);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_free_pid_a_start_is_refused_in_those_words_and_works_again_afterwards() {
    let Some(around) = Around::make() else {
        return skip("there is no hierarchy of pids of cgroup v1, or it may not be changed");
    };
    let members = around.0.join("cgroup.procs");
    let service = TestService::start_with(|command| {
        let enter = move || std::fs::write(&members, "0");
        // SAFETY: it opens and writes a file, of which the path was made before the fork.
        unsafe { std::os::unix::process::CommandExt::pre_exec(command, enter) };
    });
    let mut client = service.client().await;
    let neighbour = begin(&mut client, "neighbour", with_stdin(shell("exec cat"))).await;
    let before = list(&mut client).await;
    let told = events(&mut client).await;
    let most = |most: &str| std::fs::write(around.0.join("pids.max"), most).unwrap();

    most("1");
    for n in 0..6 {
        let spec = if n % 2 == 0 { shell("true") } else { on_terminal(shell("true")) };
        let refused = refusal(soon(client.start(start("a", spec))).await);
        assert_eq!(refused, (Code::ResourceExhausted, "OUT_OF_PIDS".into()));
    }
    assert_eq!(list(&mut client).await, before);
    assert_eq!(events(&mut client).await, told);
    assert_eq!(service.inmates(), [neighbour.pid]);

    most("max");
    assert_eq!(output_of(&mut client, shell("echo $(echo hi)")).await, "hi\n");
}
