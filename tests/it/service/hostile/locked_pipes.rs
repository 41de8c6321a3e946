//! Processes that keep their pipes locked, as a `splice` from an idle socket does: they delay no other.

use procyard::grpc::pb;

use crate::support::service::*;
use crate::support::{Gate, have, soon, until};

const LOCKING: usize = 6;

/// Prints `1`, then passes on to stdout what a child writes to a socket: `2`, after it has read from the
/// gate. Meanwhile stdout and stdin are locked. A file has a byte of each that has printed.
fn locking(gate: &Gate) -> pb::Spec {
    let splice = libc::SYS_splice;
    let program = format!(
        "use Socket; socketpair(my $from, my $to, AF_UNIX, SOCK_STREAM, 0) or die; \
         if (!fork) {{ open(my $gate, '<', '{}'); sysread($gate, my $x, 1); \
             syswrite($to, '2'); exit }} \
         if (!fork) {{ open(my $stdin, '>', '/proc/self/fd/0'); close(STDOUT); close(STDERR); \
             socketpair(my $never, my $closed, AF_UNIX, SOCK_STREAM, 0) or die; \
             syscall({splice}, fileno($never), 0, fileno($stdin), 0, 1, 0); exit }} \
         syswrite(STDOUT, '1'); open(my $printed, '>>', '{}'); syswrite($printed, '1'); \
         syscall({splice}, fileno($from), 0, 1, 0, 1, 0)",
        gate.path,
        printed_path(gate)
    );
    with_stdin(argv(&["perl", "-e", &program]))
}

fn printed_path(gate: &Gate) -> String {
    format!("{}.printed", gate.path)
}

fn locking_id(n: usize) -> String {
    format!("locking-{n}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_pipes_delay_no_other_process() {
    if !have(&["perl"]) {
        return;
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let gate = Gate::new(service.directory.path());
    let server = service.server_pid();
    for n in 0..LOCKING {
        begin(&mut client, &locking_id(n), locking(&gate)).await;
    }
    for n in 0..LOCKING {
        let answer = finish(&mut client, &format!("other-{n}"), shell("echo other; exit 3")).await;
        assert_eq!(text(&answer.chunks, pb::Stream::Stdout), "other\n");
        assert_eq!(exit(&answer.process.unwrap()).code, Some(3));
        let write = pb::WriteStdinRequest {
            id: locking_id(n),
            input: Some(pb::write_stdin_request::Input::Data(b"input"[..].into())),
            ..Default::default()
        };
        let written = soon(client.write_stdin(write)).await.unwrap().into_inner();
        assert_eq!(written.accepted_bytes, 5);
    }
    let printed_by = || std::fs::read(printed_path(&gate)).map_or(0, |bytes| bytes.len());
    until("all have printed", || printed_by() == LOCKING).await;
    for n in 0..LOCKING {
        soon(client.kill(kill_at_once(&locking_id(n)))).await.unwrap();
    }
    until("nothing runs", || service.inmates().is_empty()).await;
    for n in 0..LOCKING {
        assert_eq!(printed(&mut client, &locking_id(n)).await, "1");
    }
    assert_eq!(service.server_pid(), server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_of_a_locked_pipe_is_complete_at_the_exit() {
    if !have(&["perl"]) {
        return;
    }
    let service = TestService::start();
    let mut client = service.client().await;
    let mut gate = Gate::new(service.directory.path());
    for n in 0..LOCKING {
        begin(&mut client, &locking_id(n), locking(&gate)).await;
    }
    // By then the keeper has tried to read what they have printed.
    finish(&mut client, "other", argv(&["true"])).await;
    gate.open(LOCKING);
    for n in 0..LOCKING {
        let id = locking_id(n);
        assert_eq!(exit(&ended(&mut client, &id).await).code, Some(0));
        assert_eq!(printed(&mut client, &id).await, "12");
        soon(client.kill(kill_at_once(&id))).await.unwrap();
    }
}
