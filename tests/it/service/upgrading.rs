//! The server is replaced by the version that is now on disk, or by none if that is no good.

mod load;
mod retiring;

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use procyard::protocol::VERSION;

use crate::support::service::*;
use crate::support::{alive, binary, children, have, soon, until};

/// Something that happens to the file.
type Change = fn(&TestService);

/// The file that the service was started from.
fn file(service: &TestService) -> PathBuf {
    service.directory.path().join("procyard")
}

/// Puts a script in the place of the file. Written by another process: one that a test starts at
/// the same moment would hold this one's descriptor, and nobody could execute it meanwhile.
fn install(service: &TestService, script: &str) {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "cat >$0.new && chmod +x $0.new && mv $0.new $0"]).arg(file(service));
    let mut writer = command.stdin(Stdio::piped()).spawn().unwrap();
    writer.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
}

/// A new version that is good, and known by a variable.
fn install_good(service: &TestService) {
    install(service, &format!("#!/bin/sh\nTHIS_IS=new exec {} \"$@\"\n", binary()));
}

/// One that says hello with a version and then does something else.
fn install_speaking(service: &TestService, version: u32, then: &str) {
    let script = format!(
        "#!/usr/bin/env python3\nimport os, sys, time\n\
         os.write(3, bytes([6, 0, 0, 0, 8, 1, 0x12, 2, 8, {version}]))\nos.read(3, 4096)\n{then}\n"
    );
    install(service, &script);
}

/// `procyard upgrade`: whether it says that all went well, and what it says.
async fn upgrade(service: &TestService) -> (bool, String) {
    let mut command = Command::new(binary());
    command.arg("upgrade").arg("--state-dir").arg(service.directory.path().join("state"));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = soon(output).await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap().trim_end().to_owned())
}

/// The server is of the version that was installed.
fn is_new(pid: i32) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    environ.split(|byte| *byte == 0).any(|variable| variable == b"THIS_IS=new")
}

/// The server is the program that the keeper is.
fn is_as_the_keeper(service: &TestService, pid: i32) -> bool {
    let program = |pid: u32| {
        let found = std::fs::metadata(format!("/proc/{pid}/exe")).unwrap();
        (found.dev(), found.ino())
    };
    program(pid.cast_unsigned()) == program(service.child.id()) && !is_new(pid)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_replaced_by_its_own_version_whatever_became_of_the_file() {
    let service = TestService::start_from_copy();
    let mut client = service.client().await;
    let changes: [Change; 2] =
        [install_good, |service| std::fs::remove_file(file(service)).unwrap()];
    for change in changes {
        change(&service);
        let before = service.server_pid();
        service.kill_server();
        client = service.client().await;
        assert_eq!(output_of(&mut client, shell("echo hi")).await, "hi\n");
        let after = service.server_pid();
        assert_ne!(after, before);
        assert!(is_as_the_keeper(&service, after));
    }
    drop(client);
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", service.server_pid())).unwrap();
    assert_eq!(comm, "procyard\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_version_that_is_now_on_disk_serves_and_stays() {
    let service = TestService::start_from_copy();
    let mut client = service.client().await;
    begin(&mut client, "a", with_stdin(shell("cat"))).await;
    let inmates = service.inmates();
    install_good(&service);
    let version = env!("CARGO_PKG_VERSION");
    let said = upgrade(&service).await;
    assert_eq!(said, (true, format!("upgraded: server {version} → {version}")));
    assert!(is_new(service.server_pid()));
    assert_eq!(service.inmates(), inmates);
    // It is the one that is started again from now on, and a signal alone upgrades as well.
    service.kill_server();
    let mut client = service.client().await;
    assert!(is_new(service.server_pid()));
    install(&service, &format!("#!/bin/sh\nexec {} \"$@\"\n", binary()));
    let before = service.server_pid();
    service.signal(libc::SIGHUP);
    until("another server serves", || service.server_pid() != before).await;
    client = {
        drop(client);
        service.client().await
    };
    assert!(!is_new(service.server_pid()));
    assert_eq!(get(&mut client, "a").await.state(), procyard::grpc::pb::State::Running);
    let left = std::fs::read_dir(service.directory.path().join("state")).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.starts_with("upgrade")).count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_file_with_the_name_of_an_answer_survives() {
    let service = TestService::start_from_copy();
    drop(service.client().await);
    let state = service.directory.path().join("state");
    let foreign = || {
        let files = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path());
        let file = files.into_iter().find(|path| path.to_string_lossy().contains("/upgrade."));
        std::fs::read_to_string(file.unwrap()).unwrap()
    };
    let run = |then: String| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo mine >upgrade.$$; {then}")]).current_dir(&state);
        command.output().unwrap()
    };
    let refused = run(format!("exec {} upgrade --state-dir .", binary()));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("/upgrade."), "{said}");
    assert_eq!(foreign(), "mine\n");
    let before = service.server_pid();
    assert!(
        run(format!("rm upgrade.*; echo mine >upgrade.$$; kill -HUP {}", service.child.id()))
            .status
            .success()
    );
    until("another server serves", || service.server_pid() != before).await;
    // The keeper answers before it begins another upgrade.
    while !upgrade(&service).await.0 {}
    assert_eq!(foreign(), "mine\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_that_is_no_good_is_refused_and_the_old_one_never_stops() {
    if !have(&["python3"]) {
        return;
    }
    let service = TestService::start_from_copy();
    let mut client = service.client().await;
    let before = service.server_pid();
    let bad: [(&str, Change); 5] = [
        ("ended with code 1", |service| install(service, "#!/bin/sh\nexit 1\n")),
        ("cannot execute", |service| install(service, "no program\n")),
        ("speaks version 99", |service| install_speaking(service, 99, "sys.exit(1)")),
        ("No such file", |service| std::fs::remove_file(file(service)).unwrap()),
        ("within 10s", |service| install(service, "#!/bin/sh\nexec sleep 600\n")),
    ];
    for (reason, change) in bad {
        change(&service);
        let (well, said) = upgrade(&service).await;
        assert!(!well && said.contains("refused: ") && said.contains(reason), "{said}");
        // On the connection of before.
        assert_eq!(output_of(&mut client, shell("echo hi")).await, "hi\n");
        assert_eq!(service.server_pid(), before);
        assert!(is_as_the_keeper(&service, before));
        let keeper = service.child.id();
        until("the new one is gone", || children(keeper) == [before.cast_unsigned()]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_the_new_version_does_not_know_is_refused_before_anything_stops() {
    let service = TestService::start_from_copy();
    let mut client = service.client().await;
    // Who is answered has a server that knows its store.
    list(&mut client).await;
    let before = service.server_pid();
    let store = service.directory.path().join("state/procyard.db");
    let store = rusqlite::Connection::open(store).unwrap();
    let version: u32 = store.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    // As a new version does after a migration: it must stand in the database itself.
    let set = |version: u32| {
        store.pragma_update(None, "user_version", version).unwrap();
        store.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
    };
    set(77);
    let (well, said) = upgrade(&service).await;
    assert!(!well && said.contains("refused: "), "{said}");
    assert_eq!(output_of(&mut client, shell("echo hi")).await, "hi\n");
    assert_eq!(service.server_pid(), before);
    set(version);
    assert!(upgrade(&service).await.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_that_does_not_serve_is_undone_and_the_old_one_serves_again() {
    if !have(&["python3"]) {
        return;
    }
    let service = TestService::start_from_copy();
    let mut client = service.client().await;
    begin(&mut client, "a", with_stdin(shell("cat"))).await;
    let inmates = service.inmates();
    for (then, reason) in [("sys.exit(3)", "ended with code 3"), ("time.sleep(600)", "within 10s")]
    {
        install_speaking(&service, VERSION, then);
        let (well, said) = upgrade(&service).await;
        assert!(!well && said.contains("undone: ") && said.contains(reason), "{said}");
        let mut client = service.client().await;
        assert_eq!(output_of(&mut client, shell("echo hi")).await, "hi\n");
        assert!(is_as_the_keeper(&service, service.server_pid()));
        assert_eq!(service.inmates(), inmates);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_under_way_refuses_another_and_is_given_up_at_a_stop() {
    let mut service = TestService::start_from_copy();
    service.client().await;
    let server = service.server_pid().cast_unsigned();
    install(&service, "#!/bin/sh\nexec sleep 600\n");
    service.signal(libc::SIGHUP);
    let keeper = service.child.id();
    let mut candidate = None;
    until("the new one has begun", || {
        candidate = children(keeper).into_iter().find(|pid| *pid != server);
        candidate.is_some()
    })
    .await;
    let (well, said) = upgrade(&service).await;
    assert!(!well && said.contains("refused: another upgrade is under way"), "{said}");
    service.stop();
    assert!(!alive(candidate.unwrap()) && !alive(server));
    let (well, said) = upgrade(&service).await;
    assert!(!well && said.contains("no procyard serves with"), "{said}");
}
