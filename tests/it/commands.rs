//! The command line, as people and scripts use it: real commands, on real terminals where it
//! matters, against a real service.

mod arguments;
mod attaching;
mod completions;
mod events;
mod habits;
mod healthcheck;
mod info;
mod install;
mod interrupting;
mod kill;
mod logs;
mod ps;
mod rerun;
mod resolution;
mod rm;
mod running;
mod screening;
mod sending;
mod socket_trust;
mod starting_by_itself;
mod supervisor_end;
mod targets;
mod wait;

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

use procyard::grpc::pb;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::support::service::*;
use crate::support::transcript::wait;
use crate::support::{SOON, soon, with_usual_signals};

/// A command that goes on by itself, to be read from; killed when dropped, and when it goes on for
/// far too long, so that whoever reads from it does not wait for ever.
struct Running(Child, #[expect(dead_code, reason = "held while it may go on")] Sender<()>);

impl Running {
    fn start(mut command: Command) -> Running {
        with_usual_signals(&mut command);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let (hold, held) = channel();
        std::thread::spawn(move || {
            if held.recv_timeout(5 * SOON) == Err(RecvTimeoutError::Timeout) {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        });
        Running(child, hold)
    }

    /// The rest of what it prints, and how it ends.
    fn finished(mut self) -> Output {
        drop(self.0.stdin.take());
        let mut stderr = self.0.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut errors = Vec::new();
            stderr.read_to_end(&mut errors).unwrap();
            errors
        });
        let mut stdout = Vec::new();
        if let Some(mut rest) = self.0.stdout.take() {
            rest.read_to_end(&mut stdout).unwrap();
        }
        Output { stdout, stderr: errors.join().unwrap(), status: self.0.wait().unwrap() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command to its end.
fn finished(command: Command) -> Output {
    Running::start(command).finished()
}

/// What a command printed, which must have succeeded.
fn printed(command: Command) -> String {
    let output = finished(command);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What each line is, which must be JSON.
fn objects(lines: &str) -> Vec<serde_json::Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Exit code and the only line to stderr of a command that failed.
fn failed(command: Command) -> (i32, String) {
    let output = finished(command);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said:?}");
    assert!(said.starts_with("procyard: "), "{said:?}");
    (output.status.code().unwrap(), said)
}

/// Waits until a process that has printed much prints no more, though it goes on.
async fn waits_for_its_reader(client: &mut Client, id: &str) {
    let (mut before, mut printed) = (0, 0);
    while printed == 0 || printed > before {
        before = printed;
        soon(client.wait(wait(id, until_quiet(500)))).await.unwrap();
        printed = get(client, id).await.transcript.unwrap().total_bytes;
    }
    assert_eq!(get(client, id).await.state(), pb::State::Running);
}

/// A script of a shell in which `procyard` asks this service.
fn in_shell(service: &TestService, script: &str) -> Command {
    let asking = service.procyard(&[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).stdin(Stdio::null());
    for (name, value) in asking.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}
