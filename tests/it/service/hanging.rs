//! One of the two processes hangs instead of dying: it is noticed, and nothing is lost.

use std::time::{Duration, Instant};

use procyard::grpc::pb;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::service::*;
use crate::support::{SOON, alive, soon, state, until};

/// A process that is stopped, and goes on when this is dropped, should it still be there.
pub(super) struct Stopped(i32);

impl Stopped {
    pub(super) fn new(pid: i32) -> Stopped {
        kill_pid(pid, libc::SIGSTOP);
        let stopped = Stopped(pid);
        // Until all threads have stopped, one of them may still do something.
        let begin = Instant::now();
        while !has_stopped(pid) {
            assert!(begin.elapsed() < SOON, "process {pid} does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: a signal to one process, which this test has started.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

/// Whether all threads of a process have stopped or ended.
fn has_stopped(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.into_iter().all(|thread| {
        let thread = thread.file_name().to_str().and_then(|number| number.parse().ok());
        thread.and_then(state).is_none_or(|state| matches!(state, 'T' | 'Z' | 'X'))
    })
}

/// Prints numbered lines until a file appears, then says how many there were, on pipes.
fn printer(stop: &std::path::Path) -> pb::Spec {
    let line = "i=0; while [ ! -e $STOP ]; do n=0; while [ $n -lt 20 ]; do i=$((i+1)); n=$((n+1)); \
                echo line $i; done; sleep 0.02; done; echo end $i";
    let set = [("STOP".to_owned(), stop.to_str().unwrap().to_owned())].into();
    let env = pb::Environment { set, ..Default::default() };
    pb::Spec { env: Some(env), ..shell(line) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_replaced_and_capture_never_stopped() {
    let service = TestService::start();
    let mut client = service.client().await;
    let stop = service.directory.path().join("stop");
    for (id, spec) in [("pipes", printer(&stop)), ("terminal", on_terminal(printer(&stop)))] {
        let request = pb::StartRequest { wait: Some(until_output("line 9")), ..start(id, spec) };
        soon(client.start(request)).await.unwrap();
    }
    let hung = service.server_pid();
    let stopped = Stopped::new(hung);
    let keeper = service.child.id();
    until("the one that hangs was ended", || !alive(hung.cast_unsigned())).await;
    std::mem::forget(stopped);
    let mut client = service.client().await;
    assert_ne!(service.server_pid(), hung);
    assert_eq!(service.child.id(), keeper);
    std::fs::write(&stop, "").unwrap();
    for id in ["pipes", "terminal"] {
        let process = ended(&mut client, id).await;
        assert_eq!(exit(&process).code, Some(0));
        let request = pb::ReadRequest { id: id.into(), ..Default::default() };
        let answer = soon(client.read(request)).await.unwrap().into_inner();
        assert_eq!(answer.gap, None);
        let bytes: Vec<u8> = answer.chunks.iter().flat_map(|chunk| chunk.data.to_vec()).collect();
        let text = String::from_utf8(bytes).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let (last, lines) = lines.split_last().unwrap();
        assert_eq!(*last, format!("end {}", lines.len()));
        for (n, line) in lines.iter().enumerate() {
            assert_eq!(*line, format!("line {}", n + 1));
        }
        // It printed on while the server hung, which was for seconds: chunk after chunk.
        let times: Vec<f64> = answer.chunks.iter().map(seconds).collect();
        let pause = times.windows(2).map(|two| two[1] - two[0]).fold(0.0, f64::max);
        let span = times[times.len() - 1] - times[0];
        assert!(pause < span * 0.8, "nothing was captured for {pause} of {span} s");
    }
}

fn seconds(chunk: &pb::Chunk) -> f64 {
    let time = chunk.time.unwrap();
    time.seconds as f64 + f64::from(time.nanos) / 1e9
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_hangs_turns_health_until_it_answers_again() {
    let service = TestService::start();
    let mut healths = Vec::new();
    for name in ["", "procyard.v1.ProcessService"] {
        let mut client = HealthClient::new(service.channel().await);
        let request = HealthCheckRequest { service: name.into() };
        healths.push(soon(client.watch(request)).await.unwrap().into_inner());
    }
    let server = service.server_pid();
    let mut stopped = None;
    for expected in [ServingStatus::Serving, ServingStatus::NotServing, ServingStatus::Serving] {
        for health in &mut healths {
            let status = soon(health.message()).await.unwrap().unwrap().status();
            assert_eq!(status, expected);
        }
        stopped = match stopped.take() {
            None => Some(Stopped::new(service.child.id().cast_signed())),
            // Goes on.
            Some(_) => None,
        };
    }
    drop(stopped);
    // The keeper knows that it was itself that was late.
    let mut client = service.client().await;
    finish(&mut client, "a", shell("true")).await;
    assert_eq!(service.server_pid(), server);
}
