//! Descriptors in flight, which the kernel counts for all processes of a user together.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::support::*;

/// Open files that the keeper may have, and thus descriptors that may be in flight.
const MAX_OPEN_FILES: usize = 256;
const PER_MESSAGE: usize = 200;
/// Waits of the keeper that show that it does not spin.
const WAITS: u64 = 20;

/// Descriptors that were sent and not received.
struct InFlight {
    _ends: (UnixStream, UnixStream),
}

impl InFlight {
    fn new(least: usize) -> InFlight {
        let ends = UnixStream::pair().unwrap();
        let fds: Vec<BorrowedFd<'_>> = vec![ends.0.as_fd(); PER_MESSAGE];
        for _ in 0..least.div_ceil(PER_MESSAGE) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let (bytes, flags) = ([IoSlice::new(b"x")], SendFlags::empty());
            rustix::net::sendmsg(&ends.0, &bytes, &mut control, flags).unwrap();
        }
        InFlight { _ends: ends }
    }
}

/// How often a process has waited for something.
fn waits(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn keeper_waits_while_too_many_descriptors_are_in_flight() {
    // Processes with these capabilities have no such limit.
    let open_files = format!("--nofile={MAX_OPEN_FILES}");
    let without = ["setpriv", "--bounding-set", "-sys_admin,-sys_resource"];
    let prefix = [&["prlimit", &open_files], &without[..]].concat();
    if !is_root() || !possible(&prefix) {
        return skip("giving up capabilities needs root and setpriv");
    }
    let keeper = TestKeeper::start_under(&prefix);
    let mut server = keeper.connect().await;
    let path = |name: &str| keeper.directory.path().join(name);
    let (go, done) = (path("go"), path("done"));
    let line = format!(
        "until [ -e {} ]; do sleep 0.01; done; echo printed; touch {}; exec sleep 600",
        go.display(),
        done.display()
    );
    let spawned = server.sh(&line, PIPES).await;
    let in_flight = InFlight::new(3 * MAX_OPEN_FILES);
    std::fs::write(&go, "").unwrap();
    until("it has printed", || done.exists()).await;
    let before = waits(keeper.pid());
    until("the keeper waits", || waits(keeper.pid()) >= before + WAITS).await;
    drop(in_flight);
    assert!(soon(read_until(&spawned, "printed")).await.contains("printed"));
}
