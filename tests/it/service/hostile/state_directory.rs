//! A state directory with files of others: procyard refuses it, or leaves them untouched.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use procyard::grpc::pb;

use crate::service::archiving::file;
use crate::support::service::*;
use crate::support::{NOBODY, SOON, alive, is_root, skip, soon, until};

/// All files below a directory with their contents; links are not followed.
fn tree(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(tree(&entry.path()));
        }
        let bytes = kind.is_file().then(|| fs::read(entry.path()).unwrap());
        found.insert(entry.path(), bytes.unwrap_or_default());
    }
    found
}

fn write(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("content of {}", path.display())).unwrap();
}

/// What `serve` prints when it refuses to start.
fn refusal(directory: &Path) -> String {
    refusal_of(TestService::command(directory, |_| {}))
}

fn refusal_of(mut command: std::process::Command) -> String {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let begin = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > SOON {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("serve neither refuses nor ends");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    // A process of another test that does not answer is logged before.
    let refusals = said.lines().filter(|line| line.starts_with("procyard: "));
    assert_eq!(refusals.count(), 1, "{said}");
    said
}

/// Sets a structured output in a script, and prints.
fn script() -> pb::Spec {
    let code = "echo printed; echo 1 >$PROCYARD_OUTPUT".to_owned();
    let program = Some(pb::spec::Program::Script(pb::Script { code, ..Default::default() }));
    pb::Spec { program, ..Default::default() }
}

#[test]
fn foreign_directory_is_refused_and_untouched() {
    let layouts: [&[&str]; 5] = [
        &["outputs/report.json", "outputs/deep/er/notes"],
        &["transcripts/1.1", "transcripts/meeting.txt"],
        &["scripts/backup/run.sh"],
        &["notes.txt"],
        &[".bashrc", "lock"],
    ];
    for layout in layouts {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        layout.iter().for_each(|name| write(&state.join(name)));
        fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
        let before = tree(&state);
        let said = refusal(directory.path());
        assert!(said.contains("it holds files that procyard did not make ("), "{said}");
        assert!(said.contains("choose an empty directory"), "{said}");
        assert_eq!(tree(&state), before);
        assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o755);
    }
}

#[test]
fn linked_subdirectory_is_refused_and_its_target_untouched() {
    for name in ["outputs", "transcripts", "scripts"] {
        for is_used in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let (state, other) = (directory.path().join("state"), directory.path().join("other"));
            write(&other.join("procyard-1.1.output"));
            write(&other.join("deep/er"));
            let before = tree(&other);
            fs::create_dir(&state).unwrap();
            if is_used {
                let marker = "procyard state directory, format 2\n";
                fs::write(state.join("procyard-state"), marker).unwrap();
            }
            symlink(&other, state.join(name)).unwrap();
            let said = refusal(directory.path());
            assert!(said.contains("cannot use ") && said.contains(name), "{said}");
            assert_eq!(tree(&other), before);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_files_in_own_subdirectories_survive() {
    let mut service = TestService::start();
    let state = service.directory.path().join("state");
    let mut client = service.client().await;
    finish(&mut client, "before", shell("echo kept")).await;
    drop(client);
    service.stop();
    let names = ["1.1", "2.1", "notes", "deep/er/file", "procyard-1.1.output.bak"];
    for directory in ["outputs", "transcripts", "scripts"] {
        names.iter().for_each(|name| write(&state.join(directory).join(name)));
    }
    let foreign = |path: &Path| names.iter().any(|name| path.ends_with(name));
    let survivors = || {
        let mut found = tree(&state);
        found.retain(|path, _| foreign(path));
        found
    };
    let before = survivors();
    assert_eq!(before.len(), 3 * names.len());
    service.begin_anew(|_| {});
    let mut client = service.client().await;
    let done = finish(&mut client, "script", script()).await.process.unwrap();
    assert!(done.output.is_some());
    service.kill_server();
    let mut client = service.client().await;
    for id in ["before", "script"] {
        let delete = pb::DeleteRequest { id: id.into(), ..Default::default() };
        soon(client.delete(delete)).await.unwrap();
    }
    service.restart();
    assert_eq!(survivors(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subdirectory_that_becomes_a_link_is_not_emptied() {
    let service = TestService::start();
    let state = service.directory.path().join("state");
    let mut client = service.client().await;
    let live = begin(&mut client, "live", shell("exec sleep 600")).await;
    let other = service.directory.path().join("other");
    for name in ["procyard-9.1.output", "procyard-9.1.transcript", "procyard-9.1.script/x"] {
        write(&other.join(name));
    }
    let before = tree(&other);
    for name in ["outputs", "transcripts", "scripts"] {
        let _ = fs::remove_dir_all(state.join(name));
        symlink(&other, state.join(name)).unwrap();
    }
    service.kill_server();
    let mut client = service.client().await;
    assert_eq!(get(&mut client, "live").await.pid, live.pid);
    finish(&mut client, "prints", shell("echo 1; echo 1 >$PROCYARD_OUTPUT")).await;
    let refused = soon(client.start(start("script", script()))).await;
    assert_eq!(refusal_of_start(refused), "STORE_FAILED");
    let mut after = tree(&other);
    // What a program itself writes through the link is the program's.
    after.retain(|path, _| !path.ends_with("procyard-2.1.output"));
    assert_eq!(after, before);
}

fn refusal_of_start(answer: Result<tonic::Response<pb::StartResponse>, tonic::Status>) -> String {
    reason(&answer.unwrap_err())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_at_start_is_logged() {
    let mut service = TestService::start();
    let state = service.directory.path().join("state");
    drop(service.client().await);
    service.stop();
    for name in ["outputs/procyard-9.1.output", "transcripts/procyard-9.1.transcript"] {
        write(&state.join(name));
    }
    write(&state.join("scripts/procyard-9.1.script/main.py"));
    let log = service.directory.path().join("log");
    service.begin_anew(|command| {
        command.arg("--log-file").arg(&log).env("RUST_LOG", "info");
    });
    assert_eq!(list(&mut service.client().await).await, []);
    let logged = fs::read_to_string(&log).unwrap();
    for name in ["9.1.output", "9.1.transcript", "9.1.script"] {
        let is_told = |line: &str| line.contains("file removed") && line.contains(name);
        assert!(logged.lines().any(is_told), "{name}: {logged}");
        assert!(!tree(&state).keys().any(|path| path.to_string_lossy().contains(name)), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_of_an_earlier_version_is_served() {
    let mut service = TestService::start();
    let state = service.directory.path().join("state");
    let mut client = service.client().await;
    finish(&mut client, "a", shell("echo kept")).await;
    drop(client);
    service.stop();
    fs::remove_file(state.join("procyard-state")).unwrap();
    fs::rename(file(&service, "1.1"), state.join("transcripts/1.1")).unwrap();
    write(&state.join("notes.txt"));
    service.begin_anew(|_| {});
    let mut client = service.client().await;
    assert_eq!(printed(&mut client, "a").await, "kept\n");
    assert!(state.join("procyard-state").exists() && state.join("notes.txt").exists());
    let delete = pb::DeleteRequest { id: "a".into(), ..Default::default() };
    soon(client.delete(delete)).await.unwrap();
    crate::support::until("the file is gone", || !state.join("transcripts/1.1").exists()).await;
}

/// Puts a FIFO, a directory, a link to a device or a device in the place of a file.
fn replace(path: &Path, what: &str) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
    let program = match what {
        "fifo" => &["mkfifo"][..],
        "directory" => &["mkdir"],
        "link" => &["ln", "-s", "/dev/zero"],
        _ => &["mknod", "-m", "600"],
    };
    let mut command = std::process::Command::new(program[0]);
    command.args(&program[1..]).arg(path);
    if what == "device" {
        command.args(["c", "1", "5"]);
    }
    assert!(command.status().unwrap().success());
}

/// Kinds of files that are not regular, as far as this user can make them.
fn kinds() -> impl Iterator<Item = &'static str> {
    ["fifo", "directory", "link"].into_iter().chain(is_root().then_some("device"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn special_file_in_place_of_the_database_is_an_error() {
    let mut service = TestService::start();
    let state = service.directory.path().join("state");
    drop(service.client().await);
    service.stop();
    for name in ["procyard.db", "procyard.db-wal", "procyard.db-shm"] {
        for what in kinds() {
            let aside = service.directory.path().join("aside");
            let was_there = fs::rename(state.join(name), &aside).is_ok();
            replace(&state.join(name), what);
            let said = refusal(service.directory.path());
            assert!(said.contains(name) && said.contains("not a regular file"), "{what}: {said}");
            let _ = fs::remove_file(state.join(name)).or_else(|_| fs::remove_dir(state.join(name)));
            if was_there {
                fs::rename(&aside, state.join(name)).unwrap();
            }
        }
    }
}

#[test]
fn special_file_in_place_of_a_token_is_an_error() {
    let mut service = TestService::start_with(|command| {
        command.args(["--listen", "tcp://127.0.0.1:0"]);
    });
    let state = service.directory.path().join("state");
    service.server_pid();
    service.stop();
    for name in ["token", "tokens"] {
        let aside = service.directory.path().join("aside");
        fs::rename(state.join(name), &aside).unwrap();
        for what in kinds() {
            replace(&state.join(name), what);
            let said = refusal_of(on_loopback(service.directory.path()));
            let reason = format!("/{name}: it is not a regular file");
            assert!(said.contains(&reason), "{what}: {said}");
        }
        fs::remove_file(state.join(name)).or_else(|_| fs::remove_dir(state.join(name))).unwrap();
        fs::rename(&aside, state.join(name)).unwrap();
    }
}

#[test]
fn log_in_the_place_of_a_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    fs::create_dir_all(state.join("outputs")).unwrap();
    symlink("state/keeper.lock", directory.path().join("link")).unwrap();
    fs::write(state.join("keeper.lock"), "").unwrap();
    let before = tree(directory.path());
    let names = [
        "procyard.db",
        "procyard.db-wal",
        "procyard.db-shm",
        "lock",
        "keeper.lock",
        "procyard-state",
        "token",
        "tokens",
        "outputs/log",
        "../link",
        "../state/lock",
    ];
    for name in names {
        for option in ["--log-file", "--audit-file"] {
            let said = refusal_of(TestService::command(directory.path(), |command| {
                command.arg(option).arg(state.join(name));
            }));
            let reason = format!("cannot use {option} {}: ", state.join(name).display());
            assert!(said.contains(&reason) && said.contains("choose another"), "{said}");
            assert_eq!(tree(directory.path()), before, "{name}");
        }
    }
}

#[test]
fn foreign_file_is_not_used_as_a_log() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data.csv");
    let content = "a,b\n".repeat(3 << 20);
    fs::write(&data, &content).unwrap();
    write(&directory.path().join("data.csv.1"));
    let before = tree(directory.path());
    for option in ["--log-file", "--audit-file"] {
        let said = refusal_of(TestService::command(directory.path(), |command| {
            command.arg(option).arg(&data);
        }));
        assert!(said.contains(option) && said.contains("it is not a log of procyard"), "{said}");
        assert!(tree(directory.path()) == before, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_log_does_not_replace_a_foreign_file() {
    let mut log = PathBuf::new();
    let service = TestService::start_with(|command| {
        let state = PathBuf::from(command.get_args().last().unwrap());
        log = state.with_file_name("log");
        fs::write(state.with_file_name("log.1"), "precious\n").unwrap();
        command.env("RUST_LOG", "info").arg("--log-file").arg(&log);
    });
    drop(service.client().await);
    let text = || fs::read_to_string(&log).unwrap_or_default();
    until("it logs", || text().contains("procyard::server: serving")).await;
    fs::File::options().append(true).open(&log).unwrap().set_len(9 << 20).unwrap();
    service.kill_server();
    drop(service.client().await);
    until("it warns", || text().contains("log.1 is not a log of procyard; move it away")).await;
    until("it logs on", || text().matches("procyard::server: serving").count() == 2).await;
    assert_eq!(fs::read_to_string(log.with_file_name("log.1")).unwrap(), "precious\n");
    fs::remove_file(log.with_file_name("log.1")).unwrap();
    service.kill_server();
    until("it is rotated", || fs::metadata(log.with_file_name("log.1")).is_ok()).await;
}

/// Makes a directory that procyard has used.
fn mark(state: &Path) {
    fs::create_dir_all(state).unwrap();
    fs::write(state.join("procyard-state"), "procyard state directory, format 2\n").unwrap();
}

#[test]
fn foreign_token_file_is_refused_and_untouched() {
    // The tokens of a directory that procyard has used may have comments alone: they stay there.
    let files = [
        ("token", "precious\n", false),
        ("token", "precious\n", true),
        ("token", "procyard_0123456789abcdef_0123\n", true),
        ("tokens", "# precious\n", false),
        ("tokens", "precious\n", true),
    ];
    for (name, content, is_used) in files {
        for is_linked in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let (state, other) =
                (directory.path().join("state"), directory.path().join("precious"));
            fs::create_dir(&state).unwrap();
            if is_used {
                mark(&state);
            }
            let file = if is_linked { &other } else { &state.join(name) };
            fs::write(file, content).unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
            if is_linked {
                symlink("../precious", state.join(name)).unwrap();
            }
            let said = refusal_of(on_loopback(directory.path()));
            assert!(said.contains("cannot use ") && said.contains(name), "{said}");
            assert!(
                ["move it away", "choose an empty directory", "line 1"]
                    .iter()
                    .any(|what| said.contains(what)),
                "{said}"
            );
            assert_eq!(fs::read_to_string(file).unwrap(), content, "{said}");
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o644, "{said}");
            assert_eq!(state.join(name).is_symlink(), is_linked, "{said}");
        }
    }
}

#[test]
fn token_of_another_user_is_refused() {
    if !is_root() {
        return skip("only root gives files away");
    }
    for name in ["token", "tokens"] {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        mark(&state);
        fs::write(state.join(name), "").unwrap();
        chown(state.join(name), Some(NOBODY), None).unwrap();
        let said = refusal_of(on_loopback(directory.path()));
        let reason = format!("/{name}: it belongs to uid {NOBODY} instead of 0; move it away");
        assert!(said.contains(&reason), "{said}");
        assert_eq!(fs::read(state.join(name)).unwrap(), b"");
    }
}

#[test]
fn token_is_never_in_a_file_that_others_could_open() {
    use std::io::Read;
    let mut service = TestService::start_with(|command| {
        let state = PathBuf::from(command.get_args().last().unwrap());
        mark(&state);
        for name in ["token", "tokens"] {
            fs::write(state.join(name), "").unwrap();
        }
        command.args(["--listen", "tcp://127.0.0.1:0"]);
    });
    service.server_pid();
    let state = service.directory.path().join("state");
    let paths = ["token", "tokens"].map(|name| state.join(name));
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
    let before = paths.each_ref().map(read);
    service.stop();
    // Others could open these before procyard started again.
    let set_mode = |mode| {
        paths.iter().for_each(|path| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        });
    };
    set_mode(0o666);
    let open = || paths.each_ref().map(|path| fs::File::open(path).unwrap());
    let _opened = open();
    let inodes = paths.each_ref().map(|path| fs::metadata(path).unwrap().ino());
    service.begin_anew(|command| {
        command.args(["--listen", "tcp://127.0.0.1:0"]);
    });
    service.server_pid();
    let after = paths.each_ref().map(|path| fs::metadata(path).unwrap());
    assert!(after.iter().all(|file| file.mode() & 0o7777 == 0o600));
    assert!(after.iter().zip(inodes).all(|(file, before)| file.ino() != before));
    assert_eq!(paths.each_ref().map(read), before);
    service.stop();
    // A new token is not in a file that was there.
    fs::write(&paths[0], "").unwrap();
    set_mode(0o644);
    let [mut token, _] = open();
    service.begin_anew(|command| {
        command.args(["--listen", "tcp://127.0.0.1:0"]);
    });
    service.server_pid();
    assert!(read(&paths[0]).starts_with("procyard_"));
    let mut seen = String::new();
    token.read_to_string(&mut seen).unwrap();
    assert_eq!(seen, "");
    assert_eq!(fs::metadata(&paths[0]).unwrap().mode() & 0o7777, 0o600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_made_before_the_first_start_are_kept() {
    let mut state = PathBuf::new();
    let service = TestService::start_with(|command| {
        state = PathBuf::from(command.get_args().last().unwrap());
        fs::create_dir(&state).unwrap();
        let mut new = std::process::Command::new(crate::support::binary());
        new.args(["token", "new", "ci", "--state-dir"]).arg(&state);
        assert!(new.output().unwrap().status.success());
        command.args(["--listen", "tcp://127.0.0.1:0"]);
    });
    drop(service.client().await);
    let tokens = fs::read_to_string(state.join("tokens")).unwrap();
    assert!(tokens.starts_with("ci operator hmac-sha256:"), "{tokens}");
}

fn on_loopback(directory: &Path) -> std::process::Command {
    TestService::command(directory, |command| {
        command.args(["--listen", "tcp://127.0.0.1:0"]);
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn special_file_in_place_of_a_transcript_is_a_gap() {
    let service = TestService::start();
    let mut client = service.client().await;
    finish(&mut client, "a", shell("echo hi")).await;
    crate::service::archiving::nothing_in_memory(&service).await;
    for what in kinds() {
        replace(&file(&service, "1.1"), what);
        service.kill_server();
        let mut client = service.client().await;
        let read = pb::ReadRequest { id: "a".into(), ..Default::default() };
        let answer = soon(client.read(read)).await.unwrap().into_inner();
        assert!(answer.gap.is_some() && answer.chunks.is_empty(), "{what}: {answer:?}");
    }
    let delete = pb::DeleteRequest { id: "a".into(), ..Default::default() };
    soon(service.client().await.delete(delete)).await.unwrap();
}

/// A second `serve` is refused though the lock of the first is gone, and ends nothing.
async fn second_keeper_is_refused_after(has_process: bool, harm: impl Fn(&Path)) {
    let service = TestService::start();
    let mut client = service.client().await;
    // It has locked the directory when it answers.
    soon(client.get_server_info(pb::GetServerInfoRequest {})).await.unwrap();
    let pids = match has_process {
        true => vec![begin(&mut client, "live", shell("exec sleep 600")).await.pid],
        false => Vec::new(),
    };
    let server = service.server_pid();
    harm(&service.directory.path().join("state"));
    let said = refusal(service.directory.path());
    assert!(
        said.contains(&format!("is used by another procyard (pid {})", service.child.id())),
        "{said}"
    );
    assert!(pids.into_iter().all(alive));
    assert_eq!(service.server_pid(), server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeper_whose_lock_is_removed_keeps_its_processes() {
    let remove_lock = |state: &Path| fs::remove_file(state.join("keeper.lock")).unwrap();
    second_keeper_is_refused_after(true, remove_lock).await;
    second_keeper_is_refused_after(false, remove_lock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeper_whose_state_directory_is_removed_keeps_its_processes() {
    second_keeper_is_refused_after(true, |state| fs::remove_dir_all(state).unwrap()).await;
    second_keeper_is_refused_after(true, |state| {
        fs::rename(state, state.with_extension("old")).unwrap();
    })
    .await;
}

/// A process of another user that poses as a keeper, ended when dropped: it has a file of that name
/// open, and a child whose variables name a state directory. A setuid program can be the parent.
struct FalseKeeper {
    child: std::process::Child,
    _directory: tempfile::TempDir,
}

impl FalseKeeper {
    async fn start(state: &Path, program: &str) -> FalseKeeper {
        let directory = tempfile::tempdir().unwrap();
        chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let (lock, ready) = (directory.path().join("keeper.lock"), directory.path().join("ready"));
        let line = format!(
            "exec 9>{}; (PROCYARD_ID=x PROCYARD_OUTPUT={}/outputs/x exec sh -c 'echo >{}; exec sleep 600') & \
             exec {program}",
            lock.display(),
            state.display(),
            ready.display(),
        );
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line]).uid(NOBODY).gid(NOBODY).process_group(0);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        until("its child runs", || ready.exists()).await;
        FalseKeeper { child, _directory: directory }
    }
}

impl Drop for FalseKeeper {
    fn drop(&mut self) {
        // SAFETY: a signal to the group of a child that was not waited for.
        unsafe { libc::kill(-self.child.id().cast_signed(), libc::SIGKILL) };
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

/// Starts the service again, which must not be refused.
async fn start_again(service: &mut TestService) {
    service.child = TestService::command(service.directory.path(), |_| {}).spawn().unwrap();
    let socket = service.socket();
    until("it serves", || {
        assert_eq!(service.child.try_wait().unwrap(), None, "it was refused");
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_of_another_keeper_does_not_prevent_a_start() {
    let mut service = TestService::start();
    drop(service.client().await);
    service.stop();
    let output = service.directory.path().join("state/outputs/1");
    let output = format!("PROCYARD_OUTPUT={}", output.display());
    let other = TestService::start();
    let mut client = other.client().await;
    let posing = begin(&mut client, "posing", argv(&["env", &output, "sleep", "600"])).await;
    start_again(&mut service).await;
    assert!(alive(posing.pid), "it is for its own keeper to kill");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_user_cannot_pose_as_the_keeper() {
    if !is_root() {
        return skip("only root starts processes of other users");
    }
    let mut service = TestService::start();
    fs::set_permissions(service.directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    drop(service.client().await);
    service.stop();
    let state = service.directory.path().join("state");
    let _other = FalseKeeper::start(&state, "sleep 600").await;
    start_again(&mut service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn setuid_program_of_another_user_is_no_keeper() {
    if !is_root() {
        return skip("only root makes a setuid program");
    }
    let mut service = TestService::start();
    let directory = service.directory.path().to_owned();
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
    drop(service.client().await);
    service.stop();
    // Root's by its effective user id alone.
    let program = directory.join("setuid-sleep");
    let mut copy = std::process::Command::new("cp");
    assert!(copy.arg("/usr/bin/sleep").arg(&program).status().unwrap().success());
    fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
    let program = format!("{} 600", program.display());
    let other = FalseKeeper::start(&directory.join("state"), &program).await;
    let status = || fs::read_to_string(format!("/proc/{}/status", other.child.id())).unwrap();
    until("it runs", || status().starts_with("Name:\tsetuid-sleep")).await;
    if !status().contains(&format!("\nUid:\t{NOBODY}\t0\t")) {
        return skip("setuid programs do not work here");
    }
    start_again(&mut service).await;
}
